"""From the settings of scrapy-redis and its forks to those of clusterscrapy.

What can be kept is mapped, what contradicts a promise of ours is refused with a sentence, and each
setting that has no effect any more is named once. Values land below an add-on's priority, so any
``CLUSTER_`` setting of the user's own wins.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from clusterscrapy.exceptions import ConfigError
from clusterscrapy.setting import TRANSLATED, Given, Rule, source_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy.settings import BaseSettings

_OURS = {
    "SCHEDULER": "clusterscrapy.scheduler.Scheduler",
    "STATS_CLASS": "scrapy.statscollectors.MemoryStatsCollector",
}
"""Classes of scrapy-redis that are replaced, by the setting that names them."""

_ORDERS = {
    "FifoQueue": "fifo",
    "SpiderQueue": "fifo",
    "LifoQueue": "lifo",
    "SpiderStack": "lifo",
    "PriorityQueue": "fifo",
    "SpiderPriorityQueue": "fifo",
}
_IMPORT = "only 'scrapy frontier import-scrapy-redis' reads it"
_IDLE = "the key is looked at several times a second, without blocking"
_IGNORED = {
    "SCHEDULER_PERSIST": "an unfinished crawl is always kept and goes on, a finished one begins anew "
    "(CLUSTER_KEEP, CLUSTER_RESUME)",
    "SCHEDULER_FLUSH_ON_START": "it would wipe the crawl under the other workers; start afresh with "
    "-s CLUSTER_RESUME=0 or 'scrapy frontier drop'",
    "SCHEDULER_IDLE_BEFORE_CLOSE": "nothing blocks while the queue is empty (CLUSTER_IDLE)",
    "SCHEDULER_QUEUE_KEY": f"crawls have keys of their own; {_IMPORT}",
    "SCHEDULER_DUPEFILTER_KEY": "crawls have keys of their own; only CLUSTER_SCRAPY_REDIS_SEEN reads it",
    "SCHEDULER_SERIALIZER": f"requests are stored as plain data, never pickled; {_IMPORT}",
    "STATS_KEY": "stats stay in their worker; 'scrapy frontier status' counts the whole crawl",
    "REDIS_START_URLS_BATCH_SIZE": "seeds are taken as there is room for them",
    "REDIS_KEY_CHECK_INTERVAL": _IDLE,
    "REDIS_IDLE_BACKOFF_ENABLED": _IDLE,
    "REDIS_IDLE_BACKOFF_MIN": _IDLE,
    "REDIS_IDLE_BACKOFF_MAX": _IDLE,
    "REDIS_IDLE_BACKOFF_FACTOR": _IDLE,
    "REDIS_MAX_CONNECTIONS": "a worker needs three connections",
    "BLOOMFILTER_HASH_NUMBER": "it follows from CLUSTER_DUPEFILTER_ERROR_RATE",
}
"""Settings without effect, and why."""

_ELSEWHERE = (
    "REDIS_SENTINELS",
    "REDIS_SENTINEL_PARAMS",
    "REDIS_STARTUP_NODES",
    "REDIS_MASTER_NODES",
    "REDIS_CLUSTER_PARAMS",
)
"""How forks name a Sentinel or a Cluster."""
_OWN = (
    *_IGNORED,
    *_ELSEWHERE,
    "SCHEDULER_QUEUE_CLASS",
    "REDIS_START_URLS_KEY",
    "REDIS_START_URLS_AS_SET",
    "REDIS_START_URLS_AS_ZSET",
    "REDIS_ITEMS_KEY",
    "MAX_IDLE_TIME_BEFORE_CLOSE",
    "BLOOMFILTER_BIT",
    "BLOOMFILTER_ERRORRATE",
    "BLOOMFILTER_CAPACITY",
)
"""Settings that nobody but scrapy-redis and its forks has. ``REDIS_URL`` is not one of them."""

_CONNECTION = {
    "REDIS_URL": "url",
    "REDIS_HOST": "host",
    "REDIS_PORT": "port",
    "REDIS_DB": "db",
}
_FEWEST_BITS = 17
_BITS_A_URL = 30
"""A layer of ours takes 29 bits a URL at an error rate of 1e-6."""


def translate(settings: BaseSettings) -> list[str]:
    """Map what a scrapy-redis project sets; nothing happens in any other project.

    Returns:
        A sentence for each thing that a person should know, to be logged by whoever starts a spider.

    Raises:
        ConfigError: a setting that cannot be kept and must not be ignored.
    """
    if not _in_use(settings):
        return []
    notes = [*_queue(settings), *_filter(settings)]
    _frontier(settings)
    for name, why in _IGNORED.items():
        if _is_set(settings, name):
            notes.append(f"{name} has no effect with clusterscrapy: {why}")
    return notes


def replace_classes(settings: BaseSettings) -> list[str]:
    """Put ours where a setting names a class of scrapy-redis or a fork; a sentence for each."""
    notes = []
    for name, ours in _OURS.items():
        theirs = settings[name]
        if names_scrapy_redis(theirs):
            settings.set(name, ours, settings.getpriority(name) or 0)
            notes.append(f"{name}={_path(theirs)} is replaced by {ours}")
    return notes


def names_scrapy_redis(value: object) -> bool:
    """True for a class, or the import path of one, of scrapy-redis or a fork (``scrapy_redis_…``)."""
    path = value if isinstance(value, str) else getattr(value, "__module__", "")
    return path.partition(".")[0].startswith("scrapy_redis")


def _in_use(settings: BaseSettings) -> bool:
    pipelines = settings.get("ITEM_PIPELINES")
    return (
        any(names_scrapy_redis(settings[name]) for name in (*_OURS, "DUPEFILTER_CLASS"))
        or (hasattr(pipelines, "keys") and any(map(names_scrapy_redis, pipelines)))
        or any(_is_set(settings, name) for name in _OWN)
    )


def _is_set(settings: BaseSettings, name: str) -> bool:
    return settings.get(name) is not None


def _put(settings: BaseSettings, name: str, value: object) -> None:
    settings.set(name, value, TRANSLATED)


def _ours_is_free(settings: BaseSettings, name: str) -> bool:
    """True while nobody but this module has set one of our settings."""
    return not os.environ.get(name) and (
        settings.get(name) is None or settings.getpriority(name) == TRANSLATED
    )


def _path(value: Any) -> str:
    return value if isinstance(value, str) else f"{value.__module__}.{value.__qualname__}"


def _queue(settings: BaseSettings) -> Iterator[str]:
    queue = settings.get("SCHEDULER_QUEUE_CLASS")
    if queue is None:
        return
    order = _ORDERS.get(_path(queue).rpartition(".")[2]) if names_scrapy_redis(queue) else None
    if order is None:
        yield (
            f"SCHEDULER_QUEUE_CLASS={_path(queue)} has no effect with clusterscrapy: higher priorities "
            "go first, equal ones by CLUSTER_QUEUE_ORDER"
        )
    else:
        _put(settings, "CLUSTER_QUEUE_ORDER", order)


# --- the filters of forks ----------------------------------------------------------------------


def _filter(settings: BaseSettings) -> Iterator[str]:
    if (bits := _number(settings, "BLOOMFILTER_BIT", int, at_least=1, below=64)) is not None:
        hashes = _number(settings, "BLOOMFILTER_HASH_NUMBER", int, at_least=1, below=1000) or 6
        if bits < _FEWEST_BITS:
            raise ConfigError(
                f"BLOOMFILTER_BIT={bits} with BLOOMFILTER_HASH_NUMBER={hashes} is a filter that is full "
                f"after about {_full_at(bits, hashes):,} URLs, and takes most after that for known ones; "
                "remove it, CLUSTER_DUPEFILTER_CAPACITY says how many URLs are expected"
            )
        capacity = 2**bits // _BITS_A_URL
        _put(settings, "CLUSTER_DUPEFILTER_CAPACITY", capacity)
        yield (
            f"BLOOMFILTER_BIT={bits} became CLUSTER_DUPEFILTER_CAPACITY={capacity}, which takes as much "
            "memory and grows when it is full"
        )
    for name, ours, kind, rule in (
        ("BLOOMFILTER_CAPACITY", "CLUSTER_DUPEFILTER_CAPACITY", int, {"at_least": 1}),
        (
            "BLOOMFILTER_ERRORRATE",
            "CLUSTER_DUPEFILTER_ERROR_RATE",
            float,
            {"above": 0, "below": 0.1},
        ),
    ):
        if (value := _number(settings, name, kind, **rule)) is not None:
            _put(settings, ours, value)


def _number(settings: BaseSettings, name: str, kind: Any, **rule: float) -> Any:
    if not _is_set(settings, name):
        return None
    source = source_of(settings.getpriority(name) or 0)
    return Given(name, settings[name], source).read(kind, Rule(**rule))  # type: ignore[arg-type]


def _full_at(bits: int, hashes: int, error_rate: float = 0.01) -> int:
    """URLs after which a filter of ``2**bits`` bits is wrong at this rate: n = -m/k ln(1 - p^(1/k))."""
    return math.ceil(-math.ldexp(1, bits) / hashes * math.log(1 - error_rate ** (1 / hashes)))


# --- where Redis is ---------------------------------------------------------------------------


def _frontier(settings: BaseSettings) -> None:
    if not _ours_is_free(settings, "CLUSTER_FRONTIER_URL"):
        return
    for name in _ELSEWHERE:
        if _is_set(settings, name):
            raise ConfigError(
                f"{name} names servers in a way that the frontier does not know yet; give the address of "
                "the primary as CLUSTER_FRONTIER_URL=redis://HOST:PORT/DB"
            )
    _put(settings, "CLUSTER_FRONTIER_URL", url_of(settings))


def url_of(settings: BaseSettings) -> str:
    """The Redis that scrapy-redis would use, as a ``redis://`` URL.

    Raises:
        ConfigError: it is reached by a client class or a socket that a URL cannot say.
    """
    params = _params(settings)
    url = str(params.get("url") or "")
    parts = urlsplit(url)
    if params.get("redis_cls") or params.get("unix_socket_path") or parts.scheme == "unix":
        raise ConfigError(
            "REDIS_PARAMS or REDIS_URL reaches Redis by a client class or a socket file, which the "
            "frontier does not know; give CLUSTER_FRONTIER_URL=redis://HOST:PORT/DB"
        )
    user, password = params.get("username"), params.get("password")
    if parts.username or parts.password:
        user, password = (unquote(text or "") for text in (parts.username, parts.password))
    login = quote(str(user or ""), safe="")
    if password:
        login += f":{quote(str(password), safe='')}"
    scheme = parts.scheme or ("rediss" if params.get("ssl") else "redis")
    place = parts.netloc.rpartition("@")[2] or _place(params)
    database = parts.path.strip("/") or params.get("db") or 0
    query = f"?{parts.query}" if parts.query else ""
    return f"{scheme}://{login}{'@' if login else ''}{place}/{database}{query}"


def _params(settings: BaseSettings) -> dict[str, Any]:
    try:
        params = dict(settings.getdict("REDIS_PARAMS"))
    except ValueError as exc:
        raise ConfigError(f"REDIS_PARAMS cannot be read ({exc}); give a dict") from exc
    # scrapy-redis, too, takes only what is true.
    return params | {key: settings[name] for name, key in _CONNECTION.items() if settings.get(name)}


def _place(params: dict[str, Any]) -> str:
    host = str(params.get("host") or "localhost")
    return f"{f'[{host}]' if ':' in host else host}:{params.get('port') or 6379}"
