"""One crawl of the pages by each kind of scheduler, each in a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.site.process import ROOT

if TYPE_CHECKING:
    from tests.benchmarks.pages import Pages
    from tests.servers import RedisServer

ADDON = 'ADDONS={"clusterscrapy.Addon": 500}'
KINDS = ("plain Scrapy", "scrapy-redis", "ours on Redis", "ours on SQLite")


def crawl(
    kind: str, spider: str, pages: Pages, redis: RedisServer, folder: Path
) -> tuple[float, float]:
    """Crawl once; returns pages a second and Redis CPU microseconds a page."""
    with redis.client as client:
        client.flushall()
    sqlite = folder / "frontier"
    shutil.rmtree(sqlite, ignore_errors=True)
    options = {
        "plain Scrapy": [],
        "scrapy-redis": [
            "SCHEDULER=scrapy_redis.scheduler.Scheduler",
            "DUPEFILTER_CLASS=scrapy_redis.dupefilter.RFPDupeFilter",
            f"REDIS_URL={redis.url}",
        ],
        "ours on Redis": [ADDON, f"CLUSTER_FRONTIER_URL={redis.url}"],
        "ours on SQLite": [ADDON, f"CLUSTER_FRONTIER_URL=sqlite://{sqlite}"],
    }[kind]
    arguments = [f"url={pages.url}", *([f"pages={pages.count}"] if spider == "seeds" else [])]
    command = [
        *("-m", "scrapy", "crawl", spider),
        *(word for argument in arguments for word in ("-a", argument)),
        *(word for option in options for word in ("-s", option)),
    ]
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "SCRAPY_SETTINGS_MODULE": "tests.benchmarks.project.settings",
        # scrapy-redis uses what Scrapy has deprecated.
        "PYTHONWARNINGS": "ignore",
    }
    pages.forget()
    before = _redis_cpu(redis)
    subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=environ,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return pages.rate(), (_redis_cpu(redis) - before) * 1e6 / pages.count


def _redis_cpu(redis: RedisServer) -> float:
    with redis.client as client:
        info = client.info("cpu")
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])
