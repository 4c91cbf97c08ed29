from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import scrapy
from scrapy.exceptions import CloseSpider, DropItem
from scrapy.http import FormRequest, JsonRequest, Request, Response
from scrapy.utils.request import fingerprint


class Base(scrapy.Spider):
    """Follows nothing by itself; an item a page."""

    url: str

    def parse(self, response: Response) -> Any:
        yield {"url": response.url, "body": response.text}


class Urls(Base):
    """``-a urls=JSON``: fetches these, in this order, ``%h`` standing for the site."""

    name = "urls"
    urls: str
    custom_settings = {"CONCURRENT_REQUESTS": 1}  # noqa: RUF012

    async def start(self) -> AsyncIterator[Any]:
        for url in json.loads(self.urls):
            yield Request(url.replace("%h/", self.url))


class Twice(Base):
    """The same page twice with ``dont_filter``, and six pages in an order of their own."""

    name = "twice"
    custom_settings = {"CONCURRENT_REQUESTS": 1}  # noqa: RUF012

    async def start(self) -> AsyncIterator[Any]:
        yield Request(self.url + "echo?start", callback=self.parse_start)

    def parse_start(self, response: Response) -> Iterator[Any]:
        for _ in range(2):
            yield Request(self.url + "echo?same", dont_filter=True)
        for letter in "zyxwvu":
            yield Request(self.url + f"echo?{letter}")


class Headers:
    """A fingerprinter that tells requests apart by one header."""

    def fingerprint(self, request: Request) -> bytes:
        return fingerprint(request, include_headers=["X-Kind"])


class ByHeader(Base):
    name = "by_header"
    custom_settings = {  # noqa: RUF012
        "REQUEST_FINGERPRINTER_CLASS": "tests.integration.project.spiders.Headers"
    }

    async def start(self) -> AsyncIterator[Any]:
        for kind in ("a", "b", "a"):
            yield Request(self.url + "echo", headers={"X-Kind": kind})
        yield Request(self.url + "echo?b=1&a=2", meta={"verbatim_url": True})
        yield Request(self.url + "echo?a=2&b=1", meta={"verbatim_url": True})


class Unstorable(Base):
    """Requests that cannot be stored, and after each its storable twin."""

    name = "unstorable"

    async def start(self) -> AsyncIterator[Any]:
        yield Request(self.url + "echo?lambda", callback=lambda response: None)  # type: ignore[misc]
        yield Request(self.url + "echo?lambda")
        with open(__file__) as file:  # noqa: ASYNC230, PTH123
            yield Request(self.url + "echo?file", meta={"f": file})
        yield Request(self.url + "echo?file")
        yield Request(self.url + "echo?blob", meta={"blob": "x" * 20_000_000})
        yield Request(self.url + "echo?blob")
        yield Request(self.url + "echo?selector", callback=self.parse_selector)

    def parse_selector(self, response: Any) -> Iterator[Any]:
        yield Request(self.url + "echo?sel", meta={"sel": response.selector})
        yield Request(self.url + "echo?sel")


class Attributes(Base):
    """Every attribute of a request, into an errback."""

    name = "attributes"

    async def start(self) -> AsyncIterator[Any]:
        yield FormRequest(
            self.url + "status/500?form",
            formdata={"a": "1"},
            headers={"X-One": "1"},
            cookies={"c": "2"},
            meta={"m": (1, 2)},
            cb_kwargs={"k": 3},
            flags=["f"],
            priority=4,
            errback=self.failed,
        )
        yield JsonRequest(self.url + "post", data={"b": [1]}, callback=self.parse)

    def failed(self, failure: Any) -> Iterator[Any]:
        request = failure.request
        yield {
            "class": type(request).__name__,
            "body": request.body.decode(),
            "header": request.headers["X-One"].decode(),
            "cookies": request.cookies,
            "meta": repr(request.meta["m"]),
            "kwargs": request.cb_kwargs,
            "flags": request.flags,
            "method": request.method,
            "retries": request.meta["retry_times"],
        }


class Renamed(Base):
    """Queues a request for a callback that ``without_parse_x`` does not have."""

    name = "renamed"
    reason = "enough"

    async def start(self) -> AsyncIterator[Any]:
        yield Request(self.url + "slow/1", callback=self.parse_first)

    def parse_first(self, response: Response) -> Iterator[Any]:
        yield Request(self.url + "echo?x", callback=self.parse_x)
        yield Request(self.url + "echo?private", callback=self.__private)
        raise CloseSpider(self.reason)

    def parse_x(self, response: Response) -> Iterator[Any]:
        yield {"x": response.url}

    def __private(self, response: Response) -> Iterator[Any]:
        yield {"private": response.url}


class Misset(Base):
    """Has a setting that is refused."""

    name = "misset"
    custom_settings = {"CLUSTER_PREFETCH": "many"}  # noqa: RUF012


class Failing(Base):
    """Everything that can go wrong with a page, each on a page of its own."""

    name = "failing"
    custom_settings = {  # noqa: RUF012
        "ITEM_PIPELINES": {"tests.integration.project.spiders.Choosy": 1},
        "DOWNLOAD_TIMEOUT": 5,
    }

    async def start(self) -> AsyncIterator[Any]:
        yield {"from": "start"}
        yield Request(self.url + "echo?callback", callback=self.parse_raises)
        yield Request(self.url + "echo?async", callback=self.parse_async)
        yield Request("http://127.0.0.1:1/refused")
        yield Request("http://127.0.0.1:1/handled", errback=self.handled)
        yield Request("http://127.0.0.1:1/errback", errback=self.errback_raises)
        yield Request(self.url + "status/503")
        yield Request(self.url + "status/404")
        yield Request(self.url + "echo?pipeline", callback=self.parse_bad_item)
        yield Request(self.url + "redirect?/echo?redirected")
        yield Request("http://h..invalid/")
        yield Request("http://" + "a" * 64 + ".invalid/")
        yield Request("http://.example.invalid/")

    def parse_raises(self, response: Response) -> Iterator[Any]:
        yield {"from": "before the exception"}
        yield Request(self.url + "echo?child-of-exception")
        raise ValueError("as planned")

    async def parse_async(self, response: Response) -> AsyncIterator[Any]:
        await asyncio.sleep(0.2)
        yield {"from": "async"}
        yield Request(self.url + "echo?child-of-async")

    def parse_bad_item(self, response: Response) -> Iterator[Any]:
        yield {"bad": "raise"}
        yield {"bad": "drop"}
        yield {"from": "beside a bad item"}

    def handled(self, failure: Any) -> Iterator[Any]:
        yield {"from": "errback"}

    def errback_raises(self, failure: Any) -> None:
        raise KeyError("in errback")


class Choosy:
    """A pipeline that raises on some items, drops others, and takes its time."""

    async def process_item(self, item: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(0.05)
        if item.get("bad") == "raise":
            raise RuntimeError("pipeline broke")
        if item.get("bad") == "drop":
            raise DropItem("unwanted")
        return item


class StartRaises(Base):
    """``start()`` raises after its first request; with ``-a mended=1`` it does not."""

    name = "start_raises"

    async def start(self) -> AsyncIterator[Any]:
        yield Request(self.url + "echo?first", dont_filter=True)
        if not self.settings.getbool("MENDED"):
            raise ValueError("start broke")
        yield Request(self.url + "echo?second", dont_filter=True)


class Children(Base):
    """Pages of ten children each, for as long as it takes."""

    name = "children"
    width: str

    async def start(self) -> AsyncIterator[Any]:
        for number in range(int(self.width)):
            yield Request(self.url + f"slow/0.5?{number}", callback=self.parse_parent)

    def parse_parent(self, response: Response) -> Iterator[Any]:
        for number in range(10):
            yield Request(response.url.replace("slow/0.5", "echo") + f"-{number}")


class Patient(Base):
    """One page that takes ten minutes, and ``-a quick=`` that take half a second."""

    name = "patient"
    quick: str

    async def start(self) -> AsyncIterator[Any]:
        yield Request(self.url + "slow/600")
        for number in range(int(self.quick)):
            yield Request(self.url + f"slow/0.5?{number}")


class Many(Base):
    """Ten pages from ``start()``, also as old-fashioned ``start_urls``."""

    name = "many"

    @property
    def start_urls(self) -> list[str]:  # type: ignore[override]
        return [f"{self.url}echo?{number}" for number in range(10)]
