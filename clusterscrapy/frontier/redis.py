"""The shared frontier: one crawl in Redis, for workers on any number of machines.

Each state change is one Lua script (``lua/``, whose ``common.lua`` describes every key), so
nothing can come between "seen" and "queued" or between a page's children and its
acknowledgement. Time is the server's. A call whose answer was lost is repeated under the same
sequence number and answered from the first time.
"""

from __future__ import annotations

import re
import secrets
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from typing import Any, cast

import msgpack
import redis
from redis.exceptions import (
    AuthenticationError,
    ClusterDownError,
    MasterDownError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import (
    ConnectionError as RedisConnectionError,
)
from redis.exceptions import (
    TimeoutError as RedisTimeoutError,
)

from clusterscrapy.exceptions import ConfigError, FrontierError, FrontierUnavailable
from clusterscrapy.frontier.codec import url_of
from clusterscrapy.frontier.protocol import (
    DONE_WORDS,
    KEY_BYTES,
    Ack,
    Batch,
    Bury,
    CrawlGone,
    DeadLetter,
    Delivery,
    Fail,
    LeaseLost,
    Op,
    Opening,
    Push,
    Release,
    Reply,
    SchemeMismatch,
    Standing,
    StartDone,
    Status,
    StoreEmptied,
    Terms,
    WentBack,
    WorkerStatus,
    scheme_sentence,
    shown,
    stored_wins_sentence,
)

PREFIX = "clusterscrapy:"
CRAWLS = f"{PREFIX}crawls"
OLDEST_SERVER = (6, 2)
SOCKET_TIMEOUT_S = 5.0
_HEAD = struct.Struct(">BBq16s")
_RUN = struct.Struct(">I")
_SCAN_CHUNK = 1_000
# An outage, as opposed to a wrong address or a bug; a server that loads its file or lost its
# primary answers, but not yet.
_TRANSIENT = (ClusterDownError, MasterDownError, OutOfMemoryError, ReadOnlyError, TryAgainError)
# redis-py has no class for some, and servers before 7 put the error of a script into a longer one.
_TRANSIENT_WORDS = re.compile(
    r"\b(LOADING|READONLY|MASTERDOWN|CLUSTERDOWN|TRYAGAIN|BUSY|OOM|MISCONF|NOREPLICAS)\b"
)


@cache
def _source(name: str) -> str:
    folder = files("clusterscrapy.frontier") / "lua"
    common = (folder / "common.lua").read_text("utf-8")
    return common + (folder / f"{name}.lua").read_text("utf-8")


@contextmanager
def _translated(url: str) -> Iterator[None]:
    try:
        yield
    except (AuthenticationError, NoPermissionError) as exc:
        raise ConfigError(
            f"Redis at {shown(url)} refuses us ({exc}); correct user, password and rights in "
            "CLUSTER_FRONTIER_URL"
        ) from exc
    except (RedisConnectionError, RedisTimeoutError) as exc:
        raise FrontierUnavailable(f"Redis at {shown(url)} does not answer: {exc}") from exc
    except ResponseError as exc:
        if isinstance(exc, _TRANSIENT) or _TRANSIENT_WORDS.search(str(exc)):
            raise FrontierUnavailable(f"Redis at {shown(url)} cannot serve now: {exc}") from exc
        raise FrontierError(f"Redis at {shown(url)} answered: {exc}") from exc
    except RedisError as exc:
        raise FrontierUnavailable(f"Redis at {shown(url)} does not answer: {exc}") from exc


class RedisStore:
    """All crawls of one Redis database."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.place = shown(url)
        try:
            self.client = redis.Redis.from_url(
                url,
                socket_timeout=SOCKET_TIMEOUT_S,
                socket_connect_timeout=SOCKET_TIMEOUT_S,
                health_check_interval=0,
                # Calls are repeated by the courier, under the same sequence number.
                retry=None,
            )
            # Options are looked at when a connection is made.
            self.client.connection_pool.make_connection()
            if self.client.connection_pool.connection_kwargs.get("decode_responses"):
                raise ValueError("decode_responses cannot be used: payloads are bytes")
        except (ValueError, TypeError) as exc:
            raise ConfigError(
                f"CLUSTER_FRONTIER_URL={shown(url)} is not a Redis URL ({exc}); "
                "write redis://[user:password@]host:port/database"
            ) from exc
        self._checked = False

    def names(self) -> list[str]:
        """The crawls of this database, sorted."""
        with _translated(self.url):
            members = cast("set[bytes]", self.client.smembers(CRAWLS))
            return sorted(name.decode() for name in members)

    def frontier(self, name: str) -> RedisFrontier:
        """The crawl of that name."""
        return RedisFrontier(self, name)

    def call(self, script: str, key: str, *args: Any) -> Any:
        """Run a script of ``lua/`` on the crawl whose state key is given."""
        with _translated(self.url):
            digest = _digest(script)
            try:
                return self.client.evalsha(digest, 1, key, *args)
            except NoScriptError:
                return self.client.eval(_source(script), 1, key, *args)

    def check(self) -> None:
        """Refuse a server that cannot keep a crawl.

        Raises:
            ConfigError: it is too old, a replica, or evicts keys when memory is full.
        """
        if self._checked:
            return
        with _translated(self.url):
            info = self.client.info()
        version = tuple(int(part) for part in str(info["redis_version"]).split(".")[:2])
        if version < OLDEST_SERVER:
            raise ConfigError(
                f"Redis at {shown(self.url)} is version {info['redis_version']}; "
                f"clusterscrapy needs {OLDEST_SERVER[0]}.{OLDEST_SERVER[1]} or later"
            )
        policy = info.get("maxmemory_policy", "noeviction")
        if policy != "noeviction" and info.get("maxmemory", 0):
            raise ConfigError(
                f"Redis at {shown(self.url)} evicts keys when full (maxmemory-policy {policy}), which "
                "would lose whole queues without a word; set maxmemory-policy noeviction there, or "
                "use another Redis"
            )
        self._checked = True


@cache
def _digest(script: str) -> str:
    from hashlib import sha1

    return sha1(_source(script).encode(), usedforsecurity=False).hexdigest()


class RedisFrontier:
    """One crawl in a :class:`RedisStore`; its keys are described in ``lua/common.lua``."""

    goes_back = True

    def __init__(self, store: RedisStore, name: str) -> None:
        self.store = store
        self.name = name
        self.base = f"{PREFIX}{{{name}}}:"
        self.state_key = f"{self.base}state"

    def call(self, script: str, *args: Any) -> Any:
        """Run a script on this crawl."""
        return self.store.call(script, self.state_key, *args)

    def join(self, terms: Terms) -> RedisSession:
        """See :meth:`clusterscrapy.frontier.protocol.Frontier.join`."""
        self.store.check()
        epoch = secrets.token_hex(8)
        answer = self.call(
            "join",
            epoch,
            terms.worker,
            int(terms.resume),
            int(terms.explicit),
            int(terms.hold_s * 1000),
            int(terms.lease_s * 1000),
            terms.max_deliveries,
            terms.scheme.digest,
            terms.scheme.words,
            terms.filter.kind,
            terms.filter.capacity,
            repr(terms.filter.error_rate),
            terms.order,
        )
        opening = self._opening(terms, answer)
        with _translated(self.store.url):
            self.store.client.sadd(CRAWLS, self.name)
        return RedisSession(self, terms, epoch, opening)

    def _opening(self, terms: Terms, answer: list[Any]) -> Opening:
        status = answer[0].decode()
        run, waiting, leased, done, dead, workers, ago, touched = map(int, answer[1:9])
        kind, order, words = (text.decode() for text in answer[9:12])
        if status == "scheme":
            raise SchemeMismatch(scheme_sentence(words, terms.scheme.words))
        notes = [
            stored_wins_sentence(setting, mine, stored)
            for setting, mine, stored in (
                ("CLUSTER_DUPEFILTER", terms.filter.kind, kind),
                ("CLUSTER_QUEUE_ORDER", terms.order, order),
            )
            if mine != stored and status == "resumed"
        ]
        return Opening(
            run=run,
            fresh=status == "fresh",
            late=status == "late",
            touched=bool(touched),
            finished_ago_s=ago / 1000,
            waiting=waiting,
            leased=leased,
            done=done,
            dead=dead,
            workers=workers,
            notes=notes,
        )

    # --- people ---------------------------------------------------------------------

    def status(self) -> Status:
        """See :meth:`clusterscrapy.frontier.protocol.Frontier.status`."""
        with _translated(self.store.url):
            pipe = self.store.client.pipeline(transaction=True)
            pipe.hgetall(self.state_key)
            pipe.zrange(f"{self.base}workers", 0, -1, withscores=True)
            pipe.hgetall(f"{self.base}infos")
            pipe.time()
            raw, beats, infos, clock = pipe.execute()
        state = {name.decode(): value.decode() for name, value in raw.items()}
        now_ms = clock[0] * 1000 + clock[1] // 1000
        alive = [
            (e.decode(), b) for e, b in beats if now_ms - b < int(state.get("lease_ms", 15_000))
        ]
        workers = [self._worker(epoch, beat, infos) for epoch, beat in alive]
        start = state.get("start", "")
        return Status(
            crawl=self.name,
            state=_words(state, bool(workers)),
            waiting=int(state.get("waiting", 0)),
            leased=int(state.get("leased", 0)),
            done=int(state.get("done", 0)),
            dead=int(state.get("dead", 0)),
            seen=int(state.get("seen", 0)),
            late=int(state.get("late", 0)),
            run=int(state.get("run", 0)),
            start=start if start in ("", "done", "failed") else "theirs",
            dupefilter=state.get("filter", ""),
            started_at=int(state.get("started_at", 0)) / 1000,
            finished_at=int(state.get("finished_at", 0)) / 1000,
            workers=workers,
        )

    def _worker(self, epoch: str, beat_ms: float, infos: dict[bytes, bytes]) -> WorkerStatus:
        name, joined_ms = msgpack.unpackb(infos[epoch.encode()])
        with _translated(self.store.url):
            leased = self.store.client.hlen(f"{self.base}lease:{epoch}")
        return WorkerStatus(epoch, name, leased, joined_ms / 1000, beat_ms / 1000)

    def why(self, key: bytes, url: str) -> Standing:
        """See :meth:`clusterscrapy.frontier.protocol.Frontier.why`. Reads the whole queue."""
        with _translated(self.store.url):
            return (
                self._leased(key, url)
                or self._waiting(key, url)
                or self._dead(key, url)
                or self._seen(key)
            )

    def _leased(self, key: bytes, url: str) -> Standing | None:
        client = self.store.client
        for epoch in cast("list[bytes]", client.zrange(f"{self.base}workers", 0, -1)):
            for _, lease in client.hscan_iter(f"{self.base}lease:{epoch.decode()}"):
                if _is(lease[8:], key, url):
                    since = int.from_bytes(lease[:8], "big") / 1000
                    info = cast("bytes | None", client.hget(f"{self.base}infos", epoch))
                    name = msgpack.unpackb(info)[0] if info else epoch.decode()
                    clock = client.time()
                    return Standing("leased", f"by {name} for {clock[0] - since:.0f} s")
        return None

    def _waiting(self, key: bytes, url: str) -> Standing | None:
        client = self.store.client
        for priority in cast("list[bytes]", client.zrevrange(f"{self.base}priorities", 0, -1)):
            queue = f"{self.base}queue:{priority.decode()}"
            first = 0
            while entries := cast(
                "list[bytes]", client.lrange(queue, first, first + _SCAN_CHUNK - 1)
            ):
                if any(_is(entry, key, url) for entry in entries):
                    return Standing("waiting", f"priority {priority.decode()}")
                first += _SCAN_CHUNK
        return None

    def _dead(self, key: bytes, url: str) -> Standing | None:
        for letter in self.dead_letters():
            if letter.key == key or (letter.payload and url_of(letter.payload) == url):
                return Standing("dead", f"{letter.reason}: {letter.detail}")
        return None

    def _seen(self, key: bytes) -> Standing:
        client = self.store.client
        state = {
            name.decode(): value.decode()
            for name, value in cast("dict[bytes, bytes]", client.hgetall(self.state_key)).items()
        }
        if state.get("forgotten"):
            return Standing(
                "forgotten",
                "the crawl is finished and its memory was dropped; CLUSTER_KEEP=1 keeps it",
            )
        if state.get("filter") == "exact" and client.sismember(f"{self.base}seen", key):  # type: ignore[arg-type]
            return Standing("done", DONE_WORDS)
        if state.get("filter") == "bloom" and self.call("seen", key):
            rate = state.get("error_rate", "?")
            return Standing("done", f"{DONE_WORDS} (sure to {rate})")
        return Standing("never seen", "no page of this crawl has yielded it through the filter")

    def pause(self, paused: bool = True) -> None:
        """See :meth:`clusterscrapy.frontier.protocol.Frontier.pause`."""
        with _translated(self.store.url):
            self.store.client.hset(self.state_key, "paused", str(int(paused)))

    def drop(self, *, force: bool = False) -> None:
        """See :meth:`clusterscrapy.frontier.protocol.Frontier.drop`."""
        with _translated(self.store.url):
            lease_ms = self.store.client.hget(self.state_key, "lease_ms")
        alive = self.call("drop", int(cast("bytes | None", lease_ms) or 15_000), int(force))
        if alive:
            names = ", ".join(name.decode() for name in alive)
            raise FrontierError(
                f"crawl {self.name} has live workers ({names}); stop them first, or drop with --force"
            )
        with _translated(self.store.url):
            self.store.client.srem(CRAWLS, self.name)

    def dead_letters(self) -> Iterator[DeadLetter]:
        """See :meth:`clusterscrapy.frontier.protocol.Frontier.dead_letters`."""
        client = self.store.client
        with _translated(self.store.url):
            fields = cast("list[bytes]", client.zrange(f"{self.base}dead_order", 0, -1))
        for first in range(0, len(fields), _SCAN_CHUNK):
            chunk = fields[first : first + _SCAN_CHUNK]
            with _translated(self.store.url):
                letters = cast("list[bytes | None]", client.hmget(f"{self.base}dead", chunk))
            for packed in letters:
                if packed is not None:
                    yield _dead_letter(packed)

    def replay(self, keys: Sequence[bytes] | None = None) -> int:
        """See :meth:`clusterscrapy.frontier.protocol.Frontier.replay`."""
        return self._with_letters("replay", keys)

    def discard(self, keys: Sequence[bytes] | None = None) -> int:
        """See :meth:`clusterscrapy.frontier.protocol.Frontier.discard`."""
        return self._with_letters("discard", keys)

    def _with_letters(self, script: str, keys: Sequence[bytes] | None) -> int:
        """Call a script with the chosen letters, in pieces: no call may hold the server up."""
        wanted = None if keys is None else set(keys)
        with _translated(self.store.url):
            members = self.store.client.zrange(f"{self.base}dead_order", 0, -1)
        fields = [
            field
            for field in cast("list[bytes]", members)
            if wanted is None or field[:KEY_BYTES] in wanted
        ]
        pieces = [fields[i : i + _SCAN_CHUNK] for i in range(0, len(fields), _SCAN_CHUNK)]
        return sum(int(self.call(script, b"".join(piece))) for piece in pieces)

    def forget(self, key: bytes) -> bool:
        """See :meth:`clusterscrapy.frontier.protocol.Frontier.forget`."""
        return bool(self.call("forget", key))

    def close(self) -> None:
        """Close the connections of the store."""
        self.store.client.close()


def _words(state: dict[str, str], alive: bool) -> str:
    if int(state.get("finished_at", 0)):
        return "finished"
    if int(state.get("paused", 0)):
        return "paused"
    return "running" if alive else "stopped"


def _is(entry: bytes, key: bytes, url: str) -> bool:
    _, _, _, own = _HEAD.unpack_from(entry)
    return own == key or (url.encode() in entry and url_of(entry[_HEAD.size :]) == url)


def _dead_letter(packed: bytes) -> DeadLetter:
    reason, detail, died_ms, deaths, run, worker, entry, *history = msgpack.unpackb(
        packed, raw=True
    )
    first_ms, first_reason, failures = history
    _, _, _, key = _HEAD.unpack_from(entry)
    return DeadLetter(
        key,
        entry[_HEAD.size :],
        _text(reason),
        _text(detail),
        died_ms / 1000,
        deaths,
        run,
        _text(worker),
        first_ms / 1000,
        _text(first_reason),
        failures,
    )


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


class RedisSession:
    """One worker in a :class:`RedisFrontier`."""

    def __init__(self, frontier: RedisFrontier, terms: Terms, epoch: str, opening: Opening) -> None:
        self.frontier = frontier
        self.terms = terms
        self.epoch = epoch
        self.opening = opening
        self._sequence = 1
        self._lapsed = False

    def sync(self, batch: Batch) -> Reply:
        """See :meth:`clusterscrapy.frontier.protocol.Session.sync`."""
        answer = self.frontier.call(
            "sync",
            self.epoch,
            self.opening.run,
            self._sequence,
            batch.want,
            _packed(batch.ops),
            b"".join(batch.entered),
            int(self.terms.lease_s * 1000),
            self.terms.max_deliveries,
            int(batch.claim_start),
        )
        if answer[0] == b"gone":
            if not answer[1]:
                raise StoreEmptied(
                    f"the store no longer knows crawl {self.frontier.name}: it was restarted without its "
                    "data, or flushed; start the spider again to begin anew, and let Redis keep its data "
                    "(appendonly yes)"
                )
            raise CrawlGone(f"crawl {self.frontier.name} was dropped or begun anew")
        if answer[0] == b"lost":
            raise LeaseLost(f"worker {self.terms.worker} was taken for dead")
        if answer[0] == b"behind":
            raise WentBack(
                f"Redis at {self.frontier.store.place} went back in time: it does not know what it had "
                "confirmed lately (restarted from an older file, or replaced by a replica)"
            )
        self._sequence += 1
        self._lapsed = False
        return _reply(answer)

    def beat(self) -> bool:
        """See :meth:`clusterscrapy.frontier.protocol.Session.beat`."""
        if self._lapsed:
            return False
        lease_ms = int(self.terms.lease_s * 1000)
        return bool(self.frontier.call("beat", self.epoch, lease_ms, self.terms.max_deliveries))

    def lapse(self) -> None:
        """Beat no more."""
        self._lapsed = True

    def finish(self) -> bool:
        """See :meth:`clusterscrapy.frontier.protocol.Session.finish`."""
        return bool(self.frontier.call("finish", self.opening.run, int(self.terms.keep)))

    def leave(self) -> int:
        """See :meth:`clusterscrapy.frontier.protocol.Session.leave`."""
        self._lapsed = True
        return int(self.frontier.call("leave", self.epoch, self.opening.run))


def _packed(ops: Sequence[Op]) -> bytes:
    # Redis' own msgpack knows only the old raw type for both text and bytes.
    packed = msgpack.packb(
        [_wire(op) for op in ops], use_bin_type=False, unicode_errors="backslashreplace"
    )
    return cast("bytes", packed)


def _wire(op: Op) -> tuple[Any, ...]:
    if type(op) is Push:
        return (1, op.key, op.payload, op.priority, op.filtered, op.start)
    if type(op) is Ack:
        return (2, op.key)
    if type(op) is Fail:
        return (3, op.key, op.reason, op.detail)
    if type(op) is Release:
        return (4, op.key)
    if type(op) is Bury:
        return (5, op.key, op.payload, op.reason, op.detail)
    assert type(op) is StartDone
    return (6, op.failed)


def _reply(answer: list[Any]) -> Reply:
    _, queued, entries, late, waiting, leased, workers, start, paused, hungry, generation = answer
    taken = []
    for entry in entries:
        _, deaths, priority, key = _HEAD.unpack_from(entry)
        taken.append(Delivery(key, entry[_HEAD.size :], deaths, priority))
    return Reply(
        queued=[mark == 49 for mark in queued],
        taken=taken,
        late=late,
        waiting=waiting,
        leased=leased,
        workers=workers,
        start=start.decode(),
        paused=bool(paused),
        hungry=bool(hungry),
        generation=generation,
    )
