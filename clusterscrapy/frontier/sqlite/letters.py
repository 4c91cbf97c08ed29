"""Dead letters as rows."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from typing import Any

from clusterscrapy.frontier.codec import NOTE
from clusterscrapy.frontier.protocol import UNREADABLE, DeadLetter
from clusterscrapy.frontier.sqlite.state import State

_LETTER = (bytes, bytes, str, str, float, int, int, str, float, str, int)


def bury(
    db: sqlite3.Connection,
    key: bytes,
    payload: bytes,
    reason: str,
    detail: str,
    priority: int,
    deaths: int,
    worker: str,
) -> None:
    """Write one dead letter; one that failed before keeps its first failure."""
    state = State(db)
    run, now = state.get("run", 0), time.time()
    known = db.execute(
        "SELECT first_at, first_reason, CAST(failures AS INTEGER) FROM dead WHERE key = ?1 AND run = ?2 "
        "UNION ALL SELECT first_at, first_reason, CAST(failures AS INTEGER) FROM failed_before "
        "WHERE key = ?1 AND run = ?2",
        (key, run),
    ).fetchone()
    first_at, first_reason, failures = known or (now, reason, 0)
    if not db.execute("DELETE FROM dead WHERE key = ? AND run = ?", (key, run)).rowcount:
        state.add("dead", 1)
    db.execute("DELETE FROM failed_before WHERE key = ? AND run = ?", (key, run))
    # A message may hold what no text column can: a lone half of a surrogate pair.
    detail = detail.encode("utf-8", "backslashreplace").decode()
    db.execute(
        "INSERT INTO dead VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(key, run, reason, detail, now, deaths, priority, worker, payload),
            *(first_at, first_reason, failures + 1),
        ),
    )


def exhume(db: sqlite3.Connection, key: bytes, run: int) -> None:
    """Take a dead letter away."""
    db.execute("DELETE FROM dead WHERE key = ? AND run = ?", (key, run))
    state = State(db)
    if run == state.get("run", 0):
        state.add("dead", -1)


def dead_letter_of(row: tuple[Any, ...]) -> DeadLetter:
    """The letter of a row, readable or not."""
    if all(isinstance(value, kind) for value, kind in zip(row, _LETTER, strict=True)):
        return DeadLetter(*row)
    detail = "what the file holds of it is no dead letter"
    return DeadLetter(_key(row[0]), b"", UNREADABLE, detail, 0.0, 0, 0, "?")


def _key(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def is_request(key: object, run: object, payload: object) -> bool:
    """Can it be queued again?"""
    return (
        isinstance(key, bytes)
        and isinstance(run, int)
        and isinstance(payload, bytes)
        and payload[:1] not in (b"", bytes([NOTE]))
    )


def chosen(db: sqlite3.Connection, keys: Sequence[bytes] | None) -> list[Any]:
    """Rows of the letters with these keys, or of all, oldest first."""
    rows = db.execute(
        "SELECT key, run, priority, payload, first_at, first_reason, failures FROM dead "
        "ORDER BY died_at, rowid"
    ).fetchall()
    wanted = None if keys is None else set(keys)
    return [row for row in rows if wanted is None or _key(row[0]) in wanted]
