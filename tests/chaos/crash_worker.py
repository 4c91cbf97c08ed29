"""A worker that kills itself: ``python -m tests.chaos.crash_worker POINT NTH crawl NAME …``.

The rest of the command line is Scrapy's. A point is one step of a worker at which a death could
matter: the worker puts itself around one function, counts the calls that the point is about, and at
the NTH sends itself SIGKILL, before the call or after it. The product has no hooks for this.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import redis
from scrapy.exporters import JsonLinesItemExporter
from scrapy.pipelines import ItemPipelineManager

from clusterscrapy.exceptions import FrontierUnavailable
from clusterscrapy.feeds import CrashSafeFeeds
from clusterscrapy.frontier import Ack, Push, Release, StartDone, courier
from clusterscrapy.frontier.codec import RequestCodec
from clusterscrapy.frontier.courier import Courier
from clusterscrapy.frontier.redis import RedisFrontier, RedisSession, RedisStore
from clusterscrapy.frontier.sqlite import SqliteFrontier, SqliteSession, leases
from clusterscrapy.frontier.sqlite.entrance import Entrance
from clusterscrapy.frontier.sqlite.session import Step
from clusterscrapy.frontier.sqlite.state import State
from clusterscrapy.lifecycle import Lifecycle
from clusterscrapy.scheduler import Scheduler
from clusterscrapy.spidermw import FrontierSpiderMiddleware
from tests.chaos.project.spiders import Graph, Seeds

Function = tuple[Any, str]
"""What holds the function, and its name there."""
BOTH = ("sqlite", "redis")
JOIN: tuple[Function, ...] = ((SqliteFrontier, "join"), (RedisFrontier, "join"))
SYNC: tuple[Function, ...] = ((SqliteSession, "sync"), (RedisSession, "sync"))
BEAT: tuple[Function, ...] = ((SqliteSession, "beat"), (RedisSession, "beat"))
FINISH: tuple[Function, ...] = ((SqliteSession, "finish"), (RedisSession, "finish"))
LEAVE: tuple[Function, ...] = ((SqliteSession, "leave"), (RedisSession, "leave"))
_BEATING = ("-s", "CLUSTER_HEARTBEAT_SECONDS=0.02")
_AT_ONCE = ("-s", "CLUSTER_STOP_SECONDS=0")
_FEW = ("-s", "CONCURRENT_REQUESTS=2")
"""Pages that were there at two deaths run one by one: not many of them."""


@dataclass(frozen=True)
class Call:
    """One call of the function that a point is about; ``result`` is None before it is made."""

    args: tuple[Any, ...]
    result: Any = None


def _always(call: Call) -> bool:
    return True


@dataclass(frozen=True)
class Point:
    """One step at which a worker dies."""

    at: tuple[Function, ...]
    when: str = "before"
    """``before`` or ``after`` the call, or ``between`` two values that a generator yields."""
    only: Callable[[Call], object] = _always
    """The calls that count."""
    nth: int = 1
    spider: str = "graph"
    stores: tuple[str, ...] = BOTH
    options: tuple[str, ...] = ()
    """Settings of this worker and of the one after it."""
    prepare: Callable[[], None] | None = None
    """What else this worker does otherwise than others."""
    last_act: Callable[[Call], None] | None = None
    earlier: str = ""
    """The point at which a worker before this one died."""
    routine: bool = True
    """Tried in every run of the tests; the others, close to one of these, when there is time."""


# --- which calls ---------------------------------------------------------------------------


def _ops(call: Call) -> list[Any]:
    return list(call.args[1].ops)


def _has(kind: type) -> Callable[[Call], bool]:
    return lambda call: any(type(op) is kind for op in _ops(call))


def _only_pushes(call: Call) -> bool:
    return bool(_ops(call)) and all(type(op) is Push for op in _ops(call))


def _op_is(kind: type) -> Callable[[Call], bool]:
    return lambda call: type(call.args[1]) is kind


def _has_result(call: Call) -> bool:
    return bool(call.result)


def _took(call: Call) -> bool:
    return bool(call.result.taken)


def _took_returned(call: Call) -> bool:
    return any(delivery.deaths for delivery in call.result.taken)


def _answers_something(call: Call) -> bool:
    reply = call.args[1]
    return bool(reply.queued or reply.taken)


def _something_left_the_engine(call: Call) -> bool:
    scheduler = call.args[0]
    return any(
        request not in scheduler.crawler.engine._slot.inprogress for request in scheduler._held
    )


def _script(name: str) -> Callable[[Call], bool]:
    return lambda call: call.args[1] == name


def _sync_command(call: Call) -> bool:
    """A script that carries operations, as it goes over the wire."""
    _, name, *args = call.args
    carries_ops = len(args) > 7 and isinstance(args[7], bytes) and len(args[7]) > 1
    return name in ("EVALSHA", "EVAL") and carries_ops


def _reaped(call: Call) -> bool:
    """The other worker, which was there when this one joined, is gone."""
    session = call.args[0]
    others = session.opening.workers > 1
    return others and len(session.frontier.status().workers) == 1 and not _leases_of_others(session)


def _leases_of_others(session: Any) -> int:
    client, base = session.frontier.store.client, session.frontier.base
    return sum(1 for epoch in client.hkeys(f"{base}infos") if epoch.decode() != session.epoch)


# --- what else such a worker does ---------------------------------------------------------------


def _small_batches() -> None:
    """A page's links and its acknowledgement go in batches of their own."""
    courier.BATCH_OPS = 4


def _at_page(number: int, act: Callable[[], None]) -> None:
    pages = count(1)

    def before(call: Call) -> None:
        if next(pages) == number:
            act()

    _around(Graph, "parse", before=before)


def _stop_at_page() -> None:
    """This worker is asked to stop."""
    _at_page(10, lambda: os.kill(os.getpid(), signal.SIGTERM))


def _lose_leases_at_page() -> None:
    """This worker is taken for dead, and what it holds goes back into the queue."""
    couriers: list[Courier] = []
    _around(Courier, "open", after=lambda call: couriers.append(call.args[0]))

    def act() -> None:
        session = couriers[0].session
        assert session is not None
        print(f"leases lost: {session.leave()}", flush=True)

    _at_page(10, act)


def _lose_an_answer() -> None:
    """The store does not answer once; Redis has applied the call by then."""
    calls = count(1)

    def fail(call: Call) -> None:
        if next(calls) == 3:
            raise FrontierUnavailable("the answer was lost")

    def fail_sync(call: Call) -> None:
        if call.args[1] == "sync":
            fail(call)

    _around(SqliteSession, "sync", before=fail)
    _around(RedisStore, "call", after=fail_sync)


def _slow_items() -> None:
    """Items take a while in the pipelines."""
    process = ItemPipelineManager.process_item_async

    async def slowly(self: ItemPipelineManager, item: Any) -> Any:
        await asyncio.sleep(0.3)
        return await process(self, item)

    ItemPipelineManager.process_item_async = slowly  # type: ignore[method-assign]


def _tear_the_line(call: Call) -> None:
    """Only a part of the item's line reaches the disk."""
    file = call.args[0].file
    file.flush()
    os.truncate(file.name, os.fstat(file.fileno()).st_size - 5)


# --- the points -----------------------------------------------------------------------------------

_JOINING = {
    "before-join": Point(JOIN, routine=False),
    "join-uncommitted": Point(((Entrance, "enter"),), "after", stores=("sqlite",), routine=False),
    "join-unlisted": Point(((RedisFrontier, "call"),), "after", _script("join"), stores=("redis",)),
    "joined-unheard": Point(JOIN, "after"),
    "joined": Point(((Courier, "open"),), "after", routine=False),
    "feed-unprepared": Point(((CrashSafeFeeds, "prepare"),), routine=False),
}
_STARTING = {
    "before-claim": Point(((Scheduler, "claim_start"),), spider="seeds", routine=False),
    "claimed-unheard": Point(
        SYNC, "after", lambda call: call.result.start == "mine", spider="seeds"
    ),
    "claimed": Point(((Scheduler, "claim_start"),), "after", spider="seeds", routine=False),
    "between-starts": Point(((Seeds, "start"),), "between", nth=30, spider="seeds"),
    "starts-half-stored": Point(SYNC, "after", _has(Push), spider="seeds"),
    "starts-exhausted": Point(((Seeds, "start"),), "after", spider="seeds", routine=False),
    "start-done-told": Point(((Scheduler, "start_done"),), "after", spider="seeds", routine=False),
    "start-done-unsent": Point(SYNC, "before", _has(StartDone), spider="seeds", routine=False),
    "start-done-unheard": Point(SYNC, "after", _has(StartDone), spider="seeds"),
    "start-done-used": Point(
        ((Courier, "_accept"),),
        "after",
        lambda call: call.args[1].start == "done",
        spider="seeds",
        routine=False,
    ),
    "start-item-in-pipeline": Point(
        ((ItemPipelineManager, "process_item_async"),), nth=20, spider="start_items", routine=False
    ),
    "last-start-item-in-pipeline": Point(
        ((ItemPipelineManager, "process_item_async"),),
        "after",
        nth=40,
        spider="start_items",
        prepare=_slow_items,
    ),
    "start-item-through": Point(
        ((FrontierSpiderMiddleware, "_item_through"),),
        "after",
        nth=20,
        spider="start_items",
        routine=False,
    ),
}
_SENDING = {
    "unsent": Point(SYNC, "before", _ops, nth=3, routine=False),
    "in-flight": Point(
        ((redis.Connection, "send_command"),), "after", _sync_command, nth=4, stores=("redis",)
    ),
    "seen-unqueued": Point(
        ((Step, "_first_time"),), "after", _has_result, nth=12, stores=("sqlite",)
    ),
    "between-operations": Point(
        ((Step, "_apply"),),
        "after",
        _op_is(Push),
        nth=20,
        stores=("sqlite",),
        routine=False,
    ),
    "pushed-uncommitted": Point(
        ((Step, "_take"),),
        "before",
        lambda call: call.args[0].delta["waiting"] > 0,
        nth=2,
        stores=("sqlite",),
    ),
    "acked-uncommitted": Point(
        ((Step, "apply"),), "after", _has(Ack), nth=2, stores=("sqlite",), routine=False
    ),
    "applied-unheard": Point(SYNC, "after", _ops, nth=3),
    "links-before-ack": Point(SYNC, "after", _only_pushes, nth=3, prepare=_small_batches),
    "acked-unheard": Point(SYNC, "after", _has(Ack), nth=2),
    "answer-unused": Point(
        ((Courier, "_accept"),), "before", _answers_something, nth=3, routine=False
    ),
    "answer-used": Point(
        ((Courier, "_accept"),), "after", _answers_something, nth=3, routine=False
    ),
    "retry-unsent": Point(SYNC, nth=4, prepare=_lose_an_answer, routine=False),
    "retry-unheard": Point(SYNC, "after", nth=3, prepare=_lose_an_answer),
}
_TAKING = {
    "taken-uncommitted": Point(
        ((Step, "_take"),), "after", _has_result, nth=2, stores=("sqlite",), routine=False
    ),
    "taken-unheard": Point(SYNC, "after", _took, nth=2),
    "out-of-buffer": Point(((Courier, "next"),), "after", _has_result, nth=12, routine=False),
    "decoding": Point(((RequestCodec, "decode"),), nth=12, routine=False),
    "decoded": Point(((RequestCodec, "decode"),), "after", nth=12, routine=False),
    "given-to-the-engine": Point(
        ((Scheduler, "next_request"),), "after", _has_result, nth=12, routine=False
    ),
}
_WORKING = {
    "before-first-link": Point(((Graph, "parse"),), nth=5, routine=False),
    "between-links": Point(((Graph, "parse"),), "between", nth=20),
    "callback-exhausted": Point(((Graph, "parse"),), "after", nth=5, routine=False),
    "output-exhausted": Point(
        ((FrontierSpiderMiddleware, "process_spider_output"),), "after", nth=5, routine=False
    ),
    "encoding": Point(((RequestCodec, "encode"),), nth=20, routine=False),
    "link-in-outbox": Point(((Courier, "push"),), "after", nth=20, routine=False),
    "item-in-pipeline": Point(
        ((ItemPipelineManager, "process_item_async"),), "after", nth=5, prepare=_slow_items
    ),
    "item-unflushed": Point(
        ((JsonLinesItemExporter, "export_item"),), "after", nth=5, routine=False
    ),
    "item-half-written": Point(
        ((JsonLinesItemExporter, "export_item"),), "after", nth=5, last_act=_tear_the_line
    ),
    "item-written": Point(((CrashSafeFeeds, "flush"),), "after", nth=5),
    "before-collect": Point(
        ((Scheduler, "collect"),), "before", _something_left_the_engine, routine=False
    ),
    "between-acks": Point(((Courier, "tell"),), "after", _op_is(Ack), nth=3, routine=False),
    "collected-unsent": Point(
        ((Courier, "_next_batch"),),
        "after",
        lambda call: any(type(op) is Ack for op in call.result.ops),
        nth=2,
    ),
}
_ENDING = {
    "before-finish": Point(FINISH, routine=False),
    "finish-uncommitted": Point(
        ((State, "set"),),
        "after",
        lambda call: call.args[1] == "finished_at",
        stores=("sqlite",),
    ),
    "finished-not-left": Point(FINISH, "after", _has_result),
    "finished-and-left": Point(LEAVE, "after", routine=False),
}
_STOPPING = {
    "told-to-stop": Point(((Lifecycle, "_begin_stop"),), prepare=_stop_at_page, routine=False),
    "handing-back": Point(((Courier, "hand_back"),), prepare=_stop_at_page, routine=False),
    "releases-unsent": Point(((Courier, "hand_back"),), "after", prepare=_stop_at_page),
    "release-uncommitted": Point(
        ((Step, "_apply"),),
        "after",
        _op_is(Release),
        prepare=_stop_at_page,
        stores=("sqlite",),
        routine=False,
    ),
    "released-unheard": Point(SYNC, "after", _has(Release), prepare=_stop_at_page),
    "closing-unflushed": Point(((Courier, "close"),), prepare=_stop_at_page, routine=False),
    "flushed-not-left": Point(LEAVE, prepare=_stop_at_page, routine=False),
    "left-unheard": Point(LEAVE, "after", prepare=_stop_at_page, routine=False),
    "deadline": Point(
        ((Scheduler, "release_held"),),
        "after",
        _has_result,
        prepare=_stop_at_page,
        options=_AT_ONCE,
    ),
}
_OTHERS = {
    "reap-uncommitted": Point(
        ((leases, "return_leases"),),
        "after",
        _has_result,
        stores=("sqlite",),
        earlier="before-first-link",
        options=_FEW,
    ),
    "reap-half-done": Point(
        ((leases, "put_back"),),
        "after",
        stores=("sqlite",),
        earlier="before-first-link",
        options=_FEW,
        routine=False,
    ),
    "reaped-unheard": Point(
        SYNC, "after", _reaped, stores=("redis",), earlier="before-first-link", options=_FEW
    ),
    "returned-taken-unheard": Point(
        SYNC, "after", _took_returned, earlier="before-first-link", options=_FEW, routine=False
    ),
    "before-beat": Point(BEAT, options=_BEATING, nth=2, routine=False),
    "after-beat": Point(BEAT, "after", options=_BEATING, nth=2),
    "before-joining-again": Point(
        ((Courier, "_join_again"),), prepare=_lose_leases_at_page, routine=False
    ),
    "joined-again-unheard": Point(
        ((Courier, "_join_again"),), "after", prepare=_lose_leases_at_page, routine=False
    ),
    "joined-again": Point(((Courier, "_rejoined"),), "after", prepare=_lose_leases_at_page),
}
POINTS = {
    **_OTHERS,
    **_JOINING,
    **_STARTING,
    **_SENDING,
    **_TAKING,
    **_WORKING,
    **_ENDING,
    **_STOPPING,
}


# --- dying ------------------------------------------------------------------------------------------


def arm(point: Point, nth: int) -> None:
    """Put this process around the point's function."""
    if point.prepare is not None:
        point.prepare()
    left = count(1)

    def reach(call: Call) -> None:
        if point.only(call) and next(left) == nth:
            if point.last_act is not None:
                point.last_act(call)
            _die()

    for owner, name in point.at:
        _around(owner, name, **{point.when: reach})


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)  # until the signal has come, this thread does nothing more


def _nothing(call: Call) -> None:
    """No point here."""


def _around(
    owner: Any,
    name: str,
    before: Callable[[Call], None] = _nothing,
    after: Callable[[Call], None] = _nothing,
    between: Callable[[Call], None] = _nothing,
) -> None:
    original = getattr(owner, name)

    async def iterate(*args: Any, **named: Any) -> AsyncIterator[Any]:
        before(Call(args))
        async for value in original(*args, **named):
            yield value
            between(Call(args, value))
        after(Call(args))

    def generate(*args: Any, **named: Any) -> Iterator[Any]:
        before(Call(args))
        for value in original(*args, **named):
            yield value
            between(Call(args, value))
        after(Call(args))

    async def wait(*args: Any, **named: Any) -> Any:
        before(Call(args))
        result = await original(*args, **named)
        after(Call(args, result))
        return result

    def call(*args: Any, **named: Any) -> Any:
        before(Call(args))
        result = original(*args, **_accepted(original, named))
        after(Call(args, result))
        return result

    wrapper: Any = call
    if inspect.isasyncgenfunction(original):
        wrapper = iterate
    elif inspect.isgeneratorfunction(original):
        wrapper = generate
    elif inspect.iscoroutinefunction(original):
        wrapper = wait
    setattr(owner, name, functools.wraps(original)(wrapper))


def _accepted(function: Callable[..., Any], named: dict[str, Any]) -> dict[str, Any]:
    """What of a signal's arguments this receiver asks for."""
    parameters = inspect.signature(function).parameters
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return named
    return {name: value for name, value in named.items() if name in parameters}


if __name__ == "__main__":
    from scrapy.cmdline import execute

    _, chosen, nth, *command = sys.argv
    arm(POINTS[chosen], int(nth))
    execute(["scrapy", *command])
