"""A Scrapy project for tests that kill, freeze and cut off its workers."""
