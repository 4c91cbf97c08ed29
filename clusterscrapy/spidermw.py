"""The spider middleware nearest to the engine: who runs ``start()``, and back-pressure."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from scrapy import Request, signals
from scrapy.exceptions import CloseSpider, NotConfigured

from clusterscrapy.escapes import caught
from clusterscrapy.scheduler import scheduler_of, uses_frontier

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from typing_extensions import Self


class FrontierSpiderMiddleware:
    """Lets one worker run ``start()``, and holds spider output while the outbox is full."""

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build for a crawler; disabled when it uses another scheduler."""
        if not uses_frontier(crawler.settings):
            raise NotConfigured
        middleware = cls(crawler)
        for signal in (signals.item_scraped, signals.item_dropped, signals.item_error):
            crawler.signals.connect(middleware._item_through, signal)
        return middleware

    def __init__(self, crawler: Crawler) -> None:
        self.crawler = crawler
        self._start_items = _Countdown()

    async def process_start(self, start: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Run ``start()`` if no other worker does or has.

        The crawl counts it as unfinished until it is exhausted, its requests are stored and its
        items have passed the pipelines; if this worker dies before, another runs it again.
        """
        scheduler = scheduler_of(self.crawler)
        if scheduler is None or not await scheduler.claim_start():
            return
        ordinal, end = 0, object()
        try:
            while True:
                with caught(self.crawler.engine):
                    output = await anext(start, end)
                if output is end:
                    break
                if isinstance(output, Request):
                    scheduler.mark_start(output, ordinal)
                    ordinal += 1
                elif output is not None:
                    self._start_items.more()
                yield output
                await scheduler.room()
        except CloseSpider:
            raise
        except Exception:
            scheduler.start_done(failed=True)
            raise
        await self._start_items.wait()
        scheduler.start_done(failed=False)

    def _item_through(self, response: Response | None) -> None:
        if response is None:
            self._start_items.less()

    async def process_spider_output(
        self, response: Response, result: AsyncIterator[Any]
    ) -> AsyncIterator[Any]:
        """Pass output on while there is room for it."""
        scheduler = scheduler_of(self.crawler)
        courier = scheduler.courier if scheduler is not None else None
        async for output in result:
            yield output
            if courier is not None and courier.full:
                await courier.room()


class _Countdown:
    """Waits until as many ended as began."""

    def __init__(self) -> None:
        self._open = 0
        self._none = asyncio.Event()
        self._none.set()

    def more(self) -> None:
        self._open += 1
        self._none.clear()

    def less(self) -> None:
        self._open -= 1
        if self._open <= 0:
            self._none.set()

    async def wait(self) -> None:
        await self._none.wait()
