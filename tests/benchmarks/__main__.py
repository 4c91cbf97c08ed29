"""``python -m tests.benchmarks``: paired rounds, medians of the ratios inside a round, one report."""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median

from tests.benchmarks import cycle
from tests.benchmarks.crawls import KINDS, crawl
from tests.benchmarks.pages import Pages
from tests.servers import RedisServer
from tests.site.process import ROOT

REPORT = ROOT / "docs" / "benchmarks.md"
TITLES = {
    "links": "Following links: 20 links a page, 9 of 10 known",
    "seeds": "Fetching known pages, callback does nothing",
}
_HEAD = """<!-- Written by `make bench`; do not edit. -->
# Benchmarks

Each round runs every kind once, in an order that changes from round to round, on pages of 2.9 KB that nginx
serves from the same machine, 32 requests at a time, the same settings for all. Rates are pages a second
from the first answer to the last, by nginx' log. Absolute rates move by a quarter from run to run on a
shared machine; the ratio is the median of the ratios inside each round. On heavy pages no scheduler
matters much.

"""


def main() -> None:
    """Run, print and write the report."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="paired rounds (9)")
    parser.add_argument("--pages", type=int, default=700, help="pages a crawl (700)")
    parser.add_argument(
        "--requests", type=int, default=10_000, help="requests a scheduler cycle (10000)"
    )
    parser.add_argument("--only", choices=["links", "seeds", "cycle"], help="one of the measures")
    parser.add_argument("--no-report", action="store_true", help="print only")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)  # nginx reads as another user
        redis = RedisServer(folder)
        pages = Pages(folder, options.pages)
        try:
            parts = [
                crawls(spider, options.rounds, pages, redis, folder)
                for spider in TITLES
                if options.only in (None, spider)
            ]
            if options.only in (None, "cycle"):
                parts.append(cycles(options.rounds, options.requests, redis))
        finally:
            pages.stop()
            redis.stop()
    report = _HEAD + "\n".join(parts) + f"\n{machine()}\n"
    if not options.no_report and options.only is None:
        REPORT.write_text(report)
        print(f"written to {REPORT.relative_to(ROOT)}")


def crawls(spider: str, rounds: int, pages: Pages, redis: RedisServer, folder: Path) -> str:
    """Time one spider under every kind of scheduler."""
    rates: dict[str, list[float]] = {kind: [] for kind in KINDS}
    cpu: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number in range(rounds):
        shift = number % len(KINDS)
        for kind in KINDS[shift:] + KINDS[:shift]:
            rate, redis_us = crawl(kind, spider, pages, redis, folder)
            rates[kind].append(rate)
            cpu[kind].append(redis_us)
        print(spider, {kind: round(values[-1]) for kind, values in rates.items()}, flush=True)
    plain = rates[KINDS[0]]
    rows = [
        (
            kind,
            f"{median(rates[kind]):.0f}",
            f"**{median(ratios(rates[kind], plain)):.2f}**",
            f"{min(ratios(rates[kind], plain)):.2f}-{max(ratios(rates[kind], plain)):.2f}",
            f"{median(cpu[kind]):.0f}" if "edis" in kind else "-",
        )
        for kind in KINDS
    ]
    head = ("", "pages/s", "ratio to plain Scrapy", "spread", "Redis CPU us/page")
    return table(TITLES[spider], head, rows, rounds)


def cycles(rounds: int, count: int, redis: RedisServer) -> str:
    """Time the schedulers alone."""
    theirs, mine = [], []
    for _ in range(rounds):
        theirs.append(cycle.scrapy_redis(redis, count))
        mine.append(cycle.ours(redis, count))
        print(
            "cycle",
            {"scrapy-redis": round(theirs[-1]), "ours on Redis": round(mine[-1])},
            flush=True,
        )
    rows = [
        (kind, f"{median(values):.0f}", f"**{median(ratios(values, theirs)):.2f}**")
        for kind, values in (("scrapy-redis", theirs), ("ours on Redis", mine))
    ]
    title = f"Scheduler alone: enqueue, next, lease and acknowledge {count:,} requests"
    return table(title, ("", "requests/s", "ratio to scrapy-redis"), rows, rounds)


def ratios(values: Sequence[float], base: Sequence[float]) -> list[float]:
    """Round by round."""
    return [value / other for value, other in zip(values, base, strict=True)]


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], rounds: int) -> str:
    """A Markdown table, also printed."""
    lines = [f"## {title}", "", " | ".join(["", *head, ""]).strip(), "|" + "---|" * len(head)]
    lines += [" | ".join(["", *row, ""]).strip() for row in rows]
    text = "\n".join([*lines, "", f"{rounds} rounds.", ""])
    print(text)
    return text


def machine() -> str:
    """What it ran on."""
    cpu = next(
        (line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
         if line.startswith("model name")),
        platform.processor(),
    )  # fmt: skip
    packages = ("scrapy", "scrapy-redis", "redis", "hiredis", "msgpack", "twisted")
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    return (
        f"Machine: {cpu}, {os.cpu_count()} cores, Python {platform.python_version()}, {versions}."
    )


if __name__ == "__main__":
    main()
