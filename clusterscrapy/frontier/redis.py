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
import time
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

from clusterscrapy.exceptions import (
    ConfigError,
    FrontierDamaged,
    FrontierError,
    FrontierUnavailable,
)
from clusterscrapy.frontier.codec import url_of
from clusterscrapy.frontier.protocol import (
    DONE_WORDS,
    KEY_BYTES,
    UNREADABLE,
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
_FIELD_BYTES = KEY_BYTES + _RUN.size
_TYPES = {
    "state": "hash",
    "priorities": "zset",
    "workers": "zset",
    "reaped": "zset",
    "hungry": "zset",
    "infos": "hash",
    "seen": "set",
    "layers": "hash",
    "exceptions": "set",
    "dead": "hash",
    "failed_before": "hash",
    "dead_order": "zset",
}
_TYPES_OF_MANY = {"queue:": "list", "lease:": "hash", "inside:": "set", "reply:": "string"}
_NUMBERS = (
    *(
        "run",
        "waiting",
        "leased",
        "done",
        "dead",
        "seen",
        "late",
        "items",
        "generation",
        "start_position",
    ),
    *("paused", "dropped", "forgotten", "touched", "keep", "capacity", "lease_ms"),
    *("started_at", "over_at", "finished_at", "alive_at", "reap_at", "reaped_at"),
)
_SCAN_CHUNK = 1_000
_TOMBSTONE_S = 86_400
# What msgpack, struct and plain Python say of bytes that are not what we packed.
_UNREADABLE = (ValueError, TypeError, AttributeError, struct.error, msgpack.UnpackException)
# An outage, as opposed to a wrong address or a bug; a server that loads its file or lost its
# primary answers, but not yet.
_TRANSIENT = (ClusterDownError, MasterDownError, OutOfMemoryError, ReadOnlyError, TryAgainError)
# redis-py has no class for some, and servers before 7 put the error of a script into a longer one.
_TRANSIENT_WORDS = re.compile(
    r"\b(LOADING|READONLY|MASTERDOWN|CLUSTERDOWN|TRYAGAIN|BUSY|OOM|MISCONF|NOREPLICAS)\b"
)

# How Redis and its Lua say that a command or a script met data of another kind.
_DATA_WORDS = re.compile(r"WRONGTYPE|user_script|not an integer|not a valid float|out of range")


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
        raise _Rejected(f"Redis at {shown(url)} answered: {exc}") from exc
    except RedisError as exc:
        raise FrontierUnavailable(f"Redis at {shown(url)} does not answer: {exc}") from exc


class _Rejected(FrontierError):
    """Redis runs, and rejects a command or a script: our bug, or data that are not ours."""


class _Odd(ValueError):
    """A key of a crawl that holds what we never write there."""

    def __init__(self, part: str, what: str) -> None:
        super().__init__(part, what)
        self.part = part
        self.what = what


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
        """The crawls of this database, sorted; what is no text has escapes in it."""
        return sorted(map(_text, self.members()))

    def members(self) -> set[bytes]:
        """The crawls of this database, as Redis has them."""
        with _translated(self.url):
            kind = self.client.type(CRAWLS).decode()  # type: ignore[union-attr]
            if kind not in ("none", "set"):
                raise FrontierDamaged(
                    f"the list of crawls at {self.place} is damaged: key {CRAWLS} is a {kind}, not a "
                    f"set; 'redis-cli DEL {CRAWLS}' removes it, and the next worker of each crawl "
                    "lists it again"
                )
            return cast("set[bytes]", self.client.smembers(CRAWLS))

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
        with self._guarded():
            return self.store.call(script, self.state_key, *args)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """The border to what Redis holds of this crawl: all that is wrong there is one of our errors."""
        try:
            with _translated(self.store.url):
                yield
        except _Odd as exc:
            raise self._damaged(exc) from exc
        except _Rejected as exc:
            with _translated(self.store.url):
                odd = self._diagnosis()
            if odd is None and not _DATA_WORDS.search(str(exc)):
                raise
            raise self._damaged(odd or _Odd("*", f"what a script cannot use ({exc})")) from exc

    def _damaged(self, odd: _Odd) -> FrontierDamaged:
        return FrontierDamaged(
            f"crawl {self.name} at {self.store.place} is damaged: key {self.base}{odd.part} {odd.what}; "
            f"'scrapy frontier drop {self.name} --force' removes it with all it holds"
        )

    def _diagnosis(self) -> _Odd | None:
        """The first key that is not what it should be, of those that can be looked at quickly."""
        client = self.store.client
        for key in self._keys():
            part = _text(key.removeprefix(self.base.encode()))
            due = _TYPES.get(part) or _TYPES_OF_MANY.get(part[: part.find(":") + 1], "")
            kind = client.type(key).decode()  # type: ignore[union-attr]
            if due and kind not in (due, "none"):
                return _Odd(part, f"is a {kind}, not a {due}")
        state = self._state()
        try:
            for name in _NUMBERS:
                _number(state, name)
        except _Odd as exc:
            return exc
        return None

    def _keys(self) -> Iterator[bytes]:
        pattern = re.sub(r"([\[\]*?\\])", r"\\\1", self.base) + "*"
        return cast("Iterator[bytes]", self.store.client.scan_iter(pattern, count=_SCAN_CHUNK))

    def _state(self) -> dict[str, str]:
        raw = cast("dict[bytes, bytes]", self.store.client.hgetall(self.state_key))
        return {_text(name): _text(value) for name, value in raw.items()}

    def _at(self, part: str, rest: bytes = b"") -> bytes:
        """A key of this crawl; what comes from Redis goes back to it as it came."""
        return f"{self.base}{part}".encode() + rest

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
        with self._guarded():
            opening = self._opening(terms, answer)
        self.store.members()
        with _translated(self.store.url):
            self.store.client.sadd(CRAWLS, self.name)
        return RedisSession(self, terms, epoch, opening)

    def _opening(self, terms: Terms, answer: list[Any]) -> Opening:
        status = answer[0].decode()
        run, waiting, leased, done, dead, workers, ago, touched = map(int, answer[1:9])
        kind, order, words = map(_text, answer[9:12])
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
        with self._guarded():
            pipe = self.store.client.pipeline(transaction=True)
            pipe.hgetall(self.state_key)
            pipe.zrange(f"{self.base}workers", 0, -1, withscores=True)
            pipe.hgetall(f"{self.base}infos")
            pipe.time()
            raw, beats, infos, clock = pipe.execute()
            return self._told(raw, beats, infos, clock[0] * 1000 + clock[1] // 1000)

    def _told(
        self,
        raw: dict[bytes, bytes],
        beats: list[tuple[bytes, float]],
        infos: dict[bytes, bytes],
        now_ms: int,
    ) -> Status:
        state = {_text(name): _text(value) for name, value in raw.items()}
        lease_ms = _number(state, "lease_ms", 15_000)
        workers = [
            self._worker(epoch, beat, infos.get(epoch))
            for epoch, beat in beats
            if now_ms - beat < lease_ms
        ]
        start = state.get("start", "")
        return Status(
            crawl=self.name,
            state=_words(state, bool(workers)),
            waiting=_number(state, "waiting"),
            leased=_number(state, "leased"),
            done=_number(state, "done"),
            dead=_number(state, "dead"),
            seen=_number(state, "seen"),
            items=_number(state, "items"),
            late=_number(state, "late"),
            run=_number(state, "run"),
            start=start if start in ("", "done", "failed") else "theirs",
            dupefilter=state.get("filter", ""),
            started_at=_number(state, "started_at") / 1000,
            finished_at=_number(state, "finished_at") / 1000,
            idle_s=max(0, now_ms - _number(state, "alive_at", now_ms)) / 1000,
            workers=workers,
        )

    def _worker(self, epoch: bytes, beat_ms: float, info: bytes | None) -> WorkerStatus:
        name, joined_ms = _info(epoch, info)
        leased = self.store.client.hlen(self._at("lease:", epoch))
        return WorkerStatus(_text(epoch), name, leased, joined_ms / 1000, beat_ms / 1000)

    def why(self, key: bytes, url: str) -> Standing:
        """See :meth:`clusterscrapy.frontier.protocol.Frontier.why`. Reads the whole queue."""
        with self._guarded():
            return (
                self._leased(key, url)
                or self._waiting(key, url)
                or self._dead(key, url)
                or self._seen(key)
            )

    def _leased(self, key: bytes, url: str) -> Standing | None:
        client = self.store.client
        for epoch in cast("list[bytes]", client.zrange(f"{self.base}workers", 0, -1)):
            for _, lease in client.hscan_iter(self._at("lease:", epoch)):
                if _is(lease[8:], key, url):
                    since = int.from_bytes(lease[:8], "big") / 1000
                    info = cast("bytes | None", client.hget(f"{self.base}infos", epoch))
                    name, _ = _info(epoch, info)
                    clock = client.time()
                    return Standing("leased", f"by {name} for {clock[0] - since:.0f} s")
        return None

    def _waiting(self, key: bytes, url: str) -> Standing | None:
        client = self.store.client
        for priority in cast("list[bytes]", client.zrevrange(f"{self.base}priorities", 0, -1)):
            queue = self._at("queue:", priority)
            first = 0
            while entries := cast(
                "list[bytes]",
                client.lrange(queue, first, first + _SCAN_CHUNK - 1),
            ):
                if any(_is(entry, key, url) for entry in entries):
                    return Standing("waiting", f"priority {_text(priority)}")
                first += _SCAN_CHUNK
        return None

    def _dead(self, key: bytes, url: str) -> Standing | None:
        for letter in self.dead_letters():
            if letter.key == key or (letter.payload and url_of(letter.payload) == url):
                return Standing("dead", f"{letter.reason}: {letter.detail}")
        return None

    def _seen(self, key: bytes) -> Standing:
        client = self.store.client
        state = self._state()
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
        with self._guarded():
            self.store.client.hset(self.state_key, "paused", str(int(paused)))

    def drop(self, *, force: bool = False) -> None:
        """See :meth:`clusterscrapy.frontier.protocol.Frontier.drop`."""
        try:
            with self._guarded():
                alive = self.call("drop", _number(self._state(), "lease_ms", 15_000), int(force))
        except FrontierDamaged:
            if not force:
                raise
            alive = []
            self._wipe()
        if alive:
            names = ", ".join(map(_text, alive))
            raise FrontierError(
                f"crawl {self.name} has live workers ({names}); stop them first, or drop with --force"
            )
        own = [member for member in self.store.members() if _text(member) == self.name]
        if own:
            with _translated(self.store.url):
                self.store.client.srem(CRAWLS, *own)

    def _wipe(self) -> None:
        """Drop without a look at what the keys hold."""
        with _translated(self.store.url):
            pipe = self.store.client.pipeline(transaction=True)
            pipe.unlink(self.state_key)
            # No run of this crawl: what tells a worker still inside that its crawl is gone.
            pipe.hset(self.state_key, mapping={"run": int(time.time()), "dropped": 1})
            pipe.expire(self.state_key, _TOMBSTONE_S)
            pipe.execute()
            for key in self._keys():
                if key != self.state_key.encode():
                    self.store.client.unlink(key)

    def dead_letters(self) -> Iterator[DeadLetter]:
        """See :meth:`clusterscrapy.frontier.protocol.Frontier.dead_letters`."""
        client = self.store.client
        with self._guarded():
            fields = cast("list[bytes]", client.zrange(f"{self.base}dead_order", 0, -1))
        for first in range(0, len(fields), _SCAN_CHUNK):
            chunk = fields[first : first + _SCAN_CHUNK]
            with self._guarded():
                letters = cast("list[bytes | None]", client.hmget(f"{self.base}dead", chunk))
            for field, packed in zip(chunk, letters, strict=True):
                if packed is not None:
                    yield _dead_letter(field, packed)

    def replay(self, keys: Sequence[bytes] | None = None) -> int:
        """See :meth:`clusterscrapy.frontier.protocol.Frontier.replay`."""
        return self._with_letters("replay", keys)

    def discard(self, keys: Sequence[bytes] | None = None) -> int:
        """See :meth:`clusterscrapy.frontier.protocol.Frontier.discard`."""
        odd = [field for field in self._fields(keys) if len(field) != _FIELD_BYTES]
        if odd:
            with self._guarded():
                self.store.client.hdel(f"{self.base}dead", *odd)
                self.store.client.zrem(f"{self.base}dead_order", *odd)
        return len(odd) + self._with_letters("discard", keys)

    def _with_letters(self, script: str, keys: Sequence[bytes] | None) -> int:
        """Call a script with the chosen letters, in pieces: no call may hold the server up."""
        fields = [field for field in self._fields(keys) if len(field) == _FIELD_BYTES]
        pieces = [fields[i : i + _SCAN_CHUNK] for i in range(0, len(fields), _SCAN_CHUNK)]
        return sum(int(self.call(script, b"".join(piece))) for piece in pieces)

    def _fields(self, keys: Sequence[bytes] | None) -> list[bytes]:
        """The fields of these letters, of all when ``keys`` is None; the oldest first."""
        wanted = None if keys is None else set(keys)
        with self._guarded():
            members = self.store.client.zrange(f"{self.base}dead_order", 0, -1)
        return [
            field
            for field in cast("list[bytes]", members)
            if wanted is None or field[:KEY_BYTES] in wanted
        ]

    def forget(self, key: bytes) -> bool:
        """See :meth:`clusterscrapy.frontier.protocol.Frontier.forget`."""
        return bool(self.call("forget", key))

    def close(self) -> None:
        """Close the connections of the store."""
        self.store.client.close()


def _words(state: dict[str, str], alive: bool) -> str:
    if _number(state, "finished_at"):
        return "finished"
    if _number(state, "paused"):
        return "paused"
    return "running" if alive else "stopped"


def _number(state: dict[str, str], name: str, default: int = 0) -> int:
    text = state.get(name)
    if text is None:
        return default
    # Beyond, Lua's numbers are not exact, and no clock or counter of ours gets there.
    if not re.fullmatch(r"-?\d{1,16}", text, re.ASCII):
        raise _Odd("state", f"holds {text[:40]!r} as {name}".replace("\\\\", "\\"))
    return int(text)


def _info(epoch: bytes, info: bytes | None) -> tuple[str, float]:
    """A worker's name and when it joined; when that cannot be read it goes by its epoch."""
    try:
        name, joined_ms = msgpack.unpackb(info or b"", raw=True)
        return _text(name), joined_ms + 0.0
    except _UNREADABLE:
        return _text(epoch), 0.0


def _is(entry: bytes, key: bytes, url: str) -> bool:
    if len(entry) < _HEAD.size:
        return False
    _, _, _, own = _HEAD.unpack_from(entry)
    return own == key or (url.encode() in entry and url_of(entry[_HEAD.size :]) == url)


def _dead_letter(field: bytes, packed: bytes) -> DeadLetter:
    try:
        return _unpacked(packed)
    except _UNREADABLE as exc:
        detail = f"what Redis holds of it is no dead letter ({type(exc).__name__}: {exc})"
        run = int.from_bytes(field[KEY_BYTES:_FIELD_BYTES], "big")
        return DeadLetter(field[:KEY_BYTES], b"", UNREADABLE, detail, 0.0, 0, run, "?")


def _unpacked(packed: bytes) -> DeadLetter:
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
        int(deaths),
        int(run),
        _text(worker),
        first_ms / 1000,
        _text(first_reason),
        int(failures),
    )


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


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
            batch.items,
            self.terms.bounds.pages,
            self.terms.bounds.items,
            int(self.terms.bounds.seconds * 1000),
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
    _, queued, entries, late, waiting, leased, workers, start, paused, hungry, generation, limit = (
        answer
    )
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
        limit=limit.decode(),
    )
