"""Every setting of clusterscrapy: what it means, its unit, its default and the reason for it.

A field ``frontier_url`` is the setting ``CLUSTER_FRONTIER_URL``. Each may also come from an
environment variable of the same name; the command line wins over the environment, that over the
spider, the project and the add-on. ``docs/settings.md`` is generated from the docstrings here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, get_type_hints

from clusterscrapy.exceptions import ConfigError
from clusterscrapy.setting import PREFIX, Given, given, setting, source_of

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings
    from typing_extensions import Self

# What Kubernetes injects for a Service whose name begins with "cluster".
_INJECTED = re.compile(r".*_(SERVICE_HOST|SERVICE_PORT.*|PORT(_.*)?)")


@dataclass(frozen=True, kw_only=True)
class CrawlSettings:
    """Store and crawl."""

    frontier_url: str = setting(
        "sqlite://",
        pattern=r"(sqlite|redis|rediss|memory)://.*",
        form="a URL that begins with sqlite://, redis://, rediss:// or memory://",
    )
    """Where the frontier lives: the queue, the dupe filter and the leases.

    `sqlite://` is the folder `.scrapy/frontier` of the project, `sqlite:///abs/folder` and
    `sqlite://./relative` are other folders; each crawl has one file there, and several processes
    of one machine may share it. `redis://host:6379/0` (`rediss://` with TLS) is shared by any
    number of machines. `memory://` is gone with the process.

    Why: the same project must run on a laptop with no server at all and still resume after a
    power cut; a shared store is one setting away.
    """

    idle: str = setting("finish", choices=("finish", "wait"))
    """What workers do when nothing is left: `finish` closes the spider, `wait` keeps it open for
    seeds (`scrapy frontier seed`) until it is stopped.

    Why: most crawls have an end, and a worker that lingers after it looks like one that hangs; a
    service that is fed from outside says so.
    """

    max_idle_seconds: float = setting(0.0, unit="seconds", at_least=0)
    """With `CLUSTER_IDLE=wait`: how long the whole crawl may have nothing to do before its workers
    close after all. `0` is for ever.

    Why: a service waits until it is stopped; a nightly job that is fed by another wants an end.
    """

    max_pages: int = setting(0, unit="pages", at_least=0)
    """How many pages the whole crawl may have done, all workers together, before they close with exit
    code 4. `0` is no bound. A crawl that reached it goes on with a higher one. (Scrapy's
    `CLOSESPIDER_PAGECOUNT` and its like count for one worker.)

    Why: most crawls end by themselves; a bound is for trying out, and for a site that has no end.
    """

    max_items: int = setting(0, unit="items", at_least=0)
    """How many items may have passed the pipelines of all workers before they close, as with
    `CLUSTER_MAX_PAGES`. What was being fetched then is finished, and its items come on top.

    Why: as above.
    """

    max_seconds: float = setting(0.0, unit="seconds", at_least=0)
    """How long the whole crawl may take from the beginning of its run by the store's clock, pauses and
    restarts included, before its workers close, as with `CLUSTER_MAX_PAGES`.

    Why: as above; a nightly crawl has to be out of the way in the morning.
    """

    crawl_id: str = setting("")
    """Names one run, beside the spider's name and its arguments. With an id, finished is final: a
    worker that comes late closes at once.

    Why: empty lets a developer type `scrapy crawl NAME` again and again; whoever starts workers
    for a run, such as an operator or a cron job, gives all of them one id, so that a late worker
    does not begin the crawl anew.
    """

    resume: bool = setting(default=True)
    """Whether an unfinished crawl goes on where it stopped. `0` drops it and starts afresh.

    Why: what survived a crash is worth more than a clean start, and the first log line says how to
    get the other.
    """

    keep: bool = setting(default=False)
    """Whether a finished crawl keeps its dupe filter in the store, so that `scrapy frontier why` can
    still tell what was fetched. While a crawl has dead letters it is kept in any case, since a
    replay needs it.

    Why: a finished crawl leaves a small summary; all the rest would fill the store run by run.
    """

    abandoned_after: float = setting(14.0, unit="days", at_least=0)
    """How long nobody may have worked on a crawl, finished or not, before the next worker that begins in
    the same store drops it, with its queue and its dead letters, and says so. A paused crawl stays. `0`
    keeps all for ever. `scrapy frontier list` shows them.

    Why: a store that is shared by a team fills up with crawls that nobody remembers; in two weeks a
    person has come back from holidays.
    """

    finished_hold_seconds: float = setting(60.0, unit="seconds", at_least=0)
    """How long after its end a crawl without `CLUSTER_CRAWL_ID` counts as finished. A worker that
    starts within this time closes at once; a later one begins a new crawl.

    Why: workers started together come up seconds apart, and the last must not repeat a short crawl
    that the others have just finished; a minute is still shorter than any schedule.
    """

    worker_name: str = setting("")
    """How this worker is called in logs and in `scrapy frontier status`. Empty is the host's name
    and the process id.

    Why: a person must be able to tell which process is meant; leases never depend on this name, so
    two workers of one name harm nothing.
    """


@dataclass(frozen=True, kw_only=True)
class DupefilterSettings:
    """Dupe filter."""

    dupefilter: str = setting("bloom", choices=("bloom", "exact", "none"))
    """How the frontier remembers what it has seen. `bloom` takes the least memory and is wrong at
    `CLUSTER_DUPEFILTER_ERROR_RATE`; `exact` is never wrong; `none` queues every request. The
    SQLite store is exact in both cases.

    Why: at the default error rate a Bloom filter takes about 4 bytes a URL in Redis, an exact set
    many times that.
    """

    dupefilter_capacity: int = setting(1_000_000, unit="URLs", at_least=1)
    """How many URLs the first layer of the Bloom filter is sized for. Past that it grows by
    tighter layers, so a wrong guess costs some memory and time, never correctness. One layer
    is one Redis string, which holds about 149 million URLs at the default error rate.

    Why: a million URLs take under 4 MB, nothing for a server, and few crawls need a second layer.
    """

    dupefilter_error_rate: float = setting(1e-6, above=0, below=0.1)
    """The share of new URLs that the Bloom filter may take for seen ones, over all its layers; such
    a page is never fetched.

    Why: one page of a million is less than what sites lose by themselves; each further factor of
    ten costs about 0.6 bytes a URL.
    """

    scrapy_redis_seen: bool = setting(default=False)
    """Whether pages that are in the set of a scrapy-redis dupe filter (`SCHEDULER_DUPEFILTER_KEY` in the
    Redis of `REDIS_URL`) count as known. The set is only read.

    Why: a crawl that moves here from scrapy-redis (`scrapy frontier import-scrapy-redis`) must not
    begin anew; a new one has no use for the set, and a round trip more for each batch.
    """

    seen_memory: int = setting(100_000, unit="fingerprints", at_least=0)
    """How many fingerprints that the store has confirmed a worker remembers itself, so that most
    links to known pages need no round trip. `0` asks the store each time.

    Why: on link-rich pages nine links of ten are known; 100,000 take about 10 MB of the worker.
    """


@dataclass(frozen=True, kw_only=True)
class QueueSettings:
    """Queue."""

    queue_order: str = setting("fifo", choices=("fifo", "lifo"))
    """The order of requests of equal priority: `fifo` crawls in breadth, `lifo` in depth.

    Why: in breadth the pages near the start come first, and it is fair between hosts; `lifo` keeps
    the queue short where a site is deep.
    """

    prefetch: int = setting(0, unit="requests", at_least=0)
    """How many leased requests a worker holds ready beside those in its engine. `0` is twice
    `CONCURRENT_REQUESTS`.

    Why: the engine then never waits for the store, even when a round trip takes a while; more would
    be hoarding, since at a kill all of it is fetched by others first when the lease is over. A worker
    that finds others without work hands half of it back.
    """

    outbox_max_requests: int = setting(10_000, unit="requests", at_least=1)
    """How many requests and acknowledgements may wait in a worker to be stored. A callback that
    yields more waits for room.

    Why: it bounds the memory of a page with a million links, and of a worker whose store is away;
    10,000 requests are some 10 MB and a few seconds of a fast crawl.
    """

    request_max_bytes: int = setting(1_000_000, unit="bytes", at_least=1)
    """The largest request, encoded, that is queued. A larger one is reported once with its URL and
    kept as a dead letter.

    Why: a normal request has a few hundred bytes; one of a megabyte carries a response body or a
    whole item in `meta`, and thousands of these would fill the store.
    """

    request_classes: tuple[str, ...] = setting(
        (),
        pattern=r"[^\W\d]\w*(\.[^\W\d]\w*)+",
        form="a list of import paths, such as package.module.RequestClass",
    )
    """Import paths of further subclasses of `scrapy.Request` that may be rebuilt from the queue,
    beside those of Scrapy and of the project's own modules.

    Why: whoever can write to the store must not be able to name code to import, so every class
    from elsewhere is named here by hand.
    """

    max_deliveries: int = setting(5, unit="deliveries", at_least=1)
    """How many workers may die while a request is inside their engine before it becomes a dead
    letter.

    Why: a page that kills its worker must not kill the cluster one by one; five is more than
    evictions and bad luck explain.
    """


@dataclass(frozen=True, kw_only=True)
class LivenessSettings:
    """Liveness and outages."""

    heartbeat_seconds: float = setting(5.0, unit="seconds", above=0)
    """How often a worker tells a shared store that it lives. SQLite needs none: a lock of the
    operating system tells who lives.

    Why: three heartbeats fit into a lease, so two may be lost without harm.
    """

    replay_seconds: float = setting(60.0, unit="seconds", at_least=0)
    """How long a worker keeps what it told Redis, to tell it again should Redis come back in an older
    state: restarted from its file (`appendfsync everysec` may lose a second), or replaced by a replica.
    What was told again is dropped by the dupe filter where Redis still knows it. 0 keeps nothing, and
    what such a Redis has lost stays lost.

    Why: a replica that is more than a minute behind is rarely promoted; a minute of a fast crawl takes a
    few megabytes.
    """

    lease_seconds: float = setting(15.0, unit="seconds", above=0)
    """How long after its last heartbeat a worker counts as dead and its requests go to others. At
    least twice `CLUSTER_HEARTBEAT_SECONDS`.

    Why: a dead worker's pages are won back within about 20 s, and a pause of the garbage collector
    or the network is no death.
    """

    loop_stall_seconds: float = setting(120.0, unit="seconds", at_least=1)
    """How long the event loop may stand still before the worker stops its heartbeat and gives its
    requests to others.

    Why: a callback that computes for a minute is alive, one that has not returned for two hangs.
    """

    store_wait_seconds: float = setting(60.0, unit="seconds", at_least=0)
    """How long a worker waits for a store that does not answer before it gives up with exit code 6.

    Why: a restart or a failover takes seconds, and the crawl goes on by itself; a worker that ends
    loudly after a minute is seen and started again, and loses nothing.
    """

    stop_seconds: float = setting(25.0, unit="seconds", at_least=0)
    """How long a worker that was asked to stop (SIGTERM, Ctrl-C) may take to finish the pages in
    its engine before it hands them back.

    Why: Kubernetes kills 30 s after SIGTERM; the difference is for handing back what is left.
    """


@dataclass(frozen=True, kw_only=True)
class Config(CrawlSettings, DupefilterSettings, QueueSettings, LivenessSettings):
    """All settings of one worker, checked. Every field has a default, so tests name what they mean.

    Only :meth:`from_settings` checks; a Config made by hand is taken as it is.
    """

    @classmethod
    def from_settings(
        cls, settings: BaseSettings, environ: Mapping[str, str] | None = None
    ) -> Self:
        """Read and check every setting.

        Args:
            settings: Scrapy's settings of the crawler.
            environ: the environment; that of the process by default.

        Raises:
            ConfigError: a value is wrong, or a ``CLUSTER_`` name in the settings is unknown.
        """
        environ = os.environ if environ is None else environ
        _refuse_unknown(settings)
        kinds = get_type_hints(cls)
        sources = {
            f.name: value
            for f in fields(cls)
            if (value := given(setting_name(f.name), settings, environ)) is not None
        }
        values: dict[str, Any] = {
            f.name: sources[f.name].read(kinds[f.name], f.metadata["rule"])
            for f in fields(cls)
            if f.name in sources
        }
        config = cls(**values)
        _check_lease(config, sources)
        return config


SECTIONS = (CrawlSettings, DupefilterSettings, QueueSettings, LivenessSettings)


def setting_name(field_name: str) -> str:
    """The setting of a field of :class:`Config`: ``frontier_url`` is ``CLUSTER_FRONTIER_URL``."""
    return PREFIX + field_name.upper()


def unknown_in_environment(environ: Mapping[str, str]) -> list[str]:
    """A sentence for each ``CLUSTER_`` variable that is no setting, without those of Kubernetes."""
    return [
        f"{name} in the environment is no setting and is ignored; {_hint(name)}"
        for name in _unknown(environ)
        if not _INJECTED.fullmatch(name)
    ]


def _refuse_unknown(settings: BaseSettings) -> None:
    for name in _unknown(settings):
        source = source_of(settings.getpriority(name) or 0)
        raise ConfigError(f"{name} from {source} is no setting; {_hint(name)}")


def _unknown(names: Iterable[str]) -> list[str]:
    known = {setting_name(f.name) for f in fields(Config)}
    return sorted(name for name in names if name.startswith(PREFIX) and name not in known)


def _hint(name: str) -> str:
    # Compared without the prefix, which all have in common.
    known = [f.name.upper() for f in fields(Config)]
    nearest = get_close_matches(name.removeprefix(PREFIX), known, n=1)
    if nearest:
        return f"did you mean {PREFIX}{nearest[0]}?"
    return "remove it, docs/settings.md lists all there are."


def _check_lease(config: Config, sources: Mapping[str, Given]) -> None:
    if config.lease_seconds >= 2 * config.heartbeat_seconds:
        return
    # One of the two was given: the defaults fit each other.
    blamed = sources.get("lease_seconds") or sources["heartbeat_seconds"]
    raise blamed.refusal(
        f"makes CLUSTER_LEASE_SECONDS ({config.lease_seconds:g}) less than twice"
        f" CLUSTER_HEARTBEAT_SECONDS ({config.heartbeat_seconds:g}), so that one lost heartbeat"
        " would be a death; raise the first or lower the second"
    )
