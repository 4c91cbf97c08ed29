"""The one line in ``ADDONS`` that switches the suite on. A user's own settings still win."""

from __future__ import annotations

import inspect
import logging
import os
import sys
from typing import TYPE_CHECKING, NoReturn

import scrapy
from scrapy.utils.misc import load_object

from clusterscrapy.exceptions import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy.settings import BaseSettings

logger = logging.getLogger(__name__)

OLDEST_SCRAPY, TOO_NEW_SCRAPY = (2, 16), (2, 20)
_SCHEDULER = "clusterscrapy.scheduler.Scheduler"
_AFTER_SCRAPY_REDIS = "clusterscrapy.compat.scrapy_redis.seen.SchedulerAfterScrapyRedis"
_ASYNCIO_REACTOR = "twisted.internet.asyncioreactor.AsyncioSelectorReactor"
_MIDDLEWARE_ORDER = 10
"""On the engine's side of all of Scrapy's own spider middlewares."""
_EARLY = -10
"""Before Scrapy's feed exporter, whose files are prepared first."""
_OTHER_COMMANDS = frozenset({"shell", "fetch", "view", "parse", "check", "bench", "list", "edit"})


class Addon:
    """Scrapy add-on: the shared, crash-safe frontier and what belongs to it.

    Commands that try out single pages (``shell``, ``fetch``, ``parse``, ``check``, ``bench``) keep
    Scrapy's own scheduler.
    """

    @classmethod
    def update_pre_crawler_settings(cls, settings: BaseSettings) -> None:
        """Refuse what is wrong before anything runs, as far as it is known without the spider."""
        refuse_wrong(settings)

    def update_settings(self, settings: BaseSettings) -> None:
        """Switch the suite on; a refused configuration ends the process with exit code 8."""
        if refuse_wrong(settings, say=logger.warning):
            _switch_on(settings)


def check_scrapy() -> None:
    """Refuse a Scrapy that we do not know.

    Raises:
        ConfigError: this version is not supported.
    """
    version = tuple(int(part) for part in scrapy.__version__.split(".")[:2])
    if not OLDEST_SCRAPY <= version < TOO_NEW_SCRAPY:
        oldest, too_new = (".".join(map(str, v)) for v in (OLDEST_SCRAPY, TOO_NEW_SCRAPY))
        raise ConfigError(
            f"Scrapy {scrapy.__version__} is not supported: clusterscrapy needs {oldest} or later, "
            f"before {too_new}; pip install 'scrapy>={oldest},<{too_new}'"
        )


def is_on(settings: BaseSettings) -> bool:
    """True when these settings switch the add-on on."""
    return any(
        load_object(name) is Addon if isinstance(name, str) else name is Addon
        for name in settings.getdict("ADDONS")
    )


def refuse_wrong(settings: BaseSettings, say: Callable[[str], None] | None = None) -> bool:
    """End the process if the configuration is wrong; False when this command does without the suite.

    Args:
        settings: those of another frontier are mapped to ours (:mod:`clusterscrapy.compat`).
        say: is told what became of these, a sentence each.
    """
    try:
        check_scrapy()
        if _running_command() in _OTHER_COMMANDS:
            return False
        from clusterscrapy.compat.scrapy_redis.settings import translate
        from clusterscrapy.config import Config
        from clusterscrapy.terms import store_of

        for note in translate(settings):
            if say is not None:
                say(note)
        store_of(Config.from_settings(settings))
        _check_event_loop(settings)
    except ConfigError as exc:
        _refuse(exc)
    return True


def _check_event_loop(settings: BaseSettings) -> None:
    reactor = settings["TWISTED_REACTOR"]
    if settings.getbool("TWISTED_REACTOR_ENABLED", True) and reactor not in (
        None,
        _ASYNCIO_REACTOR,
    ):
        raise ConfigError(
            f"TWISTED_REACTOR={reactor} has no asyncio event loop, which clusterscrapy needs; "
            f"remove the setting, or use {_ASYNCIO_REACTOR}"
        )


def _switch_on(settings: BaseSettings) -> None:
    from clusterscrapy.compat.scrapy_redis.settings import replace_classes
    from clusterscrapy.config import Config, unknown_in_environment
    from clusterscrapy.feeds import CrashSafeFeeds
    from clusterscrapy.lifecycle import Lifecycle
    from clusterscrapy.spidermw import FrontierSpiderMiddleware

    for warning in (*replace_classes(settings), *unknown_in_environment(os.environ)):
        logger.warning(warning)
    settings.set("SCHEDULER", _SCHEDULER, "addon")
    if settings["SCHEDULER"] != _SCHEDULER:
        logger.warning(
            "SCHEDULER=%s of your settings wins, so the frontier of clusterscrapy is off; remove "
            "that line to use it",
            settings["SCHEDULER"],
        )
        return
    if Config.from_settings(settings).scrapy_redis_seen:
        settings.set("SCHEDULER", _AFTER_SCRAPY_REDIS, settings.getpriority("SCHEDULER") or 0)
    # Since Scrapy 2.19 on by default: a port that executes code, and an error without a home folder.
    settings.set("REMOTE_CONTROL_ENABLED", False, "addon")
    settings.setdefault_in_component_priority_dict(
        "SPIDER_MIDDLEWARES", FrontierSpiderMiddleware, _MIDDLEWARE_ORDER
    )
    extensions: list[type] = [Lifecycle, CrashSafeFeeds]
    if "scrapy_redis" in sys.modules:
        from clusterscrapy.compat.scrapy_redis.seeds import SeedReader

        extensions.append(SeedReader)
    for extension in extensions:
        settings.setdefault_in_component_priority_dict("EXTENSIONS", extension, _EARLY)


def _running_command() -> str | None:
    """The ``scrapy`` command being run, from the one frame that knows it: Scrapy tells nobody else."""
    frame = inspect.currentframe()
    while frame is not None:
        if (
            frame.f_globals.get("__name__") == "scrapy.cmdline"
            and frame.f_code.co_name == "execute"
        ):
            name = frame.f_locals.get("cmdname")
            return name if isinstance(name, str) else None
        frame = frame.f_back
    return None


def _refuse(error: ConfigError) -> NoReturn:
    sys.stderr.write(f"clusterscrapy: {error}\n")
    raise SystemExit(error.exit_code)
