"""The courier against an in-memory frontier, without Scrapy."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from clusterscrapy.exceptions import ClusterScrapyError, FrontierError, FrontierUnavailable
from clusterscrapy.frontier import (
    Ack,
    Batch,
    CrawlEnded,
    Delivery,
    Frontier,
    LeaseLost,
    Push,
    Reply,
    StartDone,
    Terms,
    key_of,
    open_store,
)
from clusterscrapy.frontier.courier import Courier, Limits, Listener
from clusterscrapy.frontier.sqlite import MemoryStore, SqliteSession

if TYPE_CHECKING:
    from clusterscrapy.frontier.protocol import Op


class Ear(Listener):
    def __init__(self) -> None:
        self.heard: list[str] = []
        self.errors: list[ClusterScrapyError] = []

    def answered(self, ops: list[Op], reply: Reply) -> None:
        self.heard.append("answered")

    def lost(self, why: LeaseLost) -> None:
        self.heard.append("lost")

    def gone(self, error: ClusterScrapyError) -> None:
        self.errors.append(error)

    def unreachable(self, error: FrontierUnavailable) -> None:
        self.heard.append("unreachable")

    def reachable(self, away_s: float) -> None:
        self.heard.append("reachable")


@pytest.fixture
def frontier() -> Any:
    yield open_store("memory://courier").frontier("crawl")
    MemoryStore._shared.clear()


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 20))


def push(name: str) -> Push:
    return Push(key_of(name.encode()), name.encode())


async def opened(frontier: Frontier, **limits: Any) -> tuple[Courier, Ear]:
    ear = Ear()
    courier = Courier(frontier, Terms(worker="w"), Limits(**limits), ear)
    await courier.open(1)
    return courier, ear


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - what is waited for has no event
        await asyncio.sleep(0.005)


async def taken(courier: Courier) -> Delivery:
    await until(lambda: courier.buffer)
    delivery = courier.next()
    assert delivery is not None
    return delivery


def test_what_is_pushed_comes_back_as_a_lease(frontier: Frontier) -> None:
    async def test() -> None:
        courier, _ = await opened(frontier)
        courier.push(push("a"))
        assert (await taken(courier)).payload == b"a"
        await courier.close(finished=False, timeout_s=5)

    run(test)


def test_known_pages_are_answered_without_the_store(frontier: Frontier) -> None:
    async def test() -> None:
        courier, _ = await opened(frontier)
        assert not courier.knows(push("a").key)
        courier.push(push("a"))
        assert courier.knows(push("a").key)
        await until(lambda: courier.buffer)
        assert courier.knows(push("a").key)
        await courier.close(finished=False, timeout_s=5)

    run(test)


def test_the_local_memory_is_bounded(frontier: Frontier) -> None:
    async def test() -> None:
        courier, _ = await opened(frontier, seen_memory=10, prefetch=1)
        for number in range(50):
            courier.push(push(str(number)))
        await until(lambda: courier.reply.waiting == 49)
        assert len(courier._known._keys) <= 10
        assert courier.knows(push("49").key)
        assert not courier.knows(push("0").key)
        await courier.close(finished=False, timeout_s=5)

    run(test)


def test_a_crawl_is_over_only_when_all_is_flushed_and_acknowledged(frontier: Frontier) -> None:
    async def test() -> None:
        courier, _ = await opened(frontier)
        courier.claim_start = True
        courier.push(push("a"))
        courier.tell(StartDone())
        delivery = await taken(courier)
        assert not courier.over
        courier.tell(Ack(delivery.key))
        assert not courier.over
        await until(lambda: courier.over)
        await courier.close(finished=True, timeout_s=5)
        assert frontier.status().state == "finished"

    run(test)


def test_a_full_outbox_makes_its_writer_wait(
    frontier: Frontier, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    sync = SqliteSession.sync

    def slow(self: SqliteSession, batch: Batch) -> Reply:
        gate.wait(5)
        return sync(self, batch)

    monkeypatch.setattr(SqliteSession, "sync", slow)

    async def test() -> None:
        courier, _ = await opened(frontier, outbox=10)
        await asyncio.sleep(0.05)
        for number in range(10):
            assert not courier.full
            courier.push(push(str(number)))
        assert courier.full
        waiting = asyncio.ensure_future(courier.room())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        gate.set()
        await waiting
        await courier.close(finished=False, timeout_s=5)

    run(test)


def test_a_store_that_is_away_is_tried_again_and_nothing_is_lost(
    frontier: Frontier, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = SqliteSession.sync
    away = 3

    def failing(self: SqliteSession, batch: Batch) -> Reply:
        nonlocal away
        if away:
            away -= 1
            raise FrontierUnavailable
        return sync(self, batch)

    async def test() -> None:
        courier, ear = await opened(frontier)
        monkeypatch.setattr(SqliteSession, "sync", failing)
        courier.push(push("a"))
        await taken(courier)
        assert ear.heard[:1] == ["unreachable"]
        assert ear.heard.count("unreachable") == ear.heard.count("reachable") == 1
        await courier.close(finished=False, timeout_s=5)

    run(test)


def test_no_acknowledgement_overtakes_a_batch_that_failed(
    frontier: Frontier, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = SqliteSession.sync

    def broken(self: SqliteSession, batch: Batch) -> Reply:
        if any(isinstance(op, Push) and op.payload == b"child" for op in batch.ops):
            raise FrontierError("a bug")
        return sync(self, batch)

    async def test() -> None:
        courier, ear = await opened(frontier)
        courier.push(push("parent"))
        parent = await taken(courier)
        monkeypatch.setattr(SqliteSession, "sync", broken)
        courier.push(push("child"))
        courier.tell(Ack(parent.key))
        await until(lambda: ear.errors)
        courier.tell(Ack(parent.key))
        await courier.close(finished=False, timeout_s=5)

    run(test)
    status = frontier.status()
    assert (status.waiting, status.done) == (1, 0)


def test_a_worker_taken_for_dead_keeps_its_children_and_drops_its_leases(
    frontier: Frontier,
) -> None:
    async def test() -> None:
        courier, ear = await opened(frontier)
        courier.push(push("parent"))
        parent = await taken(courier)
        assert courier.session is not None
        courier.session.lapse()
        courier.push(push("child"))
        courier.tell(Ack(parent.key))
        await until(lambda: "lost" in ear.heard)
        got = {(await taken(courier)).payload, (await taken(courier)).payload}
        assert got == {b"parent", b"child"}
        await courier.close(finished=False, timeout_s=5)

    run(test)


def test_a_worker_that_asked_to_start_afresh_never_wipes_the_crawl_when_it_comes_back(
    frontier: Frontier,
) -> None:
    async def test() -> None:
        ear = Ear()
        courier = Courier(frontier, replace(Terms(), resume=False), Limits(prefetch=1), ear)
        await courier.open(1)
        for name in "abc":
            courier.push(push(name))
        await taken(courier)
        assert courier.session is not None
        courier.session.lapse()
        courier.hurry()
        await until(lambda: "lost" in ear.heard)
        await until(lambda: courier.reply.waiting + len(courier.buffer) == 3)
        await courier.close(finished=False, timeout_s=5)
        assert frontier.status().run == 1

    run(test)


def test_a_worker_that_slept_through_the_end_is_told_so(frontier: Frontier) -> None:
    async def test() -> None:
        courier, ear = await opened(frontier)
        assert courier.session is not None
        courier.session.lapse()
        other = frontier.join(Terms(worker="other"))
        other.sync(Batch([StartDone()], claim_start=True))
        assert other.finish()
        other.leave()
        courier.hurry()
        await until(lambda: ear.errors)
        assert isinstance(ear.errors[0], CrawlEnded)
        await courier.close(finished=True, timeout_s=5)
        assert frontier.status().run == 1

    run(test)


def test_waiting_for_news_does_not_hammer_the_store(
    frontier: Frontier, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    sync = SqliteSession.sync

    def counted(self: SqliteSession, batch: Batch) -> Reply:
        nonlocal calls
        calls += 1
        return sync(self, batch)

    async def test() -> None:
        frontier.join(Terms(worker="owner")).sync(Batch(claim_start=True))
        courier, _ = await opened(frontier)
        monkeypatch.setattr(SqliteSession, "sync", counted)
        courier.claim_start = True
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            await courier.news()
        assert courier.reply.start == "theirs"
        assert calls < 15
        await courier.close(finished=False, timeout_s=5)

    run(test)


def test_a_hung_loop_gives_its_leases_away(frontier: Frontier) -> None:
    async def test() -> None:
        courier, ear = await opened(frontier, heartbeat_s=0.05, stall_s=0.2)
        courier.push(push("a"))
        await taken(courier)
        time.sleep(0.6)  # noqa: ASYNC251 - the loop is to hang
        other = frontier.join(Terms(worker="other"))
        assert other.sync(Batch(want=1)).taken
        courier.hurry()
        await until(lambda: "lost" in ear.heard)
        await courier.close(finished=False, timeout_s=5)

    run(test)


def test_closing_hands_the_buffer_back(frontier: Frontier) -> None:
    async def test() -> None:
        courier, _ = await opened(frontier)
        for name in "abc":
            courier.push(push(name))
        await until(lambda: len(courier.buffer) == 3)
        assert await courier.close(finished=False, timeout_s=5)
        status = frontier.status()
        assert (status.waiting, status.leased, len(status.workers)) == (3, 0, 0)

    run(test)
