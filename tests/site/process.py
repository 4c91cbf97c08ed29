"""Start a site in a process of its own, and read what it was asked."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tests.site.answer import same_page
from tests.site.sites import expected

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

ROOT = Path(__file__).resolve().parents[2]
_STOP_TIMEOUT_S = 5


@dataclass(frozen=True)
class Hit:
    """One request that the site received; ``server.py`` says what the fields mean."""

    id: int
    t: float
    method: str
    path: str
    status: int
    host: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    length: int = 0
    gone: bool = False
    """The client went away before the answer was ready."""

    @property
    def page(self) -> str:
        """Return the path with its parameters in order: what ``expected()`` holds."""
        return same_page(self.path)


class SiteProcess:
    """A site that serves while the ``with`` block runs.

    Args:
        site: ``shop``, ``dense``, ``tree`` or ``flat``.
        pages: Its size; None takes the site's own.
        seed: Makes it another site of the same kind.
        port: 0 takes a free one.
        log: Where it writes its log; None takes a temporary folder, removed at the end.
        options: More of ``server.py``'s options, such as ``latency_ms="50-150"``.
    """

    def __init__(
        self,
        site: str = "shop",
        *,
        pages: int | None = None,
        seed: int = 1,
        port: int = 0,
        log: Path | None = None,
        **options: str | float,
    ) -> None:
        self._site, self._pages, self._seed = site, pages, seed
        self._log = log
        self._options = {"site": site, "seed": seed, "port": port, **options}
        if pages is not None:
            self._options["pages"] = pages
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[str] | None = None
        self._reader = LogReader()
        self.url = ""

    def __enter__(self) -> Self:
        """Start the server, and wait until it listens."""
        if self._log is None:
            self._folder = tempfile.TemporaryDirectory(prefix="site-")
            self._log = Path(self._folder.name) / "requests.jl"
        self._reader = LogReader(self._log)
        given = {**self._options, "log": str(self._log), "parent": os.getpid()}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.site.server"]
            + [f"--{name.replace('_', '-')}={value}" for name, value in given.items()],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for whoever started the site, who then stops it
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith("listening on "):
            self.stop()
            raise RuntimeError("the site did not start; its own words are above")
        self.url = line.split()[-1]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop the server."""
        self.stop()

    @property
    def pid(self) -> int:
        """Return the server's process id."""
        assert self._process is not None
        return self._process.pid

    def stop(self) -> None:
        """Stop the server by its own process id; the hits read so far stay."""
        if self._process is not None and self._process.stdout is not None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process.stdout.close()
            self._reader.read()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def hits(self) -> list[Hit]:
        """Return all requests so far, in the order they came, robots.txt included."""
        return list(self._reader.read())

    def counts(self) -> Counter[str]:
        """Return how often each target was asked for, spelt as it was on the wire."""
        return Counter(hit.path for hit in self.hits())

    def reset(self) -> None:
        """Empty the log; the site behaves again as to its first visitor."""
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=10)
        connection.request("POST", "/-/reset")
        connection.getresponse().read()
        connection.close()
        self._reader = LogReader(self._log)

    def expected(self) -> frozenset[str]:
        """Return the targets (as ``Hit.page``) that a correct crawl asks for at least once."""
        return expected(self._site, pages=self._pages, seed=self._seed)


class LogReader:
    """Reads a server's log again and again, each line once."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._position = 0
        self._hits: list[Hit] = []
        self._index: dict[int, int] = {}

    def read(self) -> list[Hit]:
        """Return all hits so far."""
        if self._path is None or not self._path.exists():
            return self._hits
        with self._path.open("rb") as file:
            file.seek(self._position)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._position += len(whole)
        for line in whole.splitlines():
            self._add(json.loads(line))
        return self._hits

    def _add(self, record: dict[str, Any]) -> None:
        if "gone" not in record:
            self._index[record["id"]] = len(self._hits)
            self._hits.append(Hit(**record))
        elif record["gone"] in self._index:  # a request from before a reset has none
            index = self._index[record["gone"]]
            self._hits[index] = replace(self._hits[index], gone=True)
