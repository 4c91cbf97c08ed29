"""What a crawl of the shop did, counted by the site and by the items, never by the crawler."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

    from tests.site.process import Hit

BUSY = 503


@dataclass(frozen=True)
class Tally:
    """The result of one crawl, whoever and however many did it."""

    pages: int
    """Pages that the crawl had to fetch."""
    items: int
    """Lines in the item file."""
    products: int
    """Different products among them."""
    torn: int
    """Lines that are not whole JSON."""
    twice: int
    """Requests for a page that had been asked for before; a retry after a 503 is none."""
    lost_pages: list[str]
    """Pages that were never answered."""
    lost_products: list[str]
    """Products without an item."""

    @property
    def lost(self) -> int:
        """Return all that is missing."""
        return len(self.lost_pages) + len(self.lost_products)


def tally(
    hits: Iterable[Hit], items: Path, *, pages: Collection[str], products: Collection[str]
) -> Tally:
    """Compare what the site was asked, and a file of JSON lines, with what had to be."""
    asked = [hit for hit in hits if hit.path != "/robots.txt" and hit.status != BUSY]
    answered = {hit.page for hit in asked if not hit.gone}
    lines = items.read_bytes().splitlines() if items.exists() else []
    skus = [_sku(line) for line in lines]
    found = {sku for sku in skus if sku is not None}
    return Tally(
        pages=len(pages),
        items=len(lines),
        products=len(found),
        torn=skus.count(None),
        twice=sum(count - 1 for count in Counter(hit.page for hit in asked).values()),
        lost_pages=sorted(set(pages) - answered),
        lost_products=sorted(set(products) - found),
    )


def pages_done(hits: Iterable[Hit]) -> int:
    """Return how many different pages have been answered so far."""
    return len({h.page for h in hits if not h.gone and h.status != BUSY} - {"/robots.txt"})


def _sku(line: bytes) -> str | None:
    try:
        return str(json.loads(line)["sku"])
    except (ValueError, KeyError, TypeError):
        return None
