"""How the state of a crawl is shown: tables for people, records for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

from clusterscrapy.frontier import DeadLetter, Status
from clusterscrapy.frontier.codec import describe
from clusterscrapy.frontier.expiry import is_abandoned

_COUNTS = ("waiting", "leased", "done", "dead", "seen", "late")
_COLUMNS = ("crawl", "state", "waiting", "leased", "done", "dead", "seen", "workers")
_BAR_WIDTH = 40


def print_json(value: object) -> None:
    """One record, as one line."""
    print(json.dumps(value, ensure_ascii=False))


def status_record(status: Status | None) -> dict[str, Any]:
    """A status as JSON; ``None`` is a store without a crawl."""
    status = status or Status("", "none")
    return {
        "crawl": status.crawl,
        "state": status.state,
        **{name: getattr(status, name) for name in _COUNTS},
        "workers": len(status.workers),
        "worker_names": [worker.name for worker in status.workers],
        "start": status.start,
        "run": status.run,
        "dupefilter": status.dupefilter,
        "started_at": _when(status.started_at),
        "finished_at": _when(status.finished_at),
        "idle_seconds": round(status.idle_s, 1),
    }


def list_table(statuses: Sequence[Status], abandoned_after_days: float) -> str:
    """One crawl a line: what it is, since when, and when somebody last worked on it."""
    rows: list[Sequence[str]] = [
        ("crawl", "state", "run", "left", "done", "dead", "began", "idle for")
    ]
    for status in statuses:
        left = status.waiting + status.leased
        counts = (str(n) for n in (status.run, left, status.done, status.dead))
        began = _when(status.started_at) or "-"
        idle = "at work" if status.workers else _duration(status.idle_s)
        if is_abandoned(status, abandoned_after_days):
            idle += ", abandoned"
        rows.append((status.crawl, status.state, *counts, began, idle))
    return "\n".join(_aligned(rows))


def _duration(seconds: float) -> str:
    for unit, size in (("days", 86_400), ("hours", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def status_table(statuses: Sequence[Status]) -> str:
    """A table, one crawl a line, and the workers under it."""
    rows: list[Sequence[str]] = [_COLUMNS]
    for status in statuses:
        counts = (str(getattr(status, name)) for name in _COLUMNS[2:7])
        rows.append((status.crawl, status.state, *counts, str(len(status.workers))))
    lines = _aligned(rows)
    for status in statuses:
        gone = status.leased - sum(worker.leased for worker in status.workers)
        if gone > 0:
            lines.append(
                f"  {status.crawl}: {gone} leased by workers that are gone; they return by themselves"
            )
        lines.extend(
            f"  {status.crawl}: {worker.name} holds {worker.leased}" for worker in status.workers
        )
    return "\n".join(lines)


def top_screen(status: Status, before: Status | None, seconds: float) -> str:
    """One screen: counts, rates since ``before``, a bar, and each worker."""
    done = (status.done - before.done) / seconds if before else 0.0
    queued = (status.seen - before.seen) / seconds if before else 0.0
    known = status.done + status.dead + status.leased + status.waiting
    share = (status.done + status.dead) / known if known else 0.0
    filled = round(share * _BAR_WIDTH)
    head = f"{status.crawl}: {status.state}, {len(status.workers)} workers"
    return "\n".join(
        [
            head,
            f"[{'#' * filled}{'.' * (_BAR_WIDTH - filled)}] {share:4.0%} done of all found so far",
            f"done {status.done} ({done:.1f}/s) · dead {status.dead}",
            f"waiting {status.waiting} ({queued:+.1f}/s new) · leased {status.leased}",
            *(f"  {worker.name} holds {worker.leased}" for worker in status.workers),
        ]
    )


def dead_record(crawl: str, letter: DeadLetter) -> dict[str, Any]:
    """A dead letter as JSON."""
    request = describe(letter.payload) if letter.payload else {}
    return {
        "crawl": crawl,
        "key": letter.key.hex(),
        "reason": letter.reason,
        "detail": letter.detail,
        "died_at": _when(letter.died_at),
        "first_reason": letter.first_reason,
        "first_at": _when(letter.first_at),
        "failures": letter.failures,
        "deaths": letter.deaths,
        "run": letter.run,
        "worker": letter.worker,
        **request,
    }


def dead_line(letter: DeadLetter) -> str:
    """A dead letter as one line."""
    request = describe(letter.payload) if letter.payload else {}
    url = f"{request.get('method', '')} {request.get('url', '(no request)')}".strip()
    return f"{_when(letter.died_at)}  {letter.reason:<14} {url}  {letter.detail}"


def dead_text(letter: DeadLetter) -> str:
    """All that is known of a dead letter, a fact a line."""
    request = describe(letter.payload) if letter.payload else {}
    url = f"{request.get('method', '')} {request.get('url', '(no request)')}".strip()
    callback = request.get("callback") or "parse"
    facts = [
        ("failed", f"{_when(letter.died_at)}: {letter.reason}: {letter.detail}"),
        ("first", f"{_when(letter.first_at)}: {letter.first_reason}"),
        ("failures", str(letter.failures)),
        ("deaths", f"{letter.deaths} workers died while it was inside them"),
        ("worker", letter.worker),
        ("run", str(letter.run)),
        ("request", f"callback {callback}, priority {request.get('priority', 0)}"),
        ("key", letter.key.hex()),
    ]
    return "\n".join([url, *(f"  {name:<9} {fact}" for name, fact in facts)])


def _when(seconds: float) -> str | None:
    if not seconds:
        return None
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        # A number that is no time, in a store that somebody else wrote into.
        return None


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            c.ljust(w) if i < 2 else c.rjust(w)
            for i, (c, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
