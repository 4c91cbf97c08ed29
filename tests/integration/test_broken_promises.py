"""What once lost pages or items, step by step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterscrapy.frontier.codec import url_of
from clusterscrapy.frontier.liveness import FileLocks
from clusterscrapy.identity import crawl_name
from tests.chaos.crawl import Crawl
from tests.site.process import ROOT, SiteProcess

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]
CrawlOf = Callable[..., Crawl]


def asked(crawl: Crawl) -> list[str]:
    return [hit.path.rpartition("?")[2] for hit in crawl.site.hits()]


def test_a_start_in_another_order_loses_no_page_after_a_kill(crawl_of: CrawlOf, store: str) -> None:
    crawl = crawl_of("shuffled", store)
    lease = ("-s", "CLUSTER_LEASE_SECONDS=2", "-s", "CLUSTER_HEARTBEAT_SECONDS=0.5")
    # A limit leaves start() unfinished in the store just as a kill does.
    assert (
        crawl.start(*lease, "-s", "CLOSESPIDER_PAGECOUNT=3", "-s", "CLUSTER_PREFETCH=1").wait() == 4
    )
    assert crawl.start(*lease, "-s", "AGAIN=1").wait() == 0
    assert {str(number) for number in range(1, 30)} <= set(asked(crawl))
    assert len(asked(crawl)) == len(set(asked(crawl)))


@pytest.mark.parametrize("feed", ["-", "missing"])
def test_an_item_that_is_in_no_feed_makes_its_page_a_dead_letter(
    crawl_of: CrawlOf, store: str, feed: str
) -> None:
    crawl = crawl_of("unexportable", store)
    options = () if feed == "-" else ("-O", "/proc/nowhere/out.jl")
    assert crawl.start(*options).wait() == 0
    letters = {
        url_of(d.payload).rpartition("?")[2]: d.reason for d in crawl.frontier.dead_letters()
    }
    assert letters == dict.fromkeys(("bad",) if feed == "-" else ("good", "bad"), "feed")


def test_a_feed_written_by_a_faster_worker_is_kept(
    crawl_of: CrawlOf, sqlite_store: str, tmp_path: Path
) -> None:
    crawl = crawl_of("unexportable", sqlite_store)
    out = tmp_path / "out.jl"
    out.write_text('{"url": "of the faster worker"}\n')
    os.utime(out, (time.time() + 60, time.time() + 60))
    assert crawl.start("-O", str(out)).wait() == 0
    assert "of the faster worker" in out.read_text()


def test_a_fresh_crawl_appends_after_a_torn_line(
    crawl_of: CrawlOf, sqlite_store: str, tmp_path: Path
) -> None:
    crawl = crawl_of("many", sqlite_store)
    out = tmp_path / "torn.jl"
    out.write_text('{"u": "torn')
    assert crawl.start("-o", str(out)).wait() == 0
    torn, *lines = out.read_text().splitlines()
    assert torn == '{"u": "torn'
    assert len([json.loads(line) for line in lines]) == 10


def test_a_forked_child_does_not_keep_a_dead_worker_alive(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys, time\n"
        "from pathlib import Path\n"
        "from clusterscrapy.frontier.liveness import FileLocks\n"
        "FileLocks(Path(sys.argv[1])).begin('one')\n"
        "child = os.fork()\n"
        "if child == 0:\n    time.sleep(20)\n    os._exit(0)\n"
        "print(child, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    worker = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT
    )
    assert worker.stdout is not None
    child = int(worker.stdout.readline())
    worker.wait()
    try:
        time.sleep(0.2)
        assert not FileLocks(tmp_path).alive("one")
    finally:
        os.kill(child, 9)
        worker.stdout.close()


@pytest.mark.parametrize("process", ["CrawlerProcess", "AsyncCrawlerProcess"])
def test_scripts_crawl_each_list_of_urls_as_a_crawl_of_its_own(
    site: SiteProcess, sqlite_store: str, tmp_path: Path, process: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, scrapy\n"
        f"from scrapy.crawler import {process}\n"
        "class S(scrapy.Spider):\n"
        "    name = 's'\n"
        "    def parse(self, response):\n        pass\n"
        f"process = {process}({{'ADDONS': {{'clusterscrapy.Addon': 500}},\n"
        "    'CLUSTER_FRONTIER_URL': sys.argv[2], 'LOG_LEVEL': 'WARNING'})\n"
        "for part in 'ab':\n"
        "    process.crawl(S, start_urls=[f'{sys.argv[1]}echo?{part}{n}' for n in range(3)])\n"
        "process.start()\n"
    )
    done = subprocess.run(
        [sys.executable, str(script), site.url, sqlite_store],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(hit.path for hit in site.hits()) == [
        f"/echo?{part}{n}" for part in "ab" for n in range(3)
    ]


def test_a_spiders_name_is_no_other_spiders_id() -> None:
    assert crawl_name("news-de", {}) != crawl_name("news", {}, "de")
