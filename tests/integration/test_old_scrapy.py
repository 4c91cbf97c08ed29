"""Scrapy versions we do not know are refused with one line, in an environment that really has them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.site.process import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.mark.parametrize(("version", "w3lib"), [("2.11.2", "2.1.2"), ("2.13.3", "2.3.1")])
def test_an_old_scrapy_is_refused_with_one_line(version: str, w3lib: str, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    pip = [str(venv / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
    wanted = [f"scrapy=={version}", f"w3lib=={w3lib}", "msgpack", "redis", "hatchling", "editables"]
    installed = subprocess.run([*pip, *wanted], capture_output=True, text=True, check=False)
    if installed.returncode and "CI" not in os.environ:
        pytest.skip(f"no package index: {installed.stderr[-200:]}")
    assert installed.returncode == 0, installed.stderr
    local = ["--no-deps", "--no-build-isolation", str(ROOT)]
    subprocess.run([*pip, *local], check=True, capture_output=True)
    project = tmp_path / "project"
    project.mkdir()
    (project / "scrapy.cfg").write_text("[settings]\ndefault = my_settings\n")
    (project / "my_settings.py").write_text(
        'ADDONS = {"clusterscrapy.Addon": 500}\nSPIDER_MODULES = ["my_spiders"]\nLOG_LEVEL = "WARNING"\n'
    )
    (project / "my_spiders.py").write_text(
        "import scrapy\n\n\nclass A(scrapy.Spider):\n    name = 'a'\n    start_urls = ['data:,x']\n"
    )
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for command in (["crawl", "a"], ["frontier", "status"]):
        result = subprocess.run(
            [venv / "bin" / "scrapy", *command],
            cwd=project,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 8, result.stderr
        assert result.stdout == ""
        assert result.stderr == (
            f"clusterscrapy: Scrapy {version} is not supported: clusterscrapy needs 2.16 or later, "
            "before 2.20; pip install 'scrapy>=2.16,<2.20'\n"
        )
