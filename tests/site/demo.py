"""``make demo``: crawl a local shop, ``kill -9`` the worker half-way, start it again, count.

Nothing is fetched from the network. The counts come from the shop's own log and from the items, so
a crawler that miscounts cannot look good. Exit code 0: nothing was lost, and the second worker
ended by itself as it should.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from clusterscrapy.exceptions import ClusterScrapyError
from clusterscrapy.frontier import open_store
from tests.site.process import ROOT, SiteProcess
from tests.site.progress import Progress, QueueState
from tests.site.shop import ShopSite
from tests.site.tally import Tally, pages_done, tally

if TYPE_CHECKING:
    from types import TracebackType
    from typing import NoReturn

    from typing_extensions import Self

OUT = Path("demo-out")
ITEMS = OUT / "products.jl"
FRONTIER_URL = f"sqlite://{ROOT / OUT / 'frontier'}"
TIME_LIMIT_S = 120
STOP_TIMEOUT_S = 5
POLL_S = 0.05
LOG_TAIL = 15


class DemoFailed(Exception):
    """The demo cannot go on; the message says why."""


class Worker:
    """One ``scrapy crawl shop`` in a process of its own, stopped when the ``with`` block ends."""

    def __init__(self, number: int, shop_url: str) -> None:
        self.name = f"worker {number}"
        self.log = ROOT / OUT / f"worker-{number}.log"
        command = ["crawl", "shop", "-a", f"url={shop_url}", "-O", str(ITEMS)]
        self.command = " ".join(["scrapy", *command])
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "scrapy", *command],
                cwd=ROOT,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the demo, which then stops its workers
            )

    def __enter__(self) -> Self:
        """Return the worker."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Ask the worker to stop if it still runs, and kill it if it does not."""
        if self.exit_code() is not None:
            return
        self._process.terminate()
        try:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_TIMEOUT_S)
        finally:  # a second Ctrl-C comes here too
            if self.exit_code() is None:
                self.kill()

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """Return the exit code, or None while the worker runs."""
        return self._process.poll()

    def kill(self) -> None:
        """Kill this one process, as a power cut would: no signal handler, no last words."""
        os.kill(self.pid, signal.SIGKILL)
        self._process.wait()

    def words(self) -> list[str]:
        """Return the lines of its log so far."""
        return self.log.read_text(encoding="utf-8", errors="replace").splitlines()

    def resuming(self) -> str | None:
        """Return what it says about the crawl that it found, without time and logger."""
        line = next((line for line in self.words() if "Resuming" in line), None)
        return line and line[line.index("Resuming") :]


class Demo:
    """The shop, two workers one after the other, and what they have to fetch."""

    def __init__(self, shop: SiteProcess, site: ShopSite, progress: Progress) -> None:
        self._shop = shop
        self._site = site
        self._progress = progress
        self._deadline = time.monotonic() + TIME_LIMIT_S
        self._half = len(site.expected()) // 2

    def run(self) -> int:
        """Run both workers; return the demo's exit code."""
        say = self._progress.say
        with Worker(1, self._shop.url) as first:
            say(f"{first.name} (pid {first.pid}): {first.command}")
            self._watch(first, until_pages=self._half)
            if first.exit_code() is not None:
                raise DemoFailed(f"{first.name} ended before it could be killed" + _tail(first))
            first.kill()
            say(f"kill -9 {first.pid}, at {pages_done(self._shop.hits()):,} pages")
        with Worker(2, self._shop.url) as second:
            say(f"{second.name} (pid {second.pid}): the same command")
            self._watch(second)
            code = second.exit_code()
        self._progress.clear()
        if code != 0:
            say(f"{second.name} ended with exit code {code}" + _tail(second))
        result = self._tally()
        say(report(result, queue_state(), self._site.broken.stock_path))
        return 0 if code == 0 and not result.lost else 1

    def _watch(self, worker: Worker, until_pages: int | None = None) -> None:
        """Show progress until the worker has ended, or so many pages are done."""
        resuming = None
        while True:
            ended = worker.exit_code() is not None
            if until_pages is None and resuming is None and (resuming := worker.resuming()):
                self._progress.say(f"  {resuming}")
            done = pages_done(self._shop.hits())
            if ended or (until_pages is not None and done >= until_pages):
                return
            if time.monotonic() > self._deadline:
                raise DemoFailed(f"not done within {TIME_LIMIT_S} s" + _tail(worker))
            if self._progress.due():
                self._progress.show(worker.name, done, queue_state())
            time.sleep(POLL_S)

    def _tally(self) -> Tally:
        return tally(
            self._shop.hits(),
            ROOT / ITEMS,
            pages=self._site.expected(),
            products=self._site.expected_items(),
        )


def queue_state() -> QueueState | None:
    """Return what the frontier holds, or None while no worker has made it."""
    store = open_store(FRONTIER_URL)
    try:
        for name in store.names():  # there is but one
            with closing(store.frontier(name)) as frontier:
                status = frontier.status()
                return QueueState(status.waiting, status.leased, status.dead)
    except ClusterScrapyError:  # being made at this moment
        return None
    return None


def report(result: Tally, queue: QueueState | None, broken: str) -> str:
    """Return the table, what is missing, and what to try next."""
    rows = [
        ("pages", result.pages, "that links lead to; counted by the shop's own log"),
        ("items", result.products, f"different products in {result.items:,} lines"),
        ("fetched twice", result.twice, "leased to worker 1 when it was killed"),
        ("lost", result.lost, "pages never answered, and products without an item"),
    ]
    if queue is not None:
        rows.insert(
            3,
            (
                "dead letters",
                queue.dead,
                f"{broken} answers broken JSON, on purpose: one item less",
            ),
        )
    if result.torn:
        rows.append(("torn lines", result.torn, "in the item file"))
    lines = ["", *(f"{name:>14} {number:>6,}   {note}" for name, number, note in rows), ""]
    lines += [f"  lost: {what}" for what in (result.lost_pages + result.lost_products)[:10]]
    return "\n".join([*lines, *_what_next()])


def main() -> int:
    """Run the demo; return its exit code."""
    signal.signal(signal.SIGTERM, _terminated)
    shutil.rmtree(ROOT / OUT, ignore_errors=True)
    (ROOT / OUT).mkdir()
    site = ShopSite()
    progress = Progress(sys.stdout, len(site.expected()))
    try:
        with SiteProcess("shop", log=ROOT / OUT / "requests.jl") as shop:
            progress.say(f"a shop of {len(site.expected()):,} pages at {shop.url}")
            return Demo(shop, site, progress).run()
    except DemoFailed as error:
        progress.say(str(error))
        return 1
    except KeyboardInterrupt:
        progress.say("stopped; nothing that the demo started is left running")
        return 130


def _environment() -> dict[str, str]:
    """Return the environment of a worker: the user's own, without what would change the demo."""
    ours = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("CLUSTER_", "SCRAPY_"))
    }
    return ours | {"CLUSTER_FRONTIER_URL": FRONTIER_URL}


def _tail(worker: Worker) -> str:
    return "\n".join(
        ["; the end of its log:", *(f"  {line}" for line in worker.words()[-LOG_TAIL:])]
    )


def _scrapy() -> str:
    """Return how the user would call this interpreter's scrapy from the project's folder."""
    script = Path(sys.executable).parent / "scrapy"
    return str(script.relative_to(ROOT)) if script.is_relative_to(ROOT) else "scrapy"


def _what_next() -> list[str]:
    scrapy = _scrapy()
    of_demo = f"CLUSTER_FRONTIER_URL=sqlite://./{OUT}/frontier {scrapy} frontier"
    return [
        f"The items are in {ITEMS}, the workers' logs beside them. What to try next:",
        "",
        "  # any site; stop it with Ctrl-C, and the same command goes on where it was",
        f"  {scrapy} crawl site -a url=https://your.site/ -a max_pages=100 -O pages.jl",
        "  # the demo's shop, to play with: make site, and in another terminal",
        f"  {scrapy} crawl shop -a url=http://127.0.0.1:8765/ -O products.jl",
        "  # where the demo's crawl stands, and what it gave up and why",
        f"  {of_demo} status",
        f"  {of_demo} dead",
    ]


def _terminated(signum: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
