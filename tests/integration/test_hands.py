"""``scrapy frontier``: what a person sees and does, for every kind of frontier."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterscrapy.dupefilter import RequestKeys
from clusterscrapy.frontier import (
    Ack,
    Batch,
    Fail,
    Push,
    Session,
    StartDone,
    Terms,
    key_of,
    open_store,
)
from clusterscrapy.frontier.codec import RequestCodec
from tests.chaos.crawl import Crawl, wait_until
from tests.integration.conftest import SETTINGS
from tests.site.process import ROOT

pytestmark = pytest.mark.integration
CrawlOf = Callable[..., Crawl]


def frontier(store: str, *words: str, code: int = 0) -> str:
    result = subprocess.run(
        [sys.executable, "-m", "scrapy", "frontier", *words],
        env={**os.environ, **SETTINGS, "CLUSTER_FRONTIER_URL": store},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    return result.stdout if code == 0 else result.stderr


def url(name: str) -> str:
    return f"http://h/{name}"


@pytest.fixture
def session(store: str) -> Session:
    """A crawl with a page in every state: a done, b dead, c leased, d and e waiting."""
    from scrapy import Request, Spider
    from scrapy.utils.request import fingerprint

    codec = RequestCodec(Spider("s"))

    def push(name: str) -> Push:
        request = Request(url(name))
        return Push(key_of(fingerprint(request)), codec.encode(request))

    session = open_store(store).frontier("s").join(Terms(worker="node-1"))
    session.sync(Batch(claim_start=True))
    taken = session.sync(Batch([*map(push, "abcde"), StartDone()], want=3)).taken
    session.sync(Batch([Ack(taken[0].key), Fail(taken[1].key, "callback", "ValueError: odd")]))
    return session


def test_status_as_a_table(store: str, session: Session) -> None:
    head, row, worker = frontier(store, "status").splitlines()
    assert head.split() == [
        "crawl",
        "state",
        "waiting",
        "leased",
        "done",
        "dead",
        "seen",
        "workers",
    ]
    assert row.split() == ["s", "running", "2", "1", "1", "1", "5", "1"]
    assert "node-1 holds 1" in worker


def test_status_as_json(store: str, session: Session) -> None:
    record = json.loads(frontier(store, "status", "--json"))
    expected = {
        "state": "running",
        "waiting": 2,
        "leased": 1,
        "done": 1,
        "dead": 1,
        "seen": 5,
        "workers": 1,
    }
    assert {name: record[name] for name in expected} == expected


def test_status_of_an_empty_store(store: str) -> None:
    assert "'scrapy crawl' begins one" in frontier(store, "status")
    record = json.loads(frontier(store, "status", "--json"))
    assert (record["state"], record["waiting"], record["workers"]) == ("none", 0, 0)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a", "done"),
        ("b", "dead (callback: ValueError: odd)"),
        ("c", "leased (by node-1 for "),
        ("d", "waiting (priority 0)"),
        ("z", "never seen"),
    ],
)
def test_why(store: str, session: Session, name: str, words: str) -> None:
    assert frontier(store, "why", url(name)).startswith(f"s: {words}")


def test_why_refuses_what_is_no_url(store: str, session: Session) -> None:
    assert "is no URL" in frontier(store, "why", "nonsense", code=8)


def test_pause_and_resume(store: str, session: Session) -> None:
    frontier(store, "pause")
    assert json.loads(frontier(store, "status", "--json"))["state"] == "paused"
    assert not session.sync(Batch(want=1)).taken
    frontier(store, "resume", "s")
    assert session.sync(Batch(want=1)).taken


def test_dead_letters_are_listed_and_replayed(store: str, session: Session) -> None:
    lines = frontier(store, "dead").splitlines()
    assert "GET http://h/b" in lines[0]
    assert "ValueError: odd" in lines[0]
    record = json.loads(frontier(store, "dead", "--json"))
    assert (record["url"], record["reason"], record["worker"]) == (url("b"), "callback", "node-1")
    assert "no such dead letter" in frontier(store, "dead", "replay", url("nowhere"), code=1)
    assert "1 queued again" in frontier(store, "dead", "replay", url("b"))
    assert "waiting" in frontier(store, "why", url("b"))


def test_a_letter_shows_its_first_and_its_last_failure(store: str, session: Session) -> None:
    assert "1 queued again" in frontier(store, "dead", "replay", url("b"))
    taken = session.sync(Batch(want=9)).taken
    session.sync(Batch([Fail(d.key, "http", "answered 503") for d in taken if b"/b" in d.payload]))
    text = frontier(store, "dead", "show", url("b"))
    assert text.startswith("GET http://h/b\n")
    facts = dict(line.split(maxsplit=1) for line in text.splitlines() if line.startswith("  "))
    assert facts["failed"].endswith("http: answered 503")
    assert facts["first"].endswith("callback")
    assert facts["failures"] == "2"
    assert facts["worker"] == "node-1"


def test_dead_letters_are_chosen_by_reason_and_url(store: str, session: Session) -> None:
    taken = session.sync(Batch(want=9)).taken
    reasons = {b"/d": "http", b"/e": "download"}
    for part, reason in reasons.items():
        session.sync(Batch([Fail(d.key, reason, "x") for d in taken if part in d.payload]))
        time.sleep(0.01)  # the oldest comes first, by the millisecond

    def shown(*words: str) -> set[str]:
        lines = frontier(store, "dead", *words, "--json").splitlines()
        return {json.loads(line)["url"].rpartition("/")[2] for line in lines}

    assert shown() == {"b", "d", "e"}
    assert shown("--reason", "http") == {"d"}
    assert shown("--reason", "http", "--reason", "callback") == {"b", "d"}
    assert shown("--match", "*/[de]") == {"d", "e"}
    assert shown("--match", "*/[de]", "--limit", "1") == {"d"}
    assert shown("list", url("e"), url("nowhere")) == {"e"}
    assert "1 dropped" in frontier(store, "dead", "drop", "--reason", "download")
    assert "1 queued again" in frontier(store, "dead", "replay", "--match", "*d")
    assert shown() == {"b"}
    assert json.loads(frontier(store, "status", "--json"))["dead"] == 1
    assert "--limit 0 is too small" in frontier(store, "dead", "--limit", "0", code=8)


def test_a_page_that_is_done_can_be_forgotten(store: str, session: Session) -> None:
    assert "forgotten" in frontier(store, "forget", url("a"))
    assert "never seen" in frontier(store, "why", url("a"))
    for name, state in (("a", "never seen"), ("c", "leased"), ("d", "waiting")):
        assert f"is {state}: there is nothing to forget" in frontier(
            store, "forget", url(name), code=1
        )
    assert "dead replay" in frontier(store, "forget", url("b"), code=1)


def test_a_start_request_past_the_filter_is_found_and_can_be_forgotten(store: str) -> None:
    """``start_urls`` are sent with ``dont_filter``, under keys of their own."""
    from scrapy import Request, Spider
    from scrapy.utils.request import RequestFingerprinter

    start = Request(url("home"), dont_filter=True)
    push = Push(
        RequestKeys(RequestFingerprinter(), kind="bloom").start_key(start),
        RequestCodec(Spider("s")).encode(start),
    )
    session = open_store(store).frontier("s").join(Terms())
    session.sync(Batch(claim_start=True))
    taken = session.sync(Batch([push, StartDone()], want=1)).taken
    session.sync(Batch([Ack(taken[0].key)]))
    assert "done" in frontier(store, "why", url("home"))
    frontier(store, "forget", url("home"))
    assert "never seen" in frontier(store, "why", url("home"))
    assert session.sync(Batch([push])).queued == [True]


def test_a_page_whose_letter_was_dropped_is_not_called_fetched(
    store: str, session: Session
) -> None:
    frontier(store, "dead", "drop")
    assert "or its dead letter was dropped" in frontier(store, "why", url("b"))


def test_drop_asks_for_force_while_workers_are_alive(store: str, session: Session) -> None:
    assert "node-1" in frontier(store, "drop", code=1)
    assert "dropped (2 waiting, 1 dead letters)" in frontier(store, "drop", "--force")
    assert "'scrapy crawl' begins one" in frontier(store, "status") or "dropped" in frontier(
        store, "status"
    )


def test_top_shows_rates_for_as_long_as_asked(store: str, session: Session) -> None:
    began = time.monotonic()
    shown = frontier(store, "top", "--seconds", "2")
    assert time.monotonic() - began < 8
    assert shown.count("s: running, 1 workers") == 2
    assert "waiting 2" in shown
    assert "\x1b" not in shown


def test_an_unknown_crawl_is_named_with_those_there_are(store: str, session: Session) -> None:
    message = frontier(store, "pause", "nowhere", code=8)
    assert "no crawl 'nowhere'" in message
    assert "it has: s" in message


def test_every_action_has_a_help_of_its_own(store: str) -> None:
    assert "pause" in frontier(store, "--help")
    for action in ("status", "top", "why", "pause", "resume", "drop", "dead"):
        text = frontier(store, action, "--help")
        assert text.startswith(f"usage: scrapy frontier {action}")


def test_without_an_action_it_says_which_there_are(store: str) -> None:
    assert "status, list, top, why" in frontier(store, code=2)


def test_a_store_that_is_away_is_one_sentence() -> None:
    assert "does not answer" in frontier("redis://127.0.0.1:1/0", "status", code=6)


def test_hands_work_in_memory_too() -> None:
    assert "no crawl in memory://" in frontier("memory://", "status")


def test_a_paused_crawl_waits_and_goes_on(crawl_of: CrawlOf, store: str, tmp_path: Path) -> None:
    crawl = crawl_of("children", store, width="40")
    worker = crawl.start("-s", "CONCURRENT_REQUESTS=4", "-s", "CONCURRENT_REQUESTS_PER_DOMAIN=4")
    crawl.wait_for_hits(20, worker)
    frontier(store, "pause")
    time.sleep(2)
    asked = len(crawl.site.hits())
    time.sleep(1.5)
    assert len(crawl.site.hits()) == asked
    assert worker.running
    assert "is paused; 'scrapy frontier resume" in worker.text()
    assert "resumed" in frontier(store, "resume")
    assert worker.wait() == 0
    assert "goes on after a pause" in worker.text()
    assert len(crawl.site.hits()) == 440
    assert worker.text().splitlines()[-1].endswith(": 440 done, 0 dead")


def test_resuming_what_is_not_paused_says_so(store: str, session: Session) -> None:
    session.leave()
    said = frontier(store, "resume")
    assert "was not paused, it is stopped" in said
    assert "'scrapy crawl' with the same spider" in said


def test_commands_outside_a_project_say_so(store: str, tmp_path: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SCRAPY_")}
    for words, code, sentence in (
        (["crawl", "shop"], 2, "this command needs a Scrapy project"),
        (["frontier", "status"], 0, "this is no Scrapy project"),
    ):
        result = subprocess.run(
            [sys.executable, "-m", "scrapy", *words],
            env={**environ, "PYTHONPATH": str(ROOT)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == code
        assert sentence in result.stdout + result.stderr
        assert "Traceback" not in result.stderr


def test_a_dropped_crawl_ends_its_workers(crawl_of: CrawlOf, store: str) -> None:
    crawl = crawl_of("children", store, width="200")
    worker = crawl.start("-s", "CONCURRENT_REQUESTS=4", "-s", "CONCURRENT_REQUESTS_PER_DOMAIN=4")
    crawl.wait_for_hits(20, worker)
    frontier(store, "drop", "--force")
    assert worker.wait(20) == 4
    assert "dropped" in worker.text()
    wait_until(lambda: crawl.status().leased == 0, 5)
