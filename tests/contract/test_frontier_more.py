"""More that every frontier, and the courier on it, is held to: each was worth a planted fault."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from clusterscrapy.frontier import (
    Ack,
    Batch,
    Bounds,
    Bury,
    Delivery,
    Fail,
    Frontier,
    Push,
    Release,
    Session,
    StartDone,
    Terms,
    key_of,
    open_store,
)
from clusterscrapy.frontier.courier import BATCH_OPS, Courier, Limits, Listener
from tests.contract.conftest import LEASE_S

Join = Callable[..., Session]


def push(name: str, **rest: object) -> Push:
    return Push(key_of(name.encode()), name.encode(), **rest)  # type: ignore[arg-type]


def pushes(names: str) -> list[Push]:
    return [push(name) for name in names]


def take(session: Session, want: int = 100) -> list[str]:
    return [delivery.payload.decode() for delivery in session.sync(Batch(want=want)).taken]


def die(session: Session) -> None:
    session.lapse()
    time.sleep(LEASE_S + 0.1)


def deliveries(session: Session, count: int, within_s: float = 5.0) -> list[Delivery]:
    """Take until so many are there, or the time is over."""
    deadline = time.monotonic() + within_s
    taken = list(session.sync(Batch(want=9)).taken)
    while len(taken) < count and time.monotonic() < deadline:
        time.sleep(0.05)
        taken += session.sync(Batch(want=9)).taken
    return taken


# --- queue and leases --------------------------------------------------------------------


def test_who_joins_knows_whether_anything_was_handed_out(join: Join) -> None:
    session = join()
    session.sync(Batch([*pushes("ab"), Bury(key_of(b"x"), b"x", "seed", "bad")]))
    assert not join().opening.touched
    assert session.sync(Batch(want=1)).taken
    assert join().opening.touched


def test_who_joins_knows_that_start_was_begun(join: Join) -> None:
    session = join()
    assert not join().opening.touched
    session.sync(Batch(claim_start=True))
    assert join().opening.touched


def test_a_batch_that_fails_leaves_no_trace(join: Join) -> None:
    session = join()
    broken = push("b")._replace(payload=object())  # type: ignore[arg-type]
    with pytest.raises(Exception, match="object"):
        session.sync(Batch([push("a"), broken]))
    assert session.sync(Batch(pushes("a"))).queued == [True]
    assert take(session) == ["a"]


def test_released_pages_keep_their_order(join: Join) -> None:
    session = join()
    taken = session.sync(Batch(pushes("abcdef"), want=4)).taken
    # As the courier does it: from the end of its buffer.
    session.sync(Batch([Release(delivery.key) for delivery in reversed(taken)]))
    assert take(session) == list("abcdef")


def test_a_released_page_goes_to_the_front_of_a_lifo_queue_too(join: Join) -> None:
    session = join(order="lifo")
    [first, _second] = session.sync(Batch(pushes("abc"), want=2)).taken
    session.sync(Batch([Release(first.key)]))
    assert take(session) == ["c", "a"]


def test_deaths_stay_with_a_page_that_is_handed_back(join: Join) -> None:
    one = join("one")
    [delivery] = one.sync(Batch(pushes("a"), want=1)).taken
    one.sync(Batch(entered=[delivery.key]))
    die(one)
    two = join("two")
    [delivery] = deliveries(two, 1)
    two.sync(Batch([Release(delivery.key)]))
    [delivery] = deliveries(two, 1)
    two.leave()
    assert [d.deaths for d in deliveries(join("three"), 1)] == [1]


def test_nobody_is_taken_for_dead_right_after_an_outage(join: Join) -> None:
    one, two = join("one"), join("two")
    one.sync(Batch(pushes("ab"), want=2))
    time.sleep(LEASE_S + 0.2)  # the store is away: nobody can beat
    assert take(two) == []
    assert one.sync(Batch()).leased == 2


def test_start_of_a_worker_that_left_is_run_by_another(join: Join) -> None:
    one, two = join("one"), join("two")
    one.sync(Batch(claim_start=True))
    one.leave()
    assert two.sync(Batch(claim_start=True)).start == "mine"


def test_an_old_runs_dead_letter_can_be_replayed_beside_the_same_page(
    join: Join, frontier: Frontier
) -> None:
    session = join()
    [delivery] = session.sync(Batch(pushes("a"), want=1)).taken
    session.sync(Batch([Fail(delivery.key, "download", "x")]))
    session.leave()
    session = join(resume=False)
    session.sync(Batch([push("a"), StartDone()], claim_start=True))
    frontier.replay()
    for _ in range(4):
        taken = session.sync(Batch(want=9)).taken
        reply = session.sync(Batch([Ack(delivery.key) for delivery in taken]))
    assert (reply.waiting, reply.leased) == (0, 0)
    assert reply.over


# --- the courier -------------------------------------------------------------------------


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 20))


async def opened(store_url: str, **limits: Any) -> Courier:
    frontier = open_store(store_url).frontier("crawl")
    courier = Courier(frontier, Terms(worker="me", lease_s=LEASE_S), Limits(**limits), Listener())
    await courier.open(1)
    return courier


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - what is waited for has no event
        await asyncio.sleep(0.005)


def test_a_page_with_more_links_than_a_batch_is_acknowledged_after_them(
    store_url: str, frontier: Frontier
) -> None:
    async def test() -> None:
        courier = await opened(store_url, prefetch=1, heartbeat_s=0.1)
        courier.push(push("parent"))
        await until(lambda: courier.buffer)
        parent = courier.next()
        assert parent is not None
        for number in range(BATCH_OPS + 10):
            courier.push(push(str(number)))
        courier.tell(Ack(parent.key))
        done_at = []
        while courier.reply.waiting + len(courier.buffer) < BATCH_OPS + 10:
            await courier.news()
            done_at.append((frontier.status().done, courier.reply.waiting + len(courier.buffer)))
        assert all(not done or stored == BATCH_OPS + 10 for done, stored in done_at)
        await courier.close(finished=False, timeout_s=5)

    run(test)


def test_a_crawl_is_not_over_while_something_waits_in_the_outbox(store_url: str) -> None:
    async def test() -> None:
        courier = await opened(store_url)
        courier.claim_start = True
        courier.tell(StartDone())
        await until(lambda: courier.over)
        courier.push(push("from an idle handler"))
        assert not courier.over
        await courier.close(finished=False, timeout_s=5)

    run(test)


def test_the_store_learns_which_pages_are_inside_the_engine(store_url: str, join: Join) -> None:
    async def test() -> None:
        courier = await opened(store_url)
        courier.push(push("a"))
        courier.push(push("b"))
        await until(lambda: len(courier.buffer) == 2)
        courier.next()
        await courier.news()
        await courier.news()
        assert courier.session is not None
        courier._heart.stop()
        courier.session.lapse()
        courier._closed = True  # it says no more

    run(test)
    time.sleep(LEASE_S + 0.1)
    assert {d.payload: d.deaths for d in deliveries(join("other"), 2)} == {b"a": 1, b"b": 0}


def test_a_worker_with_a_full_buffer_gives_half_to_a_hungry_one(store_url: str, join: Join) -> None:
    async def test() -> None:
        courier = await opened(store_url, heartbeat_s=0.1)
        for name in "abcdefgh":
            courier.push(push(name))
        await until(lambda: len(courier.buffer) == 8)
        other = join("other")
        got: list[str] = []
        deadline = time.monotonic() + 3
        while not got and time.monotonic() < deadline:
            got = await asyncio.to_thread(take, other)
            await asyncio.sleep(0.1)
        assert len(got) == 4
        await courier.close(finished=False, timeout_s=5)

    run(test)


def test_a_worker_taken_for_dead_gives_out_nothing_of_what_it_held(store_url: str) -> None:
    async def test() -> None:
        courier = await opened(store_url)
        for name in "abc":
            courier.push(push(name))
        await until(lambda: len(courier.buffer) == 3)
        courier.limits = Limits(prefetch=0)
        first = courier.session
        assert first is not None
        first.leave()  # as if declared dead: its leases are in the queue again
        courier.hurry()
        await until(lambda: courier.session is not first)
        assert not courier.buffer
        await courier.close(finished=False, timeout_s=5)

    run(test)


def test_a_worker_with_nothing_to_say_stays_alive(store_url: str, join: Join) -> None:
    async def test() -> None:
        courier = await opened(store_url, heartbeat_s=LEASE_S / 4)
        courier.push(push("a"))
        await until(lambda: courier.buffer)
        assert courier._timer is not None
        courier._timer.cancel()  # a long callback: the loop turns, and nothing is sent
        other = join("other")
        for _ in range(8):
            await asyncio.sleep(LEASE_S / 4)
            assert await asyncio.to_thread(take, other) == []
        courier._due_at = float("inf")
        await courier.close(finished=False, timeout_s=5)

    run(test)


def test_a_worker_does_not_remember_what_somebody_had_forgotten(
    store_url: str, frontier: Frontier
) -> None:
    async def test() -> None:
        courier = await opened(store_url, heartbeat_s=0.1)
        courier.push(push("a"))
        await until(lambda: courier.buffer)
        delivery = courier.next()
        assert delivery is not None
        courier.tell(Ack(delivery.key))
        await until(lambda: courier.idle)
        assert courier.knows(delivery.key)
        assert frontier.forget(delivery.key)
        courier.hurry()
        await until(lambda: not courier.knows(delivery.key))
        courier.push(push("a"))
        await until(lambda: courier.buffer)
        await courier.close(finished=False, timeout_s=2)

    run(test)


# --- bounds of the whole crawl ---------------------------------------------------------------


def test_no_more_pages_are_done_than_the_bound_whoever_works(join: Join) -> None:
    bounds = Bounds(pages=3)
    one, two = join(bounds=bounds), join(bounds=bounds)
    [a, b] = one.sync(Batch(pushes("abcdefgh"), want=2)).taken
    [c] = two.sync(Batch(want=9)).taken
    assert not one.sync(Batch([Ack(a.key)], want=9)).taken
    # What fails is no page that is done: another may take its place.
    [d] = one.sync(Batch([Fail(b.key, "callback", "odd")], want=9)).taken
    assert not two.sync(Batch([Ack(c.key)], want=9)).limit
    reply = one.sync(Batch([Ack(d.key)], want=9))
    assert (reply.limit, list(reply.taken), reply.waiting) == ("pages", [], 4)
    reply = two.sync(Batch(want=9))
    assert (reply.limit, list(reply.taken)) == ("pages", [])
    # A higher bound goes on.
    assert len(join(bounds=Bounds(pages=5)).sync(Batch(want=9)).taken) == 2


def test_nothing_is_handed_out_when_enough_items_were_made(join: Join, frontier: Frontier) -> None:
    bounds = Bounds(items=5)
    one, two = join(bounds=bounds), join(bounds=bounds)
    [a, _] = one.sync(Batch(pushes("abcd"), want=2)).taken
    assert not one.sync(Batch([Ack(a.key)], items=3)).limit
    reply = two.sync(Batch(items=2, want=1))
    assert (reply.limit, list(reply.taken)) == ("items", [])
    assert frontier.status().items == 5


def test_nothing_is_handed_out_when_the_time_is_over(join: Join) -> None:
    session = join(bounds=Bounds(seconds=0.4))
    assert session.sync(Batch(pushes("abcd"), want=1)).taken
    time.sleep(0.5)
    reply = session.sync(Batch(want=1))
    assert (reply.limit, list(reply.taken)) == ("seconds", [])


def test_a_new_run_counts_from_nothing(join: Join) -> None:
    session = join(bounds=Bounds(pages=1, items=1))
    [a] = session.sync(Batch(pushes("ab"), want=1)).taken
    assert session.sync(Batch([Ack(a.key)], items=1)).limit
    session.leave()
    again = join(resume=False, bounds=Bounds(pages=1, items=1))
    reply = again.sync(Batch(pushes("a"), want=1))
    assert (reply.limit, len(reply.taken)) == ("", 1)
