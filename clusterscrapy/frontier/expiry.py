"""Crawls that nobody came back to."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from clusterscrapy.exceptions import FrontierError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterscrapy.frontier.protocol import Status, Store

logger = logging.getLogger(__name__)

_DAY_S = 86_400.0


def is_abandoned(status: Status, after_days: float) -> bool:
    """True when nobody has worked on the crawl for so long; a paused one waits for its person."""
    alone = not status.workers and status.state != "paused"
    return bool(after_days and alone and status.idle_s > after_days * _DAY_S)


def drop_abandoned(store: Store, after_days: float, *, but: str) -> Iterator[str]:
    """Drop the abandoned crawls of a store, all but one; yields a sentence for each.

    A crawl that cannot be read is left to a person.
    """
    for name in store.names():
        if name == but:
            continue
        frontier = store.frontier(name)
        try:
            status = frontier.status()
            if is_abandoned(status, after_days):
                frontier.drop()
                yield (
                    f"Dropped crawl {name}: nobody has worked on it for {status.idle_s / _DAY_S:.1f} days "
                    f"(CLUSTER_ABANDONED_AFTER); it had {status.waiting + status.leased} requests left and "
                    f"{status.dead} dead letters"
                )
        except FrontierError as exc:
            logger.debug("crawl %s is not looked at for expiry: %s", name, exc)
        finally:
            frontier.close()
