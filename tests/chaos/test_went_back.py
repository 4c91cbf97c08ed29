"""A Redis that comes back in an older state, as from its file or a replica: no page is lost."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.crawl import Crawl
from tests.servers import RedisServer
from tests.site.process import SiteProcess

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(200)]
RUNS = int(os.environ.get("CHAOS_RUNS", "1"))
PAGES = 1_000
LEASE = ("-s", "CLUSTER_LEASE_SECONDS=4", "-s", "CLUSTER_HEARTBEAT_SECONDS=1")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    folder = tmp_path / "redis"
    folder.mkdir()
    server = RedisServer(folder, appendonly=True)
    yield server
    server.stop()


def go_back(server: RedisServer, seconds: float) -> None:
    """Kill it, and start it with the file as it was this long before."""
    file, older = server.folder / "appendonlydir", server.folder / "older"
    shutil.copytree(file, older)
    time.sleep(seconds)
    assert server.process is not None
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()
    shutil.rmtree(file)
    older.rename(file)
    server.start()


@pytest.mark.parametrize(("workers", "replay"), [(1, 60), (3, 60), (1, 0)])
@pytest.mark.parametrize("run", range(RUNS))
def test_no_page_is_lost_when_redis_goes_back_in_time(
    server: RedisServer, tmp_path: Path, workers: int, replay: int, run: int
) -> None:
    # Without a replay too: who queued a page of this site is fetched again, and so is the page.
    with SiteProcess("tree", pages=PAGES, latency_ms="50-150") as site:
        crawl = Crawl(site, server.url, tmp_path)
        options = (*LEASE, "-s", f"CLUSTER_REPLAY_SECONDS={replay}")
        began = [crawl.start(*options) for _ in range(workers)]
        moments = sorted(random.sample(range(20, PAGES * 6 // 10), 2))
        back = [random.uniform(0.3, 2.0) for _ in moments]
        try:
            for moment, seconds in zip(moments, back, strict=True):
                crawl.wait_for_hits(moment, began[0])
                go_back(server, seconds)
            codes = [worker.wait(90) for worker in began]
        finally:
            crawl.stop_all()
        tally = crawl.tally()
    said = sum("went back in time" in worker.text() for worker in began)
    print(
        json.dumps({"moments": moments, "back": back, "codes": codes, "said": said, **vars(tally)})
    )
    assert tally.lost == []
    assert tally.without_item == []
    assert said
    assert codes == [0] * workers


@pytest.mark.parametrize("run", range(RUNS))
def test_no_start_request_is_lost_when_redis_goes_back_in_time(
    server: RedisServer, tmp_path: Path, run: int
) -> None:
    with SiteProcess("flat", pages=PAGES, latency_ms="50-150") as site:
        crawl = Crawl(site, server.url, tmp_path, spider="seeds", arguments={"pages": str(PAGES)})
        worker = crawl.start(*LEASE)
        moments = [random.randrange(1, 50), random.randrange(200, 600)]
        try:
            for moment in moments:
                crawl.wait_for_hits(moment, worker)
                go_back(server, random.uniform(0.3, 2.0))
            code = worker.wait(90)
        finally:
            crawl.stop_all()
        tally = crawl.tally()
    print(json.dumps({"moments": moments, "code": code, **vars(tally)}))
    assert tally.lost == []
    assert tally.without_item == []
    assert code == 0
    assert "went back in time" in worker.text()
