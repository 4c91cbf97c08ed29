from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clusterscrapy.frontier import Frontier, Session, Terms, open_store
from clusterscrapy.frontier.sqlite import MemoryStore

LEASE_S = 0.4


@pytest.fixture(params=["memory", "sqlite", "redis"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Each kind of frontier in turn, empty."""
    if request.param == "redis":
        yield request.getfixturevalue("redis_url")
    elif request.param == "sqlite":
        yield f"sqlite://{tmp_path}/frontier"
    else:
        yield "memory://contract"
        MemoryStore._shared.clear()


@pytest.fixture
def frontier(store_url: str) -> Iterator[Frontier]:
    frontier = open_store(store_url).frontier("crawl")
    yield frontier
    frontier.close()


@pytest.fixture
def join(store_url: str) -> Iterator[Callable[..., Session]]:
    """Workers, each with a frontier object of its own as in a process of its own."""
    frontiers = []

    def make(worker: str = "w", **terms: object) -> Session:
        frontier = open_store(store_url).frontier("crawl")
        frontiers.append(frontier)
        return frontier.join(Terms(worker=worker, **{"lease_s": LEASE_S, **terms}))  # type: ignore[arg-type]

    yield make
    for frontier in frontiers:
        frontier.close()
