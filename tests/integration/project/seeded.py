"""A spider that has nothing to start with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import scrapy
from scrapy.http import Response  # noqa: TC002 - spiders are read by people


class Seeded(scrapy.Spider):
    """Fetches what it is seeded with; the site echoes the request."""

    name = "seeded"
    url = ""

    def parse(self, response: Response) -> Iterator[dict[str, Any]]:
        echo = json.loads(response.text)
        yield {"url": response.url, **echo, "meta": response.meta.get("label"), "by": "parse"}

    def parse_other(self, response: Response, page: int) -> Iterator[dict[str, Any]]:
        yield {"url": response.url, "page": page, "by": "parse_other"}
