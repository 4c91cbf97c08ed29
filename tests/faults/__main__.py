"""Break the product on purpose, one fault at a time, and see that a test notices.

``python -m tests.faults [PART OF A NAME…]``. Each fault is put into a copy of the project, never into
the working tree, and the tests it names are run there. Ends with 1 when a fault survives, when its
text is no longer in the product exactly once, or when its tests do not pass without it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from queue import SimpleQueue

from tests.faults.faults import FAULTS, Fault

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("clusterscrapy", "tests", "spiders", "docs", "pyproject.toml", "scrapy.cfg")
AT_ONCE = 3
TEST_TIMEOUT_S = 60
_times = count(1_000_000_000)
_PASSED, _FAILED = 0, 1
_FAILED_LINE = re.compile(r"^FAILED \S+::(\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Verdict:
    """What became of one fault."""

    fault: Fault
    caught: bool
    words: str
    seconds: float


def main(parts: Sequence[str]) -> int:
    """Try the faults whose names hold one of the parts, or all; return the exit code."""
    chosen = [fault for fault in FAULTS if not parts or any(p in _title(fault) for p in parts)]
    began = time.monotonic()
    with _copies() as copies, ThreadPoolExecutor(AT_ONCE) as pool:
        whole = pool.submit(_without_faults, chosen, copies)
        verdicts = [_shown(verdict) for verdict in pool.map(lambda f: _try(f, copies), chosen)]
        broken = whole.result()
    survived = [verdict.fault for verdict in verdicts if not verdict.caught]
    print(f"\n{len(chosen)} faults, {len(survived)} not caught, {time.monotonic() - began:.0f} s")
    for name in broken:
        print(f"fails without any fault: {name}")
    return 1 if survived or broken or not chosen else 0


@contextmanager
def _copies() -> Iterator[SimpleQueue[Path]]:
    """Copies of the project, to be taken and put back."""
    copies: SimpleQueue[Path] = SimpleQueue()
    ignored = shutil.ignore_patterns("__pycache__", ".scrapy")
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        for number in range(AT_ONCE):
            copy = Path(folder) / str(number)
            copy.mkdir()
            for name in COPIED:
                source = ROOT / name
                if source.is_dir():
                    shutil.copytree(source, copy / name, ignore=ignored)
                else:
                    shutil.copy(source, copy / name)
            copies.put(copy)
        yield copies


@contextmanager
def _copy(copies: SimpleQueue[Path]) -> Iterator[Path]:
    copy = copies.get()
    try:
        yield copy
    finally:
        copies.put(copy)


def _without_faults(faults: Iterable[Fault], copies: SimpleQueue[Path]) -> list[str]:
    """The names of the tests that fail although nothing is wrong."""
    tests = sorted({test for fault in faults for test in fault.tests})
    with _copy(copies) as copy:
        code, output = _run(copy, tests)
    if code == _PASSED:
        return []
    return _FAILED_LINE.findall(output) or [output.strip().splitlines()[-1]]


def _try(fault: Fault, copies: SimpleQueue[Path]) -> Verdict:
    began = time.monotonic()
    with _copy(copies) as copy:
        path = copy / fault.file
        text = path.read_text("utf-8")
        if text.count(fault.old) != 1:
            words = f"STALE: its text occurs {text.count(fault.old)} times in {fault.file}"
            return Verdict(fault, False, words, 0.0)
        _write(path, text.replace(fault.old, fault.new))
        try:
            code, output = _run(copy, fault.tests, "-x")
        finally:
            _write(path, text)
    seconds = time.monotonic() - began
    if code == _FAILED and (failed := _FAILED_LINE.search(output)):
        return Verdict(fault, True, failed[1], seconds)
    words = "NOT CAUGHT" if code == _PASSED else f"NO TEST RAN: {output.strip().splitlines()[-1]}"
    return Verdict(fault, False, words, seconds)


def _write(path: Path, text: str) -> None:
    """Write a file at a time of its own, by which Python knows that it has to compile it again."""
    path.write_text(text, "utf-8")
    written_at = next(_times)
    os.utime(path, (written_at, written_at))


def _run(copy: Path, tests: Sequence[str], *options: str) -> tuple[int, str]:
    environ = {**os.environ, "PYTHONPATH": str(copy), "CHAOS_RUNS": "2"}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # Hypothesis takes longer to load than most of these tests to run, and none needs it.
    plugins = ["-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
    command = ["-m", "pytest", "-q", "--tb=no", *plugins, *options]
    done = subprocess.run(
        [sys.executable, *command, f"--timeout={TEST_TIMEOUT_S}", *tests],
        cwd=copy,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def _title(fault: Fault) -> str:
    return f"{Path(fault.file).name}: {fault.name}"


def _shown(verdict: Verdict) -> Verdict:
    print(f"{_title(verdict.fault):68} | {verdict.words:90} | {verdict.seconds:5.1f}", flush=True)
    return verdict


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
