"""Items in Scrapy's own feeds: what was written stays, whatever the next worker meets."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.crawl import Crawl, wait_until
from tests.servers import RedisServer, free_port

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]
CrawlOf = Callable[..., Crawl]
SOME = ("-s", "CLOSESPIDER_PAGECOUNT=4", "-s", "CONCURRENT_REQUESTS=1")


def urls_in(path: Path) -> list[str]:
    return [json.loads(line)["url"] for line in path.read_text().splitlines()]


@pytest.fixture(params=["out.jl", "out.json"])
def out(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A feed of an earlier run, with the items of pages that are done."""
    return tmp_path / str(request.param)


def kept(out: Path) -> list[str]:
    """The URLs of all items, also of those that were put aside."""
    urls = []
    for path in sorted(out.parent.glob("out*")):
        if path.suffix == ".jl":
            urls += urls_in(path)
        elif text := path.read_text():
            urls += [item["url"] for item in json.loads(text)]
    return urls


def test_items_survive_a_worker_that_finds_no_store(
    crawl_of: CrawlOf, tmp_path: Path, out: Path
) -> None:
    folder = tmp_path / "redis"
    folder.mkdir()
    server = RedisServer(folder, appendonly=True)
    try:
        crawl = crawl_of("many", server.url)
        assert crawl.start("-O", str(out), *SOME).wait() == 4
        before = kept(out)
        assert before
        server.stop()
        assert crawl.start("-O", str(out), "-s", "CLUSTER_STORE_WAIT_SECONDS=0").wait() == 6
        assert kept(out) == before
        server.start()
        assert crawl.start("-O", str(out)).wait() == 0
    finally:
        server.stop()
    assert len(set(kept(out))) == 10


def test_items_survive_a_worker_that_is_refused(
    crawl_of: CrawlOf, sqlite_store: str, out: Path
) -> None:
    crawl = crawl_of("many", sqlite_store)
    assert crawl.start("-O", str(out), *SOME).wait() == 4
    before = kept(out)
    assert before
    other = "REQUEST_FINGERPRINTER_CLASS=tests.integration.project.spiders.Headers"
    assert crawl.start("-O", str(out), "-s", other).wait() == 8
    assert kept(out) == before


def test_items_survive_a_signal_while_the_store_is_waited_for(
    crawl_of: CrawlOf, tmp_path: Path, out: Path
) -> None:
    crawl = crawl_of("many", f"redis://127.0.0.1:{free_port()}/0")
    out.write_text('{"url": "a"}\n' if out.suffix == ".jl" else '[{"url": "a"}]')
    worker = crawl.start("-O", str(out), "-s", "CLUSTER_STORE_WAIT_SECONDS=30")
    wait_until(lambda: "waiting up to" in worker.text(), 20)
    worker.signal(signal.SIGTERM)
    assert worker.wait(10) == 5
    assert kept(out) == ["a"]


def test_a_late_worker_leaves_the_file_as_it_is(
    crawl_of: CrawlOf, sqlite_store: str, out: Path
) -> None:
    crawl = crawl_of("many", sqlite_store)
    assert crawl.start("-O", str(out)).wait() == 0
    finished = out.read_text()
    late = crawl.start("-O", str(out))
    assert late.wait() == 0
    assert "nothing to do" in late.text()
    assert out.read_text() == finished
    assert list(out.parent.glob("out*")) == [out]


def test_a_crawl_begun_afresh_overwrites_its_file(
    crawl_of: CrawlOf, sqlite_store: str, out: Path
) -> None:
    crawl = crawl_of("many", sqlite_store)
    assert crawl.start("-O", str(out), *SOME).wait() == 4
    assert crawl.start("-O", str(out), "-s", "CLUSTER_RESUME=0").wait() == 0
    assert list(out.parent.glob("out*")) == [out]
    assert len(kept(out)) == 10


def test_large_items_of_two_workers_do_not_tear_each_others_lines(
    crawl_of: CrawlOf, sqlite_store: str
) -> None:
    crawl = crawl_of("large", sqlite_store, pages="200")
    workers = [crawl.start(), crawl.start()]
    assert [worker.wait() for worker in workers] == [0, 0]
    urls = urls_in(crawl.items_path)
    assert len(urls) == len(set(urls)) == 200


def test_two_workers_lose_no_item_of_a_file_that_is_written_at_the_end(
    crawl_of: CrawlOf, sqlite_store: str, tmp_path: Path
) -> None:
    crawl = crawl_of("children", sqlite_store, width="20")
    out = tmp_path / "out.json"
    workers = [crawl.start("-O", str(out)), crawl.start("-O", str(out))]
    assert [worker.wait() for worker in workers] == [0, 0]
    urls = kept(out)
    assert len(urls) == len(set(urls)) == 200


def test_appending_to_csv_appends_over_a_resume(
    crawl_of: CrawlOf, sqlite_store: str, tmp_path: Path
) -> None:
    crawl = crawl_of("many", sqlite_store)
    out = tmp_path / "out.csv"
    assert crawl.start("-o", str(out), *SOME).wait() == 4
    assert crawl.start("-o", str(out)).wait() == 0
    # Scrapy writes the head again when it appends, also without us.
    lines = [line for line in out.read_text().splitlines() if line != "url,body"]
    assert len(lines) == 10
    assert list(tmp_path.glob("out*")) == [out]


def test_items_on_standard_output_are_not_called_unsafe_files(
    crawl_of: CrawlOf, sqlite_store: str
) -> None:
    crawl = crawl_of("many", sqlite_store)
    worker = crawl.start("-O", "-:jl")
    assert worker.wait() == 0
    assert sum(line.startswith('{"url"') for line in worker.text().splitlines()) == 10


def test_a_worker_killed_before_it_opened_its_file_leaves_no_items_of_an_earlier_run(
    crawl_of: CrawlOf, store: str, out: Path
) -> None:
    """The run was begun by the one that died; who resumes it still has the file to empty."""
    crawl = crawl_of("many", store)
    assert crawl.start("-O", str(out), *SOME).wait() == 4
    killed = ["-m", "tests.chaos.crash_worker", "feed-unprepared", "1"]
    afresh = ("-s", "CLUSTER_RESUME=0")
    lease = ("-s", "CLUSTER_LEASE_SECONDS=2", "-s", "CLUSTER_HEARTBEAT_SECONDS=0.5")
    died = crawl.start("-O", str(out), *afresh, *lease, runner=killed)
    assert died.wait() == -signal.SIGKILL
    workers = [crawl.start("-O", str(out), *lease) for _ in range(2)]
    assert [worker.wait() for worker in workers] == [0, 0]
    assert sorted(kept(out)) == sorted(set(kept(out)))
    assert len(kept(out)) == 10
