"""One worker's stay in a crawl: each call is one transaction."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING, cast

from clusterscrapy.frontier.protocol import (
    Ack,
    Batch,
    Bury,
    CrawlGone,
    Delivery,
    Fail,
    LeaseLost,
    Opening,
    Push,
    Release,
    Reply,
    StartDone,
    Terms,
)
from clusterscrapy.frontier.sqlite.leases import forget_worker, put_back, reap, return_leases
from clusterscrapy.frontier.sqlite.letters import bury
from clusterscrapy.frontier.sqlite.state import COUNTERS, State, forget_seen

if TYPE_CHECKING:
    from clusterscrapy.frontier.sqlite.store import SqliteFrontier

REAP_EVERY_S = 1.0
HUNGRY_FOR_S = 2.0


class SqliteSession:
    """One worker in a :class:`SqliteFrontier`."""

    def __init__(
        self, frontier: SqliteFrontier, terms: Terms, epoch: str, opening: Opening
    ) -> None:
        self.frontier = frontier
        self.terms = terms
        self.epoch = epoch
        self.opening = opening
        self._reaped_at = 0.0

    def sync(self, batch: Batch) -> Reply:
        """See :meth:`clusterscrapy.frontier.protocol.Session.sync`."""
        with self.frontier.database.transaction() as db:
            self._check_in(db)
            state = State(db)
            if time.monotonic() - self._reaped_at > REAP_EVERY_S:
                self._reaped_at = time.monotonic()
                state.set("active_at", time.time())
                reap(db, self.frontier.lives, self.terms.max_deliveries)
            return Step(db, state, self.epoch, self.opening.run, self.terms).apply(batch)

    def _check_in(self, db: sqlite3.Connection) -> None:
        if State(db).get("run", 0) != self.opening.run:
            raise CrawlGone(f"crawl {self.frontier.name} was dropped or begun anew")
        known = db.execute("SELECT 1 FROM worker WHERE epoch = ?", (self.epoch,)).fetchone()
        if not known or not self.frontier.lives.held(self.epoch):
            raise LeaseLost(f"worker {self.terms.worker} was taken for dead")

    def beat(self) -> bool:
        """True while the lock is held: the lock itself is the heartbeat."""
        return self.frontier.lives.held(self.epoch)

    def lapse(self) -> None:
        """Let go of the lock."""
        self.frontier.lives.end(self.epoch)

    def finish(self) -> bool:
        """See :meth:`clusterscrapy.frontier.protocol.Session.finish`."""
        with self.frontier.database.transaction() as db:
            state = State(db)
            if state.get("run", 0) != self.opening.run:
                return False
            if state.get("finished_at", 0.0):
                return True
            over = not state.get("waiting", 0) and not state.get("leased", 0)
            if not over or state.get("start", "") != "done":
                return False
            state.set("finished_at", time.time())
            state.set("keep", int(self.terms.keep))
            return True

    def leave(self) -> int:
        """See :meth:`clusterscrapy.frontier.protocol.Session.leave`."""
        try:
            with self.frontier.database.transaction() as db:
                if State(db).get("run", 0) != self.opening.run:
                    return 0
                returned = return_leases(db, self.epoch, None)
                forget_worker(db, self.epoch)
                forget_seen(db)
                return returned
        finally:
            self.frontier.lives.end(self.epoch)


class Step:
    """One :class:`Batch` against one transaction."""

    def __init__(
        self, db: sqlite3.Connection, state: State, epoch: str, run: int, terms: Terms
    ) -> None:
        self.db = db
        self.state = state
        self.epoch = epoch
        self.run = run
        self.terms = terms
        self.filtered = state.get("filter", "bloom") != "none"
        self.delta = dict.fromkeys(COUNTERS, 0)
        self.queued: list[bool] = []

    def apply(self, batch: Batch) -> Reply:
        """Do what the batch says, in its order, and answer."""
        if batch.claim_start and self.state.get("start", "") == "":
            self.state.set("start", self.epoch)
            self.state.set("touched", 1)
        for op in batch.ops:
            self._apply(op)
        if any(self.queued) and self.state.get("finished_at", 0.0):
            self.state.set("finished_at", 0.0)
        if batch.entered:
            self.db.executemany(
                "UPDATE lease SET entered = 1 WHERE key = ? AND epoch = ?",
                [(key, self.epoch) for key in batch.entered],
            )
        self.delta["items"] += batch.items
        waiting = self.state.get("waiting", 0) + self.delta["waiting"]
        want, limit = self._bounded(batch.want)
        taken: Sequence[Delivery] = ()
        paused = bool(self.state.get("paused", 0))
        hungry = self._others_hungry()
        if want and not paused:
            taken = self._take(self._share(want, waiting, hungry))
            if taken and not self.state.get("touched", 0):
                self.state.set("touched", 1)
            if taken or not waiting:
                hungry_at = 0.0 if taken else time.time()
                self.db.execute(
                    "UPDATE worker SET hungry_at = ? WHERE epoch = ?", (hungry_at, self.epoch)
                )
        for name, delta in self.delta.items():
            self.state.add(name, delta)
        reply = Reply(
            queued=self.queued,
            taken=taken,
            late=self.delta["late"],
            waiting=self.state.get("waiting", 0),
            leased=self.state.get("leased", 0),
            workers=self.db.execute("SELECT count(*) FROM worker").fetchone()[0],
            start=self.state.start_words(self.epoch),
            paused=paused,
            hungry=hungry,
            generation=self.state.get("generation", 0),
            limit=limit,
        )
        if reply.over:
            # If all die before one of them marks the end, the next to join knows when it was.
            self.state.set("over_at", time.time())
        return reply

    def _apply(self, op: object) -> None:
        if type(op) is Push:
            self._push(op)
        elif type(op) is Ack:
            if self._unlease(op.key) is not None:
                self.delta["done"] += 1
        elif type(op) is Fail:
            if lease := self._unlease(op.key):
                _seq, priority, deaths, payload = lease
                self._bury(op.key, payload, op.reason, op.detail, priority, deaths)
        elif type(op) is Release:
            if lease := self._unlease(op.key):
                put_back(self.db, op.key, *lease)
                self.delta["waiting"] += 1
        elif type(op) is Bury:
            self._bury(op.key, op.payload, op.reason, op.detail, 0, 0)
        elif type(op) is StartDone and self.state.get("start", "") == self.epoch:
            self.state.set("start", "failed" if op.failed else "done")

    def _push(self, push: Push) -> None:
        fresh = self._first_time(push)
        self.queued.append(fresh)
        if fresh:
            self.db.execute(
                "INSERT INTO queue (priority, key, deaths, payload) VALUES (?, ?, 0, ?)",
                (push.priority, push.key, push.payload),
            )
            self.delta["waiting"] += 1

    def _first_time(self, push: Push) -> bool:
        if push.start >= 0:
            if push.start < self.state.get("start_position", 0):
                return False
            self.state.set("start_position", push.start + 1)
            return True
        if not push.filtered or not self.filtered:
            return True
        fresh = self.db.execute("INSERT OR IGNORE INTO seen VALUES (?)", (push.key,)).rowcount == 1
        self.delta["seen"] += fresh
        return fresh

    def _unlease(self, key: bytes) -> tuple[int, int, int, bytes] | None:
        row = self.db.execute(
            "DELETE FROM lease WHERE key = ? AND epoch = ? RETURNING seq, priority, deaths, payload",
            (key, self.epoch),
        ).fetchone()
        self.delta["leased" if row else "late"] += -1 if row else 1
        return cast("tuple[int, int, int, bytes] | None", row)

    def _bury(
        self, key: bytes, payload: bytes, reason: str, detail: str, priority: int, deaths: int
    ) -> None:
        bury(self.db, key, payload, reason, detail, priority, deaths, self.terms.worker)

    def _others_hungry(self) -> bool:
        return bool(
            self.db.execute(
                "SELECT 1 FROM worker WHERE epoch != ? AND hungry_at > ?",
                (self.epoch, time.time() - HUNGRY_FOR_S),
            ).fetchone()
        )

    def _bounded(self, want: int) -> tuple[int, str]:
        """How many more requests may be out, and the bound that the crawl has reached."""
        bounds, limit = self.terms.bounds, ""
        if bounds.pages:
            done = self._now("done")
            want = max(0, min(want, bounds.pages - done - self._now("leased")))
            if done >= bounds.pages:
                limit = "pages"
        if bounds.items and self._now("items") >= bounds.items:
            limit = "items"
        if bounds.seconds and time.time() - self.state.get("started_at", 0.0) >= bounds.seconds:
            limit = "seconds"
        return (0, limit) if limit else (want, "")

    def _now(self, counter: str) -> int:
        return int(self.state.get(counter, 0)) + self.delta[counter]

    def _share(self, want: int, waiting: int, hungry: bool) -> int:
        """While another worker has nothing, nobody takes more than an even part."""
        if not hungry:
            return want
        mine, leased, workers = self.db.execute(
            "SELECT (SELECT count(*) FROM lease WHERE epoch = ?), (SELECT count(*) FROM lease), "
            "(SELECT count(*) FROM worker)",
            (self.epoch,),
        ).fetchone()
        even: int = ceil((waiting + leased) / workers)
        return max(0, min(want, even - int(mine)))

    def _take(self, count: int) -> list[Delivery]:
        direction = "DESC" if self.state.get("order", "fifo") == "lifo" else "ASC"
        rows = self.db.execute(
            # What somebody else wrote has any type; the codec says what is no request.
            "SELECT seq, CAST(priority AS INTEGER), CAST(key AS BLOB), CAST(deaths AS INTEGER), "
            "CAST(payload AS BLOB) FROM queue "
            f"ORDER BY priority DESC, seq {direction} LIMIT ?",
            (count,),
        ).fetchall()
        now = time.time()
        self.db.executemany("DELETE FROM queue WHERE seq = ?", [(row[0],) for row in rows])
        self.db.executemany(
            "INSERT INTO lease (key, epoch, since, seq, priority, deaths, payload) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            [(key, self.epoch, now, seq, prio, deaths, p) for seq, prio, key, deaths, p in rows],
        )
        self.delta["waiting"] -= len(rows)
        self.delta["leased"] += len(rows)
        return [Delivery(key, payload, deaths, prio) for _, prio, key, deaths, payload in rows]


# --- steps shared by sessions and joins ------------------------------------------------
