from __future__ import annotations

import os

SPIDER_MODULES = ["tests.integration.scrapy_redis_project"]
ADDONS = {"clusterscrapy.Addon": 500}  # was: SCHEDULER = "scrapy_redis.scheduler.Scheduler"
DUPEFILTER_CLASS = "scrapy_redis.dupefilter.RFPDupeFilter"
SCHEDULER_PERSIST = True
SCHEDULER_QUEUE_CLASS = "scrapy_redis.queue.SpiderPriorityQueue"
ITEM_PIPELINES = {"scrapy_redis.pipelines.RedisPipeline": 400}
REDIS_URL = os.environ.get("SEEDS_REDIS")
LOG_LEVEL = "INFO"
TELNETCONSOLE_ENABLED = False
