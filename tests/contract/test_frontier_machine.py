"""Random lives of workers on each frontier, held against a plain model.

Whatever the workers do, also die, freeze, come back late and repeat themselves, the frontier has
to agree with :class:`~tests.contract.model.Crawl` after every step: nothing is lost, nothing is
leased twice at once, the order holds, and the end is seen exactly when it is there.

``HYPOTHESIS_PROFILE=deep`` runs five hundred lives on each frontier instead of a few dozen.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from clusterscrapy.exceptions import FrontierError
from clusterscrapy.frontier import (
    Ack,
    Batch,
    Bury,
    CrawlGone,
    Fail,
    Filter,
    Frontier,
    LeaseLost,
    Op,
    Push,
    Release,
    Reply,
    Session,
    StartDone,
    Terms,
    key_of,
    open_store,
    sqlite,
)
from clusterscrapy.frontier.redis import RedisFrontier, RedisSession
from tests.contract.model import MAX_DELIVERIES, Crawl

if TYPE_CHECKING:
    from tests.servers import RedisServer

T = TypeVar("T")
LEASE_S = 30.0
"""Nobody dies by itself: time passes when :meth:`Lives.skip` says so."""
CLOCK_S = 0.003
"""The store counts whole milliseconds."""
_crawls = count()
_ENDS: dict[str, Callable[[bytes], Op]] = {
    "ack": Ack,
    "fail": lambda key: Fail(key, "callback", "why"),
    "release": Release,
}
Plan = tuple[str, int, int]
_KINDS = ["push", "push", "unfiltered", "start", *_ENDS, *_ENDS, "bury", "start done"]
_PLANS = st.lists(
    st.tuples(st.sampled_from(_KINDS), st.integers(0, 30), st.integers(-1, 1)), max_size=6
)
_COUNT = st.integers(0, 3)


class Worker:
    """A session, and what it remembers; it may not know that it is dead."""

    def __init__(self, session: Session, heard_at: float) -> None:
        self.session = session
        self.epoch = session.epoch
        self.run = session.opening.run
        self.heard_at = heard_at
        self.lapsed = self.frozen = False
        self.ever: set[bytes] = set()
        self.last: tuple[Batch, Reply] | None = None


class Lives(RuleBasedStateMachine):
    """Workers of one crawl in memory."""

    store = "memory://machine"
    beats = False
    """A worker lives by its heartbeat, rather than by a lock it holds."""

    workers = Bundle("workers")

    def __init__(self) -> None:
        super().__init__()
        self.name = f"crawl{next(_crawls)}"
        self.frontiers: list[Frontier] = []
        self.everyone: list[Worker] = []
        self.crawl = Crawl()
        self.names = count()
        self.filter = Filter()
        self.skipped_s = 0.0
        self.heard_anybody_at = self.nobody_dies_before = self.now()
        self.steps = 0
        self.frontier = self._frontier()

    def _frontier(self) -> Frontier:
        frontier = open_store(self.store).frontier(self.name)
        self.frontiers.append(frontier)
        return frontier

    def teardown(self) -> None:
        for worker in self.everyone:
            worker.session.lapse()
        for frontier in self.frontiers:
            frontier.close()

    # --- time ---------------------------------------------------------------------------------

    def now(self) -> float:
        return time.monotonic() + self.skipped_s

    def skip(self, seconds: float) -> None:
        """Let time pass without waiting for it; where locks tell who lives, it changes nothing."""
        self.skipped_s += seconds

    # --- calls, and who died meanwhile ------------------------------------------------------

    def _registered(self) -> set[str]:
        """Who has not been declared dead: the one thing the model cannot know by itself."""
        assert isinstance(self.frontier, sqlite.SqliteFrontier)
        with self.frontier.database.transaction() as db:
            return {epoch for (epoch,) in db.execute("SELECT epoch FROM worker")}

    def _call(self, worker: Worker, call: Callable[[], T]) -> T:
        began = self.now()
        result = call()
        self._heard(began)
        worker.heard_at, worker.frozen = began, False
        return result

    def _heard(self, began: float, newcomer: str = "", survivors: set[str] | None = None) -> None:
        if began - self.heard_anybody_at > LEASE_S + CLOCK_S:
            # Nobody was heard: an outage, after which all get one more lease to speak up.
            self.nobody_dies_before = began + LEASE_S
        self.heard_anybody_at = self.now()
        if survivors is None:
            survivors = self._registered() - {newcomer}
        for worker in self.everyone:
            if worker.epoch in self.crawl.members - survivors:
                self._check_it_was_dead(worker)
                self.crawl.die(worker.epoch)
        assert survivors == self.crawl.members

    def _check_it_was_dead(self, worker: Worker) -> None:
        if self.beats:
            now = self.now() + CLOCK_S
            assert now - worker.heard_at >= LEASE_S, "a living worker was taken for dead"
            assert now >= self.nobody_dies_before, "the dead were counted right after an outage"
        else:
            assert worker.lapsed, "a living worker was taken for dead"

    def _awake(self) -> list[Worker]:
        return [w for w in self.everyone if w.epoch in self.crawl.members and self._is_awake(w)]

    def _is_awake(self, worker: Worker) -> bool:
        return not worker.lapsed and not worker.frozen

    def _silent(self) -> list[Worker]:
        return [w for w in self.everyone if w.epoch in self.crawl.members and not self._is_awake(w)]

    def _keep_alive(self, older_s: float = LEASE_S / 3) -> None:
        for worker in self._awake():
            if self.now() - worker.heard_at > older_s and worker.epoch in self.crawl.members:
                began = self.now()
                if worker.session.beat():
                    worker.heard_at = began
                    self._heard(began)
                else:
                    self._heard(self.heard_anybody_at)
                    assert worker.epoch not in self.crawl.members

    def _sync(self, worker: Worker, batch: Batch) -> Reply | None:
        """Send a batch and hold the answer against the model; None when the worker is not heard."""
        self._keep_alive()
        try:
            reply = self._call(worker, lambda: worker.session.sync(batch))
        except LeaseLost:
            lock_lost = worker.lapsed and not self.beats
            assert worker.epoch not in self.crawl.members or lock_lost, (
                "a living worker was refused"
            )
            return None
        except CrawlGone:
            assert worker.run != self.crawl.run
            return None
        assert worker.epoch in self.crawl.members, "a worker that was declared dead was heard"
        worker.lapsed = False
        self.crawl.check(worker.epoch, batch, reply)
        worker.ever |= {delivery.key for delivery in reply.taken}
        worker.last = batch, reply
        return reply

    # --- coming and going -------------------------------------------------------------------

    @initialize(
        target=workers,
        order=st.sampled_from(["fifo", "fifo", "lifo"]),
        kind=st.sampled_from(["bloom", "exact"]),
    )
    def begin(self, order: str, kind: str) -> Worker:
        self.crawl.order = order
        self.filter = Filter(kind, capacity=10)
        return self._join(resume=True)

    def _join(self, *, resume: bool) -> Worker:
        self._keep_alive()
        began = self.now()
        terms = Terms(
            lease_s=LEASE_S,
            max_deliveries=MAX_DELIVERIES,
            order=self.crawl.order,
            filter=self.filter,
            resume=resume,
            explicit=True,
        )
        worker = Worker(self._frontier().join(terms), began)
        opening = worker.session.opening
        if not opening.fresh:
            self._heard(began, newcomer=worker.epoch)
        elif not self.crawl.finished:
            # Nobody can have been alive: else this worker would have joined the others' run.
            self._heard(began, newcomer=worker.epoch, survivors=set())
        found = self.crawl.join(worker.epoch, resume=resume)
        assert found == ("fresh" if opening.fresh else "late" if opening.late else "resumed")
        counted = (opening.run, opening.waiting, opening.leased, opening.done, opening.dead)
        crawl = self.crawl
        mine = (crawl.run, len(crawl.waiting), len(crawl.leased), crawl.done, crawl.dead_now)
        assert (*counted, opening.workers) == (*mine, len(crawl.members))
        self.everyone.append(worker)
        return worker

    @rule(target=workers, resume=st.sampled_from([True, True, True, False]))
    def join(self, resume: bool) -> Any:
        if len(self.crawl.members) >= 3:
            return multiple()
        return self._join(resume=resume)

    @rule(worker=workers)
    def leave(self, worker: Worker) -> None:
        """Also one that was declared dead, or that belongs to a run before."""
        self._keep_alive()
        here = worker.epoch in self.crawl.members
        held = len(self.crawl.held_by(worker.epoch)) if here else 0
        assert worker.session.leave() == held
        if here:
            self.crawl.leave(worker.epoch)
        worker.lapsed = True

    @rule(worker=workers)
    def die(self, worker: Worker) -> None:
        worker.session.lapse()
        worker.lapsed = True

    @rule(worker=workers)
    def freeze(self, worker: Worker) -> None:
        """No beat until it acts again, in time or too late."""
        worker.frozen = True

    @precondition(lambda self: self._silent())
    @rule()
    def time_passes(self) -> None:
        """Whoever is silent is noticed soon, if it is dead; a freeze counts where beats do."""
        for _ in range(12):
            doomed = [worker for worker in self._silent() if self.beats or worker.lapsed]
            if not doomed or (not self._awake() and self._join(resume=True).session.opening.late):
                return
            self.skip(LEASE_S / 4)
            for worker in self._awake():
                self._sync(worker, Batch())
        raise AssertionError(f"{len(doomed)} dead workers are not noticed")

    @precondition(lambda self: self.beats)
    @rule()
    def nobody_is_heard_for_a_while(self) -> None:
        self.skip(LEASE_S * 1.1)

    # --- work -------------------------------------------------------------------------------

    @rule(worker=workers, plans=_PLANS, want=st.integers(0, 6), claim=st.booleans(), entered=_COUNT)
    def work(self, worker: Worker, plans: list[Plan], want: int, claim: bool, entered: int) -> None:
        """A batch of anything, about own leases, former ones and those of others."""
        pool = sorted(worker.ever | {page.key for page in self.crawl.leased})
        ops: list[Op] = []
        for kind, number, priority in plans:
            if kind in _ENDS and pool:
                ops.append(_ENDS[kind](pool.pop(number % len(pool))))
            elif kind not in _ENDS:
                ops.append(self._other_op(kind, number, priority))
        mine = [page.key for page in self.crawl.held_by(worker.epoch)]
        self._sync(worker, Batch(ops, want, mine[:entered], claim))

    def _other_op(self, kind: str, number: int, priority: int) -> Op:
        unique = b"%d" % next(self.names)
        if kind == "push":
            name = b"page %d" % number
            return Push(key_of(name), name, priority)
        if kind == "unfiltered":
            return Push(key_of(unique), b"u" + unique, priority, filtered=False)
        if kind == "start":
            position = max(0, self.crawl.start_position + number % 5 - 2)
            return Push(key_of(unique), b"s" + unique, priority, filtered=False, start=position)
        if kind == "bury":
            return Bury(key_of(unique), b"\0" + unique, "unserializable", "why")
        return StartDone(failed=number % 3 == 0)

    @rule(worker=workers)
    def take_everything(self, worker: Worker) -> None:
        """Nothing waits, but it is not over."""
        self._sync(worker, Batch([StartDone()], want=100, claim_start=True))
        if self.crawl.leased:
            self.finish(worker)

    @rule(worker=workers)
    def children_and_acknowledgement(self, worker: Worker) -> None:
        """What a page does to a crawl."""
        held = self.crawl.held_by(worker.epoch)
        if held:
            children = [b"%d" % next(self.names) for _ in range(2)]
            ops: list[Op] = [Push(key_of(name), name) for name in children]
            ops.append(Ack(held[0].key))
            self._sync(worker, Batch(ops, want=1, entered=[page.key for page in held]))

    @precondition(lambda self: self.beats)
    @rule(worker=workers)
    def repeat_after_a_lost_answer(self, worker: Worker) -> None:
        """The last call again, whatever has happened meanwhile: the same answer, no effect."""
        if worker.last is None:
            return
        assert isinstance(worker.session, RedisSession)
        self._keep_alive()
        batch, first = worker.last
        sequence = worker.session._sequence
        worker.session._sequence -= 1
        try:
            again = self._call(worker, lambda: worker.session.sync(batch))
        except (LeaseLost, CrawlGone):
            assert worker.epoch not in self.crawl.members
        else:
            assert worker.epoch in self.crawl.members
            worker.lapsed = False
            mine = (first.queued, first.taken, first.late)
            assert (again.queued, again.taken, again.late) == mine
            assert (again.waiting, again.leased, again.over) == (
                len(self.crawl.waiting),
                len(self.crawl.leased),
                self.crawl.over,
            )
        worker.session._sequence = sequence

    @precondition(lambda self: self.steps > 20)
    @rule(target=workers)
    def one_does_all_that_is_left(self) -> Any:
        """The rest of the crawl, to its end: what it then got must have been all."""
        for worker in self.everyone:
            self.leave(worker)
        self.pause(paused=False)
        worker = self._join(resume=True)
        if worker.session.opening.late:
            return multiple()
        self._sync(worker, Batch([StartDone()], claim_start=True))
        while (reply := self._sync(worker, Batch(want=5))) is not None and reply.taken:
            self._sync(worker, Batch([Ack(delivery.key) for delivery in reply.taken]))
        assert not self.crawl.pages
        self.finish(worker)
        if self.crawl.finished:
            assert self._join(resume=True).session.opening.late
        return worker

    # --- people -----------------------------------------------------------------------------

    @rule(paused=st.booleans())
    def pause(self, paused: bool) -> None:
        self.frontier.pause(paused)
        self.crawl.paused = paused

    @rule()
    def drop_without_force(self) -> None:
        self._keep_alive()
        if not self._awake():
            return
        with pytest.raises(FrontierError, match="live workers"):
            self.frontier.drop()

    @rule(worker=workers)
    def finish(self, worker: Worker) -> None:
        assert worker.session.finish() == self.crawl.finish(worker.run)

    @rule(which=st.none() | _COUNT)
    def replay(self, which: int | None) -> None:
        keys = sorted({key for key, _ in self.crawl.dead})
        chosen = keys[which : which + 2] if which is not None else None
        assert self.frontier.replay(chosen) == self.crawl.replay(chosen)

    @rule(which=_COUNT)
    def discard(self, which: int) -> None:
        keys = sorted({key for key, _ in self.crawl.dead})
        chosen = keys[which : which + 2]
        assert self.frontier.discard(chosen) == self.crawl.discard(chosen)

    @rule(number=_COUNT)
    def forget(self, number: int) -> None:
        key = key_of(b"page %d" % number)
        if key not in self.crawl.pages and (key, self.crawl.run) not in self.crawl.dead:
            assert self.frontier.forget(key) == self.crawl.forget(key)

    @rule()
    def look_at_dead_letters(self) -> None:
        letters = list(self.frontier.dead_letters())
        assert [letter.died_at for letter in letters] == sorted(
            letter.died_at for letter in letters
        )
        found = {
            (letter.key, letter.run): (letter.payload, letter.deaths, letter.failures)
            for letter in letters
        }
        assert len(found) == len(letters)
        assert found == {
            place: (page.payload, page.deaths, self.crawl.failures[place])
            for place, page in self.crawl.dead.items()
        }

    @invariant()
    def status_agrees(self) -> None:
        self.steps += 1
        status, crawl = self.frontier.status(), self.crawl
        counted = (status.waiting, status.leased, status.done, status.dead, status.seen)
        mine = (len(crawl.waiting), len(crawl.leased), crawl.done, crawl.dead_now, crawl.seen)
        assert (*counted, status.late, status.run) == (*mine, crawl.late, crawl.run)
        assert status.start == crawl.start_as_seen_by()
        assert (status.state == "finished") == crawl.finished
        assert (status.state == "paused") == (crawl.paused and not crawl.finished)
        for worker in status.workers:
            assert worker.leased == len(crawl.held_by(worker.epoch))


class SqliteLives(Lives):
    """The same in files, each worker with a connection of its own."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.store = f"sqlite://{self.folder.name}"
        super().__init__()

    def teardown(self) -> None:
        super().teardown()
        self.folder.cleanup()


class RedisLives(Lives):
    """The same on a Redis, where workers live by their heartbeats."""

    beats = True

    def _registered(self) -> set[str]:
        assert isinstance(self.frontier, RedisFrontier)
        members: Any = self.frontier.store.client.zrange(f"{self.frontier.base}workers", 0, -1)
        return {epoch.decode() for epoch in members}

    def skip(self, seconds: float) -> None:
        """Put every time back that the store has noted."""
        super().skip(seconds)
        assert isinstance(self.frontier, RedisFrontier)
        client, base, ms = self.frontier.store.client, self.frontier.base, round(seconds * 1000)
        for name in ("alive_at", "reap_at", "reaped_at"):
            client.hincrby(f"{base}state", name, -ms)
        for name in ("workers", "hungry"):
            members: Any = client.zrange(f"{base}{name}", 0, -1)
            for epoch in members:
                client.zincrby(f"{base}{name}", -ms, epoch)

    def teardown(self) -> None:
        assert isinstance(self.frontier, RedisFrontier)
        self.frontier.store.client.flushall()
        super().teardown()


def live(machine: type[Lives], examples: int) -> None:
    deep = os.environ.get("HYPOTHESIS_PROFILE") == "deep"
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=500 if deep else examples,
            stateful_step_count=40,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate, Phase.shrink) if deep else (Phase.generate,),
        ),
    )


@pytest.fixture
def _no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dead are noticed by the next call, and hunger does not wear off."""
    monkeypatch.setattr(sqlite.session, "REAP_EVERY_S", 0.0)
    monkeypatch.setattr(sqlite.session, "HUNGRY_FOR_S", 3_600.0)


@pytest.mark.timeout(3_000)
@pytest.mark.usefixtures("_no_clock")
def test_lives_in_memory() -> None:
    try:
        live(Lives, 60)
    finally:
        sqlite.MemoryStore._shared.clear()


@pytest.mark.timeout(3_000)
@pytest.mark.usefixtures("_no_clock")
def test_lives_in_sqlite() -> None:
    live(SqliteLives, 30)


@pytest.mark.timeout(3_000)
def test_lives_in_redis(shared_redis: RedisServer, redis_url: str) -> None:
    RedisLives.store = redis_url
    live(RedisLives, 30)
