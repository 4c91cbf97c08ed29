"""``scrapy frontier dead``: list, show, replay and drop dead letters."""

from __future__ import annotations

import sys
from fnmatch import fnmatchcase
from itertools import islice
from typing import TYPE_CHECKING

from clusterscrapy.commands.show import dead_line, dead_record, dead_text, print_json
from clusterscrapy.exceptions import ConfigError, FrontierError
from clusterscrapy.frontier.codec import url_of
from clusterscrapy.frontier.protocol import UNREADABLE

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from clusterscrapy.frontier import DeadLetter, Frontier

REASONS = {
    "callback": "the callback raised",
    "errback": "the errback raised",
    "pipeline": "an item pipeline raised",
    "feed": "an item could not be written to a feed",
    "download": "it could not be downloaded, also after retries",
    "http": "the server answered with an error, also after retries",
    "undecodable": "its queue entry could not be made a request again",
    "unserializable": "it could not be stored; not a whole request, so it cannot be replayed",
    "seed": "a seed that is no request; it cannot be replayed",
    UNREADABLE: "the store holds something else in its place; it can only be dropped",
    "poison": "CLUSTER_MAX_DELIVERIES workers died while it was inside them",
}


def add_dead_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``dead``."""
    parser.description = (
        "What was given up for good, and why: list (the default), show (all that is known), replay (queue "
        "again) or drop. Without URLs and filters it acts on all. Reasons: "
        + "; ".join(f"{name}: {words}" for name, words in REASONS.items())
        + "."
    )
    parser.add_argument(
        "what", nargs="?", choices=("list", "show", "replay", "drop"), default="list"
    )
    parser.add_argument("urls", nargs="*", metavar="URL", help="only these URLs (default: all)")
    parser.add_argument(
        "--reason",
        action="append",
        default=[],
        choices=REASONS,
        help="only this reason (may be repeated)",
    )
    parser.add_argument("--match", metavar="GLOB", help="only URLs like this, such as '*/search/*'")
    parser.add_argument("--limit", type=int, metavar="N", help="at most the oldest N")
    parser.add_argument("--json", action="store_true", help="print JSON, a letter a line")


def act_on_dead_letters(frontier: Frontier, opts: argparse.Namespace) -> None:
    """Do what was asked, and print what was done."""
    if opts.limit is not None and opts.limit < 1:
        raise ConfigError(f"--limit {opts.limit} is too small; leave it out for all")
    letters = list(islice(_chosen(frontier, opts), opts.limit))
    if opts.urls and not letters and opts.what in ("replay", "drop"):
        raise FrontierError(
            f"{frontier.name} has no such dead letter; 'scrapy frontier dead' lists them"
        )
    if opts.what == "replay":
        count = frontier.replay([letter.key for letter in letters])
        left = len(letters) - count
        also = f"; {left} cannot be replayed, they never were whole requests" if left > 0 else ""
        start = "" if frontier.status().workers or not count else "; 'scrapy crawl' fetches them"
        print(f"{frontier.name}: {count} queued again{also}{start}")
    elif opts.what == "drop":
        print(f"{frontier.name}: {frontier.discard([letter.key for letter in letters])} dropped")
    else:
        _show(frontier.name, letters, opts)


def _show(crawl: str, letters: list[DeadLetter], opts: argparse.Namespace) -> None:
    readable = [letter for letter in letters if letter.reason != UNREADABLE]
    for letter in readable:
        if opts.json:
            print_json(dead_record(crawl, letter))
        else:
            print(dead_text(letter) if opts.what == "show" else dead_line(letter))
    if not opts.json:
        print(f"{crawl}: {_letters(len(readable))}")
    if unreadable := len(letters) - len(readable):
        sys.stderr.write(
            f"clusterscrapy: {crawl}: {_letters(unreadable)} cannot be read; 'scrapy frontier dead drop "
            f"--reason {UNREADABLE}' removes what is in their place\n"
        )


def _letters(count: int) -> str:
    return f"{count} dead letter{'' if count == 1 else 's'}"


def _chosen(frontier: Frontier, opts: argparse.Namespace) -> Iterator[DeadLetter]:
    for letter in frontier.dead_letters():
        url = url_of(letter.payload)
        if (
            (not opts.urls or url in opts.urls)
            and (not opts.reason or letter.reason in opts.reason)
            and (not opts.match or fnmatchcase(url, opts.match))
        ):
            yield letter
