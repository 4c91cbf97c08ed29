"""``kill -9`` at each step where a death could matter, one by one: no page is lost.

``crash_worker.py`` names the steps. Those that it calls routine are tried on one of the stores that
have them; with ``CHAOS_RUNS`` above 1 (``make chaos``) all steps are, on each store.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
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

SiteOf = Callable[[str], SiteProcess]
pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(280)]
EVERYWHERE = int(os.environ.get("CHAOS_RUNS", "1")) > 1
PAGES = 40
WORKERS_WAIT_S = 90.0
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
def site_of() -> Iterator[Callable[[str], SiteProcess]]:
    """A site of each kind, started when it is first needed, asked nothing so far."""
    sites: dict[str, SiteProcess] = {}
    with ExitStack() as stack:

        def site(kind: str) -> SiteProcess:
            if kind not in sites:
                sites[kind] = stack.enter_context(SiteProcess(kind, pages=PAGES, latency_ms="5-20"))
            sites[kind].reset()
            return sites[kind]

        yield site


def _run(case: Case, url: str, folder: Path, site_of: SiteOf) -> Outcome:
    point = POINTS[case.point]
    graph = point.spider == "graph"
    crawl = Crawl(
        site_of("tree" if graph else "flat"),
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
    case: Case, site_of: SiteOf, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = f"sqlite://{tmp_path}/frontier"
    if case.store == "redis":
        url = request.getfixturevalue("redis_url")
    outcome = _run(case, url, tmp_path, site_of)
    print(outcome.logs)
    assert set(outcome.deaths) == {-signal.SIGKILL}, "the step was not reached"
    assert outcome.exit_code == 0
    assert outcome.tally.lost == []
    assert outcome.tally.without_item == []
    assert outcome.tally.twice <= outcome.tally.leased_at_kills + outcome.leases_lost
    status = outcome.status
    assert (status.state, status.waiting, status.leased, status.dead) == ("finished", 0, 0, 0)
    assert status.done == PAGES
