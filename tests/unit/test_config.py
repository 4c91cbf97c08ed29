"""How settings are read, from where, and how a wrong one is refused."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields

import pytest
from scrapy.settings import SETTINGS_PRIORITIES, BaseSettings

from clusterscrapy import setting
from clusterscrapy.config import Config, unknown_in_environment
from clusterscrapy.exceptions import ConfigError
from clusterscrapy.frontier import open_store


def settings_of(priority="project", **values):
    return BaseSettings({f"CLUSTER_{name}": value for name, value in values.items()}, priority)


def read(environ=None, priority="project", **values):
    return Config.from_settings(settings_of(priority, **values), environ or {})


def refusal(environ=None, priority="project", **values):
    with pytest.raises(ConfigError) as caught:
        read(environ, priority, **values)
    return str(caught.value)


# --- where a value comes from ----------------------------------------------------------


def test_without_any_setting_every_field_has_its_default():
    assert read() == Config()


def test_the_defaults_pass_their_own_rules():
    given = {f.name.upper(): getattr(Config(), f.name) for f in fields(Config)}
    assert read(**given) == Config()


def test_the_defaults_written_as_text_are_the_defaults():
    texts = {f"CLUSTER_{f.name.upper()}": str(f.default) for f in fields(Config) if f.default != ()}
    assert read(texts) == Config()


def test_the_environment_of_the_process_is_read_by_default(monkeypatch):
    monkeypatch.setenv("CLUSTER_CRAWL_ID", "monday")
    assert Config.from_settings(BaseSettings()).crawl_id == "monday"


@pytest.mark.parametrize("priority", ["addon", "project", "spider"])
def test_the_environment_wins_over_settings_in_code(priority):
    assert read({"CLUSTER_PREFETCH": "7"}, priority, PREFETCH=3).prefetch == 7


def test_the_command_line_wins_over_the_environment():
    assert read({"CLUSTER_PREFETCH": "7"}, "cmdline", PREFETCH="3").prefetch == 3


@pytest.mark.parametrize(
    ("higher", "lower"), [("cmdline", "spider"), ("spider", "project"), ("project", "addon")]
)
def test_settings_keep_scrapys_own_precedence(higher, lower):
    settings = settings_of(lower, PREFETCH=1)
    settings.set("CLUSTER_PREFETCH", 2, higher)
    assert Config.from_settings(settings, {}).prefetch == 2


def test_an_empty_environment_variable_counts_as_not_given():
    assert read({"CLUSTER_PREFETCH": ""}, PREFETCH=3).prefetch == 3


def test_a_setting_that_is_none_counts_as_not_given():
    assert read(FRONTIER_URL=None).frontier_url == "sqlite://"


def test_the_priorities_are_those_of_scrapy():
    assert set(setting._SOURCES) - {setting.TRANSLATED} == set(SETTINGS_PRIORITIES.values())
    assert SETTINGS_PRIORITIES["cmdline"] == setting.COMMAND_LINE


def test_a_config_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        read().prefetch = 3


# --- how a value is read ---------------------------------------------------------------


@pytest.mark.parametrize("text", ["1", "true", "True", "yes", "ON", " on "])
def test_text_that_means_yes_is_true(text):
    assert read({"CLUSTER_KEEP": text}).keep is True


@pytest.mark.parametrize("text", ["0", "false", "False", "no", "OFF"])
def test_text_that_means_no_is_false(text):
    assert read({"CLUSTER_RESUME": text}).resume is False


@pytest.mark.parametrize(("value", "expected"), [(True, True), (0, False), ("yes", True)])
def test_a_switch_in_code_may_be_a_bool_a_number_or_text(value, expected):
    assert read(KEEP=value).keep is expected


@pytest.mark.parametrize("value", [12, 12.0, "12", " 12 ", "1_2", "1.2e1"])
def test_a_whole_number_may_be_written_in_many_ways(value):
    prefetch = read(PREFETCH=value).prefetch
    assert prefetch == 12
    assert type(prefetch) is int


@pytest.mark.parametrize("value", [2, 2.0, "2", "2.0"])
def test_seconds_are_a_float(value):
    seconds = read(STOP_SECONDS=value).stop_seconds
    assert seconds == 2.0
    assert type(seconds) is float


@pytest.mark.parametrize("value", ["a.B, c.D", ["a.B", "c.D"], ("a.B", "c.D"), " a.B,,c.D,"])
def test_a_list_may_be_a_list_or_text_with_commas(value):
    assert read(REQUEST_CLASSES=value).request_classes == ("a.B", "c.D")


def test_an_empty_list_on_the_command_line_undoes_the_projects():
    settings = settings_of("project", REQUEST_CLASSES=["a.B"])
    settings.set("CLUSTER_REQUEST_CLASSES", "", "cmdline")
    assert Config.from_settings(settings, {}).request_classes == ()


# --- how a wrong value is refused ------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("CRAWL_ID", 7),
        ("DUPEFILTER", "Bloom"),
        ("DUPEFILTER_CAPACITY", 0),
        ("DUPEFILTER_ERROR_RATE", 0),
        ("DUPEFILTER_ERROR_RATE", 0.1),
        ("DUPEFILTER_ERROR_RATE", "nan"),
        ("FRONTIER_URL", "frontier"),
        ("FRONTIER_URL", "http://host"),
        ("FRONTIER_URL", "redis:host"),
        ("FRONTIER_URL", ""),
        ("HEARTBEAT_SECONDS", 0),
        ("KEEP", "maybe"),
        ("KEEP", ""),
        ("KEEP", 2),
        ("MAX_DELIVERIES", 0),
        ("MAX_DELIVERIES", 1.5),
        ("MAX_DELIVERIES", True),
        ("MAX_DELIVERIES", []),
        ("MAX_DELIVERIES", "five"),
        ("MAX_DELIVERIES", 10**400),
        ("OUTBOX_MAX_REQUESTS", 0),
        ("PREFETCH", -1),
        ("PREFETCH", "inf"),
        ("QUEUE_ORDER", "random"),
        ("REQUEST_CLASSES", 5),
        ("REQUEST_CLASSES", ["NoModule"]),
        ("REQUEST_CLASSES", [1]),
        ("STOP_SECONDS", "inf"),
        ("STOP_SECONDS", -0.5),
    ],
)
def test_a_value_of_the_wrong_type_range_or_choice_is_refused(field, value):
    message = refusal(**{field: value})
    assert message.startswith(f"CLUSTER_{field}=")
    assert "; give " in message


@pytest.mark.parametrize(
    ("priority", "words"),
    [
        ("cmdline", "the command line"),
        ("spider", "the spider's settings"),
        ("project", "the project's settings"),
        ("addon", "an add-on"),
        ("default", "the default settings"),
    ],
)
def test_a_refusal_says_where_the_value_came_from(priority, words):
    assert f"='x' from {words} cannot be used" in refusal(priority=priority, PREFETCH="x")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis://host/abc", "by its number"),
        ("redis://host/1/2", "by its number"),
        ("redis://host/0#1", "by its number"),
        ("redis://host:port/0", "malformed"),
        ("redis://host/0?nonsense=1", "is not a Redis URL"),
        ("sqlite:///folder?mode=ro", "%3F"),
        ("sqlite://#1", "%23"),
        ("memory://space?x", "%3F"),
    ],
)
def test_a_url_of_which_a_part_would_be_ignored_is_refused(url, words):
    with pytest.raises(ConfigError, match=words):
        open_store(url)


@pytest.mark.parametrize(
    "url", ["redis://host", "redis://host/", "redis://host/12", "redis://host?db=2"]
)
def test_a_redis_database_may_be_left_out_or_an_option(url):
    assert open_store(url).place


def test_a_refusal_names_the_environment():
    assert refusal({"CLUSTER_PREFETCH": "x"}) == (
        "CLUSTER_PREFETCH='x' from the environment cannot be used;"
        " give a whole number of requests of at least 0."
    )


def test_a_refusal_lists_the_choices():
    assert refusal(DUPEFILTER="blom").endswith("give one of bloom, exact, none.")


def test_a_refusal_names_both_bounds():
    assert refusal(DUPEFILTER_ERROR_RATE=1).endswith("give a number above 0 and below 0.1.")


def test_a_refusal_shows_no_password():
    message = refusal(FRONTIER_URL="reddis://user:pass'wo/r@d@host")
    assert "wo/r" not in message
    assert "reddis://***@host" in message


def test_a_refusal_of_an_endless_value_is_short():
    assert len(refusal(QUEUE_ORDER="x" * 10_000)) < 300


def test_a_refused_configuration_has_exit_code_8():
    assert ConfigError.exit_code == 8


def test_a_lease_shorter_than_two_heartbeats_is_refused():
    message = refusal({"CLUSTER_LEASE_SECONDS": "8"})
    assert message.startswith("CLUSTER_LEASE_SECONDS=")
    assert "from the environment" in message
    assert "CLUSTER_HEARTBEAT_SECONDS (5)" in message


def test_a_heartbeat_too_slow_for_the_default_lease_is_named_itself():
    message = refusal(HEARTBEAT_SECONDS=10)
    assert message.startswith("CLUSTER_HEARTBEAT_SECONDS=10 from the project's settings")


def test_a_lease_of_exactly_two_heartbeats_is_taken():
    assert read(HEARTBEAT_SECONDS=4, LEASE_SECONDS=8).lease_seconds == 8


# --- names nobody knows ----------------------------------------------------------------


def test_an_unknown_setting_is_refused_with_the_nearest_right_one():
    assert refusal(FRONTEIR_URL="redis://host") == (
        "CLUSTER_FRONTEIR_URL from the project's settings is no setting;"
        " did you mean CLUSTER_FRONTIER_URL?"
    )


def test_an_unknown_setting_like_none_other_is_pointed_to_the_list():
    assert "docs/settings.md" in refusal(ZZZ=1)


def test_settings_of_others_are_left_alone():
    settings = BaseSettings({"CONCURRENT_REQUESTS": 5, "CLUSTERED": 1})
    assert Config.from_settings(settings, {}) == Config()


def test_an_unknown_name_in_the_environment_is_a_warning_with_the_nearest_right_one():
    (warning,) = unknown_in_environment({"CLUSTER_PREFECH": "3"})
    assert warning == (
        "CLUSTER_PREFECH in the environment is no setting and is ignored;"
        " did you mean CLUSTER_PREFETCH?"
    )


@pytest.mark.parametrize(
    "name",
    [
        "CLUSTER_REDIS_SERVICE_HOST",
        "CLUSTER_REDIS_SERVICE_PORT",
        "CLUSTER_REDIS_SERVICE_PORT_HTTP",
        "CLUSTER_REDIS_PORT",
        "CLUSTER_REDIS_PORT_6379_TCP_ADDR",
        "PATH",
    ],
)
def test_what_kubernetes_injects_is_no_warning(name):
    assert unknown_in_environment({name: "1"}) == []
