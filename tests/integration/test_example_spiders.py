"""The example spiders as a user runs them, on Scrapy alone: they fetch what they should, once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

import pytest

from tests.site.process import ROOT, SiteProcess
from tests.site.shop import ShopSite

PRODUCTS = 100


@pytest.fixture(scope="module")
def server():
    with SiteProcess("shop", pages=PRODUCTS, latency_ms="0") as site:
        yield site


@pytest.fixture
def shop(server):
    server.reset()
    return server


def crawl(tmp_path, spider, *arguments):
    """Run a spider without the add-on; return the finished process and its items."""
    items = tmp_path / "items.jl"
    command = [sys.executable, "-m", "scrapy", "crawl", spider, "-s", "ADDONS={}"]
    given = [word for argument in arguments for word in ("-a", argument)]
    done = subprocess.run(
        [*command, "-O", str(items), *given], cwd=ROOT, capture_output=True, text=True, check=False
    )
    lines = items.read_text().splitlines() if items.exists() else []
    return done, [json.loads(line) for line in lines]


def pages(shop) -> Counter[str]:
    """Return how often each page was fetched; a retry after a 503 is part of the first time."""
    asked = [hit for hit in shop.hits() if hit.path != "/robots.txt"]
    return Counter(hit.page for hit in asked if hit.status != 503)


@pytest.mark.parametrize("spider", ["shop", "site"])
def test_every_page_of_the_shop_is_fetched_once(shop, tmp_path, spider):
    done, items = crawl(tmp_path, spider, f"url={shop.url}")
    assert done.returncode == 0
    assert pages(shop) == Counter(shop.expected())
    site = ShopSite(PRODUCTS)
    if spider == "shop":
        assert sorted(item["sku"] for item in items) == sorted(site.expected_items())
        assert "'spider_exceptions/JSONDecodeError': 1" in done.stderr


def test_feed_yields_every_product(shop, tmp_path):
    done, items = crawl(tmp_path, "feed", f"url={shop.url}api/products?page=1")
    assert done.returncode == 0
    assert len({item["sku"] for item in items}) == len(items) == PRODUCTS


def test_a_redirect_to_another_host_is_reported_and_not_fetched(shop, tmp_path):
    elsewhere = shop.url.replace("127.0.0.1", "localhost")
    done, items = crawl(tmp_path, "site", f"url={shop.url}redirect?{elsewhere}")
    assert done.returncode == 0
    assert not items
    assert list(pages(shop)) == [f"/redirect?{elsewhere}"]
    assert f"to crawl that one, give -a url={elsewhere}" in done.stderr


def test_a_limit_of_depth_is_kept(shop, tmp_path):
    _, items = crawl(tmp_path, "site", f"url={shop.url}", "max_depth=1", "deny=/offer")
    assert Counter(item["depth"] for item in items) == {0: 1, 1: 20}


def test_a_wrong_argument_ends_the_process_with_one_sentence(tmp_path):
    done, _ = crawl(tmp_path, "site", "url=example.com")
    assert done.returncode == 8
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("site: url='example.com' does not begin with")
