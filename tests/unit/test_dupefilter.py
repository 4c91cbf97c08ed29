"""From requests to keys."""

from __future__ import annotations

import pytest
from scrapy import FormRequest, Request
from scrapy.utils.request import RequestFingerprinter

from clusterscrapy import dupefilter
from clusterscrapy.dupefilter import RequestKeys
from clusterscrapy.frontier import key_of

URL = "http://h/p?b=2&a=1"


class ByHeader(RequestFingerprinter):
    def fingerprint(self, request: Request) -> bytes:
        return (request.headers.get("X") or b"") + request.url.encode()


def fresh_key(request: Request) -> bytes:
    return key_of(RequestFingerprinter().fingerprint(request))


@pytest.mark.parametrize(
    "other",
    [
        Request("http://h/p?a=1&b=2"),
        Request(f"{URL}#part"),
        Request(URL, method="POST"),
        Request(URL, method="HEAD"),
        Request(URL, body=b"x"),
        FormRequest(URL, formdata={"a": "1"}),
        Request(URL, meta={"verbatim_url": True}),
        Request("http://h/p?a=1"),
        Request(f"{URL}&long={'x' * 400}"),
    ],
    ids=lambda request: f"{request.method} {request.url[:30]} {len(request.body)}",
)
def test_a_key_is_that_of_the_fingerprint_whatever_came_before(other: Request) -> None:
    keys = RequestKeys(RequestFingerprinter(), kind="bloom")
    for request in (Request(URL), other, Request(URL), other.copy()):
        assert keys.key(request) == fresh_key(request)


def test_another_fingerprinter_is_always_asked() -> None:
    keys = RequestKeys(ByHeader(), kind="bloom")
    assert keys.key(Request(URL, headers={"X": "1"})) != keys.key(Request(URL, headers={"X": "2"}))


def test_what_is_remembered_of_urls_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dupefilter, "_URLS", 10)
    keys = RequestKeys(RequestFingerprinter(), kind="bloom")
    for number in range(25):
        request = Request(f"http://h/{number}")
        assert keys.key(request) == fresh_key(request)
    assert keys._by_url is not None
    assert len(keys._by_url) <= 10
