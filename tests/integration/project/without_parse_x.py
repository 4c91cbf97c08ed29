"""``scrapy`` with a version of the spiders in which a callback was renamed."""

from __future__ import annotations

from scrapy.cmdline import execute

from tests.integration.project.spiders import Renamed

if __name__ == "__main__":
    del Renamed.parse_x
    execute()
