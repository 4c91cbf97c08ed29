from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import scrapy
from scrapy import signals
from scrapy.exceptions import IgnoreRequest

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from typing_extensions import Self


class Ignoring(scrapy.Spider):
    """Ignores some of its start requests when they are scheduled, as Scrapy's off-site filter does."""

    name = "ignoring"
    url: str

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> Self:
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.request_scheduled, signals.request_scheduled)
        return spider

    def request_scheduled(self, request: scrapy.Request) -> None:
        if "/ignored/" in request.url:
            raise IgnoreRequest

    async def start(self) -> AsyncIterator[Any]:
        yield scrapy.Request(self.url)
        for number in range(20):
            yield scrapy.Request(f"{self.url}ignored/{number}", dont_filter=True)
        yield scrapy.Request(f"{self.url}p/1", dont_filter=True)

    def parse(self, response: Response) -> Iterator[Any]:
        for href in response.css("a::attr(href)").getall():
            if href != "/p/1":
                yield response.follow(href, dont_filter=True)
        yield {"url": response.url}
