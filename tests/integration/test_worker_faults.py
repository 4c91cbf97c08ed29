"""What a worker must not get wrong, each worth a planted fault: real workers on a small site."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.chaos.crawl import Crawl
from tests.site.process import SiteProcess

pytestmark = [pytest.mark.integration, pytest.mark.timeout(100)]

CrawlOn = Callable[..., Crawl]


@pytest.fixture
def crawl_on(tmp_path: Path) -> Iterator[CrawlOn]:
    """Make a crawl of a site of its own; its workers are stopped at the end."""
    made: list[Crawl] = []

    def make(
        kind: str, size: int, spider: str = "graph", latency_ms: str = "0", **arguments: str
    ) -> Crawl:
        site = SiteProcess(kind, pages=size, latency_ms=latency_ms).__enter__()
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
    assert all(later - earlier > 0.29 for earlier, later in pairwise(times))


def test_pages_that_run_one_at_a_time_follow_each_other_at_once(crawl_on: CrawlOn) -> None:
    crawl = crawl_on("flat", 4)
    die_twice(crawl)
    assert crawl.start().wait() == 0
    times = [hit.t for hit in crawl.site.hits()]
    assert times[-1] - times[0] < 2


# --- start() -----------------------------------------------------------------------------------


def test_ignored_requests_of_start_cost_no_other_page(crawl_on: CrawlOn) -> None:
    crawl = crawl_on("flat", 60, "ignoring")
    assert crawl.start().wait() == 0
    assert crawl.tally().lost == []


# --- feeds -------------------------------------------------------------------------------------


def pages_in(path: Path) -> list[str]:
    return [json.loads(line)["url"] for line in path.read_text().splitlines()]


def test_a_resumed_crawl_appends_and_a_new_one_overwrites(crawl_on: CrawlOn) -> None:
    crawl = crawl_on("tree", 30)
    items = crawl.folder / "overwritten.jl"
    items.write_text('{"url": "of an earlier crawl"}\n')
    few = ("-s", "CLOSESPIDER_PAGECOUNT=5", "-s", "CONCURRENT_REQUESTS=2")
    assert crawl.start("-O", str(items), *few).wait() == 4
    before = pages_in(items)
    assert before
    assert "of an earlier crawl" not in before
    assert crawl.start("-O", str(items)).wait() == 0
    after = pages_in(items)
    assert after[: len(before)] == before
    assert len(after) == len(set(after)) == 30
