"""Settings of the example project; everything else is Scrapy's default or the add-on's."""

from __future__ import annotations

BOT_NAME = "spiders"
SPIDER_MODULES = ["spiders"]

# The one line that switches clusterscrapy on. With -s ADDONS={} the spiders run on Scrapy alone.
ADDONS = {"clusterscrapy.Addon": 500}

# Say who crawls, with an address a site's owner can write to. Put your own here.
USER_AGENT = "clusterscrapy-example (+https://www.example.com/our-crawler)"
ROBOTSTXT_OBEY = True

# Items as they are written: "é", not "\u00e9".
FEED_EXPORT_ENCODING = "utf-8"

# One DEBUG line a page is too much to read, and costs time.
LOG_LEVEL = "INFO"
