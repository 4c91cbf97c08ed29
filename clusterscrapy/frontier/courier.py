"""A worker's traffic with its frontier, kept off the event loop.

The courier owns the session. On the loop it keeps an ordered *outbox* of operations and a small
*buffer* of leases; one background thread carries batches to the store and brings leases back.
Because the outbox is ordered and a batch is one atomic step, a page's children are always
stored before, or together with, its acknowledgement. A second thread beats the heart, and stops
when the loop has not turned for a while, so that a hung worker does not hold its leases forever.

Nothing here knows Scrapy: the scheduler tells it what happened and is told when there is news.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from clusterscrapy.exceptions import ClusterScrapyError, FrontierUnavailable
from clusterscrapy.frontier.journal import Journal
from clusterscrapy.frontier.protocol import (
    Ack,
    Batch,
    CrawlEnded,
    CrawlGone,
    Delivery,
    Fail,
    Frontier,
    LeaseLost,
    Op,
    Opening,
    Push,
    Release,
    Reply,
    Session,
    StartDone,
    Status,
    StoreEmptied,
    Terms,
    WentBack,
)

logger = logging.getLogger(__name__)

BATCH_OPS = 500
BATCH_BYTES = 4_000_000
LINGER_S, RELAXED_S = 0.005, 0.03
"""How long operations are gathered: while the engine may run dry, and while it has work."""
HARVEST_S = 0.05
IDLE_FIRST_S, IDLE_LAST_S = 0.1, 0.5
RETRY_FIRST_S, RETRY_LAST_S = 0.1, 2.0


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a courier may hold."""

    prefetch: int = 32
    outbox: int = 10_000
    seen_memory: int = 100_000
    heartbeat_s: float = 5.0
    stall_s: float = 120.0
    replay_s: float = 60.0


class Listener:
    """What the courier tells its owner; every method is called on the event loop."""

    def collect(self) -> None:
        """A batch is about to be made: hand in what has finished since."""

    def answered(self, ops: list[Op], reply: Reply) -> None:
        """A batch was applied."""

    def lost(self, why: LeaseLost) -> None:
        """The worker was taken for dead, or the store went back in time (:class:`WentBack`).

        Its leases are others' now; it has joined again.
        """

    def gone(self, error: ClusterScrapyError) -> None:
        """The crawl is not there any more, or the store refuses us; close."""

    def unreachable(self, error: FrontierUnavailable) -> None:
        """The store stopped answering; the courier tries on."""

    def reachable(self, away_s: float) -> None:
        """The store answers again."""


class Courier:
    """Carries operations to one crawl and leases back.

    All methods but those of the heartbeat run on the event loop.
    """

    def __init__(
        self, frontier: Frontier, terms: Terms, limits: Limits, listener: Listener
    ) -> None:
        self.frontier = frontier
        self.terms = terms
        self.limits = limits
        self.listener = listener
        self.reply = Reply(waiting=1)
        self.final: Status | None = None
        """Where the crawl stood at its end, once this worker has left it finished."""
        self.claim_start = False
        self.items = 0
        """Items that have passed the pipelines and are not yet reported."""
        self.taking = True
        self.inside: dict[bytes, Delivery] = {}
        """What :meth:`next` gave out and is not yet finished, by its key."""
        self.session: Session | None = None
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="clusterscrapy-frontier")
        self._outbox: deque[Op | _Mark] = deque()
        self._batch: Batch | None = None
        self._batch_ops: list[Op] = []
        self._batch_marks: list[_Mark] = []
        self._busy = False
        self._closed = self._broken = False
        self.buffer: deque[Delivery] = deque()
        """Leases that wait here for the engine."""
        self._entered: list[bytes] = []
        self._known = _Memory(limits.seen_memory)
        self._on_its_way: set[bytes] = set()
        self._journal = Journal(limits.replay_s if frontier.goes_back else 0.0)
        self._start_done: StartDone | None = None
        self._lost = LeaseLost()
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = float("inf")
        self._idle_s = IDLE_FIRST_S
        self._retry_s = RETRY_FIRST_S
        self._away_since = 0.0
        self._room = asyncio.Event()
        self._room.set()
        self._news = asyncio.Event()
        self._heart = _Heart(self._loop, limits)

    # --- joining ----------------------------------------------------------------------

    async def open(self, wait_s: float) -> Opening:
        """Join the crawl, waiting up to ``wait_s`` seconds for a store that does not answer.

        Raises:
            FrontierUnavailable: it did not answer in that time.
            ConfigError: it refuses us.
        """
        deadline = time.monotonic() + wait_s
        pause = RETRY_FIRST_S
        told = False
        while True:
            try:
                self.session = await self._loop.run_in_executor(
                    self._thread, self.frontier.join, self.terms
                )
                break
            except FrontierUnavailable as exc:
                if time.monotonic() + pause > deadline:
                    raise
                if not told:
                    logger.warning("%s; waiting up to %.0f s for it", exc, wait_s)
                    told = True
            await asyncio.sleep(pause)
            pause = min(pause * 2, RETRY_LAST_S)
        if not self.session.opening.late:
            self._heart.start(self.session)
            self._due(0)
        return self.session.opening

    # --- what the worker does ------------------------------------------------------------

    def push(self, op: Push) -> None:
        """Put a request into the outbox; ask :meth:`knows` first."""
        if op.filtered:
            self._on_its_way.add(op.key)
        self._put(op)

    def tell(self, op: Op) -> None:
        """Put any other operation into the outbox; Ack, Fail and Release end a lease."""
        if isinstance(op, Ack | Fail | Release):
            page = self.inside.pop(op.key, None)
            if page is not None and type(op) is Ack:
                self._journal.finished(page)
        elif type(op) is StartDone:
            self._start_done = op
        self._put(op)

    def _put(self, op: Op) -> None:
        if self._broken:
            return
        self._outbox.append(op)
        if len(self._outbox) >= self.limits.outbox:
            self._room.clear()
            self._due(0)
        self._due(self._linger_s)

    @property
    def _linger_s(self) -> float:
        return LINGER_S if len(self.buffer) * 4 < self.limits.prefetch else RELAXED_S

    def knows(self, key: bytes) -> bool:
        """True when a filtered request of this key is surely stored, or is about to be."""
        return key in self._known or key in self._on_its_way

    def next(self, index: int = 0) -> Delivery | None:
        """A lease out of the :attr:`buffer`, or None while the crawl is paused or this worker stops."""
        if self.reply.paused or not self.taking:
            return None
        delivery = self.buffer[index]
        del self.buffer[index]
        self.inside[delivery.key] = delivery
        self._entered.append(delivery.key)
        # A request that was there when a worker died is reported at once, not at leisure.
        self._due(0 if delivery.deaths else self._linger_s)
        return delivery

    def ask(self) -> None:
        """The buffer is empty and the engine wants more."""
        if self.taking and self.reply.waiting and not self.reply.paused:
            # Half a buffer since the last call: there is enough to tell, the engine need not wait.
            self._due(0 if len(self._entered) * 2 >= self.limits.prefetch else LINGER_S)

    def hand_back(self) -> None:
        """Take no more, and release what waits in the buffer."""
        self.taking = False
        while self.buffer:
            self.tell(Release(self.buffer.pop().key))

    @property
    def idle(self) -> bool:
        """True when nothing is on its way to the store and nothing is held."""
        return not (self._outbox or self._batch or self.buffer or self.inside)

    @property
    def over(self) -> bool:
        """True when the crawl is over and this worker has nothing left."""
        return self.idle and self.reply.over

    @property
    def away_s(self) -> float:
        """For how many seconds the store has not answered; 0.0 while it does."""
        return time.monotonic() - self._away_since if self._away_since else 0.0

    @property
    def full(self) -> bool:
        """True while the outbox has no room."""
        return not self._room.is_set()

    async def room(self) -> None:
        """Wait until the outbox has room."""
        await self._room.wait()

    async def stored(self) -> bool:
        """Wait until the store has all that was told so far; False when that will not be known."""
        if self._broken or self._closed:
            return False
        mark = _Mark(self._loop.create_future())
        self._outbox.append(mark)
        self.hurry()
        return await mark.reached

    async def news(self) -> Reply:
        """Wait for the next answer of the store."""
        self._news.clear()
        await self._news.wait()
        return self.reply

    def hurry(self) -> None:
        """Talk to the store now instead of at the next occasion."""
        self._due(0)

    # --- the pump -------------------------------------------------------------------------

    def _due(self, delay_s: float) -> None:
        if self._closed or self._broken or self._busy:
            return
        at = self._loop.time() + delay_s
        if at >= self._due_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due_at = at
        self._timer = self._loop.call_at(at, self._pump)

    def _pump(self) -> None:
        self._due_at, self._timer = float("inf"), None
        self._heart.turned()
        if self._busy or self._closed or self._broken or self.session is None:
            return
        if self._batch is None:
            self.listener.collect()
            self._batch = self._next_batch()
        self._send(self._batch)

    def _next_batch(self) -> Batch:
        self._batch_ops = []
        size = 0
        while self._outbox and len(self._batch_ops) < BATCH_OPS and size < BATCH_BYTES:
            op = self._outbox.popleft()
            if isinstance(op, _Mark):
                self._batch_marks.append(op)
                continue
            self._batch_ops.append(op)
            size += len(op.payload) if isinstance(op, Push) else 0
        if len(self._outbox) < self.limits.outbox:
            self._room.set()
        entered, self._entered = self._entered, []
        want = self.limits.prefetch - len(self.buffer) if self.taking else 0
        items, self.items = self.items, 0
        return Batch(self._batch_ops, max(0, want), entered, self.claim_start, items)

    def _send(self, batch: Batch) -> None:
        assert self.session is not None
        self._busy = True
        future = self._thread.submit(self.session.sync, batch)
        future.add_done_callback(self._from_thread)

    def _from_thread(self, future: Future[Reply]) -> None:
        # RuntimeError: the loop is closed, the process is ending.
        try:
            self._loop.call_soon_threadsafe(self._arrived, future)
        except RuntimeError:
            logger.debug("an answer of the frontier came after the end")

    def _arrived(self, future: Future[Reply]) -> None:
        self._busy = False
        if self._closed:
            return
        try:
            reply = future.result()
        except FrontierUnavailable as exc:
            self._unavailable(exc)
        except LeaseLost as exc:
            self._lost = exc
            self._busy = True
            self._thread.submit(self._join_again).add_done_callback(self._joined_again)
        except ClusterScrapyError as exc:
            self._break(exc)
        else:
            self._accept(reply)

    def _break(self, exc: ClusterScrapyError) -> None:
        # An acknowledgement must not overtake the children of a batch that failed: nothing
        # more is sent, and the pages of this worker return when it leaves.
        self._broken = True
        self._give_up_marks()
        self._outbox.clear()
        self._batch, self._batch_ops = None, []
        self._news.set()
        self._room.set()
        self.listener.gone(exc)

    def _give_up_marks(self) -> None:
        for mark in (*self._batch_marks, *(op for op in self._outbox if isinstance(op, _Mark))):
            mark.set(False)

    def _unavailable(self, exc: FrontierUnavailable) -> None:
        if not self._away_since:
            self._away_since = time.monotonic()
            self.listener.unreachable(exc)
        self._due(self._retry_s)
        self._retry_s = min(self._retry_s * 2, RETRY_LAST_S)

    def _accept(self, reply: Reply) -> None:
        ops, self._batch, self._batch_ops = self._batch_ops, None, []
        self._retry_s = RETRY_FIRST_S
        if self._away_since:
            away, self._away_since = self.away_s, 0.0
            self.listener.reachable(away)
        if reply.generation != self.reply.generation:
            self._known.clear()  # somebody had a URL forgotten
        for op in ops:
            if type(op) is Push and op.filtered:
                self._on_its_way.discard(op.key)
                self._known.add(op.key)
        for mark in self._batch_marks:
            mark.set(True)
        self._batch_marks = []
        self._journal.confirmed(ops, reply.queued)
        if not reply.start and self.reply.start == "done":
            # Whoever ran it is not here to say so again.
            self._break(
                StoreEmptied(f"{self._lost}; start the spider again: start() has to run again")
            )
            return
        self._note_start(reply)
        self.reply = reply
        self.buffer.extend(reply.taken)
        if not self.taking:
            self.hand_back()
        elif reply.hungry and not reply.waiting and len(self.buffer) > 1:
            # Somebody has nothing to do: half of what waits here is his.
            for _ in range(len(self.buffer) // 2):
                self.tell(Release(self.buffer.pop().key))
        self.listener.answered(ops, reply)
        self._news.set()
        self._schedule_next(busy=bool(ops or reply.taken))

    def _note_start(self, reply: Reply) -> None:
        if reply.start in ("done", "failed"):
            self.claim_start = False
        elif (
            reply.start == "mine"
            and self._start_done is not None
            and not any(type(op) is StartDone for op in self._outbox)
        ):
            # Said under an epoch that is no more, or into a store that has forgotten it.
            self._put(self._start_done)

    def _schedule_next(self, *, busy: bool) -> None:
        self._idle_s = IDLE_FIRST_S if busy else min(self._idle_s * 1.5, IDLE_LAST_S)
        if self._outbox:
            self._due(0 if len(self._outbox) >= BATCH_OPS else self._linger_s)
        elif self.taking and not self.buffer and self.reply.waiting and not self.reply.paused:
            self._due(LINGER_S if busy else HARVEST_S)
        else:
            self._due(HARVEST_S if self.inside else self._idle_s)

    # --- after having been taken for dead -----------------------------------------------------

    def _join_again(self) -> Session:
        assert self.session is not None
        self.session.lapse()
        # Back into this very crawl: never a new run, whatever was asked for at the start.
        return self.frontier.join(replace(self.terms, resume=True, explicit=True))

    def _joined_again(self, future: Future[Session]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._rejoined, future)
        except RuntimeError:
            logger.debug("joined again after the end")

    def _rejoined(self, future: Future[Session]) -> None:
        self._busy = False
        if self._closed:
            return
        try:
            session = future.result()
        except FrontierUnavailable as exc:
            self._unavailable(exc)
            return
        except ClusterScrapyError as exc:
            self._break(exc)
            return
        if session.opening.late:
            self._break(CrawlEnded())
            return
        if session.opening.fresh:
            self._break(CrawlGone(f"a new run of crawl {self.frontier.name} began"))
            return
        self.session = session
        self._heart.start(session)
        # What this worker held is others' now. Its children are not lost: they are pushed
        # again, and the filter knows those that were stored the first time.
        again = self._journal.filtered()
        if isinstance(self._lost, WentBack):
            again = self._journal.everything()
        self._known.clear()
        self.items += self._batch.items if self._batch is not None else 0
        ops = [*again, *self._batch_ops, *self._batch_marks, *self._outbox]
        self._batch, self._batch_ops, self._batch_marks = None, [], []
        held = Ack | Fail | Release | StartDone
        self._outbox = deque(op for op in ops if not isinstance(op, held))
        self.claim_start = self.claim_start or self._start_done is not None
        self._on_its_way = {op.key for op in self._outbox if type(op) is Push and op.filtered}
        self.buffer.clear()
        self.inside.clear()
        self._entered.clear()
        self.listener.lost(self._lost)
        self._due(0)

    # --- the end ---------------------------------------------------------------------------

    async def close(self, *, finished: bool, timeout_s: float) -> bool:
        """Flush, hand everything back and leave. True when the store has it all.

        Args:
            finished: mark the crawl finished if it is over.
            timeout_s: seconds to try; what is not handed back then returns when the lease ends.
        """
        self.hand_back()
        deadline = self._loop.time() + timeout_s
        while not self._broken and (self._outbox or self._batch) and self._loop.time() < deadline:
            self.hurry()
            try:
                await asyncio.wait_for(self.news(), max(0.05, deadline - self._loop.time()))
            except asyncio.TimeoutError:
                break
        clean = not (self._outbox or self._batch)
        self._closed = True
        self._give_up_marks()
        if self._timer is not None:
            self._timer.cancel()
        self._heart.stop()
        if self.session is not None and not self.session.opening.late:
            clean = await self._depart(finished and clean, deadline) and clean
        self._thread.shutdown(wait=False, cancel_futures=True)
        return clean

    async def _depart(self, finished: bool, deadline: float) -> bool:
        assert self.session is not None

        def depart(session: Session) -> None:
            over = finished and session.finish()
            session.leave()
            if over:
                self.final = self.frontier.status()
            self.frontier.close()

        job = self._loop.run_in_executor(self._thread, depart, self.session)
        try:
            await asyncio.wait_for(job, max(0.5, deadline - self._loop.time()))
        except (ClusterScrapyError, asyncio.TimeoutError) as exc:
            logger.warning(
                "left the crawl without a word to the store (%s)", str(exc) or "it is slow"
            )
            return False
        return True

    def abandon(self) -> None:
        """Hand leases back from any thread, for a worker whose loop no longer turns."""
        self._closed = True
        self._heart.stop()
        if self.session is not None:
            self.session.leave()


@dataclass(frozen=True, eq=False, slots=True)
class _Mark:
    """A place in the outbox that somebody waits for."""

    reached: asyncio.Future[bool]

    def set(self, stored: bool) -> None:
        if not self.reached.done():  # the waiter may have been cancelled
            self.reached.set_result(stored)


class _Memory:
    """A bounded, exact memory of keys the store has confirmed; forgets the oldest half when full."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._keys: dict[bytes, None] = {}

    def __contains__(self, key: bytes) -> bool:
        return key in self._keys

    def clear(self) -> None:
        self._keys.clear()

    def add(self, key: bytes) -> None:
        self._keys[key] = None
        if len(self._keys) > self.size:
            self._keys = dict.fromkeys(list(self._keys)[self.size // 2 :])


class _Heart:
    """Beats for a session from a thread of its own while the loop turns."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: Limits) -> None:
        self.limits = limits
        self._loop = loop
        self._turned_at = time.monotonic()
        self._stop = threading.Event()
        self._session: Session | None = None
        self._lapsed: Session | None = None
        self._thread: threading.Thread | None = None

    def turned(self) -> None:
        self._turned_at = time.monotonic()

    def start(self, session: Session) -> None:
        self._session = session
        self.turned()
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="clusterscrapy-heartbeat", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(self.limits.heartbeat_s):
            session = self._session
            assert session is not None
            stalled_s = time.monotonic() - self._turned_at
            try:
                if stalled_s > self.limits.stall_s:
                    if session is not self._lapsed:
                        logger.error(
                            "the event loop has not turned for %.0f s (a callback that blocks?); "
                            "this worker's pages go to others",
                            stalled_s,
                        )
                    self._lapsed = session
                    session.lapse()
                else:
                    session.beat()
            except ClusterScrapyError as exc:
                logger.debug("no heartbeat: %s", exc)
