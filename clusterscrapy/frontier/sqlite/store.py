"""The crawls of a folder, or of this process's memory; what people and joining workers do with one."""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from clusterscrapy.exceptions import FrontierDamaged, FrontierError, FrontierUnusable
from clusterscrapy.frontier.codec import url_of
from clusterscrapy.frontier.liveness import FileLocks, Liveness, LocalLives
from clusterscrapy.frontier.protocol import (
    DONE_WORDS,
    DeadLetter,
    Standing,
    Status,
    Terms,
    WorkerStatus,
    old_key,
)
from clusterscrapy.frontier.sqlite.database import Database
from clusterscrapy.frontier.sqlite.entrance import Entrance
from clusterscrapy.frontier.sqlite.letters import chosen as chosen_letters
from clusterscrapy.frontier.sqlite.letters import dead_letter_of, exhume, is_request
from clusterscrapy.frontier.sqlite.session import SqliteSession
from clusterscrapy.frontier.sqlite.state import COUNTERS, State, empty


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
        self.database = Database(name, path)
        self.lives = lives

    def close(self) -> None:
        """Close the file; an in-memory crawl stays until the process ends."""
        self.database.close()

    # --- workers --------------------------------------------------------------------

    def join(self, terms: Terms) -> SqliteSession:
        """See :meth:`clusterscrapy.frontier.protocol.Frontier.join`."""
        epoch = secrets.token_hex(8)
        try:
            self.lives.begin(epoch)
        except OSError as exc:
            raise self.database.unusable(exc) from exc
        try:
            with self.database.transaction() as db:
                opening = Entrance(db, self.lives, terms).enter(epoch)
        except BaseException:
            self.lives.end(epoch)
            raise
        if opening.late:
            self.lives.end(epoch)
        return SqliteSession(self, terms, epoch, opening)

    # --- people ---------------------------------------------------------------------

    def status(self) -> Status:
        """See :meth:`clusterscrapy.frontier.protocol.Frontier.status`."""
        if not self.database.exists():
            return Status(self.name, "stopped")
        now = time.time()
        with self.database.look() as db:
            state = State(db)
            workers = [
                WorkerStatus(epoch, name, leased, joined, now)
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
                idle_s=max(0.0, now - (state.get("active_at", 0.0) or now)),
                workers=workers,
                **{name: state.get(name, 0) for name in COUNTERS},
            )

    def why(self, key: bytes, url: str) -> Standing:
        """See :meth:`clusterscrapy.frontier.protocol.Frontier.why`."""
        if not self.database.exists():
            return Standing("never seen", "this crawl never began")
        with self.database.look() as db:
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
        if State(db).get("forgotten", 0):
            return Standing(
                "forgotten",
                "the crawl is finished and its memory was dropped; CLUSTER_KEEP=1 keeps it",
            )
        return Standing("never seen", "no page of this crawl has yielded it through the filter")

    def pause(self, paused: bool = True) -> None:
        """See :meth:`clusterscrapy.frontier.protocol.Frontier.pause`."""
        with self.database.transaction() as db:
            State(db).set("paused", int(paused))

    def drop(self, *, force: bool = False) -> None:
        """See :meth:`clusterscrapy.frontier.protocol.Frontier.drop`."""
        try:
            alive = self._emptied(force)
        except FrontierDamaged:
            if not force:
                raise
            alive = []
        if not alive:
            self.database.remove()
            self.lives.forget()

    def _emptied(self, force: bool) -> list[str]:
        """Empty the file; returns the workers that are alive and have to notice."""
        with self.database.transaction() as db:
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
            run = State(db).get("run", 0)
            empty(db)
            db.execute("DELETE FROM dead")
            db.execute("DELETE FROM failed_before")
            # The bumped run is what tells a worker still inside that its crawl is gone.
            State(db).set("run", run + 1)
            State(db).set("dropped", 1)
        return alive

    def dead_letters(self) -> Iterator[DeadLetter]:
        """See :meth:`clusterscrapy.frontier.protocol.Frontier.dead_letters`."""
        if not self.database.exists():
            return
        with self.database.look() as db:
            rows = db.execute(
                "SELECT key, payload, reason, detail, died_at, deaths, run, worker, first_at, "
                "first_reason, failures FROM dead ORDER BY died_at, rowid"
            ).fetchall()
        for row in rows:
            yield dead_letter_of(row)

    def replay(self, keys: Sequence[bytes] | None = None) -> int:
        """See :meth:`clusterscrapy.frontier.protocol.Frontier.replay`."""
        if not self.database.exists():
            return 0
        with self.database.transaction() as db:
            chosen = [r for r in chosen_letters(db, keys) if is_request(r[0], r[1], r[3])]
            state = State(db)
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
                exhume(db, key, run)
            if chosen:
                state.add("waiting", len(chosen))
                state.set("finished_at", 0.0)
            return len(chosen)

    def discard(self, keys: Sequence[bytes] | None = None) -> int:
        """See :meth:`clusterscrapy.frontier.protocol.Frontier.discard`."""
        if not self.database.exists():
            return 0
        with self.database.transaction() as db:
            chosen = chosen_letters(db, keys)
            for key, run, *_ in chosen:
                exhume(db, key, run)
            return len(chosen)

    def forget(self, key: bytes) -> bool:
        """See :meth:`clusterscrapy.frontier.protocol.Frontier.forget`."""
        if not self.database.exists():
            return False
        with self.database.transaction() as db:
            known = db.execute("DELETE FROM seen WHERE key = ?", (key,)).rowcount == 1
            if known:
                state = State(db)
                state.add("seen", -1)
                state.add("generation", 1)
            return known
