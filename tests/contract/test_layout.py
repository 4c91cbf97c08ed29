"""The folder `operator` must never hide the standard library's module of that name."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_operator_folder_is_no_package():
    assert not (ROOT / "operator" / "__init__.py").exists()


def test_the_operator_folder_holds_no_module_but_main():
    modules = {path.name for path in (ROOT / "operator").glob("*.py")}
    assert modules <= {"main.py"}


def test_a_fresh_interpreter_in_the_root_imports_the_standard_operator():
    ran = subprocess.run(
        [sys.executable, "-c", "import operator; print(operator.__file__)"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(ran.stdout.strip()) == Path(sysconfig.get_path("stdlib"), "operator.py")
