"""What stores hold that nobody of us wrote: one sentence with the thing, the place and the remedy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any, cast

import pytest
import redis

from clusterscrapy.exceptions import FrontierDamaged
from clusterscrapy.frontier import (
    Batch,
    Fail,
    Push,
    Session,
    StartDone,
    Terms,
    WorkerStatus,
    key_of,
    open_store,
)
from clusterscrapy.frontier.codec import RequestCodec
from tests.chaos.crawl import Crawl
from tests.integration.conftest import SETTINGS
from tests.site.process import ROOT

pytestmark = pytest.mark.integration
CrawlOf = Callable[..., Crawl]
Ran = subprocess.CompletedProcess[str]
BASE = "clusterscrapy:{s}:"


def hands(store: str, *words: str, code: int = 0, **options: Any) -> Ran:
    result = subprocess.run(
        [sys.executable, "-m", "scrapy", "frontier", *words],
        env={**os.environ, **SETTINGS, "CLUSTER_FRONTIER_URL": store},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **options,
    )
    assert "Traceback" not in result.stderr
    assert result.returncode == code, result.stderr
    return result


def url(name: str) -> str:
    return f"http://h/{name}"


def key(name: str) -> bytes:
    from scrapy import Request
    from scrapy.utils.request import fingerprint

    return key_of(fingerprint(Request(url(name))))


def begin(store: str, crawl: str = "s") -> Session:
    """A crawl: a and b dead, c leased, d and e waiting."""
    from scrapy import Request, Spider

    codec = RequestCodec(Spider("s"))
    pushes = [Push(key(name), codec.encode(Request(url(name)))) for name in "abcde"]
    session = open_store(store).frontier(crawl).join(Terms(worker="node-1"))
    session.sync(Batch(claim_start=True))
    taken = session.sync(Batch([*pushes, StartDone()], want=3)).taken
    session.sync(Batch([Fail(d.key, "callback", "ValueError: odd") for d in taken[:2]]))
    return session


# --- Redis ---------------------------------------------------------------------------------


@pytest.fixture
def client(redis_url: str) -> redis.Redis:
    return redis.Redis.from_url(redis_url)


@pytest.fixture
def session(redis_url: str) -> Session:
    return begin(redis_url)


def _epoch(client: redis.Redis) -> str:
    return cast("list[bytes]", client.zrange(f"{BASE}workers", 0, -1))[0].decode()


def state(name: str, value: str | bytes) -> Callable[[redis.Redis], None]:
    def damage(client: redis.Redis) -> None:
        client.hset(f"{BASE}state", name, value)

    damage.__name__ = f"state {name}"
    return damage


def wrong_type(part: str) -> Callable[[redis.Redis], None]:
    def damage(client: redis.Redis) -> None:
        at = BASE + part.replace("<epoch>", _epoch(client) if "<" in part else "")
        client.delete(at)
        client.set(at, b"\xff garbage")

    damage.__name__ = f"type of {part}"
    return damage


_DAMAGES = [
    state("waiting", b"\xff\xfe"),
    state("waiting", "1e999"),
    state("lease_ms", "soon"),
    state("run", "first"),
    state("started_at", "9" * 30),
    *map(wrong_type, ("state", "workers", "infos", "priorities", "queue:0", "seen", "layers")),
    *map(wrong_type, ("dead", "dead_order", "lease:<epoch>", "failed_before", "reaped")),
]
_named = {"argvalues": _DAMAGES, "ids": lambda damage: damage.__name__.replace(" ", "-")}


@pytest.mark.parametrize("damage", **_named)  # type: ignore[arg-type]
def test_no_method_lets_a_foreign_error_out_and_drop_works(
    redis_url: str, client: redis.Redis, session: Session, damage: Callable[[redis.Redis], None]
) -> None:
    damage(client)
    frontier = open_store(redis_url).frontier("s")
    said = []
    for act in (
        frontier.status,
        lambda: frontier.why(key("z"), url("z")),
        lambda: list(frontier.dead_letters()),
        frontier.replay,
        frontier.discard,
        lambda: frontier.forget(key("d")),
        frontier.pause,
        lambda: session.sync(Batch(want=5)),
        session.beat,
        session.finish,
        session.leave,
        lambda: frontier.join(Terms()),
    ):
        try:
            act()
        except FrontierDamaged as exc:
            said.append(str(exc))
    for sentence in said:
        assert sentence.startswith("crawl s at redis://127.0.0.1:")
        assert f"{BASE}" in sentence
        assert sentence.endswith("'scrapy frontier drop s --force' removes it with all it holds")
    frontier.drop(force=True)
    assert set(client.keys(f"{BASE}*")) <= {f"{BASE}state".encode()}
    assert open_store(redis_url).names() == []
    assert frontier.join(Terms()).opening.fresh


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (state("waiting", b"\xff"), f"key {BASE}state holds '\\xff' as waiting"),
        (wrong_type("state"), f"key {BASE}state is a string, not a hash"),
        (wrong_type("workers"), f"key {BASE}workers is a string, not a zset"),
    ],
)
@pytest.mark.parametrize("action", ["status", "top"])
def test_hands_say_what_is_damaged(
    redis_url: str,
    client: redis.Redis,
    session: Session,
    damage: Callable[[redis.Redis], None],
    words: str,
    action: str,
) -> None:
    damage(client)
    assert words in hands(redis_url, action, code=8).stderr
    assert "s: dropped" in hands(redis_url, "drop", "--force").stdout


@pytest.mark.parametrize("words", [("pause",), ("why", url("d")), ("dead",), ("dead", "replay")])
def test_every_action_on_a_state_of_the_wrong_type(
    redis_url: str, client: redis.Redis, session: Session, words: tuple[str, ...]
) -> None:
    wrong_type("state")(client)
    wrong_type("dead_order")(client)
    wrong_type("priorities")(client)
    assert "is damaged: key" in hands(redis_url, *words, code=8).stderr


def test_a_damaged_crawl_does_not_hide_the_others(redis_url: str, client: redis.Redis) -> None:
    begin(redis_url)
    begin(redis_url, "t")
    state("waiting", "many")(client)
    wrong_type("priorities")(client)
    wrong_type("dead_order")(client)
    for words in (("status",), ("why", url("d")), ("dead",)):
        shown = hands(redis_url, *words, code=8)
        assert "crawl s at" in shown.stderr
        assert "t" in shown.stdout
    records = json.loads(hands(redis_url, "status", "--json", code=8).stdout)
    assert [record["crawl"] for record in records] == ["t"]


def test_a_worker_whose_info_cannot_be_read_is_shown_by_its_epoch(
    redis_url: str, client: redis.Redis, session: Session
) -> None:
    epoch = _epoch(client)
    frontier = open_store(redis_url).frontier("s")
    for info in (b"\xc1", b"\x91\xff\x00extra", b"\x92\x05\xa1x", None):
        client.hdel(f"{BASE}infos", epoch)
        if info is not None:
            client.hset(f"{BASE}infos", epoch, info)
        (worker,) = frontier.status().workers
        assert isinstance(worker, WorkerStatus)
        assert (worker.name, worker.leased) == (epoch, 1)
        assert frontier.why(key("c"), url("c")).detail.startswith(f"by {epoch} ")
    session.leave()
    assert frontier.status().waiting == 3


def test_why_goes_on_past_damaged_entries(
    redis_url: str, client: redis.Redis, session: Session
) -> None:
    client.lpush(f"{BASE}queue:0", b"", b"short", b"\x01" * 30)
    client.zadd(f"{BASE}priorities", {b"\xff": 9})
    client.hset(f"{BASE}lease:{_epoch(client)}", "x", "short")
    client.zadd(f"{BASE}workers", {b"\xff": 9})
    client.hset(f"{BASE}dead", "z" * 20, "garbage")
    client.zadd(f"{BASE}dead_order", {"z" * 20: 1})
    frontier = open_store(redis_url).frontier("s")
    stands = {name: frontier.why(key(name), url(name)).state for name in "acdz"}
    assert stands == {"a": "dead", "c": "leased", "d": "waiting", "z": "never seen"}


@pytest.mark.parametrize("letter", [b"", b"\xc1", b"\x91\x01", b"\xa3odd", b"\x9a" + b"\x01" * 10])
def test_letters_that_cannot_be_read_are_counted_and_dropped(
    redis_url: str, client: redis.Redis, session: Session, letter: bytes
) -> None:
    for field in ("z" * 20, "too short"):
        client.hset(f"{BASE}dead", field, letter)
        client.zadd(f"{BASE}dead_order", {field: 1})
    shown = hands(redis_url, "dead")
    assert shown.stdout.splitlines()[-1] == "s: 2 dead letters"
    assert "s: 2 dead letters cannot be read" in shown.stderr
    assert "dead drop --reason unreadable" in shown.stderr
    frontier = open_store(redis_url).frontier("s")
    assert frontier.replay([b"z" * 16]) == 0
    assert "2 dropped" in hands(redis_url, "dead", "drop", "--reason", "unreadable").stdout
    assert [letter.reason for letter in frontier.dead_letters()] == ["callback"] * 2
    assert frontier.replay() == 2


def test_names_that_are_no_text_are_shown_and_dropped(
    redis_url: str, client: redis.Redis, session: Session
) -> None:
    client.sadd("clusterscrapy:crawls", b"odd\xff")
    assert "odd\\xff" in hands(redis_url, "status").stdout
    hands(redis_url, "drop", "--force", "odd\\xff")
    assert client.smembers("clusterscrapy:crawls") == {b"s"}


def test_a_list_of_crawls_of_the_wrong_type(redis_url: str, client: redis.Redis) -> None:
    begin(redis_url)
    client.delete("clusterscrapy:crawls")
    client.set("clusterscrapy:crawls", "x")
    said = hands(redis_url, "status", code=8).stderr
    assert "clusterscrapy:crawls is a string, not a set" in said
    assert "redis-cli DEL clusterscrapy:crawls" in said


def test_a_worker_meets_a_damaged_crawl(crawl_of: CrawlOf, redis_url: str) -> None:
    crawl = crawl_of("children", redis_url, width="3")
    client = redis.Redis.from_url(redis_url)
    client.set(f"clusterscrapy:{{{crawl.frontier.name}}}:state", "x")
    worker = crawl.start()
    assert worker.wait(30) == 8
    assert "Traceback" not in worker.text()
    assert "is a string, not a hash" in worker.text().splitlines()[-1]


def test_a_crawl_is_damaged_under_its_worker(crawl_of: CrawlOf, redis_url: str) -> None:
    crawl = crawl_of("children", redis_url, width="300")
    client = redis.Redis.from_url(redis_url)
    worker = crawl.start("-s", "CONCURRENT_REQUESTS=2")
    crawl.wait_for_hits(10, worker)
    client.hset(f"clusterscrapy:{{{crawl.frontier.name}}}:state", "waiting", "many")
    assert worker.wait(30) == 8
    assert "Traceback" not in worker.text()
    assert "holds 'many' as waiting" in worker.text()


def test_an_entry_too_short_is_delivered_and_cannot_be_decoded(
    redis_url: str, client: redis.Redis, session: Session
) -> None:
    client.lpush(f"{BASE}queue:0", b"short", b"")
    client.hincrby(f"{BASE}state", "waiting", 2)
    taken = session.sync(Batch(want=9)).taken
    assert len(taken) == 4
    odd = [delivery for delivery in taken if delivery.payload in (b"short", b"")]
    assert len({delivery.key for delivery in odd}) == 2
    session.sync(Batch([Fail(delivery.key, "undecodable", "x") for delivery in odd]))
    assert open_store(redis_url).frontier("s").status().dead == 4
