"""What a worker must not get wrong, each worth a planted fault: real workers on a small site."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from scrapy import Request
from scrapy.utils.request import RequestFingerprinter

from clusterscrapy.dupefilter import RequestKeys
from clusterscrapy.frontier import Batch, Push, StartDone, Terms, key_of
from clusterscrapy.frontier.codec import RequestCodec
from clusterscrapy.identity import scheme_of
from tests.chaos.crawl import Crawl
from tests.chaos.project.spiders import Graph
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


def pages_in(path: Path) -> list[str]:
    return [json.loads(line)["url"] for line in path.read_text().splitlines()]


# --- pages that were there when workers died ---------------------------------------------------


def seed_with_deaths(crawl: Crawl) -> None:
    """Queue ``/p/1`` to ``/p/3``, of which the first two were inside two workers that died."""
    codec = RequestCodec(
        Graph(url=crawl.site.url),
        request_classes=(),
        project_packages=("tests",),
        max_bytes=100_000,
    )
    fingerprinter = RequestFingerprinter()
    requests = [Request(f"{crawl.site.url}p/{number}") for number in (1, 2, 3)]
    pushes = [Push(key_of(fingerprinter.fingerprint(r)), codec.encode(r)) for r in requests]
    terms = Terms(scheme=scheme_of(fingerprinter))
    frontier = crawl.frontier
    session = frontier.join(terms)
    session.sync(Batch([*pushes, StartDone()], claim_start=True))
    for _ in range(2):
        taken = session.sync(Batch(want=2)).taken
        session.sync(Batch(entered=[delivery.key for delivery in taken]))
        session.lapse()
        session = frontier.join(terms)
    session.leave()
    frontier.close()


def test_pages_that_were_there_at_two_deaths_run_alone(crawl_on: CrawlOn) -> None:
    crawl = crawl_on("flat", 4, latency_ms="300")
    seed_with_deaths(crawl)
    assert crawl.start().wait() == 0
    hits = crawl.site.hits()
    assert [hit.path for hit in hits] == ["/p/1", "/p/2", "/p/3"]
    assert all(later.t - earlier.t > 0.29 for earlier, later in pairwise(hits))


def test_pages_that_run_alone_follow_each_other_at_once(crawl_on: CrawlOn) -> None:
    crawl = crawl_on("flat", 4)
    seed_with_deaths(crawl)
    assert crawl.start().wait() == 0
    first, *_, last = crawl.site.hits()
    assert last.t - first.t < 2


# --- start() -----------------------------------------------------------------------------------


def test_start_runs_once_however_many_workers_there_are(crawl_on: CrawlOn) -> None:
    crawl = crawl_on("flat", 20, "start_items", pages="20")
    workers = [crawl.start(), crawl.start()]
    assert [worker.wait() for worker in workers] == [0, 0]
    assert len(pages_in(crawl.items_path)) == 20


def test_a_worker_taken_for_dead_in_the_midst_of_start_ends_it_all_the_same(
    crawl_on: CrawlOn,
) -> None:
    crawl = crawl_on("flat", 10, "stalling", pages="10")
    soon = ("-s", "CLUSTER_LOOP_STALL_SECONDS=1", "-s", "CLUSTER_HEARTBEAT_SECONDS=0.2")
    worker = crawl.start(*soon)
    assert worker.wait(30) == 0
    assert "was taken for dead" in worker.text()
    assert crawl.tally().lost == []


def test_ignored_requests_of_start_cost_no_other_page(crawl_on: CrawlOn) -> None:
    crawl = crawl_on("flat", 60, "ignoring")
    assert crawl.start().wait() == 0
    assert crawl.tally().lost == []


def test_equal_unfiltered_requests_have_keys_of_their_own() -> None:
    keys = RequestKeys(RequestFingerprinter(), kind="bloom")
    one, two = (Request("http://h/", dont_filter=True) for _ in range(2))
    assert keys.key(one) != keys.key(two)
    assert keys.key(Request("http://h/")) == keys.key(Request("http://h/"))


# --- feeds -------------------------------------------------------------------------------------


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
