"""Speed against plain Scrapy and scrapy-redis, in one run, as ratios."""
