"""Sites that are nothing but links: ``/`` is page 0, the others are ``/p/1``, ``/p/2``, …"""

from __future__ import annotations

import re
from functools import lru_cache
from random import Random

from tests.site.answer import Answer, html, link, listing

FANOUT = 8
RANDOM_LINKS = 8
_PAGE = re.compile(r"/p/([1-9][0-9]*)")
_FILLER = "<p>" + "A page of a site that exists to be crawled. " * 20 + "</p>"


class GraphSite:
    """Pages in one of three shapes.

    * ``tree``: each page has one page that links to it, and links to 8; a lost page takes all that
      hangs on it along.
    * ``dense``: the same tree, and each page links to 8 others chosen at random by ``seed``.
    * ``flat``: page 0 links to all others, which have no links.
    """

    def __init__(self, shape: str, pages: int, seed: int) -> None:
        self.latency_ms = (0.0, 0.0) if shape == "flat" else (50.0, 150.0)
        self._shape = shape
        self._pages = pages
        self._seed = seed
        self._body = lru_cache(maxsize=None)(self._make_body)

    def answer(self, target: str, visit: int) -> Answer | None:
        """Answer ``/`` and the pages below ``/p/``."""
        number = self._number(target)
        return None if number is None else Answer(self._body(number))

    def expected(self) -> frozenset[str]:
        """Return every page: all are reachable from ``/``."""
        return frozenset(_target(number) for number in range(self._pages))

    def links(self, number: int) -> list[int]:
        """Return the pages that a page links to."""
        if self._shape == "flat":
            return list(range(1, self._pages)) if number == 0 else []
        first = FANOUT * number + 1
        linked = list(range(first, min(first + FANOUT, self._pages)))
        if self._shape == "dense":
            random = Random(f"{self._seed} {number}")
            linked += [random.randrange(self._pages) for _ in range(RANDOM_LINKS)]
        return linked

    def _number(self, target: str) -> int | None:
        if target == "/":
            return 0
        match = _PAGE.fullmatch(target)
        return int(match[1]) if match and int(match[1]) < self._pages else None

    def _make_body(self, number: int) -> bytes:
        links = (link(_target(other), f"page {other}") for other in self.links(number))
        return html(f"Page {number}", _FILLER, listing(links, "pages"))


def _target(number: int) -> str:
    return f"/p/{number}" if number else "/"
