"""The demo's arithmetic and words: it must not look good when something is lost."""

from __future__ import annotations

import io
import json

import pytest

from tests.site.demo import report
from tests.site.process import Hit
from tests.site.progress import Progress, QueueState, describe
from tests.site.tally import pages_done, tally

PAGES = {"/", "/a", "/b?x=1&y=2"}
ANSWERED = [("/robots.txt", 200), ("/", 200), ("/a", 200), ("/b?y=2&x=1", 200)]


@pytest.fixture
def items(tmp_path):
    path = tmp_path / "items.jl"
    path.write_text('{"sku": "1"}\n{"sku": "2"}\n')
    return path


def hits(answers, gone=()):
    return [
        Hit(id=n, t=0.0, method="GET", path=path, status=status, gone=n in gone)
        for n, (path, status) in enumerate(answers)
    ]


def count(answers, items, gone=(), products=("1", "2")):
    return tally(hits(answers, gone), items, pages=PAGES, products=products)


def test_a_crawl_that_fetched_all_lost_nothing(items):
    result = count(ANSWERED, items)
    assert (result.lost, result.twice, result.items, result.products) == (0, 0, 2, 2)


def test_a_page_nobody_asked_for_is_lost(items):
    assert count(ANSWERED[:-1], items).lost_pages == ["/b?x=1&y=2"]


def test_a_page_that_was_only_ever_busy_is_lost(items):
    assert count([*ANSWERED[:2], ("/a", 503), ANSWERED[3]], items).lost_pages == ["/a"]


def test_an_answer_that_nobody_waited_for_is_lost_until_it_is_asked_again(items):
    assert count(ANSWERED, items, gone=[2]).lost_pages == ["/a"]
    again = count([*ANSWERED, ("/a", 200)], items, gone=[2])
    assert (again.lost, again.twice) == (0, 1)


def test_a_retry_after_a_busy_answer_is_not_twice(items):
    assert count([("/a", 503), *ANSWERED], items).twice == 0


def test_robots_txt_is_no_page(items):
    result = count([("/robots.txt", 200), *ANSWERED], items)
    assert result.twice == 0
    assert pages_done(hits(ANSWERED)) == 3


def test_a_product_without_an_item_is_lost_and_a_second_line_is_none(items):
    items.write_text('{"sku": "1"}\n{"sku": "1"}\n')
    result = count(ANSWERED, items)
    assert result.lost_products == ["2"]
    assert (result.items, result.products) == (2, 1)


def test_half_a_line_is_counted_and_is_no_item(items):
    with items.open("a") as file:
        file.write('{"sku": "3"')
    result = count(ANSWERED, items, products=("1", "2", "3"))
    assert (result.torn, result.lost_products) == (1, ["3"])


def test_no_item_file_means_no_item(tmp_path):
    assert count(ANSWERED, tmp_path / "none").lost_products == ["1", "2"]


def test_the_report_names_what_is_lost(items):
    text = report(count(ANSWERED[:-1], items), QueueState(0, 0, 1), "/api/stock/X")
    assert "lost: /b?x=1&y=2" in text
    assert "/api/stock/X answers broken JSON, on purpose" in text


def test_a_line_of_progress_tells_pages_speed_and_queue():
    line = describe("worker 1", 1091, 2182, 231.4, QueueState(402, 16, 1))
    assert line == (
        "worker 1 [######......] 1,091/2,182 pages  231/s  queue 402  leased 16  dead 1"
    )
    assert len(line) < 80
    assert "queue" not in describe("worker 1", 0, 0, 0.0, None)


def test_progress_is_redrawn_on_a_terminal_and_plain_elsewhere(monkeypatch):
    plain, terminal = io.StringIO(), io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    for stream in (plain, terminal):
        progress = Progress(stream, 10)
        progress.show("w", 5, None)
        assert not progress.due()
        progress.say("done")
    assert "\x1b" not in plain.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[Kdone\n")
    assert json.dumps(plain.getvalue()).count("\\n") == 2
