"""What stores hold that nobody of us wrote: one sentence with the thing, the place and the remedy."""

from __future__ import annotations

import ctypes
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, cast

import pytest
import redis

from clusterscrapy.exceptions import ClusterScrapyError, FrontierDamaged
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


def test_a_filter_of_endless_hashes_does_not_hold_the_server(
    redis_url: str, client: redis.Redis, session: Session
) -> None:
    client.hset(f"{BASE}layers", "1", b"\x94" + b"\xcf\x0d\xe0\xb6\xb3\xa7\x64\x00\x00" * 4)
    frontier = open_store(redis_url).frontier("s")
    with pytest.raises(FrontierDamaged, match="no layer of a filter"):
        frontier.why(key("z"), url("z"))
    with pytest.raises(FrontierDamaged, match="no layer of a filter"):
        session.sync(Batch([Push(key("z"), b"z")]))


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


# --- SQLite: damage ------------------------------------------------------------------------


@pytest.fixture
def file(sqlite_store: str) -> Path:
    """A crawl that its worker has left, in one file."""
    session = begin(sqlite_store)
    session.leave()
    session.frontier.close()  # type: ignore[attr-defined]
    return Path(sqlite_store.removeprefix("sqlite://")) / "s.db"


def bytes_of(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda file: file.write_bytes(change(file.read_bytes()))  # type: ignore[return-value]


def rows(*statements: str) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        with closing(sqlite3.connect(file, isolation_level=None)) as db:
            for statement in statements:
                db.execute(statement)

    return damage


_HEADERS = {
    "garbage": bytes_of(lambda whole: b"garbage " * 2000),
    "truncated": bytes_of(lambda whole: whole[: len(whole) // 3]),
    "body": bytes_of(lambda whole: whole[:200] + b"\xa5" * (len(whole) - 200)),
    "pages": bytes_of(lambda whole: whole[:4096] + b"\xa5" * (len(whole) - 4096)),
    "no table": rows("DROP TABLE state"),
    "another table": rows("DROP TABLE state", "CREATE TABLE state (x)"),
    "state": rows("UPDATE state SET value = 'many' WHERE name = 'waiting'"),
    "state blob": rows("UPDATE state SET value = x'ff' WHERE name = 'run'"),
    "infinite": rows("UPDATE state SET value = 9e999 WHERE name = 'started_at'"),
}
_ROWS = {
    "worker": rows("INSERT INTO worker VALUES (x'ff00', x'ff', '', 'soon', 'x')"),
    "queue": rows("INSERT INTO queue VALUES (NULL, 'high', 5, 'x', 'text')"),
    "lease": rows("INSERT INTO lease VALUES ('k', x'ff', 'x', 'x', 'x', 'x', 'x', 5)"),
    "dead": rows(
        "INSERT INTO dead VALUES ('k', 'x', x'ff', x'ff', 'x', 'x', 'x', x'ff', 5, 'x', x'ff', 'x')"
    ),
    "text": rows(
        "INSERT INTO dead SELECT x'00', 1, CAST(x'ff' AS TEXT), '', 1, 1, 1, '', x'00', 1, '', 1"
    ),
    "failed before": rows("INSERT INTO failed_before VALUES ('k', 'x', 'x', 5, 'x')"),
}


def _act_on(store: str) -> list[str]:
    """All that people and workers do; returns what they were told."""
    frontier = open_store(store).frontier("s")
    said = []
    for act in (
        frontier.status,
        lambda: [frontier.why(key(name), url(name)) for name in "abcdez"],
        lambda: list(frontier.dead_letters()),
        frontier.replay,
        lambda: frontier.forget(key("d")),
        frontier.pause,
        lambda: frontier.pause(False),
        lambda: _work(store),
        frontier.discard,
    ):
        try:
            act()
        except FrontierDamaged as exc:
            said.append(str(exc))
    frontier.close()
    return said


def _work(store: str) -> None:
    session = open_store(store).frontier("s").join(Terms())
    taken = session.sync(Batch(want=9)).taken
    session.sync(Batch([Fail(delivery.key, "undecodable", "x") for delivery in taken[:3]]))
    with suppress(ClusterScrapyError):
        session.finish()
    session.leave()


@pytest.mark.parametrize("damage", _HEADERS)
def test_a_damaged_file_is_one_sentence(file: Path, sqlite_store: str, damage: str) -> None:
    _HEADERS[damage](file)
    said = _act_on(sqlite_store)
    assert said
    for sentence in said:
        assert sentence.startswith(f"{file} is damaged (")
        assert "drop s --force" in sentence
    frontier = open_store(sqlite_store).frontier("s")
    frontier.drop(force=True)
    assert not file.exists()
    assert frontier.join(Terms()).opening.fresh


@pytest.mark.parametrize("damage", _ROWS)
def test_a_damaged_row_does_not_hide_the_others(file: Path, sqlite_store: str, damage: str) -> None:
    _ROWS[damage](file)
    frontier = open_store(sqlite_store).frontier("s")
    assert frontier.status().dead == 2
    readable = [d for d in frontier.dead_letters() if d.reason == "callback"]
    assert {d.key for d in readable} == {key("a"), key("b")}
    assert frontier.why(key("a"), url("a")).state == "dead"
    assert frontier.why(key("d"), url("d")).state == "waiting"
    assert _act_on(sqlite_store) == []


def test_hands_on_a_damaged_file(file: Path, sqlite_store: str) -> None:
    begin(sqlite_store, "t").leave()
    _HEADERS["garbage"](file)
    for words in (("status",), ("why", url("d")), ("dead",)):
        shown = hands(sqlite_store, *words, code=8)
        assert f"{file} is damaged (file is not a database)" in shown.stderr
        assert "t" in shown.stdout
    assert "s: dropped" in hands(sqlite_store, "drop", "s", "--force").stdout
    assert not file.exists()


def test_a_worker_meets_a_damaged_file(crawl_of: CrawlOf, sqlite_store: str) -> None:
    crawl = crawl_of("children", sqlite_store, width="3")
    file = Path(sqlite_store.removeprefix("sqlite://")) / f"{crawl.frontier.name}.db"
    file.parent.mkdir()
    file.write_bytes(b"garbage " * 2000)
    worker = crawl.start()
    assert worker.wait(30) == 8
    assert "Traceback" not in worker.text()
    assert f"{file} is damaged" in worker.text().splitlines()[-1]


# --- SQLite: other users ---------------------------------------------------------------------

_NOBODY = 65534
_PR_CAPBSET_DROP = 24
# CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH and CAP_FOWNER: root without them is a user as any other,
# who still can read the interpreter wherever it is installed.
_CAPABILITIES = (1, 2, 3)


def _as_a_plain_user() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in _CAPABILITIES:
        if libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")


@pytest.fixture
def owned(file: Path) -> Iterator[Callable[[int, int], None]]:
    """``owned(folder mode, file mode)`` gives the crawl to another user."""
    if os.getuid():
        pytest.skip("only root can give files away")

    def give(folder_mode: int, file_mode: int) -> None:
        for path in (file.parent, *file.parent.rglob("*")):
            os.chown(path, _NOBODY, _NOBODY)
            path.chmod(folder_mode if path.is_dir() else file_mode)

    yield give
    give(0o755, 0o644)


def plainly(store: str, *words: str, code: int = 0) -> Ran:
    return hands(store, *words, code=code, preexec_fn=_as_a_plain_user)


@pytest.mark.parametrize("folder_mode", [0o555, 0o755])
def test_anybody_may_look_at_a_file_that_can_be_read(
    sqlite_store: str, owned: Callable[[int, int], None], folder_mode: int
) -> None:
    owned(folder_mode, 0o444)
    assert plainly(sqlite_store, "status").stdout.splitlines()[1].split()[2:6] == [
        "3",
        "0",
        "0",
        "2",
    ]
    assert "s: waiting" in plainly(sqlite_store, "why", url("d")).stdout
    assert "s: 2 dead letters" in plainly(sqlite_store, "dead").stdout
    assert "s: stopped" in plainly(sqlite_store, "top", "--seconds", "0.1").stdout


def test_anybody_may_look_while_another_user_works(
    sqlite_store: str, file: Path, owned: Callable[[int, int], None]
) -> None:
    session = open_store(sqlite_store).frontier("s").join(Terms(worker="theirs"))
    session.sync(Batch(want=2))
    owned(0o755, 0o644)
    shown = plainly(sqlite_store, "status").stdout
    assert "theirs holds 2" in shown
    (file.parent / "s.workers").chmod(0o700)
    assert "theirs holds 2" in plainly(sqlite_store, "status").stdout
    session.leave()


@pytest.mark.parametrize("words", [("pause",), ("dead", "replay"), ("drop",), ("drop", "--force")])
@pytest.mark.parametrize("modes", [(0o555, 0o444), (0o755, 0o644)])
def test_who_may_only_look_cannot_change(
    sqlite_store: str,
    file: Path,
    owned: Callable[[int, int], None],
    words: tuple[str, ...],
    modes: tuple[int, int],
) -> None:
    owned(*modes)
    said = plainly(sqlite_store, *words, code=8).stderr
    assert f"cannot use {file} (" in said
    assert "act as the user who crawls" in said
    assert file.exists()


@pytest.mark.parametrize(
    ("modes", "words"),
    [
        ((0o700, 0o600), "the folder {folder} of the embedded frontier cannot be read"),
        ((0o744, 0o644), "cannot use {folder}/s.db ("),
        ((0o755, 0o600), "cannot use {folder}/s.db ("),
    ],
)
def test_what_cannot_be_read_is_not_said_to_be_missing(
    sqlite_store: str,
    file: Path,
    owned: Callable[[int, int], None],
    modes: tuple[int, int],
    words: str,
) -> None:
    owned(*modes)
    for action in (("status",), ("why", url("d")), ("dead",), ("pause",)):
        said = plainly(sqlite_store, *action, code=8).stderr
        assert words.format(folder=file.parent) in said
        assert "act as the user who crawls" in said
        assert "no crawl" not in said


def test_a_folder_below_one_that_cannot_be_entered(
    sqlite_store: str, file: Path, owned: Callable[[int, int], None]
) -> None:
    owned(0o700, 0o600)
    said = plainly(f"{sqlite_store}/deeper", "status", code=8).stderr
    assert "deeper of the embedded frontier cannot be read" in said


def test_a_worker_in_a_folder_that_is_anothers(
    sqlite_store: str, file: Path, owned: Callable[[int, int], None]
) -> None:
    owned(0o755, 0o644)
    result = subprocess.run(
        [sys.executable, "-m", "scrapy", "crawl", "children", "-a", "url=http://127.0.0.1:1/"],
        env={**os.environ, **SETTINGS, "CLUSTER_FRONTIER_URL": sqlite_store},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=_as_a_plain_user,
    )
    assert result.returncode == 8
    assert "Traceback" not in result.stderr
    assert f"cannot use {file.parent}" in result.stderr.splitlines()[-1]
