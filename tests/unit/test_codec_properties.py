"""What holds for every request and for every payload, not only for the ones somebody thought of."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections import OrderedDict, defaultdict
from datetime import datetime, timezone, tzinfo
from decimal import Decimal
from types import MethodType
from typing import Any

import msgpack
import pytest
import scrapy
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scrapy import Request, Spider
from scrapy.http import JsonRequest

from clusterscrapy.exceptions import CodecError
from clusterscrapy.frontier.codec import RequestCodec, describe, slot_of, url_of

RAN: list[str] = []
URL = "http://h/"


class Page(Spider):
    name = "page"

    def parse_x(self, response: Any) -> None: ...

    def __private(self, response: Any) -> None: ...

    def private(self) -> Any:
        return self.__private

    @property
    def aaa(self) -> Any:
        RAN.append("aaa")
        raise RuntimeError("a property ran")

    class Nested(Request):
        pass


class Attempts(Request):
    """Its ``__init__`` sets what the crawl changes later."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.meta["attempt"] = 0
        self.headers["X-Attempt"] = "0"


class Part(scrapy.Item):
    price = scrapy.Field()


class Zone(tzinfo):
    """As bare as the standard library allows: it raises NotImplementedError."""


SPIDER = Page()
CODEC = RequestCodec(SPIDER, project_packages=[__name__.partition(".")[0]])


def through(request: Request) -> Request:
    return CODEC.decode(CODEC.encode(request))


def refused(request: Request) -> CodecError:
    with pytest.raises(CodecError) as caught:
        CODEC.encode(request)
    return caught.value


def payload(**fields: Any) -> bytes:
    return b"\x01" + bytes(msgpack.packb(fields, unicode_errors="surrogatepass"))


def same(one: Any, other: Any) -> bool:
    """Equal, of one type all the way down, and nan equals nan."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", other)
    if isinstance(one, Decimal):
        return str(one) == str(other)
    if isinstance(one, dict):
        return len(one) == len(other) and all(
            same(k, j) and same(v, w)
            for (k, v), (j, w) in zip(one.items(), other.items(), strict=True)
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


keys = st.none() | st.booleans() | st.integers() | st.binary() | st.uuids() | st.dates()
text = st.text(st.characters(exclude_categories=())) | st.text()  # with lone surrogates, too
plain = st.recursive(
    keys
    | text
    | st.integers(-(10**60), 10**60)
    | st.floats()
    | st.datetimes(timezones=st.just(timezone.utc) | st.none())
    | st.timedeltas()
    | st.decimals(allow_nan=True),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(keys | text | st.tuples(keys, text) | st.frozensets(keys), inner)
        | st.sets(keys | text)
        | st.frozensets(text)
    ),
    max_leaves=15,
)


# --- every request comes back ------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(value=plain)
def test_plain_data_comes_back_with_every_type(value: Any) -> None:
    again = through(Request(URL, meta={"v": value}, cb_kwargs={"w": [value]}))
    assert same(again.meta, {"v": value})
    assert same(again.cb_kwargs, {"w": [value]})


@settings(max_examples=150, deadline=None)
@given(
    url=text.map("http://h/{}".format) | text.map("http://{}/".format) | text,
    verbatim=st.booleans(),
    encoding=st.sampled_from(["utf-8", "latin-1", "cp1251"]),
)
def test_every_url_that_scrapy_takes_comes_back_to_the_byte(
    url: str, verbatim: bool, encoding: str
) -> None:
    try:
        request = Request(url, meta={"verbatim_url": verbatim}, encoding=encoding)
    except (ValueError, UnicodeError):
        assume(False)
    raw = CODEC.encode(request)
    assert CODEC.decode(raw).url == request.url
    assert url_of(raw) == request.url


@settings(max_examples=60, deadline=None)
@given(
    headers=st.dictionaries(
        st.text("abXY-", min_size=1), st.lists(st.binary(max_size=9), max_size=3)
    )
)
def test_headers_keep_their_order_and_every_value(headers: dict[str, list[bytes]]) -> None:
    request = Request(URL, headers=headers)
    assert list(dict(through(request).headers).items()) == list(dict(request.headers).items())


def test_an_integer_of_any_size_comes_back() -> None:
    for number in (10**5_000, -(10**5_000), 2**64, -(2**63) - 1):
        assert through(Request(URL, meta={"v": number})).meta == {"v": number}


def test_an_integer_written_in_decimal_digits_is_still_read() -> None:
    written = payload(u=URL, a={"v": msgpack.ExtType(4, str(-(10**30)).encode())})
    assert CODEC.decode(written).meta == {"v": -(10**30)}


def test_subclasses_of_containers_become_the_plain_container() -> None:
    meta = {"o": OrderedDict(a=1), "d": defaultdict(list, b=[2])}
    assert same(through(Request(URL, meta=meta)).meta, {"o": {"a": 1}, "d": {"b": [2]}})


def test_what_a_class_sets_at_birth_does_not_undo_what_the_crawl_changed() -> None:
    request = Attempts(URL)
    request.meta["attempt"] = 3
    del request.headers["X-Attempt"]
    again = through(request)
    assert (type(again), again.meta, dict(again.headers)) == (Attempts, {"attempt": 3}, {})


def test_a_header_that_was_taken_from_a_json_request_stays_away() -> None:
    request = JsonRequest(URL, data={"a": 1})
    del request.headers["Accept"]
    assert through(request).headers == request.headers


def test_a_mangled_callback_is_found_beside_a_property_that_raises() -> None:
    RAN.clear()
    assert through(Request(URL, callback=SPIDER.private())).callback == SPIDER.private()
    assert RAN == []


def test_a_method_that_was_put_on_the_spider_is_a_callback() -> None:
    spider = Page()
    codec = RequestCodec(spider)

    def added(self: Spider, response: Any) -> None: ...

    spider.parse_added = MethodType(added, spider)  # type: ignore[attr-defined]
    request = Request(URL, callback=spider.parse_added)  # type: ignore[attr-defined]
    again = codec.decode(codec.encode(request))
    assert again.callback == request.callback


# --- what cannot come back is refused when it is stored -------------------------------------------


def test_an_item_in_meta_is_refused_by_its_place() -> None:
    error = refused(Request(URL, meta={"ok": 1, "list": [Part(price=1)]}))
    assert error.path == "meta['list'][0]"
    assert "Part is no plain data" in str(error)


def test_a_value_whose_own_code_raises_is_refused_by_its_place() -> None:
    zone = Zone()  # type: ignore[abstract]
    error = refused(Request(URL, meta={"when": datetime(2026, 1, 1, tzinfo=zone)}))
    assert error.path == "meta['when']"


@pytest.mark.parametrize("cls", [Page.Nested, type("Local", (Request,), {"__module__": __name__})])
def test_a_class_that_no_import_would_find_is_refused(cls: type[Request]) -> None:
    error = refused(cls(URL))
    assert error.path == "class"
    assert "top level of a module" in str(error)


def test_a_message_can_be_written_to_every_log_and_store() -> None:
    with pytest.raises(CodecError, match="no method gone") as caught:
        CODEC.decode(payload(u="http://h/\udcff\n", r="gone"))
    message = str(caught.value)
    assert message.encode()
    assert "\n" not in message


def nested(depth: int) -> Any:
    value: Any = ()
    for _ in range(depth):
        value = (value,)
    return value


def test_nesting_that_is_stored_can_be_read_and_deeper_is_refused() -> None:
    deepest = {"v": nested(63)}
    assert through(Request(URL, meta=deepest)).meta == deepest
    error = refused(Request(URL, meta={"v": nested(64)}))
    assert error.path.startswith("meta['v']")
    assert "64 tuples" in str(error)
    assert through(Request(URL, meta=deepest)).meta == deepest


def test_a_request_that_holds_itself_is_refused() -> None:
    request = Request(URL)
    request.meta["me"] = request
    assert refused(request).path == "meta['me']"


def test_the_metas_of_two_requests_of_one_payload_are_not_one() -> None:
    raw = CODEC.encode(Request(URL, meta={"a": 1}))
    one, other = CODEC.decode(raw), CODEC.decode(raw)
    one.meta["b"] = 2
    assert other.meta == {"a": 1}
    bare = CODEC.decode(CODEC.encode(Request(URL)))
    bare.meta["c"] = 3
    assert CODEC.decode(CODEC.encode(Request(URL))).meta == {}


# --- no payload does harm -----------------------------------------------------------------------


DEEP = """
import msgpack
from scrapy import Spider
from clusterscrapy.exceptions import CodecError
from clusterscrapy.frontier.codec import RequestCodec, describe, slot_of, url_of
HEAD = b"\\x01\\x82\\xa1u\\xa9http://h/\\xa1a\\x81\\xa1v"
for code in (1, 2, 3, 10):  # tuples, sets, frozensets, requests
    value = b"\\x90"
    for _ in range(900):
        value = msgpack.packb(msgpack.ExtType(code, HEAD + value if code == 10 else value))
    payload = HEAD + value
    assert (url_of(payload), slot_of(payload)) == ("http://h/", "h")
    assert describe(payload)["url"] == "http://h/"
    try:
        RequestCodec(Spider(name="s")).decode(payload)
    except CodecError:
        print("refused")
"""


def test_a_payload_that_is_nested_too_deep_does_not_end_the_process() -> None:
    # In a process of its own: what this guards against is a stack that overflows.
    run = subprocess.run(
        [sys.executable, "-c", DEEP],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (run.returncode, run.stdout) == (0, "refused\n" * 4), run.stderr


@pytest.mark.parametrize("name", ["aaa", "__class__", "__setattr__", "custom_settings", "name", ""])
def test_a_callback_name_runs_nothing_and_finds_only_methods(name: str) -> None:
    RAN.clear()
    with pytest.raises(CodecError, match="no method"):
        CODEC.decode(payload(u=URL, r=name))
    assert RAN == []


@pytest.mark.parametrize("source", ["raise RuntimeError('no')", "raise SystemExit(3)", "1 +"])
def test_a_class_whose_module_cannot_be_imported_is_refused(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    package = tmp_path / "codec_broken_project"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "requests.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "codec_broken_project", raising=False)
    codec = RequestCodec(SPIDER, project_packages=["codec_broken_project"])
    with pytest.raises(CodecError, match="is not there"):
        codec.decode(payload(u=URL, t="codec_broken_project.requests.Api"))


@pytest.mark.parametrize("meta", [5, "text", [1], True])
def test_a_meta_that_is_no_dict_is_refused(meta: Any) -> None:
    with pytest.raises(CodecError, match="cannot be made"):
        CODEC.decode(payload(u=URL, a=meta))


def test_a_refusal_is_short_whatever_the_payload_holds() -> None:
    long = "x" * 1_000_000
    for broken in (
        payload(u=long),
        payload(u=URL, r=long),
        payload(u=URL, t=long),
        payload(u=URL, **{long: 1}),
        payload(u=URL, e=long),
    ):
        with pytest.raises(CodecError) as caught:
            CODEC.decode(broken)
        assert len(str(caught.value)) < 1_000


def read_every_way(raw: bytes) -> None:
    modules = set(sys.modules)
    outcome: Request | CodecError
    try:
        outcome = CODEC.decode(raw)
    except CodecError as error:
        outcome = error
    if isinstance(outcome, Request):
        assert isinstance(outcome.meta, dict)
        assert isinstance(outcome.cb_kwargs, dict)
    else:
        assert str(outcome).encode()
    for read in (url_of, slot_of):
        assert isinstance(read(raw), str)
    assert isinstance(describe(raw), dict)
    new = {name.partition(".")[0] for name in set(sys.modules) - modules}
    assert new <= {"scrapy", "encodings", "stringprep"}  # the last two: codecs of a URL's host


@settings(max_examples=200, deadline=None)
@given(raw=st.binary() | st.binary().map(b"\x01".__add__))
def test_any_bytes_are_a_request_or_are_refused(raw: bytes) -> None:
    read_every_way(raw)


@settings(max_examples=200, deadline=None)
@given(
    fields=st.dictionaries(
        st.sampled_from("mhbcakfpderxntzq"),
        plain.filter(lambda value: value != {}),
        max_size=4,
    ),
    url=st.just(URL) | text | plain,
)
def test_any_value_in_any_field_is_a_request_or_is_refused(
    fields: dict[str, Any], url: Any
) -> None:
    packed = CODEC._packed({"u": url, **fields})
    read_every_way(b"\x01" + packed)


@settings(max_examples=60, deadline=None)
@given(
    path=st.sampled_from(
        ["antigravity.X", "this.s", "os.system", "turtledemo.X", "builtins.eval", "scrapyd.X"]
    )
    | text.filter(lambda path: path.partition(".")[0] not in ("scrapy", "tests"))
)
def test_a_class_outside_of_the_allowed_packages_is_never_imported(path: str) -> None:
    modules = set(sys.modules)
    with pytest.raises(CodecError, match="may not be rebuilt"):
        CODEC.decode(payload(u=URL, t=path))
    assert set(sys.modules) == modules
