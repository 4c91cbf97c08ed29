"""What a site says to one request, and what a site is."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True)
class Answer:
    """One HTTP answer.

    ``delay_s`` holds it back for so many seconds; None leaves it to the server's latency.
    """

    body: bytes = b""
    status: int = 200
    content_type: str = "text/html; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_s: float | None = None


class Site(Protocol):
    """The pages of one site: a pure function, so that tests may call it without a server."""

    latency_ms: tuple[float, float]
    """How long an answer takes unless the command line says otherwise."""

    def answer(self, target: str, visit: int) -> Answer | None:
        """Answer a GET.

        Args:
            target: Path and query, as they are on the wire.
            visit: 1 for the first request of this target, 2 for the next, and so on.

        Returns:
            None where the site has no such page.
        """

    def expected(self) -> frozenset[str]:
        """Return the targets that a correct crawl asks for at least once, as :func:`same_page`."""


def same_page(target: str) -> str:
    """Return one spelling for targets that differ in the order of their parameters only."""
    path, mark, query = target.partition("?")
    return path + mark + "&".join(sorted(query.split("&")))


def html(title: str, *body: str) -> bytes:
    """Return a small page; the title is escaped, the body is HTML."""
    heading = escape(title)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{heading}</title>'
        f"</head><body><h1>{heading}</h1>{''.join(body)}</body></html>"
    ).encode()


def link(target: str, text: str, css_class: str = "") -> str:
    """Return an ``<a>`` element."""
    mark = f' class="{css_class}"' if css_class else ""
    return f'<a{mark} href="{escape(target)}">{escape(text)}</a>'


def listing(links: Iterable[str], css_class: str) -> str:
    """Return an ``<ul>`` of links."""
    return f'<ul class="{css_class}">{"".join(f"<li>{item}</li>" for item in links)}</ul>'


def json_answer(value: Any, status: int = 200) -> Answer:
    """Return a JSON answer."""
    return Answer(json.dumps(value).encode(), status, "application/json")


def redirect(location: str, status: int = 302) -> Answer:
    """Return a redirect with an empty body."""
    return Answer(status=status, headers={"Location": location})
