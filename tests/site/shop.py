"""A shop as shops are: categories in pages, old addresses, slow corners, and a mistake or two."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from html import escape
from random import Random
from typing import TYPE_CHECKING
from urllib.parse import quote

from tests.site.answer import Answer, html, json_answer, link, listing, redirect, same_page

if TYPE_CHECKING:
    from collections.abc import Callable

CATEGORIES = (
    ("lamps", "Lamps"),
    ("möbel", "Möbel"),  # its links are not escaped: /c/m%C3%B6bel on the wire
    ("chairs", "Chairs"),
    ("tables", "Tables"),
    ("shelves", "Shelves"),
    ("rugs", "Rugs"),
    ("clocks", "Clocks"),
    ("mirrors", "Mirrors"),
    ("vases", "Vases"),
    ("curtains", "Curtains"),
    ("kitchen", "Kitchen"),
    ("bath", "Bath"),
    ("garden", "Garden"),
    ("office", "Office"),
    ("toys", "Toys"),
    ("books", "Books & Maps"),
    ("tools", "Tools"),
    ("bikes", "Bikes"),
    ("music", "Music"),
    ("travel", "Travel"),
)
PER_PAGE = 10
PER_API_PAGE = 20
OFFERS = 20
_ADJECTIVES = ("Plain", "Small", "Grand", "Quiet", "Crème", "Northern", "Folding", "Second")
_NOUNS = ("Model", "Edition", "Piece", "Classic", "Companion", "Set", "No. 7", "Original")


@dataclass(frozen=True)
class Product:
    """One product; the numbers of products begin with 1."""

    number: int
    sku: str
    name: str
    price: float
    category: tuple[str, str]
    quantity: int

    @property
    def path(self) -> str:
        """Return the path of its page."""
        return f"/p/{self.number}"

    @property
    def stock_path(self) -> str:
        """Return the path of its stock."""
        return f"/api/stock/{self.sku}"


class ShopSite:
    """About 1,000 products and everything that makes a shop hard to crawl.

    * ``/`` links to the categories, to ``/admin/`` (which robots.txt forbids) and to 20 offers
      ``/offer/N`` that all redirect to ``/offers``.
    * A category ``/c/NAME`` has pages of 10 products; each links to one of them twice, once with a
      fragment. Its first page also links to its cheapest products, twice, with the parameters in
      another order; to a product by an old address that redirects; and to one that is gone (404).
    * A product ``/p/N`` links to four others and to its stock, JSON at ``/api/stock/SKU``.
    * About one page in a hundred takes 0.5 to 2 s, and one in a hundred answers 503 the first time.
    * The stock of one product is broken JSON: :attr:`broken`.
    * ``/api/products?page=N`` lists the products for the feed spider; no page has a link to it.
    """

    latency_ms = (5.0, 25.0)

    def __init__(self, products: int = 1000, seed: int = 1) -> None:
        self._seed = seed
        self._products = [self._make_product(number) for number in range(1, products + 1)]
        self._by_sku = {product.sku: product for product in self._products}
        self._routes: list[tuple[re.Pattern[str], Callable[..., Answer | None]]] = [
            (re.compile(r"/"), self.home),
            (re.compile(r"/c/([^/?]+)(?:\?(.*))?"), self.category),
            (re.compile(r"/p/([0-9]+)"), self.product),
            (re.compile(r"/api/stock/([A-Z0-9-]+)"), self.stock),
            (re.compile(r"/api/products(?:\?page=([0-9]+))?"), self.api),
            (re.compile(r"/old/([0-9]+)"), lambda number: redirect(f"/p/{number}", 301)),
            (re.compile(r"/offer/([0-9]+)"), lambda _: redirect("/offers")),
            (re.compile(r"/offers"), self.offers),
            (re.compile(r"/admin/.*"), lambda: Answer(html("Orders", link("/admin/1", "1")))),
        ]

    @property
    def broken(self) -> Product:
        """Return the product whose stock is broken JSON."""
        return self._products[len(self._products) // 2]

    def answer(self, target: str, visit: int) -> Answer | None:
        """Answer any page of the shop."""
        if visit == 1 and self._is_busy(target):
            return Answer(html("Busy"), 503)
        for pattern, page in self._routes:
            match = pattern.fullmatch(target)
            if match:
                return page(*match.groups())
        return None

    def expected(self) -> frozenset[str]:
        """Return all that links lead to from ``/``, without what robots.txt forbids."""
        return self._expected

    def expected_items(self) -> frozenset[str]:
        """Return the SKUs that the shop spider must yield: all but the broken one's."""
        return frozenset(self._by_sku) - {self.broken.sku}

    def home(self) -> Answer:
        """Return the home page."""
        nav = [link(f"/c/{slug}", name) for slug, name in CATEGORIES]
        offers = [link(f"/offer/{n}", f"Offer {n}", "offer") for n in range(1, OFFERS + 1)]
        staff = link("/admin/", "Staff only")
        return Answer(html("The shop", f"<nav>{' '.join([*nav, staff])}</nav>", *offers))

    def category(self, quoted: str, query: str | None = None) -> Answer | None:
        """Return one page of a category, in the order of the catalogue or of the prices."""
        category = _category(quoted)
        page, by_price = _page_of(query)
        if category is None or page is None:
            return None
        products = self._of(category)
        if by_price:
            products = sorted(products, key=lambda product: product.price)
        shown = products[(page - 1) * PER_PAGE : page * PER_PAGE]
        links = [link(product.path, product.name) for product in shown]
        if shown:
            links.append(link(f"{shown[0].path}#reviews", "Reviews"))
        pages = "" if by_price else self._pages_nav(category, page)
        if page == 1 and not by_price and products:
            links += [
                link(f"/old/{products[0].number}", "Our first"),
                link(f"/p/{self._gone(category)}", "No longer made"),
            ]
        return self._maybe_slow(
            f"/c/{quoted}?{query}",
            html(category[1], f"<nav>{link('/', 'Home')}{pages}</nav>", listing(links, "products")),
        )

    def product(self, number: str) -> Answer | None:
        """Return a product's page."""
        index = int(number) - 1
        if not 0 <= index < len(self._products):
            return None
        product = self._products[index]
        slug, category = product.category
        also = Random(f"{self._seed} also {number}").sample(
            self._products, min(4, len(self._products))
        )
        body = (
            f"<nav>{link('/', 'Home')} {link(f'/c/{slug}', category)}</nav>"
            f'<article data-sku="{product.sku}">'
            f'<p class="price" data-amount="{product.price:.2f}" data-currency="EUR">'
            f"{product.price:.2f} €</p>"
            f'<p class="category">{escape(category)}</p>'
            f"{link(product.stock_path, 'In stock?', 'stock')}</article>"
            f"{listing([link(other.path, other.name) for other in also], 'products')}"
        )
        return self._maybe_slow(product.path, html(product.name, body))

    def stock(self, sku: str) -> Answer | None:
        """Return a product's stock as JSON, cut short for the broken one."""
        product = self._by_sku.get(sku)
        if product is None:
            return None
        if product == self.broken:
            return Answer(b'{"sku": "' + sku.encode() + b'", "quantity"', 200, "application/json")
        return json_answer({"sku": sku, "quantity": product.quantity})

    def api(self, page: str | None = None) -> Answer | None:
        """Return 20 products as JSON, and where the next 20 are."""
        number = int(page or 1)
        shown = self._products[(number - 1) * PER_API_PAGE : number * PER_API_PAGE]
        if not shown:
            return None
        more = number * PER_API_PAGE < len(self._products)
        items = [
            {"sku": p.sku, "name": p.name, "price": p.price, "currency": "EUR", "url": p.path}
            for p in shown
        ]
        following = f"/api/products?page={number + 1}" if more else None
        return json_answer({"items": items, "page": number, "next": following})

    def offers(self) -> Answer:
        """Return the page that all offers redirect to."""
        links = [link(product.path, product.name) for product in self._products[:PER_PAGE]]
        return Answer(html("Offers", listing(links, "products")))

    @cached_property
    def _expected(self) -> frozenset[str]:
        targets = {"/", "/offers", *(f"/offer/{n}" for n in range(1, OFFERS + 1))}
        for category in CATEGORIES:
            products, path = self._of(category), f"/c/{quote(category[0])}"
            targets.add(path)
            targets.update(f"{path}?page={page}" for page in range(2, _pages(products) + 1))
            if products:
                targets.add(same_page(f"{path}?sort=price&page=1"))
                targets |= {f"/old/{products[0].number}", f"/p/{self._gone(category)}"}
        for product in self._products:
            targets |= {product.path, product.stock_path}
        return frozenset(targets)

    def _pages_nav(self, category: tuple[str, str], page: int) -> str:
        path = f"/c/{category[0]}"
        pages = range(2, _pages(self._of(category)) + 1)
        links = [link(f"{path}?page={other}", str(other)) for other in pages]
        if page == 1 and self._of(category):
            links += [
                link(f"{path}?sort=price&page=1", "Cheapest"),
                link(f"{path}?page=1&sort=price", "By price"),
            ]
        return " ".join(links)

    def _of(self, category: tuple[str, str]) -> list[Product]:
        return self._products[CATEGORIES.index(category) :: len(CATEGORIES)]

    def _gone(self, category: tuple[str, str]) -> int:
        return 10 * (len(self._products) + 1) + CATEGORIES.index(category)

    def _maybe_slow(self, target: str, body: bytes) -> Answer:
        share = self._share(target, "slow")
        return Answer(body, delay_s=0.5 + 150 * share if share < 1 / 100 else None)

    def _is_busy(self, target: str) -> bool:
        # Scrapy retries past its dupe filter, and a redirect inherits that: a redirect that was
        # busy would fetch its target twice, and counts of pages fetched twice would be off by one.
        redirects = target.startswith(("/old/", "/offer/"))
        return not redirects and self._share(target, "busy") < 1 / 100

    def _share(self, *what: str) -> float:
        """Return a number in [0, 1) that depends on the seed and on what it is for."""
        return Random(f"{self._seed} {what}").random()

    def _make_product(self, number: int) -> Product:
        random = Random(f"{self._seed} product {number}")
        category = CATEGORIES[(number - 1) % len(CATEGORIES)]
        name = f"{random.choice(_ADJECTIVES)} {category[1]} {random.choice(_NOUNS)} {number}"
        price = round(random.uniform(2, 900), 2)
        sku = f"{quote(category[0])[:1].upper()}-{number:05}"
        return Product(number, sku, name, price, category, random.randrange(8))


def _pages(products: list[Product]) -> int:
    return -(-len(products) // PER_PAGE)


def _category(quoted: str) -> tuple[str, str] | None:
    return next((c for c in CATEGORIES if quote(c[0]) == quoted), None)


def _page_of(query: str | None) -> tuple[int | None, bool]:
    """Return the page that a query asks for, None if there is none, and whether by price."""
    if query is None:
        return 1, False
    if same_page("?" + query) == "?page=1&sort=price":
        return 1, True
    match = re.fullmatch(r"page=([1-9][0-9]*)", query)
    return (int(match[1]) if match else None), False
