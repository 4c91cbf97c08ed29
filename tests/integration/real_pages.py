"""Debian's Python documentation served by nginx: HTML that nobody here wrote."""

from __future__ import annotations

import os
import subprocess
import time
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urldefrag, urljoin, urlsplit
from urllib.request import urlopen

import pytest

from tests.servers import free_port, need

DOCS = Path("/usr/share/doc/python3-doc/html")


class Nginx:
    """nginx over a folder, with an access log of its own."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.port = free_port()
        self.log = folder / "access.log"
        config = folder / "nginx.conf"
        config.write_text(
            f"""daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log; worker_processes 1;
            events {{ worker_connections 512; }}
            http {{
                types {{ text/html html; text/css css; text/plain txt; }}
                log_format path '$status $request_uri'; access_log {self.log} path;
                client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
                uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
                server {{ listen 127.0.0.1:{self.port}; root {root}; }}
            }}"""
        )
        self.process = subprocess.Popen([need("nginx"), "-c", str(config)])
        self.url = f"http://127.0.0.1:{self.port}/"
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            try:
                urlopen(f"{self.url}index.html").close()
            except OSError:
                time.sleep(0.05)
            else:
                break
        self.log.write_text("")

    def pages(self) -> Counter[str]:
        """How often each page was answered with 200."""
        lines = [line.split() for line in self.log.read_text().splitlines()]
        return Counter(path for status, path in lines if status == "200" and path != "/robots.txt")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(10)


def docs_folder() -> Path:
    if DOCS.is_dir():
        return DOCS.resolve()
    if os.environ.get("CI"):
        pytest.fail("python3-doc is not installed")
    pytest.skip("python3-doc is not installed")


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.base = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        href = dict(attrs).get("href")
        if href and tag in ("a", "area"):
            self.found.append(href)
        elif href and tag == "base":
            self.base = href


def walk(root: str) -> set[str]:
    """Every page that links lead to, found with nothing but the standard library."""
    host = urlsplit(root).netloc
    todo, seen = [root], {root}
    pages = set()
    while todo:
        url = todo.pop()
        try:
            with urlopen(url) as response:
                pages.add(urlsplit(response.url).path)
                if response.headers.get_content_type() != "text/html":
                    continue
                text = response.read().decode("utf-8", "replace")
        except OSError:
            continue
        links = _Links()
        links.feed(text)
        base = urljoin(url, links.base)
        for href in links.found:
            link = urldefrag(urljoin(base, href.strip())).url
            parts = urlsplit(link)
            if parts.scheme in ("http", "https") and parts.netloc == host and link not in seen:
                seen.add(link)
                todo.append(link)
    return pages
