from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import scrapy

if TYPE_CHECKING:
    from scrapy.http import Response


class Stalling(scrapy.Spider):
    """Blocks the event loop for two seconds in the midst of ``start()``."""

    name = "stalling"
    url: str
    pages: str

    async def start(self) -> AsyncIterator[Any]:
        for number in range(int(self.pages)):
            if number == int(self.pages) // 2:
                time.sleep(2)  # noqa: ASYNC251 - the loop is to hang
            if number == int(self.pages) - 1:
                await asyncio.sleep(1)  # start() is still running when its worker has joined again
            yield scrapy.Request(self.url + (f"p/{number}" if number else ""))

    def parse(self, response: Response) -> Iterator[Any]:
        yield {"url": response.url}
