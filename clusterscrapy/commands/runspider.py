"""``scrapy runspider``."""

from __future__ import annotations

from scrapy.commands.runspider import Command as ScrapyRunspider

from clusterscrapy.commands.worker import WorkerCommand


class Command(WorkerCommand, ScrapyRunspider):
    """Scrapy's ``runspider`` with exit codes that tell how the worker ended."""
