"""What Scrapy's own nets do not catch is an error of its page, and nothing is done too early."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.chaos.crawl import Crawl, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(60)]
CrawlOf = Callable[..., Crawl]


def test_an_exception_that_is_no_exception_is_an_error_of_its_page(
    crawl_of: CrawlOf, store: str
) -> None:
    crawl = crawl_of("escaping", store)
    worker = crawl.start("-s", "RETRY_TIMES=0")
    assert worker.wait(30) == 0
    raised = {
        url: (reason, detail.split(" was raised")[0])
        for url, (reason, detail) in crawl.dead().items()
    }
    assert raised == {
        "echo?generator": ("callback", "Escaped: CancelledError"),
        "echo?async-generator": ("callback", "Escaped: SystemExit: 3"),
        "echo?coroutine": ("callback", "Escaped: CancelledError: by somebody"),
        "echo?function": ("callback", "Escaped: GeneratorExit"),
        "http://127.0.0.1:1/errback": ("errback", "Escaped: KeyboardInterrupt"),
        "echo?pipeline": ("pipeline", "Escaped: CancelledError"),
    }
    written = sorted(item["url"].removeprefix(crawl.site.url) for item in crawl.items())
    assert written == ["echo?async-generator", "echo?child", "echo?fine", "echo?generator"]


def test_a_start_that_is_cancelled_has_failed(crawl_of: CrawlOf, sqlite_store: str) -> None:
    crawl = crawl_of("escapingstart", sqlite_store)
    worker = crawl.start()
    assert worker.wait(20) == 1
    assert "Escaped: CancelledError was raised" in worker.text()
    assert crawl.status().start == "failed"
    assert [item["url"].removeprefix(crawl.site.url) for item in crawl.items()] == ["echo?first"]


def test_a_page_that_downloads_itself_again_is_not_done_before_its_callback(
    crawl_of: CrawlOf, store: str
) -> None:
    crawl = crawl_of("downloadsitself", store)
    worker = crawl.start()
    wait_until(lambda: crawl.asked().count("/echo?page") == 2, 20)
    time.sleep(0.7)
    crawl.kill(worker)
    assert crawl.leased_at_kills == 1
    again = crawl.start("-s", "CLUSTER_LEASE_SECONDS=2", "-s", "CLUSTER_HEARTBEAT_SECONDS=0.5")
    assert again.wait(40) == 0
    assert "/echo?child" in crawl.asked()
