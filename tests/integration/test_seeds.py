"""``scrapy frontier seed``, and workers that wait for seeds."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterscrapy.frontier.codec import url_of
from tests.chaos.crawl import Crawl, wait_until
from tests.integration.conftest import SETTINGS
from tests.site.process import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]
CrawlOf = Callable[..., Crawl]


def seed(crawl: Crawl, *words: str, code: int = 0, stdin: bytes = b"") -> str:
    arguments = [
        word for name, value in crawl.arguments.items() for word in ("-a", f"{name}={value}")
    ]
    result = subprocess.run(
        [sys.executable, "-m", "scrapy", "frontier", "seed", crawl.spider, *arguments, *words],
        env={**os.environ, **SETTINGS, "CLUSTER_FRONTIER_URL": crawl.store, **crawl.environ},
        cwd=ROOT,
        capture_output=True,
        input=stdin,
        timeout=50,
        check=False,
    )
    errors = result.stderr.decode()
    assert result.returncode == code, errors
    assert "Traceback" not in errors
    return errors if code else result.stdout.decode()


def test_seeds_come_from_everywhere_before_any_worker(
    crawl_of: CrawlOf, store: str, tmp_path: Path
) -> None:
    crawl = crawl_of("seeded", store)
    url = crawl.site.url
    (tmp_path / "urls.txt").write_text(f"# a comment\n\n{url}echo?file\n{url}echo?twice\n")
    (tmp_path / "urls.gz").write_bytes(gzip.compress(f"{url}echo?gzip\r\n{url}echo?twice".encode()))
    (tmp_path / "map.xml").write_text(
        '<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">'
        f"<url><loc>{url}echo?map</loc></url></urlset>"
    )
    said = seed(
        crawl,
        f"{url}echo?word",
        *("-f", str(tmp_path / "urls.txt"), "-f", str(tmp_path / "urls.gz"), "-f", "-"),
        *("--sitemap", str(tmp_path / "map.xml")),
        stdin=f"{url}echo?stdin".encode(),
    )
    assert "6 queued, 1 known already" in said
    assert crawl.status().state == "stopped"
    assert crawl.start().wait() == 0
    names = ("word", "file", "twice", "gzip", "stdin", "map")
    assert sorted(crawl.asked()) == sorted(f"/echo?{name}" for name in names)
    assert crawl.status().state == "finished"


def test_a_json_seed_has_all_that_a_request_has(crawl_of: CrawlOf, store: str) -> None:
    crawl = crawl_of("seeded", store)
    url = crawl.site.url
    rich = {
        "url": f"{url}echo?rich",
        "method": "POST",
        "body": "a=1",
        "headers": {"X-Seed": "yes"},
        "cookies": {"c": "2"},
        "meta": {"label": "gold"},
        "priority": -5,
    }
    other = {"url": f"{url}echo?other", "callback": "parse_other", "cb_kwargs": {"page": 7}}
    again = {"url": f"{url}echo?again", "dont_filter": True}
    seed(crawl, *map(json.dumps, (rich, other, again, again)))
    assert crawl.start("-s", "CONCURRENT_REQUESTS=1").wait() == 0
    assert crawl.asked()[-1] == "/echo?rich", "its priority is the lowest"
    assert crawl.asked().count("/echo?again") == 2
    by_path = {item["url"].rpartition("?")[2]: item for item in crawl.items()}
    assert by_path["other"] == {"url": other["url"], "page": 7, "by": "parse_other"}
    found = by_path["rich"]
    assert (found["method"], found["body"], found["meta"]) == ("POST", "a=1", "gold")
    assert found["headers"]["x-seed"] == "yes"
    assert found["headers"]["cookie"] == "c=2"


def test_bad_seeds_are_kept_with_their_reason_and_the_rest_goes_on(
    crawl_of: CrawlOf, store: str
) -> None:
    crawl = crawl_of("seeded", store)
    bad = {
        b"no-scheme/page": "scheme",
        b'{"url": 5}': "url is 5, it must be a text",
        b'{"method": "GET"}': "needs a url",
        b'{"url": "http://h/", "callbck": "parse"}': "did you mean callback?",
        b'{"url": "http://h/", "callback": "start"': "no JSON",
        b'{"url": "http://h/", "callback": "nowhere"}': "has no method 'nowhere'",
        b'{"url": "http://h/", "callback": "__init__"}': "has no method",
        b'["http://h/"]': "is an object, not list",
        b"\xff\xfe": "not UTF-8",
        b'{"url": "http://h/", "priority": true}': "a whole number",
    }
    lines = [*bad, f"{crawl.site.url}echo?good".encode()]
    said = seed(crawl, "-f", "-", stdin=b"\n".join(lines))
    assert "1 queued, 0 known already, 10 bad" in said
    letters = list(crawl.frontier.dead_letters())
    assert {letter.reason for letter in letters} == {"seed"}
    details = {url_of(letter.payload): letter.detail for letter in letters}
    for line, words in bad.items():
        assert words in details[line.decode("utf-8", "replace")]
    assert crawl.start().wait() == 0
    assert crawl.asked() == ["/echo?good"]


def test_seeding_again_queues_nothing_twice(crawl_of: CrawlOf, store: str, tmp_path: Path) -> None:
    crawl = crawl_of("seeded", store)
    path = tmp_path / "many.txt"
    path.write_text("".join(f"http://h/{number}\n" for number in range(20_000)))
    running = subprocess.Popen(
        [sys.executable, "-m", "scrapy", "frontier", "seed", "seeded", "-f", str(path),
         "-a", f"url={crawl.site.url}"],
        env={**os.environ, **SETTINGS, "CLUSTER_FRONTIER_URL": store},
        cwd=ROOT,
    )  # fmt: skip
    wait_until(lambda: crawl.status().waiting > 1_000, 30)
    running.kill()
    running.wait()
    said = seed(crawl, "-f", str(path))
    status = crawl.status()
    assert status.waiting == 20_000
    assert f"{20_000:,} queued" not in said
    assert "known already" in said


def test_a_waiting_worker_takes_seeds_as_they_come_and_ends_when_asked(
    crawl_of: CrawlOf, store: str
) -> None:
    crawl = crawl_of("seeded", store, {"CLUSTER_IDLE": "wait"})
    worker = crawl.start()
    wait_until(lambda: "Beginning crawl" in worker.text(), 20)
    for number in range(3):
        seed(crawl, f"{crawl.site.url}echo?{number}")
        began = time.monotonic()
        wait_until(lambda: len(crawl.asked()) == number + 1, 10)  # noqa: B023
        assert time.monotonic() - began < 3
        time.sleep(1.5)
        assert worker.running
    worker.signal(signal.SIGTERM)
    assert worker.wait(10) == 0


def test_a_waiting_worker_ends_after_the_whole_crawl_was_idle(
    crawl_of: CrawlOf, store: str
) -> None:
    environ = {"CLUSTER_IDLE": "wait", "CLUSTER_MAX_IDLE_SECONDS": "4"}
    crawl = crawl_of("seeded", store, environ)
    worker = crawl.start()
    wait_until(lambda: "Beginning crawl" in worker.text(), 20)
    time.sleep(2)
    seed(crawl, f"{crawl.site.url}echo?late")
    wait_until(lambda: len(crawl.asked()) == 1, 10)
    began = time.monotonic()
    assert worker.wait(20) == 0
    assert 3.5 < time.monotonic() - began < 11
    assert crawl.status().state == "finished"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "nothing to seed"),
        (("-f", "/nowhere/urls.txt"), "cannot read seeds from /nowhere/urls.txt: No such file"),
        (("--sitemap", "/nowhere/map.xml"), "cannot read the sitemap"),
        (("-a", "x", "http://h/"), "use -a NAME=VALUE"),
    ],
)
def test_what_cannot_be_seeded_is_one_sentence(
    crawl_of: CrawlOf, sqlite_store: str, words: tuple[str, ...], sentence: str
) -> None:
    said = seed(crawl_of("seeded", sqlite_store), *words, code=8)
    assert said.startswith("clusterscrapy: ")
    assert sentence in said
    assert said.count("\n") == 1


def test_an_unknown_spider_is_named_with_those_there_are(
    crawl_of: CrawlOf, sqlite_store: str
) -> None:
    said = seed(crawl_of("nobody", sqlite_store), "http://h/", code=8)
    assert "no spider 'nobody'" in said
    assert "seeded" in said


def test_a_finished_crawl_with_an_id_takes_no_seeds(crawl_of: CrawlOf, store: str) -> None:
    crawl = crawl_of("seeded", store, {"CLUSTER_CRAWL_ID": "monday"})
    assert crawl.start().wait() == 0
    said = seed(crawl, "http://h/", code=1)
    assert "give another CLUSTER_CRAWL_ID" in said


def test_a_finished_crawl_without_an_id_begins_anew_with_its_seeds(
    crawl_of: CrawlOf, store: str
) -> None:
    crawl = crawl_of("seeded", store)
    for _ in range(2):
        seed(crawl, f"{crawl.site.url}echo?again")
        assert crawl.start().wait() == 0
    assert crawl.asked() == ["/echo?again"] * 2
