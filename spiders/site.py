"""Crawl one web site, whichever it is: every page that links lead to, none of another host."""

from __future__ import annotations

import logging
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from scrapy import Request, Spider
from scrapy.downloadermiddlewares.offsite import OffsiteMiddleware
from scrapy.http import HtmlResponse
from w3lib.url import safe_url_string

from spiders.arguments import Arguments

if TYPE_CHECKING:
    import re
    from collections.abc import AsyncIterator, Iterator

    from scrapy.crawler import Crawler
    from scrapy.http import Response

logger = logging.getLogger(__name__)

_HTML_SPACE = " \t\n\r\f"
_DEFAULT_PORT = {"http": ":80", "https": ":443"}


class SiteSpider(Spider):
    """Every page of one host, as dicts of ``url, status, title, depth, links, fetched_at``.

    ``scrapy crawl site -a url=http://example.com/ [-a max_pages=N] [-a max_depth=N]
    [-a allow=REGEX] [-a deny=REGEX]``

    * It stays on the host and port of ``url``, redirects included.
    * ``allow`` and ``deny`` are searched in the absolute URL of a link; ``deny`` wins. ``url``
      itself is always fetched.
    * ``max_pages`` is Scrapy's ``CLOSESPIDER_PAGECOUNT``: a worker closes after so many answers
      (robots.txt is one of them) and still finishes what is under way. ``max_depth`` is
      ``DEPTH_LIMIT``: the links of ``url`` have depth 1.
    * ``links`` counts the different URLs a page links to, on any host. An answer that is not HTML
      has neither ``title`` nor ``links``.
    * Links to every kind of file are followed: keep large ones out with ``deny``.
    """

    name = "site"

    def __init__(
        self,
        url: str,
        *,
        allow: re.Pattern[str] | None = None,
        deny: re.Pattern[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.url = url
        self.site = site_of(url)
        self.allow = allow
        self.deny = deny

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> SiteSpider:
        """Read the ``-a`` arguments.

        Raises:
            SystemExit: After one sentence, if an argument is missing or wrong.
        """
        arguments = Arguments(cls.name, kwargs)
        url = arguments.url("url", example="http://example.com/")
        limits = {
            "CLOSESPIDER_PAGECOUNT": arguments.count("max_pages"),
            "DEPTH_LIMIT": arguments.count("max_depth"),
        }
        allow, deny = arguments.regex("allow"), arguments.regex("deny")
        arguments.refuse_others()
        for setting, limit in limits.items():
            if limit is not None:
                crawler.settings.set(setting, limit, priority="spider")
        # Not in update_settings(): `scrapy crawl` merges the project's settings in after it, and
        # would undo a change of this setting.
        for middleware, order in ((OffsiteMiddleware, None), (SameSiteMiddleware, 50)):
            crawler.settings.set_in_component_priority_dict(
                "DOWNLOADER_MIDDLEWARES", middleware, order
            )
        return super().from_crawler(crawler, url=safe_url_string(url), allow=allow, deny=deny)

    async def start(self) -> AsyncIterator[Request]:
        """Yield the first request, a filtered one: links back to it do not fetch it again."""
        yield Request(self.url)

    def parse(self, response: Response) -> Iterator[dict[str, Any] | Request]:
        """Yield the page's item, then a request for every link that belongs to the crawl."""
        item = {
            "url": response.url,
            "status": response.status,
            "depth": response.meta.get("depth", 0),
            "fetched_at": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        }
        links: list[str] = []
        if isinstance(response, HtmlResponse):
            links = links_of(response)
            title = response.xpath("normalize-space((//title)[1])").get()
            item |= {"title": title or None, "links": len(links)}
        yield item
        for link in links:
            if self.wants(link):
                yield Request(link)

    def wants(self, url: str) -> bool:
        """Tell whether a link is followed: same host, ``allow`` found, ``deny`` not found."""
        return (
            site_of(url) == self.site
            and (self.allow is None or self.allow.search(url) is not None)
            and (self.deny is None or self.deny.search(url) is None)
        )


class SameSiteMiddleware(OffsiteMiddleware):
    """Keep requests and redirects on the spider's host and port.

    Scrapy's own middleware knows neither ports nor how to keep subdomains out.
    """

    def should_follow(self, request: Request, spider: Spider) -> bool:
        """Tell whether the request goes to the spider's site.

        A first page that itself leads away is said aloud: the crawl ends there, with no item.
        """
        if site_of(request.url) == getattr(spider, "site", None):
            return True
        came_from = request.meta.get("redirect_urls")
        if came_from and not request.meta.get("depth"):
            logger.warning(
                "%s redirects to another host; to crawl that one, give -a url=%s",
                came_from[0],
                request.url,
            )
        return False


def site_of(url: str) -> str:
    """Return host and port of a URL in lower case, without user and the scheme's own port."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2].lower()
    return host.removesuffix(_DEFAULT_PORT.get(parts.scheme, ""))


def links_of(response: HtmlResponse) -> list[str]:
    """Return the different web URLs that a page links to, in their order, without fragments.

    They are those of ``LinkExtractor(deny_extensions=())``, found in a fraction of its time: the
    page of an index has thousands of links that differ in the fragment only, and these are made
    one before each is joined and checked.
    """
    root = response.selector.root
    base_href = next((base.get("href") for base in root.iter("base") if base.get("href")), None)
    hrefs = dict.fromkeys(
        href.strip(_HTML_SPACE).partition("#")[0]
        for element in root.iter("a", "area")
        if (href := element.get("href")) is not None
    )
    if base_href is None:
        hrefs.pop("", None)  # a place on this page
    base = _absolute(base_href or "", response.url, response.encoding) or response.url
    urls = (_absolute(href, base, response.encoding) for href in hrefs)
    return list(dict.fromkeys(url for url in urls if url))


def _absolute(href: str, base: str, encoding: str) -> str | None:
    """Return the URL that a browser would ask for, or None if it is not one of the web."""
    try:
        url = urljoin(base, href.strip(_HTML_SPACE))
        if not url.isascii():
            url = safe_url_string(url, encoding)  # browsers encode a query as the page is encoded
        parts = urlsplit(url)
    except ValueError:  # such as http://[::1
        return None
    return url if parts.scheme in ("http", "https") and parts.netloc else None
