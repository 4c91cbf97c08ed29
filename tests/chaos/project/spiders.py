from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import scrapy

if TYPE_CHECKING:
    from scrapy.http import Response


class Graph(scrapy.Spider):
    """Follows every link; an item a page."""

    name = "graph"
    url: str

    async def start(self) -> AsyncIterator[Any]:
        yield scrapy.Request(self.url)

    def parse(self, response: Response) -> Iterator[Any]:
        for href in response.css("a::attr(href)").getall():
            yield response.follow(href)
        yield {"url": response.url}


class Seeds(scrapy.Spider):
    """All pages come from ``start()``, every second one with ``dont_filter``."""

    name = "seeds"
    url: str
    pages: str

    async def start(self) -> AsyncIterator[Any]:
        for number in range(int(self.pages)):
            path = f"p/{number}" if number else ""
            yield scrapy.Request(self.url + path, dont_filter=bool(number % 2))

    def parse(self, response: Response) -> Iterator[Any]:
        yield {"url": response.url}
