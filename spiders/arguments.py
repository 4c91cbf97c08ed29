"""What ``scrapy crawl NAME -a …`` was given, checked before anything is opened or fetched.

Scrapy turns every ``-a`` into an attribute, right or wrong: a misspelt ``max_page=10`` crawls
without a limit. Here a wrong argument is one sentence on stderr and exit code 8, "configuration
refused".
"""

from __future__ import annotations

import re
import sys
from difflib import get_close_matches
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

REFUSED = 8
"""Exit code of a worker whose configuration is wrong: starting it again will not help."""


class Arguments:
    """The ``-a`` arguments of one spider.

    Every method reads one argument and remembers its name; :meth:`refuse_others` then knows what
    was not asked for.

    Args:
        spider: The spider's name, with which every sentence begins.
        given: The arguments as Scrapy passes them to ``from_crawler``: strings by name.
    """

    def __init__(self, spider: str, given: Mapping[str, str]) -> None:
        self._spider = spider
        self._given = given
        self._known: list[str] = []

    def url(self, name: str, *, example: str, default: str | None = None) -> str:
        """Return an absolute ``http`` or ``https`` URL.

        Args:
            name: The argument's name.
            example: A right value, for the sentence that refuses a wrong one.
            default: Used when the argument is not given; None makes it required.
        """
        value = self._read(name) or default
        if value is None:
            self.refuse(f"needs a {name}: scrapy crawl {self._spider} -a {name}={example}")
        fault = _fault_of_url(value)
        if fault:
            self.refuse(f"{name}={value!r} {fault}; a right one looks like {example}")
        return value

    def count(self, name: str) -> int | None:
        """Return a whole number of 1 or more, or None if it is not given."""
        value = self._read(name)
        if value is None:
            return None
        if not (value.isascii() and value.isdigit() and int(value) > 0):
            self.refuse(f"{name}={value!r} is not a whole number of 1 or more")
        return int(value)

    def regex(self, name: str) -> re.Pattern[str] | None:
        """Return a compiled regular expression, or None if it is not given."""
        value = self._read(name)
        if value is None:
            return None
        try:
            return re.compile(value)
        except re.error as error:
            self.refuse(f"{name}={value!r} is not a regular expression: {error}")

    def refuse_others(self) -> None:
        """Refuse what was not read, but for names with a leading ``_`` (scrapyd's ``_job``)."""
        for name in self._given:
            if name not in self._known and not name.startswith("_"):
                near = get_close_matches(name, self._known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"it takes {', '.join(self._known)}"
                self.refuse(f"there is no argument {name!r}; {hint}")

    def refuse(self, sentence: str) -> NoReturn:
        """Print one sentence and end the process.

        Raises:
            SystemExit: With code 8. Scrapy would print any other exception as a traceback, and
                end with code 1.
        """
        sys.stderr.write(f"{self._spider}: {sentence}\n")
        raise SystemExit(REFUSED)

    def _read(self, name: str) -> str | None:
        self._known.append(name)
        value = self._given.get(name)
        return None if value is None else value.strip() or None


def _fault_of_url(url: str) -> str | None:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port  # reading the port checks it
        (host or "").encode("idna")  # an empty label, or one of more than 63 bytes
    except ValueError:
        return "is not a URL"
    if parts.scheme not in ("http", "https"):
        return "does not begin with http:// or https://"
    if not host or any(character.isspace() for character in parts.netloc):
        return "has no valid host"
    return None
