from __future__ import annotations

BOT_NAME = "odd"
SPIDER_MODULES = ["tests.integration.project"]
ADDONS = {"clusterscrapy.Addon": 500}
LOG_LEVEL = "INFO"
ROBOTSTXT_OBEY = False
RETRY_TIMES = 1
DOWNLOAD_TIMEOUT = 700
TELNETCONSOLE_ENABLED = False
