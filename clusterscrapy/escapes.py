"""What Scrapy lets escape: exceptions of a spider or a pipeline that are no ``Exception``.

Scrapy catches ``Exception``. A ``CancelledError``, ``GeneratorExit`` or ``SystemExit`` out of a callback
ends the task that was to say that its page is done, so the page would stay in progress for ever; out
of a pipeline it would lose the item without a word. Here they become errors of their page.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scrapy.core.engine import ExecutionEngine


class Escaped(RuntimeError):
    """A spider or a pipeline raised what would have ended more than its page."""


@contextmanager
def caught(engine: ExecutionEngine) -> Iterator[None]:
    """Turn what would escape from this engine's nets into :class:`Escaped`, while its spider is open."""
    try:
        yield
    except Exception:
        raise
    except BaseException as exc:
        if engine.spider is None or engine._stopping:
            raise
        text = str(exc)
        raise Escaped(f"{type(exc).__name__}{f': {text}' if text else ''} was raised") from exc


def catch_escapes(engine: ExecutionEngine) -> None:
    """Make :func:`caught` hold for every callback, errback and pipeline of this engine."""
    scraper: Any = engine.scraper
    scraper.call_spider_async = partial(_call_spider, engine, scraper.call_spider_async)
    if hasattr(scraper.itemproc, "process_item_async"):
        scraper.itemproc.process_item_async = partial(
            _call, engine, scraper.itemproc.process_item_async
        )


async def _call(
    engine: ExecutionEngine, call: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any
) -> Any:
    with caught(engine):
        return await call(*args, **kwargs)


async def _call_spider(
    engine: ExecutionEngine, call: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any
) -> Any:
    output = await _call(engine, call, *args, **kwargs)
    caught_output = _async_output if hasattr(output, "__aiter__") else _output
    return caught_output(engine, output)


def _output(engine: ExecutionEngine, output: Any) -> Iterator[Any]:
    iterator = iter(output)
    end = object()
    while True:
        with caught(engine):
            value = next(iterator, end)
        if value is end:
            return
        yield value


async def _async_output(engine: ExecutionEngine, output: Any) -> AsyncIterator[Any]:
    iterator = aiter(output)
    end = object()
    while True:
        with caught(engine):
            value = await anext(iterator, end)
        if value is end:
            return
        yield value
