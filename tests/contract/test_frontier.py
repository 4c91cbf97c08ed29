"""One suite over all frontiers: what a worker and a person may rely on."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from clusterscrapy.exceptions import FrontierError
from clusterscrapy.frontier import (
    Ack,
    Batch,
    Bury,
    CrawlGone,
    Fail,
    Filter,
    Frontier,
    LeaseLost,
    Push,
    Release,
    Reply,
    Scheme,
    SchemeMismatch,
    Session,
    StartDone,
    key_of,
)
from tests.contract.conftest import LEASE_S

Join = Callable[..., Session]


def push(name: str, priority: int = 0, **rest: object) -> Push:
    return Push(key_of(name.encode()), name.encode(), priority, **rest)  # type: ignore[arg-type]


def pushes(names: str) -> list[Push]:
    return [push(name) for name in names]


def take(session: Session, want: int = 100) -> list[str]:
    return names(session.sync(Batch(want=want)))


def names(reply: Reply) -> list[str]:
    return [delivery.payload.decode() for delivery in reply.taken]


def die(session: Session) -> None:
    """As after ``kill -9``: no word to anybody, and the time a lease takes to end."""
    session.lapse()
    time.sleep(LEASE_S + 0.1)


def until_taken(session: Session, count: int = 1, within_s: float = 5.0) -> list[str]:
    """Take until so many are there, or the time is over."""
    deadline = time.monotonic() + within_s
    taken = take(session)
    while len(taken) < count and time.monotonic() < deadline:
        time.sleep(0.05)
        taken += take(session)
    return taken


def started(session: Session, *ops: Push) -> Reply:
    """Run a ``start()`` that yields these."""
    session.sync(Batch(claim_start=True))
    return session.sync(Batch([*ops, StartDone()]))


# --- queue ---------------------------------------------------------------------------


def test_requests_of_one_priority_come_in_the_order_they_were_pushed(join: Join) -> None:
    session = join()
    session.sync(Batch(pushes("zyxwvu")))
    assert take(session) == list("zyxwvu")


def test_lifo_takes_the_newest_first(join: Join) -> None:
    session = join(order="lifo")
    session.sync(Batch(pushes("abc")))
    assert take(session) == list("cba")


def test_a_higher_priority_comes_first_whatever_its_size(join: Join) -> None:
    session = join()
    session.sync(
        Batch(
            [push("low", -5), push("high", 2**53 - 1), push("mid", 1), push("lowest", -(2**53) + 1)]
        )
    )
    assert take(session) == ["high", "mid", "low", "lowest"]


def test_a_batch_pushes_and_takes_in_one_step(join: Join) -> None:
    assert names(join().sync(Batch(pushes("ab"), want=1))) == ["a"]


def test_taking_honours_the_number_wanted(join: Join) -> None:
    session = join()
    session.sync(Batch(pushes("abcdef")))
    assert take(session, 2) == ["a", "b"]
    assert take(session, 0) == []
    assert take(session, 3) == ["c", "d", "e"]


def test_thousands_of_operations_fit_one_batch(join: Join) -> None:
    session = join()
    reply = session.sync(Batch([push(str(i), i % 7) for i in range(5_000)], want=5_000))
    assert sum(reply.queued) == len(reply.taken) == 5_000
    reply = session.sync(Batch([Ack(delivery.key) for delivery in reply.taken]))
    assert (reply.waiting, reply.leased, reply.late) == (0, 0, 0)


def test_payloads_are_bytes_of_any_kind(join: Join) -> None:
    session = join()
    payload = bytes(range(256)) * 300
    session.sync(Batch([Push(b"k" * 16, payload)]))
    assert session.sync(Batch(want=1)).taken[0].payload == payload


# --- dupe filter ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bloom", "exact"])
def test_a_key_is_queued_once(join: Join, kind: str) -> None:
    session = join(filter=Filter(kind))
    assert session.sync(Batch(pushes("aba"))).queued == [True, True, False]
    assert session.sync(Batch(pushes("ac"))).queued == [False, True]
    assert take(session) == ["a", "b", "c"]


@pytest.mark.parametrize("kind", ["bloom", "exact"])
def test_a_key_stays_known_when_its_page_is_done(join: Join, kind: str) -> None:
    session = join(filter=Filter(kind))
    [delivery] = session.sync(Batch(pushes("a"), want=1)).taken
    assert session.sync(Batch([Ack(delivery.key), push("a")])).queued == [False]


def test_without_a_filter_everything_is_queued(join: Join) -> None:
    session = join(filter=Filter("none"))
    session.sync(Batch([push("a"), push("a")._replace(key=b"2" * 16)]))
    assert take(session) == ["a", "a"]


def test_unfiltered_requests_are_kept_apart(join: Join) -> None:
    session = join()
    twice = [push("a", filtered=False), push("a", filtered=False)._replace(key=b"2" * 16)]
    assert session.sync(Batch(twice)).queued == [True, True]
    assert take(session) == ["a", "a"]


def test_an_unfiltered_request_does_not_mark_its_page_as_seen(join: Join) -> None:
    assert join().sync(Batch([push("a", filtered=False), push("a")])).queued == [True, True]


def test_a_bloom_filter_grows_past_its_capacity_and_keeps_its_promise(join: Join) -> None:
    session = join(filter=Filter("bloom", capacity=500, error_rate=0.01))
    fresh = sum(
        sum(session.sync(Batch([push(f"{i}-{j}") for j in range(500)])).queued) for i in range(20)
    )
    assert 10_000 * (1 - 0.015) <= fresh <= 10_000
    again = session.sync(Batch([push(f"7-{j}") for j in range(500)])).queued
    assert not any(again)


# --- leases -----------------------------------------------------------------------------


def test_an_acknowledged_page_is_done(join: Join, frontier: Frontier) -> None:
    session = join()
    [delivery] = session.sync(Batch(pushes("a"), want=1)).taken
    reply = session.sync(Batch([Ack(delivery.key)]))
    assert (reply.waiting, reply.leased, frontier.status().done) == (0, 0, 1)


def test_two_workers_never_hold_the_same_page(join: Join) -> None:
    one, two = join("one"), join("two")
    one.sync(Batch(pushes("abcd")))
    assert sorted(take(one, 2) + take(two, 9) + take(one, 9)) == list("abcd")


def test_a_released_page_goes_to_the_front(join: Join) -> None:
    session = join()
    [first, _second] = session.sync(Batch(pushes("abc"), want=2)).taken
    session.sync(Batch([Release(first.key)]))
    assert take(session) == ["a", "c"]


def test_a_dead_workers_pages_go_to_others(join: Join) -> None:
    one, two = join("one"), join("two")
    one.sync(Batch(pushes("ab"), want=2))
    two.beat()
    assert take(two) == []
    one.lapse()
    for _ in range(5):
        time.sleep(LEASE_S / 4)
        two.beat()
    assert sorted(until_taken(two, 2)) == ["a", "b"]


def test_a_living_workers_pages_stay_with_it(join: Join) -> None:
    one, two = join("one"), join("two")
    one.sync(Batch(pushes("ab"), want=2))
    for _ in range(6):
        time.sleep(LEASE_S / 3)
        assert one.beat()
        assert take(two) == []


def test_a_worker_that_comes_back_alone_gets_what_the_dead_one_held(join: Join) -> None:
    one = join("one")
    one.sync(Batch(pushes("abc"), want=2))
    die(one)
    assert sorted(until_taken(join("two"), 3)) == ["a", "b", "c"]


def test_a_late_acknowledgement_changes_nothing(join: Join, frontier: Frontier) -> None:
    one, two = join("one"), join("two")
    [delivery] = one.sync(Batch(pushes("a"), want=1)).taken
    one.lapse()
    for _ in range(5):
        time.sleep(LEASE_S / 4)
        two.beat()
    assert until_taken(two) == ["a"]
    with pytest.raises(LeaseLost):
        one.sync(Batch([Ack(delivery.key)]))
    assert (frontier.status().leased, frontier.status().done) == (1, 0)


def test_an_acknowledgement_of_somebody_elses_page_changes_nothing(join: Join) -> None:
    one, two = join("one"), join("two")
    [delivery] = one.sync(Batch(pushes("a"), want=1)).taken
    reply = two.sync(
        Batch([Ack(delivery.key), Release(delivery.key), Fail(delivery.key, "r", "d")])
    )
    assert (reply.late, reply.leased, reply.waiting) == (3, 1, 0)


def test_nothing_of_a_lost_workers_batch_is_applied(join: Join) -> None:
    one, two = join("one"), join("two")
    one.lapse()
    for _ in range(6):
        time.sleep(LEASE_S / 3)
        two.sync(Batch())
    with pytest.raises(LeaseLost):
        one.sync(Batch(pushes("a")))
    assert take(two) == []


def test_leaving_hands_everything_back(join: Join, frontier: Frontier) -> None:
    one = join("one")
    one.sync(Batch(pushes("abc"), want=2))
    assert one.leave() == 2
    status = frontier.status()
    assert (status.waiting, status.leased, len(status.workers)) == (3, 0, 0)
    assert sorted(take(join("two"))) == ["a", "b", "c"]


def test_a_page_that_was_handed_back_has_no_deaths(join: Join) -> None:
    one = join("one")
    [delivery] = one.sync(Batch(pushes("a"), want=1)).taken
    one.sync(Batch(entered=[delivery.key]))
    one.leave()
    assert join("two").sync(Batch(want=1)).taken[0].deaths == 0


def test_only_pages_inside_the_engine_are_blamed_for_a_death(join: Join) -> None:
    one = join("one")
    [inside, _buffered] = one.sync(Batch(pushes("ab"), want=2)).taken
    one.sync(Batch(entered=[inside.key]))
    die(one)
    two = join("two")
    deadline = time.monotonic() + 5
    taken = list(two.sync(Batch(want=9)).taken)
    while len(taken) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
        taken += two.sync(Batch(want=9)).taken
    assert {d.payload: d.deaths for d in taken} == {b"a": 1, b"b": 0}


def test_a_page_that_kills_its_workers_becomes_a_dead_letter(
    join: Join, frontier: Frontier
) -> None:
    join("zero").sync(Batch(pushes("a")))
    for number in range(3):
        session = join(str(number), max_deliveries=3)
        assert until_taken(session) == ["a"]
        die(session)
    session = join("last", max_deliveries=3)
    assert until_taken(session, within_s=1) == []
    [letter] = frontier.dead_letters()
    assert (letter.reason, letter.deaths, letter.payload) == ("poison", 3, b"a")


def test_a_hungry_worker_gets_an_even_part(join: Join) -> None:
    one, two = join("one"), join("two")
    one.sync(Batch(pushes("abcdefgh"), want=8))
    assert take(two) == []
    reply = one.sync(Batch(want=5))
    assert reply.hungry
    held = [key_of(name.encode()) for name in "efgh"]
    assert not one.sync(Batch([Release(key) for key in held], want=8)).taken
    assert sorted(take(two)) == list("efgh")


# --- a reply that got lost ------------------------------------------------------------------


def test_a_call_that_is_repeated_is_applied_once(redis_url: str) -> None:
    from clusterscrapy.frontier import Terms, open_store
    from clusterscrapy.frontier.redis import RedisSession

    session = open_store(redis_url).frontier("crawl").join(Terms())
    assert isinstance(session, RedisSession)
    batch = Batch([*pushes("abc"), push("d", filtered=False)], want=2)
    first = session.sync(batch)
    session._sequence -= 1  # as if the answer had not arrived
    assert session.sync(batch) == first
    assert take(session) == ["c", "d"]


# --- the end ---------------------------------------------------------------------------------


def test_a_crawl_is_not_over_before_start_is_done(join: Join) -> None:
    one = join()
    assert one.sync(Batch(claim_start=True)).start == "mine"
    assert not one.sync(Batch()).over
    assert one.sync(Batch([StartDone()])).over


def test_a_crawl_is_not_over_while_somebody_holds_a_page(join: Join) -> None:
    one, two = join("one"), join("two")
    started(one, push("a"))
    [delivery] = two.sync(Batch(want=1)).taken
    assert not one.sync(Batch(want=9)).over
    assert two.sync(Batch([Ack(delivery.key)])).over
    assert one.sync(Batch(want=9)).over


def test_only_a_crawl_that_is_over_can_be_finished(join: Join, frontier: Frontier) -> None:
    session = join()
    started(session, push("a"))
    assert not session.finish()
    [delivery] = session.sync(Batch(want=1)).taken
    assert not session.finish()
    session.sync(Batch([Ack(delivery.key)]))
    assert session.finish()
    assert frontier.status().state == "finished"


def test_one_worker_runs_start(join: Join) -> None:
    one, two = join("one"), join("two")
    assert one.sync(Batch(claim_start=True)).start == "mine"
    assert two.sync(Batch(claim_start=True)).start == "theirs"
    one.sync(Batch([StartDone()]))
    assert two.sync(Batch(claim_start=True)).start == "done"


def test_start_of_a_dead_worker_is_run_by_another(join: Join) -> None:
    one = join("one")
    one.sync(Batch([push("s0", filtered=False, start=0), push("s1")], claim_start=True))
    one.sync(Batch([push("s2", filtered=False, start=2)]))
    die(one)
    two = join("two")
    deadline = time.monotonic() + 5
    while (
        start := two.sync(Batch(claim_start=True)).start
    ) != "mine" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert start == "mine"
    again = [push("s0", filtered=False, start=0), push("s1"), push("s2", filtered=False, start=2)]
    more = push("s3", filtered=False, start=3)
    assert two.sync(Batch([*again, more, StartDone()])).queued == [False, False, False, True]


def test_only_its_owner_ends_start(join: Join) -> None:
    one, two = join("one"), join("two")
    one.sync(Batch(claim_start=True))
    assert two.sync(Batch([StartDone()])).start == "theirs"


def test_start_that_raised_is_due_again_in_the_next_run_of_a_worker(join: Join) -> None:
    one = join("one")
    one.sync(Batch(claim_start=True))
    assert one.sync(Batch([StartDone(failed=True)])).start == "failed"
    assert not one.finish()
    one.leave()
    assert join("two").sync(Batch(claim_start=True)).start == "mine"


def test_a_late_worker_of_a_named_crawl_finds_it_finished_for_ever(join: Join) -> None:
    session = join(explicit=True, hold_s=0)
    started(session)
    session.finish()
    session.leave()
    assert join(explicit=True, hold_s=0).opening.late


def test_without_a_name_finished_holds_for_a_while_then_a_new_run_begins(join: Join) -> None:
    session = join()
    started(session, push("a"))
    session.sync(Batch([Ack(d.key) for d in session.sync(Batch(want=1)).taken]))
    session.finish()
    session.leave()
    assert join(hold_s=60).opening.late
    time.sleep(0.01)
    again = join(hold_s=0.005)
    assert again.opening.fresh
    assert again.opening.run == session.opening.run + 1
    assert again.sync(Batch(pushes("a"))).queued == [True]


def test_an_unfinished_crawl_is_resumed(join: Join) -> None:
    one = join("one")
    one.sync(Batch(pushes("abc"), want=1))
    one.leave()
    opening = join("two").opening
    assert (opening.fresh, opening.late, opening.waiting) == (False, False, 3)


def test_without_resume_an_unfinished_crawl_begins_anew(join: Join) -> None:
    one = join("one")
    one.sync(Batch(pushes("abc"), want=1))
    one.leave()
    two = join("two", resume=False)
    assert two.opening.fresh
    assert two.sync(Batch(pushes("a"))).queued == [True]


def test_without_resume_a_crawl_with_live_workers_is_joined(join: Join) -> None:
    join("one").sync(Batch(pushes("abc")))
    two = join("two", resume=False)
    assert not two.opening.fresh
    assert take(two) == ["a", "b", "c"]


def test_a_crawl_that_ended_unmarked_counts_as_finished(join: Join) -> None:
    one = join("one")
    started(one)
    die(one)
    two = join("two", explicit=True)
    assert two.opening.late or two.sync(Batch(want=1)).over


def test_another_fingerprint_scheme_is_refused_with_a_sentence(join: Join) -> None:
    join("one", scheme=Scheme("a", "w3lib 1")).sync(Batch(pushes("a")))
    with pytest.raises(SchemeMismatch, match=r"fingerprint scheme mismatch.*w3lib 1.*w3lib 2"):
        join("two", scheme=Scheme("b", "w3lib 2"))


def test_the_filter_of_the_first_worker_stays_and_others_are_told(join: Join) -> None:
    join("one", filter=Filter("exact"))
    [note] = join("two", filter=Filter("none")).opening.notes
    assert "CLUSTER_DUPEFILTER=none is ignored" in note


# --- people --------------------------------------------------------------------------------------


def test_status_counts(join: Join, frontier: Frontier) -> None:
    session = join("me")
    taken = session.sync(Batch(pushes("abcd"), want=3)).taken
    session.sync(Batch([Ack(taken[0].key), Fail(taken[1].key, "callback", "ValueError: x")]))
    status = frontier.status()
    assert (status.waiting, status.leased, status.done, status.dead, status.seen) == (1, 1, 1, 1, 4)
    assert (status.state, [w.name for w in status.workers]) == ("running", ["me"])
    assert status.workers[0].leased == 1


def test_states_of_a_crawl(join: Join, frontier: Frontier) -> None:
    session = join()
    session.sync(Batch(pushes("a")))
    assert frontier.status().state == "running"
    frontier.pause()
    assert frontier.status().state == "paused"
    frontier.pause(False)
    session.leave()
    assert frontier.status().state == "stopped"


def test_a_paused_crawl_gives_nothing_and_is_not_over(join: Join, frontier: Frontier) -> None:
    session = join()
    started(session, push("a"))
    frontier.pause()
    reply = session.sync(Batch(want=9))
    assert (reply.paused, reply.taken, reply.over) == (True, [], False) or not reply.taken
    frontier.pause(False)
    assert take(session) == ["a"]


def test_why_tells_every_state(join: Join, frontier: Frontier) -> None:
    session = join("me")
    taken = session.sync(Batch(pushes("abcd"), want=3)).taken
    session.sync(Batch([Ack(taken[0].key), Fail(taken[1].key, "callback", "ValueError: x")]))
    states = {name: frontier.why(key_of(name.encode()), name) for name in "abcdz"}
    assert {name: standing.state for name, standing in states.items()} == {
        "a": "done",
        "b": "dead",
        "c": "leased",
        "d": "waiting",
        "z": "never seen",
    }
    assert "ValueError: x" in states["b"].detail
    assert "me" in states["c"].detail


def test_a_crawl_with_live_workers_is_dropped_only_by_force(join: Join, frontier: Frontier) -> None:
    session = join("me")
    session.sync(Batch(pushes("abc")))
    with pytest.raises(FrontierError, match="me"):
        frontier.drop()
    frontier.drop(force=True)
    with pytest.raises(CrawlGone):
        session.sync(Batch(want=1))
    fresh = join("new")
    assert fresh.opening.fresh
    assert fresh.sync(Batch(pushes("a"))).queued == [True]


def test_a_dropped_crawl_leaves_nothing(join: Join, frontier: Frontier) -> None:
    session = join()
    [delivery] = session.sync(Batch(pushes("a"), want=1)).taken
    session.sync(Batch([Fail(delivery.key, "callback", "x")]))
    session.leave()
    frontier.drop()
    assert list(frontier.dead_letters()) == []
    assert join().opening.fresh


def test_a_failed_page_is_kept_with_its_reason(join: Join, frontier: Frontier) -> None:
    session = join("me")
    [delivery] = session.sync(Batch(pushes("a"), want=1)).taken
    session.sync(Batch([Fail(delivery.key, "download", "TimeoutError: \udcff")]))
    [letter] = frontier.dead_letters()
    assert (letter.payload, letter.reason, letter.worker) == (b"a", "download", "me")
    assert letter.detail.startswith("TimeoutError")


def test_something_that_never_was_queued_can_be_kept(join: Join, frontier: Frontier) -> None:
    join().sync(Batch([Bury(b"k" * 16, b"", "unserializable", "why"), push("a")]))
    [letter] = frontier.dead_letters()
    assert (letter.reason, letter.detail) == ("unserializable", "why")
    assert frontier.replay() == 0


def test_a_replayed_dead_letter_is_fetched_again(join: Join, frontier: Frontier) -> None:
    session = join()
    [delivery] = session.sync(Batch(pushes("a"), want=1)).taken
    session.sync(Batch([Fail(delivery.key, "download", "x")]))
    assert frontier.replay() == 1
    assert list(frontier.dead_letters()) == []
    assert take(session) == ["a"]


def test_replay_can_be_limited_to_some(join: Join, frontier: Frontier) -> None:
    session = join()
    taken = session.sync(Batch(pushes("ab"), want=2)).taken
    session.sync(Batch([Fail(d.key, "download", "x") for d in taken]))
    assert frontier.replay([taken[1].key]) == 1
    assert take(session) == ["b"]


def test_replay_opens_a_finished_crawl_with_its_memory(join: Join, frontier: Frontier) -> None:
    session = join(explicit=True)
    started(session, push("a"), push("b"))
    taken = session.sync(Batch(want=2)).taken
    session.sync(Batch([Ack(taken[0].key), Fail(taken[1].key, "download", "x")]))
    assert session.finish()
    session.leave()
    frontier.replay()
    again = join(explicit=True)
    assert not again.opening.late
    assert again.sync(Batch([push("a"), push("b")])).queued == [False, False]
    assert take(again) == ["b"]


def test_dead_letters_outlive_the_run_they_come_from(join: Join, frontier: Frontier) -> None:
    session = join()
    [delivery] = session.sync(Batch(pushes("a"), want=1)).taken
    session.sync(Batch([Fail(delivery.key, "download", "x")]))
    session.leave()
    join(resume=False)
    assert frontier.status().dead == 0
    assert [letter.run for letter in frontier.dead_letters()] == [session.opening.run]


def test_a_finished_crawl_drops_its_memory_unless_it_is_to_be_kept(
    join: Join, frontier: Frontier
) -> None:
    session = join(keep=True)
    started(session, push("a"))
    session.sync(Batch([Ack(d.key) for d in session.sync(Batch(want=1)).taken]))
    session.finish()
    assert frontier.why(key_of(b"a"), "a").state == "done"
    session.leave()
    session = join(resume=False)
    started(session, push("a"))
    session.sync(Batch([Ack(d.key) for d in session.sync(Batch(want=1)).taken]))
    other = join()
    session.finish()
    session.leave()
    assert frontier.why(key_of(b"a"), "a").state == "done", "somebody is still here"
    other.leave()
    assert frontier.why(key_of(b"a"), "a").state == "forgotten"
