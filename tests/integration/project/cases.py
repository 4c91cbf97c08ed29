from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy import signals
from scrapy.exceptions import CloseSpider, DontCloseSpider
from scrapy.http import FormRequest, Request, Response
from scrapy.utils.defer import maybe_deferred_to_future
from twisted.internet.threads import deferToThread

from tests.integration.project.spiders import Base

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from typing_extensions import Self

TEN_MINUTES_S = 600


class StartCloses(Base):
    """``start()`` asks to close after its first request; with ``-s MENDED=1`` it does not."""

    name = "start_closes"

    async def start(self) -> AsyncIterator[Any]:
        yield Request(self.url + "echo?first", dont_filter=True)
        if not self.settings.getbool("MENDED"):
            raise CloseSpider("enough")
        yield Request(self.url + "echo?second", dont_filter=True)


class CallbackCloses(Base):
    """A callback yields a child and an item, then asks to close."""

    name = "callback_closes"

    async def start(self) -> AsyncIterator[Any]:
        yield Request(self.url + "echo?parent", callback=self.parse_parent)

    def parse_parent(self, response: Response) -> Iterator[Any]:
        yield {"url": response.url}
        yield Request(self.url + "echo?child")
        raise CloseSpider("enough")


class Idle(Base):
    """Adds a page when it is idle, three times, and keeps the spider open for it."""

    name = "idle"
    added = 0

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> Self:
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.add_page, signals.spider_idle)
        return spider

    async def start(self) -> AsyncIterator[Any]:
        yield Request(self.url + "echo?start")

    def add_page(self) -> None:
        if self.added < 3:
            self.added += 1
            self.crawler.engine.crawl(Request(self.url + f"echo?idle{self.added}"))
            raise DontCloseSpider


class Shapes(Base):
    """Callbacks of every shape that Scrapy allows."""

    name = "shapes"

    async def start(self) -> AsyncIterator[Any]:
        shapes = (self.nothing, self.one_item, self.one_request, self.a_list, self.a_coroutine,
                  self.inline)  # fmt: skip
        for shape in shapes:
            yield Request(self.url + f"echo?{shape.__name__}", callback=shape)

    def nothing(self, response: Response) -> None:
        return None

    def one_item(self, response: Response) -> Any:
        return {"url": response.url}

    def one_request(self, response: Response) -> Any:
        return Request(response.url + "-child", callback=self.one_item)

    def a_list(self, response: Response) -> Any:
        return [{"url": response.url}, Request(response.url + "-child", callback=self.one_item)]

    async def a_coroutine(self, response: Response) -> Any:
        await asyncio.sleep(0.1)
        return [{"url": response.url}]

    async def inline(self, response: Response) -> AsyncIterator[Any]:
        request = Request(response.url + "-inline")
        inner = await self.crawler.engine.download_async(request)
        yield {"url": inner.url}


class Deferring(Base):
    """Queues a request with every attribute for the next worker."""

    name = "deferring"

    async def start(self) -> AsyncIterator[Any]:
        yield Request(self.url + "echo?start", callback=self.parse_start)

    def parse_start(self, response: Response) -> Iterator[Any]:
        yield FormRequest(
            self.url + "status/500?form",
            formdata={"a": "1"},
            headers={"X-One": ["1", "2"]},
            cookies={"c": "2"},
            meta={"m": (1, {"n": b"\xff"}), "download_timeout": 9},
            cb_kwargs={"k": (3, None)},
            flags=["f"],
            priority=-4,
            encoding="latin-1",
            errback=self.failed,
        )
        raise CloseSpider("enough")

    def failed(self, failure: Any) -> Iterator[Any]:
        request = failure.request
        yield {
            "class": type(request).__name__,
            "body": request.body.decode(),
            "headers": [value.decode() for value in request.headers.getlist("X-One")],
            "cookies": request.cookies,
            "meta": repr(request.meta["m"]),
            "kwargs": repr(request.cb_kwargs),
            "flags": request.flags,
            "encoding": request.encoding,
            "method": request.method,
        }


class Stuck(Base):
    """Something that takes ten minutes: see the values of ``where`` in the code."""

    name = "stuck"
    where: str
    custom_settings = {  # noqa: RUF012
        "ITEM_PIPELINES": {"tests.integration.project.cases.SlowOnRequest": 1},
    }

    async def start(self) -> AsyncIterator[Any]:
        yield Request(self.url + "echo?quick", callback=self.quick)
        if self.where == "start":
            yield Request(self.url + "echo?stuck")
            await asyncio.sleep(TEN_MINUTES_S)
        elif self.where == "errback":
            yield Request("http://127.0.0.1:1/", errback=self.failed)
            yield Request(self.url + "echo?stuck", callback=self.quick)
        else:
            yield Request(self.url + "echo?stuck")

    def quick(self, response: Response) -> Any:
        yield {"url": response.url}

    async def parse(self, response: Response) -> AsyncIterator[Any]:
        yield {"url": response.url}
        if self.where == "callback":
            await asyncio.sleep(TEN_MINUTES_S)
        elif self.where == "thread":
            await asyncio.to_thread(time.sleep, TEN_MINUTES_S)
        elif self.where == "reactor-thread":
            await maybe_deferred_to_future(deferToThread(time.sleep, TEN_MINUTES_S))
        elif self.where == "pipeline":
            yield {"slow": True}

    async def failed(self, failure: Any) -> None:
        await asyncio.sleep(TEN_MINUTES_S)


class SlowOnRequest:
    """A pipeline that takes ten minutes for an item that says ``slow``."""

    async def process_item(self, item: dict[str, Any]) -> dict[str, Any]:
        if item.get("slow"):
            await asyncio.sleep(TEN_MINUTES_S)
        return item


class Large(Base):
    """``-a pages=N`` pages with an item of 100,000 characters each."""

    name = "large"
    pages: str

    async def start(self) -> AsyncIterator[Any]:
        for number in range(int(self.pages)):
            yield Request(self.url + f"echo?{number}")

    def parse(self, response: Response) -> Iterator[Any]:
        yield {"url": response.url, "text": response.url[-1] * 100_000}


class Broken(Base):
    """Middlewares that raise, each at a place and on a page of its own."""

    name = "broken"
    custom_settings = {  # noqa: RUF012
        "SPIDER_MIDDLEWARES": {"tests.integration.project.cases.RaisingSpiderMiddleware": 600},
        "DOWNLOADER_MIDDLEWARES": {
            "tests.integration.project.cases.RaisingDownloaderMiddleware": 600
        },
        "RETRY_ENABLED": False,
    }

    async def start(self) -> AsyncIterator[Any]:
        for place in ("process_request", "process_response", "input", "output", "late-output"):
            yield Request(self.url + f"echo?{place}")
        yield Request(self.url + "echo?good")


class RaisingSpiderMiddleware:
    def process_spider_input(self, response: Response) -> None:
        if response.url.endswith("?input"):
            raise ValueError("in process_spider_input")

    async def process_spider_output(
        self, response: Response, result: AsyncIterator[Any]
    ) -> AsyncIterator[Any]:
        if response.url.endswith("?output"):
            raise ValueError("in process_spider_output")
        async for output in result:
            yield output
        if response.url.endswith("?late-output"):
            raise ValueError("in process_spider_output, after its output")


class RaisingDownloaderMiddleware:
    def process_request(self, request: Request) -> None:
        if request.url.endswith("?process_request"):
            raise ValueError("in process_request")

    def process_response(self, request: Request, response: Response) -> Response:
        if request.url.endswith("?process_response"):
            raise ValueError("in process_response")
        return response


class Long(Base):
    """A URL of 70,000 characters, one of 2 MB, and a short one."""

    name = "long"

    async def start(self) -> AsyncIterator[Any]:
        yield Request(self.url + "echo?q=" + "a" * 70_000)
        yield Request(self.url + "echo?q=" + "b" * 2_000_000)
        yield Request(self.url + "echo?short")


class StopsWhenOpened(Base):
    """Is sent SIGTERM when it has joined its crawl and before the engine runs."""

    name = "stops_when_opened"

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> Self:
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.stop_me, signals.spider_opened)
        return spider

    async def stop_me(self) -> None:
        if not self.settings.getbool("MENDED"):
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.3)

    async def start(self) -> AsyncIterator[Any]:
        yield Request(self.url + "echo")


class Escaping(Base):
    """Exceptions that are no ``Exception``, each on a page of its own; and a page that is fine."""

    name = "escaping"
    custom_settings = {  # noqa: RUF012
        "ITEM_PIPELINES": {"tests.integration.project.cases.Cancelled": 1},
    }

    async def start(self) -> AsyncIterator[Any]:
        yield Request(self.url + "echo?generator", callback=self.generator)
        yield Request(self.url + "echo?async-generator", callback=self.async_generator)
        yield Request(self.url + "echo?coroutine", callback=self.coroutine)
        yield Request(self.url + "echo?function", callback=self.function)
        yield Request("http://127.0.0.1:1/errback", errback=self.failed)
        yield Request(self.url + "echo?pipeline", callback=self.item)
        yield Request(self.url + "echo?fine")

    def generator(self, response: Response) -> Iterator[Any]:
        yield {"url": response.url}
        yield Request(self.url + "echo?child")
        raise asyncio.CancelledError

    async def async_generator(self, response: Response) -> AsyncIterator[Any]:
        yield {"url": response.url}
        raise SystemExit(3)

    async def coroutine(self, response: Response) -> None:
        raise asyncio.CancelledError("by somebody")

    def function(self, response: Response) -> None:
        raise GeneratorExit

    def failed(self, failure: Any) -> None:
        raise KeyboardInterrupt

    def item(self, response: Response) -> Iterator[Any]:
        yield {"cancelled": True}

    def parse(self, response: Response) -> Iterator[Any]:
        yield {"url": response.url}


class Cancelled:
    """A pipeline whose work is cancelled on request."""

    async def process_item(self, item: dict[str, Any]) -> dict[str, Any]:
        if item.get("cancelled"):
            raise asyncio.CancelledError
        return item


class EscapingStart(Base):
    """``start()`` is cancelled after its first request."""

    name = "escapingstart"

    async def start(self) -> AsyncIterator[Any]:
        yield Request(self.url + "echo?first")
        raise asyncio.CancelledError

    def parse(self, response: Response) -> Iterator[Any]:
        yield {"url": response.url}


class DownloadsItself(Base):
    """Downloads the page of its own request once more, and takes its time afterwards."""

    name = "downloadsitself"

    async def start(self) -> AsyncIterator[Any]:
        yield Request(self.url + "echo?page")

    async def parse(self, response: Response) -> AsyncIterator[Any]:
        assert response.request is not None
        await self.crawler.engine.download_async(response.request)
        await asyncio.sleep(2)
        yield {"url": response.url}
        yield Request(self.url + "echo?child", callback=self.leaf)

    def leaf(self, response: Response) -> Iterator[Any]:
        yield {"url": response.url}


class StuckAtTheEnd(Base):
    """Listens to the end for ten minutes: ``-a where=closed``, ``closed-blocking`` or ``engine_stopped``."""

    name = "stuckattheend"
    where: str

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> Self:
        spider = super().from_crawler(crawler, *args, **kwargs)
        if spider.where == "engine_stopped":
            crawler.signals.connect(spider.hang, signals.engine_stopped)
        elif spider.where == "closed":
            crawler.signals.connect(spider.hang, signals.spider_closed)
        elif spider.where == "closed-blocking":
            crawler.signals.connect(spider.block, signals.spider_closed)
        return spider

    async def start(self) -> AsyncIterator[Any]:
        yield Request(self.url + "echo?quick")
        yield Request(self.url + "slow/600")

    def parse(self, response: Response) -> Iterator[Any]:
        yield {"url": response.url}

    async def hang(self) -> None:
        await asyncio.sleep(TEN_MINUTES_S)

    def block(self) -> None:
        time.sleep(TEN_MINUTES_S)


class StuckInInit(Base):
    """Takes ten minutes to be made."""

    name = "stuckininit"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        Path(self.mark).touch()
        time.sleep(TEN_MINUTES_S)

    mark: str
