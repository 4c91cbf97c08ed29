"""What the documents say is what the code does."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

from clusterscrapy.config import Config, setting_name

ROOT = Path(__file__).parents[2]


def run_generator():
    return subprocess.run(
        [sys.executable, "docs/generate.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_generated_pages_are_up_to_date():
    ran = run_generator()
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_setting_has_an_entry_with_a_default_and_a_reason():
    page = (ROOT / "docs" / "settings.md").read_text()
    entries = dict(re.findall(r"^### (CLUSTER_\w+)\n(.*?)(?=^##|\Z)", page, re.M | re.S))
    assert set(entries) == {setting_name(f.name) for f in fields(Config)}
    assert [name for name, text in entries.items() if "Default: " not in text] == []
    assert [name for name, text in entries.items() if "*Why:* " not in text] == []


def test_settings_named_in_other_settings_exist():
    page = (ROOT / "docs" / "settings.md").read_text()
    known = {setting_name(f.name) for f in fields(Config)}
    assert set(re.findall(r"\bCLUSTER_[A-Z_]+[A-Z]\b", page)) <= known
