"""What a worker told its store lately, to be told again when the store went back in time.

A Redis that is restarted from its file, or replaced by its replica, may have lost the last seconds
of what it confirmed. Each worker therefore keeps what it queued, and the pages it finished, for a
while: told again, the dupe filter drops what the store still knows and queues the rest.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from clusterscrapy.frontier.protocol import Bury, Delivery, Op, Push

JOURNAL_MAX = 100_000
"""Operations kept at most, the youngest; with 300 bytes each that is 30 MB."""


class Journal:
    """The operations of the last ``seconds`` that would be missing in an older store.

    Args:
        seconds: how long they are kept; 0 keeps none.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._children: deque[tuple[float, Op]] = deque(maxlen=JOURNAL_MAX)
        self._parents: deque[tuple[float, Op]] = deque(maxlen=JOURNAL_MAX)

    def confirmed(self, ops: Sequence[Op], queued: Sequence[bool]) -> None:
        """Note operations that the store has applied, and which of the pushes it has queued."""
        if not self.seconds:
            return
        now = time.monotonic()
        news = iter(queued)
        for op in ops:
            kind = type(op)
            if (kind is Push and next(news, True)) or kind is Bury:
                self._children.append((now, op))
        self._trim(self._children, now)

    def finished(self, page: Delivery) -> None:
        """Note a page that is being acknowledged: who queued it may be gone by then."""
        if self.seconds:
            now = time.monotonic()
            self._parents.append((now, Push(page.key, page.payload, page.priority)))
            self._trim(self._parents, now)

    def _trim(self, ops: deque[tuple[float, Op]], now: float) -> None:
        while ops and ops[0][0] < now - self.seconds:
            ops.popleft()

    def everything(self) -> list[Op]:
        """All there is, for a store that went back in time; pages outside the filter come twice."""
        return [op for _, op in (*self._parents, *self._children)]

    def filtered(self) -> list[Op]:
        """What can be told again without harm to a store that may have gone back in time."""
        return [op for _, op in self._children if type(op) is Push and op.filtered]
