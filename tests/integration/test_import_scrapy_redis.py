"""A crawl that scrapy-redis has begun goes on here: its queue, and what it has seen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from scrapy import FormRequest, Request
from scrapy_redis import picklecompat, queue
from scrapy_redis.dupefilter import RFPDupeFilter

from clusterscrapy.compat.scrapy_redis.seen import fingerprint
from tests.chaos.crawl import Crawl
from tests.integration.scrapy_redis_project.spiders import Plain
from tests.integration.test_scrapy_redis import SETTINGS
from tests.site.process import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]
CrawlOf = Callable[..., Crawl]


@pytest.fixture
def theirs(redis_url: str) -> Iterator[Any]:
    """The Redis that scrapy-redis has used."""
    with redis.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def crawl(crawl_of: CrawlOf, redis_url: str) -> Crawl:
    environ = {
        "SCRAPY_SETTINGS_MODULE": SETTINGS,
        "SEEDS_REDIS": redis_url,
        "CLUSTER_FRONTIER_URL": "",
    }
    return crawl_of("plain", redis_url, environ=environ)


def frontier(crawl: Crawl, *words: str, code: int = 0) -> str:
    arguments = ("-a", f"url={crawl.site.url}")
    result = subprocess.run(
        [sys.executable, "-m", "scrapy", "frontier", *words[:2], *arguments, *words[2:]],
        env={**os.environ, **crawl.environ},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert "Traceback" not in result.stderr
    assert result.returncode == code, result.stderr
    return result.stderr if code else result.stdout


def backlog(crawl: Crawl, theirs: Any, kind: str, serializer: Any = None) -> Any:
    spider = Plain(url=crawl.site.url)
    return spider, getattr(queue, kind)(theirs, spider, "%(spider)s:requests", serializer)


def echo(crawl: Crawl, number: int, **more: Any) -> Request:
    return Request(f"{crawl.site.url}echo?{number}", **more)


@pytest.mark.parametrize("kind", ["PriorityQueue", "FifoQueue", "LifoQueue"])
def test_what_waits_is_queued_once_however_often_it_is_imported(
    kind: str, crawl: Crawl, theirs: Any
) -> None:
    spider, waiting = backlog(crawl, theirs, kind)
    for number in range(600):
        waiting.push(echo(crawl, number, priority=-number, callback=spider.parse_page))
    twice = echo(crawl, 7, dont_filter=True, callback=spider.parse_page)
    waiting.push(twice)
    if kind != "PriorityQueue":  # equal members of a sorted set are one
        waiting.push(twice)
    waiting.push(
        FormRequest(
            f"{crawl.site.url}echo",
            formdata={"a": "1"},
            callback=spider.parse_other,
            cb_kwargs={"note": "kept"},
        )
    )
    count = len(waiting)
    words = ("import-scrapy-redis", "plain", "--unpickle")
    said = frontier(crawl, *words)
    assert f"{count} entries of plain:requests: {count} queued, 0 known already" in said
    assert "left as it is" in said
    said = frontier(crawl, *words, "--delete")
    assert f"{count} entries of plain:requests: 0 queued, {count} known already" in said
    assert not theirs.exists("plain:requests")
    worker = crawl.start("-s", "CONCURRENT_REQUESTS=1", "-s", "CLUSTER_PREFETCH=1000")
    assert worker.wait() == 0, worker.text()
    asked = crawl.asked()
    echoes = [path for path in asked if path.startswith("/echo?")]
    assert sorted(set(echoes)) == sorted(f"/echo?{number}" for number in range(600))
    assert echoes.count("/echo?7") == count - 600
    in_order = [int(path.partition("?")[2]) for path in echoes if path != "/echo?7"]
    assert in_order == sorted(in_order), "their priorities go with them"
    items = [json.loads(item) for item in theirs.lrange("plain:items", 0, -1)]
    assert [item["note"] for item in items if "note" in item] == ["kept"]


def test_nothing_is_unpickled_unless_it_is_asked_for(crawl: Crawl, theirs: Any) -> None:
    _, waiting = backlog(crawl, theirs, "PriorityQueue")
    waiting.push(echo(crawl, 1))
    assert "if you trust it, say --unpickle" in frontier(
        crawl, "import-scrapy-redis", "plain", code=8
    )


def test_a_serializer_of_the_users_own_needs_no_pickle(crawl: Crawl, theirs: Any) -> None:
    import tests.integration.scrapy_redis_project.as_json as as_json

    _, waiting = backlog(crawl, theirs, "PriorityQueue", as_json)
    waiting.push(echo(crawl, 1))
    said = frontier(
        crawl,
        *("import-scrapy-redis", "plain"),
        *("-s", "SCHEDULER_SERIALIZER=tests.integration.scrapy_redis_project.as_json"),
    )
    assert "1 queued" in said


def test_a_bad_entry_is_kept_and_the_rest_goes_on(crawl: Crawl, theirs: Any) -> None:
    _, waiting = backlog(crawl, theirs, "FifoQueue")
    waiting.push(echo(crawl, 1))
    theirs.lpush("plain:requests", b"\x80no pickle")
    theirs.lpush(
        "plain:requests",
        picklecompat.dumps({**echo(crawl, 3).to_dict(), "callback": "gone_since"}),
    )
    waiting.push(echo(crawl, 2))
    said = frontier(crawl, "import-scrapy-redis", "plain", "--unpickle", "--delete")
    assert "4 entries of plain:requests: 2 queued, 0 known already, 2 bad" in said
    assert "left as it is, because of the bad ones" in said
    assert theirs.llen("plain:requests") == 4
    details = " ".join(detail for _, detail in crawl.dead().values())
    assert "gone_since" in details
    assert "unsupported pickle protocol" in details


@pytest.mark.parametrize(
    ("value", "words"), [("hash", "holds a hash, not a queue"), ("none", "0 entries of")]
)
def test_a_key_that_is_no_queue(value: str, words: str, crawl: Crawl, theirs: Any) -> None:
    if value == "hash":
        theirs.hset("plain:requests", "a", "b")
    code = 8 if value == "hash" else 0
    assert words in frontier(crawl, "import-scrapy-redis", "plain", "--unpickle", code=code)


def test_a_redis_that_is_away(crawl: Crawl, tmp_path: Path) -> None:
    crawl.environ["SEEDS_REDIS"] = "redis://127.0.0.1:1/0"
    crawl.environ["CLUSTER_FRONTIER_URL"] = f"sqlite://{tmp_path}"
    said = frontier(crawl, "import-scrapy-redis", "plain", "--unpickle", code=6)
    assert "'plain:requests' of scrapy-redis cannot be read" in said


# --- what it has seen -----------------------------------------------------------------------

REQUESTS = [
    Request("http://h/"),
    Request("http://h/?b=2&a=1#fragment"),
    Request("http://h/é?q=ü"),
    Request("http://h/", method="POST", body=b"a=1\xff"),
    FormRequest("http://h/", formdata={"a": "1"}),
    FormRequest("http://h/", formdata={"a": "1"}, method="GET"),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=str)
def test_the_fingerprint_is_that_of_scrapy_redis(request_: Request) -> None:
    theirs = RFPDupeFilter(server=None, key="")
    ours = fingerprint(request_.method, request_.url, request_.body)
    assert ours == theirs.request_fingerprint(request_)


def test_pages_that_it_has_seen_are_not_fetched_again(crawl: Crawl, theirs: Any) -> None:
    pages = sorted(crawl.site.expected() - {"/"})
    known, new = pages[:1], pages[1:]
    dupefilter = RFPDupeFilter(theirs, "plain:dupefilter")
    for page in known:
        dupefilter.request_seen(Request(crawl.site.url + page.lstrip("/")))
    worker = crawl.start("-s", "CLUSTER_SCRAPY_REDIS_SEEN=1")
    assert worker.wait() == 0, worker.text()
    assert sorted(crawl.asked()) == ["/", *new]
    assert f"'dupefilter/filtered': {len(known)}" in worker.text()
    assert theirs.scard("plain:dupefilter") == len(known), "it is only read"
