"""How a worker ended, as an exit code: the contract with whoever runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakSet

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

FINISHED = 0
CRASHED = 1
CLOSED_BY_LIMIT = 4
DRAINED = 5
STORE_AWAY = 6
CONFIGURATION_REFUSED = 8

_BY_REASON = {
    "finished": FINISHED,
    "start_error": CRASHED,
    "frontier_error": CRASHED,
    "store_unavailable": STORE_AWAY,
    "store_emptied": STORE_AWAY,
    "configuration_refused": CONFIGURATION_REFUSED,
    "dropped": CLOSED_BY_LIMIT,
}
_codes: WeakKeyDictionary[Crawler, int] = WeakKeyDictionary()
_last_words: WeakKeyDictionary[Crawler, str] = WeakKeyDictionary()
_told: WeakSet[Crawler] = WeakSet()


def record(crawler: Crawler, reason: str, *, work_left: bool) -> None:
    """Note how a crawler's spider closed.

    Args:
        crawler: whose.
        reason: Scrapy's finish reason.
        work_left: the crawl is not over; asked to stop then means 5, else 0.
    """
    if reason == "shutdown" or (reason == "finished" and work_left):
        code = DRAINED if work_left else FINISHED
    else:
        code = _BY_REASON.get(reason, CLOSED_BY_LIMIT)
    _codes[crawler] = code


def say(crawler: Crawler, sentence: str) -> None:
    """Keep a sentence for the end, where a person sees it after all the log lines."""
    _last_words[crawler] = sentence


def promise_to_tell(crawler: Crawler) -> None:
    """The caller will print :func:`last_words` when the crawler has ended."""
    _told.add(crawler)


def is_told(crawler: Crawler) -> bool:
    """True when somebody prints this crawler's last words."""
    return crawler in _told


def last_words(crawler: Crawler) -> str:
    """The sentence kept for the end, or an empty text."""
    return _last_words.get(crawler, "")


def exit_code(crawler: Crawler) -> int | None:
    """The recorded exit code, or None when the spider never closed through our scheduler."""
    return _codes.get(crawler)
