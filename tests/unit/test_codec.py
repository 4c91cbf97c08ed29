"""What a request is after it has been through a queue."""

from __future__ import annotations

import contextlib
import sys
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scrapy import FormRequest, Request, Spider
from scrapy.http import JsonRequest, XmlRpcRequest
from scrapy.http.request import NO_CALLBACK

from clusterscrapy.exceptions import CodecError
from clusterscrapy.frontier.codec import RequestCodec, describe, slot_of, url_of


class Page(Spider):
    name = "page"

    def parse_x(self, response: Any) -> None: ...

    def failed(self, failure: Any) -> None: ...

    renamed = parse_x

    def __private(self, response: Any) -> None: ...

    def private(self) -> Any:
        return self.__private


class ApiRequest(Request):
    attributes: tuple[str, ...] = (*Request.attributes, "token")

    def __init__(self, *args: Any, token: str = "", **kwargs: Any) -> None:
        self.token = token
        super().__init__(*args, **kwargs)


SPIDER = Page()
CODEC = RequestCodec(SPIDER, project_packages=[__name__.partition(".")[0]])


def through(request: Request, codec: RequestCodec = CODEC) -> Request:
    return codec.decode(codec.encode(request))


def refused(request: Request, codec: RequestCodec = CODEC) -> CodecError:
    with pytest.raises(CodecError) as caught:
        codec.encode(request)
    return caught.value


def test_every_attribute_survives() -> None:
    request = Request(
        "http://h/a?b=1#c",
        method="PUT",
        headers={"Referer": "http://h/", "X-Many": ["1", b"\xff"]},
        body=b"\x00\xff",
        cookies=[{"name": "a", "value": "b", "domain": "h"}],
        meta={"depth": 3, "t": (1, [2])},
        cb_kwargs={"page": 7},
        flags=["slow"],
        priority=-12,
        dont_filter=True,
        encoding="latin-1",
        callback=SPIDER.parse_x,
        errback=SPIDER.failed,
    )
    again = through(request)
    for name in Request.attributes:
        assert getattr(again, name) == getattr(request, name), name


@pytest.mark.parametrize(
    "request_",
    [
        FormRequest("http://h/", formdata={"a": "1", "b": ["2", "3"]}),
        FormRequest("http://h/", formdata={"a": "1"}, method="GET"),
        JsonRequest("http://h/", data={"b": 1, "a": [2]}, dumps_kwargs={"sort_keys": True}),
        XmlRpcRequest("http://h/", methodname="login", params=("user", 1)),
        ApiRequest("http://h/", token="secret", callback=SPIDER.parse_x),
    ],
)
def test_the_class_of_a_request_survives(request_: Request) -> None:
    again = through(request_)
    assert type(again) is type(request_)
    for name in type(request_).attributes:
        assert getattr(again, name) == getattr(request_, name), name


@pytest.mark.parametrize(
    "value",
    [
        (1, (2, [3])),
        {1, 2},
        frozenset({"a"}),
        10**40,
        -(2**63) - 1,
        float("inf"),
        datetime(2026, 12, 1, 10, tzinfo=timezone.utc),
        date(2026, 12, 1),
        timedelta(days=-1, microseconds=1),
        Decimal("1.10"),
        UUID(int=5),
        "\udcff",
        b"\xff",
        {("a", 1): None, 2: True},
    ],
    ids=repr,
)
def test_plain_data_keeps_its_type(value: object) -> None:
    again = through(Request("http://h/", meta={"v": value})).meta["v"]
    assert (again, type(again)) == (value, type(value))


def test_a_subclass_of_a_plain_type_becomes_the_plain_type() -> None:
    class Smart(str):
        __slots__ = ()

        def __str__(self) -> str:
            return "another text"

    again = through(Request("http://h/", meta={"v": Smart("text")})).meta["v"]
    assert (again, type(again)) == ("text", str)


def test_a_request_inside_meta_survives() -> None:
    inner = Request("http://h/inner", callback=SPIDER.parse_x, meta={"t": (1,)})
    again = through(Request("http://h/", meta={"next": [inner]})).meta["next"][0]
    assert (again.url, again.callback, again.meta) == (inner.url, SPIDER.parse_x, {"t": (1,)})


@pytest.mark.parametrize(
    "url",
    [
        "http://h/index.php?/a/=/o/",
        "http://h/?a",
        "http://h/?a=",
        "http://例え.jp/ü?q=ä",
        "http://i❤.ws/",
        "http://wodnik_forum.orq.pl/",
        "http://.example.com/",
        f"http://{'a' * 64}.com/",
        "http://h/a%25b%3Bc;p?x=%7E+%20",
        "http://h/?q=" + "a" * 70_000,
        "data:text/html,<p>",
    ],
    ids=lambda url: url[:30],
)
def test_the_url_comes_back_as_it_was(url: str) -> None:
    request = Request(url)
    assert through(request).url == request.url


def test_a_verbatim_url_comes_back_as_it_was() -> None:
    request = Request("http://h/a b?ü", meta={"verbatim_url": True})
    assert through(request).url == request.url


def test_callbacks_are_found_under_every_name_a_method_can_have() -> None:
    assert through(Request("http://h/", callback=SPIDER.renamed)).callback == SPIDER.parse_x
    assert through(Request("http://h/", callback=SPIDER.private())).callback == SPIDER.private()
    assert through(Request("http://h/", callback=NO_CALLBACK)).callback is NO_CALLBACK
    assert through(Request("http://h/")).callback is None


def test_the_schedulers_own_errback_is_not_stored() -> None:
    codec = RequestCodec(SPIDER)
    observe = repr
    codec.transparent_errback = observe
    assert through(Request("http://h/", errback=observe), codec).errback is None


def test_encoding_changes_nothing() -> None:
    request = Request("http://h/", meta={"a": [1]}, headers={"A": "b"})
    before = request.to_dict()
    assert CODEC.encode(request) == CODEC.encode(request)
    assert request.to_dict() == before


def test_a_typical_request_is_small() -> None:
    request = Request(
        "http://h/p/1", callback=SPIDER.parse_x, meta={"depth": 3}, headers={"Referer": "http://h/"}
    )
    assert len(CODEC.encode(request)) < 80


# --- what cannot be stored --------------------------------------------------------------------


@pytest.mark.parametrize(
    "callback",
    [lambda r: r, print, partial(SPIDER.parse_x), Page().parse_x],
    ids=["lambda", "builtin", "partial", "of another spider"],
)
def test_a_callback_that_is_no_method_of_the_spider_is_refused_by_name(callback: Any) -> None:
    error = refused(Request("http://h/x", callback=callback))
    assert error.path == "callback"
    assert error.url == "http://h/x"
    assert "http://h/x: its callback" in str(error)


@pytest.mark.parametrize(
    ("meta", "path"),
    [
        ({"f": sys.stdout}, "meta['f']"),
        ({"a": {"b": [1, object()]}}, "meta['a']['b'][1]"),
        ({"t": ({"x": {1, SPIDER}},)}, "meta['t'][0]['x']"),
        ({SPIDER: 1}, "a key of meta"),
    ],
    ids=["file", "object", "in a set", "key"],
)
def test_a_value_that_is_no_plain_data_is_refused_by_its_place(
    meta: dict[Any, Any], path: str
) -> None:
    error = refused(Request("http://h/", meta=meta))
    assert error.path.startswith(path)
    assert error.path in str(error)


def test_what_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert "contains itself" in str(refused(Request("http://h/", meta={"loop": loop})))


def test_the_codec_works_on_after_a_refusal() -> None:
    refused(Request("http://h/", meta={"f": sys.stdout}))
    assert through(Request("http://h/ok", meta={"a": 1})).meta == {"a": 1}


def test_a_request_that_is_too_large_is_refused_by_its_largest_part() -> None:
    codec = RequestCodec(SPIDER, max_bytes=1_000)
    error = refused(Request("http://h/", meta={"small": 1, "blob": "x" * 2_000}), codec)
    assert error.path == "meta['blob']"
    assert "CLUSTER_REQUEST_MAX_BYTES=1,000" in str(error)
    assert refused(Request("http://h/" + "u" * 2_000), codec).path == "url"
    assert len(str(refused(Request("http://h/" + "u" * 2_000), codec))) < 500


def test_a_class_that_would_not_be_rebuilt_is_refused() -> None:
    error = refused(ApiRequest("http://h/"), RequestCodec(SPIDER))
    assert "CLUSTER_REQUEST_CLASSES" in str(error)


def test_a_class_can_be_allowed_by_its_path() -> None:
    codec = RequestCodec(SPIDER, request_classes=[f"{__name__}.ApiRequest"])
    assert isinstance(through(ApiRequest("http://h/"), codec), ApiRequest)


# --- what cannot be rebuilt ---------------------------------------------------------------------


def payload(version: int = 1, **fields: Any) -> bytes:
    return bytes([version]) + bytes(msgpack.packb(fields))


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (b"", "version none"),
        (payload(2, u="http://h/"), "version 2"),
        (payload(0, u="http://h/"), "version 0"),
        (b"\x01\xc1", "broken"),
        (b"\x01\x81", "broken"),
        (payload(x="y"), "no URL"),
        (payload(u="http://h/", q=1), "unknown fields"),
        (payload(u="http://h/", r="parse_gone"), "no method parse_gone"),
        (payload(u="http://h/", r="name"), "no method name"),
        (payload(u="http://h/", r="__class__"), "no method"),
        (payload(u="http://h/", t="os.system"), "may not be rebuilt"),
        (payload(u="http://h/", t="scrapy.Spider"), "no request class"),
        (payload(u="http://h/", t="scrapy.nowhere.X"), "is not there"),
        (payload(u="no url"), "cannot be made"),
        (payload(u="http://h/", z={"nonsense": 1}), "cannot be made"),
        (payload(u="http://h/", a=msgpack.ExtType(77, b"")), "unknown type 77"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_cannot_be_rebuilt_is_refused_with_a_sentence(broken: bytes, words: str) -> None:
    with pytest.raises(CodecError, match=words):
        CODEC.decode(broken)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_bytes_make_decode_do_anything_but_rebuild_or_refuse(data: st.DataObject) -> None:
    good = CODEC.encode(
        JsonRequest(
            "http://h/", data={"a": 1}, meta={"t": (1,), "d": Decimal(1)}, callback=SPIDER.parse_x
        )
    )
    mutated = bytearray(good)
    for _ in range(data.draw(st.integers(0, 6))):
        mutated[data.draw(st.integers(0, len(mutated) - 1))] = data.draw(st.integers(0, 255))
    raw = data.draw(st.sampled_from([bytes(mutated), bytes(mutated[: len(mutated) // 2])]))
    modules = set(sys.modules)
    with contextlib.suppress(CodecError):
        assert isinstance(CODEC.decode(raw), Request)
    new = {
        name for name in set(sys.modules) - modules if not name.startswith(("scrapy", "encodings"))
    }
    assert not new
    assert isinstance(url_of(raw), str)
    describe(raw)
    slot_of(raw)


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.datetimes()
    | st.dates()
    | st.timedeltas()
    | st.decimals(allow_nan=False)
    | st.uuids(),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers() | st.binary(), inner)
        | st.sets(st.integers() | st.text())
        | st.frozensets(st.binary())
    ),
    max_leaves=20,
)


@settings(max_examples=200, deadline=None)
@given(
    meta=st.dictionaries(st.text(), plain), body=st.binary(), priority=st.integers(-(2**70), 2**70)
)
def test_arbitrary_plain_data_survives(meta: dict[str, Any], body: bytes, priority: int) -> None:
    again = through(Request("http://h/", meta=meta, body=body, priority=priority))
    assert (again.meta, again.body, again.priority) == (meta, body, priority)


# --- reading without a spider ----------------------------------------------------------------------


def test_a_payload_can_be_read_without_its_spider() -> None:
    raw = CODEC.encode(
        FormRequest("http://host:80/x", formdata={"a": "1"}, callback=SPIDER.parse_x, priority=3)
    )
    assert url_of(raw) == "http://host:80/x"
    assert describe(raw) == {
        "url": "http://host:80/x",
        "method": "POST",
        "callback": "parse_x",
        "priority": 3,
    }
    assert slot_of(raw) == "host"
    assert slot_of(CODEC.encode(Request("http://h/", meta={"download_slot": "s"}))) == "s"


def test_a_note_tells_which_request_could_not_be_stored() -> None:
    note = CODEC.note(Request("http://h/x", callback=print))
    assert url_of(note) == "http://h/x"
    with pytest.raises(CodecError):
        CODEC.decode(note)
