"""Workers as real processes, and what the site says about them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from clusterscrapy.frontier import Frontier, Status, open_store
from clusterscrapy.frontier.codec import url_of
from clusterscrapy.identity import crawl_name
from tests.site.process import ROOT, SiteProcess

TIMEOUT_S = 150.0


class Worker:
    """One ``scrapy crawl`` in a process of its own."""

    def __init__(self, args: list[str], log: IO[bytes], environ: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *args], cwd=ROOT, env=environ, stdout=log, stderr=log
        )
        self.log = Path(log.name)

    def signal(self, number: int) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait()

    def wait(self, timeout_s: float = TIMEOUT_S) -> int:
        return self.process.wait(timeout_s)

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def text(self) -> str:
        return self.log.read_text("utf-8", "replace")


class Crawl:
    """Workers on one crawl of one site.

    Args:
        site: what is crawled; the spider gets its URL.
        store: the ``CLUSTER_FRONTIER_URL``.
        folder: for logs and items.
        spider: a spider of ``tests/chaos/project``.
        arguments: more ``-a`` arguments.
        environ: more environment, such as ``CLUSTER_CRAWL_ID``.
    """

    def __init__(
        self,
        site: SiteProcess,
        store: str,
        folder: Path,
        spider: str = "graph",
        arguments: dict[str, str] | None = None,
        environ: dict[str, str] | None = None,
    ) -> None:
        self.site = site
        self.store = store
        self.folder = folder
        self.spider = spider
        self.arguments = {"url": site.url, **(arguments or {})}
        self.environ = environ or {}
        self.workers: list[Worker] = []
        self.leased_at_kills = 0

    def start(self, *options: str, runner: list[str] | None = None) -> Worker:
        """Start a worker; ``options`` go to ``scrapy crawl``."""
        arguments = [x for name, value in self.arguments.items() for x in ("-a", f"{name}={value}")]
        feed = [] if "-O" in options else ["-o", str(self.items_path)]
        command = ["crawl", self.spider, *arguments, *feed, *options]
        environ = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "SCRAPY_SETTINGS_MODULE": "tests.chaos.project.settings",
            "CLUSTER_FRONTIER_URL": self.store,
            **self.environ,
        }
        log = (self.folder / f"worker-{len(self.workers)}.log").open("wb")
        with log:
            worker = Worker([*(runner or ["-m", "scrapy"]), *command], log, environ)
        self.workers.append(worker)
        return worker

    @property
    def items_path(self) -> Path:
        return self.folder / "items.jl"

    @property
    def frontier(self) -> Frontier:
        name = crawl_name(self.spider, self.arguments, self.environ.get("CLUSTER_CRAWL_ID", ""))
        return open_store(self.store).frontier(name)

    def status(self) -> Status:
        frontier = self.frontier
        try:
            return frontier.status()
        finally:
            frontier.close()

    def asked(self) -> list[str]:
        """The paths the site was asked for, in order."""
        return [hit.path for hit in self.site.hits()]

    def items(self) -> list[dict[str, Any]]:
        """The lines of the item file."""
        path = self.items_path
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]

    def dead(self) -> dict[str, tuple[str, str]]:
        """Reason and detail of each dead letter, by the end of its URL."""
        frontier = self.frontier
        letters = {
            url_of(letter.payload).removeprefix(self.site.url): (letter.reason, letter.detail)
            for letter in frontier.dead_letters()
        }
        frontier.close()
        return letters

    def kill(self, worker: Worker) -> None:
        """``kill -9``, and note what it had leased: the store still knows."""
        worker.kill()
        self.leased_at_kills += self.status().leased

    def wait_for_hits(self, count: int, worker: Worker) -> None:
        wait_until(lambda: len(self.site.hits()) >= count or not worker.running)

    def stop_all(self) -> None:
        for worker in self.workers:
            worker.signal(signal.SIGCONT)
            worker.kill()

    def tally(self) -> Tally:
        """Count by the site's own log and the item file."""
        answered = [hit for hit in self.site.hits() if not hit.gone and hit.path != "/robots.txt"]
        counts = Counter(hit.page for hit in answered)
        lines = self.items_path.read_text().splitlines() if self.items_path.exists() else []
        items = {urlsplit(json.loads(line)["url"]).path or "/" for line in lines}
        expected = self.site.expected()
        return Tally(
            pages=len(counts),
            lost=sorted(expected - set(counts)),
            without_item=sorted(expected - items),
            twice=sum(counts.values()) - len(counts),
            leased_at_kills=self.leased_at_kills,
        )


@dataclass(frozen=True)
class Tally:
    """What a crawl came to."""

    pages: int
    lost: list[str]
    without_item: list[str]
    twice: int
    leased_at_kills: int


def wait_until(condition: Callable[[], object], timeout_s: float = TIMEOUT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
