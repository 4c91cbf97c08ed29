"""The test site itself: a real server in its own process, asked over real sockets."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import subprocess
import sys
import time
from html import unescape
from urllib.parse import quote, urlsplit

import pytest

from tests.site.answer import same_page
from tests.site.process import ROOT, SiteProcess
from tests.site.shop import ShopSite
from tests.site.sites import DEFAULT_PAGES, build_site, expected


@pytest.fixture(scope="module")
def server():
    with SiteProcess("flat", pages=20) as site:
        yield site


@pytest.fixture
def site(server):
    server.reset()
    return server


@pytest.fixture
def connection(site):
    connection = connect(site)
    yield connection
    connection.close()


def connect(site) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(urlsplit(site.url).netloc, timeout=20)


def ask(connection, target, method="GET", body=None, headers=None):
    connection.request(method, target, body, headers or {})
    response = connection.getresponse()
    return response, response.read()


def wait_for(condition, timeout_s=5.0):
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def test_a_request_is_logged_exactly_as_it_was_on_the_wire(site, connection):
    for target in ("/p/1?b=2&a=1&c", "/%7Ea%2fB//?x=%20+", "/index.php?/a/=/o/"):
        ask(connection, target)
    assert [hit.path for hit in site.hits()] == [
        "/p/1?b=2&a=1&c",
        "/%7Ea%2fB//?x=%20+",
        "/index.php?/a/=/o/",
    ]


def test_the_log_keeps_what_tests_ask_about(site, connection):
    headers = {"User-Agent": "me", "X-Worker": "7", "Cookie": "a=1", "Accept": "*/*"}
    ask(connection, "/nowhere", "POST", b"12345", headers)
    (hit,) = site.hits()
    assert (hit.method, hit.status, hit.length) == ("POST", 404, 5)
    assert hit.headers == {"user-agent": "me", "x-worker": "7", "cookie": "a=1"}
    assert hit.host == urlsplit(site.url).netloc
    assert abs(hit.t - time.time()) < 20


def test_counts_tell_spellings_apart_and_pages_do_not(site, connection):
    for target in ("/p/1?a=1&b=2", "/p/1?b=2&a=1"):
        ask(connection, target)
    assert site.counts() == {"/p/1?a=1&b=2": 1, "/p/1?b=2&a=1": 1}
    assert {hit.page for hit in site.hits()} == {"/p/1?a=1&b=2"}


def test_a_request_is_logged_before_it_is_answered(site, connection):
    connection.request("GET", "/slow/1")
    wait_for(site.hits)
    assert [(hit.path, hit.gone) for hit in site.hits()] == [("/slow/1", False)]


def test_a_connection_is_kept_open(connection):
    ask(connection, "/p/1")
    first = connection.sock
    ask(connection, "/p/2")
    assert connection.sock is first is not None


def test_a_slow_answer_holds_nobody_else_back(site, connection):
    start = time.monotonic()
    connection.request("GET", "/slow/0.5")
    other = connect(site)
    ask(other, "/p/1")
    other.close()
    assert time.monotonic() - start < 0.5
    assert connection.getresponse().read()
    assert time.monotonic() - start >= 0.5


def test_a_client_that_does_not_wait_is_noted(site, connection):
    connection.request("GET", "/slow/5")
    wait_for(site.hits)
    connection.close()
    wait_for(lambda: site.hits()[0].gone)


def test_a_stream_goes_on_until_the_client_leaves(site, connection):
    connection.request("GET", "/stream")
    response = connection.getresponse()
    assert response.read(30) == b"and on it goes\n" * 2
    response.close()
    connection.close()
    wait_for(lambda: site.hits()[0].gone)


def test_many_addresses_redirect_to_the_same_one(connection):
    for number in range(3):
        response, _ = ask(connection, f"/redirect-to-same/{number}")
        assert (response.status, response.headers["Location"]) == (302, "/same")
    assert ask(connection, "/same")[0].status == 200


def test_any_status_can_be_asked_for(connection):
    response, _ = ask(connection, "/status/429?retry-after=3")
    assert (response.status, response.headers["Retry-After"]) == (429, "3")
    assert "Retry-After" not in ask(connection, "/status/503")[0].headers


def test_echo_tells_what_was_sent(connection):
    headers = {"X-A": "1", "Content-Type": "text/plain"}
    _, body = ask(connection, "/echo?b=2&a=%C3%A9", "PUT", "é".encode(), headers)
    told = json.loads(body)
    assert (told["method"], told["path"]) == ("PUT", "/echo?b=2&a=%C3%A9")
    assert told["body"].encode("latin-1").decode() == "é"
    assert told["headers"]["x-a"] == "1"


def test_post_is_for_post_only(connection):
    assert ask(connection, "/post")[0].status == 405
    assert json.loads(ask(connection, "/post", "POST", b"a=1")[1])["body"] == "a=1"


def test_cookies_are_set_and_told(connection):
    assert ask(connection, "/cookies?jar=full")[0].headers["Set-Cookie"] == "jar=full; Path=/"
    _, body = ask(connection, "/cookies", headers={"Cookie": "jar=full"})
    assert json.loads(body) == {"cookies": "jar=full"}


def test_reset_forgets_all_requests(site, connection):
    ask(connection, "/p/1")
    assert site.hits()
    site.reset()
    ask(connection, "/p/2")
    assert site.counts() == {"/p/2": 1}


def test_robots_txt_forbids_the_admin_pages(connection):
    assert ask(connection, "/robots.txt")[1] == b"User-agent: *\nDisallow: /admin/\n"


def test_robots_txt_can_ask_for_a_delay_and_fail():
    with SiteProcess("flat", pages=1, crawl_delay=2, robots_status=503) as other:
        connection = connect(other)
        response, body = ask(connection, "/robots.txt")
        connection.close()
    assert response.status == 503
    assert body.endswith(b"Crawl-delay: 2\n")


def test_a_busy_page_of_the_shop_answers_the_second_time():
    with SiteProcess("shop", latency_ms="0") as shop:
        site = ShopSite()
        busy = next(t for t in sorted(site.expected()) if is_busy(site.answer(t, 1)))
        connection = connect(shop)
        assert [ask(connection, busy)[0].status for _ in range(3)] == [503, 200, 200]
        shop.reset()
        assert ask(connection, busy)[0].status == 503
        connection.close()


def is_busy(answer) -> bool:
    return answer is not None and answer.status == 503


def test_the_server_stops_with_the_block_that_started_it():
    with SiteProcess("flat", pages=1) as site:
        pid = site.pid
        os.kill(pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_the_server_does_not_outlive_a_killed_parent():
    script = (
        "import os, signal\n"
        "from tests.site.process import SiteProcess\n"
        "with SiteProcess('flat', pages=1) as site:\n"
        "    print(site.url, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", script]
    killed = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    address = urlsplit(killed.stdout.strip())
    wait_for(lambda: not listens(address.hostname, address.port))


def listens(host, port) -> bool:
    try:
        socket.create_connection((host, port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.parametrize("name", DEFAULT_PAGES)
def test_what_is_expected_is_what_links_lead_to(name):
    site = build_site(name, pages=130, seed=3)
    assert reachable(site) == expected(name, pages=130, seed=3)


@pytest.mark.parametrize("name", DEFAULT_PAGES)
def test_a_site_is_the_same_every_time_and_another_with_another_seed(name):
    pages = [
        [build_site(name, pages=60, seed=seed).answer(f"/p/{n}", 2) for n in range(1, 60)]
        for seed in (1, 1, 2)
    ]
    assert pages[0] == pages[1]
    assert (pages[0] != pages[2]) == (name in ("shop", "dense"))


def test_the_shop_has_one_broken_answer_and_some_slow_ones():
    site = ShopSite()
    answers = {target: site.answer(target, 2) for target in site.expected()}
    as_json = {t: a.body for t, a in answers.items() if a and "json" in a.content_type}
    assert [target for target, body in as_json.items() if not parses(body)] == [
        site.broken.stock_path
    ]
    delays = [a.delay_s for a in answers.values() if a and a.delay_s is not None]
    assert 3 <= len(delays) <= 20
    assert all(0.5 <= delay <= 2 for delay in delays)


def parses(body: bytes) -> bool:
    try:
        json.loads(body)
    except ValueError:
        return False
    return True


def reachable(site) -> set[str]:
    """Walk a site as a browser would, with nothing in common with our spiders."""
    found, todo = set(), ["/"]
    while todo:
        target = todo.pop()
        if same_page(target) in found or target.startswith("/admin/"):
            continue
        found.add(same_page(target))
        answer = site.answer(target, 2)
        if answer is not None:
            todo += [quote(t, safe="/?&=%") for t in links_in(answer)]
    return found


def links_in(answer) -> list[str]:
    hrefs = re.findall(r'<a [^>]*?href="([^"]*)"', answer.body.decode())
    location = [answer.headers["Location"]] if "Location" in answer.headers else []
    return [unescape(href).partition("#")[0] for href in hrefs] + location
