"""Several workers on one crawl: each page once, everybody ends with the crawl, nobody harms another."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.chaos.crawl import Crawl, wait_until
from tests.site.process import SiteProcess

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(200)]


@pytest.mark.parametrize("count", [2, 5])
def test_without_kills_each_page_is_fetched_once_and_all_close_finished(
    store: str, tmp_path: Path, count: int
) -> None:
    with SiteProcess("dense", pages=600, latency_ms="20-60") as site:
        crawl = Crawl(site, store, tmp_path)
        try:
            workers = [crawl.start() for _ in range(count)]
            assert [worker.wait() for worker in workers] == [0] * count
            ended = time.time()
        finally:
            crawl.stop_all()
        tally = crawl.tally()
        last = max(hit.t for hit in site.hits())
    assert (tally.lost, tally.without_item, tally.twice) == ([], [], 0)
    assert ended - last < 10
    for worker in workers:
        assert "'finish_reason': 'finished'" in worker.text()


def test_nobody_closes_while_another_still_fetches(store: str, tmp_path: Path) -> None:
    with SiteProcess("tree", pages=2, latency_ms="4000-4000") as site:
        crawl = Crawl(site, store, tmp_path)
        try:
            workers = [crawl.start(), crawl.start()]
            wait_until(lambda: len(site.hits()) == 2)
            time.sleep(2)
            assert all(worker.running for worker in workers)
            assert [worker.wait() for worker in workers] == [0, 0]
        finally:
            crawl.stop_all()
        assert crawl.tally().lost == []


def test_a_worker_asked_to_stop_harms_nobody(store: str, tmp_path: Path) -> None:
    with SiteProcess("dense", pages=600, latency_ms="20-60") as site:
        crawl = Crawl(site, store, tmp_path)
        try:
            one, two = crawl.start(), crawl.start()
            crawl.wait_for_hits(200, two)
            one.signal(signal.SIGTERM)
            assert one.wait() in (5, 0)
            assert two.wait() == 0
        finally:
            crawl.stop_all()
        tally = crawl.tally()
    assert (tally.lost, tally.without_item, tally.twice) == ([], [], 0)


def test_a_worker_that_joins_late_gets_work_at_once(store: str, tmp_path: Path) -> None:
    # Two dozen slow pages, all held by the first worker when the second comes.
    with SiteProcess("flat", pages=60, latency_ms="900-1100") as site:
        crawl = Crawl(site, store, tmp_path)
        options = ("-s", "CONCURRENT_REQUESTS=8", "-s", "CLUSTER_PREFETCH=64")
        try:
            one = crawl.start(*options)
            wait_until(lambda: len(site.hits()) >= 9)
            two = crawl.start(*options)
            wait_until(lambda: "Joining crawl" in two.text(), 20)
            joined = time.monotonic()
            wait_until(lambda: any(w.leased and w.name.endswith(str(two.process.pid))
                                   for w in crawl.status().workers), 20)  # fmt: skip
            assert time.monotonic() - joined < 2.5
            assert [one.wait(), two.wait()] == [0, 0]
        finally:
            crawl.stop_all()
        tally = crawl.tally()
    assert (tally.lost, tally.twice) == ([], 0)
    assert "'scheduler/dequeued': 0" not in two.text()
    assert "scheduler/dequeued" in two.text()


def test_a_frozen_worker_changes_nothing_when_it_thaws(store: str, tmp_path: Path) -> None:
    with SiteProcess("dense", pages=400, latency_ms="20-60") as site:
        crawl = Crawl(site, store, tmp_path)
        short = ("-s", "CLUSTER_LEASE_SECONDS=2", "-s", "CLUSTER_HEARTBEAT_SECONDS=0.5")
        try:
            one, two = crawl.start(*short), crawl.start(*short)
            crawl.wait_for_hits(100, two)
            one.signal(signal.SIGSTOP)
            frozen = crawl.status().leased
            time.sleep(5)
            one.signal(signal.SIGCONT)
            assert [one.wait(), two.wait()] == [0, 0]
        finally:
            crawl.stop_all()
        tally = crawl.tally()
    assert (tally.lost, tally.without_item) == ([], [])
    assert tally.twice <= frozen
