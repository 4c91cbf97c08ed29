"""The state of a crawl: a few named values, and the counters."""

from __future__ import annotations

import math
import sqlite3
from typing import Any

from clusterscrapy.frontier.sqlite.database import Odd

COUNTERS = ("waiting", "leased", "done", "seen", "late", "items")


class State:
    """The ``state`` table as a small dictionary."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db

    def get(self, name: str, default: Any) -> Any:
        """A value; it must be a text when ``default`` is one, else a number."""
        row = self.db.execute("SELECT value FROM state WHERE name = ?", (name,)).fetchone()
        if row is None:
            return default
        value = row[0]
        if isinstance(default, str) is not isinstance(value, str) or _is_no_number(value):
            raise Odd(f"its state holds {value!r:.40} as {name}")
        return value

    def set(self, name: str, value: object) -> None:
        """Write a value."""
        self.db.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (name, value))

    def add(self, name: str, delta: int) -> None:
        """Change a counter."""
        if delta:
            self.db.execute(
                "INSERT INTO state VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET value = value + ?2",
                (name, delta),
            )

    def dead(self) -> int:
        """Dead letters of this run."""
        return int(self.get("dead", 0))

    def words(self, alive: bool) -> str:
        """What a person calls this state; ``alive``: workers are inside."""
        if self.get("dropped", 0):
            return "dropped"
        if self.get("finished_at", 0.0):
            return "finished"
        if self.get("paused", 0):
            return "paused"
        return "running" if alive else "stopped"

    def start_words(self, epoch: str = "") -> str:
        """Who runs ``start()``, as :attr:`Reply.start` has it."""
        start = str(self.get("start", ""))
        if start in ("", "done", "failed"):
            return start
        return "mine" if start == epoch else "theirs"


def _is_no_number(value: object) -> bool:
    return not isinstance(value, str | int | float) or (
        isinstance(value, float) and not math.isfinite(value)
    )


def empty(db: sqlite3.Connection) -> None:
    """Forget everything but dead letters."""
    for table in ("state", "queue", "lease", "seen", "worker"):
        db.execute(f"DELETE FROM {table}")


def forget_seen(db: sqlite3.Connection) -> None:
    """Drop the memory of a finished crawl that everybody has left.

    Dead letters may be replayed: their pages need it.
    """
    state = State(db)
    if not state.get("finished_at", 0.0) or state.get("keep", 0) or state.dead():
        return
    if not db.execute("SELECT 1 FROM worker").fetchone():
        db.execute("DELETE FROM seen")
        state.set("forgotten", 1)
