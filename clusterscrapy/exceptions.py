"""Every error a user of clusterscrapy can meet.

One tree, so that a caller catches our names and never those of a client library. The first
paragraph of a class's docstring is its default message and names the remedy.
"""

from __future__ import annotations

from typing import ClassVar


class ClusterScrapyError(Exception):
    """Something in clusterscrapy failed; the log lines before this one say what.

    Args:
        message: what happened and what to do about it, in one sentence.
    """

    exit_code: ClassVar[int] = 1
    """What a worker ends with when this error ends it."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or _first_paragraph(type(self)))


class ConfigError(ClusterScrapyError):
    """The configuration is refused; correct the setting that the message names."""

    exit_code: ClassVar[int] = 8


class FrontierError(ClusterScrapyError):
    """The frontier refused an operation; `scrapy frontier status` shows where the crawl stands."""


class FrontierUnavailable(FrontierError):
    """The frontier's store does not answer; bring it back and the crawl goes on by itself."""

    exit_code: ClassVar[int] = 6


class FrontierUnusable(FrontierError, ConfigError):
    """This user cannot use the crawl's store; give the worker the rights that the message names."""


class FrontierDamaged(FrontierUnusable):
    """The crawl's store holds what clusterscrapy did not write; restore it, or drop the crawl."""


class CodecError(FrontierError):
    """The request cannot be stored; make its callback a spider method and its values plain data.

    Args:
        message: what cannot be stored, and what to do about it.
        path: the offending place in the request, such as ``meta['item'].price``.
        url: the request's URL.
    """

    def __init__(self, message: str | None = None, *, path: str = "", url: str = "") -> None:
        super().__init__(message)
        self.path = path
        self.url = url


def _first_paragraph(error: type[ClusterScrapyError]) -> str:
    # Python strips docstrings under -OO.
    paragraph = (error.__doc__ or error.__name__).partition("\n\n")[0]
    return " ".join(paragraph.split())
