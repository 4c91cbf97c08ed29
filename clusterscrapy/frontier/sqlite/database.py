"""The file of one crawl: opened, laid out, worked on in transactions, and what is wrong with it in words."""

from __future__ import annotations

import os
import re
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

from clusterscrapy.exceptions import (
    ConfigError,
    FrontierDamaged,
    FrontierError,
    FrontierUnavailable,
    FrontierUnusable,
)

LAYOUT = 1
"""Version of ``schema.sql``, kept in the file's ``user_version``."""
_BUSY_TIMEOUT_S = 5.0
_RIGHTS = re.compile(r"readonly database|unable to open|authorization denied|access permission")
_GARBAGE = re.compile(r"no such (table|column)|has no column|values were supplied|malformed|decode")


class Odd(Exception):
    """A value that we never write at its place."""


# UnicodeDecodeError: Python cannot read SQLite's own message when it quotes the damage.
_GARBLED = (sqlite3.DatabaseError, UnicodeDecodeError, Odd)


class Database:
    """A crawl's SQLite database (``path`` None: in memory)."""

    def __init__(self, name: str, path: Path | None) -> None:
        self.name = name
        self.path = path
        self._db: sqlite3.Connection | None = None
        # One connection for all threads of this object; the lock also makes a transaction whole.
        self._lock = threading.RLock()

    def _open(self) -> sqlite3.Connection:
        try:
            if self.path is not None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            db = _connected(str(self.path or ":memory:"))
            db.execute("PRAGMA journal_mode = WAL")
            # NORMAL: a killed process loses nothing; a power cut may take back the last commits,
            # whole and in order, so pages are fetched again rather than lost.
            db.execute("PRAGMA synchronous = NORMAL")
            self._lay_out(db)
        except sqlite3.OperationalError as exc:
            if "locked" in str(exc) or "busy" in str(exc):
                raise FrontierUnavailable(f"{self.path} is locked by another process") from exc
            raise (self._damaged if _GARBAGE.search(str(exc)) else self.unusable)(exc) from exc
        except _GARBLED as exc:
            raise self._damaged(exc) from exc
        except OSError as exc:
            raise self.unusable(exc) from exc
        return db

    def _open_to_look(self) -> sqlite3.Connection:
        """Open a file that this user may read but not write to."""
        assert self.path is not None
        uri = f"{self.path.absolute().as_uri()}?mode=ro"
        # Reading takes part in the journal of a file that is open elsewhere. Without a journal nobody
        # has it open: then SQLite must not try to make one, in a folder where it cannot.
        if not os.path.exists(f"{self.path}-wal"):  # noqa: PTH110
            uri += "&immutable=1"
        try:
            db = _connected(uri, uri=True)
            self._lay_out(db)
        except sqlite3.OperationalError as exc:
            raise (self._damaged if _GARBAGE.search(str(exc)) else self.unusable)(exc) from exc
        except _GARBLED as exc:
            raise self._damaged(exc) from exc
        return db

    def _writable(self) -> bool:
        # SQLite writes its journal next to the file.
        return self.path is None or (
            os.access(self.path, os.W_OK) and os.access(self.path.parent, os.W_OK)
        )

    def _lay_out(self, db: sqlite3.Connection) -> None:
        def version() -> int:
            return int(db.execute("PRAGMA user_version").fetchone()[0])

        if version() == LAYOUT:
            return
        # In this order: another process may be laying the file out right now.
        used = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'state'").fetchone()
        if used and (found := version()) != LAYOUT:
            raise ConfigError(
                f"{self.path} was written by another version of clusterscrapy (layout {found}, this "
                f"one has {LAYOUT}); finish the crawl with that version, or move the file away"
            )
        schema = (files("clusterscrapy.frontier.sqlite") / "schema.sql").read_text("utf-8")
        db.executescript(f"BEGIN IMMEDIATE; {schema}; PRAGMA user_version = {LAYOUT}; COMMIT;")

    def unusable(self, exc: Exception) -> FrontierUnusable:
        """What to raise when this user cannot use the file."""
        return FrontierUnusable(
            f"the embedded frontier cannot use {self.path} ({exc}); act as the user who crawls, give "
            "this one the right to read and write the file and its folder, or point "
            "CLUSTER_FRONTIER_URL=sqlite:///FOLDER at a folder this user can write to"
        )

    def _damaged(self, exc: Exception) -> FrontierDamaged:
        return FrontierDamaged(
            f"{self.path} is damaged ({exc}); restore it, rescue what it holds with "
            f"'sqlite3 {self.path} .recover', or begin anew after 'scrapy frontier drop {self.name} "
            "--force', which removes it"
        )

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing; one at a time over all processes.

        Raises:
            FrontierUnavailable: another process holds the file for too long.
            FrontierUnusable: this user may not write to it.
            FrontierDamaged: it holds what we never write.
        """
        with self._lock:
            if self._db is None:
                self._db = self._open()
            db = self._db
            try:
                db.execute("BEGIN IMMEDIATE")
                yield db
                db.execute("COMMIT")
            except BaseException as exc:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                if isinstance(exc, _GARBLED):
                    raise self._in_words(exc) from exc
                raise

    @contextmanager
    def look(self) -> Iterator[sqlite3.Connection]:
        """A transaction that changes nothing, so that it works where this user can only read."""
        if self._writable():
            with self.transaction() as db:
                yield db
            return
        db = self._open_to_look()
        try:
            db.execute("BEGIN")
            yield db
        except _GARBLED as exc:
            raise self._in_words(exc) from exc
        finally:
            db.close()

    def _in_words(self, exc: Exception) -> FrontierError:
        """What SQLite says, sorted by what there is to do about it."""
        if isinstance(exc, sqlite3.OperationalError):
            if _RIGHTS.search(str(exc)):
                return self.unusable(exc)
            if not _GARBAGE.search(str(exc)):
                return FrontierUnavailable(f"{self.path}: {exc}")
        return self._damaged(exc)

    def close(self) -> None:
        """Close the file; an in-memory crawl stays until the process ends."""
        with self._lock:
            if self._db is not None and self.path is not None:
                self._db.close()
                self._db = None

    def exists(self) -> bool:
        """False when there is no such crawl."""
        if self.path is None:
            return True
        try:
            self.path.stat()
        except FileNotFoundError:
            return False
        except OSError as exc:
            raise self.unusable(exc) from exc
        return True

    def remove(self) -> None:
        """Delete the file and what SQLite keeps beside it."""
        self.close()
        if self.path is not None:
            try:
                for suffix in (".db", ".db-wal", ".db-shm"):
                    self.path.with_name(self.name + suffix).unlink(missing_ok=True)
            except OSError as exc:
                raise self.unusable(exc) from exc
        else:
            self._db = None


def _connected(database: str, *, uri: bool = False) -> sqlite3.Connection:
    db = sqlite3.connect(
        database,
        timeout=_BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
        uri=uri,
    )
    # A text that is none has escapes in it: one bad row must not hide the others.
    db.text_factory = lambda raw: raw.decode("utf-8", "backslashreplace")
    return db
