"""Commands of ``scrapy``: ``frontier``, and ``crawl`` and ``runspider`` with exit codes that tell."""

from __future__ import annotations
