"""Random lives of workers on each frontier, held against a plain model.

The model knows where each request is: waiting, leased by one worker, done or dead. Whatever the
workers do, also die, freeze and come back, the frontier has to agree: nothing is lost, nothing
is leased twice at once, and the end is seen exactly when it is there.

``HYPOTHESIS_PROFILE=deep`` runs five hundred lives instead of a few dozen.
"""

from __future__ import annotations

import os
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from clusterscrapy.frontier import (
    Ack,
    Batch,
    Fail,
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
)
from clusterscrapy.frontier.redis import RedisSession
from clusterscrapy.frontier.sqlite import MemoryStore

if TYPE_CHECKING:
    from tests.servers import RedisServer

LEASE_S = 0.15
_numbers = count()


class Worker:
    """A session, and what the model thinks it holds."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.held: set[bytes] = set()
        self.alive = True
        self.gone = False


class Lives(RuleBasedStateMachine):
    """Workers of one crawl."""

    store = "memory://machine"
    repeats_calls = False

    workers = Bundle("workers")

    def __init__(self) -> None:
        super().__init__()
        self.name = f"crawl{next(_numbers)}"
        self.frontiers: list[Frontier] = []
        self.everyone: list[Worker] = []
        self.priority: dict[bytes, int] = {}
        self.place: dict[bytes, str] = {}
        self.order: list[bytes] = []
        self.seen: set[bytes] = set()
        self.start = ""
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

    # --- the model --------------------------------------------------------------------------

    def _count(self, place: str) -> int:
        return sum(where == place for where in self.place.values())

    def _sync(
        self, worker: Worker, *ops: Op, want: int = 0, claim_start: bool = False
    ) -> Reply | None:
        """Send a batch, repeat it where replies can get lost, and check what came back."""
        batch = Batch(ops, want, claim_start=claim_start)
        self._keep_alive()
        try:
            reply = worker.session.sync(batch)
        except LeaseLost:
            assert not worker.alive, "a living worker was taken for dead"
            self._bury(worker)
            return None
        assert not worker.gone, "a worker whose leases went to others was heard"
        if self.repeats_calls and isinstance(worker.session, RedisSession):
            worker.session._sequence -= 1
            assert worker.session.sync(batch).taken == reply.taken
        worker.alive = True
        self._take(worker, reply)
        if claim_start and self.start == "":
            self.start = worker.session.epoch
        return reply

    def _keep_alive(self) -> None:
        for worker in self.everyone:
            if worker.alive:
                assert worker.session.beat()

    def _take(self, worker: Worker, reply: Reply) -> None:
        for delivery in reply.taken:
            assert self.place[delivery.key] == "waiting", (
                "a request was leased twice, or after its end"
            )
            self.place[delivery.key] = "leased"
            worker.held.add(delivery.key)
        taken = [self.priority[d.key] for d in reply.taken]
        assert taken == sorted(taken, reverse=True), "a lower priority came first"

    def _bury(self, worker: Worker) -> None:
        """The frontier took it for dead: all it held waits again."""
        worker.alive, worker.gone = False, True
        for key in worker.held:
            self.place[key] = "waiting"
        worker.held.clear()
        if self.start == worker.session.epoch:
            self.start = ""

    # --- what may happen -------------------------------------------------------------------------

    @rule(target=workers)
    def join(self) -> object:
        if sum(not worker.gone for worker in self.everyone) >= 4:
            return multiple()
        self._keep_alive()
        worker = Worker(self._frontier().join(Terms(lease_s=LEASE_S, max_deliveries=1_000)))
        self.everyone.append(worker)
        if worker.session.opening.late or worker.session.opening.run != 1:
            raise AssertionError("a crawl that is not over was taken for finished")
        return worker

    @rule(
        worker=workers, names=st.lists(st.integers(0, 30), max_size=6), priority=st.integers(-1, 1)
    )
    def push(self, worker: Worker, names: list[int], priority: int) -> None:
        ops = [Push(key_of(b"%d" % n), b"%d" % n, priority) for n in names]
        if (reply := self._sync(worker, *ops)) is None:
            return
        for op, queued in zip(ops, reply.queued, strict=True):
            assert queued == (op.key not in self.seen), "seen and queued disagree"
            if queued:
                self.seen.add(op.key)
                self.place[op.key], self.priority[op.key] = "waiting", priority

    @rule(worker=workers)
    def push_unfiltered(self, worker: Worker) -> None:
        key = key_of(b"unfiltered %d" % next(_numbers))
        if self._sync(worker, Push(key, b"u", 0, filtered=False)) is not None:
            self.place[key], self.priority[key] = "waiting", 0

    @rule(worker=workers, want=st.integers(1, 8))
    def take(self, worker: Worker, want: int) -> None:
        waiting = self._count("waiting")
        reply = self._sync(worker, want=want)
        if reply is not None and not reply.hungry and not self._anyone_doomed():
            assert len(reply.taken) == min(want, waiting), "a waiting request was not given out"

    @rule(worker=workers, how=st.sampled_from(["ack", "fail", "release"]), data=st.data())
    def end(self, worker: Worker, how: str, data: st.DataObject) -> None:
        if not worker.held:
            return
        key = data.draw(st.sampled_from(sorted(worker.held)))
        ops: dict[str, Op] = {"ack": Ack(key), "fail": Fail(key, "r", "d"), "release": Release(key)}
        op = ops[how]
        if self._sync(worker, op) is not None:
            self.place[key] = {"ack": "done", "fail": "dead", "release": "waiting"}[how]
            worker.held.discard(key)

    @rule(worker=workers, other=workers)
    def end_what_another_holds(self, worker: Worker, other: Worker) -> None:
        if worker is other or not other.held:
            return
        key = min(other.held)
        reply = self._sync(worker, Ack(key), Release(key))
        assert reply is None or reply.late == 2

    @rule(worker=workers)
    def children_and_acknowledgement(self, worker: Worker) -> None:
        if not worker.held:
            return
        parent, number = min(worker.held), next(_numbers) + 1_000
        child = key_of(b"%d" % number)
        if self._sync(worker, Push(child, b"%d" % number), Ack(parent)) is None:
            return
        self.seen.add(child)
        self.place[child], self.priority[child] = "waiting", 0
        self.place[parent] = "done"
        worker.held.discard(parent)

    @rule(worker=workers)
    def claim_start(self, worker: Worker) -> None:
        reply = self._sync(worker, claim_start=True)
        if reply is not None and not self._anyone_doomed():
            mine = self.start == worker.session.epoch
            assert reply.start == (
                self.start if self.start == "done" else "mine" if mine else "theirs"
            )

    @rule(worker=workers)
    def end_start(self, worker: Worker) -> None:
        if self._sync(worker, StartDone()) is not None and self.start == worker.session.epoch:
            self.start = "done"

    @rule(worker=workers)
    def freeze(self, worker: Worker) -> None:
        """Silent for longer than a lease. Whether others notice depends on what they do meanwhile."""
        if worker.gone:
            return
        worker.alive = False
        if self.store.startswith("redis"):
            end = time.monotonic() + LEASE_S * 1.2
            while time.monotonic() < end:
                self._keep_alive()
                time.sleep(LEASE_S / 5)
        else:
            worker.session.lapse()

    @rule(worker=consumes(workers))
    def leave(self, worker: Worker) -> None:
        if worker.alive:
            self._keep_alive()
            assert worker.session.leave() == len(worker.held)
            self._bury(worker)

    def _anyone_doomed(self) -> bool:
        """Somebody is silent and not yet declared dead, so the model does not know what waits."""
        return any(not worker.alive and not worker.gone for worker in self.everyone)

    @invariant()
    def the_frontier_agrees(self) -> None:
        """Declare the silent dead first, so that both sides mean the same."""
        self._settle()
        status = self.frontier.status()
        counted = (status.waiting, status.leased, status.done, status.dead, status.seen)
        mine = tuple(self._count(place) for place in ("waiting", "leased", "done", "dead"))
        assert counted == (*mine, len(self.seen))
        assert status.start == (self.start if self.start in ("", "done") else "theirs")

    def _settle(self) -> None:
        for worker in self.everyone:
            if worker.alive or worker.gone:
                continue
            probe = self._frontier().join(
                Terms(worker="probe", lease_s=LEASE_S, max_deliveries=1_000)
            )
            end = time.monotonic() + 4 * LEASE_S + 1
            while worker.session.epoch in {w.epoch for w in self.frontier.status().workers} or (
                self.store.startswith("redis") and not self._declared_dead(worker)
            ):
                assert time.monotonic() < end, "a dead worker was never noticed"
                probe.sync(Batch())
                self._keep_alive()
                time.sleep(0.02)
            probe.sync(Batch())
            probe.leave()
            self._bury(worker)

    def _declared_dead(self, worker: Worker) -> bool:
        assert isinstance(worker.session, RedisSession)
        frontier = worker.session.frontier
        epochs = frontier.store.client.zrange(f"{frontier.base}workers", 0, -1)
        return worker.session.epoch.encode() not in epochs

    @rule(worker=workers)
    def look_for_the_end(self, worker: Worker) -> None:
        reply = self._sync(worker)
        if reply is not None:
            open_ = self._count("waiting") + self._count("leased")
            assert reply.over == (not open_ and self.start == "done")


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
    """The same on a Redis, every call repeated as if its answer had been lost."""

    repeats_calls = True


def run(machine: type[Lives], examples: int) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    deep = os.environ.get("HYPOTHESIS_PROFILE") == "deep"
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=500 if deep else examples,
            stateful_step_count=30,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate, Phase.shrink) if deep else (Phase.generate,),
        ),
    )


@pytest.mark.timeout(3_000)
def test_lives_in_memory() -> None:
    try:
        run(Lives, 60)
    finally:
        MemoryStore._shared.clear()


@pytest.mark.timeout(3_000)
def test_lives_in_sqlite(tmp_path: Path) -> None:
    run(SqliteLives, 25)


@pytest.mark.timeout(3_000)
def test_lives_in_redis(shared_redis: RedisServer, redis_url: str) -> None:
    RedisLives.store = redis_url
    run(RedisLives, 20)
