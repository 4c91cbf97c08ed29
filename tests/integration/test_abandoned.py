"""Crawls nobody came back to are listed, and dropped by the next worker that begins in their store."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from clusterscrapy.frontier import Batch, Push, Session, Terms, key_of, open_store
from tests.chaos.crawl import Crawl
from tests.integration.test_hands import frontier

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]
CrawlOf = Callable[..., Crawl]
SOON = ("-s", f"CLUSTER_ABANDONED_AFTER={0.2 / 86_400}")


def left(store: str, name: str) -> Session:
    """A crawl with two requests, whose worker is still inside."""
    session = open_store(store).frontier(name).join(Terms(lease_s=5))
    session.sync(Batch([Push(key_of(b"a"), b"a"), Push(key_of(b"b"), b"b")]))
    return session


def names(store: str) -> list[str]:
    return [record["crawl"] for record in json.loads(frontier(store, "list", "--json"))]


def test_a_worker_drops_what_is_abandoned_and_nothing_else(crawl_of: CrawlOf, store: str) -> None:
    left(store, "old").leave()
    left(store, "paused").leave()
    open_store(store).frontier("paused").pause()
    at_work = left(store, "busy")
    time.sleep(0.5)
    assert names(store) == ["busy", "old", "paused"]
    crawl = crawl_of("many", store)
    worker = crawl.start(*SOON)
    assert worker.wait() == 0
    assert "Dropped crawl old: nobody has worked on it for" in worker.text()
    assert "it had 2 requests left and 0 dead letters" in worker.text()
    assert names(store) == ["busy", "many-" + names(store)[1].partition("-")[2], "paused"]
    assert at_work.sync(Batch(want=2)).taken


def test_by_default_two_weeks_have_to_pass(crawl_of: CrawlOf, store: str) -> None:
    left(store, "old").leave()
    assert crawl_of("many", store).start().wait() == 0
    assert "old" in names(store)


def test_the_list_says_who_is_at_work_and_what_is_abandoned(store: str) -> None:
    left(store, "old").leave()
    time.sleep(0.5)
    _at_work = left(store, "busy")
    lines = frontier(store, "list", *SOON).splitlines()
    assert lines[0].split() == [
        "crawl",
        "state",
        "run",
        "left",
        "done",
        "dead",
        "began",
        "idle",
        "for",
    ]
    assert lines[1].startswith("busy")
    assert lines[1].endswith("at work")
    assert lines[2].startswith("old")
    assert lines[2].endswith("s, abandoned")


def test_an_empty_store_has_an_empty_list(store: str) -> None:
    assert "'scrapy crawl' begins one" in frontier(store, "list")
    assert names(store) == []
