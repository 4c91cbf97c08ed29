"""``CLUSTER_MAX_PAGES`` and its like bound the whole crawl, whoever works on it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.chaos.crawl import Crawl

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]
CrawlOf = Callable[..., Crawl]
ONE_BY_ONE = ("-s", "CONCURRENT_REQUESTS=1")


def test_two_workers_fetch_as_many_pages_as_one_may(crawl_of: CrawlOf, store: str) -> None:
    crawl = crawl_of("many", store)
    workers = [crawl.start("-s", "CLUSTER_MAX_PAGES=4") for _ in range(2)]
    assert [worker.wait() for worker in workers] == [4, 4]
    assert crawl.status().done == len(crawl.asked()) == len(crawl.items()) == 4
    for worker in workers:
        last = worker.text().splitlines()[-1]
        assert "unfinished (max_pages); the same command with a higher CLUSTER_MAX_PAGES" in last
    # A worker that comes to a crawl at its bound fetches nothing.
    assert crawl.start("-s", "CLUSTER_MAX_PAGES=4").wait() == 4
    assert len(crawl.asked()) == 4
    assert crawl.start().wait() == 0
    assert sorted(set(crawl.asked())) == sorted(crawl.asked())
    assert crawl.status().done == 10


def test_a_bound_that_is_not_reached_changes_nothing(crawl_of: CrawlOf, store: str) -> None:
    crawl = crawl_of("many", store)
    bounds = (
        "-s",
        "CLUSTER_MAX_PAGES=10",
        "-s",
        "CLUSTER_MAX_ITEMS=10",
        "-s",
        "CLUSTER_MAX_SECONDS=60",
    )
    assert crawl.start(*bounds).wait() == 0
    assert crawl.status().items == 10


def test_enough_items_end_the_crawl(crawl_of: CrawlOf, store: str) -> None:
    crawl = crawl_of("many", store)
    worker = crawl.start("-s", "CLUSTER_MAX_ITEMS=3", "-s", "DOWNLOAD_DELAY=0.2", *ONE_BY_ONE)
    assert worker.wait() == 4
    assert "max_items" in worker.text().splitlines()[-1]
    assert 3 <= len(crawl.items()) <= 4
    assert crawl.start().wait() == 0
    assert len(crawl.items()) == 10


def test_time_ends_the_crawl_over_restarts(crawl_of: CrawlOf, store: str) -> None:
    crawl = crawl_of("many", store)
    slow = ("-s", "DOWNLOAD_DELAY=0.5", "-s", "CLUSTER_MAX_SECONDS=1.5", *ONE_BY_ONE)
    worker = crawl.start(*slow)
    assert worker.wait() == 4
    assert "max_seconds" in worker.text().splitlines()[-1]
    fetched = len(crawl.asked())
    assert 1 <= fetched <= 6
    assert crawl.start(*slow).wait() == 4
    assert len(crawl.asked()) == fetched
    assert crawl.start().wait() == 0
    assert crawl.status().done == 10
