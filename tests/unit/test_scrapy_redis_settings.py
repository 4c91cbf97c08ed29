"""What becomes of the settings of scrapy-redis and its forks."""

from __future__ import annotations

import pytest
from scrapy.settings import Settings

from clusterscrapy.compat.scrapy_redis.settings import (
    _IGNORED,
    replace_classes,
    translate,
    url_of,
)
from clusterscrapy.config import Config
from clusterscrapy.exceptions import ConfigError
from clusterscrapy.frontier import open_store

THEIRS = {"DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter"}


def settings_of(**values):
    settings = Settings()
    settings.setdict(values, "project")
    return settings


def translated(**values):
    """Our configuration, as a project of scrapy-redis gets it."""
    settings = settings_of(**THEIRS, **values)
    notes = translate(settings)
    return Config.from_settings(settings, {}), notes


def refusal(**values):
    with pytest.raises(ConfigError) as caught:
        translated(**values)
    return str(caught.value)


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch):
    monkeypatch.delenv("CLUSTER_FRONTIER_URL", raising=False)


# --- whose project it is ------------------------------------------------------------------


def test_a_project_that_does_not_use_it_is_left_alone():
    # REDIS_URL may be the project's own, for a cache of its own.
    settings = settings_of(REDIS_URL="redis://cache:6379/0", ITEM_PIPELINES={"my.Pipeline": 1})
    assert translate(settings) == []
    assert settings.get("CLUSTER_FRONTIER_URL") is None


@pytest.mark.parametrize(
    "values",
    [
        {"SCHEDULER": "scrapy_redis.scheduler.Scheduler"},
        {"SCHEDULER": "scrapy_redis_bloomfilter.scheduler.Scheduler"},
        {"DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter"},
        {"STATS_CLASS": "scrapy_redis.stats.RedisStatsCollector"},
        {"ITEM_PIPELINES": {"scrapy_redis.pipelines.RedisPipeline": 300}},
        {"REDIS_START_URLS_KEY": "%(name)s:seeds"},
        {"SCHEDULER_PERSIST": False},
    ],
    ids=lambda values: next(iter(values)),
)
def test_one_name_of_it_is_enough(values):
    settings = settings_of(REDIS_HOST="r1", **values)
    translate(settings)
    assert settings["CLUSTER_FRONTIER_URL"] == "redis://r1:6379/0"


@pytest.mark.parametrize(
    "fork", ["scrapy_redis", "scrapy_redis_bloomfilter", "scrapy_redis_cluster"]
)
def test_its_classes_and_those_of_forks_are_replaced_as_strongly_as_they_were_set(fork):
    settings = settings_of(SCHEDULER=f"{fork}.scheduler.Scheduler")
    assert replace_classes(settings) == [
        f"SCHEDULER={fork}.scheduler.Scheduler is replaced by clusterscrapy.scheduler.Scheduler"
    ]
    assert settings["SCHEDULER"] == "clusterscrapy.scheduler.Scheduler"


def test_a_scheduler_of_the_projects_own_is_not_replaced():
    settings = settings_of(SCHEDULER="project.scheduler.MyRedisScheduler")
    assert replace_classes(settings) == []


# --- where Redis is -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "url"),
    [
        ({}, "redis://localhost:6379/0"),
        ({"REDIS_HOST": "r1", "REDIS_PORT": "6380", "REDIS_DB": 3}, "redis://r1:6380/3"),
        ({"REDIS_URL": "redis://r1"}, "redis://r1/0"),
        ({"REDIS_URL": "rediss://u:p%40ss@r1:1/2?ssl_cert_reqs=none"},
         "rediss://u:p%40ss@r1:1/2?ssl_cert_reqs=none"),
        ({"REDIS_URL": "redis://r1:1/2", "REDIS_HOST": "other"}, "redis://r1:1/2"),
        ({"REDIS_URL": "redis://r1", "REDIS_PARAMS": {"password": "a/b:c@d", "db": 4}},
         "redis://:a%2Fb%3Ac%40d@r1/4"),
        ({"REDIS_PARAMS": {"username": "ü", "password": 7, "ssl": True, "host": "::1"}},
         "rediss://%C3%BC:7@[::1]:6379/0"),
        ({"REDIS_PARAMS": '{"host": "r2", "port": 1}'}, "redis://r2:1/0"),
    ],
)  # fmt: skip
def test_the_frontier_is_in_the_redis_of_the_seeds(values, url):
    assert url_of(settings_of(**values)) == url
    open_store(url)


def test_a_frontier_url_of_the_users_own_wins(monkeypatch):
    config, _ = translated(CLUSTER_FRONTIER_URL="sqlite://", REDIS_URL="redis://r1")
    assert config.frontier_url == "sqlite://"
    monkeypatch.setenv("CLUSTER_FRONTIER_URL", "sqlite://")
    settings = settings_of(**THEIRS, REDIS_SENTINELS=[("s1", 26379)])
    translate(settings)
    assert settings.get("CLUSTER_FRONTIER_URL") is None


def test_what_a_spider_sets_comes_after_what_the_project_sets():
    settings = settings_of(**THEIRS, REDIS_URL="redis://r1/0")
    translate(settings)
    settings.set("REDIS_URL", "redis://r2/0", "spider")
    translate(settings)
    assert settings["CLUSTER_FRONTIER_URL"] == "redis://r2/0"


@pytest.mark.parametrize(
    "values",
    [
        {"REDIS_PARAMS": {"redis_cls": "my.Sentinel"}},
        {"REDIS_URL": "unix:///run/redis.sock"},
        {"REDIS_PARAMS": {"unix_socket_path": "/run/redis.sock"}},
        {"REDIS_SENTINELS": [("s1", 26379)]},
        {"REDIS_STARTUP_NODES": [{"host": "n1", "port": 1}]},
    ],
)
def test_what_a_url_cannot_say_is_refused_with_the_remedy(values):
    assert "CLUSTER_FRONTIER_URL=redis://HOST:PORT/DB" in refusal(**values)


def test_parameters_that_are_none_are_refused():
    assert refusal(REDIS_PARAMS="[").startswith("REDIS_PARAMS cannot be read")


# --- the rest ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("queue", "order"),
    [
        ("scrapy_redis.queue.SpiderQueue", "fifo"),
        ("scrapy_redis.queue.FifoQueue", "fifo"),
        ("scrapy_redis.queue.SpiderStack", "lifo"),
        ("scrapy_redis.queue.LifoQueue", "lifo"),
        ("scrapy_redis.queue.SpiderPriorityQueue", "fifo"),
        ("scrapy_redis.queue.PriorityQueue", "fifo"),
    ],
)
def test_the_three_queues_and_their_old_names(queue, order):
    config, notes = translated(SCHEDULER_QUEUE_CLASS=queue)
    assert config.queue_order == order
    assert notes == []


def test_a_queue_of_the_users_own_is_named_as_ignored():
    config, notes = translated(SCHEDULER_QUEUE_CLASS="project.queue.Mine")
    assert config.queue_order == "fifo"
    assert notes[0].startswith("SCHEDULER_QUEUE_CLASS=project.queue.Mine has no effect")


@pytest.mark.parametrize("name", sorted(_IGNORED))
def test_each_ignored_setting_is_named_once_with_its_reason(name):
    _, notes = translated(**{name: 6})
    assert len(notes) == 1
    assert notes[0].startswith(f"{name} has no effect with clusterscrapy: ")


def test_the_filters_of_forks_are_mapped():
    config, notes = translated(BLOOMFILTER_BIT=30, BLOOMFILTER_HASH_NUMBER=6)
    assert config.dupefilter_capacity == 2**30 // 30
    assert notes[0].startswith("BLOOMFILTER_BIT=30 became CLUSTER_DUPEFILTER_CAPACITY=")
    config, _ = translated(BLOOMFILTER_CAPACITY=5000, BLOOMFILTER_ERRORRATE="0.001")
    assert (config.dupefilter_capacity, config.dupefilter_error_rate) == (5000, 0.001)


def test_a_filter_that_is_full_at_once_is_refused():
    # The figure of a popular README; full after 107 URLs at an error of 1 %.
    assert "full after about 107 URLs" in refusal(BLOOMFILTER_BIT=10)
    assert "full after about 6,815 URLs" in refusal(BLOOMFILTER_BIT=16)
    translated(BLOOMFILTER_BIT=17)


@pytest.mark.parametrize(
    ("name", "value"),
    [("BLOOMFILTER_BIT", "many"), ("BLOOMFILTER_CAPACITY", 0), ("BLOOMFILTER_ERRORRATE", 2)],
)
def test_a_wrong_value_is_refused_by_the_name_the_user_knows(name, value):
    assert refusal(**{name: value}).startswith(f"{name}={value!r} from the project's settings")
