"""``kill -9`` at random moments, one to three times: no page is lost, few are fetched twice.

``CHAOS_RUNS`` (1) says how often each is done; ``make chaos`` does it ten times.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.crawl import Crawl
from tests.site.process import SiteProcess

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(280)]
RUNS = int(os.environ.get("CHAOS_RUNS", "1"))
PAGES = 3_000


@pytest.fixture(params=["dense", "tree"])
def site(request: pytest.FixtureRequest) -> Iterator[SiteProcess]:
    with SiteProcess(request.param, pages=PAGES, latency_ms="50-150") as site:
        yield site


@pytest.mark.parametrize("run", range(RUNS))
def test_no_page_is_lost_at_kills(
    site: SiteProcess, store: str, tmp_path: Path, run: int, record_property: object
) -> None:
    crawl = Crawl(site, store, tmp_path)
    moments = sorted(random.randrange(1, PAGES * 9 // 10) for _ in range(random.randint(1, 3)))
    if run % 3 == 0:
        moments[0] = 1  # while start() runs
    try:
        for moment in moments:
            worker = crawl.start()
            crawl.wait_for_hits(moment, worker)
            crawl.kill(worker)
        assert crawl.start().wait() == 0
    finally:
        crawl.stop_all()
    tally = crawl.tally()
    print(json.dumps({"kills": moments, **vars(tally)}))
    assert tally.lost == []
    assert tally.without_item == []
    assert tally.twice <= tally.leased_at_kills


@pytest.mark.parametrize("run", range(RUNS))
def test_no_start_request_is_lost_at_kills(store: str, tmp_path: Path, run: int) -> None:
    with SiteProcess("flat", pages=1_000, latency_ms="5-15") as site:
        crawl = Crawl(site, store, tmp_path, spider="seeds", arguments={"pages": "1000"})
        try:
            for moment in (random.randrange(1, 200), random.randrange(200, 900)):
                worker = crawl.start()
                crawl.wait_for_hits(moment, worker)
                crawl.kill(worker)
            assert crawl.start().wait() == 0
        finally:
            crawl.stop_all()
        tally = crawl.tally()
    assert tally.lost == []
    assert tally.without_item == []
    assert tally.twice <= tally.leased_at_kills
