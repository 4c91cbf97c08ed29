"""The embedded frontier: one crawl in one SQLite file, shared by the processes of one machine.

Everything is one transaction per call, so there is no state between two calls that a crash
could catch. A worker's life is an operating system lock on a file of its own: it is gone the
moment the process is, and held through a freeze, so leases return at once after a ``kill -9``
and never from a worker that merely sleeps.
"""

from __future__ import annotations

from clusterscrapy.frontier.sqlite.session import SqliteSession
from clusterscrapy.frontier.sqlite.store import MemoryStore, SqliteFrontier, SqliteStore

__all__ = ["MemoryStore", "SqliteFrontier", "SqliteSession", "SqliteStore"]
