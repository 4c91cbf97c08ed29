"""``scrapy frontier``: look at crawls, and lay hands on them."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from scrapy import Request, Spider
from scrapy.commands import ScrapyCommand
from scrapy.crawler import Crawler
from scrapy.exceptions import UsageError
from scrapy.utils.project import inside_project

from clusterscrapy.addon import check_scrapy, is_on
from clusterscrapy.commands.dead import act_on_dead_letters, add_dead_options
from clusterscrapy.commands.import_scrapy_redis import add_import_options, import_backlog
from clusterscrapy.commands.seed import add_seed_options, fingerprinter_of, sow
from clusterscrapy.commands.show import (
    list_table,
    print_json,
    status_record,
    status_table,
    top_screen,
)
from clusterscrapy.compat.scrapy_redis.settings import translate
from clusterscrapy.config import Config, unknown_in_environment
from clusterscrapy.dupefilter import start_key_of
from clusterscrapy.exceptions import (
    ClusterScrapyError,
    ConfigError,
    FrontierDamaged,
    FrontierError,
    FrontierUnavailable,
    FrontierUnusable,
)
from clusterscrapy.frontier import Frontier, Standing, key_of
from clusterscrapy.terms import store_of

if TYPE_CHECKING:
    from scrapy.utils.request import RequestFingerprinterProtocol

_TOP_EVERY_S = 1.0
_START = "'scrapy crawl' with the same spider and arguments starts a worker"
_CRAWL_HELP = "its full name, or its spider; needed when the store has several"
_ACTIONS = {
    "status": "how many requests wait, are leased, done and dead, and who works",
    "list": "all crawls of the store: since when, how much is left, who came back to them",
    "top": "counts and workers of one crawl, live, with rates; Ctrl-C ends it",
    "why": "where a URL stands: never seen, waiting, leased, done, dead, or forgotten after the end",
    "forget": "make a page that is done unknown, so that it is fetched when it is found again",
    "seed": "queue requests from the command line, files, standard input or sitemaps",
    "import-scrapy-redis": "queue what waits in the queue of scrapy-redis",
    "pause": "hand out no more requests; what is being fetched is finished",
    "resume": "go on after a pause",
    "drop": "forget a crawl with its queue, its memory and its dead letters",
    "dead": "the dead letters: what failed for good, and why; list, show, replay or drop them",
}


class Command(ScrapyCommand):
    """Hands for every kind of frontier."""

    requires_project = False
    requires_crawler_process = False

    def syntax(self) -> str:
        """One line of usage."""
        return "[-s NAME=VALUE] <action> [options]"

    def short_desc(self) -> str:
        """One line of help."""
        return "Look at a crawl's frontier, or pause, resume, drop and replay"

    def long_desc(self) -> str:
        """What it acts on."""
        return (
            "Acts on the crawls of CLUSTER_FRONTIER_URL (settings or environment). A crawl is named "
            "by its full name or by its spider; with one crawl in the store no name is needed."
        )

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """One subparser for each action, each with ``--help`` and ``-s``."""
        super().add_options(parser)
        common = argparse.ArgumentParser(add_help=False)
        common.add_argument(
            "-s",
            "--set",
            action="append",
            default=argparse.SUPPRESS,
            metavar="NAME=VALUE",
            help="set/override setting (may be repeated)",
        )
        actions = parser.add_subparsers(
            dest="action", metavar="<action>", title="actions", prog="scrapy frontier"
        )
        subparsers = {
            name: actions.add_parser(
                name, parents=[common], help=text, description=text[0].upper() + text[1:] + "."
            )
            for name, text in _ACTIONS.items()
        }
        for name in ("why", "forget"):
            subparsers[name].add_argument("url", metavar="URL", help="whole, with http://")
        add_seed_options(subparsers["seed"])
        add_import_options(subparsers["import-scrapy-redis"])
        add_dead_options(subparsers["dead"])
        for name, sub in subparsers.items():
            if name == "list":
                continue
            if name in ("why", "forget", "dead"):
                sub.add_argument("--crawl", dest="crawl", metavar="CRAWL", help=_CRAWL_HELP)
            elif name not in ("seed", "import-scrapy-redis"):
                sub.add_argument("crawl", nargs="?", metavar="CRAWL", help=_CRAWL_HELP)
        for name in ("status", "list", "why"):
            subparsers[name].add_argument("--json", action="store_true", help="print JSON")
        subparsers["drop"].add_argument(
            "--force",
            action="store_true",
            help="without asking, and also while workers are alive: they close",
        )
        subparsers["top"].add_argument(
            "--seconds", type=float, default=float("inf"), metavar="N", help="end after N seconds"
        )

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        """Run one action; errors are one sentence on standard error."""
        if not opts.action:
            raise UsageError(f"name an action: {', '.join(_ACTIONS)}", print_help=True)
        if opts.action in ("seed", "dead"):
            # argparse lets the values of one positional argument stand in one place only.
            opts.urls += [word for word in args if not word.startswith("-")]
            args = [word for word in args if word.startswith("-")]
        if args:
            raise UsageError(
                f"unknown argument {args[0]!r}; see 'scrapy frontier {opts.action} --help'"
            )
        try:
            check_scrapy()
            assert self.settings is not None
            if inside_project() and not is_on(self.settings):
                sys.stderr.write(
                    "clusterscrapy: the add-on is not in ADDONS of this project's settings, so 'scrapy "
                    "crawl' does not use this frontier\n"
                )
            translate(self.settings)
            self.config = Config.from_settings(self.settings)
            for warning in unknown_in_environment(os.environ):
                sys.stderr.write(f"clusterscrapy: {warning}\n")
            self.store = store_of(self.config)
            getattr(self, f"_{opts.action.replace('-', '_')}")(opts)
        except ClusterScrapyError as exc:
            away = isinstance(exc, FrontierUnavailable)
            hint = "; start it, or correct CLUSTER_FRONTIER_URL" if away else ""
            sys.stderr.write(f"clusterscrapy: {exc}{hint}\n")
            self.exitcode = exc.exit_code

    # --- which crawl -----------------------------------------------------------------------

    def _matching(self, wanted: str | None) -> list[Frontier]:
        names = self.store.names()
        wanted = wanted or ""
        if wanted in names:
            return [self.store.frontier(wanted)]
        crawl_id = self.config.crawl_id
        chosen = [
            name
            for name in names
            if (not wanted or name.startswith((f"{wanted}-", f"{wanted}@")))
            and (not crawl_id or name.endswith(f"@{crawl_id}"))
        ]
        if wanted and not chosen:
            known = ", ".join(names) or "none"
            raise ConfigError(f"no crawl {wanted!r} in {self.store.place}; it has: {known}")
        return [self.store.frontier(name) for name in chosen]

    def _none(self) -> str:
        here = "'scrapy crawl' begins one"
        if not inside_project() and self.config.frontier_url == Config.frontier_url:
            here = "this is no Scrapy project: change into one, or set CLUSTER_FRONTIER_URL"
        return f"no crawl in {self.store.place}; {here}"

    def _one(self, wanted: str | None) -> Frontier:
        found = self._matching(wanted)
        if not found:
            raise ConfigError(self._none())
        if len(found) > 1:
            names = ", ".join(frontier.name for frontier in found)
            raise ConfigError(f"several crawls match: {names}; name one")
        return found[0]

    @contextmanager
    def _sparing_the_rest(self) -> Iterator[None]:
        """A crawl that cannot be used gets its sentence, and hides no other."""
        try:
            yield
        except FrontierUnusable as exc:
            sys.stderr.write(f"clusterscrapy: {exc}\n")
            self.exitcode = exc.exit_code

    # --- actions -----------------------------------------------------------------------------

    def _status(self, opts: argparse.Namespace) -> None:
        frontiers = self._matching(opts.crawl)
        found = []
        for frontier in frontiers:
            with self._sparing_the_rest():
                found.append(frontier.status())
        if not frontiers:
            if opts.json:
                print_json(status_record(None))
            else:
                print(self._none())
        elif opts.json:
            _print_records([status_record(status) for status in found], len(frontiers))
        elif found:
            print(status_table(found))

    def _list(self, opts: argparse.Namespace) -> None:
        frontiers = [self.store.frontier(name) for name in self.store.names()]
        found = []
        for frontier in frontiers:
            with self._sparing_the_rest():
                found.append(frontier.status())
        if opts.json:
            print_json([status_record(status) for status in found])
        elif found:
            found.sort(key=lambda status: status.idle_s)
            print(list_table(found, self.config.abandoned_after))
        elif not frontiers:
            print(self._none())

    def _top(self, opts: argparse.Namespace) -> None:
        frontier = self._one(opts.crawl)
        until = time.monotonic() + opts.seconds
        before = None
        try:
            while True:
                status = frontier.status()
                screen = top_screen(status, before, _TOP_EVERY_S)
                sys.stdout.write(
                    f"\x1b[H\x1b[J{screen}\n" if sys.stdout.isatty() else f"{screen}\n"
                )
                sys.stdout.flush()
                before = status
                if time.monotonic() + _TOP_EVERY_S > until or status.state == "finished":
                    return
                time.sleep(_TOP_EVERY_S)
        except KeyboardInterrupt:
            return

    def _why(self, opts: argparse.Namespace) -> None:
        found = self._matching(opts.crawl)
        if not found:
            raise ConfigError(self._none())
        key, url = self._key(opts.url)
        standings = {}
        for frontier in found:
            with self._sparing_the_rest():
                standings[frontier.name] = _standing(frontier, key, url)[0]
        if opts.json:
            records = [
                {"crawl": n, "state": s.state, "detail": s.detail} for n, s in standings.items()
            ]
            _print_records(records, len(found))
            return
        for name, standing in standings.items():
            print(f"{name}: {standing.state} ({standing.detail})")

    def _forget(self, opts: argparse.Namespace) -> None:
        frontier = self._one(opts.crawl)
        key, url = self._key(opts.url)
        standing, key = _standing(frontier, key, url)
        if standing.state == "dead":
            raise FrontierError(f"{url} is a dead letter; 'scrapy frontier dead replay' queues it")
        if standing.state != "done" or not frontier.forget(key):
            raise FrontierError(f"{url} is {standing.state}: there is nothing to forget")
        print(f"{frontier.name}: forgotten; it is fetched when it is found, or seeded, again")

    def _key(self, url: str) -> tuple[bytes, str]:
        try:
            request = Request(url)
        except ValueError as exc:
            raise ConfigError(f"{url!r} is no URL ({exc}); give it whole, with http://") from exc
        return key_of(self._fingerprinter().fingerprint(request)), request.url

    def _fingerprinter(self) -> RequestFingerprinterProtocol:
        assert self.settings is not None
        return fingerprinter_of(Crawler(Spider, self.settings))

    def _seed(self, opts: argparse.Namespace) -> None:
        assert self.settings is not None
        sow(self.settings, opts)

    def _import_scrapy_redis(self, opts: argparse.Namespace) -> None:
        assert self.settings is not None
        import_backlog(self.settings, opts)

    def _pause(self, opts: argparse.Namespace) -> None:
        frontier = self._one(opts.crawl)
        frontier.pause()
        print(f"{frontier.name}: paused; 'scrapy frontier resume' goes on")

    def _resume(self, opts: argparse.Namespace) -> None:
        frontier = self._one(opts.crawl)
        status = frontier.status()
        frontier.pause(False)
        said = "resumed" if status.state == "paused" else f"was not paused, it is {status.state}"
        start = "" if status.workers or status.state == "finished" else f"; {_START}"
        print(f"{frontier.name}: {said}{start}")

    def _drop(self, opts: argparse.Namespace) -> None:
        frontier = self._one(opts.crawl)
        try:
            status = frontier.status()
        except FrontierDamaged:
            if not opts.force:
                raise
            frontier.drop(force=True)
            print(f"{frontier.name}: dropped, what it held could not be read")
            return
        if not opts.force and status.waiting + status.leased and sys.stdin.isatty():
            left = status.waiting + status.leased
            answer = input(f"Drop {frontier.name} with {left} requests not done? [y/N] ")
            if answer.strip().lower() not in ("y", "yes"):
                print(f"{frontier.name}: kept")
                return
        frontier.drop(force=opts.force)
        print(f"{frontier.name}: dropped ({status.waiting} waiting, {status.dead} dead letters)")

    def _dead(self, opts: argparse.Namespace) -> None:
        alone = opts.what in ("replay", "drop")
        frontiers = [self._one(opts.crawl)] if alone else self._matching(opts.crawl)
        for frontier in frontiers:
            with self._sparing_the_rest():
                act_on_dead_letters(frontier, opts)


def _standing(frontier: Frontier, key: bytes, url: str) -> tuple[Standing, bytes]:
    """Where a URL stands, and the key it stands there by: ``start()`` may have sent it past the filter."""
    standing = frontier.why(key, url)
    if standing.state in ("never seen", "forgotten"):
        start_key = start_key_of(key, 0)
        of_start = frontier.why(start_key, url)
        if of_start.state == "done":
            return of_start, start_key
    return standing, key


def _print_records(records: list[dict[str, Any]], crawls: int) -> None:
    """One record for one crawl, a list for several: also when some of them cannot be used."""
    if crawls > 1:
        print_json(records)
    elif records:
        print_json(records[0])
