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
import sys
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from scrapy import signals
from scrapy.exceptions import NotConfigured

from clusterscrapy import outcome
from clusterscrapy.config import Config
from clusterscrapy.scheduler import frontier_gone, scheduler_of, uses_frontier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    from scrapy.crawler import Crawler
    from typing_extensions import Self

logger = logging.getLogger(__name__)

BLOCKED_LOOP_GRACE_S = 1.5
"""After the deadline: how long the loop may take to notice before a thread ends the process."""
CLOSING_GRACE_S = 2.5
"""After the deadline: how long closing may take, and then the threads that callbacks have left."""
_LOOK_EVERY_S = 0.1
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_asked_to_stop: WeakSet[Crawler] = WeakSet()


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
        crawler.signals.connect(lifecycle._give_signals_back, signals.spider_closed)
        crawler.signals.connect(lifecycle._set_deadline, frontier_gone)
        lifecycle.watch_signals()
        # Scrapy's Deferred-based process has no handlers yet when it builds its crawlers.
        crawler.signals.connect(lifecycle.watch_signals, signals.engine_started)
        return lifecycle

    def __init__(self, crawler: Crawler, *, stop_s: float) -> None:
        self.crawler = crawler
        self.stop_s = stop_s
        self._loop = _event_loop()
        self._originals: dict[int, Any] = {}
        self._stopping = self._forced = False

    # --- signals --------------------------------------------------------------------------

    def watch_signals(self) -> None:
        """Put our handler in front of Scrapy's."""
        if threading.current_thread() is not threading.main_thread():
            return
        # Scrapy's of before 2.15 has no such class, and must come as far as being refused.
        from scrapy.crawler import CrawlerProcessBase

        for number in _SIGNALS:
            handler = signal.getsignal(number)
            owner = getattr(handler, "__self__", None)
            if owner is not self and isinstance(owner, CrawlerProcessBase | Lifecycle):
                self._originals[number] = handler
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._stopping:
            self._stopping = True
            _asked_to_stop.add(self.crawler)
            # Asked to stop while it closes already, Scrapy would end the loop before it has closed.
            if not self._closing_already():
                self._originals[number](number, frame)
            # Scrapy has just installed its own handler for the second signal; ours closes properly.
            for other in self._originals:
                signal.signal(other, self._on_signal)
            self._watch(self.stop_s)
            self._on_loop(self._begin_stop)
        else:
            original = self._originals[number]
            if isinstance(getattr(original, "__self__", None), Lifecycle):
                original(number, frame)  # another crawler of this process
            self._watch(0.0)
            self._on_loop(self._force, "a second signal")

    def _on_loop(self, call: Callable[..., None], *args: Any) -> None:
        with suppress(RuntimeError):  # closed: then everything has ended
            self._loop.call_soon_threadsafe(call, *args)

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
        if self._forced or self._is_closed():
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
        if not self._stopping:
            self._watch(0.0)

    def _watch(self, deadline_s: float) -> None:
        """Start a thread that ends the process when anything holds it beyond the deadline."""
        threading.Thread(target=self._end_in_time, args=(deadline_s,), daemon=True).start()

    def _end_in_time(self, deadline_s: float) -> None:
        # A loop that a callback blocks cannot force anything: this thread can.
        deadline_s += BLOCKED_LOOP_GRACE_S
        if not _wait_until(lambda: self._forced or self._is_closed(), deadline_s):
            self._exit_hard("a callback blocks the event loop")
        elif not _wait_until(self._is_closed, CLOSING_GRACE_S):
            self._exit_hard("closing hangs")
        elif self._originals and not _wait_until(self._has_loop_ended, CLOSING_GRACE_S):
            self._exit_hard("something that the spider started still runs")

    def _is_closed(self) -> bool:
        """True when the spider is closed, and all that listens to it."""
        engine = self.crawler._engine
        return engine is None or engine.spider is None or not self._loop.is_running()

    def _has_loop_ended(self) -> bool:
        """True when the loop has ended, or goes on for other crawlers of this process."""
        return not self._loop.is_running() or any(
            crawler._engine is not None and crawler._engine.spider is not None
            for crawler in self._process_crawlers()
        )

    def _process_crawlers(self) -> Sequence[Crawler]:
        owner: Any = self
        while isinstance(owner, Lifecycle):
            owner = next(iter(owner._originals.values())).__self__
        return tuple(owner.crawlers)

    def _exit_hard(self, why: str) -> None:
        logger.error("%s at the deadline: the process ends, and every lease goes back", why)
        scheduler = scheduler_of(self.crawler)
        if scheduler is not None:
            abandon = threading.Thread(target=scheduler.abandon, daemon=True)
            abandon.start()
            abandon.join(1.0)
        code = outcome.exit_code(self.crawler)
        _exit(outcome.DRAINED if code is None else code)

    def _give_signals_back(self) -> None:
        for number, handler in self._originals.items():
            if not self._stopping and signal.getsignal(number) == self._on_signal:
                signal.signal(number, handler)


@contextmanager
def stoppable() -> Iterator[None]:
    """While nothing is joined yet, a signal ends the process at once, as drained.

    The default of SIGTERM would be a death that looks like a crash, and for the first process of a
    container to ignore it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _leave) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is _leave:
                signal.signal(number, handler)


def _leave(number: int, frame: FrameType | None) -> None:
    os.write(2, b"clusterscrapy: stopped before the crawl was joined\n")
    os._exit(outcome.DRAINED)


def end_without_threads(crawler: Crawler, code: int) -> None:
    """End a process that was asked to stop with this exit code, even when threads are left in it.

    Python would wait for every thread that a callback has left behind.
    """

    def end() -> None:
        time.sleep(CLOSING_GRACE_S)
        logger.error("A thread that the spider started still runs: it is left behind")
        _exit(code)

    if crawler in _asked_to_stop:
        threading.Thread(target=end, daemon=True).start()


def _exit(code: int) -> None:
    logging.shutdown()
    sys.stderr.flush()
    os._exit(code)


def _wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_EVERY_S)
    return True


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
