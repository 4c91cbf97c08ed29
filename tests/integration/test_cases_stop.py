"""Asked to stop, a worker ends in time whatever it is doing, and harms nobody."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from clusterscrapy.exceptions import FrontierError
from clusterscrapy.frontier import Ack, Batch, Delivery, Push, StartDone, Terms, key_of, open_store
from tests.chaos.crawl import Crawl, wait_until
from tests.integration.conftest import SETTINGS
from tests.servers import RedisServer
from tests.site.process import ROOT, SiteProcess

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(60)]
CrawlOf = Callable[..., Crawl]
SOON = ("-s", "CLUSTER_STOP_SECONDS=2")
LEASE = ("-s", "CLUSTER_LEASE_SECONDS=2", "-s", "CLUSTER_HEARTBEAT_SECONDS=0.5")


@pytest.mark.parametrize(
    "where", ["callback", "pipeline", "start", "errback", "thread", "reactor-thread"]
)
def test_whatever_is_stuck_is_handed_back_at_the_deadline(
    crawl_of: CrawlOf, sqlite_store: str, where: str
) -> None:
    crawl = crawl_of("stuck", sqlite_store, where=where)
    worker = crawl.start(*SOON)
    wait_until(lambda: crawl.items_path.exists() and len(crawl.asked()) >= 2, 20)
    time.sleep(0.7)
    began = time.monotonic()
    worker.signal(signal.SIGTERM)
    assert worker.wait(15) == 5
    assert time.monotonic() - began < 6
    status = crawl.status()
    assert (status.state, status.leased) == ("stopped", 0)
    assert "Traceback" not in worker.text()
    assert "Stored jl feed" in worker.text()


@pytest.mark.parametrize("process", ["AsyncCrawlerProcess", "CrawlerProcess"])
@pytest.mark.parametrize("where", ["closed", "closed-blocking", "engine_stopped"])
def test_who_listens_to_the_end_for_ever_is_left_behind(
    crawl_of: CrawlOf, sqlite_store: str, where: str, process: str
) -> None:
    crawl = crawl_of("stuckattheend", sqlite_store, where=where)
    worker = crawl.start(*SOON, "-s", f"FORCE_CRAWLER_PROCESS={process == 'CrawlerProcess'}")
    wait_until(lambda: len(crawl.asked()) >= 2, 20)
    time.sleep(0.7)
    began = time.monotonic()
    worker.signal(signal.SIGTERM)
    assert worker.wait(15) == 5
    assert time.monotonic() - began < 10
    assert (crawl.status().state, crawl.status().leased) == ("stopped", 0)
    assert "Stored jl feed" in worker.text() or where == "closed-blocking"


def test_a_spider_that_is_still_being_made_ends_at_once(
    crawl_of: CrawlOf, sqlite_store: str, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    crawl = crawl_of("stuckininit", sqlite_store, mark=str(mark))
    worker = crawl.start(*SOON)
    wait_until(mark.exists, 20)
    worker.signal(signal.SIGTERM)
    assert worker.wait(3) == 5
    assert "stopped before the crawl was joined" in worker.text()


def test_a_worker_that_waits_for_anothers_start_stops_at_once(
    crawl_of: CrawlOf, store: str
) -> None:
    crawl = crawl_of("stuck", store, where="start")
    one = crawl.start(*SOON)
    wait_until(lambda: len(crawl.asked()) == 2, 20)
    two = crawl.start(*SOON)
    wait_until(lambda: "Joining crawl" in two.text(), 20)
    two.signal(signal.SIGTERM)
    assert two.wait(5) == 5
    assert one.running


def test_a_signal_while_redis_is_away_ends_the_worker_in_time(
    crawl_of: CrawlOf, tmp_path: Path
) -> None:
    folder = tmp_path / "redis"
    folder.mkdir()
    server = RedisServer(folder, appendonly=True)
    try:
        crawl = crawl_of("patient", server.url, quick="2")
        worker = crawl.start(*SOON, *LEASE)
        wait_until(lambda: len(crawl.asked()) >= 3, 20)
        server.stop()
        wait_until(lambda: "does not answer" in worker.text(), 20)
        began = time.monotonic()
        worker.signal(signal.SIGTERM)
        code = worker.wait(20)
        assert time.monotonic() - began < 2 + 5
        assert code in (5, 6)
        server.start()
        crawl.site.reset()
        second = crawl.start(*SOON, *LEASE)
        wait_until(lambda: "/slow/600" in crawl.asked(), 20)
        second.signal(signal.SIGTERM)
        assert second.wait(20) == 5
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("shell", "script"), [("sh", "cd . && exec %s"), ("bash", "%s"), ("sh", "trap '' TERM; %s")]
)
def test_it_drains_when_a_shell_started_it(
    site: SiteProcess, sqlite_store: str, tmp_path: Path, shell: str, script: str
) -> None:
    # To the whole group, as a terminal and an init process do: a shell that does not exec passes
    # no signal on.
    command = f"{sys.executable} -m scrapy crawl patient -a url={site.url} -a quick=2"
    log = (tmp_path / "log").open("wb")
    started = subprocess.Popen(
        [shell, "-c", script % f"{command} {' '.join(SOON)}"],
        env={**os.environ, **SETTINGS, "CLUSTER_FRONTIER_URL": sqlite_store},
        cwd=ROOT,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    log.close()
    wait_until(lambda: len(site.hits()) >= 3, 20)
    os.killpg(started.pid, signal.SIGTERM)
    assert started.wait(15) == 5


def test_a_worker_stopped_before_its_engine_runs_says_that_work_is_left(
    crawl_of: CrawlOf, store: str
) -> None:
    crawl = crawl_of("stops_when_opened", store)
    worker = crawl.start(*SOON)
    assert worker.wait(15) == 5
    assert len(crawl.status().workers) == 0
    assert crawl.start("-s", "MENDED=1").wait() == 0
    assert crawl.asked() == ["/echo"]


# --- frozen for longer than the lease --------------------------------------------------------


def test_a_frozen_workers_late_acknowledgements_change_nothing(
    crawl_of: CrawlOf, redis_url: str
) -> None:
    crawl = crawl_of("children", redis_url, width="40")
    options = (*LEASE, "-s", "CONCURRENT_REQUESTS=8", "-s", "CONCURRENT_REQUESTS_PER_DOMAIN=8")
    one = crawl.start(*options)
    crawl.wait_for_hits(6, one)
    one.signal(signal.SIGSTOP)
    status = crawl.status()
    frozen, [there] = status.leased, status.workers
    two = crawl.start(*options)
    wait_until(lambda: all(w.epoch != there.epoch for w in crawl.status().workers), 40)
    time.sleep(4)  # after a silence of all, nobody is dead before one more lease time
    one.signal(signal.SIGCONT)
    assert [one.wait(30), two.wait(30)] == [0, 0]
    assert "was taken for dead" in one.text()
    pages = crawl.asked()
    assert len(set(pages)) == 440
    assert len(pages) - 440 <= frozen
    status = crawl.status()
    assert (status.state, status.waiting, status.leased) == ("finished", 0, 0)
    assert status.done == 440


def test_a_worker_that_thaws_after_the_others_finished_ends_finished(
    crawl_of: CrawlOf, redis_url: str
) -> None:
    crawl = crawl_of("children", redis_url, width="8")
    one = crawl.start(*LEASE)
    crawl.wait_for_hits(8, one)
    one.signal(signal.SIGSTOP)
    assert crawl.start(*LEASE).wait(40) == 0
    pages = len(crawl.asked())
    one.signal(signal.SIGCONT)
    assert one.wait(20) == 0
    assert len(crawl.asked()) == pages
    assert crawl.status().done == 88
    assert "finished the crawl while this worker was taken for dead" in one.text()
    assert "left crawl" not in one.text()


def test_a_worker_that_was_frozen_alone_goes_on_and_finishes(
    crawl_of: CrawlOf, redis_url: str
) -> None:
    crawl = crawl_of("children", redis_url, width="16")
    worker = crawl.start(*LEASE)
    crawl.wait_for_hits(6, worker)
    worker.signal(signal.SIGSTOP)
    time.sleep(5)
    worker.signal(signal.SIGCONT)
    assert worker.wait(30) == 0
    assert len(set(crawl.asked())) == 176
    assert "'finish_reason': 'finished'" in worker.text()
    status = crawl.status()
    assert (status.state, status.done) == ("finished", 176)


def test_a_finished_crawl_takes_no_page_again_from_a_worker_that_came_back(store: str) -> None:
    # A worker is taken for dead, joins again, and still has children of its pages to store when
    # the others finish the crawl, which forgets what was seen.
    frontier = open_store(store).frontier("crawl")
    terms = Terms(worker="one", explicit=True, lease_s=0.3)
    page, child = (Push(key_of(name), name) for name in (b"page", b"child"))
    one = frontier.join(terms)
    one.sync(Batch([page, StartDone()], claim_start=True, want=1))
    one.lapse()
    time.sleep(0.5)
    two = frontier.join(replace(terms, worker="two"))
    taken: Sequence[Delivery] = ()
    deadline = time.monotonic() + 10
    while not taken and time.monotonic() < deadline:
        time.sleep(0.1)
        taken = two.sync(Batch(want=9)).taken
    back = frontier.join(terms)
    [other] = two.sync(Batch([child, Ack(taken[0].key)], want=1)).taken
    two.sync(Batch([Ack(other.key)]))
    two.finish()
    try:
        reply = back.sync(Batch([child]))
    except FrontierError:
        return
    assert list(reply.queued) == [False]
    assert reply.waiting == 0
