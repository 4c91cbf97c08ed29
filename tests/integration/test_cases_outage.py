"""Stores that go away, fill up or break while workers run."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.chaos.crawl import Crawl, wait_until
from tests.servers import RedisServer

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(90)]
CrawlOf = Callable[..., Crawl]
LEASE = ("-s", "CLUSTER_LEASE_SECONDS=2", "-s", "CLUSTER_HEARTBEAT_SECONDS=0.5")
NARROW = ("-s", "CONCURRENT_REQUESTS=4", "-s", "CONCURRENT_REQUESTS_PER_DOMAIN=4")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis of this test's own that keeps its data over a restart."""
    folder = tmp_path / "redis"
    folder.mkdir()
    server = RedisServer(folder, appendonly=True)
    yield server
    server.stop()


def test_every_child_survives_eight_seconds_without_redis_and_a_kill_after(
    crawl_of: CrawlOf, server: RedisServer
) -> None:
    crawl = crawl_of("children", server.url, width="60")
    worker = crawl.start(*LEASE)
    crawl.wait_for_hits(60, worker)
    server.stop()
    time.sleep(2)
    worker.kill()
    server.start()
    assert crawl.start(*LEASE).wait() == 0
    assert len(set(crawl.asked())) == 660


def test_two_workers_go_on_after_redis_was_away(crawl_of: CrawlOf, server: RedisServer) -> None:
    crawl = crawl_of("children", server.url, width="60")
    workers = [crawl.start(*LEASE, *NARROW) for _ in range(2)]
    crawl.wait_for_hits(30, workers[1])
    server.stop()
    time.sleep(4)
    server.start()
    assert [worker.wait() for worker in workers] == [0, 0]
    pages = crawl.asked()
    assert len(pages) == len(set(pages)) == 660
    assert crawl.status().done == 660


def test_a_full_redis_pauses_the_crawl_and_more_room_ends_the_pause(
    crawl_of: CrawlOf, server: RedisServer
) -> None:
    with server.client as client:
        client.config_set("maxmemory-policy", "noeviction")
        crawl = crawl_of("children", server.url, width="60")
        worker = crawl.start(*LEASE, *NARROW)
        crawl.wait_for_hits(20, worker)
        client.config_set("maxmemory", "1mb")
        wait_until(lambda: "cannot serve now" in worker.text(), 20)
        time.sleep(1)
        assert worker.running
        client.config_set("maxmemory", "0")
    assert worker.wait() == 0
    pages = crawl.asked()
    assert len(set(pages)) == 660
    assert crawl.status().done == 660
    assert "Traceback" not in worker.text()


def test_a_redis_that_wants_a_password_now_refuses_with_8_and_loses_nothing(
    crawl_of: CrawlOf, server: RedisServer
) -> None:
    crawl = crawl_of("children", server.url, width="60")
    worker = crawl.start(*LEASE, *NARROW)
    crawl.wait_for_hits(20, worker)
    with server.client as client:
        client.config_set("requirepass", "secret")
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "no")
    assert worker.wait(30) == 8
    assert "Traceback" not in worker.text()
    crawl.store = server.url.replace("redis://", "redis://:secret@")
    assert crawl.start(*LEASE).wait() == 0
    assert len(set(crawl.asked())) == 660


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_full_disk_pauses_the_crawl_and_more_room_ends_the_pause(
    crawl_of: CrawlOf, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], check=False)
    if mounted.returncode:
        pytest.skip("this machine mounts no tmpfs")
    try:
        crawl = crawl_of("children", f"sqlite://{disk}/frontier", width="60")
        worker = crawl.start(*NARROW)
        crawl.wait_for_hits(20, worker)
        filler = disk / "filler"
        with filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"x" * 4096)
            except OSError:
                pass
        wait_until(lambda: "full" in worker.text(), 30)
        assert worker.running
        filler.unlink()
        assert worker.wait() == 0
        assert len(set(crawl.asked())) == 660
        assert crawl.status().done == 660
        assert "Traceback" not in worker.text()
    finally:
        crawl.stop_all()
        subprocess.run(["umount", disk], check=False)


@pytest.mark.parametrize("where", ["before", "within"])
def test_a_file_that_is_no_database_is_one_sentence(
    crawl_of: CrawlOf, tmp_path: Path, where: str
) -> None:
    folder = tmp_path / "frontier"
    crawl = crawl_of("many", f"sqlite://{folder}")
    path = folder / f"{crawl.frontier.name}.db"
    if where == "before":
        folder.mkdir()
        path.write_bytes(b"this is no database, it is a text that somebody saved here\n" * 200)
    else:
        few = ("-s", "CLOSESPIDER_PAGECOUNT=3", "-s", "CONCURRENT_REQUESTS=1")
        assert crawl.start(*few).wait() == 4
        size = path.stat().st_size
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(b"\xa5" * (size - 4096))
    worker = crawl.start()
    assert worker.wait() == 8
    text = worker.text()
    assert "Traceback" not in text
    assert text.splitlines()[-1].startswith("clusterscrapy: ")
    assert str(path) in text.splitlines()[-1]
