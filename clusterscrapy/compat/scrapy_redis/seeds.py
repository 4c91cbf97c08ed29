"""Reads the seed keys of ``RedisSpider`` and ``RedisCrawlSpider`` all the time, and loses none.

scrapy-redis pops a batch when its spider is idle, on the event loop, and what it has popped dies with
the worker. Here a thread takes seeds whenever the frontier has room, and they stay in Redis, in
the hand of their reader, until the requests made of them are stored (``seeds.lua``).
"""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import redis
from scrapy import Request, signals
from scrapy.exceptions import DontCloseSpider, NotConfigured

from clusterscrapy.compat.scrapy_redis.connection import client_of
from clusterscrapy.escapes import caught
from clusterscrapy.scheduler import Scheduler, scheduler_of, uses_frontier
from clusterscrapy.seeds import buried
from clusterscrapy.setting import TRANSLATED

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings
    from typing_extensions import Self

    from clusterscrapy.frontier.courier import Courier

logger = logging.getLogger(__name__)

_SCRIPT = (Path(__file__).parent / "seeds.lua").read_text("utf-8")
_LEASE_S = 15
_BEAT_S = 4.0
"""Three beats fit into a lease."""
_AT_MOST = 500
_NAP_S = 0.05
_LOOK_FIRST_S, _LOOK_LAST_S = 0.1, 0.5
_RETRY_S = 1.0
_UNKNOWN = 1
PUT_BACK = -1


class Taken(NamedTuple):
    """An answer of the script."""

    left: int
    """Seeds that wait in the key, and hands of others that are not empty."""
    seeds: list[Any]


class SeedKey:
    """The seed key of one reader; every method blocks, and may be repeated when it failed."""

    def __init__(self, client: Any, key: str) -> None:
        self.key = key
        self._call = client.register_script(_SCRIPT)
        # One slot of a Redis Cluster for all of them.
        self._prefix = f"{key if '{' in key else f'{{{key}}}'}:clusterscrapy"
        self._reader, self._number = uuid4().hex[:12], 0
        self._stored = ""

    @property
    def unconfirmed(self) -> bool:
        """True while Redis does not know yet that seeds are safe."""
        return bool(self._stored)

    def stored(self) -> None:
        """The seeds in hand are safe: the next call drops them, and takes into another hand."""
        self._stored, self._number = self._hand, self._number + 1

    def take(self, wanted: int) -> Taken:
        """Up to ``wanted`` seeds; the same ones again until :meth:`stored` is called.

        0 only tells that this reader lives, :data:`PUT_BACK` returns what is in hand to the key.
        """
        left, seeds = self._call(
            [self.key, f"{self._prefix}:hands"], [self._hand, self._stored, wanted, _LEASE_S]
        )
        self._stored = ""
        return Taken(left, seeds)

    @property
    def _hand(self) -> str:
        return f"{self._prefix}:{self._reader}:{self._number}"


class SeedReader:
    """Extension: feeds a scrapy-redis spider while there is room for more."""

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Take over from a spider of scrapy-redis; disabled for any other."""
        spider = crawler.spider
        mixin = _mixin()
        if mixin is None or not isinstance(spider, mixin) or not uses_frontier(crawler.settings):
            raise NotConfigured
        if own := _reads_itself(spider, mixin):
            logger.warning(
                "Spider %r has its own %s, so it reads its seeds itself, when it is idle: those of a worker "
                "that is killed meanwhile are lost; override make_request_from_data() instead",
                spider.name,
                own,
            )
            raise NotConfigured
        _silence(crawler, spider, mixin)
        _waits_for_seeds(crawler.settings, spider)
        return cls(crawler, spider)

    def __init__(self, crawler: Crawler, spider: Any) -> None:
        self.crawler = crawler
        self.spider = spider
        self.key = SeedKey(client_of(crawler.settings), spider.redis_key)
        self.left = _UNKNOWN
        self._as_text = _decodes(crawler.settings)
        self._away = ""
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        crawler.signals.connect(self._opened, signals.spider_opened)
        crawler.signals.connect(self._idle, signals.spider_idle)
        crawler.signals.connect(self._closed, signals.spider_closed)

    def _opened(self) -> None:
        scheduler = scheduler_of(self.crawler)
        if scheduler is not None and scheduler.courier is not None:
            self._task = asyncio.ensure_future(self._read(scheduler))

    def _idle(self) -> None:
        scheduler = scheduler_of(self.crawler)
        if self.left and scheduler is not None and scheduler.close_reason is None:
            raise DontCloseSpider

    async def _closed(self) -> None:
        self._stop.set()
        if self._task is not None:
            await self._task

    # --- reading --------------------------------------------------------------------------

    async def _read(self, scheduler: Scheduler) -> None:
        look_s, beaten = _LOOK_FIRST_S, 0.0
        clock = asyncio.get_running_loop().time
        while not self._stop.is_set():
            room = _room(scheduler)
            if not room and not self.key.unconfirmed and clock() - beaten < _BEAT_S:
                await self._wait(_NAP_S)
                continue
            taken, beaten = await self._ask(room), clock()
            if taken is None:
                await self._wait(_RETRY_S)
            elif not taken.seeds:
                look_s = min(look_s * 1.5, _LOOK_LAST_S)
                await self._wait(look_s if room else _NAP_S)
            else:
                look_s = _LOOK_FIRST_S
                await self._sow(scheduler, taken.seeds)
        await self._ask(0 if self.key.unconfirmed else PUT_BACK)

    async def _wait(self, seconds: float) -> None:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)

    async def _ask(self, wanted: int) -> Taken | None:
        try:
            taken = await asyncio.to_thread(self.key.take, wanted)
        except (redis.RedisError, OSError) as exc:
            self.left = _UNKNOWN
            self._say_away(_in_words(exc, self.key.key))
            return None
        self.left = taken.left
        if self._away:
            self._away = ""
            logger.info("Seed key %r can be read again", self.key.key)
        return taken

    def _say_away(self, why: str) -> None:
        if why != self._away:
            self._away = why
            logger.warning("%s; no seed is lost, it is tried again every second", why)

    # --- from seeds to requests --------------------------------------------------------------

    async def _sow(self, scheduler: Scheduler, seeds: list[Any]) -> None:
        courier = scheduler.courier
        assert courier is not None
        for seed in seeds:
            if self._stop.is_set():
                return
            self._sow_one(courier, seed)
            await courier.room()
            await asyncio.sleep(0)  # the engine has other things to do
        stored = asyncio.ensure_future(courier.stored())
        while not stored.done():
            await asyncio.wait({stored}, timeout=_BEAT_S)
            if not stored.done():
                await self._ask(0)
        if stored.result():
            self.key.stored()

    def _sow_one(self, courier: Courier, seed: Any) -> None:
        self.crawler.stats.inc_value("clusterscrapy/seeds/read")
        try:
            requests = self._requests(seed)
        except Exception as exc:  # noqa: BLE001 - whatever a spider raises is a reason
            self._bury(courier, seed, type(exc).__name__, str(exc))
            return
        if not requests:
            self._bury(courier, seed, "no request", "make_request_from_data() made none of it")
        for request in requests:
            self.crawler.engine.crawl(request)

    def _bury(self, courier: Courier, seed: Any, reason: str, why: str) -> None:
        for stat in ("bad", f"bad/{reason}"):
            self.crawler.stats.inc_value(f"clusterscrapy/seeds/{stat}")
        logger.error("Seed %.200r of %r makes no request (%s: %s)", seed, self.key.key, reason, why)
        courier.tell(buried(_bytes(seed), f"{reason}: {why}"))

    def _requests(self, seed: Any) -> list[Request]:
        data = seed.decode(self.spider.redis_encoding) if self._as_text else seed
        with caught(self.crawler.engine):
            made = self.spider.make_request_from_data(data)
            requests = [made] if isinstance(made, Request) else list(made or ())
        for request in requests:
            if not isinstance(request, Request):
                raise TypeError(
                    f"make_request_from_data() returned {request!r:.100}, not a Request"
                )
        return requests


def _room(scheduler: Scheduler) -> int:
    """How many seeds the frontier should get now: it holds enough for every worker to go on, not all."""
    courier = scheduler.courier
    if courier is None or not courier.taking or courier.away_s or courier.full:
        return 0
    reply = courier.reply
    if reply.paused or reply.limit:
        return 0
    return max(0, min(_AT_MOST, 2 * courier.limits.prefetch - reply.waiting))


def _bytes(seed: Any) -> bytes:
    return seed if isinstance(seed, bytes) else str(seed).encode("utf-8", "replace")


def _in_words(exc: Exception, key: str) -> str:
    text = str(exc)
    if text.startswith("NOSEEDS"):
        kind = text.partition(" ")[2]
        return (
            f"Seed key {key!r} holds a {kind}; delete it, or name a list, a set or a sorted set in "
            "redis_key or REDIS_START_URLS_KEY"
        )
    return f"Seed key {key!r} cannot be read ({text:.200}); is the Redis of REDIS_URL or REDIS_HOST up?"


# --- taking over from scrapy-redis ---------------------------------------------------------------


def _mixin() -> Any:
    """Its mixin, without importing a package that nobody uses."""
    module = sys.modules.get("scrapy_redis.spiders")
    return getattr(module, "RedisMixin", None)


def _reads_itself(spider: Any, mixin: Any) -> str:
    """What of the spider's own reads its seeds in a way that we do not know; "" when it is theirs."""
    for name in ("next_requests", "pop_list_queue", "pop_priority_queue"):
        if getattr(type(spider), name, None) is not getattr(mixin, name, None):
            return f"{name}()"
    if not isinstance(spider.redis_key, str):
        return "list of keys"
    known = [spider.pop_list_queue, spider.pop_priority_queue, getattr(spider.server, "spop", None)]
    return "" if getattr(spider, "fetch_data", None) in known else "fetch_data()"


def _silence(crawler: Crawler, spider: Any, mixin: Any) -> None:
    """Stop the spider's own reading, and its closing by a clock that began at its import."""
    spider.next_requests = lambda: iter(())
    theirs = ("spider_idle", "schedule_next_requests")
    if all(getattr(type(spider), name) is getattr(mixin, name) for name in theirs):
        crawler.signals.disconnect(spider.spider_idle, signals.spider_idle)
    spider.logger.logger.addFilter(_once_that_text_is_old())


def _once_that_text_is_old() -> Any:
    told = False

    def passes(record: logging.LogRecord) -> bool:
        nonlocal told
        if "String request is deprecated" not in str(record.msg):
            return True
        told, before = True, told
        return not before

    return passes


def _waits_for_seeds(settings: BaseSettings, spider: Spider) -> None:
    """As in scrapy-redis a spider that lives on seeds waits for them, and may be started again at once."""
    settings.set("CLUSTER_IDLE", "wait", TRANSLATED)
    settings.set("CLUSTER_MAX_IDLE_SECONDS", spider.max_idle_time or 0, TRANSLATED)  # type: ignore[attr-defined]
    settings.set("CLUSTER_FINISHED_HOLD_SECONDS", 0, TRANSLATED)


def _decodes(settings: BaseSettings) -> bool:
    params = settings.getdict("REDIS_PARAMS")
    return bool(settings.get("REDIS_DECODE_RESPONSES") or params.get("decode_responses"))
