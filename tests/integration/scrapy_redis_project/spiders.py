"""Spiders as scrapy-redis' documentation has them."""

from __future__ import annotations

import json

from scrapy import Request
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule
from scrapy_redis.spiders import RedisCrawlSpider, RedisSpider


class MySpider(RedisSpider):
    """Reads URLs from a Redis key (myspider:start_urls)."""

    name = "myspider"

    def parse(self, response):
        echo = json.loads(response.text) if "echo" in response.url else {}
        return {"url": response.url, "meta": response.meta.get("job-id"), **echo}


class MyCrawler(RedisCrawlSpider):
    """Reads URLs from a key of its own, and follows links."""

    name = "mycrawler"
    redis_key = "mycrawler:start_urls"
    rules = (Rule(LinkExtractor(), callback="parse_page", follow=True),)

    def __init__(self, *args, **kwargs):
        self.allowed_domains = [domain for domain in kwargs.pop("domain", "").split(",") if domain]
        super().__init__(*args, **kwargs)

    def parse_page(self, response):
        return {"url": response.url}


class Plain(CrawlSpider):
    """No Redis spider, but in the same project."""

    name = "plain"
    url: str
    rules = (Rule(LinkExtractor(), callback="parse_page", follow=True),)

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.start_urls = [self.url]

    def parse_page(self, response):
        return {"url": response.url}

    def parse_other(self, response, note=""):
        return {"url": response.url, "note": note}


class Own(RedisSpider):
    """Makes its own requests, one of them unlike the other."""

    name = "own"

    def make_request_from_data(self, data):
        text = data.decode()
        yield Request(f"{self.url}echo?{text}", dont_filter=True)
        if text == "bad":
            raise KeyError(text)

    def parse(self, response):
        return {"url": response.url}


class Handler(RedisSpider):
    """Does more than theirs when it is idle."""

    name = "handler"
    again = ""

    def spider_idle(self):
        if self.again:
            self.server.rpush(self.redis_key, self.again)
            self.again = ""
        self.logger.info("idle, it would have taken %s", list(self.next_requests()))
        super().spider_idle()

    def parse(self, response):
        return {"url": response.url}


class Greedy(RedisSpider):
    """Reads its seeds in its own way."""

    name = "greedy"

    def next_requests(self):
        while data := self.server.lpop(self.redis_key):
            yield Request(data.decode(), dont_filter=True)

    def parse(self, response):
        return {"url": response.url}
