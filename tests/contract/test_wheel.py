"""What is installed is the library, whole, and nothing beside it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT],
        check=True,
        capture_output=True,
    )
    (wheel,) = folder.glob("*.whl")
    return set(zipfile.ZipFile(wheel).namelist())


def test_the_wheel_holds_one_package(wheel_names):
    tops = {name.partition("/")[0] for name in wheel_names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"clusterscrapy"}


def test_the_wheel_holds_every_file_of_the_package(wheel_names):
    files = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "clusterscrapy").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in wheel_names if name.startswith("clusterscrapy/")} == files
    assert "clusterscrapy/py.typed" in files
