"""A run's item file is emptied once, by the first worker to come to it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from clusterscrapy.feeds import _empty


def test_a_file_of_an_earlier_run_is_emptied(tmp_path: Path) -> None:
    path = tmp_path / "items.jl"
    path.write_text("{}\n")
    joined_at = time.time()
    os.utime(path, (joined_at - 2, joined_at - 2))
    assert _empty(path, unless_written_since=joined_at)
    assert path.read_text() == ""


def test_a_file_that_a_faster_worker_writes_already_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "items.jl"
    joined_at = time.time()
    path.write_text("{}\n")
    assert not _empty(path, unless_written_since=joined_at)
    assert path.read_text() == "{}\n"
