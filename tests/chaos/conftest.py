from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(params=["sqlite", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Each shared frontier in turn, empty."""
    if request.param == "redis":
        return str(request.getfixturevalue("redis_url"))
    return f"sqlite://{tmp_path}/frontier"
