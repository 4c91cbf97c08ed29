"""Serve a site over HTTP/1.1: ``python -m tests.site.server --site shop --port 8765``.

Prints ``listening on http://127.0.0.1:PORT/`` when it can be asked. With ``--log FILE`` each
request is one JSON line, written before it is answered::

    {"id": 7, "t": 1764585000.12, "method": "GET", "path": "/p/1?a=b", "status": 200,
     "host": "127.0.0.1:8765", "headers": {"user-agent": "…"}, "length": 0}

``path`` is what was on the wire, ``t`` Unix time in seconds, ``status`` what will be answered,
``length`` the bytes of the request's body. A client that goes away before its answer is ready adds
``{"gone": 7}``. ``POST /-/reset`` empties the log and forgets who asked what; it is not logged.

The reactor is imported in :func:`main` only: a test that imports this module does not install one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections import Counter
from itertools import count
from typing import TYPE_CHECKING, Any

from twisted.internet.task import LoopingCall
from twisted.web.http import HTTPFactory, Request

from tests.site.answer import Answer, Site, html
from tests.site.odd import STREAM, Wire, odd_answer
from tests.site.sites import DEFAULT_PAGES, build_site

if TYPE_CHECKING:
    from collections.abc import Sequence

_LOGGED_HEADERS = ("user-agent", "cookie", "referer", "content-type")
_STREAM_INTERVAL_S = 0.1


class RequestLog:
    """A file of JSON lines, each written at once and whole; None logs nothing."""

    def __init__(self, path: str | None) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._fd = None if path is None else os.open(path, flags, 0o644)
        self._ids = count(1)

    def received(self, wire: Wire, status: int) -> int:
        """Write down a request; return its id."""
        number = next(self._ids)
        headers = {
            name: value
            for name, value in wire.headers.items()
            if name in _LOGGED_HEADERS or name.startswith("x-")
        }
        self._write(
            {
                "id": number,
                "t": time.time(),
                "method": wire.method,
                "path": wire.target,
                "status": status,
                "host": wire.headers.get("host", ""),
                "headers": headers,
                "length": len(wire.body),
            }
        )
        return number

    def gone(self, number: int) -> None:
        """Write down that the client did not wait for the answer to a request."""
        self._write({"gone": number})

    def clear(self) -> None:
        """Empty the file."""
        if self._fd is not None:
            os.ftruncate(self._fd, 0)

    def _write(self, record: dict[str, Any]) -> None:
        if self._fd is not None:
            os.write(self._fd, json.dumps(record).encode() + b"\n")


class Application:
    """Answers requests from a site, after its latency, and logs them."""

    def __init__(
        self, site: Site, log: RequestLog, latency_ms: tuple[float, float], robots: Answer
    ) -> None:
        self._site = site
        self._log = log
        self._latency_ms = latency_ms
        self._robots = robots
        self._visits: Counter[str] = Counter()

    def handle(self, request: SiteRequest) -> None:
        """Log a request and answer it, now or later."""
        wire = _wire(request)
        if wire.target == "/-/reset":
            self._log.clear()
            self._visits.clear()
            _send(request, Answer())
            return
        answer = self._answer(wire)
        exchange = Exchange(request, self._log.received(wire, answer.status), self._log)
        if answer is STREAM:
            exchange.stream()
        else:
            exchange.send(answer, self._delay_s(answer))

    def _answer(self, wire: Wire) -> Answer:
        self._visits[wire.target] += 1
        if wire.target == "/robots.txt":
            return self._robots
        answer = odd_answer(wire)
        if answer is None and wire.method in ("GET", "HEAD"):
            answer = self._site.answer(wire.target, self._visits[wire.target])
        return answer or Answer(html("Not found"), 404)

    def _delay_s(self, answer: Answer) -> float:
        if answer.delay_s is not None:
            return answer.delay_s
        return random.uniform(*self._latency_ms) / 1000


class Exchange:
    """One request that waits for its answer, and whose client may go away meanwhile."""

    def __init__(self, request: SiteRequest, number: int, log: RequestLog) -> None:
        self._request = request
        self._number = number
        self._log = log
        self._later: Any = None  # a delayed call of Twisted
        self._stream: LoopingCall | None = None
        request.notifyFinish().addErrback(self._client_gone)

    def send(self, answer: Answer, delay_s: float) -> None:
        """Send the answer after so many seconds."""
        if delay_s > 0:
            self._later = self._request.reactor.callLater(delay_s, _send, self._request, answer)
        else:
            _send(self._request, answer)

    def stream(self) -> None:
        """Send a line ten times a second until the client goes away."""
        self._request.setHeader(b"content-type", STREAM.content_type.encode())
        self._stream = LoopingCall(self._request.write, b"and on it goes\n")
        self._stream.clock = self._request.reactor
        self._stream.start(_STREAM_INTERVAL_S)

    def _client_gone(self, _: object) -> None:
        if self._stream is not None:
            self._stream.stop()
        elif self._later is not None and self._later.active():
            self._later.cancel()
        self._log.gone(self._number)


class SiteRequest(Request):
    """Hands a request to the application; Twisted's own objects stop here."""

    def process(self) -> None:
        """Answer the request: called by Twisted when it has been read."""
        self.channel.factory.application.handle(self)

    @property
    def reactor(self) -> Any:
        """Return the reactor that serves this request."""
        return self.channel.factory.reactor


class SiteFactory(HTTPFactory):
    """Serves an application, without Twisted's own access log."""

    def __init__(self, application: Application, reactor: Any) -> None:
        super().__init__(reactor=reactor)
        self.application = application

    def buildProtocol(self, addr: Any) -> Any:  # noqa: N802 (Twisted's name)
        """Return the protocol of one connection."""
        protocol: Any = super().buildProtocol(addr)
        protocol.requestFactory = SiteRequest
        return protocol

    def log(self, request: Request) -> None:
        """Log nothing: the application has its own log."""


def _wire(request: SiteRequest) -> Wire:
    assert request.content is not None
    headers = {
        name.decode("latin-1").lower(): b", ".join(values).decode("latin-1")
        for name, values in request.requestHeaders.getAllRawHeaders()
    }
    return Wire(
        request.method.decode("latin-1"),
        request.uri.decode("latin-1"),
        headers,
        request.content.read(),
    )


def _send(request: SiteRequest, answer: Answer) -> None:
    request.setResponseCode(answer.status)
    request.setHeader(b"content-type", answer.content_type.encode())
    request.setHeader(b"content-length", str(len(answer.body)).encode())
    for name, value in answer.headers.items():
        request.setHeader(name.encode(), value.encode())
    request.write(answer.body)
    request.finish()


def _range(text: str) -> tuple[float, float]:
    """Read ``50-150`` or ``50``."""
    low, _, high = text.partition("-")
    return float(low), float(high or low)


def _robots(options: argparse.Namespace) -> Answer:
    lines = ["User-agent: *", "Disallow: /admin/"]
    if options.crawl_delay is not None:
        lines.append(f"Crawl-delay: {options.crawl_delay:g}")
    body = "\n".join([*lines, ""]).encode()
    return Answer(body, options.robots_status, "text/plain", delay_s=options.robots_delay)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.site.server")
    parser.add_argument("--site", choices=DEFAULT_PAGES, default="shop")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--pages", type=int, help=f"size of the site (default: {DEFAULT_PAGES})")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--latency-ms", type=_range, metavar="LOW-HIGH", help="default: the site's")
    parser.add_argument("--log", metavar="FILE", help="append a JSON line for each request")
    parser.add_argument("--crawl-delay", type=float, metavar="SECONDS", help="in robots.txt")
    parser.add_argument("--robots-status", type=int, default=200, metavar="CODE")
    parser.add_argument("--robots-delay", type=float, default=0, metavar="SECONDS")
    parser.add_argument("--parent", type=int, metavar="PID", help="stop when this process ends")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until SIGTERM or SIGINT."""
    options = _options(arguments)
    from twisted.internet import reactor as installed

    reactor: Any = installed  # Twisted types it as a module
    site = build_site(options.site, pages=options.pages, seed=options.seed)
    latency = options.latency_ms or site.latency_ms
    application = Application(site, RequestLog(options.log), latency, _robots(options))
    factory = SiteFactory(application, reactor)
    port = reactor.listenTCP(options.port, factory, backlog=1024, interface=options.host)
    if options.parent is not None:
        watch = LoopingCall(lambda: os.getppid() == options.parent or reactor.stop())
        watch.start(1.0)
    sys.stdout.write(f"listening on http://{options.host}:{port.getHost().port}/\n")
    sys.stdout.flush()
    reactor.run()


if __name__ == "__main__":
    main()
