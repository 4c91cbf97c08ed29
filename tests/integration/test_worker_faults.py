"""What a worker must not get wrong, each worth a planted fault: real workers on a small site."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.chaos.crawl import Crawl, Worker, wait_until
from tests.site.process import ROOT, SiteProcess

pytestmark = [pytest.mark.integration, pytest.mark.timeout(100)]

CrawlOn = Callable[..., Crawl]


@pytest.fixture
def crawl_on(tmp_path: Path) -> Iterator[CrawlOn]:
    """Make a crawl of a site of its own; its workers are stopped at the end."""
    made: list[Crawl] = []

    def make(
        kind: str, pages: int, spider: str = "graph", latency_ms: str = "0", **arguments: str
    ) -> Crawl:
        site = SiteProcess(kind, pages=pages, latency_ms=latency_ms).__enter__()
        made.append(Crawl(site, f"sqlite://{tmp_path}/frontier", tmp_path, spider, arguments))
        return made[-1]

    yield make
    for crawl in made:
        crawl.stop_all()
        crawl.site.stop()


# --- pages that were there when workers died ---------------------------------------------------


def die_twice(crawl: Crawl) -> None:
    """Two workers die at once; each had all pages but the first, and nobody knows which one it was."""
    for _ in range(2):
        worker = crawl.start(runner=["-m", "tests.chaos.crash_worker", "decoding", "2"])
        assert worker.wait() == -signal.SIGKILL
    crawl.site.reset()


def test_pages_that_were_there_at_two_deaths_run_one_at_a_time(crawl_on: CrawlOn) -> None:
    crawl = crawl_on("flat", 4, latency_ms="300")
    die_twice(crawl)
    assert crawl.start().wait() == 0
    times = [hit.t for hit in crawl.site.hits()]
    assert len(times) == 3
    assert all(later - earlier > 0.29 for earlier, later in zip(times, times[1:], strict=False))


def test_pages_that_run_one_at_a_time_follow_each_other_at_once(crawl_on: CrawlOn) -> None:
    crawl = crawl_on("flat", 4)
    die_twice(crawl)
    assert crawl.start().wait() == 0
    times = [hit.t for hit in crawl.site.hits()]
    assert times[-1] - times[0] < 2


# --- the end -----------------------------------------------------------------------------------


def test_at_the_deadline_open_downloads_are_handed_back_and_the_spider_closes(
    crawl_on: CrawlOn,
) -> None:
    crawl = crawl_on("flat", 20, "seeds", latency_ms="60000", pages="20")
    worker = crawl.start("-s", "CLUSTER_STOP_SECONDS=1")
    wait_until(lambda: len(crawl.site.hits()) == 20)
    worker.signal(signal.SIGTERM)
    asked = time.monotonic()
    assert worker.wait(20) == 5
    assert time.monotonic() - asked < 5
    assert "20 unfinished requests are handed back" in worker.text()
    assert "Spider closed (shutdown)" in worker.text()
    assert (crawl.status().waiting, crawl.status().leased) == (20, 0)


# --- feeds -------------------------------------------------------------------------------------


def overwriting(crawl: Crawl, *options: str) -> Worker:
    """Start a worker that writes with ``-O``."""
    command = ["-m", "scrapy", "crawl", "graph", "-a", f"url={crawl.site.url}"]
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "SCRAPY_SETTINGS_MODULE": "tests.chaos.project.settings",
        "CLUSTER_FRONTIER_URL": crawl.store,
    }
    with (crawl.folder / f"overwriting-{len(crawl.workers)}.log").open("wb") as log:
        worker = Worker([*command, "-O", str(crawl.items_path), *options], log, environ)
    crawl.workers.append(worker)
    return worker


def pages_in(path: Path) -> list[str]:
    return [json.loads(line)["url"] for line in path.read_text().splitlines()]


def test_a_resumed_crawl_appends_with_o_and_a_new_one_overwrites(crawl_on: CrawlOn) -> None:
    crawl = crawl_on("tree", 30)
    crawl.items_path.write_text('{"url": "of an earlier crawl"}\n')
    first = overwriting(
        crawl,
        "-s",
        "CLOSESPIDER_PAGECOUNT=5",
        "-s",
        "CONCURRENT_REQUESTS=2",
        "-s",
        "CONCURRENT_ITEMS=1",
    )
    assert first.wait() == 4
    before = pages_in(crawl.items_path)
    assert before
    assert "of an earlier crawl" not in before
    assert overwriting(crawl).wait() == 0
    after = pages_in(crawl.items_path)
    assert after[: len(before)] == before
    assert len(after) == len(set(after)) == 30
