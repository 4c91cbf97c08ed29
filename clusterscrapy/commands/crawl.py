"""``scrapy crawl``."""

from __future__ import annotations

from scrapy.commands.crawl import Command as ScrapyCrawl

from clusterscrapy.commands.worker import WorkerCommand


class Command(WorkerCommand, ScrapyCrawl):
    """Scrapy's ``crawl`` with exit codes that tell how the worker ended."""
