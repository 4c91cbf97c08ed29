"""Makes Scrapy's own feeds (``-O``, ``FEEDS``) survive a kill, where their format allows it.

A local file of lines is written through after every item, so what a page yielded is on disk before
the page is acknowledged; a resumed crawl appends to it, also with ``-O``. Other formats and storages
keep items in a buffer until the end: they are named once, a resumed crawl puts what an earlier run
left aside instead of overwriting it, and each of several workers writes a file of its own. A worker
that has nothing to do, or is refused, touches no file.
"""

from __future__ import annotations

import fcntl
import logging
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from scrapy import signals
from scrapy.exceptions import NotConfigured
from scrapy.extensions.feedexport import FeedExporter, FileFeedStorage

from clusterscrapy.scheduler import scheduler_of, uses_frontier

if TYPE_CHECKING:
    from typing import IO

    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from typing_extensions import Self

    from clusterscrapy.scheduler import Scheduler

logger = logging.getLogger(__name__)

_TICK_S = 0.05
"""File systems stamp with a clock that ticks this seldom, at worst."""
_LINE_TAKES_S = 0.3
"""Longer than a large item takes to be written."""
LINE_FORMATS = frozenset({"jsonlines", "jsonl", "jl"})


class CrashSafeFeeds:
    """Flushes line feeds item by item and appends to them on a resume."""

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build for a crawler; disabled when it uses another scheduler or has no feeds."""
        has_feeds = crawler.settings.getdict("FEEDS") or crawler.settings["FEED_URI"]
        if not uses_frontier(crawler.settings) or not has_feeds:
            raise NotConfigured
        feeds = cls(crawler)
        crawler.signals.connect(feeds.prepare, signals.spider_opened)
        return feeds

    def __init__(self, crawler: Crawler) -> None:
        self.crawler = crawler
        self._claims: list[IO[bytes]] = []
        self._counts: dict[int, int] = {}

    def prepare(self) -> None:
        """Before the exporter opens its files: decide for each whether it appends."""
        exporter = self.crawler.get_extension(FeedExporter)
        scheduler = scheduler_of(self.crawler)
        if exporter is None or scheduler is None:
            return
        if scheduler.opening is None or scheduler.opening.late:
            exporter.feeds.clear()
            return
        # Connected now, so that it runs after the exporter has taken an item.
        self.crawler.signals.connect(self.flush, signals.item_scraped)
        for uri, options in list(exporter.feeds.items()):
            path = self._local_path(exporter, uri, options)
            if path is None or not _is_lines(options):
                logger.warning(
                    "Feed %s is written at the end only: a killed worker loses its items. Local JSON "
                    "lines (-O items.jl) are safe",
                    uri,
                )
                if path is not None and _is_written_anew(options):
                    own = self._claim(path, fresh=not scheduler.opening.touched)
                    if own != path:
                        own_uri = str(own).replace("%", "%%")
                        for by_uri in cast(
                            "list[dict[str, Any]]", [exporter.feeds, exporter.filters]
                        ):
                            by_uri[own_uri] = by_uri.pop(uri)
            else:
                self._prepare_lines(path, options, scheduler)

    def _prepare_lines(self, path: Path, options: dict[str, Any], scheduler: Scheduler) -> None:
        opening = scheduler.opening
        assert opening is not None
        emptied = False
        if path.exists() and path.stat().st_size > 0:
            if not opening.touched and options.get("overwrite"):
                emptied = _empty(path, unless_written_since=scheduler.joined_at)
            if emptied:
                logger.info("%s held the items of an earlier run: it is written anew", path)
            elif _is_torn(path, others=opening.workers > 1):
                _end_torn_line(path, cut=not opening.fresh)
            if not emptied and not opening.fresh and options.get("overwrite"):
                logger.info("Resuming: items are appended to %s", path)
        # Appending, because several workers of one crawl may write the same file line by line.
        options["overwrite"] = False

    def _claim(self, path: Path, *, fresh: bool) -> Path:
        """The file this worker writes: ``path``, or one beside it while another worker has that."""
        path.parent.mkdir(parents=True, exist_ok=True)
        claim = path.open("ab")
        try:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            claim.close()
            own = _part(path)
            logger.warning("Another worker writes %s: the items of this one go to %s", path, own)
            return self._claim(own, fresh=True)
        if not fresh and os.fstat(claim.fileno()).st_size:
            aside = _part(path)
            path.rename(aside)
            claim.close()
            logger.warning("Resuming: the items of the earlier part are kept in %s", aside)
            return self._claim(path, fresh=True)
        self._claims.append(claim)  # until the process ends
        return path

    def _local_path(self, exporter: FeedExporter, uri: str, options: dict[str, Any]) -> Path | None:
        if "%(batch_" in uri or options.get("batch_item_count"):
            return None
        spider = self.crawler.spider
        assert spider is not None
        params = exporter._get_uri_params(spider, options["uri_params"])
        storage = exporter._get_storage(uri % params, options)
        return Path(storage.path) if isinstance(storage, FileFeedStorage) else None

    def flush(self, item: Any, response: Response | None) -> None:
        """Write through what the exporter has buffered, whole lines at a time.

        Scrapy only logs when an item did not get into a feed; here its page becomes a dead letter.
        """
        exporter = self.crawler.get_extension(FeedExporter)
        if exporter is None:
            return
        why = "" if len(exporter.slots) >= len(exporter.feeds) else "a feed could not be opened"
        for slot in exporter.slots:
            if slot.filter.accepts(item) and self._counts.get(id(slot), 0) == slot.itemcount:
                why = f"an item could not be exported to {slot.uri}"
            self._counts[id(slot)] = slot.itemcount
            if slot.file is not None and slot.format in LINE_FORMATS and not slot.file.closed:
                try:
                    slot.file.flush()
                except OSError as exc:
                    why = f"{slot.uri}: {exc.strerror}"
        scheduler = scheduler_of(self.crawler)
        if why and scheduler is not None and response is not None and response.request is not None:
            scheduler.feed_failed(response.request, f"{why}; the log says more")


def _empty(path: Path, *, unless_written_since: float) -> bool:
    """Empty a file of an earlier run. What was written since is of this run: another worker was faster.

    Compared by the clock of the file system, which may be another machine's.
    """
    with tempfile.TemporaryFile(dir=path.parent) as now, path.open("rb+") as file:
        ahead = os.fstat(now.fileno()).st_mtime - time.time()
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_mtime >= unless_written_since + ahead - _TICK_S:
            return False
        file.truncate(0)
        return True


def _is_lines(options: dict[str, Any]) -> bool:
    return options["format"] in LINE_FORMATS and not options.get("postprocessing")


def _is_torn(path: Path, *, others: bool) -> bool:
    """Does it end in half a line that nobody is writing any more?

    A living worker writes whole lines, one after the other; a dead one may still count among the others.
    """

    def end() -> tuple[int, bytes]:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(size - 1)
            return size, file.read(1)

    before = end()
    if before[1] == b"\n" or not others:
        return before[1] != b"\n"
    time.sleep(_LINE_TAKES_S)
    return end() == before


def _end_torn_line(path: Path, *, cut: bool) -> None:
    """Cut off half a line at the end, whose page was not acknowledged; or end it, if it is not ours."""
    with path.open("rb+") as file:
        size = file.seek(0, 2)
        if not cut:
            file.write(b"\n")
            return
        keep = size
        while keep > 0:
            start = max(0, keep - 65_536)
            file.seek(start)
            newline = file.read(keep - start).rfind(b"\n")
            if newline >= 0:
                keep = start + newline + 1
                break
            keep = start
        if keep < size:
            file.truncate(keep)


def _is_written_anew(options: dict[str, Any]) -> bool:
    """Only one process can write such a file, once; JSON cannot be appended to at all."""
    return bool(options.get("overwrite")) or options["format"] == "json"


def _part(path: Path) -> Path:
    """The first free name for a part of the items."""
    number = 1
    while (part := path.with_name(f"{path.stem}.part-{number}{path.suffix}")).exists():
        number += 1
    return part
