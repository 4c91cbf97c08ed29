"""A worker's end: the first signal drains it, a deadline or the second ends it.

Scrapy waits for every open download when it is asked to stop, for as long as it takes, and its
second signal skips all closing. A pod has a grace period: so at a deadline the leases go back and
feeds are closed even with downloads open, and a loop that no longer turns is left behind.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

from scrapy import signals
from scrapy.crawler import CrawlerProcessBase
from scrapy.exceptions import NotConfigured

from clusterscrapy import outcome
from clusterscrapy.config import Config
from clusterscrapy.scheduler import frontier_gone, scheduler_of, uses_frontier

if TYPE_CHECKING:
    from types import FrameType

    from scrapy.crawler import Crawler
    from typing_extensions import Self

logger = logging.getLogger(__name__)

BLOCKED_LOOP_GRACE_S = 1.5
"""After the deadline: how long the loop may take to notice before a thread ends the process."""
CLOSING_GRACE_S = 2.5
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Lifecycle:
    """Drains a worker on SIGINT or SIGTERM within ``CLUSTER_STOP_SECONDS``.

    Takes over from the handlers of Scrapy's crawler process, and only from those: who runs
    crawlers in a process of his own keeps his handlers, and calls ``crawler.stop_async()``.
    """

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build for a crawler; disabled when it uses another scheduler."""
        if not uses_frontier(crawler.settings):
            raise NotConfigured
        config = Config.from_settings(crawler.settings)
        lifecycle = cls(crawler, stop_s=config.stop_seconds)
        crawler.signals.connect(lifecycle._closed, signals.spider_closed)
        crawler.signals.connect(lifecycle._set_deadline, frontier_gone)
        lifecycle.watch_signals()
        return lifecycle

    def __init__(self, crawler: Crawler, *, stop_s: float) -> None:
        self.crawler = crawler
        self.stop_s = stop_s
        self._loop = _event_loop()
        self._originals: dict[int, Any] = {}
        self._stopping = self._forced = False
        self._is_closed = threading.Event()

    # --- signals --------------------------------------------------------------------------

    def watch_signals(self) -> None:
        """Put our handler in front of Scrapy's."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if isinstance(getattr(handler, "__self__", None), CrawlerProcessBase | Lifecycle):
                self._originals[number] = handler
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._stopping:
            self._stopping = True
            # Asked to stop while it closes already, Scrapy would end the loop before it has closed.
            if not self._closing_already():
                self._originals[number](number, frame)
            # Scrapy has just installed its own handler for the second signal; ours closes properly.
            for other in self._originals:
                signal.signal(other, self._on_signal)
            self._watch_loop(self.stop_s)
            self._loop.call_soon_threadsafe(self._begin_stop)
        else:
            original = self._originals[number]
            if isinstance(getattr(original, "__self__", None), Lifecycle):
                original(number, frame)  # another crawler of this process
            self._watch_loop(0.0)
            self._loop.call_soon_threadsafe(self._force, "a second signal")

    def _closing_already(self) -> bool:
        engine = self.crawler._engine
        return engine is not None and engine._slot is not None and engine._slot.closing is not None

    def _begin_stop(self) -> None:
        scheduler = scheduler_of(self.crawler)
        if scheduler is None or scheduler.opening is None:
            # Still waiting for the store: nothing is held, Scrapy stops the reactor by itself.
            outcome.record(self.crawler, "shutdown", work_left=True)
            return
        scheduler.stop_taking()
        logger.info(
            "Finishing %d requests, for at most %.0f s (CLUSTER_STOP_SECONDS); a second signal hands "
            "them back at once",
            scheduler.held,
            self.stop_s,
        )
        self._set_deadline()

    def _set_deadline(self) -> None:
        self._loop.call_later(self.stop_s, self._force, f"{self.stop_s:.0f} s")

    # --- the deadline ------------------------------------------------------------------------

    def _force(self, after: str) -> None:
        """End what Scrapy would wait for: downloads and callbacks that are still open."""
        if self._forced or self._is_closed.is_set():
            return
        self._forced = True
        engine = self.crawler.engine
        scheduler = scheduler_of(self.crawler)
        if scheduler is None or engine._slot is None:
            return
        scheduler.collect()
        released = scheduler.release_held()
        logger.warning("After %s %d unfinished requests are handed back", after, released)
        slot = engine._slot
        slot.inprogress = _Forgiving()
        scraper_slot = engine.scraper.slot
        if scraper_slot is not None:
            scraper_slot.queue.clear()
            scraper_slot.active = _Forgiving()
            scraper_slot.is_idle = lambda: True  # type: ignore[method-assign]
            engine.scraper._check_if_closing()
        if slot.closing is not None and not slot.closing.called:
            slot._maybe_fire_closing()
        threading.Thread(target=self._watch_closing, daemon=True).start()

    def _watch_loop(self, deadline_s: float) -> None:
        """A loop that a callback blocks cannot force anything: this thread can."""

        def watch() -> None:
            if not self._is_closed.wait(deadline_s + BLOCKED_LOOP_GRACE_S) and not self._forced:
                self._exit_hard("a callback blocks the event loop")

        threading.Thread(target=watch, daemon=True).start()

    def _watch_closing(self) -> None:
        if not self._is_closed.wait(CLOSING_GRACE_S):
            self._exit_hard("closing hangs")

    def _exit_hard(self, why: str) -> None:
        logger.error("%s at the deadline: leases are handed back and the process ends", why)
        scheduler = scheduler_of(self.crawler)
        if scheduler is not None:
            abandon = threading.Thread(target=scheduler.abandon, daemon=True)
            abandon.start()
            abandon.join(1.0)
        logging.shutdown()
        os._exit(outcome.DRAINED)

    def _closed(self) -> None:
        self._is_closed.set()
        for number, handler in self._originals.items():
            if not self._stopping and signal.getsignal(number) == self._on_signal:
                signal.signal(number, handler)


def _event_loop() -> asyncio.AbstractEventLoop:
    """The loop the crawler will run in; ``CrawlerProcess`` builds it before that loop turns."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        from twisted.internet import reactor

        loop: asyncio.AbstractEventLoop = reactor._asyncioEventloop
        return loop


class _Forgiving(set[Any]):
    """A set for requests whose end no longer matters: they may still try to leave it."""

    def remove(self, element: Any) -> None:
        self.discard(element)
