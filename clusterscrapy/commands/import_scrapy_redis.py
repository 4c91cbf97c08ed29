"""``scrapy frontier import-scrapy-redis``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from clusterscrapy.commands.seed import add_spider_options, sower_of
from clusterscrapy.compat.scrapy_redis.backlog import Backlog

if TYPE_CHECKING:
    import argparse

    from scrapy.settings import Settings


def add_import_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``import-scrapy-redis``."""
    parser.description = (
        "Queues the requests that wait in scrapy-redis' queue (SCHEDULER_QUEUE_KEY) into the crawl of the "
        "spider. Stop its workers first. The queue is left as it is, and an import may be repeated: what is "
        "queued already is known. What scrapy-redis has fetched is not fetched again with "
        "CLUSTER_SCRAPY_REDIS_SEEN=1."
    )
    add_spider_options(parser)
    parser.add_argument(
        "--unpickle",
        action="store_true",
        help="read pickled entries, the default of scrapy-redis: this runs what is in them",
    )
    parser.add_argument(
        "--delete",
        action="store_true",
        help="delete the queue of scrapy-redis after an import in which no entry was bad",
    )


def import_backlog(settings: Settings, opts: argparse.Namespace) -> None:
    """Queue what waits, and compare the counts.

    Raises:
        ConfigError: an unknown spider, pickled entries without ``--unpickle``, or no queue.
        FrontierUnavailable: a store does not answer.
    """
    sower, its_settings = sower_of(settings, opts.spider, opts.spargs)
    backlog = Backlog(its_settings, sower.spider, unpickle=opts.unpickle)
    waiting = len(backlog)
    with sower:
        for sown in sower.sow_ops(backlog.ops(sower)):
            if sys.stderr.isatty():
                sys.stderr.write(f"\r{sown.read:,} of {waiting:,} ")
    sown = sower.sown
    bad = (
        f", {sown.bad:,} bad (scrapy frontier dead --crawl {sower.frontier.name})"
        if sown.bad
        else ""
    )
    if sown.read != waiting:
        then = (
            f"; it had {waiting:,} at first: stop the workers of scrapy-redis and repeat the import"
        )
    elif opts.delete and not sown.bad:
        backlog.delete()
        then = "; it is deleted"
    else:
        then = "; it is left as it is" + (", because of the bad ones" if opts.delete else "")
    print(
        f"{sower.frontier.name}: {sown.read:,} entries of {backlog.key}: {sown.queued:,} queued, "
        f"{sown.known:,} known already{bad}{then}"
    )
