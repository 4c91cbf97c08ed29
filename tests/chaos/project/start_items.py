from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import scrapy

if TYPE_CHECKING:
    from scrapy.http import Response


class StartItems(scrapy.Spider):
    """Each page and its item come from ``start()``; the pages themselves yield nothing."""

    name = "start_items"
    url: str
    pages: str

    async def start(self) -> AsyncIterator[Any]:
        for number in range(int(self.pages)):
            url = self.url + (f"p/{number}" if number else "")
            yield {"url": url}
            yield scrapy.Request(url)

    def parse(self, response: Response) -> None:
        """Nothing more to do."""
