"""What becomes of requests between a spider and a site: the cases of other crawlers' bug reports."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable

import pytest

from tests.chaos.crawl import Crawl

pytestmark = pytest.mark.integration
CrawlOf = Callable[..., Crawl]


def dead(crawl: Crawl) -> dict[str, str]:
    """Reason by the end of the URL."""
    return {url: reason for url, (reason, _) in crawl.dead().items()}


def test_the_request_line_is_what_was_written(crawl_of: CrawlOf, sqlite_store: str) -> None:
    urls = [
        "%h/echo?/a/=/o/",
        "%h/echo?b&a",
        "%h/echo?b=&a=",
        "%h/echo?a=2&a=1#top",
        "%h/echo?x=%7E+%20",
    ]
    crawl = crawl_of("urls", sqlite_store, urls=json.dumps(urls))
    assert crawl.start().wait() == 0
    # The last but two asks for the same page as the one before it: "?a" and "?a=" are one.
    assert crawl.asked() == ["/echo?/a/=/o/", "/echo?b&a", "/echo?a=2&a=1", "/echo?x=%7E+%20"]


def test_a_custom_fingerprinter_and_verbatim_urls_are_honoured(
    crawl_of: CrawlOf, store: str
) -> None:
    crawl = crawl_of("by_header", store)
    assert crawl.start().wait() == 0
    assert Counter(hit.path for hit in crawl.site.hits()) == {
        "/echo": 2,
        "/echo?b=1&a=2": 1,
        "/echo?a=2&b=1": 1,
    }


def test_odd_hosts_fail_alone(crawl_of: CrawlOf, sqlite_store: str) -> None:
    odd = [
        "http://例え.invalid/",
        "http://xn--r8jz45g.invalid/",
        "http://i❤.invalid/",
        "http://wodnik_forum.invalid/",
        f"http://{'a' * 64}.invalid/",
        "http://.example.invalid/",
        "http://h..invalid/",
    ]
    crawl = crawl_of("urls", sqlite_store, urls=json.dumps([*odd, "%h/echo?last"]))
    assert crawl.start("-s", "RETRY_ENABLED=0").wait(60) == 0
    assert crawl.asked() == ["/echo?last"]
    letters = dead(crawl)
    assert set(letters.values()) == {"download"}
    # Two spellings of one host are one page.
    assert len(letters) == len(odd) - 1


def test_a_very_long_url_is_fetched_and_never_shown_whole(
    crawl_of: CrawlOf, sqlite_store: str
) -> None:
    urls = ["%h/echo?q=" + "a" * 10_000, "%h/echo?q=" + "b" * 100_000, "%h/echo?ok"]
    crawl = crawl_of("urls", sqlite_store)
    crawl.arguments["urls"] = json.dumps([urls[0], urls[2]])
    worker = crawl.start("-s", "URLLENGTH_LIMIT=0")
    assert worker.wait() == 0
    assert len(crawl.asked()) == 2
    ours = [line for line in worker.text().splitlines() if "clusterscrapy" in line]
    assert all(len(line) < 2_000 for line in ours)


def test_a_url_beyond_the_size_limit_is_refused_by_it(crawl_of: CrawlOf, sqlite_store: str) -> None:
    crawl = crawl_of(
        "urls", sqlite_store, urls=json.dumps(["%h/echo?q=" + "a" * 9_000, "%h/echo?ok"])
    )
    options = ("-s", "URLLENGTH_LIMIT=0", "-s", "CLUSTER_REQUEST_MAX_BYTES=5000")
    worker = crawl.start(*options)
    assert worker.wait() == 0
    assert crawl.asked() == ["/echo?ok"]
    [line] = [
        line
        for line in worker.text().splitlines()
        if "CLUSTER_REQUEST_MAX_BYTES" in line and "ERROR" in line
    ]
    assert len(line) < 600
    assert list(dead(crawl).values()) == ["unserializable"]


def test_fifty_redirects_to_one_page_fetch_it_once(crawl_of: CrawlOf, store: str) -> None:
    urls = [f"%h/redirect-to-same/{number}" for number in range(50)]
    crawl = crawl_of("urls", store, urls=json.dumps(urls))
    workers = [crawl.start("-s", "CONCURRENT_REQUESTS=8") for _ in range(3)]
    assert [worker.wait() for worker in workers] == [0, 0, 0]
    counts = Counter(path.split("/")[1] for path in crawl.asked())
    assert counts == {"redirect-to-same": 50, "same": 1}
    status = crawl.status()
    assert (status.waiting, status.leased, status.done) == (0, 0, 51)


def test_what_cannot_be_stored_is_reported_and_does_not_burn_its_page(
    crawl_of: CrawlOf, store: str
) -> None:
    crawl = crawl_of("unstorable", store)
    worker = crawl.start()
    assert worker.wait() == 0
    pages = ("lambda", "file", "blob", "selector", "sel")
    assert sorted(crawl.asked()) == sorted(f"/echo?{name}" for name in pages)
    text = worker.text()
    for place in ("its callback", "meta['f']", "meta['blob']", "meta['sel']"):
        lines = [line for line in text.splitlines() if "] ERROR" in line and place in line]
        assert len(lines) == 1, place
        assert len(lines[0]) < 700
    assert "'clusterscrapy/unserializable': 4" in text
    assert "Traceback" not in text
    assert sorted(dead(crawl)) == ["echo?blob", "echo?file", "echo?lambda", "echo?sel"]


def test_every_attribute_reaches_an_errback_after_retries(crawl_of: CrawlOf, store: str) -> None:
    crawl = crawl_of("attributes", store)
    assert crawl.start().wait() == 0
    [failed] = [item for item in crawl.items() if "class" in item]
    assert failed == {
        "class": "FormRequest",
        "body": "a=1",
        "header": "1",
        "cookies": {"c": "2"},
        "meta": "(1, 2)",
        "kwargs": {"k": 3},
        "flags": ["f"],
        "method": "POST",
        "retries": 1,
    }
    posted = next(item for item in crawl.items() if "body" in item and "class" not in item)
    assert json.loads(json.loads(posted["body"])["body"]) == {"b": [1]}
    assert dead(crawl) == {}


def test_a_renamed_callback_is_a_dead_letter_and_a_private_one_works(
    crawl_of: CrawlOf, store: str
) -> None:
    crawl = crawl_of("renamed", store)
    assert crawl.start().wait() == 4
    worker = crawl.start(runner=["-m", "tests.integration.project.without_parse_x"])
    assert worker.wait() == 0
    assert [item["private"] for item in crawl.items() if "private" in item] == [
        crawl.site.url + "echo?private"
    ]
    assert dead(crawl) == {"echo?x": "undecodable"}
    assert worker.text().count("no method parse_x") == 1


def test_equal_unfiltered_requests_are_both_fetched_and_the_order_is_kept(
    crawl_of: CrawlOf, store: str
) -> None:
    crawl = crawl_of("twice", store)
    assert crawl.start().wait() == 0
    letters = [f"/echo?{letter}" for letter in "zyxwvu"]
    assert crawl.asked() == ["/echo?start", "/echo?same", "/echo?same", *letters]


def test_five_replicas_run_start_once(crawl_of: CrawlOf, store: str) -> None:
    crawl = crawl_of("many", store)
    workers = [crawl.start() for _ in range(5)]
    assert [worker.wait() for worker in workers] == [0] * 5
    assert sorted(crawl.asked()) == sorted(f"/echo?{number}" for number in range(10))


def test_whatever_goes_wrong_with_a_page_is_kept_with_its_reason(
    crawl_of: CrawlOf, store: str
) -> None:
    crawl = crawl_of("failing", store)
    assert crawl.start("-s", "RETRY_TIMES=0").wait(60) == 0
    letters = dead(crawl)
    assert letters.pop("echo?callback") == "callback"
    assert letters.pop("http://127.0.0.1:1/refused") == "download"
    assert letters.pop("http://127.0.0.1:1/errback") == "errback"
    assert letters.pop("status/503") == "http"
    assert letters.pop("echo?pipeline") == "pipeline"
    assert set(letters.values()) == {"download"}
    assert len(letters) == 3
    origins = {item["from"] for item in crawl.items() if "from" in item}
    assert origins == {"start", "before the exception", "async", "errback", "beside a bad item"}
    pages = crawl.asked()
    assert {"/echo?child-of-exception", "/echo?child-of-async", "/echo?redirected"} <= set(pages)


def test_dead_letters_can_be_replayed(crawl_of: CrawlOf, store: str) -> None:
    crawl = crawl_of("failing", store)
    assert crawl.start("-s", "RETRY_TIMES=0").wait(60) == 0
    frontier = crawl.frontier
    before = len(list(frontier.dead_letters()))
    assert frontier.replay() == before
    frontier.close()
    crawl.site.reset()
    assert crawl.start("-s", "RETRY_TIMES=0").wait(60) == 0
    assert set(crawl.asked()) == {"/echo?callback", "/status/503", "/echo?pipeline"}


def test_start_that_raises_is_run_again_by_the_next_worker(crawl_of: CrawlOf, store: str) -> None:
    crawl = crawl_of("start_raises", store)
    assert crawl.start().wait() == 1
    assert crawl.status().state == "stopped"
    assert crawl.start("-s", "MENDED=1").wait() == 0
    # dont_filter requests of start() are known by their place in it.
    assert crawl.asked() == ["/echo?first", "/echo?second"]
