"""The elements of a JSON API that answers page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy import Request, Spider
from scrapy.http import TextResponse

from spiders.arguments import Arguments

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from scrapy.crawler import Crawler
    from scrapy.http import Response


class FeedSpider(Spider):
    """Every element of ``items``, on every page that ``next`` leads to, as the API gives it.

    ``scrapy crawl feed -a url=http://example.com/api/products?page=1``. A page is
    ``{"items": [{…}, …], "next": "/api/products?page=2"}``; ``next`` may be relative, and is null
    or missing on the last. A page that is not of this form raises, and is a dead letter.
    """

    name = "feed"

    def __init__(self, url: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.url = url

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> FeedSpider:
        """Read the ``-a`` arguments.

        Raises:
            SystemExit: After one sentence, if an argument is missing or wrong.
        """
        arguments = Arguments(cls.name, kwargs)
        url = arguments.url("url", example="http://example.com/api/products?page=1")
        arguments.refuse_others()
        return super().from_crawler(crawler, url=url)

    async def start(self) -> AsyncIterator[Request]:
        """Yield the first page, a filtered request: an API that leads back to it ends."""
        yield Request(self.url)

    def parse(self, response: Response) -> Iterator[dict[str, Any] | Request]:
        """Ask for the next page, then yield the elements of this one."""
        assert isinstance(response, TextResponse)
        page = response.json()
        if page.get("next"):
            yield response.follow(page["next"])
        yield from page["items"]
