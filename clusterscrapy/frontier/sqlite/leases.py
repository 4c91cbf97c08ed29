"""How leases come back: from who left, and from who died."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

from clusterscrapy.frontier.sqlite.letters import bury
from clusterscrapy.frontier.sqlite.state import State

if TYPE_CHECKING:
    from clusterscrapy.frontier.liveness import Liveness


def put_back(
    db: sqlite3.Connection, key: bytes, seq: int, priority: int, deaths: int, payload: bytes
) -> None:
    """Queue a page again where it stood."""
    db.execute(
        "INSERT INTO queue (seq, priority, key, deaths, payload) VALUES (?, ?, ?, ?, ?)",
        (seq, priority, key, deaths, payload),
    )


def forget_worker(db: sqlite3.Connection, epoch: str) -> None:
    """It is no longer inside, and runs ``start()`` no longer."""
    db.execute("DELETE FROM worker WHERE epoch = ?", (epoch,))
    db.execute("UPDATE state SET value = '' WHERE name = 'start' AND value = ?", (epoch,))


def reap(db: sqlite3.Connection, lives: Liveness, max_deliveries: int) -> None:
    """Return the leases of workers whose lock is gone."""
    for (epoch,) in db.execute("SELECT epoch FROM worker").fetchall():
        if not lives.alive(epoch):
            return_leases(db, epoch, max_deliveries)
            forget_worker(db, epoch)
            lives.sweep(epoch)


def return_leases(db: sqlite3.Connection, epoch: str, max_deliveries: int | None) -> int:
    """Put an epoch's leases back. With ``max_deliveries`` its worker died: count the deaths."""
    rows = db.execute(
        "DELETE FROM lease WHERE epoch = ? "
        "RETURNING key, entered, seq, priority, CAST(deaths AS INTEGER), payload",
        (epoch,),
    ).fetchall()
    # A page that kills at once leaves no time to say what was inside: then all were.
    blame_all = not any(row[1] for row in rows)
    worker = db.execute("SELECT name FROM worker WHERE epoch = ?", (epoch,)).fetchone()
    returned = 0
    for key, entered, seq, priority, deaths, payload in rows:
        if max_deliveries is not None and (entered or blame_all):
            now_dead = deaths + 1
            if now_dead >= max_deliveries:
                detail = f"{now_dead} workers died while it was fetched or parsed"
                name = worker[0] if worker else epoch
                bury(db, key, payload, "poison", detail, priority, now_dead, name)
                continue
            put_back(db, key, seq, priority, now_dead, payload)
        else:
            put_back(db, key, seq, priority, deaths, payload)
        returned += 1
    state = State(db)
    state.add("leased", -len(rows))
    state.add("waiting", returned)
    return returned
