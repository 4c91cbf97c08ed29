"""Projects of scrapy-redis, with one line of their settings changed."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from clusterscrapy.compat.scrapy_redis.seeds import PUT_BACK, SeedKey
from tests.chaos.crawl import Crawl, Worker, wait_until
from tests.servers import RedisServer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]
SETTINGS = "tests.integration.scrapy_redis_project.settings"
CrawlOf = Callable[..., Crawl]
IDLE = ("-s", "MAX_IDLE_TIME_BEFORE_CLOSE=1")


@pytest.fixture
def seeds(redis_url: str) -> Iterator[Any]:
    """The Redis of the seeds and items."""
    with redis.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def spider_of(crawl_of: CrawlOf, redis_url: str) -> Callable[..., Crawl]:
    """A crawl of the scrapy-redis project, whose frontier is where its REDIS_URL says."""

    def make(spider: str, **arguments: str) -> Crawl:
        environ = {
            "SCRAPY_SETTINGS_MODULE": SETTINGS,
            "SEEDS_REDIS": redis_url,
            "CLUSTER_FRONTIER_URL": "",
        }
        return crawl_of(spider, redis_url, environ=environ, **arguments)

    return make


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[RedisServer]:
    """Another Redis, which may be stopped in its tracks."""
    server = RedisServer(tmp_path)
    yield server
    server.stop()


def items(client: Any, spider: str) -> list[dict[str, object]]:
    return [json.loads(item) for item in client.lrange(f"{spider}:items", 0, -1)]


def keys_left(client: Any, spider: str) -> list[bytes]:
    """Keys of seeds: all of them are read, and no hand is forgotten."""
    return list(client.keys(f"*{spider}:start_urls*"))


# --- one project of each kind -----------------------------------------------------------------


@pytest.mark.parametrize("kind", ["list", "set", "zset"])
def test_seeds_of_each_kind_of_key(kind: str, spider_of: CrawlOf, seeds: Any) -> None:
    crawl = spider_of("myspider")
    urls = [f"{crawl.site.url}echo?{number}" for number in range(40)]
    key = "myspider:start_urls"
    options = {"list": "REDIS_START_URLS_AS_SET=0", "set": "REDIS_START_URLS_AS_SET=1"}
    if kind == "list":
        seeds.rpush(key, *urls)
    elif kind == "set":
        seeds.sadd(key, *urls)
    else:
        seeds.zadd(key, {url: -number for number, url in enumerate(urls)})
    worker = crawl.start(
        *IDLE, "-s", options.get(kind, "REDIS_START_URLS_AS_ZSET=1"), "-s", "CONCURRENT_REQUESTS=1"
    )
    assert worker.wait() == 0, worker.text()
    asked = crawl.asked()
    expected = [f"/echo?{number}" for number in range(40)]
    # Lists from their head, sorted sets from the highest score on.
    assert (sorted(asked) if kind == "set" else asked) == (
        sorted(expected) if kind == "set" else expected
    )
    assert sorted(str(item["url"]) for item in items(seeds, "myspider")) == sorted(urls)
    assert keys_left(seeds, "myspider") == []
    assert seeds.exists("clusterscrapy:crawls"), "the frontier is where REDIS_URL says"


def test_a_crawl_spider_follows_links_from_its_seeds(spider_of: CrawlOf, seeds: Any) -> None:
    crawl = spider_of("mycrawler", domain="127.0.0.1")
    seeds.lpush("mycrawler:start_urls", crawl.site.url)
    worker = crawl.start(*IDLE)
    assert worker.wait() == 0, worker.text()
    pages = set(crawl.asked())
    assert pages == crawl.site.expected()
    assert len(items(seeds, "mycrawler")) == len(pages) - 1, "the seed itself goes by no rule"


def test_a_spider_without_seeds_ends_by_itself(spider_of: CrawlOf, seeds: Any) -> None:
    crawl = spider_of("plain")
    worker = crawl.start()
    assert worker.wait() == 0, worker.text()
    assert set(crawl.asked()) >= crawl.site.expected()
    assert len(items(seeds, "plain")) == len(crawl.site.expected()) - 1


def test_a_json_seed_has_form_data_method_and_meta(spider_of: CrawlOf, seeds: Any) -> None:
    crawl = spider_of("myspider")
    url = f"{crawl.site.url}echo"
    post = {"url": url, "method": "POST", "a": "1", "meta": {"job-id": "123xsd"}}
    get = {"url": url, "q": "2"}
    seeds.rpush("myspider:start_urls", json.dumps(post), json.dumps(get))
    worker = crawl.start(*IDLE)
    assert worker.wait() == 0, worker.text()
    by_method = {item["method"]: item for item in items(seeds, "myspider")}
    assert by_method["POST"]["body"] == "a=1"
    assert by_method["POST"]["meta"] == "123xsd"
    assert by_method["GET"]["path"] == "/echo?q=2"


# --- T18: bad seeds ---------------------------------------------------------------------------


def test_bad_seeds_are_counted_and_kept_and_the_batch_goes_on(
    spider_of: CrawlOf, seeds: Any
) -> None:
    crawl = spider_of("myspider")
    good = [f"{crawl.site.url}echo?ok1", f"{crawl.site.url}echo?ok2"]
    bad = ["123", b"\xff\xfe", '{"nourl":1}', '"str"', ""]
    seeds.rpush("myspider:start_urls", good[0], *bad, good[1])
    worker = crawl.start(*IDLE)
    assert worker.wait() == 0, worker.text()
    assert sorted(str(item["url"]) for item in items(seeds, "myspider")) == good
    frontier = crawl.frontier
    letters = list(frontier.dead_letters())
    frontier.close()
    assert len(letters) == 5
    assert {letter.reason for letter in letters} == {"seed"}
    log = worker.text()
    assert "'clusterscrapy/seeds/read': 7" in log
    assert "'clusterscrapy/seeds/bad': 5" in log
    assert "'clusterscrapy/seeds/bad/UnicodeDecodeError': 1" in log
    assert "'clusterscrapy/seeds/bad/no request': 1" in log
    assert log.count("String request is deprecated") == 1
    assert "Traceback" not in log


def test_a_spiders_own_make_request_from_data(spider_of: CrawlOf, seeds: Any) -> None:
    crawl = spider_of("own")
    seeds.rpush("own:start_urls", "one", "bad", "two")
    worker = crawl.start(*IDLE)
    assert worker.wait() == 0, worker.text()
    assert sorted(crawl.asked()) == ["/echo?one", "/echo?two"]
    assert "'clusterscrapy/seeds/bad/KeyError': 1" in worker.text()


# --- promises -----------------------------------------------------------------------------


def _feed(crawl: Crawl, seeds: Any, count: int, path: str = "echo?") -> list[str]:
    urls = [f"{crawl.site.url}{path}{number}" for number in range(count)]
    seeds.rpush("myspider:start_urls", *urls)
    return urls


def test_no_seed_is_lost_by_kills(spider_of: CrawlOf, seeds: Any) -> None:
    crawl = spider_of("myspider")
    _feed(crawl, seeds, 600, "slow/0.02?")
    fast = ("-s", "CLUSTER_LEASE_SECONDS=2", "-s", "CLUSTER_HEARTBEAT_SECONDS=0.5")
    for hits in (50, 200, 400):
        worker = crawl.start(*IDLE, *fast)
        crawl.wait_for_hits(hits, worker)
        worker.kill()
    last = crawl.start(*IDLE, *fast)
    assert last.wait() == 0, last.text()
    counts = Counter(crawl.asked())
    assert len(counts) == 600, "seeds were lost"
    assert keys_left(seeds, "myspider") == []


def _death_with_seeds_in_hand(crawl: Crawl) -> None:
    worker = crawl.start(
        *IDLE, runner=["-m", "tests.integration.scrapy_redis_project.dies_with_seeds"]
    )
    assert worker.wait() == -9, worker.text()


@pytest.mark.parametrize("kind", ["list", "set", "zset"])
def test_seeds_in_the_hand_of_a_dead_worker_come_back(
    kind: str, spider_of: CrawlOf, seeds: Any
) -> None:
    crawl = spider_of("myspider")
    url, key = f"{crawl.site.url}echo?", "myspider:start_urls"
    urls = [f"{url}{number}" for number in range(20)]
    if kind == "list":
        seeds.rpush(key, *urls)
    elif kind == "set":
        seeds.sadd(key, *urls)
    else:
        seeds.zadd(key, dict.fromkeys(urls, 1))
    _death_with_seeds_in_hand(crawl)
    assert not seeds.exists(key), "they are in the hand of the dead worker"
    [hands] = seeds.keys("*:hands")
    hand = seeds.zrange(hands, 0, -1)[0]
    # As if its last beat had been long ago.
    seeds.zadd(hands, {hand: time.time() - 16})
    worker = crawl.start(*IDLE)
    assert worker.wait(30) == 0, worker.text()
    assert Counter(crawl.asked()) == Counter(f"/echo?{n}" for n in range(20))
    assert keys_left(seeds, "myspider") == []


def test_nobody_closes_while_seeds_are_in_a_dead_hand(spider_of: CrawlOf, seeds: Any) -> None:
    crawl = spider_of("myspider")
    _feed(crawl, seeds, 5)
    _death_with_seeds_in_hand(crawl)
    worker = crawl.start(*IDLE)  # it has to wait for longer than it may be idle
    assert worker.wait() == 0, worker.text()
    assert len(crawl.asked()) == 5


def test_two_workers_share_one_key(spider_of: CrawlOf, seeds: Any) -> None:
    crawl = spider_of("myspider")
    workers = [crawl.start(*IDLE) for _ in range(2)]
    for start in range(0, 300, 100):
        seeds.rpush(
            "myspider:start_urls",
            *(f"{crawl.site.url}slow/0.02?{n}" for n in range(start, start + 100)),
        )
        time.sleep(0.3)
    assert [worker.wait() for worker in workers] == [0, 0]
    counts = Counter(crawl.asked())
    assert len(counts) == 300
    assert set(counts.values()) == {1}
    assert all("Reading" in worker.text() for worker in workers)


def test_a_slow_page_holds_no_seed_back(spider_of: CrawlOf, seeds: Any) -> None:
    crawl = spider_of("myspider")
    seeds.rpush("myspider:start_urls", f"{crawl.site.url}slow/5?first")
    worker = crawl.start(*IDLE, "-s", "CONCURRENT_REQUESTS=2")
    crawl.wait_for_hits(1, worker)
    began = time.monotonic()
    _feed(crawl, seeds, 30)
    crawl.wait_for_hits(31, worker)
    assert time.monotonic() - began < 4
    assert worker.wait() == 0


def test_a_worker_that_is_stopped_leaves_the_seeds(spider_of: CrawlOf, seeds: Any) -> None:
    crawl = spider_of("myspider")
    _feed(crawl, seeds, 1000, "slow/0.05?")
    worker = crawl.start(*IDLE)
    crawl.wait_for_hits(50, worker)
    worker.signal(15)
    assert worker.wait() == 5, worker.text()
    status = crawl.status()
    waiting = seeds.llen("myspider:start_urls")
    fetched = len(set(crawl.asked()))
    assert waiting + status.waiting + fetched == 1000
    assert keys_left(seeds, "myspider") == [b"myspider:start_urls"]
    assert waiting > 500, "only what there is room for is taken"


def test_a_spider_with_its_own_reading_keeps_it(spider_of: CrawlOf, seeds: Any) -> None:
    crawl = spider_of("greedy")
    seeds.rpush("greedy:start_urls", f"{crawl.site.url}echo?1", f"{crawl.site.url}echo?2")
    worker = crawl.start(*IDLE)
    assert worker.wait() == 0, worker.text()
    assert sorted(crawl.asked()) == ["/echo?1", "/echo?2"]
    assert "has its own next_requests()" in worker.text()


def test_a_key_of_another_kind_is_said_and_waited_for(spider_of: CrawlOf, seeds: Any) -> None:
    crawl = spider_of("myspider")
    seeds.hset("myspider:start_urls", "a", "b")
    worker = crawl.start(*IDLE)
    said = "Seed key 'myspider:start_urls' holds a hash; delete it"
    wait_until(lambda: said in worker.text(), 20)
    seeds.delete("myspider:start_urls")
    _feed(crawl, seeds, 3)
    assert worker.wait() == 0, worker.text()
    assert len(crawl.asked()) == 3
    assert worker.text().count(said) == 1


def test_a_spider_that_was_idle_may_be_started_again_at_once(
    spider_of: CrawlOf, seeds: Any
) -> None:
    crawl = spider_of("myspider")
    for number in range(2):
        seeds.rpush("myspider:start_urls", f"{crawl.site.url}echo?{number}")
        assert crawl.start(*IDLE).wait() == 0
    assert crawl.asked() == ["/echo?0", "/echo?1"]


def test_a_spiders_own_idle_handler_is_kept_and_takes_no_seed(
    spider_of: CrawlOf, seeds: Any
) -> None:
    crawl = spider_of("handler")
    seeds.rpush("handler:start_urls", f"{crawl.site.url}echo?1")
    crawl.arguments["again"] = f"{crawl.site.url}echo?2"
    worker = crawl.start(*IDLE)
    assert worker.wait() == 0, worker.text()
    assert crawl.asked() == ["/echo?1", "/echo?2"]
    assert "idle, it would have taken []" in worker.text()


def test_seeds_that_no_store_has_confirmed_go_back_to_their_key(
    spider_of: CrawlOf, seeds: Any, frozen: RedisServer
) -> None:
    crawl = spider_of("myspider")
    crawl.environ["CLUSTER_FRONTIER_URL"] = crawl.store = frozen.url
    worker = crawl.start("-s", "CLUSTER_STOP_SECONDS=2")
    wait_until(lambda: "Reading start URLs" in worker.text() and crawl.status().workers, 20)
    assert frozen.process is not None
    frozen.process.send_signal(signal.SIGSTOP)
    time.sleep(0.5)
    urls = _feed(crawl, seeds, 3)
    wait_until(lambda: not seeds.exists("myspider:start_urls"), 10)
    worker.signal(signal.SIGTERM)
    worker.wait(30)
    assert [url.decode() for url in seeds.lrange("myspider:start_urls", 0, -1)] == urls


# --- the keys themselves ----------------------------------------------------------------------


def test_an_answer_that_was_lost_costs_no_seed(seeds: Any) -> None:
    seeds.rpush("k", *range(10))
    key = SeedKey(seeds, "k")
    first = key.take(3)
    assert key.take(3) == first, "asked again, because the answer was lost"
    assert first.seeds == [b"0", b"1", b"2"]
    key.stored()
    again = key.take(3)
    assert again.seeds == [b"3", b"4", b"5"]
    assert again.left == 4
    assert key.take(PUT_BACK).seeds == []
    assert seeds.lrange("k", 0, -1) == [str(number).encode() for number in range(3, 10)]


@pytest.mark.parametrize("kind", ["list", "set", "zset"])
def test_two_readers_take_each_seed_once_and_hold_it_while_they_beat(kind: str, seeds: Any) -> None:
    names = [str(number).encode() for number in range(10)]
    if kind == "list":
        seeds.rpush("k", *names)
    elif kind == "set":
        seeds.sadd("k", *names)
    else:
        seeds.zadd("k", {name: int(name) for name in names})
    one, two = SeedKey(seeds, "k"), SeedKey(seeds, "k")
    mine, yours = one.take(6), two.take(6)
    assert sorted(mine.seeds + yours.seeds) == names
    assert yours.left == 1, "the hand of the other"
    one.take(PUT_BACK)
    if kind == "zset":
        assert seeds.zrange("k", 0, -1, withscores=True)[-1] == (b"9", 9.0)
    else:
        assert seeds.exists("k")
    two.stored()
    assert two.take(0).left == 6
    assert two.take(9).seeds if kind == "set" else two.take(9).seeds == mine.seeds


# --- what is said of the settings ----------------------------------------------------------


def _log(worker: Worker) -> str:
    assert worker.wait() == 0, worker.text()
    return worker.text()


def test_a_project_with_not_one_line_changed(spider_of: CrawlOf, seeds: Any) -> None:
    crawl = spider_of("myspider")
    _feed(crawl, seeds, 3)
    log = _log(
        crawl.start(
            *IDLE,
            *("-s", "SCHEDULER=scrapy_redis.scheduler.Scheduler"),
            *("-s", "STATS_CLASS=scrapy_redis.stats.RedisStatsCollector"),
        )
    )
    assert len(crawl.asked()) == 3
    assert "SCHEDULER=scrapy_redis.scheduler.Scheduler is replaced by clusterscrapy" in log
    assert "STATS_CLASS=scrapy_redis.stats.RedisStatsCollector is replaced by" in log
    assert log.count("SCHEDULER_PERSIST has no effect") == 1
    assert "Traceback" not in log


def test_the_scheduler_without_the_add_on_is_refused(spider_of: CrawlOf) -> None:
    ours = "SCHEDULER=clusterscrapy.scheduler.Scheduler"
    worker = spider_of("plain").start("-s", "ADDONS={}", "-s", ours)
    assert worker.wait() == 8
    assert f"{ours} alone is not enough; replace that line by ADDONS" in worker.text()


def test_a_filter_too_small_is_refused(spider_of: CrawlOf) -> None:
    worker = spider_of("myspider").start("-s", "BLOOMFILTER_BIT=10")
    assert worker.wait() == 8
    assert "full after about 107 URLs" in worker.text()
    assert "Traceback" not in worker.text()
