"""Odd answers that every site gives, under the same paths.

``/slow/SECONDS`` · ``/stream`` (never ends) · ``/status/CODE[?retry-after=SECONDS]`` ·
``/redirect-to-same/N`` → ``/same`` · ``/redirect?URL`` · ``/echo`` · ``/post`` ·
``/cookies[?name=value]``
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl

from tests.site.answer import Answer, html, json_answer, redirect

STREAM = Answer(content_type="text/plain")
"""The answer that the server goes on sending until the client has had enough."""


@dataclass(frozen=True)
class Wire:
    """A request as it came over the wire; header names are in lower case."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


def odd_answer(wire: Wire) -> Answer | None:
    """Answer one of the odd paths, or return None."""
    path, _, query = wire.target.partition("?")
    if path == "/stream":
        return STREAM
    if path in ("/echo", "/post"):
        return _echo(wire, post_only=path == "/post")
    if path == "/cookies":
        return _cookies(wire, query)
    if path == "/same" or path.startswith("/redirect-to-same/"):
        return Answer(html("Same")) if path == "/same" else redirect("/same")
    if path == "/redirect":
        return redirect(query)
    if match := re.fullmatch(r"/slow/([0-9]+(?:\.[0-9]+)?)", path):
        return Answer(html(f"Slow {match[1]}"), delay_s=float(match[1]))
    if match := re.fullmatch(r"/status/([2-5][0-9][0-9])", path):
        wait = dict(parse_qsl(query)).get("retry-after")
        headers = {"Retry-After": wait} if wait else {}
        return Answer(html(f"Status {match[1]}"), int(match[1]), headers=headers)
    return None


def _echo(wire: Wire, *, post_only: bool) -> Answer:
    if post_only and wire.method != "POST":
        return Answer(html("POST only"), 405, headers={"Allow": "POST"})
    return json_answer(
        {
            "method": wire.method,
            "path": wire.target,
            "headers": wire.headers,
            "body": wire.body.decode("latin-1"),
        }
    )


def _cookies(wire: Wire, query: str) -> Answer:
    """Set the cookie that the query names, and say which ones were sent."""
    answer = json_answer({"cookies": wire.headers.get("cookie", "")})
    name, mark, value = query.partition("=")
    if not mark:
        return answer
    cookie = {"Set-Cookie": f"{name}={value}; Path=/"}
    return Answer(answer.body, content_type=answer.content_type, headers=cookie)
