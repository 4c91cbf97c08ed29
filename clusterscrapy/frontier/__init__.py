"""The frontier: queue, dupe filter, leases and dead letters of a crawl, behind one small Protocol.

:func:`open_store` turns a ``CLUSTER_FRONTIER_URL`` into a :class:`Store` of crawls; a
:class:`Frontier` is one crawl; a :class:`Session` is one worker in it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from clusterscrapy.exceptions import ConfigError
from clusterscrapy.frontier.protocol import (
    Ack,
    Batch,
    Bounds,
    Bury,
    CrawlEnded,
    CrawlGone,
    DeadLetter,
    Delivery,
    Fail,
    Filter,
    Frontier,
    LeaseLost,
    Op,
    Opening,
    Push,
    Release,
    Reply,
    Scheme,
    SchemeMismatch,
    Session,
    Standing,
    StartDone,
    Status,
    Store,
    StoreEmptied,
    Terms,
    WentBack,
    WorkerStatus,
    key_of,
    shown,
)

__all__ = [
    "Ack",
    "Batch",
    "Bounds",
    "Bury",
    "CrawlEnded",
    "CrawlGone",
    "DeadLetter",
    "Delivery",
    "Fail",
    "Filter",
    "Frontier",
    "LeaseLost",
    "Op",
    "Opening",
    "Push",
    "Release",
    "Reply",
    "Scheme",
    "SchemeMismatch",
    "Session",
    "Standing",
    "StartDone",
    "Status",
    "Store",
    "StoreEmptied",
    "Terms",
    "WentBack",
    "WorkerStatus",
    "key_of",
    "open_store",
]

_DEFAULT_FOLDER = Path(".scrapy") / "frontier"
_REDIS_PATH = re.compile(r"(/\d*)?")
_FORMS = "sqlite://, sqlite:///FOLDER, redis://HOST:PORT/DATABASE, rediss://… or memory://"


def open_store(url: str, project: Path | None = None) -> Store:
    """The store a ``CLUSTER_FRONTIER_URL`` names. Nothing is contacted or created yet.

    Args:
        url: ``sqlite://`` (the folder ``.scrapy/frontier`` of the project), ``sqlite:///abs/folder``,
            ``sqlite://./relative``, ``redis://…``, ``rediss://…`` or ``memory://``.
        project: the folder relative paths start from; the current one by default.

    Raises:
        ConfigError: the URL has none of these forms.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as exc:
        raise ConfigError(
            f"CLUSTER_FRONTIER_URL={url!r} is malformed ({exc}); use {_FORMS}"
        ) from exc
    if "://" in url and parts.scheme in ("sqlite", "memory"):
        _refuse_extras(url, parts)
    if "://" in url and parts.scheme == "sqlite":
        from clusterscrapy.frontier.sqlite import SqliteStore

        return SqliteStore(url, _folder(url, parts.netloc + parts.path, project or Path()))
    if "://" in url and parts.scheme == "memory":
        from clusterscrapy.frontier.sqlite import MemoryStore

        return MemoryStore(url, parts.netloc + parts.path)
    if "://" in url and parts.scheme in ("redis", "rediss"):
        if not parts.hostname:
            raise ConfigError(f"CLUSTER_FRONTIER_URL={shown(url)} names no host; use {_FORMS}")
        if not _REDIS_PATH.fullmatch(parts.path) or parts.fragment:
            raise ConfigError(
                f"CLUSTER_FRONTIER_URL={shown(url)} names no database by its number; "
                "write redis://HOST:PORT/0"
            )
        from clusterscrapy.frontier.redis import RedisStore

        return RedisStore(url)
    raise ConfigError(f"CLUSTER_FRONTIER_URL={shown(url)} is no frontier; use {_FORMS}")


def _refuse_extras(url: str, parts: SplitResult) -> None:
    if parts.query or parts.fragment:
        raise ConfigError(
            f"CLUSTER_FRONTIER_URL={shown(url)} has options after ? or #, and {parts.scheme}:// takes "
            "none; write %3F or %23 if they belong to the name"
        )


def _folder(url: str, path: str, project: Path) -> Path:
    text = unquote(path)
    # sqlite:////abs is how SQLAlchemy writes it; both mean the same folder here.
    folder = Path("/" + text.lstrip("/") if text.startswith("/") else text or _DEFAULT_FOLDER)
    folder = folder if folder.is_absolute() else project / folder
    # Path.is_file raises where this user may not look.
    if os.path.isfile(folder):  # noqa: PTH113
        raise ConfigError(
            f"CLUSTER_FRONTIER_URL={url} names a file; name a folder, each crawl gets a file in it"
        )
    return folder
