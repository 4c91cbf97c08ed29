"""What scrapy-redis has fetched already is not fetched again (``CLUSTER_SCRAPY_REDIS_SEEN``).

Its set is a read-only layer in front of any frontier: a filtered request whose scrapy-redis
fingerprint is in there counts as known. New pages go into the frontier's own filter only.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import redis
from w3lib.url import canonicalize_url

from clusterscrapy.compat.scrapy_redis.connection import client_of, key_of_spider
from clusterscrapy.exceptions import FrontierUnavailable
from clusterscrapy.frontier.codec import page_of
from clusterscrapy.frontier.protocol import Batch, Frontier, Push, Reply, Session, Terms
from clusterscrapy.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapy.crawler import Crawler
    from typing_extensions import Self

DUPEFILTER_KEY = "%(spider)s:dupefilter"


class SchedulerAfterScrapyRedis(Scheduler):
    """The scheduler of a crawl that goes on where scrapy-redis has stopped."""

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build from settings, with the set of scrapy-redis in front of the frontier."""
        scheduler = super().from_crawler(crawler)
        assert crawler.spider is not None
        settings = crawler.settings
        key = key_of_spider(settings, "SCHEDULER_DUPEFILTER_KEY", DUPEFILTER_KEY, crawler.spider)
        scheduler.frontier = _FrontierBehind(scheduler.frontier, SeenSet(client_of(settings), key))
        return scheduler


class SeenSet:
    """A set of fingerprints as ``scrapy_redis.dupefilter.RFPDupeFilter`` (0.8 and later) keeps it."""

    def __init__(self, client: Any, key: str) -> None:
        self.key = key
        self._client = client

    def knows(self, payloads: Sequence[bytes]) -> list[bool]:
        """For each request: whether scrapy-redis has seen it.

        Raises:
            FrontierUnavailable: that Redis does not answer.
        """
        if not payloads:
            return []
        fingerprints = [fingerprint(*page_of(payload)) for payload in payloads]
        try:
            return [bool(known) for known in self._client.smismember(self.key, fingerprints)]
        except (redis.RedisError, OSError) as exc:
            raise FrontierUnavailable(
                f"The seen set {self.key!r} of scrapy-redis cannot be read ({exc})"
            ) from exc


def fingerprint(method: str, url: str, body: bytes) -> str:
    """What scrapy-redis 0.8 and later knows a request by: SHA-1 of sorted JSON, unlike Scrapy's own."""
    fields = {"method": method, "url": canonicalize_url(url), "body": body.hex()}
    return hashlib.sha1(json.dumps(fields, sort_keys=True).encode()).hexdigest()  # noqa: S324 - theirs


class _FrontierBehind:
    """A frontier whose sessions ask the set first; all else is the frontier's own."""

    def __init__(self, frontier: Frontier, seen: SeenSet) -> None:
        self._frontier, self._seen = frontier, seen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._frontier, name)

    def join(self, terms: Terms) -> Session:
        return _SessionBehind(self._frontier.join(terms), self._seen)


class _SessionBehind:
    def __init__(self, session: Session, seen: SeenSet) -> None:
        self._session, self._seen = session, seen
        self._given: Batch | None = None
        self._passed = Batch()
        self._known: list[bool] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def sync(self, batch: Batch) -> Reply:
        if batch is not self._given:  # else it is sent again, and must be what it was
            self._sift(batch)
        reply = self._session.sync(self._passed)
        answers = iter(reply.queued)
        queued = [not known and next(answers) for known in self._known]
        return replace(reply, queued=queued)

    def _sift(self, batch: Batch) -> None:
        """Take out what the set knows."""
        asked = [op for op in batch.ops if type(op) is Push and op.filtered]
        known = {
            op.key
            for op, there in zip(asked, self._seen.knows([op.payload for op in asked]), strict=True)
            if there
        }
        pushes = [op for op in batch.ops if type(op) is Push]
        self._known = [op.filtered and op.key in known for op in pushes]
        kept = [
            op for op in batch.ops if not (type(op) is Push and op.filtered and op.key in known)
        ]
        self._given, self._passed = batch, replace(batch, ops=kept)
