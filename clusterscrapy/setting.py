"""One setting: where its value comes from, how it is read, and how a refusal is worded.

:mod:`clusterscrapy.config` says which settings there are; this module knows none of them. Values
from the environment and the command line are text, those from settings modules are Python
objects; both are read by the type of the field.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clusterscrapy.exceptions import ConfigError

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

PREFIX = "CLUSTER_"

_YES = frozenset({"1", "true", "yes", "on"})
_NO = frozenset({"0", "false", "no", "off"})
_SHOWN_CHARACTERS = 80

# Scrapy's priorities (scrapy.settings.SETTINGS_PRIORITIES), highest first. They are repeated here
# because reading a configuration must not import Scrapy; a unit test compares them.
COMMAND_LINE = 40
TRANSLATED = 14
"""Ours: what follows from the settings of another package."""
_SOURCES = {
    COMMAND_LINE: "the command line",
    30: "the spider's settings",
    20: "the project's settings",
    15: "an add-on",
    TRANSLATED: "the settings of scrapy-redis",
    10: "the command's defaults",
    0: "the default settings",
}


@dataclass(frozen=True)
class Rule:
    """What a setting accepts besides its type. Bounds are inclusive unless their name says not."""

    unit: str = ""
    choices: tuple[str, ...] = ()
    at_least: float | None = None
    above: float | None = None
    below: float | None = None
    pattern: str = ""
    """A regular expression the whole text, or each text of a list, must match."""
    form: str = ""
    """What `pattern` asks for, in words that follow "give"."""

    def accepts(self, value: Any) -> bool:
        """Whether a value of the right type is within the rule."""
        if isinstance(value, tuple):
            return all(self._matches(each) for each in value)
        if isinstance(value, str):
            return self._matches(value) and (not self.choices or value in self.choices)
        return (
            (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def _matches(self, text: str) -> bool:
        return not self.pattern or re.fullmatch(self.pattern, text) is not None

    def wanted(self, kind: Any) -> str:
        """What a right value looks like, in words that follow "give"."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        bounds = [
            f"{words} {bound:g}"
            for words, bound in (
                ("of at least", self.at_least),
                ("above", self.above),
                ("below", self.below),
            )
            if bound is not None
        ]
        unit = f" of {self.unit}" if self.unit and kind in (int, float) else ""
        return self.form or f"{_READERS[kind].wanted}{unit} {' and '.join(bounds)}".rstrip()


@dataclass(frozen=True)
class Given:
    """A value that somebody gave for a setting, and where."""

    name: str
    value: object
    source: str

    def refusal(self, why: str) -> ConfigError:
        """The error that names this setting, its value and its source, and says `why`."""
        return ConfigError(f"{self.name}={shown(self.value)} from {self.source} {why}.")

    def read(self, kind: Any, rule: Rule) -> Any:
        """The typed value.

        Args:
            kind: the field's type: bool, int, float, str or ``tuple[str, ...]``.
            rule: what else is asked of it.

        Raises:
            ConfigError: the value has another type, or is outside the rule.
        """
        try:
            value = _READERS[kind].read(self.value)
        except (TypeError, ValueError, OverflowError):
            value = None
        if value is None or not rule.accepts(value):
            raise self.refusal(f"cannot be used; give {rule.wanted(kind)}")
        return value


def setting(default: Any, **rule: Any) -> Any:
    """A dataclass field that is a setting; `rule` are the fields of :class:`Rule`."""
    return field(default=default, metadata={"rule": Rule(**rule)})


def given(name: str, settings: BaseSettings, environ: Mapping[str, str]) -> Given | None:
    """The value that wins: command line, environment, spider, project, add-on, in this order.

    An empty environment variable and a setting that is None count as not given: both are what
    templates and ``os.environ.get`` leave behind.
    """
    priority = settings.getpriority(name)
    text = environ.get(name, "")
    if text and (priority is None or priority < COMMAND_LINE):
        return Given(name, text, "the environment")
    if priority is None or settings[name] is None:
        return None
    return Given(name, settings[name], source_of(priority))


def source_of(priority: int) -> str:
    """Where a setting of this Scrapy priority comes from, in words."""
    return next((words for floor, words in _SOURCES.items() if priority >= floor), _SOURCES[0])


def shown(value: object) -> str:
    """The value as an error may show it: no password, not endless."""
    text = repr(re.sub(r"://.*@", "://***@", value) if isinstance(value, str) else value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


# --- one reader per type ---------------------------------------------------------------


@dataclass(frozen=True)
class _Reader:
    read: Callable[[Any], object]
    wanted: str


def _read_bool(value: object) -> bool:
    text = str(value).strip().lower()
    if text not in _YES | _NO:
        raise ValueError(text)
    return text in _YES


def _read_int(value: object) -> int:
    number = _number(value)
    # 1e6 is how people write a million.
    if not number.is_integer():
        raise ValueError(value)
    return value if isinstance(value, int) else int(number)


def _read_float(value: object) -> float:
    number = _number(value)
    if number - number != 0:
        raise ValueError("inf and nan are no amounts")
    return number


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError(value)
    return float(value)


def _read_str(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value.strip()


def _read_texts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, list | tuple | set | frozenset):
        raise TypeError(value)
    return tuple(text for text in map(_read_str, value) if text)


_READERS: dict[Any, _Reader] = {
    bool: _Reader(_read_bool, "yes or no, as one of 1, true, yes, on, 0, false, no, off"),
    int: _Reader(_read_int, "a whole number"),
    float: _Reader(_read_float, "a number"),
    str: _Reader(_read_str, "a text in quotes"),
    tuple[str, ...]: _Reader(_read_texts, "a list of texts, or one text with commas"),
}
