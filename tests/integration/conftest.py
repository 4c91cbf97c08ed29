from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.crawl import Crawl
from tests.site.process import SiteProcess

SETTINGS = {"SCRAPY_SETTINGS_MODULE": "tests.integration.project.settings"}


@pytest.fixture(scope="session")
def odd_site() -> Iterator[SiteProcess]:
    """A site with the odd pages."""
    with SiteProcess("flat", pages=3) as site:
        yield site


@pytest.fixture
def site(odd_site: SiteProcess) -> SiteProcess:
    """The site, asked nothing so far."""
    odd_site.reset()
    return odd_site


@pytest.fixture(params=["sqlite", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Each shared frontier in turn, empty."""
    if request.param == "redis":
        return str(request.getfixturevalue("redis_url"))
    return f"sqlite://{tmp_path}/frontier"


@pytest.fixture
def sqlite_store(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/frontier"


@pytest.fixture
def crawl_of(site: SiteProcess, tmp_path: Path) -> Iterator[Callable[..., Crawl]]:
    """``crawl_of(spider, store, **arguments)``; its workers are stopped at the end."""
    crawls: list[Crawl] = []

    def make(
        spider: str, store: str, environ: dict[str, str] | None = None, **arguments: Any
    ) -> Crawl:
        crawl = Crawl(site, store, tmp_path, spider, arguments, {**SETTINGS, **(environ or {})})
        crawls.append(crawl)
        return crawl

    yield make
    for crawl in crawls:
        crawl.stop_all()
