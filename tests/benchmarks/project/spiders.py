from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import scrapy

if TYPE_CHECKING:
    from scrapy.http import Response


class Links(scrapy.Spider):
    """Follows every link by CSS."""

    name = "links"
    url: str

    async def start(self) -> AsyncIterator[Any]:
        yield scrapy.Request(f"{self.url}0.html")

    def parse(self, response: Response) -> Iterator[Any]:
        for href in response.css("a::attr(href)").getall():
            yield response.follow(href, self.parse)


class Seeds(scrapy.Spider):
    """Fetches known pages and does nothing with them."""

    name = "seeds"
    url: str
    pages: str

    async def start(self) -> AsyncIterator[Any]:
        for number in range(int(self.pages)):
            yield scrapy.Request(f"{self.url}{number}.html")

    def parse(self, response: Response) -> None:
        pass
