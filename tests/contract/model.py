"""A crawl as plain Python data, in the plainest way: what every frontier has to agree with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from clusterscrapy.frontier import Ack, Batch, Bury, Fail, Op, Push, Release, Reply, StartDone
from clusterscrapy.frontier.protocol import old_key

WAITING = ""
MAX_DELIVERIES = 2


@dataclass
class Page:
    """A request that is neither done nor dead; its holder is an epoch, or ``WAITING``."""

    key: bytes
    payload: bytes
    priority: int
    arrival: int
    holder: str = WAITING
    inside: bool = False
    deaths: int = 0
    returned: bool = False


@dataclass
class Crawl:
    """One crawl over its runs; a page is in ``pages``, in ``dead``, or was counted as done."""

    order: str = "fifo"
    run: int = 0
    members: set[str] = field(default_factory=set)
    pages: dict[bytes, Page] = field(default_factory=dict)
    dead: dict[tuple[bytes, int], Page] = field(default_factory=dict)
    failures: dict[tuple[bytes, int], int] = field(default_factory=dict)
    """How often each became a dead letter, also those that were replayed since."""
    memory: set[bytes] = field(default_factory=set)
    start: str = ""
    start_position: int = 0
    done: int = 0
    seen: int = 0
    late: int = 0
    paused: bool = False
    finished: bool = False
    arrivals: int = 0

    # --- looking ----------------------------------------------------------------------

    @property
    def waiting(self) -> list[Page]:
        return [page for page in self.pages.values() if page.holder == WAITING]

    @property
    def leased(self) -> list[Page]:
        return [page for page in self.pages.values() if page.holder != WAITING]

    def held_by(self, epoch: str) -> list[Page]:
        return [page for page in self.pages.values() if page.holder == epoch]

    @property
    def over(self) -> bool:
        return not self.pages and self.start in ("done", "failed")

    @property
    def dead_now(self) -> int:
        return sum(run == self.run for _, run in self.dead)

    def start_as_seen_by(self, epoch: str = "") -> str:
        if self.start in ("", "done", "failed"):
            return self.start
        return "mine" if self.start == epoch else "theirs"

    # --- workers ----------------------------------------------------------------------

    def begin(self) -> None:
        """A new run: only dead letters stay."""
        fresh = Crawl(
            self.order,
            self.run + 1,
            dead=self.dead,
            failures=self.failures,
            arrivals=self.arrivals,
        )
        self.__dict__.update(fresh.__dict__)

    def join(self, epoch: str, *, resume: bool) -> str:
        """What a worker finds: fresh, resumed or late."""
        alone = not self.members
        if alone and self.start == "failed":
            self.start = ""
        if alone and self.over:
            self.finished = True
        if self.finished and resume:
            return "late"
        fresh = self.finished or (alone and not resume) or not self.run
        if fresh:
            self.begin()
        self.members.add(epoch)
        return "fresh" if fresh else "resumed"

    def leave(self, epoch: str) -> int:
        """Its leases wait again."""
        held = self.held_by(epoch)
        for page in held:
            self._put_back(page)
        self._forget(epoch)
        if self.finished and not self.members and not self.dead_now:
            self.memory.clear()
        return len(held)

    def die(self, epoch: str) -> None:
        """Its leases wait again; what was inside the engine, or else all, is to blame."""
        held = self.held_by(epoch)
        nobody_inside = not any(page.inside for page in held)
        for page in held:
            page.deaths += page.inside or nobody_inside
            if page.deaths >= MAX_DELIVERIES:
                self._bury(page)
            else:
                self._put_back(page)
        self._forget(epoch)

    def _forget(self, epoch: str) -> None:
        self.members.discard(epoch)
        if self.start == epoch:
            self.start = ""

    def _put_back(self, page: Page) -> None:
        page.holder, page.inside, page.returned = WAITING, False, True

    def _bury(self, page: Page) -> None:
        place = page.key, self.run
        self.dead[place] = page
        self.failures[place] = self.failures.get(place, 0) + 1
        self.pages.pop(page.key, None)

    # --- a batch ----------------------------------------------------------------------

    def check(self, epoch: str, batch: Batch, reply: Reply) -> None:
        """Apply the batch, and compare all that the frontier answered to it."""
        if batch.claim_start and self.start == "":
            self.start = epoch
        outcomes = [self._apply(epoch, op) for op in batch.ops]
        pushed = [ok for op, ok in zip(batch.ops, outcomes, strict=True) if type(op) is Push]
        late = (
            len(outcomes)
            - len(pushed)
            - sum(ok for op, ok in zip(batch.ops, outcomes, strict=True) if type(op) is not Push)
        )
        self.late += late
        assert (list(reply.queued), reply.late) == (pushed, late)
        for key in batch.entered:
            if key in self.pages and self.pages[key].holder == epoch:
                self.pages[key].inside = True
        self._check_taken(epoch, batch.want, reply)
        answered = (reply.waiting, reply.leased, reply.workers, reply.start, reply.paused)
        mine = (len(self.waiting), len(self.leased), len(self.members))
        assert answered == (*mine, self.start_as_seen_by(epoch), self.paused)
        assert reply.over == self.over, "the end was seen when it was not there, or not seen"

    def _apply(self, epoch: str, op: Op) -> bool:
        """For a push: was it queued? For the rest: did it come in time?"""
        if isinstance(op, Push):
            return self._push(op)
        if isinstance(op, Bury):
            self._bury(Page(op.key, op.payload, 0, 0))
        elif isinstance(op, StartDone):
            if self.start == epoch:
                self.start = "failed" if op.failed else "done"
        else:
            page = self.pages.get(op.key)
            if page is None or page.holder != epoch:
                return False
            self._end(page, op)
        return True

    def _end(self, page: Page, op: Ack | Fail | Release) -> None:
        if isinstance(op, Ack):
            del self.pages[page.key]
            self.done += 1
        elif isinstance(op, Fail):
            self._bury(page)
        else:
            self._put_back(page)

    def _push(self, op: Push) -> bool:
        if op.start >= 0:
            if op.start < self.start_position:
                return False
            self.start_position = op.start + 1
        elif op.filtered:
            if op.key in self.memory:
                return False
            self.memory.add(op.key)
            self.seen += 1
        self.arrivals += 1
        self.finished = False
        assert op.key not in self.pages
        self.pages[op.key] = Page(op.key, op.payload, op.priority, self.arrivals)
        return True

    def _check_taken(self, epoch: str, want: int, reply: Reply) -> None:
        waiting = self.waiting
        most = 0 if self.paused else min(want, len(waiting))
        if reply.hungry:
            # While somebody has nothing, nobody takes more than an even part.
            even = -(-len(self.pages) // len(self.members)) - len(self.held_by(epoch))
            most = max(0, min(most, even))
        assert len(reply.taken) == most, "a waiting request was not given out, or too many were"
        taken = []
        for delivery in reply.taken:
            page = self.pages.get(delivery.key)
            assert page is not None, "a request was given out after its end"
            assert page.holder == WAITING, "a request was leased twice at once"
            assert (delivery.payload, delivery.deaths) == (page.payload, page.deaths)
            page.holder = epoch
            taken.append(page)
        self._check_order(taken, [page for page in waiting if page.holder == WAITING])

    def _check_order(self, taken: Sequence[Page], left: Sequence[Page]) -> None:
        """By priority, then by arrival; what was handed back comes before what never was out."""
        priorities = [page.priority for page in taken]
        assert priorities == sorted(priorities, reverse=True)
        assert not taken or all(page.priority <= priorities[-1] for page in left)
        if self.order == "lifo":  # where returned ones go is not promised
            taken = [page for page in taken if not page.returned]
            left = [page for page in left if not page.returned]
        turns = [self._turn(page) for page in taken]
        assert turns == sorted(turns), "requests overtook each other"
        assert not turns or all(turns[-1] <= self._turn(page) for page in left)

    def _turn(self, page: Page) -> tuple[int, int]:
        if self.order == "lifo":
            return -page.priority, -page.arrival
        return -page.priority, 0 if page.returned else page.arrival

    # --- people -----------------------------------------------------------------------

    def finish(self, run: int) -> bool:
        """Mark it finished if it is over; without dead letters its memory is dropped."""
        if run != self.run:
            return False
        if not self.finished and self.over and self.start == "done":
            self.finished = True
        return self.finished

    def replay(self, keys: Sequence[bytes] | None) -> int:
        """Dead letters wait again, behind the others; a note of what could not be stored stays dead."""
        chosen = [
            place
            for place, page in self.dead.items()
            if page.arrival and (keys is None or page.key in keys)
        ]
        self.arrivals += 1
        for place in chosen:
            page = self.dead.pop(place)
            key = page.key if place[1] == self.run else old_key(*place)
            assert key not in self.pages
            self.failures[key, self.run] = self.failures.pop(place)
            self.pages[key] = Page(key, page.payload, page.priority, self.arrivals)
        if chosen:
            self.finished = False
        return len(chosen)

    def discard(self, keys: Sequence[bytes] | None) -> int:
        """Dead letters are forgotten, notes too."""
        chosen = [place for place in self.dead if keys is None or place[0] in keys]
        for place in chosen:
            del self.dead[place], self.failures[place]
        return len(chosen)

    def forget(self, key: bytes) -> bool:
        """A page that is done becomes unknown."""
        known = key in self.memory
        if known:
            self.memory.discard(key)
            self.seen -= 1
        return known
