"""How workers start, stop, die, and live through an outage."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.crawl import Crawl, wait_until
from tests.integration.conftest import SETTINGS
from tests.servers import RedisServer, free_port
from tests.site.process import ROOT, SiteProcess

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(60)]
CrawlOf = Callable[..., Crawl]
SOON = ("-s", "CLUSTER_STOP_SECONDS=2")


def test_a_signal_while_it_closes_already_does_not_cut_the_closing_short(
    crawl_of: CrawlOf, store: str
) -> None:
    crawl = crawl_of("patient", store, quick="3")
    worker = crawl.start("-s", "CLOSESPIDER_PAGECOUNT=3", *SOON)
    wait_until(lambda: "Closing spider (closespider_pagecount)" in worker.text())
    worker.signal(signal.SIGTERM)
    assert worker.wait(10) == 4
    status = crawl.status()
    assert (status.waiting, status.leased, len(status.workers)) == (1, 0, 0)


def test_a_long_download_is_handed_back_at_the_deadline(crawl_of: CrawlOf, store: str) -> None:
    crawl = crawl_of("patient", store, quick="3")
    worker = crawl.start(*SOON)
    wait_until(
        lambda: crawl.items_path.exists() and len(crawl.items_path.read_text().splitlines()) == 3
    )
    began = time.monotonic()
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 5
    assert 1.5 < time.monotonic() - began < 6
    status = crawl.status()
    assert (status.state, status.waiting, status.leased, status.done) == ("stopped", 1, 0, 3)
    assert "Stored jl feed (3 items)" in worker.text()
    assert "Traceback" not in worker.text()


def test_a_second_signal_does_the_same_at_once(crawl_of: CrawlOf, store: str) -> None:
    crawl = crawl_of("patient", store, quick="3")
    worker = crawl.start()
    wait_until(lambda: len(crawl.asked()) >= 4)
    worker.signal(signal.SIGINT)
    time.sleep(0.3)
    began = time.monotonic()
    worker.signal(signal.SIGINT)
    assert worker.wait() == 5
    assert time.monotonic() - began < 3
    status = crawl.status()
    assert (status.leased, status.waiting + status.done) == (0, 4)


def test_a_callback_that_blocks_the_loop_is_left_behind(
    site: SiteProcess, sqlite_store: str, tmp_path: Path
) -> None:
    spider = tmp_path / "blocking.py"
    spider.write_text(
        "import time, scrapy\n"
        "class Blocking(scrapy.Spider):\n"
        "    name = 'blocking'\n"
        "    custom_settings = {'ADDONS': {'clusterscrapy.Addon': 500}}\n"
        f"    start_urls = ['{site.url}echo']\n"
        "    def parse(self, response):\n"
        "        print('blocked', flush=True)\n"
        "        time.sleep(100)\n"
    )
    worker = subprocess.Popen(
        [sys.executable, "-m", "scrapy", "runspider", str(spider), *SOON],
        env={**os.environ, "CLUSTER_FRONTIER_URL": sqlite_store},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=tmp_path,
    )
    assert worker.stdout is not None
    assert worker.stdout.readline() == b"blocked\n"
    worker.terminate()
    assert worker.wait(10) == 5
    worker.stdout.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="a PID namespace of its own needs root")
def test_it_drains_as_the_first_process_of_a_container(
    site: SiteProcess, sqlite_store: str, tmp_path: Path
) -> None:
    arguments = f"-a url={site.url} -a quick=2 -s CLUSTER_STOP_SECONDS=1"
    command = f"exec {sys.executable} -m scrapy crawl patient {arguments}"
    log = (tmp_path / "log").open("wb")
    outside = subprocess.Popen(
        ["unshare", "--pid", "--fork", "--kill-child=KILL", "sh", "-c", command],
        env={**os.environ, **SETTINGS, "CLUSTER_FRONTIER_URL": sqlite_store},
        cwd=ROOT,
        stdout=log,
        stderr=log,
    )
    log.close()
    wait_until(lambda: len(site.hits()) >= 3, 30)
    children = Path(f"/proc/{outside.pid}/task/{outside.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGTERM)
    assert outside.wait(15) == 5


def test_forty_slow_pages_survive_a_kill(store: str, tmp_path: Path) -> None:
    with SiteProcess("flat", pages=41, latency_ms="300-500") as site:
        crawl = Crawl(site, store, tmp_path)
        options = ("-s", "CONCURRENT_REQUESTS=8", "-s", "CLUSTER_LEASE_SECONDS=2",
                   "-s", "CLUSTER_HEARTBEAT_SECONDS=0.5", "-s", "CLUSTER_PREFETCH=8")  # fmt: skip
        try:
            worker = crawl.start(*options)
            crawl.wait_for_hits(20, worker)
            crawl.kill(worker)
            assert crawl.start(*options).wait() == 0
        finally:
            crawl.stop_all()
        tally = crawl.tally()
    assert (tally.lost, tally.without_item) == ([], [])
    assert tally.twice <= tally.leased_at_kills <= 24


# --- the store ------------------------------------------------------------------------------


def test_no_child_is_lost_while_redis_is_restarted(crawl_of: CrawlOf, tmp_path: Path) -> None:
    folder = tmp_path / "redis"
    folder.mkdir()
    server = RedisServer(folder, appendonly=True)
    try:
        crawl = crawl_of("children", server.url, width="60")
        worker = crawl.start()
        crawl.wait_for_hits(60, worker)
        server.stop()
        time.sleep(8)
        server.start()
        assert worker.wait() == 0
        status = crawl.status()
    finally:
        server.stop()
    pages = crawl.asked()
    assert len(set(pages)) == 60 + 600
    assert len(pages) == len(set(pages))
    assert status.done == 660
    text = worker.text()
    assert "is back after" in text
    assert "Traceback" not in text


def test_a_redis_that_comes_back_empty_is_said_loudly(crawl_of: CrawlOf, tmp_path: Path) -> None:
    folder = tmp_path / "redis"
    folder.mkdir()
    server = RedisServer(folder)
    try:
        crawl = crawl_of("patient", server.url, quick="2")
        worker = crawl.start(*SOON)
        wait_until(lambda: len(crawl.asked()) >= 3)
        server.stop()
        server.start()
        wait_until(lambda: "no longer knows crawl" in worker.text(), 20)
        # The ten-minute download does not hold it.
        assert worker.wait(10) == 6
    finally:
        server.stop()
    assert "appendonly yes" in worker.text()


def test_a_store_that_appears_in_time_is_waited_for(crawl_of: CrawlOf, tmp_path: Path) -> None:
    folder = tmp_path / "redis"
    folder.mkdir()
    server = RedisServer(folder)
    server.stop()
    crawl = crawl_of("many", server.url)
    worker = crawl.start("-s", "CLUSTER_STORE_WAIT_SECONDS=30")
    wait_until(lambda: "waiting up to 30 s" in worker.text(), 20)
    assert crawl.asked() == []
    server.start()
    try:
        assert worker.wait() == 0
    finally:
        server.stop()
    assert len(crawl.asked()) == 10


def test_a_store_that_stays_away_ends_the_worker_with_6(crawl_of: CrawlOf) -> None:
    crawl = crawl_of("many", f"redis://user:secret@127.0.0.1:{free_port()}/0")
    worker = crawl.start("-s", "CLUSTER_STORE_WAIT_SECONDS=1")
    assert worker.wait() == 6
    text = worker.text()
    assert text.splitlines()[-1].startswith("clusterscrapy: Redis at redis://user:***@127.0.0.1")
    assert "Traceback" not in text
    assert "secret" not in text
    assert crawl.asked() == []


def test_a_signal_ends_the_wait_for_a_store_at_once(crawl_of: CrawlOf) -> None:
    crawl = crawl_of("many", f"redis://127.0.0.1:{free_port()}/0")
    worker = crawl.start("-s", "CLUSTER_STORE_WAIT_SECONDS=60")
    wait_until(lambda: "waiting up to" in worker.text(), 20)
    worker.signal(signal.SIGTERM)
    assert worker.wait(5) == 5


def test_a_redis_that_evicts_is_refused(crawl_of: CrawlOf, tmp_path: Path) -> None:
    server = RedisServer(tmp_path, "--maxmemory", "4mb", "--maxmemory-policy", "allkeys-lru")
    try:
        crawl = crawl_of("many", server.url)
        worker = crawl.start()
        assert worker.wait() == 8
    finally:
        server.stop()
    assert "maxmemory-policy allkeys-lru" in worker.text().splitlines()[-1]
    assert "Traceback" not in worker.text()
    assert crawl.asked() == []


# --- configuration -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-s", "CLUSTER_FRONTEIR_URL=sqlite://"], "did you mean CLUSTER_FRONTIER_URL?"),
        (["-s", "CLUSTER_PREFETCH=many"], "CLUSTER_PREFETCH='many' from the command line"),
        (["-s", "CLUSTER_FRONTIER_URL=redis://"], "names no host"),
        (["-s", "CLUSTER_FRONTIER_URL=mysql://x"], "CLUSTER_FRONTIER_URL='mysql://x'"),
        (["-s", "CLUSTER_FRONTIER_URL=sqlite:///proc/nothing"], "a folder this user can write to"),
        (["-s", "CLUSTER_FRONTIER_URL=sqlite:///etc/hostname"], "names a file"),
        (
            ["-s", "TWISTED_REACTOR=twisted.internet.selectreactor.SelectReactor"],
            "asyncio event loop",
        ),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else None,
)
def test_a_refused_configuration_is_one_sentence_and_exit_code_8(
    crawl_of: CrawlOf, sqlite_store: str, options: list[str], words: str
) -> None:
    crawl = crawl_of("many", sqlite_store)
    worker = crawl.start(*options)
    assert worker.wait() == 8
    last = worker.text().splitlines()[-1]
    assert last.startswith("clusterscrapy: ")
    assert words in last
    assert "Traceback" not in worker.text()


@pytest.mark.parametrize("process", ["AsyncCrawlerProcess", "CrawlerProcess"])
def test_a_spiders_own_setting_is_refused_under_both_of_scrapys_processes(
    crawl_of: CrawlOf, sqlite_store: str, process: str
) -> None:
    forced = str(process == "CrawlerProcess")
    worker = crawl_of("misset", sqlite_store).start(
        "-L", "DEBUG", "-s", f"FORCE_CRAWLER_PROCESS={forced}"
    )
    assert worker.wait() == 8
    assert f"Using {process}" in worker.text()
    assert "='many' from the spider's settings" in worker.text().splitlines()[-1]
    assert "Traceback" not in worker.text()


def test_a_spider_that_closes_itself_as_finished_with_work_left_has_not_finished(
    crawl_of: CrawlOf, sqlite_store: str
) -> None:
    crawl = crawl_of("renamed", sqlite_store, reason="finished")
    first = crawl.start()
    assert first.wait() == 4
    assert "unfinished (closed by the spider)" in first.text().splitlines()[-1]
    assert crawl.start().wait() == 0
    assert len(crawl.items()) == 2


def test_a_worker_with_another_fingerprint_scheme_is_refused(crawl_of: CrawlOf, store: str) -> None:
    crawl = crawl_of("patient", store, quick="1")
    first = crawl.start()
    wait_until(lambda: len(crawl.asked()) >= 2)
    other = "tests.integration.project.spiders.Headers"
    second = crawl.start("-s", f"REQUEST_FINGERPRINTER_CLASS={other}")
    assert second.wait() == 8
    assert "fingerprint scheme mismatch" in second.text().splitlines()[-1]
    assert other in second.text().splitlines()[-1]
    assert first.running


def test_an_unknown_name_in_the_environment_is_a_warning(
    crawl_of: CrawlOf, sqlite_store: str
) -> None:
    environ = {"CLUSTER_FOO": "1", "CLUSTER_REDIS_SERVICE_HOST": "10.0.0.1"}
    crawl = crawl_of("many", sqlite_store, environ)
    worker = crawl.start()
    assert worker.wait() == 0
    warnings = [line for line in worker.text().splitlines() if "WARNING" in line]
    assert len([line for line in warnings if "CLUSTER_FOO" in line]) == 1
    assert not [line for line in warnings if "SERVICE_HOST" in line]


@pytest.mark.parametrize("version", ["2.11.2", "2.13.3", "2.15.9", "2.20.0", "3.0.0"])
def test_another_scrapy_is_refused_with_one_line(
    version: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import scrapy
    from scrapy.settings import Settings

    from clusterscrapy import Addon

    monkeypatch.setattr(scrapy, "__version__", version)
    with pytest.raises(SystemExit) as caught:
        Addon().update_settings(Settings())
    assert caught.value.code == 8
    [line] = capsys.readouterr().err.splitlines()
    assert f"Scrapy {version} is not supported" in line
    assert "pip install" in line


@pytest.mark.skipif(os.geteuid() != 0, reason="a mount namespace of its own needs root")
def test_no_error_of_ours_on_a_read_only_file_system_without_home(
    site: SiteProcess, redis_url: str, tmp_path: Path
) -> None:
    # A mount namespace in which everything is read-only.
    script = (
        "mount -o remount,bind,ro / 2>/dev/null || mount --bind / /mnt; "
        f"cd {ROOT} && exec env -i PATH=$PATH PYTHONDONTWRITEBYTECODE=1 {_assignments(redis_url)} "
        f"{sys.executable} -m scrapy crawl many -a url={site.url} -L DEBUG"
    )
    result = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    assert len(site.hits()) == 10
    assert " ERROR" not in result.stderr
    assert "'log_count/ERROR'" not in result.stderr
    assert "remote_control.RemoteControl] INFO" not in result.stderr
    assert "Remote control" not in result.stderr


def _assignments(redis_url: str) -> str:
    environ = {**SETTINGS, "CLUSTER_FRONTIER_URL": redis_url, "PYTHONPATH": str(ROOT)}
    return " ".join(f"{name}={value}" for name, value in environ.items())


# --- limits, feeds and other commands -------------------------------------------------------------


def test_a_limit_ends_with_4_and_the_same_command_goes_on(crawl_of: CrawlOf, store: str) -> None:
    crawl = crawl_of("many", store)
    worker = crawl.start("-s", "CLOSESPIDER_PAGECOUNT=3", "-s", "CONCURRENT_REQUESTS=1")
    assert worker.wait() == 4
    assert crawl.status().state == "stopped"
    assert crawl.start().wait() == 0
    assert sorted(crawl.asked()) == sorted(f"/echo?{number}" for number in range(10))


def test_a_finished_crawl_is_not_repeated_by_a_late_worker(crawl_of: CrawlOf, store: str) -> None:
    crawl = crawl_of("many", store, {"CLUSTER_CRAWL_ID": "run-7"})
    assert crawl.start().wait() == 0
    late = crawl.start()
    assert late.wait() == 0
    assert "nothing to do" in late.text().splitlines()[-1]
    assert len(crawl.asked()) == 10


def test_starting_afresh_fetches_everything_again(crawl_of: CrawlOf, store: str) -> None:
    crawl = crawl_of("many", store)
    assert crawl.start().wait() == 0
    assert crawl.start("-s", "CLUSTER_RESUME=0").wait() == 0
    assert len(crawl.asked()) == 20


def test_overwriting_lines_keeps_the_items_of_a_killed_worker(
    crawl_of: CrawlOf, sqlite_store: str, tmp_path: Path
) -> None:
    crawl = crawl_of("patient", sqlite_store, quick="5")
    out = tmp_path / "out.jl"
    out.write_text('{"old": 1}\n')
    worker = crawl.start("-O", str(out))
    wait_until(lambda: len(out.read_text().splitlines()) == 5 and "old" not in out.read_text())
    time.sleep(0.5)  # long enough for the acknowledgements
    worker.kill()
    with out.open("a") as file:
        file.write('{"url": "half a li')
    worker = crawl.start("-O", str(out), *SOON)
    wait_until(lambda: len(crawl.asked()) >= 7)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 5
    lines = out.read_text().splitlines()
    assert len([json.loads(line)["url"] for line in lines]) == 5
    assert f"items are appended to {out}" in worker.text()


def test_a_feed_that_is_not_crash_safe_is_named_and_its_part_kept(
    crawl_of: CrawlOf, sqlite_store: str, tmp_path: Path
) -> None:
    crawl = crawl_of("many", sqlite_store)
    out = tmp_path / "out.json"
    limited = ("-O", str(out), "-s", "CLOSESPIDER_PAGECOUNT=3", "-s", "CONCURRENT_REQUESTS=1")
    worker = crawl.start(*limited)
    assert worker.wait() == 4
    first = len(json.loads(out.read_text()))
    assert worker.text().count("is written at the end only") == 1
    assert crawl.start("-O", str(out)).wait() == 0
    kept = json.loads((tmp_path / "out.part-1.json").read_text())
    assert len(kept) == first
    assert len(kept) + len(json.loads(out.read_text())) == 10


def test_two_workers_may_write_one_file_of_lines(crawl_of: CrawlOf, store: str) -> None:
    crawl = crawl_of("children", store, width="30")
    workers = [crawl.start(), crawl.start()]
    assert [worker.wait() for worker in workers] == [0, 0]
    urls = [json.loads(line)["url"] for line in crawl.items_path.read_text().splitlines()]
    assert len(urls) == len(set(urls)) == 300


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["fetch", "--nolog", "%h/echo?fetched"], "fetched"),
        (["parse", "--spider", "many", "-a", "url=%h/", "%h/echo?parsed"], "parsed"),
        (["shell", "--nolog", "-c", "response.status", "%h/echo"], "200"),
        (["check"], "OK"),
        (["list"], "many"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_other_commands_keep_scrapys_own_scheduler(
    site: SiteProcess, tmp_path: Path, command: list[str], words: str
) -> None:
    store = f"sqlite://{tmp_path}/never"
    result = subprocess.run(
        [sys.executable, "-m", "scrapy", *(word.replace("%h/", site.url) for word in command)],
        env={**os.environ, **SETTINGS, "CLUSTER_FRONTIER_URL": store},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-1000:]
    assert words in result.stdout + result.stderr
    assert not (tmp_path / "never").exists()
