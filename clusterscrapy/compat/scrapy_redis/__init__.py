"""Projects written for scrapy-redis and its forks: their settings, seed keys and spiders keep working.

Their scheduler, queue and dupe filter are what clusterscrapy replaces; their spiders, pipeline and
connection settings stay scrapy-redis' own code. ``docs/migrate-from-scrapy-redis.md`` is for users.
"""
