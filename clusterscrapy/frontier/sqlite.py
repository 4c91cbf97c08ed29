"""The embedded frontier: one crawl in one SQLite file, shared by the processes of one machine.

Everything is one transaction per call, so there is no state between two calls that a crash
could catch. A worker's life is an operating system lock on a file of its own: it is gone the
moment the process is, and held through a freeze, so leases return at once after a ``kill -9``
and never from a worker that merely sleeps.
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from math import ceil
from pathlib import Path
from typing import Any, cast

from clusterscrapy.exceptions import (
    ConfigError,
    FrontierDamaged,
    FrontierError,
    FrontierUnavailable,
    FrontierUnusable,
)
from clusterscrapy.frontier.codec import NOTE, url_of
from clusterscrapy.frontier.liveness import FileLocks, Liveness, LocalLives
from clusterscrapy.frontier.protocol import (
    DONE_WORDS,
    UNREADABLE,
    Ack,
    Batch,
    Bury,
    CrawlGone,
    DeadLetter,
    Delivery,
    Fail,
    LeaseLost,
    Opening,
    Push,
    Release,
    Reply,
    SchemeMismatch,
    Standing,
    StartDone,
    Status,
    Terms,
    WorkerStatus,
    old_key,
    scheme_sentence,
    stored_wins_sentence,
)

LAYOUT = 1
"""Version of ``schema.sql``, kept in the file's ``user_version``."""
REAP_EVERY_S = 1.0
HUNGRY_FOR_S = 2.0
_BUSY_TIMEOUT_S = 5.0
_COUNTERS = ("waiting", "leased", "done", "seen", "late", "items")
_RIGHTS = re.compile(r"readonly database|unable to open|authorization denied|access permission")
_GARBAGE = re.compile(r"no such (table|column)|has no column|values were supplied|malformed|decode")


class _Odd(Exception):
    """A value that we never write at its place."""


class SqliteStore:
    """A folder of crawls, one ``NAME.db`` each."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self.place = str(folder)

    def names(self) -> list[str]:
        """The crawls in the folder, sorted."""
        # Not glob: where this user may not look it finds nothing, and says nothing.
        try:
            found = [path.name for path in self.folder.iterdir()]
        except FileNotFoundError:
            return []
        except OSError as exc:
            raise FrontierUnusable(
                f"the folder {self.folder} of the embedded frontier cannot be read ({exc.strerror}); "
                "act as the user who crawls, or give this one the right to read and enter it"
            ) from exc
        return sorted(name.removesuffix(".db") for name in found if name.endswith(".db"))

    def frontier(self, name: str) -> SqliteFrontier:
        """The crawl of that name."""
        path = self.folder / f"{name}.db"
        return SqliteFrontier(name, path, FileLocks(self.folder / f"{name}.workers"))


class MemoryStore:
    """Crawls in this process's memory, for unit tests of spiders; gone with the process."""

    _shared: dict[str, SqliteFrontier] = {}  # noqa: RUF012 - the point of this store is to be shared

    def __init__(self, url: str, place: str) -> None:
        self.url = url
        self.space = place
        self.place = url

    def names(self) -> list[str]:
        """The crawls of this URL in this process, sorted."""
        prefix = f"{self.space}/"
        return sorted(n.removeprefix(prefix) for n in self._shared if n.startswith(prefix))

    def frontier(self, name: str) -> SqliteFrontier:
        """The crawl of that name, the same object for everyone in this process."""
        place = f"{self.space}/{name}"
        if place not in self._shared:
            self._shared[place] = SqliteFrontier(name, None, LocalLives())
        return self._shared[place]


class SqliteFrontier:
    """One crawl in a SQLite database (``path`` None: in memory)."""

    goes_back = False

    def __init__(self, name: str, path: Path | None, lives: Liveness) -> None:
        self.name = name
        self.path = path
        self.lives = lives
        self._db: sqlite3.Connection | None = None
        # One connection for all threads of this object; the lock also makes a transaction whole.
        self._lock = threading.RLock()

    # --- transactions ---------------------------------------------------------------

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
            raise (self._damaged if _GARBAGE.search(str(exc)) else self._unusable)(exc) from exc
        except sqlite3.DatabaseError as exc:
            raise self._damaged(exc) from exc
        except OSError as exc:
            raise self._unusable(exc) from exc
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
            raise (self._damaged if _GARBAGE.search(str(exc)) else self._unusable)(exc) from exc
        except sqlite3.DatabaseError as exc:
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
        schema = (files("clusterscrapy.frontier") / "schema.sql").read_text("utf-8")
        db.executescript(f"BEGIN IMMEDIATE; {schema}; PRAGMA user_version = {LAYOUT}; COMMIT;")

    def _unusable(self, exc: Exception) -> FrontierUnusable:
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
    def _transaction(self) -> Iterator[sqlite3.Connection]:
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
                if isinstance(exc, sqlite3.DatabaseError | _Odd):
                    raise self._in_words(exc) from exc
                raise

    @contextmanager
    def _look(self) -> Iterator[sqlite3.Connection]:
        """A transaction that changes nothing, so that it works where this user can only read."""
        if self._writable():
            with self._transaction() as db:
                yield db
            return
        db = self._open_to_look()
        try:
            db.execute("BEGIN")
            yield db
        except (sqlite3.DatabaseError, _Odd) as exc:
            raise self._in_words(exc) from exc
        finally:
            db.close()

    def _in_words(self, exc: sqlite3.DatabaseError | _Odd) -> FrontierError:
        """What SQLite says, sorted by what there is to do about it."""
        if isinstance(exc, sqlite3.OperationalError):
            if _RIGHTS.search(str(exc)):
                return self._unusable(exc)
            if not _GARBAGE.search(str(exc)):
                return FrontierUnavailable(f"{self.path}: {exc}")
        return self._damaged(exc)

    def close(self) -> None:
        """Close the file; an in-memory crawl stays until the process ends."""
        with self._lock:
            if self._db is not None and self.path is not None:
                self._db.close()
                self._db = None

    # --- workers --------------------------------------------------------------------

    def join(self, terms: Terms) -> SqliteSession:
        """See :meth:`clusterscrapy.frontier.protocol.Frontier.join`."""
        epoch = secrets.token_hex(8)
        try:
            self.lives.begin(epoch)
        except OSError as exc:
            raise self._unusable(exc) from exc
        try:
            with self._transaction() as db:
                opening = _Entrance(db, self.lives, terms).enter(epoch)
        except BaseException:
            self.lives.end(epoch)
            raise
        if opening.late:
            self.lives.end(epoch)
        return SqliteSession(self, terms, epoch, opening)

    # --- people ---------------------------------------------------------------------

    def _exists(self) -> bool:
        if self.path is None:
            return True
        try:
            self.path.stat()
        except FileNotFoundError:
            return False
        except OSError as exc:
            raise self._unusable(exc) from exc
        return True

    def status(self) -> Status:
        """See :meth:`clusterscrapy.frontier.protocol.Frontier.status`."""
        if not self._exists():
            return Status(self.name, "stopped")
        with self._look() as db:
            state = _State(db)
            workers = [
                WorkerStatus(epoch, name, leased, joined, time.time())
                for epoch, name, joined, leased in db.execute(
                    "SELECT CAST(epoch AS TEXT), CAST(name AS TEXT), CAST(joined_at AS REAL), "
                    "(SELECT count(*) FROM lease l WHERE l.epoch = w.epoch) FROM worker w "
                    "ORDER BY joined_at"
                )
                if self.lives.alive(epoch)
            ]
            dead = state.dead()
            return Status(
                crawl=self.name,
                state=state.words(bool(workers)),
                dead=dead,
                run=state.get("run", 0),
                start=state.start_words(),
                dupefilter=state.get("filter", ""),
                started_at=state.get("started_at", 0.0),
                finished_at=state.get("finished_at", 0.0),
                workers=workers,
                **{name: state.get(name, 0) for name in _COUNTERS},
            )

    def why(self, key: bytes, url: str) -> Standing:
        """See :meth:`clusterscrapy.frontier.protocol.Frontier.why`."""
        if not self._exists():
            return Standing("never seen", "this crawl never began")
        with self._look() as db:
            return self._why(db, key, url)

    def _why(self, db: sqlite3.Connection, key: bytes, url: str) -> Standing:
        match = "(key = ? OR instr(payload, ?))"
        for found, epoch, since, payload in db.execute(
            "SELECT key, epoch, CAST(since AS REAL), CAST(payload AS BLOB) FROM lease "
            f"WHERE {match}",
            (key, url.encode()),
        ):
            if found == key or url_of(payload) == url:
                row = db.execute("SELECT name FROM worker WHERE epoch = ?", (epoch,)).fetchone()
                ago = time.time() - since
                return Standing("leased", f"by {row[0] if row else epoch} for {ago:.0f} s")
        for found, priority, payload in db.execute(
            f"SELECT key, priority, CAST(payload AS BLOB) FROM queue WHERE {match}",
            (key, url.encode()),
        ):
            if found == key or url_of(payload) == url:
                return Standing("waiting", f"priority {priority}")
        for found, reason, detail, payload in db.execute(
            f"SELECT key, reason, detail, CAST(payload AS BLOB) FROM dead WHERE {match} "
            "ORDER BY died_at DESC",
            (key, url.encode()),
        ):
            if found == key or url_of(payload) == url:
                return Standing("dead", f"{reason}: {detail}")
        if db.execute("SELECT 1 FROM seen WHERE key = ?", (key,)).fetchone():
            return Standing("done", DONE_WORDS)
        if _State(db).get("forgotten", 0):
            return Standing(
                "forgotten",
                "the crawl is finished and its memory was dropped; CLUSTER_KEEP=1 keeps it",
            )
        return Standing("never seen", "no page of this crawl has yielded it through the filter")

    def pause(self, paused: bool = True) -> None:
        """See :meth:`clusterscrapy.frontier.protocol.Frontier.pause`."""
        with self._transaction() as db:
            _State(db).set("paused", int(paused))

    def drop(self, *, force: bool = False) -> None:
        """See :meth:`clusterscrapy.frontier.protocol.Frontier.drop`."""
        try:
            alive = self._emptied(force)
        except FrontierDamaged:
            if not force:
                raise
            alive = []
        if not alive:
            self._remove_files()

    def _emptied(self, force: bool) -> list[str]:
        """Empty the file; returns the workers that are alive and have to notice."""
        with self._transaction() as db:
            alive = [
                name
                for epoch, name in db.execute(
                    "SELECT CAST(epoch AS TEXT), CAST(name AS TEXT) FROM worker"
                ).fetchall()
                if self.lives.alive(epoch)
            ]
            if alive and not force:
                raise FrontierError(
                    f"crawl {self.name} has live workers ({', '.join(alive)}); stop them first, "
                    "or drop with --force"
                )
            run = _State(db).get("run", 0)
            _empty(db)
            db.execute("DELETE FROM dead")
            db.execute("DELETE FROM failed_before")
            # The bumped run is what tells a worker still inside that its crawl is gone.
            _State(db).set("run", run + 1)
            _State(db).set("dropped", 1)
        return alive

    def _remove_files(self) -> None:
        self.close()
        if self.path is not None:
            try:
                for suffix in (".db", ".db-wal", ".db-shm"):
                    self.path.with_name(self.name + suffix).unlink(missing_ok=True)
            except OSError as exc:
                raise self._unusable(exc) from exc
        else:
            self._db = None
        self.lives.forget()

    def dead_letters(self) -> Iterator[DeadLetter]:
        """See :meth:`clusterscrapy.frontier.protocol.Frontier.dead_letters`."""
        if not self._exists():
            return
        with self._look() as db:
            rows = db.execute(
                "SELECT key, payload, reason, detail, died_at, deaths, run, worker, first_at, "
                "first_reason, failures FROM dead ORDER BY died_at, rowid"
            ).fetchall()
        for row in rows:
            yield _dead_letter(row)

    def replay(self, keys: Sequence[bytes] | None = None) -> int:
        """See :meth:`clusterscrapy.frontier.protocol.Frontier.replay`."""
        if not self._exists():
            return 0
        with self._transaction() as db:
            chosen = [r for r in self._chosen(db, keys) if _is_request(r[0], r[1], r[3])]
            state = _State(db)
            this_run = state.get("run", 0)
            for key, run, priority, payload, *history in chosen:
                new_key = key if run == this_run else old_key(key, run)
                db.execute(
                    "INSERT INTO queue (priority, key, deaths, payload) VALUES (?, ?, 0, ?)",
                    (priority, new_key, payload),
                )
                db.execute(
                    "INSERT OR REPLACE INTO failed_before VALUES (?, ?, ?, ?, ?)",
                    (new_key, this_run, *history),
                )
                _exhume(db, key, run)
            if chosen:
                state.add("waiting", len(chosen))
                state.set("finished_at", 0.0)
            return len(chosen)

    def discard(self, keys: Sequence[bytes] | None = None) -> int:
        """See :meth:`clusterscrapy.frontier.protocol.Frontier.discard`."""
        if not self._exists():
            return 0
        with self._transaction() as db:
            chosen = self._chosen(db, keys)
            for key, run, *_ in chosen:
                _exhume(db, key, run)
            return len(chosen)

    def forget(self, key: bytes) -> bool:
        """See :meth:`clusterscrapy.frontier.protocol.Frontier.forget`."""
        if not self._exists():
            return False
        with self._transaction() as db:
            known = db.execute("DELETE FROM seen WHERE key = ?", (key,)).rowcount == 1
            if known:
                state = _State(db)
                state.add("seen", -1)
                state.add("generation", 1)
            return known

    def _chosen(self, db: sqlite3.Connection, keys: Sequence[bytes] | None) -> list[Any]:
        rows = db.execute(
            "SELECT key, run, priority, payload, first_at, first_reason, failures FROM dead "
            "ORDER BY died_at, rowid"
        ).fetchall()
        wanted = None if keys is None else set(keys)
        return [row for row in rows if wanted is None or _key(row[0]) in wanted]


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
        with self.frontier._transaction() as db:
            self._check_in(db)
            state = _State(db)
            if time.monotonic() - self._reaped_at > REAP_EVERY_S:
                self._reaped_at = time.monotonic()
                reap(db, self.frontier.lives, self.terms.max_deliveries)
            return _Step(db, state, self.epoch, self.opening.run, self.terms).apply(batch)

    def _check_in(self, db: sqlite3.Connection) -> None:
        if _State(db).get("run", 0) != self.opening.run:
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
        with self.frontier._transaction() as db:
            state = _State(db)
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
            with self.frontier._transaction() as db:
                if _State(db).get("run", 0) != self.opening.run:
                    return 0
                returned = _return_leases(db, self.epoch, None)
                _forget_worker(db, self.epoch)
                _forget_seen(db)
                return returned
        finally:
            self.frontier.lives.end(self.epoch)


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


_LETTER = (bytes, bytes, str, str, float, int, int, str, float, str, int)


def _dead_letter(row: tuple[Any, ...]) -> DeadLetter:
    if all(isinstance(value, kind) for value, kind in zip(row, _LETTER, strict=True)):
        return DeadLetter(*row)
    detail = "what the file holds of it is no dead letter"
    return DeadLetter(_key(row[0]), b"", UNREADABLE, detail, 0.0, 0, 0, "?")


def _key(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _is_request(key: object, run: object, payload: object) -> bool:
    return (
        isinstance(key, bytes)
        and isinstance(run, int)
        and isinstance(payload, bytes)
        and payload[:1] not in (b"", bytes([NOTE]))
    )


def _is_no_number(value: object) -> bool:
    return not isinstance(value, str | int | float) or (
        isinstance(value, float) and not math.isfinite(value)
    )


class _State:
    """The ``state`` table as a small dictionary."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db

    def get(self, name: str, default: Any) -> Any:
        row = self.db.execute("SELECT value FROM state WHERE name = ?", (name,)).fetchone()
        if row is None:
            return default
        value = row[0]
        if isinstance(default, str) is not isinstance(value, str) or _is_no_number(value):
            raise _Odd(f"its state holds {value!r:.40} as {name}")
        return value

    def set(self, name: str, value: object) -> None:
        self.db.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (name, value))

    def add(self, name: str, delta: int) -> None:
        if delta:
            self.db.execute(
                "INSERT INTO state VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET value = value + ?2",
                (name, delta),
            )

    def dead(self) -> int:
        """Dead letters of this run."""
        return int(self.get("dead", 0))

    def words(self, alive: bool) -> str:
        if self.get("dropped", 0):
            return "dropped"
        if self.get("finished_at", 0.0):
            return "finished"
        if self.get("paused", 0):
            return "paused"
        return "running" if alive else "stopped"

    def start_words(self, epoch: str = "") -> str:
        start = str(self.get("start", ""))
        if start in ("", "done", "failed"):
            return start
        return "mine" if start == epoch else "theirs"


class _Entrance:
    """Decides what a joining worker finds: a new run, a crawl to resume, or a finished one."""

    def __init__(self, db: sqlite3.Connection, lives: Liveness, terms: Terms) -> None:
        self.db = db
        self.lives = lives
        self.terms = terms
        self.state = _State(db)

    def enter(self, epoch: str) -> Opening:
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
        _empty(self.db)
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


class _Step:
    """One :class:`Batch` against one transaction."""

    def __init__(
        self, db: sqlite3.Connection, state: _State, epoch: str, run: int, terms: Terms
    ) -> None:
        self.db = db
        self.state = state
        self.epoch = epoch
        self.run = run
        self.terms = terms
        self.filtered = state.get("filter", "bloom") != "none"
        self.delta = dict.fromkeys(_COUNTERS, 0)
        self.queued: list[bool] = []

    def apply(self, batch: Batch) -> Reply:
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
                _put_back(self.db, op.key, *lease)
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


def _empty(db: sqlite3.Connection) -> None:
    for table in ("state", "queue", "lease", "seen", "worker"):
        db.execute(f"DELETE FROM {table}")


def _put_back(
    db: sqlite3.Connection, key: bytes, seq: int, priority: int, deaths: int, payload: bytes
) -> None:
    db.execute(
        "INSERT INTO queue (seq, priority, key, deaths, payload) VALUES (?, ?, ?, ?, ?)",
        (seq, priority, key, deaths, payload),
    )


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
    state = _State(db)
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


def _exhume(db: sqlite3.Connection, key: bytes, run: int) -> None:
    """Take a dead letter away."""
    db.execute("DELETE FROM dead WHERE key = ? AND run = ?", (key, run))
    state = _State(db)
    if run == state.get("run", 0):
        state.add("dead", -1)


def _forget_worker(db: sqlite3.Connection, epoch: str) -> None:
    db.execute("DELETE FROM worker WHERE epoch = ?", (epoch,))
    db.execute("UPDATE state SET value = '' WHERE name = 'start' AND value = ?", (epoch,))


def _forget_seen(db: sqlite3.Connection) -> None:
    """Drop the memory of a finished crawl that everybody has left.

    Dead letters may be replayed: their pages need it.
    """
    state = _State(db)
    if not state.get("finished_at", 0.0) or state.get("keep", 0) or state.dead():
        return
    if not db.execute("SELECT 1 FROM worker").fetchone():
        db.execute("DELETE FROM seen")
        state.set("forgotten", 1)


def reap(db: sqlite3.Connection, lives: Liveness, max_deliveries: int) -> None:
    """Return the leases of workers whose lock is gone."""
    for (epoch,) in db.execute("SELECT epoch FROM worker").fetchall():
        if not lives.alive(epoch):
            _return_leases(db, epoch, max_deliveries)
            _forget_worker(db, epoch)
            lives.sweep(epoch)


def _return_leases(db: sqlite3.Connection, epoch: str, max_deliveries: int | None) -> int:
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
            _put_back(db, key, seq, priority, now_dead, payload)
        else:
            _put_back(db, key, seq, priority, deaths, payload)
        returned += 1
    state = _State(db)
    state.add("leased", -len(rows))
    state.add("waiting", returned)
    return returned
