"""The sites by name, and what a correct crawl of each must ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.site.graph import GraphSite
from tests.site.shop import ShopSite

if TYPE_CHECKING:
    from tests.site.answer import Site

DEFAULT_PAGES = {"shop": 1000, "dense": 3000, "tree": 3000, "flat": 1000}


def build_site(name: str, *, pages: int | None = None, seed: int = 1) -> Site:
    """Return a site of so many pages (``shop``: products)."""
    size = DEFAULT_PAGES[name] if pages is None else pages
    return ShopSite(size, seed) if name == "shop" else GraphSite(name, size, seed)


def expected(site: str, *, pages: int | None = None, seed: int = 1) -> frozenset[str]:
    """Return the targets that a correct crawl of the site asks for at least once.

    Targets that differ in the order of their parameters are one, spelt as ``same_page`` does; so
    compare them with ``Hit.page``, not with ``Hit.path``.
    """
    return build_site(site, pages=pages, seed=seed).expected()
