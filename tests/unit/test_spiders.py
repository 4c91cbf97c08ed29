"""The example spiders, on pages of the shop and on pages made to be difficult; no network."""

from __future__ import annotations

import json
from datetime import datetime, timezone

import pytest
from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.offsite import OffsiteMiddleware
from scrapy.downloadermiddlewares.retry import RetryMiddleware
from scrapy.http import HtmlResponse, JsonResponse, Response, TextResponse
from scrapy.linkextractors import LinkExtractor
from scrapy.statscollectors import MemoryStatsCollector

from spiders.feed import FeedSpider
from spiders.shop import ShopSpider
from spiders.site import SameSiteMiddleware, SiteSpider, links_of, site_of
from tests.site.shop import ShopSite

SHOP = ShopSite(products=130)
HOME = "http://shop.test/"


def make(spider, **arguments):
    return spider.from_crawler(Crawler(spider, {}), **arguments)


def page(target: str):
    """Return the shop's answer to a request as Scrapy would give it to a callback."""
    answer = SHOP.answer(target, 2)
    assert answer is not None
    kind = JsonResponse if "json" in answer.content_type else HtmlResponse
    url = HOME.rstrip("/") + target
    return kind(url, status=answer.status, body=answer.body, request=Request(url))


def html(body: str, url: str = HOME, encoding: str = "utf-8"):
    text = f"<html><head><title> A  page </title></head><body>{body}</body></html>"
    return HtmlResponse(url, body=text, encoding=encoding, request=Request(url))


def split(output):
    output = list(output)
    requests = [each for each in output if isinstance(each, Request)]
    return [each for each in output if each not in requests], requests


def urls(requests) -> list[str]:
    return [request.url for request in requests]


def is_utc_time(text: str) -> bool:
    return datetime.fromisoformat(text).utcoffset() == timezone.utc.utcoffset(None)


# --- site ----------------------------------------------------------------------------


def test_site_yields_an_item_and_the_links_of_its_host():
    spider = make(SiteSpider, url=HOME)
    body = '<a href="/a">a</a><a href="/a#b">a</a><a href="http://other.test/">other</a>'
    (item,), requests = split(spider.parse(html(body)))
    assert is_utc_time(item.pop("fetched_at"))
    assert item == {"url": HOME, "status": 200, "title": "A page", "depth": 0, "links": 2}
    assert urls(requests) == ["http://shop.test/a"]


def test_site_finds_every_link_of_the_shop_that_a_browser_would():
    spider = make(SiteSpider, url=HOME)
    found, todo = {HOME}, [HOME]
    while todo:
        target = todo.pop().removeprefix(HOME.rstrip("/"))
        answer = SHOP.answer(target, 2)
        if answer is None or answer.status != 200:
            continue
        new = set(urls(split(spider.parse(page(target)))[1])) - found
        found |= new
        todo += new
    left_out = {HOME[:-1] + target for target in SHOP.expected()} - found
    # Not links, but where redirects lead; and the second spelling of the pages by price.
    assert {url for url in left_out if "sort=price" not in url} == {HOME + "offers"}


def test_a_page_that_is_not_html_is_an_item_without_title_and_links():
    spider = make(SiteSpider, url=HOME)
    for response in (
        Response(HOME + "a.bin", body=b"\x00\xff"),
        TextResponse(HOME + "a.txt", body=b"<a href='/b'>"),
        page(f"/api/stock/{SHOP.broken.sku}"),
    ):
        response.request = Request(response.url)
        (item,), requests = split(spider.parse(response))
        assert set(item) == {"url", "status", "depth", "fetched_at"}
        assert not requests


@pytest.mark.parametrize(
    "body", ["", "<html></html>", "\x00", "<!-- -->", "<a>no href</a>", "<base><a href=''>x</a>"]
)
def test_a_page_without_anything_is_no_error(body):
    spider = make(SiteSpider, url=HOME)
    response = HtmlResponse(HOME, body=body.encode(), request=Request(HOME))
    (item,), requests = split(spider.parse(response))
    assert (item["title"], item["links"], requests) == (None, 0, [])


@pytest.mark.parametrize(
    ("body", "links"),
    [
        ("<base href='/sub/x'><a href='a'>", ["http://shop.test/sub/a"]),
        ("<base href=' http://cdn.test/ '><a href='a'>", ["http://cdn.test/a"]),
        ("<base target=_top><base href=/s/><base href=/t/><a href=a>", ["http://shop.test/s/a"]),
        ("<base href='javascript:0'><a href='a'>", ["http://shop.test/a"]),
        ("<base href='/sub/'><a href='#top'>", ["http://shop.test/sub/"]),
        ("<a href='#top'><a href=''><a href=' # '>", []),
        ("<a href=' /a\n'><a href='/b\t'>", ["http://shop.test/a", "http://shop.test/b"]),
        ("<a href='javascript:void(0)'><a href='mailto:a@b.c'><a href='tel:1'>", []),
        ("<a href='data:text/html,x'><a href='ftp://h/x'><a href='https://'>", []),
        ("<a href='http://[::1'><a href='http://h:x]/'>", []),
        ("<a href='HTTP://Shop.test/A'>", ["http://Shop.test/A"]),
        ("<a href='//other.test/x'>", ["http://other.test/x"]),
        ("<area href='/map'>", ["http://shop.test/map"]),
        ("<a href='?b=2&amp;a=1'>", ["http://shop.test/?b=2&a=1"]),
        ("<a href='/index.php?/a/=/o/'>", ["http://shop.test/index.php?/a/=/o/"]),
        ("<a href='/ü'>", ["http://shop.test/%C3%BC"]),
        ("<a href='http://例え.jp/'>", ["http://xn--r8jz45g.jp/"]),
        ("<!-- <a href='/no'> --><script>'<a href=/no>'</script>", []),
    ],
)
def test_links_are_what_a_browser_would_follow(body, links):
    assert [Request(url).url for url in links_of(html(body))] == [Request(u).url for u in links]


def test_a_query_is_encoded_as_its_page_is():
    response = html("<a href='/ü?q=ü'>", encoding="latin-1")
    assert links_of(response) == ["http://shop.test/%C3%BC?q=%FC"]


@pytest.mark.parametrize("target", sorted(t for t in SHOP.expected() if "/c/" in t or t == "/"))
def test_links_are_those_of_scrapys_own_extractor(target):
    extractor = LinkExtractor(deny_extensions=())
    theirs = {link.url.partition("#")[0] for link in extractor.extract_links(page(target))}
    assert {Request(url).url for url in links_of(page(target))} == theirs


def test_site_stays_on_its_host_and_port():
    spider = make(SiteSpider, url="http://User@Shop.test:80/")
    followed = [
        "http://shop.test/",
        "http://SHOP.test:80/a",
        "https://shop.test/",
        "https://shop.test:443/",
    ]
    others = ["http://shop.test:81/", "http://www.shop.test/", "http://shop.test.evil/"]
    assert [url for url in followed + others if spider.wants(url)] == followed
    assert site_of("http://[::1]:80/") == "[::1]"


def test_allow_and_deny_choose_links_and_deny_wins():
    spider = make(SiteSpider, url=HOME, allow=r"/p/\d", deny=r"/p/13$")
    body = "".join(f"<a href='{target}'>" for target in ("/p/12", "/p/13", "/p/x", "/"))
    assert urls(split(spider.parse(html(body)))[1]) == [HOME + "p/12"]


def test_a_redirect_to_another_host_is_not_followed(caplog):
    crawler = Crawler(SiteSpider, {})
    crawler.spider = SiteSpider.from_crawler(crawler, url=HOME)
    middleware = SameSiteMiddleware(MemoryStatsCollector(crawler))
    redirected = Request("http://www.shop.test/", meta={"redirect_urls": [HOME]})
    assert not middleware.should_follow(redirected, crawler.spider)
    assert "give -a url=http://www.shop.test/" in caplog.text
    assert middleware.should_follow(Request(HOME + "a"), crawler.spider)


def test_the_middleware_of_the_site_spider_takes_the_place_of_scrapys_own():
    settings = {"DOWNLOADER_MIDDLEWARES": {RetryMiddleware: 551}}  # a user's own choice stays
    crawler = Crawler(SiteSpider, settings)
    SiteSpider.from_crawler(crawler, url=HOME)
    middlewares = crawler.settings.getdict("DOWNLOADER_MIDDLEWARES")
    expected = {RetryMiddleware: 551, OffsiteMiddleware: None, SameSiteMiddleware: 50}
    assert middlewares == expected


def test_limits_become_scrapys_settings_and_the_command_line_wins():
    crawler = Crawler(SiteSpider, {})
    crawler.settings.set("DEPTH_LIMIT", 9, priority="cmdline")
    SiteSpider.from_crawler(crawler, url=HOME, max_pages="7", max_depth="2")
    assert crawler.settings.getint("CLOSESPIDER_PAGECOUNT") == 7
    assert crawler.settings.getint("DEPTH_LIMIT") == 9


# --- arguments -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spider", "arguments", "sentence"),
    [
        (SiteSpider, {}, "site: needs a url: scrapy crawl site -a url=http://example.com/"),
        (SiteSpider, {"url": " "}, "site: needs a url"),
        (SiteSpider, {"url": "example.com"}, "does not begin with http:// or https://"),
        (SiteSpider, {"url": "ftp://h/"}, "does not begin with http:// or https://"),
        (SiteSpider, {"url": "http:///x"}, "has no valid host"),
        (SiteSpider, {"url": "http://a b/"}, "has no valid host"),
        (SiteSpider, {"url": "http://[::1"}, "is not a URL"),
        (SiteSpider, {"url": "http://h:99999/"}, "is not a URL"),
        (SiteSpider, {"url": f"http://{'a' * 64}.com/"}, "is not a URL"),
        (SiteSpider, {"url": "http://h..com/"}, "is not a URL"),
        (SiteSpider, {"url": HOME, "max_pages": "ten"}, "max_pages='ten' is not a whole number"),
        (SiteSpider, {"url": HOME, "max_depth": "0"}, "max_depth='0' is not a whole number"),
        (SiteSpider, {"url": HOME, "max_depth": "²"}, "max_depth='²' is not a whole number"),
        (SiteSpider, {"url": HOME, "allow": "("}, "allow='(' is not a regular expression"),
        (SiteSpider, {"url": HOME, "max_page": "3"}, "did you mean max_pages?"),
        (ShopSpider, {"colour": "red"}, "there is no argument 'colour'; it takes url"),
        (FeedSpider, {}, "feed: needs a url"),
    ],
)
def test_a_wrong_argument_is_one_sentence_and_exit_code_8(capsys, spider, arguments, sentence):
    with pytest.raises(SystemExit) as refusal:
        make(spider, **arguments)
    assert refusal.value.code == 8
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1


def test_a_scheduler_may_add_arguments_of_its_own():
    assert make(FeedSpider, url=HOME, _job="7").url == HOME


def test_hosts_of_any_alphabet_are_accepted():
    for url in (
        "http://例え.jp/",
        "http://i❤.ws/",
        "http://wodnik_forum.orq.pl/",
        "http://[::1]:8/",
    ):
        assert site_of(make(SiteSpider, url=url).url) == make(SiteSpider, url=url).site


# --- shop ----------------------------------------------------------------------------


def test_shop_follows_categories_offers_and_the_pages_of_a_category():
    spider = make(ShopSpider)
    assert spider.url == "http://127.0.0.1:8765/"
    _, home = split(spider.parse(page("/")))
    assert len([url for url in urls(home) if "/c/" in url]) == 20
    assert len([url for url in urls(home) if "/offer/" in url]) == 20
    _, listed = split(spider.parse(page("/c/lamps")))
    followed = {request.url: request.callback for request in listed}
    assert followed[HOME + "p/1"] == spider.parse_product
    assert followed[HOME + "c/lamps?sort=price&page=1"] == spider.parse


def test_shop_completes_a_product_with_its_stock():
    spider = make(ShopSpider)
    requests = list(spider.parse_product(page("/p/2")))
    (stock,) = [request for request in requests if request.callback == spider.parse_stock]
    answer = page(stock.url.removeprefix(HOME[:-1]))
    (item,) = spider.parse_stock(answer, **stock.cb_kwargs)
    assert is_utc_time(item.pop("fetched_at"))
    quantity = json.loads(answer.body)["quantity"]
    assert item.pop("in_stock") is (quantity > 0)
    assert item.pop("name").endswith(" 2")
    assert item.pop("price") > 0
    assert item == {"url": HOME + "p/2", "sku": "M-00002", "currency": "EUR", "category": "Möbel"}


def test_every_product_but_the_broken_one_becomes_an_item():
    spider = make(ShopSpider)
    skus, broken = set(), []
    for number in range(1, 131):
        stock = next(spider.parse_product(page(f"/p/{number}")))
        try:
            (item,) = spider.parse_stock(page(stock.url.removeprefix(HOME[:-1])), **stock.cb_kwargs)
        except ValueError:  # what makes it a dead letter
            broken.append(stock.cb_kwargs["product"]["sku"])
        else:
            skus.add(item["sku"])
    assert skus == SHOP.expected_items()
    assert broken == [SHOP.broken.sku]


# --- feed ----------------------------------------------------------------------------


def test_feed_yields_every_element_and_follows_next_to_the_end():
    spider = make(FeedSpider, url=HOME + "api/products?page=1")
    target, skus = "/api/products?page=1", []
    while target:
        items, following = split(spider.parse(page(target)))
        skus += [item["sku"] for item in items]
        target = following[0].url.removeprefix(HOME[:-1]) if following else ""
    assert len(skus) == len(set(skus)) == 130


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"next": null}', b"<html>"])
def test_a_page_of_another_form_raises(body):
    spider = make(FeedSpider, url=HOME)
    response = JsonResponse(HOME, body=body, request=Request(HOME))
    with pytest.raises((ValueError, KeyError, AttributeError)):
        list(spider.parse(response))
