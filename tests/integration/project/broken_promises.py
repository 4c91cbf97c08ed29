"""Spiders that once lost pages or items."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import scrapy
from scrapy.http import Response  # noqa: TC002 - spiders are read by people


class Shuffled(scrapy.Spider):
    """Its ``start()`` comes in another order in the second run, without the first URL."""

    name = "shuffled"
    url: str
    custom_settings = {"CONCURRENT_REQUESTS": 1}  # noqa: RUF012

    async def start(self) -> AsyncIterator[Any]:
        numbers = range(1, 30) if self.settings.getbool("AGAIN") else reversed(range(30))
        for number in numbers:
            yield scrapy.Request(f"{self.url}echo?{number}", dont_filter=True)

    def parse(self, response: Response) -> Iterator[Any]:
        yield {"url": response.url}


class Unexportable(scrapy.Spider):
    """One of its items no feed can write."""

    name = "unexportable"
    url: str

    async def start(self) -> AsyncIterator[Any]:
        for name in ("good", "bad"):
            yield scrapy.Request(f"{self.url}echo?{name}")

    def parse(self, response: Response) -> Iterator[Any]:
        yield {"url": response.url, "value": object() if "bad" in response.url else 1}
