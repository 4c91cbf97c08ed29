"""The scheduler alone: enqueue, next, lease and acknowledge, without a network to sites."""

from __future__ import annotations

import asyncio
import time
import warnings
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.settings import Settings
from scrapy.statscollectors import MemoryStatsCollector
from scrapy.utils.request import RequestFingerprinter

if TYPE_CHECKING:
    from tests.servers import RedisServer


class Cycle(Spider):
    """Owner of the callback."""

    name = "cycle"

    def parse_page(self, response: Any) -> None:
        """Never called."""


def _requests(spider: Cycle, count: int) -> list[Request]:
    return [
        Request(
            f"http://host/category/{number % 50}/page-{number}.html?sort=price&page={number % 7}",
            callback=spider.parse_page,
            meta={"depth": 3},
            headers={"Referer": "http://host/"},
        )
        for number in range(count)
    ]


def _crawler(settings: dict[str, Any]) -> Crawler:
    crawler = Crawler(Cycle, Settings(settings))
    crawler.spider = Cycle.from_crawler(crawler)
    crawler.stats = MemoryStatsCollector(crawler)
    crawler.request_fingerprinter = RequestFingerprinter(crawler)
    # An engine in which every request is finished the moment it was handed out.
    slot = SimpleNamespace(inprogress=set(), nextcall=SimpleNamespace(schedule=lambda: None))
    scraper = SimpleNamespace(
        slot=SimpleNamespace(active=set()), call_spider_async=None, itemproc=None
    )
    downloader = SimpleNamespace(slots={})
    crawler.engine = SimpleNamespace(_slot=slot, scraper=scraper, downloader=downloader)  # type: ignore[assignment]
    return crawler


def ours(redis: RedisServer, count: int) -> float:
    """Cycles a second of the clusterscrapy scheduler on Redis."""
    return asyncio.run(_ours(redis, count))


async def _ours(redis: RedisServer, count: int) -> float:
    from clusterscrapy.scheduler import Scheduler

    with redis.client as client:
        client.flushall()
    crawler = _crawler({"CLUSTER_FRONTIER_URL": redis.url, "CONCURRENT_REQUESTS": 32})
    scheduler = Scheduler.from_crawler(crawler)
    await scheduler._open()
    assert isinstance(crawler.spider, Cycle)
    requests = _requests(crawler.spider, count)
    began = time.perf_counter()
    for request in requests:
        scheduler.enqueue_request(request)
        await scheduler.room()
    courier = scheduler.courier
    assert courier is not None
    fetched = 0
    while fetched < count:
        if scheduler.next_request() is None:
            await courier.news()
        else:
            fetched += 1
    scheduler.collect()
    while not courier.idle:
        await courier.news()
    rate = count / (time.perf_counter() - began)
    await scheduler._close("cancelled")
    return rate


def scrapy_redis(redis: RedisServer, count: int) -> float:
    """Cycles a second of scrapy-redis' scheduler with its priority queue and dupe filter."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from scrapy_redis.scheduler import Scheduler

        with redis.client as client:
            client.flushall()
        settings = {
            "REDIS_URL": redis.url,
            "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
        }
        crawler = _crawler(settings)
        scheduler = Scheduler.from_settings(crawler.settings)
        scheduler.stats = crawler.stats
        assert isinstance(crawler.spider, Cycle)
        scheduler.open(crawler.spider)
        requests = _requests(crawler.spider, count)
        began = time.perf_counter()
        for request in requests:
            scheduler.enqueue_request(request)
        for _ in range(count):
            assert scheduler.next_request() is not None
        return count / (time.perf_counter() - began)
