"""From settings to what a worker asks of its frontier."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy.utils.conf import closest_scrapy_cfg

from clusterscrapy.frontier import Bounds, Filter, Frontier, Scheme, Store, Terms, open_store
from clusterscrapy.frontier.codec import RequestCodec
from clusterscrapy.frontier.courier import Limits
from clusterscrapy.identity import arguments_of, crawl_name

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

    from clusterscrapy.config import Config

_PREFETCH_PER_REQUEST = 2


def store_of(config: Config) -> Store:
    """The store of ``CLUSTER_FRONTIER_URL``; relative folders start beside ``scrapy.cfg``."""
    cfg = closest_scrapy_cfg()
    return open_store(config.frontier_url, Path(cfg).parent if cfg else None)


def frontier_of(store: Store, config: Config, crawler: Crawler) -> Frontier:
    """The crawl this crawler's spider, with its ``-a`` arguments, belongs to."""
    assert crawler.spider is not None
    name = crawl_name(crawler.spider.name, arguments_of(crawler), config.crawl_id)
    return store.frontier(name)


def codec_of(config: Config, crawler: Crawler) -> RequestCodec:
    """What turns this crawler's requests into queue entries and back."""
    assert crawler.spider is not None
    modules = [*crawler.settings.getlist("SPIDER_MODULES"), crawler.spidercls.__module__]
    packages = dict.fromkeys(module.partition(".")[0] for module in modules if module)
    return RequestCodec(
        crawler.spider,
        request_classes=config.request_classes,
        project_packages=tuple(packages),
        max_bytes=config.request_max_bytes,
    )


def terms_of(config: Config, scheme: Scheme, place: str) -> Terms:
    """What this worker asks for when it joins the store at ``place``."""
    worker = config.worker_name or f"{socket.gethostname()}-{os.getpid()}"
    return Terms(
        worker=worker,
        info={"store": place},
        resume=config.resume,
        explicit=bool(config.crawl_id),
        hold_s=config.finished_hold_seconds,
        lease_s=config.lease_seconds,
        max_deliveries=config.max_deliveries,
        keep=config.keep,
        order=config.queue_order,
        filter=Filter(config.dupefilter, config.dupefilter_capacity, config.dupefilter_error_rate),
        scheme=scheme,
        bounds=Bounds(config.max_pages, config.max_items, config.max_seconds),
    )


def limits_of(config: Config, concurrent_requests: int) -> Limits:
    """How much this worker may hold."""
    return Limits(
        prefetch=config.prefetch or _PREFETCH_PER_REQUEST * concurrent_requests,
        outbox=config.outbox_max_requests,
        seen_memory=config.seen_memory,
        heartbeat_s=config.heartbeat_seconds,
        stall_s=config.loop_stall_seconds,
        replay_s=config.replay_seconds,
    )
