"""How a worker comes into a crawl."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from clusterscrapy.frontier.protocol import (
    Opening,
    SchemeMismatch,
    Terms,
    scheme_sentence,
    stored_wins_sentence,
)
from clusterscrapy.frontier.sqlite.leases import reap
from clusterscrapy.frontier.sqlite.state import State, empty

if TYPE_CHECKING:
    from clusterscrapy.frontier.liveness import Liveness


class Entrance:
    """Decides what a joining worker finds: a new run, a crawl to resume, or a finished one."""

    def __init__(self, db: sqlite3.Connection, lives: Liveness, terms: Terms) -> None:
        self.db = db
        self.lives = lives
        self.terms = terms
        self.state = State(db)

    def enter(self, epoch: str) -> Opening:
        """Let a worker in under this epoch, unless it comes too late."""
        reap(self.db, self.lives, self.terms.max_deliveries)
        alone = not self.db.execute("SELECT 1 FROM worker").fetchone()
        run = self.state.get("run", 0)
        fresh = not run or bool(self.state.get("dropped", 0))
        if not fresh and alone:
            self._tidy_end()
        finished = self.state.get("finished_at", 0.0)
        ago = max(0.0, time.time() - finished) if finished else 0.0
        if not fresh and finished:
            if self.terms.resume and (self.terms.explicit or ago < self.terms.hold_s):
                return self._opening(run, late=True, ago=ago)
            fresh = True
        elif not fresh and alone and not self.terms.resume:
            fresh = True
        notes: list[str] = []
        if fresh:
            run = self._begin(run + 1)
        else:
            self._check_scheme()
            notes = self._stored_wins()
        self.state.set("active_at", time.time())
        self.db.execute(
            "INSERT INTO worker (epoch, name, info, joined_at) VALUES (?, ?, ?, ?)",
            (epoch, self.terms.worker, json.dumps(self.terms.info), time.time()),
        )
        return self._opening(run, fresh=fresh, notes=notes)

    def _tidy_end(self) -> None:
        """With nobody inside: a crawl that ended unmarked is finished, a failed start() is due again."""
        if self.state.get("start", "") == "failed":
            self.state.set("start", "")
        over = not self.state.get("waiting", 0) and self.state.get("start", "") == "done"
        if over and not self.state.get("finished_at", 0.0):
            over_at = self.state.get("over_at", 0.0)
            self.state.set("finished_at", over_at or time.time() - self.terms.hold_s)

    def _begin(self, run: int) -> int:
        empty(self.db)
        terms = self.terms
        for name, value in (
            ("run", run),
            ("scheme", terms.scheme.digest),
            ("scheme_words", terms.scheme.words),
            ("filter", terms.filter.kind),
            ("order", terms.order),
            ("started_at", time.time()),
        ):
            self.state.set(name, value)
        return run

    def _check_scheme(self) -> None:
        if self.state.get("scheme", "") != self.terms.scheme.digest:
            raise SchemeMismatch(
                scheme_sentence(str(self.state.get("scheme_words", "")), self.terms.scheme.words)
            )

    def _stored_wins(self) -> list[str]:
        return [
            stored_wins_sentence(setting, mine, stored)
            for setting, name, mine in (
                ("CLUSTER_DUPEFILTER", "filter", self.terms.filter.kind),
                ("CLUSTER_QUEUE_ORDER", "order", self.terms.order),
            )
            if (stored := str(self.state.get(name, mine))) != mine
        ]

    def _opening(
        self,
        run: int,
        *,
        fresh: bool = False,
        late: bool = False,
        ago: float = 0.0,
        notes: Sequence[str] = (),
    ) -> Opening:
        workers = self.db.execute("SELECT count(*) FROM worker").fetchone()[0]
        return Opening(
            run=run,
            fresh=fresh,
            touched=bool(self.state.get("touched", 0)),
            late=late,
            finished_ago_s=ago,
            waiting=self.state.get("waiting", 0),
            leased=self.state.get("leased", 0),
            done=self.state.get("done", 0),
            dead=self.state.dead(),
            workers=workers,
            notes=notes,
        )
