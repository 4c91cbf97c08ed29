"""What a frontier is: the words and the shapes every backend shares.

A *frontier* holds one crawl: the requests that wait, those leased to workers, the dead
letters and the memory of what was ever queued. A *session* is one worker's stay in it.
Everything a worker changes travels through :meth:`Session.sync`, an ordered list of
operations applied in one atomic step; so a child is always stored before, or together
with, the acknowledgement of the page that yielded it.

All calls block and are made from one thread per session (:class:`~clusterscrapy.frontier.courier.Courier`
keeps them off the event loop); :meth:`Session.beat` alone may be called from another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b, sha1
from typing import Any, NamedTuple, Protocol

from clusterscrapy.exceptions import ConfigError, FrontierError

_PRIORITY_MAX = 2**53 - 1
"""What Redis' scores and Lua's numbers hold exactly."""
KEY_BYTES = 16
"""Length of the key that names a request inside a frontier."""

SOLO_AFTER_DEATHS = 2
"""A request that was inside a worker at this many deaths runs alone in its next worker."""


def bounded(priority: int) -> int:
    """A priority as stores can hold it exactly; the order of priorities beyond is not kept."""
    return max(-_PRIORITY_MAX, min(_PRIORITY_MAX, int(priority)))


def key_of(fingerprint: bytes) -> bytes:
    """The frontier's key for a request fingerprint.

    Fingerprints of custom fingerprinters may have any length and distribution; a Bloom filter
    needs uniform bits, so the fingerprint is hashed once more (BLAKE2b, 16 bytes).
    """
    return blake2b(fingerprint, digest_size=KEY_BYTES).digest()


def old_key(key: bytes, run: int) -> bytes:
    """The key under which a dead letter of a former run is queued in this one.

    Not its own: the same page may wait or be leased in this run already, and a key has one lease.
    SHA-1, since a Redis script can compute it too.
    """
    return sha1(key + run.to_bytes(4, "big"), usedforsecurity=False).digest()[:KEY_BYTES]


class LeaseLost(FrontierError):
    """This worker was declared dead and its leases went to others; it joins again with a new epoch."""


class WentBack(LeaseLost):
    """The store went back in time: it does not know what it had confirmed to this worker lately."""


class CrawlGone(FrontierError):
    """The crawl was dropped, or a new run of it began, while this worker was in it."""


class CrawlEnded(FrontierError):
    """The others finished the crawl while this worker was taken for dead; there is nothing left to do."""


class StoreEmptied(FrontierError):
    """The store has forgotten the whole crawl (restarted without its data, flushed)."""


class SchemeMismatch(ConfigError):
    """This worker would compute other fingerprints than the crawl's workers before it."""


# --- what a worker tells the frontier ------------------------------------------------


class Push(NamedTuple):
    """Queue a request. Seen and queued is one step: a filtered key is marked only when it is queued."""

    key: bytes
    payload: bytes
    priority: int = 0
    filtered: bool = True
    start: int = -1
    """Its ordinal among the requests of ``start()`` that are known by ordinal, else -1."""


class Ack(NamedTuple):
    """The page is done: its children are stored and its items accepted."""

    key: bytes


class Fail(NamedTuple):
    """The page is given up: the lease becomes a dead letter."""

    key: bytes
    reason: str
    detail: str


class Release(NamedTuple):
    """Hand a lease back unused; it goes to the front of its queue."""

    key: bytes


class Bury(NamedTuple):
    """Keep something that never could be queued as a dead letter."""

    key: bytes
    payload: bytes
    reason: str
    detail: str


class StartDone(NamedTuple):
    """``start()`` of this worker is exhausted and stored, or it raised."""

    failed: bool = False


Op = Push | Ack | Fail | Release | Bury | StartDone


@dataclass(frozen=True, slots=True)
class Batch:
    """One call of :meth:`Session.sync`."""

    ops: Sequence[Op] = ()
    want: int = 0
    """How many leases to take at most, after the operations."""
    entered: Sequence[bytes] = ()
    """Keys of leases that went from the worker's buffer into its engine since the last call."""
    claim_start: bool = False
    """Ask for the right to run ``start()``."""
    items: int = 0
    """How many items have passed this worker's pipelines since the last call."""


# --- what the frontier answers ---------------------------------------------------------


class Delivery(NamedTuple):
    """One leased request."""

    key: bytes
    payload: bytes
    deaths: int
    """How many workers died while this request was inside their engine."""
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one :class:`Batch`."""

    queued: Sequence[bool] = ()
    """For each Push of the batch, in order: True when queued, False when already known."""
    taken: Sequence[Delivery] = ()
    late: int = 0
    """Operations on leases this worker no longer had; they changed nothing."""
    waiting: int = 0
    leased: int = 0
    """Leases of all workers together."""
    workers: int = 1
    start: str = ""
    """``""`` nobody runs it, ``"mine"``, ``"theirs"``, ``"done"``, ``"failed"``."""
    paused: bool = False
    hungry: bool = False
    """Another worker asked for work lately and got none."""
    generation: int = 0
    """Changes when a key was forgotten: what a worker remembers of known keys is void then."""
    limit: str = ""
    """The bound that the whole crawl has reached, so that nothing more is handed out: ``"pages"``,
    ``"items"``, ``"seconds"``, or ``""``."""

    @property
    def over(self) -> bool:
        """True when nothing waits, nothing is leased by anyone and no ``start()`` is unfinished."""
        return not self.waiting and not self.leased and self.start in ("done", "failed")


@dataclass(frozen=True, slots=True)
class Opening:
    """What a worker found when it joined."""

    run: int = 1
    fresh: bool = True
    """This worker began the run."""
    touched: bool = False
    """A worker of this run has taken a request, or begun ``start()``: there may be items."""
    late: bool = False
    """The crawl is finished and this worker came too late to do anything."""
    finished_ago_s: float = 0.0
    waiting: int = 0
    leased: int = 0
    done: int = 0
    dead: int = 0
    workers: int = 1
    notes: Sequence[str] = ()
    """Sentences worth logging, e.g. that a stored parameter won over this worker's."""


@dataclass(frozen=True, slots=True)
class Filter:
    """How a crawl remembers what it has seen; fixed by the worker that begins the run."""

    kind: str = "bloom"
    capacity: int = 1_000_000
    error_rate: float = 1e-6


@dataclass(frozen=True, slots=True)
class Scheme:
    """How this worker computes fingerprints: a digest of its behaviour, and words for a person."""

    digest: str = ""
    words: str = ""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much the whole crawl may do in this run, all workers together; 0 is no bound.

    At most ``pages`` are done, exactly; items of pages that were out when a bound was reached come on
    top. Seconds count from the beginning of the run by the store's clock, pauses included.
    """

    pages: int = 0
    items: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Terms:
    """What a worker asks for when it joins."""

    worker: str = "worker"
    info: dict[str, Any] = field(default_factory=dict)
    resume: bool = True
    explicit: bool = False
    """The crawl has an id of its own, so that finished is final."""
    hold_s: float = 60.0
    lease_s: float = 15.0
    max_deliveries: int = 5
    keep: bool = False
    order: str = "fifo"
    filter: Filter = Filter()
    scheme: Scheme = Scheme()
    bounds: Bounds = Bounds()


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One live worker."""

    epoch: str
    name: str
    leased: int
    joined_at: float
    beat_at: float


@dataclass(frozen=True, slots=True)
class Status:
    """Where a crawl stands, in numbers of requests; times are seconds since 1970 by the store's clock."""

    crawl: str
    state: str
    """``running``, ``paused``, ``stopped`` (work left, nobody here), ``finished`` or ``dropped``."""
    waiting: int = 0
    leased: int = 0
    done: int = 0
    dead: int = 0
    seen: int = 0
    items: int = 0
    late: int = 0
    run: int = 0
    start: str = ""
    dupefilter: str = ""
    started_at: float = 0.0
    finished_at: float = 0.0
    idle_s: float = 0.0
    """Seconds since a worker, or a seeding, last did something."""
    workers: Sequence[WorkerStatus] = ()


UNREADABLE = "unreadable"
"""The reason of a dead letter of which the store holds nothing that can be understood."""


class DeadLetter(NamedTuple):
    """A request that nobody will fetch again unless a person says so."""

    key: bytes
    payload: bytes
    reason: str
    detail: str
    died_at: float
    """When it failed last; seconds since 1970 by the store's clock, as :attr:`first_at`."""
    deaths: int
    """How many workers died while it was inside them."""
    run: int
    worker: str
    first_at: float = 0.0
    first_reason: str = ""
    failures: int = 1
    """How often it became a dead letter: one more for each replay that failed again."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where one URL stands."""

    state: str
    """``never seen``, ``waiting``, ``leased``, ``done``, ``dead``, or ``forgotten``: the crawl is
    finished and its memory dropped."""
    detail: str = ""


DONE_WORDS = "fetched, its links and items stored; or its dead letter was dropped"
"""All that is known of a key that was seen and is nowhere else."""


class Session(Protocol):
    """One worker's stay in a crawl, under one epoch."""

    opening: Opening
    epoch: str

    def sync(self, batch: Batch) -> Reply:
        """Apply the operations in order and take up to ``batch.want`` leases, in one atomic step.

        Raises:
            FrontierUnavailable: the store did not answer; call again with the *same* batch, which
                is applied once however often it is sent.
            LeaseLost: this epoch was declared dead; nothing of the batch was applied.
            WentBack: the store lost what it had confirmed; nothing of the batch was applied.
            CrawlGone: the crawl was dropped or begun anew; nothing was applied.
        """
        ...

    def beat(self) -> bool:
        """Say that this worker lives; False when it was declared dead meanwhile. Any thread."""
        ...

    def lapse(self) -> None:
        """Stop being alive without a word, so that others take over the leases. Any thread."""
        ...

    def finish(self) -> bool:
        """Mark the crawl finished if it is over; a finished crawl keeps its summary and dead letters."""
        ...

    def leave(self) -> int:
        """Hand every lease back and go. Returns how many were handed back."""
        ...


class Frontier(Protocol):
    """One crawl in a store, as seen by workers (join) and by people (the rest)."""

    name: str
    goes_back: bool
    """Its store may come back in an older state while its workers live on (see :class:`WentBack`)."""

    def join(self, terms: Terms) -> Session:
        """Become a worker of this crawl, beginning, resuming or renewing it as the terms say.

        Raises:
            SchemeMismatch: other fingerprints than the crawl's.
            ConfigError: a store that cannot keep a crawl (evicts, too old, read-only).
            FrontierUnavailable: the store does not answer.
        """
        ...

    def status(self) -> Status:
        """Counts and workers now."""
        ...

    def why(self, key: bytes, url: str) -> Standing:
        """Where the request with this key or URL stands."""
        ...

    def pause(self, paused: bool = True) -> None:
        """Stop handing out leases (or go on); what is being fetched is finished."""
        ...

    def drop(self, *, force: bool = False) -> None:
        """Forget the crawl with all it holds, dead letters included.

        Raises:
            FrontierError: workers are alive and ``force`` is not given.
        """
        ...

    def dead_letters(self) -> Iterator[DeadLetter]:
        """Every dead letter, oldest first."""
        ...

    def replay(self, keys: Sequence[bytes] | None = None) -> int:
        """Queue dead letters again (all when ``keys`` is None); returns how many."""
        ...

    def discard(self, keys: Sequence[bytes] | None = None) -> int:
        """Forget dead letters (all when ``keys`` is None) without fetching them; returns how many."""
        ...

    def forget(self, key: bytes) -> bool:
        """Make a known key unknown, so that it is queued when it is found again. True when it was known.

        Only for a page that is done (see :meth:`why`): one that waits or is leased would be queued a
        second time under the same key.
        """
        ...

    def close(self) -> None:
        """Let go of files and connections."""
        ...


class Store(Protocol):
    """A place that holds crawls, named by a URL."""

    url: str
    place: str
    """Where that is, for people: a folder, or the URL without its password."""

    def names(self) -> list[str]:
        """The crawls it holds, sorted."""
        ...

    def frontier(self, name: str) -> Frontier:
        """The crawl of that name; nothing is created before somebody joins."""
        ...


def scheme_sentence(theirs: str, mine: str) -> str:
    """The refusal of a worker that computes other fingerprints than its crawl."""
    return (
        f"fingerprint scheme mismatch: this crawl's pages are known by {theirs}, this worker would "
        f"compute {mine}; give all workers the same versions and fingerprinter, or begin anew with "
        "-s CLUSTER_RESUME=0"
    )


def stored_wins_sentence(setting: str, mine: object, stored: object) -> str:
    """The notice that a crawl keeps the parameter it was begun with."""
    return f"{setting}={mine} is ignored: this crawl was begun with {stored}"


def shown(url: str) -> str:
    """A store's URL without its password, for logs and errors; it may be malformed."""
    return re.sub(r"(://[^/@]*:)[^@]*@", r"\1***@", url)
