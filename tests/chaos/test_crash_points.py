"""``kill -9`` at each step where a death could matter, one by one: no page is lost.

``crash_worker.py`` names the steps. Those that it calls routine are tried on one of the stores that
have them; with ``CHAOS_RUNS`` above 1 (``make chaos``) all steps are, on each store.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.chaos.crash_worker import POINTS
from tests.chaos.crawl import Crawl, Tally
from tests.site.process import SiteProcess

if TYPE_CHECKING:
    from clusterscrapy.frontier import Status
    from tests.servers import RedisServer

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(280)]
EVERYWHERE = int(os.environ.get("CHAOS_RUNS", "1")) > 1
PAGES = 40
WORKERS_WAIT_S = 90.0
AT_ONCE = 3
"""Crawls at a time: most of one is the start of Python, and on Redis waiting for leases to end."""
OPTIONS = (
    *("-s", "CONCURRENT_REQUESTS=8"),  # so that pages wait in the queue, in the buffer and inside
    *("-s", "CLUSTER_LEASE_SECONDS=2"),
    *("-s", "CLUSTER_HEARTBEAT_SECONDS=0.5"),
)


@dataclass(frozen=True)
class Case:
    """One point on one store."""

    point: str
    store: str

    def __str__(self) -> str:
        return f"{self.point}-{self.store}"


@dataclass(frozen=True)
class Outcome:
    """How the workers ended, and what the crawl came to."""

    deaths: list[int]
    exit_code: int
    tally: Tally
    status: Status
    leases_lost: int
    logs: str


def _cases() -> list[Case]:
    chosen: list[Case] = []
    for number, (name, point) in enumerate(POINTS.items()):
        if EVERYWHERE:
            chosen += [Case(name, store) for store in point.stores]
        elif point.routine:
            chosen.append(Case(name, point.stores[number % len(point.stores)]))
    return chosen


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Case], Outcome]]:
    """The outcome of each chosen case; they run a few at a time, in the background."""
    cases = (
        item.callspec.params["case"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.path == Path(__file__)
    )
    chosen = [case for case in cases if isinstance(case, Case)]
    redis: RedisServer | None = None
    if any(case.store == "redis" for case in chosen):
        redis = request.getfixturevalue("shared_redis")
    with ExitStack() as stack:
        sites = _Sites(stack)
        pool = ThreadPoolExecutor(AT_ONCE)
        stack.callback(pool.shutdown, cancel_futures=True)
        running: dict[Case, Future[Outcome]] = {}
        for case in chosen:
            folder = tmp_path_factory.mktemp("crash")
            url = f"sqlite://{folder}/frontier"
            if case.store == "redis":
                assert redis is not None
                url = redis.url
            running[case] = pool.submit(_run, case, url, folder, sites)
        yield lambda case: running[case].result()


class _Sites:
    """A site of each kind for each thread, started when it is first needed."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._of_thread = threading.local()

    def site(self, kind: str) -> SiteProcess:
        site: SiteProcess | None = getattr(self._of_thread, kind, None)
        if site is None:
            site = SiteProcess(kind, pages=PAGES, latency_ms="5-20")
            self._stack.enter_context(site)
            setattr(self._of_thread, kind, site)
        else:
            site.reset()
        return site


def _run(case: Case, url: str, folder: Path, sites: _Sites) -> Outcome:
    point = POINTS[case.point]
    graph = point.spider == "graph"
    crawl = Crawl(
        sites.site("tree" if graph else "flat"),
        url,
        folder,
        spider=point.spider,
        # Of no use to the spider; it makes each case a crawl of its own.
        arguments={"case": str(case), **({} if graph else {"pages": str(PAGES)})},
    )
    options = [*OPTIONS, *point.options]
    deaths = []
    try:
        for name in filter(None, (point.earlier, case.point)):
            nth = str(POINTS[name].nth)
            worker = crawl.start(*options, runner=["-m", "tests.chaos.crash_worker", name, nth])
            deaths.append(worker.wait(WORKERS_WAIT_S))
            crawl.leased_at_kills += crawl.status().leased
        exit_code = crawl.start(*options).wait(WORKERS_WAIT_S)
    finally:
        crawl.stop_all()
    logs = "\n".join(worker.text() for worker in crawl.workers)
    lost = sum(int(number) for number in re.findall(r"leases lost: (\d+)", logs))
    return Outcome(deaths, exit_code, crawl.tally(), crawl.status(), lost, logs)


@pytest.mark.parametrize("case", _cases(), ids=str)
def test_a_death_at_this_step_loses_no_page(
    case: Case, outcomes: Callable[[Case], Outcome]
) -> None:
    outcome = outcomes(case)
    print(outcome.logs)
    assert set(outcome.deaths) == {-signal.SIGKILL}, "the step was not reached"
    assert outcome.exit_code == 0
    assert outcome.tally.lost == []
    assert outcome.tally.without_item == []
    assert outcome.tally.twice <= outcome.tally.leased_at_kills + outcome.leases_lost
    status = outcome.status
    assert (status.state, status.waiting, status.leased, status.dead) == ("finished", 0, 0, 0)
    assert status.done == PAGES
