from __future__ import annotations

BOT_NAME = "chaos"
SPIDER_MODULES = ["tests.chaos.project"]
ADDONS = {"clusterscrapy.Addon": 500}
LOG_LEVEL = "INFO"
CONCURRENT_REQUESTS = 32
CONCURRENT_REQUESTS_PER_DOMAIN = 32
TELNETCONSOLE_ENABLED = False
ROBOTSTXT_OBEY = False
