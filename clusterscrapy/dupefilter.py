"""From a request to the key it is known by.

The dupe filter itself lives in the frontier, where "seen" and "queued" are one step; this is the
worker's side of it. ``CLUSTER_DUPEFILTER`` chooses the kind.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from typing import TYPE_CHECKING

from scrapy.utils.request import RequestFingerprinter

from clusterscrapy.exceptions import CodecError
from clusterscrapy.frontier.protocol import KEY_BYTES, key_of

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.utils.request import RequestFingerprinterProtocol

logger = logging.getLogger(__name__)

_URLS = 50_000
_URL_MAX = 300
"""At most 50,000 URLs of 300 characters: 20 MB at worst, 8 MB usually."""


def start_key_of(key: bytes, number: int) -> bytes:
    """The key of the ``number``-th (from 0) ``dont_filter`` request of ``start()`` with this fingerprint."""
    return key_of(b"start %d " % number + key)


class RequestKeys:
    """Names requests for the frontier.

    A filtered request is known by its fingerprint (Scrapy's configured fingerprinter); a
    ``dont_filter`` request gets a key of its own, so that equal ones are kept apart.
    """

    def __init__(
        self, fingerprinter: RequestFingerprinterProtocol, *, kind: str, debug: bool = False
    ) -> None:
        self.fingerprinter = fingerprinter
        self.kind = kind
        self.debug = debug
        self._told = False
        self._of_start: Counter[bytes] = Counter()
        # Scrapy's own fingerprinter looks at nothing but method, URL and body, and takes the better
        # part of what a known link costs; the same links stand on page after page.
        self._by_url: dict[str, bytes] | None = (
            {} if type(fingerprinter) is RequestFingerprinter else None
        )

    def filtered(self, request: Request) -> bool:
        """True when the filter decides whether this request is queued."""
        return self.kind != "none" and not request.dont_filter

    def key(self, request: Request) -> bytes:
        """The request's key: from its fingerprint when filtered, else random.

        Raises:
            CodecError: the fingerprinter cannot cope with the request.
        """
        if not self.filtered(request):
            return os.urandom(KEY_BYTES)
        by_url = self._by_url
        if (
            by_url is None
            or request.method != "GET"
            or request.body
            or len(request.url) > _URL_MAX
            or "verbatim_url" in request.meta
        ):
            return self._fingerprinted(request)
        key = by_url.get(request.url)
        if key is None:
            key = self._fingerprinted(request)
            if len(by_url) >= _URLS:
                by_url.clear()
            by_url[request.url] = key
        return key

    def start_key(self, request: Request) -> bytes:
        """The key of a ``dont_filter`` request of ``start()``: the same in whoever runs it again.

        From its fingerprint, and how many equal ones came before it: their order may differ from
        one run of ``start()`` to the next, and some may be missing or new.

        Raises:
            CodecError: the fingerprinter cannot cope with the request.
        """
        key = self._fingerprinted(request)
        number = self._of_start[key]
        self._of_start[key] += 1
        return start_key_of(key, number)

    def restart(self) -> None:
        """``start()`` begins: count from nothing."""
        self._of_start.clear()

    def _fingerprinted(self, request: Request) -> bytes:
        try:
            return key_of(self.fingerprinter.fingerprint(request))
        except Exception as exc:
            raise CodecError(
                f"{request.url:.200}: it has no fingerprint ({type(exc).__name__}: {exc}); "
                "correct the URL, or REQUEST_FINGERPRINTER_CLASS",
                path="fingerprint",
                url=request.url,
            ) from exc

    def log(self, request: Request) -> None:
        """Say that a request was filtered, as Scrapy does: the first one, or all with DUPEFILTER_DEBUG."""
        if self.debug:
            logger.debug("Filtered duplicate request: %s", request)
        elif not self._told:
            self._told = True
            logger.debug(
                "Filtered duplicate request: %s - no more duplicates will be shown (see "
                "DUPEFILTER_DEBUG to show all duplicates)",
                request,
            )
