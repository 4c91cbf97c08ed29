"""The products of the demo shop: categories, their pages, and a JSON answer with the stock."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from scrapy import Request, Spider
from scrapy.http import HtmlResponse, JsonResponse

from spiders.arguments import Arguments

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from scrapy.crawler import Crawler
    from scrapy.http import Response


class ShopSpider(Spider):
    """Products as dicts of ``url, sku, name, price, currency, category, in_stock, fetched_at``.

    ``scrapy crawl shop [-a url=http://127.0.0.1:8765/]``; the shop is served by
    ``python -m tests.site.server --site shop --port 8765``.
    """

    name = "shop"

    def __init__(self, url: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.url = url

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> ShopSpider:
        """Read the ``-a`` arguments.

        Raises:
            SystemExit: After one sentence, if an argument is wrong.
        """
        arguments = Arguments(cls.name, kwargs)
        here = "http://127.0.0.1:8765/"
        url = arguments.url("url", example=here, default=here)
        arguments.refuse_others()
        return super().from_crawler(crawler, url=url)

    async def start(self) -> AsyncIterator[Request]:
        """Yield the home page, a filtered request: links back to it do not fetch it again."""
        yield Request(self.url)

    def parse(self, response: Response) -> Iterator[Request]:
        """Follow a page that lists categories, pages or products."""
        assert isinstance(response, HtmlResponse)
        yield from response.follow_all(css="nav a, a.offer", callback=self.parse)
        yield from response.follow_all(css="ul.products a", callback=self.parse_product)

    def parse_product(self, response: Response) -> Iterator[Request]:
        """Read a product's page and ask for its stock, which completes the item."""
        assert isinstance(response, HtmlResponse)
        price = response.css(".price")
        product = {
            "url": response.url,
            "sku": response.css("article::attr(data-sku)").get(),
            "name": response.css("h1::text").get(),
            "price": float(price.attrib["data-amount"]),
            "currency": price.attrib["data-currency"],
            "category": response.css(".category::text").get(),
        }
        yield response.follow(
            response.css("a.stock")[0], callback=self.parse_stock, cb_kwargs={"product": product}
        )
        yield from response.follow_all(css="ul.products a", callback=self.parse_product)

    def parse_stock(self, response: Response, product: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the product with its stock."""
        # Broken JSON raises ValueError, on purpose: the frontier keeps the request as a dead letter
        # with this reason, to be replayed when the site is mended. A caught error would leave the
        # product missing, and nobody would know.
        assert isinstance(response, JsonResponse)
        stock = response.json()
        yield product | {
            "in_stock": stock["quantity"] > 0,
            "fetched_at": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        }
