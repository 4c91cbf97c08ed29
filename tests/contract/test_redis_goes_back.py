"""A Redis that comes back in an older state: noticed at the next call, whatever was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import redis

from clusterscrapy.frontier import (
    Ack,
    Batch,
    LeaseLost,
    Push,
    Session,
    StartDone,
    Terms,
    WentBack,
    key_of,
    open_store,
)
from clusterscrapy.frontier.courier import Courier, Limits, Listener

Join = Callable[..., Session]


class Past:
    """What a Redis held at one moment; :meth:`restore` makes it the present."""

    def __init__(self, url: str) -> None:
        self.client = redis.Redis.from_url(url)
        self.values = {key: self.client.dump(key) for key in self.client.scan_iter()}

    def restore(self) -> None:
        self.client.flushdb()
        for key, value in self.values.items():
            self.client.restore(key, 0, value or b"")
        self.client.close()


@pytest.fixture
def store_url(redis_url: str) -> str:
    return redis_url


def push(name: str) -> Push:
    return Push(key_of(name.encode()), name.encode())


def test_a_confirmed_call_that_is_forgotten_is_noticed_and_leases_return(
    store_url: str, join: Join
) -> None:
    one = join("one")
    taken = one.sync(Batch([push("a"), push("b")], want=2)).taken
    past = Past(store_url)
    one.sync(Batch([push("child"), Ack(taken[0].key)]))
    past.restore()
    with pytest.raises(WentBack):
        one.sync(Batch([Ack(taken[1].key)]))
    two = join("two")
    reply = two.sync(Batch(want=10))
    assert {delivery.payload for delivery in reply.taken} == {b"a", b"b"}
    assert {delivery.deaths for delivery in reply.taken} == {0}


def test_a_worker_that_the_store_does_not_know_yet_notices(store_url: str, join: Join) -> None:
    join("zero").sync(Batch([push("a")]))
    past = Past(store_url)
    one = join("one")
    past.restore()
    with pytest.raises(WentBack):
        one.sync(Batch())


def test_a_worker_declared_dead_is_told_so(store_url: str, join: Join) -> None:
    one, two = join("one", lease_s=0.2), join("two", lease_s=0.2)
    one.sync(Batch([push("a")], want=1))
    for _ in range(12):
        two.sync(Batch())
        two_reply = two.sync(Batch(want=1))
        if two_reply.taken:
            break
        asyncio.run(asyncio.sleep(0.05))
    with pytest.raises(LeaseLost) as caught:
        one.sync(Batch())
    assert not isinstance(caught.value, WentBack)


def test_nothing_is_noticed_where_nothing_was_lost(store_url: str, join: Join) -> None:
    one, two = join("one"), join("two")
    one.sync(Batch([push("a")]))
    past = Past(store_url)
    two.sync(Batch([push("b")]))
    past.restore()
    assert one.sync(Batch(want=5)).taken[0].payload == b"a"


def test_an_unanswered_call_is_applied_in_the_past(store_url: str, join: Join) -> None:
    one = join("one")
    past = Past(store_url)
    batch = Batch([push("a")])
    one.sync(batch)
    past.restore()
    one._sequence -= 1  # type: ignore[attr-defined]  # as if that answer had been lost
    assert one.sync(batch).waiting == 1


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - what is waited for has no event
        await asyncio.sleep(0.005)


class Ear(Listener):
    def __init__(self) -> None:
        self.reasons: list[LeaseLost] = []

    def lost(self, why: LeaseLost) -> None:
        self.reasons.append(why)


@pytest.mark.parametrize("before", ["before the claim", "before the end of start()"])
def test_a_courier_says_everything_again(store_url: str, before: str) -> None:
    async def test() -> None:
        ear = Ear()
        frontier = open_store(store_url).frontier("crawl")
        courier = Courier(frontier, Terms(worker="w", lease_s=0.3), Limits(heartbeat_s=0.1), ear)
        await courier.open(1)
        past = Past(store_url)
        courier.claim_start = True
        courier.push(push("a"))
        await until(lambda: courier.reply.start == "mine" and courier.buffer)
        if before == "before the end of start()":
            past = Past(store_url)
        courier.push(push("b"))
        courier.tell(StartDone())
        await until(lambda: courier.reply.start == "done")
        past.restore()
        await until(lambda: ear.reasons)
        seen = set()
        while not courier.over:
            while courier.buffer and (delivery := courier.next()):
                seen.add(delivery.payload)
                courier.tell(Ack(delivery.key))
            await asyncio.sleep(0.01)
        assert seen == {b"a", b"b"}
        assert isinstance(ear.reasons[0], WentBack)
        await courier.close(finished=True, timeout_s=5)
        assert frontier.status().state == "finished"

    asyncio.run(asyncio.wait_for(test(), 20))
