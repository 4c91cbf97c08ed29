"""What ``crawl`` and ``runspider`` share: the exit code says how the worker ended."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from scrapy.utils.project import inside_project

from clusterscrapy.addon import check_scrapy, is_on, refuse_wrong
from clusterscrapy.exceptions import ConfigError
from clusterscrapy.identity import remember_arguments
from clusterscrapy.lifecycle import end_without_threads, stoppable
from clusterscrapy.outcome import DRAINED, exit_code, last_words, promise_to_tell
from clusterscrapy.scheduler import scheduler_of

if TYPE_CHECKING:
    import argparse

    from scrapy.crawler import Crawler
    from scrapy.settings import Settings


class WorkerCommand:
    """Mixin in front of a Scrapy command that runs one spider.

    Exit codes: 0 finished, 4 closed by a limit, 5 stopped with work left, 6 the store was away too
    long, 8 the configuration was refused; anything else is a crash. Without the add-on the command
    is Scrapy's own.
    """

    exitcode: int
    requires_project: bool
    settings: Settings | None
    _crawlers: list[Crawler]

    def _create_crawler(self, spidercls: Any) -> Crawler:
        crawler: Crawler = super()._create_crawler(spidercls)  # type: ignore[misc]
        if is_on(crawler.settings):
            # Now, because Scrapy's Deferred-based process swallows the exit of a refusal later on.
            refuse_wrong(crawler.settings)
        remember_arguments(crawler, self._arguments)
        promise_to_tell(crawler)
        self._crawlers.append(crawler)
        crawler._create_spider = stoppable()(crawler._create_spider)  # type: ignore[method-assign]
        return crawler

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        """Run the spider and take over its exit code."""
        if self.requires_project and not inside_project():
            sys.stderr.write(
                "clusterscrapy: this command needs a Scrapy project, and there is no scrapy.cfg here or "
                "above; change into one, or run a single file with 'scrapy runspider'\n"
            )
            self.exitcode = 2
            return
        if self.settings is not None and is_on(self.settings):
            try:
                # Old versions would wrap the add-on's own refusal into a traceback.
                check_scrapy()
            except ConfigError as exc:
                sys.stderr.write(f"clusterscrapy: {exc}\n")
                self.exitcode = exc.exit_code
                return
        self._crawlers, self._arguments = [], dict(opts.spargs)
        with stoppable():
            super().run(args, opts)  # type: ignore[misc]
        for crawler in self._crawlers:
            scheduler = scheduler_of(crawler)
            if scheduler is not None and exit_code(crawler) is None and scheduler.abandon():
                # Stopped before its engine ran, Scrapy ends without closing anything.
                self.exitcode = DRAINED
            self.exitcode = exit_code(crawler) or self.exitcode
            if sentence := last_words(crawler):
                sys.stderr.write(f"clusterscrapy: {sentence}\n")
            end_without_threads(crawler, self.exitcode)
