"""``scrapy``, killed as soon as it has taken seeds and not yet made anything of them."""

from __future__ import annotations

import os
import signal
from typing import Any

from scrapy.cmdline import execute

from clusterscrapy.compat.scrapy_redis import seeds

taken = seeds.SeedKey.take


def take(key: Any, wanted: int) -> Any:
    answer = taken(key, wanted)
    if answer.seeds:
        os.kill(os.getpid(), signal.SIGKILL)
    return answer


if __name__ == "__main__":
    seeds.SeedKey.take = take  # type: ignore[method-assign, assignment]
    execute()
