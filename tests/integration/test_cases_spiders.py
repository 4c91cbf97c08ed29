"""What spiders do besides yielding requests: closing, idling, callbacks of every shape, middlewares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.chaos.crawl import Crawl

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]
CrawlOf = Callable[..., Crawl]


def test_a_start_that_asks_to_close_is_run_again_by_the_next_worker(
    crawl_of: CrawlOf, store: str
) -> None:
    crawl = crawl_of("start_closes", store)
    worker = crawl.start()
    assert worker.wait() == 4
    assert "'finish_reason': 'enough'" in worker.text()
    status = crawl.status()
    assert (status.state, status.leased, status.start) == ("stopped", 0, "")
    assert crawl.start("-s", "MENDED=1").wait() == 0
    assert sorted(crawl.asked()) == ["/echo?first", "/echo?second"]


def test_a_callback_that_asks_to_close_keeps_what_it_yielded(crawl_of: CrawlOf, store: str) -> None:
    crawl = crawl_of("callback_closes", store)
    assert crawl.start().wait() == 4
    assert crawl.status().leased == 0
    assert crawl.start().wait() == 0
    assert Counter(crawl.asked()) == {"/echo?parent": 1, "/echo?child": 1}
    assert sorted(item["url"].rpartition("?")[2] for item in crawl.items()) == ["child", "parent"]


def test_pages_added_by_a_handler_of_idle_are_fetched(crawl_of: CrawlOf, store: str) -> None:
    crawl = crawl_of("idle", store)
    worker = crawl.start()
    assert worker.wait() == 0
    assert crawl.asked() == [f"/echo?{name}" for name in ("start", "idle1", "idle2", "idle3")]
    assert "Traceback" not in worker.text()


def test_callbacks_of_every_shape_work(crawl_of: CrawlOf, sqlite_store: str) -> None:
    crawl = crawl_of("shapes", sqlite_store)
    worker = crawl.start()
    assert worker.wait() == 0
    names = ("nothing", "one_item", "one_request", "a_list", "a_coroutine", "inline")
    children = ("one_request-child", "a_list-child", "inline-inline")
    assert Counter(crawl.asked()) == Counter(f"/echo?{name}" for name in (*names, *children))
    assert Counter(item["url"].rpartition("?")[2] for item in crawl.items()) == Counter(
        ("one_item", "one_request-child", "a_list", "a_list-child", "a_coroutine", "inline-inline")
    )
    assert crawl.dead() == {}
    assert "Traceback" not in worker.text()


def test_every_attribute_survives_the_way_to_another_worker(crawl_of: CrawlOf, store: str) -> None:
    crawl = crawl_of("deferring", store)
    assert crawl.start().wait() == 4
    assert crawl.asked() == ["/echo?start"]
    assert crawl.start().wait() == 0
    assert crawl.items() == [
        {
            "class": "FormRequest",
            "body": "a=1",
            "headers": ["1", "2"],
            "cookies": {"c": "2"},
            "meta": r"(1, {'n': b'\xff'})",
            "kwargs": "{'k': (3, None)}",
            "flags": ["f"],
            "encoding": "latin-1",
            "method": "POST",
        }
    ]
    assert crawl.dead() == {}


def test_a_middleware_that_raises_makes_a_dead_letter_with_its_words(
    crawl_of: CrawlOf, sqlite_store: str
) -> None:
    crawl = crawl_of("broken", sqlite_store)
    assert crawl.start().wait() == 0
    letters = crawl.dead()
    places = ("process_request", "process_response", "input", "output", "late-output")
    assert sorted(letters) == sorted(f"echo?{place}" for place in places)
    for place in places:
        reason, detail = letters[f"echo?{place}"]
        assert detail.startswith("ValueError: in process_"), place
        assert reason != "poison"
    pages = [item["url"].rpartition("?")[2] for item in crawl.items()]
    assert sorted(pages) == ["good", "late-output"]


def test_a_url_longer_than_the_limit_costs_no_other_page(crawl_of: CrawlOf, store: str) -> None:
    crawl = crawl_of("long", store)
    worker = crawl.start("-s", "URLLENGTH_LIMIT=0", "-s", "RETRY_ENABLED=0", "-L", "WARNING")
    assert worker.wait() == 0
    assert "/echo?short" in crawl.asked()
    status = crawl.status()
    assert (status.waiting, status.leased) == (0, 0)
    [refused] = [line for line in worker.text().splitlines() if "CLUSTER_REQUEST_MAX_BYTES" in line]
    assert len(refused) < 700
    reasons = {url[:8]: reason for url, (reason, _) in crawl.dead().items() if "bbb" in url[:99]}
    assert reasons == {"echo?q=b": "unserializable"}
