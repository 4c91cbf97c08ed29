"""The set of pages that `site` fetches is the set an independent walker finds."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.real_pages import Nginx, docs_folder, walk
from tests.site.process import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(290)]


@pytest.fixture(scope="module")
def documentation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Nginx, set[str]]]:
    nginx = Nginx(docs_folder(), tmp_path_factory.mktemp("nginx"))
    yield nginx, walk(f"{nginx.url}index.html")
    nginx.stop()


@pytest.fixture(params=["sqlite", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "redis":
        return str(request.getfixturevalue("redis_url"))
    return f"sqlite://{tmp_path}/frontier"


def crawl(nginx: Nginx, store: str, log: Path) -> subprocess.Popen[bytes]:
    environ = {**os.environ, "CLUSTER_FRONTIER_URL": store, "CLUSTER_LEASE_SECONDS": "4"}
    command = ["-m", "scrapy", "crawl", "site", "-a", f"url={nginx.url}index.html"]
    options = ["-s", "CLUSTER_HEARTBEAT_SECONDS=1", "-s", "AUTOTHROTTLE_ENABLED=0"]
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, *command, *options], cwd=ROOT, env=environ, stdout=file, stderr=file
        )


@pytest.mark.parametrize("kill", [False, True])
def test_the_documentation_is_fetched_whole(
    documentation: tuple[Nginx, set[str]], store: str, tmp_path: Path, kill: bool
) -> None:
    nginx, expected = documentation
    assert len(expected) > 400
    nginx.log.write_text("")
    log = tmp_path / "worker.log"
    worker = crawl(nginx, store, log)
    if kill:
        moment = random.randrange(50, 400)
        while len(nginx.pages()) < moment and worker.poll() is None:
            time.sleep(0.02)
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        worker = crawl(nginx, store, log)
    assert worker.wait(200) == 0, log.read_text()[-2000:]
    pages = nginx.pages()
    assert set(pages) == expected
    if not kill:
        assert set(pages.values()) == {1}
