"""The Redis of a scrapy-redis project, reached by scrapy-redis' own code and settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy.settings import BaseSettings

from clusterscrapy.exceptions import ConfigError

if TYPE_CHECKING:
    from scrapy import Spider

_SOCKET_TIMEOUT_S = 5


def client_of(settings: BaseSettings) -> Any:
    """A client that answers in bytes, whatever the settings say, so that any seed or entry can be kept.

    Raises:
        ConfigError: scrapy-redis is not installed.
    """
    try:
        from scrapy_redis import connection
    except ImportError as exc:
        raise ConfigError(
            "scrapy-redis is not installed, and its settings are read by its own code; "
            "pip install scrapy-redis"
        ) from exc
    theirs = BaseSettings({name: settings[name] for name in settings if name.startswith("REDIS_")})
    theirs["REDIS_DECODE_RESPONSES"] = None
    theirs["REDIS_PARAMS"] = {
        **settings.getdict("REDIS_PARAMS"),
        "decode_responses": False,
        "socket_timeout": _SOCKET_TIMEOUT_S,
        "socket_connect_timeout": _SOCKET_TIMEOUT_S,
    }
    return connection.from_settings(theirs)


def key_of_spider(settings: BaseSettings, name: str, default: str, spider: Spider) -> str:
    """The key that a pattern such as ``SCHEDULER_QUEUE_KEY`` gives for a spider.

    Raises:
        ConfigError: the pattern cannot be filled in.
    """
    pattern = settings.get(name) or default
    try:
        return str(pattern % {"spider": spider.name})
    except (KeyError, TypeError, ValueError) as exc:
        raise ConfigError(
            f"{name}={pattern!r} is no pattern for a key ({exc}); write it like {default!r}"
        ) from exc
