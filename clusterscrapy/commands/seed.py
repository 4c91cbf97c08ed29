"""``scrapy frontier seed``.

Scrapy loads every command before it runs one: what an old Scrapy does not have is imported in
functions, so that it comes as far as being refused with a sentence.
"""

from __future__ import annotations

import sys
import time
from itertools import chain
from typing import TYPE_CHECKING

from scrapy.crawler import Crawler
from scrapy.statscollectors import MemoryStatsCollector
from scrapy.utils.conf import arglist_to_dict

from clusterscrapy.compat.scrapy_redis.settings import translate
from clusterscrapy.config import Config
from clusterscrapy.dupefilter import RequestKeys
from clusterscrapy.exceptions import ConfigError
from clusterscrapy.identity import remember_arguments, scheme_of
from clusterscrapy.seeds import FIELDS, Sower, lines_of, sitemap_lines
from clusterscrapy.terms import codec_of, frontier_of, store_of, terms_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from scrapy.settings import BaseSettings, Settings
    from scrapy.utils.request import RequestFingerprinterProtocol

_PROGRESS_EVERY_S = 2.0


def add_seed_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``seed``."""
    parser.description = (
        "Queues requests into the crawl of a spider, running or not. A line of a file is a URL or a JSON "
        f"object with {', '.join(FIELDS)}. Known URLs are not queued again, so an interrupted seeding is "
        "simply repeated; what is no request is kept: 'scrapy frontier dead'."
    )
    add_spider_options(parser)
    parser.add_argument("urls", nargs="*", metavar="URL", help="URLs, or JSON objects")
    parser.add_argument(
        "-f",
        "--file",
        action="append",
        default=[],
        metavar="FILE",
        help="a file with one seed a line, gzip or not; - is standard input (may be repeated)",
    )
    parser.add_argument(
        "--sitemap",
        action="append",
        default=[],
        metavar="FILE_OR_URL",
        help="a sitemap, or an index of sitemaps (may be repeated)",
    )


def add_spider_options(parser: argparse.ArgumentParser) -> None:
    """Whose crawl."""
    parser.add_argument("spider", metavar="SPIDER")
    parser.add_argument(
        "-a",
        dest="spargs",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an argument of the spider: with its arguments it is another crawl (may be repeated)",
    )


def sow(settings: Settings, opts: argparse.Namespace) -> None:
    """Queue the seeds, and say what became of them.

    Raises:
        ConfigError: an unknown spider, or a file that cannot be read.
        FrontierUnavailable: the store does not answer.
    """
    if not (opts.urls or opts.file or opts.sitemap):
        raise ConfigError(
            "nothing to seed: give URLs, --file FILE (- is standard input) or --sitemap"
        )
    sower, _ = sower_of(settings, opts.spider, opts.spargs)
    frontier = sower.frontier
    began = told = time.monotonic()
    with sower:
        try:
            for sown in sower.sow(_lines(opts)):
                if sys.stderr.isatty() and time.monotonic() - told > _PROGRESS_EVERY_S:
                    told = time.monotonic()
                    sys.stderr.write(f"\r{sown.read:,} read, {sown.queued:,} queued ")
        except KeyboardInterrupt:
            sys.stderr.write("\nstopped; the same command goes on where this one was\n")
    sown = sower.sown
    rate = sown.read / max(0.001, time.monotonic() - began)
    bad = f", {sown.bad:,} bad (scrapy frontier dead --crawl {frontier.name})" if sown.bad else ""
    print(
        f"{frontier.name}: {sown.queued:,} queued, {sown.known:,} known already{bad}; "
        f"{rate:,.0f} a second"
    )


def sower_of(settings: Settings, spider: str, arguments: list[str]) -> tuple[Sower, BaseSettings]:
    """What queues into the crawl of a spider, and the settings it has with the spider's own.

    Raises:
        ConfigError: an unknown spider, or a wrong argument or setting.
    """
    crawler = _crawler(settings, spider, arguments)
    assert crawler.spider is not None
    translate(crawler.settings)
    config = Config.from_settings(crawler.settings)
    fingerprinter = fingerprinter_of(crawler)
    codec = codec_of(config, crawler)
    keys = RequestKeys(fingerprinter, kind=config.dupefilter)
    store = store_of(config)
    frontier = frontier_of(store, config, crawler)
    terms = terms_of(config, scheme_of(fingerprinter), store.place)
    return Sower(frontier, terms, crawler.spider, codec, keys), crawler.settings


def fingerprinter_of(crawler: Crawler) -> RequestFingerprinterProtocol:
    """The configured fingerprinter, for a crawler that does not run."""
    from scrapy.utils.misc import build_from_crawler, load_object

    cls = load_object(crawler.settings["REQUEST_FINGERPRINTER_CLASS"])
    made: RequestFingerprinterProtocol = build_from_crawler(cls, crawler)
    return made


def _crawler(settings: Settings, name: str, arguments: list[str]) -> Crawler:
    from scrapy.spiderloader import get_spider_loader

    try:
        spargs = arglist_to_dict(arguments)
    except ValueError as exc:
        raise ConfigError("invalid -a value, use -a NAME=VALUE") from exc
    loader = get_spider_loader(settings)
    try:
        cls = loader.load(name)
    except KeyError as exc:
        known = ", ".join(loader.list()) or "none"
        raise ConfigError(f"no spider {name!r} in this project; it has: {known}") from exc
    crawler = Crawler(cls, settings)
    crawler.stats = MemoryStatsCollector(crawler)
    remember_arguments(crawler, spargs)
    crawler.spider = cls.from_crawler(crawler, **spargs)
    return crawler


def _lines(opts: argparse.Namespace) -> Iterator[bytes]:
    given = (url.encode("utf-8", "surrogateescape") for url in opts.urls)
    files = chain.from_iterable(lines_of(name) for name in opts.file)
    sitemaps = chain.from_iterable(sitemap_lines(name) for name in opts.sitemap)
    return chain(given, files, sitemaps)
