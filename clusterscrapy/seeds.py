"""Seeds: requests that come from outside a spider, as URLs, JSON lines or sitemaps.

One seed a line. A line is a URL, or a JSON object with ``url`` and whatever else a request may have
(:data:`FIELDS`). A seed that is neither becomes a dead letter with its reason, and the rest go on.
"""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast
from urllib.request import urlopen

from scrapy import Request
from scrapy.utils.sitemap import Sitemap

from clusterscrapy.exceptions import CodecError, ConfigError
from clusterscrapy.frontier import Batch, Bury, CrawlEnded, Frontier, LeaseLost, Push, Terms, key_of
from clusterscrapy.frontier.codec import note_of
from clusterscrapy.frontier.protocol import bounded

if TYPE_CHECKING:
    from scrapy import Spider

    from clusterscrapy.dupefilter import RequestKeys
    from clusterscrapy.frontier.codec import RequestCodec
    from clusterscrapy.frontier.protocol import Op

FIELDS: dict[str, tuple[type, ...]] = {
    "url": (str,),
    "method": (str,),
    "headers": (dict,),
    "body": (str,),
    "cookies": (dict, list),
    "meta": (dict,),
    "cb_kwargs": (dict,),
    "flags": (list,),
    "priority": (int,),
    "dont_filter": (bool,),
    "encoding": (str,),
    "callback": (str,),
    "errback": (str,),
}
"""What a JSON seed may hold, as ``scrapy.Request`` has it; callbacks are names of the spider's methods."""

BATCH = 500
_LINE_MAX = 10_000_000
_SHOWN, _WHY_MAX = 200, 500
_SITEMAP_TIMEOUT_S = 60
_SITEMAPS_DEEP = 5


class BadSeed(ValueError):
    """A line that is no request, and why."""


@dataclass
class Sown:
    """What became of the seeds so far."""

    queued: int = 0
    known: int = 0
    bad: int = 0

    @property
    def read(self) -> int:
        """All seeds that were looked at."""
        return self.queued + self.known + self.bad


# --- from a line to a request --------------------------------------------------------------


def request_of(line: bytes, spider: Spider) -> Request | None:
    """The request of one line; None for an empty line or a ``#`` comment.

    Raises:
        BadSeed: it is none.
    """
    if len(line) > _LINE_MAX:
        raise BadSeed(f"longer than {_LINE_MAX:,} bytes")
    try:
        text = line.decode("utf-8-sig").strip()
    except UnicodeDecodeError as exc:
        raise BadSeed(f"not UTF-8: {exc.reason} at byte {exc.start}") from exc
    if not text or text.startswith("#"):
        return None
    fields = _fields(text) if text.startswith(("{", "[", '"')) else {"url": text}
    for role in ("callback", "errback"):
        if role in fields:
            fields[role] = _method(spider, role, fields[role])
    try:
        return Request(**fields)
    except Exception as exc:  # whatever a request refuses is a reason
        raise BadSeed(f"{exc}") from exc


def _fields(text: str) -> dict[str, Any]:
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise BadSeed(f"no JSON: {exc}") from exc
    if not isinstance(fields, dict):
        raise BadSeed(f"a JSON seed is an object, not {type(fields).__name__}")
    if "url" not in fields:
        raise BadSeed("a JSON seed needs a url")
    for name, value in fields.items():
        if name not in FIELDS:
            near = get_close_matches(name, FIELDS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(FIELDS)}"
            raise BadSeed(f"unknown field {name!r:.50}; {hint}")
        kinds = FIELDS[name]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise BadSeed(f"{name} is {value!r:.50}, it must be {_words(kinds)}")
    return cast("dict[str, Any]", fields)


def _words(kinds: tuple[type, ...]) -> str:
    names = {
        str: "a text",
        dict: "an object",
        list: "a list",
        int: "a whole number",
        bool: "true or false",
    }
    return " or ".join(names[kind] for kind in kinds)


def _method(spider: Spider, role: str, name: str) -> Any:
    method = getattr(spider, name, None) if not name.startswith("__") else None
    if not callable(method) or getattr(method, "__self__", None) is not spider:
        raise BadSeed(f"{role}: spider {spider.name!r} has no method {name!r:.50}")
    return method


# --- where lines come from -----------------------------------------------------------------


@contextmanager
def _opened(source: str) -> Iterator[IO[bytes]]:
    if source == "-":
        yield sys.stdin.buffer
        return
    try:
        file = Path(source).open("rb")  # noqa: SIM115 - closed below
    except OSError as exc:
        raise ConfigError(
            f"cannot read seeds from {source}: {exc.strerror}; name a file, or -"
        ) from exc
    with file:
        yield file


def lines_of(source: str) -> Iterator[bytes]:
    """The lines of a file, unpacked if it is gzip, or of standard input (``-``); read as they are needed.

    Raises:
        ConfigError: the file cannot be read.
    """
    with _opened(source) as file:
        packed = gzip.GzipFile(fileobj=file) if _is_gzip(file) else None
        reader = cast("IO[bytes]", packed or file)
        try:
            yield from reader
        except (OSError, EOFError, zlib.error) as exc:
            raise ConfigError(
                f"{source} breaks off ({exc}); what came before is queued, and the whole file may "
                "be seeded again"
            ) from exc


def _is_gzip(file: IO[bytes]) -> bool:
    peek = getattr(file, "peek", None)
    return bool(peek) and peek(2)[:2] == b"\x1f\x8b"  # type: ignore[misc]


def sitemap_lines(source: str, depth: int = 0) -> Iterator[bytes]:
    """The URLs of a sitemap, and of those it lists: a file or an http(s) URL, gzip or not.

    Raises:
        ConfigError: it cannot be read, or is no sitemap.
    """
    data = _fetched(source)
    try:
        sitemap = Sitemap(data)
        entries = [entry["loc"] for entry in sitemap if entry.get("loc")]
    except Exception as exc:  # lxml has many
        raise ConfigError(f"{source} is no sitemap ({exc})") from exc
    if sitemap.type not in ("urlset", "sitemapindex"):
        raise ConfigError(f"{source} is no sitemap: its root element is {sitemap.type!r}")
    for location in entries:
        if sitemap.type == "urlset":
            yield location.encode()
        elif depth < _SITEMAPS_DEEP:
            yield from sitemap_lines(location, depth + 1)


def _fetched(source: str) -> bytes:
    try:
        if source.startswith(("http://", "https://")):
            with urlopen(source, timeout=_SITEMAP_TIMEOUT_S) as answer:  # noqa: S310 - a URL of the user's
                data = cast("bytes", answer.read())
        else:
            data = Path(source).read_bytes()
        return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (OSError, EOFError, zlib.error) as exc:
        raise ConfigError(f"cannot read the sitemap {source}: {exc}") from exc


def buried(seed: bytes, why: str) -> Bury:
    """The dead letter of a seed that is no request."""
    note = note_of(seed[:_SHOWN].decode("utf-8", "replace").strip())
    return Bury(key_of(note), note, "seed", why[:_WHY_MAX])


# --- from requests into the frontier ---------------------------------------------------------


class Sower:
    """Queues seeds into one crawl, in batches; a context manager that leaves the crawl at the end.

    It is a worker that takes no work: so it may begin a crawl before any other worker has come, and
    what it has queued stays queued when it is interrupted. Sown again, filtered seeds are known.
    """

    def __init__(
        self,
        frontier: Frontier,
        terms: Terms,
        spider: Spider,
        codec: RequestCodec,
        keys: RequestKeys,
    ) -> None:
        self.frontier = frontier
        self.terms = terms
        self.spider = spider
        self.codec = codec
        self.keys = keys
        self.sown = Sown()
        self._ops: list[Op] = []

    def __enter__(self) -> Sower:
        self.session = self.frontier.join(self.terms)
        if self.session.opening.late:
            if self.terms.explicit:
                raise CrawlEnded(
                    f"crawl {self.frontier.name} is finished, which is final for a crawl with an id; "
                    "give another CLUSTER_CRAWL_ID"
                )
            self.session = self.frontier.join(replace(self.terms, resume=False))
        return self

    def __exit__(self, *exc: object) -> None:
        self.session.leave()
        self.frontier.close()

    def sow(self, lines: Iterable[bytes]) -> Iterator[Sown]:
        """Queue the requests of lines; yields the counts after each batch.

        Raises:
            FrontierUnavailable: the store does not answer; what was counted is queued.
        """
        yield from self.sow_ops(op for line in lines if (op := self._op(line)) is not None)

    def sow_ops(self, ops: Iterable[Op]) -> Iterator[Sown]:
        """Apply any pushes and burials, as :meth:`sow` does."""
        for op in ops:
            self._ops.append(op)
            if len(self._ops) >= BATCH:
                yield self._flush()
        yield self._flush()

    def push_of(self, request: Request, key: bytes = b"") -> Push:
        """What queues a request, known by its fingerprint or by the key that is given.

        Raises:
            CodecError: it cannot be stored.
        """
        filtered = bool(key) or self.keys.filtered(request)
        priority = bounded(request.priority)
        return Push(key or self.keys.key(request), self.codec.encode(request), priority, filtered)

    def _op(self, line: bytes) -> Op | None:
        try:
            request = request_of(line, self.spider)
            return None if request is None else self.push_of(request)
        except (BadSeed, CodecError) as exc:
            return buried(line, str(exc))

    def _flush(self) -> Sown:
        batch = Batch(tuple(self._ops))
        while True:
            try:
                reply = self.session.sync(batch)
                break
            except LeaseLost:
                # Standard input was silent for longer than a lease; nothing was held.
                self.session = self.frontier.join(self.terms)
        queued = sum(reply.queued)
        self.sown.queued += queued
        self.sown.known += len(reply.queued) - queued
        self.sown.bad += len(self._ops) - len(reply.queued)
        self._ops.clear()
        return self.sown
