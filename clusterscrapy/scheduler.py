"""Scrapy's scheduler on top of a frontier.

Scrapy has no "request finished" hook, so this one looks at the engine: a request is done once it
has left the engine's in-progress set, which is after its callback's output is exhausted and its
items have left the pipelines (docs/adr/0003). What the callback yielded was put into the
courier's ordered outbox before that, so the acknowledgement can never overtake a child.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from math import inf
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from scrapy import Request, signals
from scrapy.core.scheduler import BaseScheduler
from scrapy.exceptions import CloseSpider, DontCloseSpider, IgnoreRequest
from scrapy.http import Response
from scrapy.spidermiddlewares.httperror import HttpError
from scrapy.utils.defer import deferred_from_coro
from scrapy.utils.misc import load_object

from clusterscrapy import outcome
from clusterscrapy.config import Config
from clusterscrapy.dupefilter import RequestKeys
from clusterscrapy.escapes import catch_escapes
from clusterscrapy.exceptions import (
    ClusterScrapyError,
    CodecError,
    ConfigError,
    FrontierError,
    FrontierUnavailable,
)
from clusterscrapy.frontier import (
    Ack,
    Bury,
    CrawlEnded,
    CrawlGone,
    Delivery,
    Fail,
    Frontier,
    LeaseLost,
    Opening,
    Push,
    Release,
    Reply,
    StartDone,
    Status,
    StoreEmptied,
    Terms,
    WentBack,
    key_of,
)
from clusterscrapy.frontier.codec import RequestCodec, slot_of
from clusterscrapy.frontier.courier import Courier, Limits, Listener
from clusterscrapy.frontier.expiry import drop_abandoned
from clusterscrapy.frontier.protocol import SOLO_AFTER_DEATHS, Op, bounded
from clusterscrapy.identity import scheme_of
from clusterscrapy.terms import codec_of, frontier_of, limits_of, store_of, terms_of

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings
    from scrapy.statscollectors import StatsCollector
    from twisted.internet.defer import Deferred
    from twisted.python.failure import Failure
    from typing_extensions import Self

logger = logging.getLogger(__name__)

_DETAIL_MAX = 500
frontier_gone = object()
"""Signal: the crawl is not there any more, or the store refuses us; the spider is being closed."""
_of_crawler: WeakKeyDictionary[Crawler, Scheduler] = WeakKeyDictionary()


def uses_frontier(settings: BaseSettings) -> bool:
    """True when these settings choose :class:`Scheduler`."""
    scheduler = load_object(settings["SCHEDULER"])
    return isinstance(scheduler, type) and Scheduler in scheduler.__mro__


def scheduler_of(crawler: Crawler) -> Scheduler | None:
    """The crawler's clusterscrapy scheduler, or None when it uses another."""
    return _of_crawler.get(crawler)


class Scheduler(BaseScheduler, Listener):
    """Schedules through a shared, crash-safe frontier (``CLUSTER_FRONTIER_URL``).

    A request leaves the frontier only when its page is done: its output is exhausted, what it
    yielded is stored and its items have passed the pipelines. ``next_request`` never waits: it
    answers from a small buffer of leases that is refilled in the background.
    """

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build from settings.

        Raises:
            ConfigError: a setting is refused.
        """
        config = Config.from_settings(crawler.settings)
        store = store_of(config)
        scheduler = cls(
            crawler,
            frontier=frontier_of(store, config, crawler),
            terms=terms_of(config, scheme_of(crawler.request_fingerprinter), store.place),
            limits=limits_of(config, crawler.settings.getint("CONCURRENT_REQUESTS")),
            codec=codec_of(config, crawler),
            keys=RequestKeys(
                crawler.request_fingerprinter,
                kind=config.dupefilter,
                debug=crawler.settings.getbool("DUPEFILTER_DEBUG"),
            ),
            store_wait_s=config.store_wait_seconds,
            close_s=config.stop_seconds,
        )
        if config.abandoned_after:
            # A store of its own: it is used, and closed, in a thread.
            scheduler.tidy = lambda: drop_abandoned(
                store_of(config), config.abandoned_after, but=scheduler.frontier.name
            )
        if config.idle == "wait":
            scheduler.idle_s = config.max_idle_seconds or inf
        crawler.signals.connect(scheduler._spider_error, signals.spider_error)
        crawler.signals.connect(scheduler._item_error, signals.item_error)
        crawler.signals.connect(scheduler._spider_idle, signals.spider_idle)
        crawler.signals.connect(scheduler._item_scraped, signals.item_scraped)
        _of_crawler[crawler] = scheduler
        return scheduler

    def __init__(
        self,
        crawler: Crawler,
        *,
        frontier: Frontier,
        terms: Terms,
        limits: Limits,
        codec: RequestCodec,
        keys: RequestKeys,
        store_wait_s: float,
        close_s: float,
    ) -> None:
        self.crawler = crawler
        self.frontier = frontier
        self.terms = terms
        self.limits = limits
        self.codec = codec
        self.keys = keys
        self.store_wait_s = store_wait_s
        self.close_s = close_s
        self.tidy: Callable[[], Iterator[str]] | None = None
        """Drops what is abandoned in the store; a sentence for each crawl."""
        self.idle_s = 0.0
        """For how long the whole crawl may be over before this worker closes."""
        self._over_since: float | None = None
        self._ran_out = False
        self._paused = False
        self.opening: Opening | None = None
        self.courier: Courier | None = None
        self.joined_at = 0.0
        """When this worker was about to join; seconds since 1970 by this machine's clock."""
        self.close_reason: str | None = None
        """Set when the spider has to close for a reason of ours."""
        self._held: dict[Request, Delivery] = {}
        self._failed: dict[Request, tuple[str, str]] = {}
        self._next_start: tuple[Request | None, int] = (None, -1)
        self._solo = False
        self._runs_start = False
        self._reported: set[str] = set()
        self._retry_codes = frozenset(map(int, crawler.settings.getlist("RETRY_HTTP_CODES")))
        self._per_slot = crawler.settings.getint("CONCURRENT_REQUESTS_PER_DOMAIN")
        self.codec.transparent_errback = self._observe

    @property
    def stats(self) -> StatsCollector:
        """The crawler's stats."""
        return self.crawler.stats

    # --- life ---------------------------------------------------------------------------------

    def open(self, spider: Spider) -> Deferred[None]:
        """Join the crawl; the first line logged says what it resumes."""
        return deferred_from_coro(self._open())

    async def _open(self) -> None:
        _check_engine(self.crawler)
        if not _is_accompanied(self.crawler.settings):
            self._refuse(
                "configuration_refused",
                "SCHEDULER=clusterscrapy.scheduler.Scheduler alone is not enough; replace that line by "
                'ADDONS = {"clusterscrapy.Addon": 500}',
            )
            return
        catch_escapes(self.crawler.engine)
        self.joined_at = time.time()
        self.courier = Courier(self.frontier, self.terms, self.limits, self)
        try:
            self.opening = await self.courier.open(self.store_wait_s)
        except FrontierUnavailable as exc:
            self._refuse(
                "store_unavailable",
                f"{exc}; waited {self.store_wait_s:.0f} s (CLUSTER_STORE_WAIT_SECONDS). "
                "Start it, or correct CLUSTER_FRONTIER_URL",
            )
        except ClusterScrapyError as exc:
            self._refuse("configuration_refused", str(exc))
        else:
            self._greet(self.opening)
            if self.tidy is not None:
                threading.Thread(
                    target=self._tidy_up, name="clusterscrapy-tidy", daemon=True
                ).start()

    def _tidy_up(self) -> None:
        assert self.tidy is not None
        try:
            for sentence in self.tidy():
                logger.warning("%s", sentence)
        except FrontierError as exc:
            logger.debug("no look at abandoned crawls: %s", exc)

    def _refuse(self, reason: str, sentence: str) -> None:
        logger.critical("%s", sentence)
        outcome.say(self.crawler, sentence)
        self.close_reason = reason
        self.courier = None

    def _greet(self, opening: Opening) -> None:
        name = self.frontier.name
        for note in opening.notes:
            logger.warning("%s", note)
        if opening.late:
            again = (
                "give another CLUSTER_CRAWL_ID for another run"
                if self.terms.explicit
                else f"a new run begins {self.terms.hold_s:.0f} s after the end "
                "(CLUSTER_FINISHED_HOLD_SECONDS), or at once with -s CLUSTER_RESUME=0"
            )
            ago = f"Crawl {name} finished {opening.finished_ago_s:.0f} s ago"
            self._last_words(f"{ago}: nothing to do; {again}")
            self.close_reason = "finished"
            self.courier = None
        elif opening.fresh:
            logger.info("Beginning crawl %s in %s", name, self.terms.info.get("store", "the store"))
        elif opening.workers > 1:
            logger.info(
                "Joining crawl %s: %d waiting, %d leased by %d other worker(s), %d done, %d dead",
                name,
                opening.waiting,
                opening.leased,
                opening.workers - 1,
                opening.done,
                opening.dead,
            )
        else:
            logger.info(
                "Resuming crawl %s: %d waiting%s, %d done, %d dead; start afresh with "
                "-s CLUSTER_RESUME=0 or 'scrapy frontier drop %s'",
                name,
                opening.waiting,
                f", {opening.leased} leased by a worker that is gone" if opening.leased else "",
                opening.done,
                opening.dead,
                name,
            )

    def close(self, reason: str) -> Deferred[None]:
        """Flush, hand back what is left and leave the crawl."""
        return deferred_from_coro(self._close(reason))

    async def _close(self, reason: str) -> None:
        courier = self.courier
        if courier is None:
            outcome.record(self.crawler, reason, work_left=False)
            return
        self.collect()
        self.release_held()
        paused = courier.reply.paused
        clean = await courier.close(finished=reason == "finished", timeout_s=self.close_s)
        last = courier.reply
        if self.close_reason == "finished":
            work_left = False  # taken for dead, it found the crawl finished by the others
        elif reason == "finished":
            work_left = courier.final is None  # seeds may have come while it closed
        else:
            work_left = not (clean and last.over)
        if reason == "finished" and work_left and not self._ran_out:
            reason = "closed by the spider"  # CloseSpider("finished")
        outcome.record(self.crawler, reason, work_left=work_left)
        if work_left and reason not in ("configuration_refused", "store_emptied"):
            name = self.frontier.name
            then = f"; 'scrapy frontier resume {name}' first, it is paused" if paused else ""
            same = "the same command"
            if reason == self.close_reason and reason in _BOUNDS:
                same += f" with a higher {_BOUNDS[reason]}"
            self._last_words(f"Left crawl {name} unfinished ({reason}); {same} resumes it{then}")
        elif courier.final is not None:
            self._sum_up(courier.final)

    def _sum_up(self, status: Status) -> None:
        sentence = f"Finished crawl {status.crawl}: {status.done} done, {status.dead} dead"
        if status.dead:
            sentence += f"; 'scrapy frontier dead --crawl {status.crawl}' tells why"
        self._last_words(sentence)

    def _last_words(self, sentence: str) -> None:
        """Say it at the very end, or in the log where nobody else does."""
        outcome.say(self.crawler, sentence)
        settings = self.crawler.settings
        if settings["LOG_FILE"] or not outcome.is_told(self.crawler):
            logger.info("%s", sentence)

    def abandon(self) -> bool:
        """Leave from any thread, for a worker whose loop no longer turns. True when it had joined."""
        if self.courier is None or self.opening is None:
            return False
        self.courier.abandon()
        return True

    @property
    def held(self) -> int:
        """How many leased requests are in the engine."""
        return len(self._held)

    def stop_taking(self) -> None:
        """No new work from now on; what waits in the buffer goes back."""
        if self.courier is not None:
            self.courier.hand_back()

    def release_held(self) -> int:
        """Hand back the leases of requests that are still in the engine; returns how many."""
        assert self.courier is not None or not self._held
        for delivery in self._held.values():
            self.courier.tell(Release(delivery.key))  # type: ignore[union-attr]
        released = len(self._held)
        self._held.clear()
        return released

    def has_pending_requests(self) -> bool:
        """True until the crawl, not just this worker's part, is over."""
        if self.courier is None or self.close_reason is not None:
            return False
        self._ran_out = self.courier.over
        return not self._ran_out

    def _spider_idle(self) -> None:
        if self.close_reason is not None:
            raise CloseSpider(self.close_reason)
        if self.courier is not None and self.courier.reply.start == "failed":
            raise CloseSpider("start_error")
        if self._over_since is None:
            self._over_since = time.monotonic()
        if time.monotonic() - self._over_since < self.idle_s:
            raise DontCloseSpider

    # --- requests in -------------------------------------------------------------------------

    def mark_start(self, request: Request, ordinal: int) -> None:
        """The next :meth:`enqueue_request` of this request is number ``ordinal`` of ``start()``."""
        self._next_start = (request, ordinal)

    def enqueue_request(self, request: Request) -> bool:
        """Store a request; False when it is a duplicate or cannot be stored."""
        start, ordinal = self._next_start
        ordinal = ordinal if request is start else -1
        courier = self.courier
        if courier is None:
            return False
        filtered = self.keys.filtered(request)
        try:
            if ordinal >= 0 and not filtered and self.keys.kind != "none":
                key, filtered, ordinal = self.keys.start_key(request), True, -1
            else:
                key = self.keys.key(request)
            if filtered and courier.knows(key):
                self._count_filtered(request)
                return False
            payload = self.codec.encode(request)
        except CodecError as exc:
            self._unserializable(request, exc)
            return False
        courier.push(
            Push(key, payload, bounded(request.priority), filtered, -1 if filtered else ordinal)
        )
        self.stats.inc_value("scheduler/enqueued")
        return True

    def _count_filtered(self, request: Request) -> None:
        self.keys.log(request)
        self.stats.inc_value("dupefilter/filtered")

    def _unserializable(self, request: Request, exc: CodecError) -> None:
        self.stats.inc_value("clusterscrapy/unserializable")
        place = f"{exc.path} {exc.url}"
        if place not in self._reported:
            self._reported.add(place)
            logger.error("%s", exc)
        assert self.courier is not None
        payload = self.codec.note(request)
        key = key_of(payload)
        where, _, why = str(exc).partition(": ")
        detail = why if exc.url.startswith(where.rstrip("…")) else str(exc)
        self.courier.tell(Bury(key, payload, "unserializable", detail[:_DETAIL_MAX]))

    # --- requests out ----------------------------------------------------------------------------

    def next_request(self) -> Request | None:
        """The next request of the buffer, or None: the engine is woken when there is one."""
        courier = self.courier
        if courier is None or self._solo:
            return None
        while (index := self._pick(courier)) is not None:
            delivery = courier.next(index)
            if delivery is None:
                return None
            request = self._decode(delivery)
            if request is not None:
                self._held[request] = delivery
                self._solo = delivery.deaths >= SOLO_AFTER_DEATHS
                self.stats.inc_value("scheduler/dequeued")
                return request
        return None

    def _pick(self, courier: Courier) -> int | None:
        """Which lease of the buffer goes next: the first, or the first whose host has a free connection."""
        if not courier.buffer:
            courier.ask()
            return None
        if courier.buffer[0].deaths >= SOLO_AFTER_DEATHS:
            # It was there when workers died: it runs alone, so that the next death tells.
            return None if self._held else 0
        slots = self.crawler.engine.downloader.slots
        if len(slots) > 1:
            for index, delivery in enumerate(courier.buffer):
                if delivery.deaths < SOLO_AFTER_DEATHS:
                    slot = slots.get(slot_of(delivery.payload))
                    if slot is None or len(slot.active) < self._per_slot:
                        return index
        return 0

    def _decode(self, delivery: Delivery) -> Request | None:
        assert self.courier is not None
        try:
            request = self.codec.decode(delivery.payload)
        except CodecError as exc:
            self.stats.inc_value("clusterscrapy/undecodable")
            logger.error("%s; it is kept as a dead letter", exc)
            self.courier.tell(Fail(delivery.key, "undecodable", str(exc)[:_DETAIL_MAX]))
            return None
        if request.errback is None:
            request.errback = self._observe
        return request

    # --- what became of them ----------------------------------------------------------------------

    def collect(self) -> None:
        """Acknowledge, or give up, the requests that have left the engine."""
        if not self._held or self.courier is None:
            return
        engine = self.crawler.engine
        slot, scraper_slot = engine._slot, engine.scraper.slot
        in_progress = slot.inprogress if slot is not None else ()
        # A callback that downloads its own request again takes it out of the set above too early.
        in_callback = scraper_slot.active if scraper_slot is not None else ()
        finished = [
            request
            for request in self._held
            if request not in in_progress and request not in in_callback
        ]
        if finished and self.courier.buffer:
            # A request that has to run alone may have waited for these.
            self._wake()
        for request in finished:
            delivery = self._held.pop(request)
            self._solo = False
            failure = self._failed.pop(request, None)
            if failure is None:
                self.courier.tell(Ack(delivery.key))
            else:
                self.stats.inc_value(f"clusterscrapy/dead_letters/{failure[0]}")
                self.courier.tell(Fail(delivery.key, *failure))

    def _observe(self, failure: Failure) -> Failure:
        """Errback of requests that have none: notes a download that failed for good, and lets it pass."""
        request: Request = failure.request  # type: ignore[attr-defined]
        if isinstance(failure.value, HttpError):
            status = failure.value.response.status
            if status in self._retry_codes:
                self._fail(request, "http", f"answered {status}, also after retries")
        elif not isinstance(failure.value, IgnoreRequest):
            self._fail(request, "download", _in_words(failure))
        return failure

    def _spider_error(self, failure: Failure, response: Response | Failure) -> None:
        request = response.request  # type: ignore[union-attr]
        if request is not None:
            reason = "callback" if isinstance(response, Response) else "errback"
            self._fail(request, reason, _in_words(failure, self.crawler.spider))

    def _item_error(self, item: Any, response: Response | None, failure: Failure) -> None:
        if isinstance(response, Response) and response.request is not None:
            self._fail(response.request, "pipeline", _in_words(failure))

    def _item_scraped(self) -> None:
        if self.courier is not None:
            self.courier.items += 1

    def feed_failed(self, request: Request, detail: str) -> None:
        """An item of this request's page is in no feed: the page is not done."""
        self._fail(request, "feed", detail)

    def _fail(self, request: Request, reason: str, detail: str) -> None:
        if request not in self._held:
            # A middleware gave the response another request object: find the page by its key.
            key = self.keys.key(request)
            request = next((r for r, d in self._held.items() if d.key == key), request)
        if request in self._held:
            self._failed.setdefault(request, (reason, detail))

    # --- news from the courier -----------------------------------------------------------

    def answered(self, ops: list[Op], reply: Reply) -> None:
        """Count what the store filtered, and wake the engine when there is something to do."""
        if reply.queued:
            known = len(reply.queued) - sum(reply.queued)
            if known:
                self.stats.inc_value("dupefilter/filtered", known)
        if reply.late:
            self.stats.inc_value("clusterscrapy/late_acks", reply.late)
        if not reply.over:
            self._over_since = None
        if reply.paused != self._paused:
            self._paused = reply.paused
            self._say_paused()
        if reply.limit and not reply.over:
            self._close_at(reply.limit)
        assert self.courier is not None
        if self._runs_start and reply.start in ("done", "failed"):
            self._runs_start = False
        if reply.taken or self.courier.over:
            self._wake()

    def _close_at(self, limit: str) -> None:
        if self.close_reason is None:
            self.close_reason = f"max_{limit}"
            self._close_spider(self.close_reason)

    def _close_spider(self, reason: str) -> None:
        engine = self.crawler.engine
        # Not open yet, it is idle at once and closed by that.
        if engine.spider is not None and engine._slot is not None:
            deferred_from_coro(engine.close_spider_async(reason=reason))

    def _say_paused(self) -> None:
        name = self.frontier.name
        if self._paused:
            logger.warning("Crawl %s is paused; 'scrapy frontier resume %s' goes on", name, name)
        else:
            logger.info("Crawl %s goes on after a pause", name)

    def lost(self, why: LeaseLost) -> None:
        """What this worker still fetches belongs to others now."""
        if isinstance(why, WentBack):
            logger.error(
                "%s. What this worker had told it in the last %.0f s (CLUSTER_REPLAY_SECONDS) is told again, "
                "so some pages are fetched twice",
                why,
                self.limits.replay_s,
            )
            self.stats.inc_value("clusterscrapy/store_went_back")
        else:
            logger.warning(
                "This worker was silent for longer than its lease and was taken for dead: %d requests "
                "went to others; it goes on under a new name",
                len(self._held),
            )
        self.stats.inc_value("clusterscrapy/leases_lost", len(self._held))
        self._held.clear()
        self._failed.clear()
        self._solo = False
        if self.courier is not None and self._runs_start:
            # start() goes on here; nobody may wait for an owner that is no more.
            self.courier.claim_start = True

    def gone(self, error: ClusterScrapyError) -> None:
        """The crawl is not there any more, or the store refuses us: close the spider."""
        if isinstance(error, StoreEmptied):
            self.close_reason = "store_emptied"
            logger.error("%s", error)
        elif isinstance(error, CrawlEnded):
            self.close_reason = "finished"
            logger.info("%s", error)
        elif isinstance(error, CrawlGone):
            self.close_reason = "dropped"
            logger.warning("%s; closing", error)
        else:
            refused = isinstance(error, ConfigError)
            self.close_reason = "configuration_refused" if refused else "frontier_error"
            logger.error("%s; closing, what was leased returns to the crawl", error)
        self._held.clear()
        self._close_spider(self.close_reason)
        self.crawler.signals.send_catch_log(frontier_gone)

    def unreachable(self, error: FrontierUnavailable) -> None:
        """Say once that the store is away."""
        logger.warning("%s; this worker finishes what it holds and tries on", error)

    def reachable(self, away_s: float) -> None:
        """Say that the store is back."""
        logger.info("The frontier's store is back after %.1f s", away_s)

    def _wake(self) -> None:
        slot = self.crawler.engine._slot
        if slot is not None:
            slot.nextcall.schedule()

    # --- start() --------------------------------------------------------------------------

    async def claim_start(self) -> bool:
        """Wait until this worker may run ``start()`` (True) or somebody else has (False)."""
        courier = self.courier
        if courier is None:
            return False
        courier.claim_start = True
        courier.hurry()
        while self.close_reason is None:
            reply = await courier.news()
            if reply.start in ("mine", "done", "failed"):
                break
        courier.claim_start = False
        self._runs_start = courier.reply.start == "mine"
        self.keys.restart()
        return self._runs_start and self.close_reason is None

    def start_done(self, *, failed: bool) -> None:
        """``start()`` is exhausted and its items accepted, or it raised."""
        if self.courier is not None:
            self.courier.tell(StartDone(failed))

    async def room(self) -> None:
        """Wait for room in the outbox: a page that yields a million links runs in bounded memory."""
        if self.courier is not None:
            await self.courier.room()


_BOUNDS = {
    f"max_{limit}": f"CLUSTER_MAX_{limit.upper()}" for limit in ("pages", "items", "seconds")
}
"""Reasons to close that a bound of the whole crawl gives, and the setting."""


def _in_words(failure: Failure, spider: Spider | None = None) -> str:
    """The exception, and the line of the spider it came through."""
    text = f"{type(failure.value).__name__}: {failure.getErrorMessage()}"
    module = sys.modules.get(type(spider).__module__)
    lines = [frame[2] for frame in failure.frames if frame[1] == getattr(module, "__file__", None)]
    place = f" (line {lines[-1]} of {type(spider).__module__})" if lines else ""
    return text[: _DETAIL_MAX - len(place)] + place


def _is_accompanied(settings: BaseSettings) -> bool:
    """True when the add-on has put its spider middleware beside this scheduler."""
    middlewares = settings.getdict("SPIDER_MIDDLEWARES")
    return any(load_object(one).__module__ == "clusterscrapy.spidermw" for one in middlewares)


def _check_engine(crawler: Crawler) -> None:
    """Fail loudly, at once, where Scrapy's inside is not what this scheduler stands on."""
    slot: Any = crawler.engine._slot
    if not (hasattr(slot, "inprogress") and hasattr(slot, "nextcall")):
        import scrapy

        raise ConfigError(
            f"Scrapy {scrapy.__version__} keeps its requests in progress elsewhere; "
            "use a version that clusterscrapy supports (see the README)"
        )
