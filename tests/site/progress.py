"""How far a crawl is: one line, drawn again and again on a terminal, now and then elsewhere."""

from __future__ import annotations

import shutil
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TextIO

_WINDOW_S = 2.0
_BAR = 12  # the whole line fits 80 columns


@dataclass(frozen=True)
class QueueState:
    """What waits, what is with a worker, and what nobody will fetch again, in requests."""

    waiting: int
    leased: int
    dead: int


class Progress:
    """Progress of so many pages, written to a stream."""

    def __init__(self, stream: TextIO, total: int) -> None:
        self._stream = stream
        self._total = total
        self._redraws = stream.isatty()
        self._interval_s = 0.2 if self._redraws else 2.0
        self._shown_at = 0.0
        self._samples: deque[tuple[float, int]] = deque()
        self._drawn = False

    def due(self) -> bool:
        """Tell whether it is time to show something, so that nobody reads what is not shown."""
        return time.monotonic() - self._shown_at >= self._interval_s

    def show(self, who: str, done: int, queue: QueueState | None) -> None:
        """Show where the crawl is."""
        self._shown_at = time.monotonic()
        line = describe(who, done, self._total, self._rate(done), queue)
        if self._redraws:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write("\r\x1b[K" + line[:width])
            self._drawn = True
        else:
            self._stream.write(line + "\n")
        self._stream.flush()

    def say(self, text: str) -> None:
        """Write a line that stays."""
        self.clear()
        self._stream.write(text + "\n")
        self._stream.flush()

    def clear(self) -> None:
        """Remove the drawn line, if there is one."""
        if self._drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._drawn = False

    def _rate(self, done: int) -> float:
        """Return pages per second, over the last two seconds."""
        now = time.monotonic()
        self._samples.append((now, done))
        while len(self._samples) > 2 and now - self._samples[0][0] > _WINDOW_S:
            self._samples.popleft()
        since, before = self._samples[0]
        return (done - before) / (now - since) if now > since else 0.0


def describe(who: str, done: int, total: int, rate: float, queue: QueueState | None) -> str:
    """Return one line: a bar, pages, pages per second, and the queue if it is known."""
    filled = _BAR * min(done, total) // max(total, 1)
    bar = "#" * filled + "." * (_BAR - filled)
    line = f"{who} [{bar}] {done:,}/{total:,} pages {rate:4.0f}/s"
    if queue is None:
        return line
    return f"{line}  queue {queue.waiting:,}  leased {queue.leased}  dead {queue.dead}"
