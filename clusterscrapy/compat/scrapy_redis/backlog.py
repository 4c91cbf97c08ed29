"""Reads the queue that scrapy-redis left behind, for ``scrapy frontier import-scrapy-redis``.

The queue is only read: an import can be repeated, and old workers can go on after it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

import redis
from scrapy.utils.request import request_from_dict

from clusterscrapy.compat.scrapy_redis.connection import client_of, key_of_spider
from clusterscrapy.exceptions import ConfigError, FrontierUnavailable
from clusterscrapy.frontier import key_of
from clusterscrapy.seeds import buried

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.settings import BaseSettings

    from clusterscrapy.frontier.protocol import Op
    from clusterscrapy.seeds import Sower

QUEUE_KEY = "%(spider)s:requests"
_PICKLES = frozenset({"scrapy_redis.picklecompat", "pickle", "cPickle"})
_AT_A_TIME = 500
_SHOWN = 80


class Backlog:
    """The waiting requests of one spider in scrapy-redis' queue.

    Args:
        settings: of the project; they say where the queue is, and how it is serialized.
        spider: whose queue.
        unpickle: allow entries to be unpickled, which runs what whoever could write to that Redis
            has put there.

    Raises:
        ConfigError: the entries are pickled and that is not allowed, or there is no such serializer.
    """

    def __init__(self, settings: BaseSettings, spider: Spider, *, unpickle: bool) -> None:
        self.spider = spider
        self.key = key_of_spider(settings, "SCHEDULER_QUEUE_KEY", QUEUE_KEY, spider)
        self._serializer = _serializer(settings, unpickle=unpickle)
        self._client = client_of(settings)
        self._seen: Counter[bytes] = Counter()

    def __len__(self) -> int:
        """How many entries wait.

        Raises:
            ConfigError: the key holds something else.
            FrontierUnavailable: that Redis does not answer.
        """
        with _said(self.key):
            return int(
                self._client.zcard(self.key) if self._sorted() else self._client.llen(self.key)
            )

    def ops(self, sower: Sower) -> Iterator[Op]:
        """What is to be queued, or kept as a dead letter, in the order in which it would have been taken."""
        for entry in self._entries():
            yield self._op(entry, sower)

    def delete(self) -> None:
        """Delete the queue."""
        with _said(self.key):
            self._client.delete(self.key)

    def _sorted(self) -> bool:
        kind = self._client.type(self.key)
        if kind not in (b"zset", b"list", b"none"):
            raise ConfigError(
                f"{self.key!r} holds a {kind.decode()}, not a queue of scrapy-redis; "
                "correct SCHEDULER_QUEUE_KEY"
            )
        return bool(kind == b"zset")

    def _entries(self) -> Iterator[bytes]:
        total = len(self)
        for start in range(0, total, _AT_A_TIME):
            end = min(start + _AT_A_TIME, total) - 1
            with _said(self.key):
                if self._sorted():
                    yield from self._client.zrange(self.key, start, end)
                else:  # its lists grow at the head: the oldest is the last
                    yield from reversed(self._client.lrange(self.key, -1 - end, -1 - start))

    def _op(self, entry: bytes, sower: Sower) -> Op:
        try:
            request = request_from_dict(self._serializer.loads(entry), spider=self.spider)
            if sower.keys.filtered(request):
                return sower.push_of(request)
            # Known by its entry, so that an import may be repeated; equal ones are counted.
            number, self._seen[entry] = self._seen[entry], self._seen[entry] + 1
            return sower.push_of(request, key_of(b"scrapy-redis %d " % number + entry))
        except Exception as exc:  # noqa: BLE001 - an entry may hold anything
            return buried(repr(entry[:_SHOWN]).encode(), f"{type(exc).__name__}: {exc}")


@contextmanager
def _said(key: str) -> Iterator[None]:
    """Errors of the client as ours."""
    try:
        yield
    except (redis.RedisError, OSError) as exc:
        raise FrontierUnavailable(
            f"{key!r} of scrapy-redis cannot be read ({exc}); is the Redis of REDIS_URL or REDIS_HOST up?"
        ) from exc


def _serializer(settings: BaseSettings, *, unpickle: bool) -> Any:
    serializer = settings.get("SCHEDULER_SERIALIZER") or "scrapy_redis.picklecompat"
    if isinstance(serializer, str):
        name = serializer
        try:
            serializer = import_module(name)
        except ImportError as exc:
            raise ConfigError(
                f"SCHEDULER_SERIALIZER={name} cannot be imported ({exc}); name a module with loads()"
            ) from exc
    else:
        name = getattr(serializer, "__name__", type(serializer).__qualname__)
    if name in _PICKLES and not unpickle:
        raise ConfigError(
            "the entries of scrapy-redis are pickled, and unpickling runs whatever code whoever could write "
            "to that Redis has put there; if you trust it, say --unpickle"
        )
    if not callable(getattr(serializer, "loads", None)):
        raise ConfigError(f"SCHEDULER_SERIALIZER={name} has no loads(); name a module that has")
    return serializer
