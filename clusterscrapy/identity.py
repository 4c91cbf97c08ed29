"""Which crawl this is: its name in the store, and the fingerprint scheme its pages are known by."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import w3lib
from scrapy import Request
from scrapy.utils.python import global_object_name

from clusterscrapy.frontier import Scheme

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.utils.request import RequestFingerprinterProtocol

_SAFE = re.compile(r"[^A-Za-z0-9._-]+")
_NAME_MAX = 100
_NOT_ARGUMENTS = frozenset({"name"})
_arguments: WeakKeyDictionary[Crawler, Mapping[str, object]] = WeakKeyDictionary()

# URLs on which canonicalisations are known to differ (w3lib 2.3.1 and 2.5.0 differ on the first two),
# and requests a custom fingerprinter may tell apart.
_PROBES = (
    Request("http://h/a%25"),
    Request("http://h/a%3Bb"),
    Request("http://h/?b=2&a=1&c"),
    Request("http://h/?a="),
    Request("http://h/index.php?/a/=/o/"),
    Request("http://h/é?q=ü#fragment"),
    Request("http://例え.jp/"),
    Request("http://h/a%2fB%c3%a9/../x;p?x=%7e+%20"),
    Request("http://h/", method="POST", body=b"a=1"),
    Request("http://h/", headers={"X-Probe": "1", "Accept-Language": "de"}),
    Request("http://h/#!fragment", meta={"verbatim_url": True}),
)


def crawl_name(spider: str, arguments: Mapping[str, object], crawl_id: str = "") -> str:
    """The crawl's name: spider, a digest of its arguments, and the id when one is given.

    Two runs share a crawl exactly when all three are equal. Characters that a file name or a Redis
    hash tag cannot hold are replaced, and a digest keeps such names apart.
    """
    text = json.dumps(dict(arguments), sort_keys=True, default=repr)
    arguments_digest = blake2b(text.encode(), digest_size=4).hexdigest() if arguments else ""
    name = "-".join(_safe(part) for part in (spider, arguments_digest) if part)
    # A sign that neither name nor id can hold: spider "news-de" is not spider "news" with id "de".
    return f"{name}@{_safe(crawl_id)}" if crawl_id else name


def remember_arguments(crawler: Crawler, arguments: Mapping[str, object]) -> None:
    """Keep the ``-a`` arguments of a crawler for :func:`arguments_of`."""
    _arguments[crawler] = arguments


def arguments_of(crawler: Crawler) -> Mapping[str, object]:
    """The ``-a`` arguments of a crawler's spider.

    Where no command has remembered them (a script that runs a crawler itself), the plain values among
    the spider's own attributes stand in, which is where Scrapy puts arguments.
    """
    if crawler in _arguments:
        return _arguments[crawler]
    return {
        name: value
        for name, value in vars(crawler.spider).items()
        if name not in _NOT_ARGUMENTS and not name.startswith("_") and _is_plain(value)
    }


def _is_plain(value: object) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _safe(text: str) -> str:
    safe = _SAFE.sub("_", text)
    if safe == text and len(text) <= _NAME_MAX and not text.startswith("."):
        return text
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return f"{safe[:_NAME_MAX].lstrip('.')}~{digest}"


def scheme_of(fingerprinter: RequestFingerprinterProtocol) -> Scheme:
    """How ``fingerprinter`` behaves: workers that do not know each other's pages can be refused.

    Of the fingerprinter the class and the behaviour count, of w3lib the behaviour only: two versions
    that agree on the probes may share a crawl.
    """
    digest = blake2b(global_object_name(type(fingerprinter)).encode(), digest_size=8)
    for probe in _PROBES:
        digest.update(fingerprinter.fingerprint(probe.copy()))
    words = f"{global_object_name(type(fingerprinter))} with w3lib {w3lib.__version__}"
    return Scheme(digest.hexdigest(), f"{words} (scheme {digest.hexdigest()})")
