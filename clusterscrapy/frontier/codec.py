"""Requests as plain data: what is written into a queue, and how it becomes a request again.

A payload is one version byte and a msgpack map of what differs from a default request. Nothing in
it is code: callbacks are names of the spider's methods, and the only classes a payload can name
are request classes of Scrapy, of the project's own packages or of ``CLUSTER_REQUEST_CLASSES``.

Values in ``meta``, ``cb_kwargs``, ``cookies`` and ``flags`` may be None, bool, int of any size,
float, str, bytes, list, tuple, dict, set, frozenset, datetime, date, timedelta, Decimal, UUID and
requests. Subclasses become the plain type they extend.
"""

from __future__ import annotations

import sys
from codecs import lookup
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from importlib import import_module
from types import MethodType
from typing import Any, NoReturn
from urllib.parse import urlsplit
from uuid import UUID

import msgpack
from scrapy import Request, Spider
from scrapy.http import Headers
from scrapy.http.request import NO_CALLBACK

from clusterscrapy.exceptions import CodecError

VERSION = 1
NOTE = 0
"""Version byte of a note about a request that could not be stored; it is never made a request again."""

_URL_SHOWN = 200
_DEPTH_MAX = 64
"""Tuples, sets and requests inside one another: msgpack puts 40 kB of C stack on each, and a stack
that overflows ends the process. 64 are 2.6 MB of the usual 8."""
_CACHED_BYTES = 4096
_SEQUENCES: tuple[Any, ...] = (list, tuple, set, frozenset)
_USUAL = ("GET", b"", 0, False, "utf-8")
_PLAIN = ("headers", "body", "cookies", "meta", "cb_kwargs", "flags")
# Short names, since a queue holds millions of them.
_NAMES = {
    "u": "url",
    "m": "method",
    "h": "headers",
    "b": "body",
    "c": "cookies",
    "a": "meta",
    "k": "cb_kwargs",
    "f": "flags",
    "p": "priority",
    "d": "dont_filter",
    "e": "encoding",
}
_OTHERS = frozenset("rxntz")  # callback, errback, NO_CALLBACK, class, the class's own attributes
_VERBATIM = {"verbatim_url": True}
_TUPLE, _SET, _FROZENSET, _INT, _DATETIME, _DATE, _TIMEDELTA, _DECIMAL, _UUID, _REQUEST = range(
    1, 11
)


class RequestCodec:
    """Encodes and decodes the requests of one spider.

    Args:
        spider: whose methods are callbacks.
        request_classes: import paths of request classes that may be rebuilt besides the usual ones.
        project_packages: top-level packages whose request classes may be rebuilt.
        max_bytes: the largest payload that is stored.

    Only for one thread: it holds one packer.
    """

    def __init__(
        self,
        spider: Spider,
        *,
        request_classes: Sequence[str] = (),
        project_packages: Sequence[str] = (),
        max_bytes: int = 1_000_000,
    ) -> None:
        self.spider = spider
        self.max_bytes = max_bytes
        self.transparent_errback: Callable[..., Any] | None = None
        """An errback that stands for none: it is not stored."""
        self._classes = frozenset(request_classes)
        self._packages = ("scrapy", *project_packages)
        self._method_names: dict[Any, str] = {}
        self._own_attributes: dict[type, tuple[str, ...]] = {}
        self._depth = 0
        self._packer = self._new_packer()

    def _new_packer(self) -> Any:
        return msgpack.Packer(
            default=self._extended, strict_types=True, unicode_errors="surrogatepass"
        )

    # --- request to bytes -------------------------------------------------------------------

    def encode(self, request: Request) -> bytes:
        """The payload of a request; the request is not changed.

        Raises:
            CodecError: a callback is not the spider's method, a value is not plain data, the class
                would not be rebuilt, or the payload is too large. The error names the place.
        """
        try:
            payload = b"\x01" + self._packer.pack(self._fields(request))
        except CodecError:
            raise
        except Exception as exc:
            # A value's own code runs here too, such as a tzinfo's, and can raise anything.
            raise self._blame(request, exc) from exc
        if len(payload) > self.max_bytes:
            self._too_large(request, len(payload))
        return bytes(payload)

    def _fields(self, request: Request) -> dict[str, Any]:
        # This runs for every link of every page: one comparison settles what is hardly ever set.
        fields: dict[str, Any] = {"u": request.url}
        if headers := request.headers:
            fields["h"] = dict(headers)
        if cookies := request.cookies:
            fields["c"] = cookies
        if meta := request.meta:
            fields["a"] = meta
        if cb_kwargs := request.cb_kwargs:
            fields["k"] = cb_kwargs
        if flags := request.flags:
            fields["f"] = flags
        scalars = (
            request.method,
            request.body,
            request.priority,
            request.dont_filter,
            request.encoding,
        )
        if scalars != _USUAL:
            fields |= {
                short: value
                for short, value, usual in zip("mbpde", scalars, _USUAL, strict=True)
                if value != usual
            }
        self._function_fields(request, fields)
        if type(request) is not Request:
            self._class_fields(request, fields)
        return fields

    def _function_fields(self, request: Request, fields: dict[str, Any]) -> None:
        if request.callback is NO_CALLBACK:
            fields["n"] = True
        elif request.callback is not None:
            fields["r"] = self._name_of(request, "callback", request.callback)
        if request.errback is not None and request.errback != self.transparent_errback:
            fields["x"] = self._name_of(request, "errback", request.errback)

    def _class_fields(self, request: Request, fields: dict[str, Any]) -> None:
        cls = type(request)
        path = f"{cls.__module__}.{cls.__qualname__}"
        if not self._allowed(path):
            raise CodecError(
                f"{_shown(request.url)}: class {path} would not be rebuilt; "
                f"add it to CLUSTER_REQUEST_CLASSES",
                path="class",
                url=request.url,
            )
        fields["t"] = path
        own = self._own_attributes.get(cls)
        if own is None:
            if getattr(sys.modules.get(cls.__module__), cls.__qualname__, None) is not cls:
                raise CodecError(
                    f"{_shown(request.url)}: class {path} would not be found again; "
                    "define it at the top level of a module",
                    path="class",
                    url=request.url,
                )
            own = tuple(name for name in cls.attributes if name not in Request.attributes)
            self._own_attributes[cls] = own
        if own:
            fields["z"] = {name: getattr(request, name) for name in own}

    def _name_of(self, request: Request, role: str, function: Callable[..., Any]) -> str:
        inner = getattr(function, "__func__", None)
        if inner is not None and getattr(function, "__self__", None) is self.spider:
            name = self._method_names.get(inner) or self._find_method(inner)
            if name:
                self._method_names[inner] = name
                return name
        raise CodecError(
            f"{_shown(request.url)}: its {role} {_named(function)} is no method of spider "
            f"{self.spider.name!r}, so no other process could call it; make it one",
            path=role,
            url=request.url,
        )

    def _find_method(self, function: Any) -> str:
        owners = (self.spider, *type(self.spider).__mro__)
        usual = getattr(function, "__name__", "")
        for name in (usual, *(name for owner in owners for name in vars(owner))):
            if getattr(self._method(name), "__func__", None) is function:
                return str(name)
        return ""

    def _method(self, name: Any) -> MethodType | None:
        """The spider's method of a name; looked up without running a property."""
        found = vars(self.spider).get(name)
        if found is None:
            for cls in type(self.spider).__mro__:
                if name in vars(cls):
                    found = vars(cls)[name]
                    if callable(found) and hasattr(found, "__get__"):
                        found = found.__get__(self.spider)
                    break
        bound = isinstance(found, MethodType) and found.__self__ is self.spider
        return found if bound else None

    def _extended(self, value: Any) -> Any:
        """What msgpack has no type for. Order matters: a datetime is a date."""
        for kind, code, data in _EXTENSIONS:
            if isinstance(value, kind):
                return msgpack.ExtType(code, self._nested(data(value)))
        if isinstance(value, str):
            return str.__str__(value)  # str(value) would ask the subclass how it likes to be shown
        plain: Any
        for plain in (float, bytes, dict, list):
            if isinstance(value, plain):
                return plain(value)
        if isinstance(value, bytearray):
            return bytes(value)
        if isinstance(value, int):
            small = int(value)
            if -(2**63) <= small < 2**64:
                return small
            return msgpack.ExtType(_INT, hex(small).encode())  # decimal digits have a limit
        if isinstance(value, Request):
            return msgpack.ExtType(_REQUEST, b"\x01" + self._nested(self._fields(value)))
        raise TypeError(f"{type(value).__module__}.{type(value).__qualname__} is no plain data")

    def _packed(self, value: Any) -> bytes:
        # A packer cannot be used inside itself.
        packed: bytes = msgpack.packb(
            value, default=self._extended, strict_types=True, unicode_errors="surrogatepass"
        )
        return packed

    def _nested(self, value: Any) -> bytes:
        if self._depth >= _DEPTH_MAX:
            raise ValueError(f"more than {_DEPTH_MAX} tuples, sets or requests inside one another")
        self._depth += 1
        try:
            return self._packed(value)
        finally:
            self._depth -= 1

    def _blame(self, request: Request, exc: Exception) -> CodecError:
        """The error that names the innermost place that made packing fail."""
        shown = _shown(request.url)
        for name in (*_PLAIN, *self._own_attributes.get(type(request), ())):
            for path, value in _walk(getattr(request, name, None), name):
                why = self._why_not(value)
                if why and path.endswith("…"):
                    why = "contains itself, or is nested too deep"
                if why:
                    hint = "pass plain data, such as ItemAdapter(item).asdict()"
                    message = f"{shown}: {_shown(path)} {why}; {hint}"
                    return CodecError(message, path=path, url=request.url)
        message = f"{shown} cannot be stored: {_shown(exc)}"
        return CodecError(message, path="request", url=request.url)

    def _why_not(self, value: Any) -> str:
        try:
            self._packed(dict(value) if isinstance(value, Headers) else value)
        except CodecError:
            raise
        except Exception as exc:  # noqa: BLE001 - the answer is the exception
            return f"cannot be stored: {_shown(exc)}"
        return ""

    def _too_large(self, request: Request, size: int) -> NoReturn:
        self._packer = self._new_packer()  # the old one keeps a buffer of that size
        sizes = {"url": len(request.url)}
        for name in (*_PLAIN, *self._own_attributes.get(type(request), ())):
            value = getattr(request, name)
            if isinstance(value, dict) and name in ("meta", "cb_kwargs"):
                sizes |= {f"{name}[{key!r:.50}]": len(self._packed(v)) for key, v in value.items()}
            elif value:
                sizes[name] = len(self._packed(dict(value) if name == "headers" else value))
        biggest = max(sizes, key=lambda name: sizes[name])
        raise CodecError(
            f"{_shown(request.url)}: {size:,} bytes are more than CLUSTER_REQUEST_MAX_BYTES="
            f"{self.max_bytes:,}; the largest part is {_shown(biggest)} with "
            f"{sizes[biggest]:,} bytes",
            path=biggest,
            url=request.url,
        )

    def note(self, request: Request) -> bytes:
        """A payload that only tells which request could not be stored."""
        return note_of(request.url[: self.max_bytes], request.method)

    # --- bytes to request ---------------------------------------------------------------------

    def decode(self, payload: bytes) -> Request:
        """The request of a payload.

        Raises:
            CodecError: another version, broken bytes, a callback the spider does not have, or a
                class that may not be rebuilt.
        """
        fields = _unpack(payload, self._ext_hook)
        unknown = fields.keys() - _NAMES.keys() - _OTHERS
        if unknown:
            raise _broken(f"unknown fields {_shown(sorted(map(str, unknown)))}", fields)
        kwargs = {name: fields[short] for short, name in _NAMES.items() if short in fields}
        cls: type[Request] = Request
        if "t" in fields:
            cls = self._class_of(fields)
            # Some classes choose their own method and filter unless told.
            kwargs.setdefault("method", "GET")
            kwargs.setdefault("dont_filter", False)
        if "r" in fields:
            kwargs["callback"] = self._function(fields, "callback", fields["r"])
        elif "n" in fields:
            kwargs["callback"] = NO_CALLBACK
        if "x" in fields:
            kwargs["errback"] = self._function(fields, "errback", fields["x"])
        try:
            if cls is Request:
                request = _as_it_was(**kwargs, **fields.get("z", {}))
            else:
                request = cls(**kwargs, **fields.get("z", {}))
                _restore(request, Request(**kwargs))
            if request.url != fields["u"]:
                request._url = str(fields["u"])
        except Exception as exc:
            raise _broken(f"{cls.__qualname__} cannot be made: {_shown(exc)}", fields) from exc
        return request

    def _ext_hook(self, code: int, data: bytes) -> Any:
        if self._depth >= _DEPTH_MAX:
            raise CodecError("the queue entry is broken: it is nested too deep", path="payload")
        self._depth += 1
        try:
            if code == _REQUEST:
                return self.decode(data)
            return _extension(code, data, self._ext_hook)
        finally:
            self._depth -= 1

    def _function(self, fields: dict[str, Any], role: str, name: Any) -> Callable[..., Any]:
        method = self._method(name) if isinstance(name, str) else None
        if method is None:
            raise CodecError(
                f"{_shown(fields['u'])}: spider {self.spider.name!r} has no method {_shown(name)} "
                f"for its {role}; was it renamed?",
                path=role,
                url=str(fields["u"]),
            )
        return method

    def _allowed(self, path: str) -> bool:
        return path in self._classes or path.partition(".")[0] in self._packages

    def _class_of(self, fields: dict[str, Any]) -> type[Request]:
        path = fields["t"]
        if not isinstance(path, str) or not self._allowed(path):
            raise _broken(
                f"class {_shown(path)} may not be rebuilt (CLUSTER_REQUEST_CLASSES)", fields
            )
        module, _, name = path.rpartition(".")
        try:
            cls = getattr(import_module(module), name)
        except (Exception, SystemExit) as exc:  # a module's own code can raise anything
            raise _broken(f"class {_shown(path)} is not there: {_shown(exc)}", fields) from exc
        if not (isinstance(cls, type) and issubclass(cls, Request)):
            raise _broken(f"{_shown(path)} is no request class", fields)
        return cls


def _as_it_was(*, meta: Any = None, encoding: str = "utf-8", **kwargs: Any) -> Request:
    """A plain request; its URL has been through Scrapy's quoting once and is taken as it is."""
    if encoding != "utf-8":
        lookup(encoding)  # the quoting would have refused an unknown one
    request = Request(**kwargs, encoding=encoding, meta=_VERBATIM)
    request._meta = dict(meta) if meta else None
    return request


def _restore(request: Request, stored: Request) -> None:
    """Undo what the ``__init__`` of a request's class changed: the queue's entry knows better."""
    for name in ("method", "priority", "dont_filter", "cookies", "flags"):
        if getattr(request, name) != getattr(stored, name):
            setattr(request, name, getattr(stored, name))
    for name in ("headers", "meta", "cb_kwargs"):
        container, right = getattr(request, name), getattr(stored, name)
        if container != right:
            container.clear()
            container.update(right)
    if request.body != stored.body:
        request._set_body(stored.body)


def note_of(url: str, method: str = "") -> bytes:
    """A payload that is no request: it only tells a person what was refused."""
    fields = {"u": url, "m": method} if method else {"u": url}
    packed: bytes = msgpack.packb(fields, unicode_errors="surrogatepass")
    return bytes([NOTE]) + packed


# --- reading payloads without a spider ----------------------------------------------------


def url_of(payload: bytes) -> str:
    """The URL in a payload; an empty text when it cannot be read."""
    try:
        return str(_unpack(payload)["u"])
    except CodecError:
        return ""


def page_of(payload: bytes) -> tuple[str, str, bytes]:
    """Method, URL and body of a payload's request.

    Raises:
        CodecError: it cannot be read.
    """
    fields = _unpack(payload)
    return fields.get("m", "GET"), fields["u"], fields.get("b", b"")


def slot_of(payload: bytes) -> str:
    """The downloader slot a payload's request goes to: its ``download_slot``, or its host."""
    # A cache of large payloads would hold gigabytes.
    return (_slot_of if len(payload) <= _CACHED_BYTES else _slot_of.__wrapped__)(payload)


@lru_cache(maxsize=4096)
def _slot_of(payload: bytes) -> str:
    try:
        fields = _unpack(payload)
        meta = fields.get("a")
        slot = meta.get("download_slot") if isinstance(meta, dict) else None
        return str(slot or urlsplit(fields["u"]).hostname or "")
    except (CodecError, ValueError):
        return ""


def describe(payload: bytes) -> dict[str, Any]:
    """What a person wants to know of a payload: url, method, callback, priority."""
    try:
        fields = _unpack(payload)
    except CodecError:
        return {"url": "(unreadable)", "method": "", "callback": None, "priority": 0}
    return {
        "url": fields["u"],
        "method": fields.get("m", "" if payload[0] == NOTE else "GET"),
        "callback": fields.get("r"),
        "priority": fields.get("p", 0),
    }


def _unpack(payload: bytes, ext_hook: Callable[[int, bytes], Any] | None = None) -> dict[str, Any]:
    allowed = (VERSION,) if ext_hook else (VERSION, NOTE)
    if not payload or payload[0] not in allowed:
        version = payload[0] if payload else "none"
        raise CodecError(
            f"the queue entry has version {version}, this clusterscrapy reads {VERSION}; "
            "was it written by another version?"
        )
    try:
        fields = msgpack.unpackb(
            memoryview(payload)[1:],
            ext_hook=ext_hook or _skipped,
            strict_map_key=False,
            unicode_errors="surrogatepass",
        )
    except CodecError:
        raise
    except Exception as exc:
        raise CodecError(f"the queue entry is broken: {type(exc).__name__}: {exc}") from exc
    if not isinstance(fields, dict) or not isinstance(fields.get("u"), str):
        raise CodecError("the queue entry is broken: it holds no URL")
    return fields


def _skipped(code: int, data: bytes) -> None:
    """Whoever has no spider asks for the URL and the like; what lies deeper is not rebuilt."""


def _extension(code: int, data: bytes, ext_hook: Callable[[int, bytes], Any]) -> Any:
    if code == _INT:
        return int(data, 0)
    rebuild = _REBUILD.get(code)
    if rebuild is None:
        raise CodecError(f"the queue entry is broken: it holds an unknown type {code}")
    value = msgpack.unpackb(
        data, ext_hook=ext_hook, strict_map_key=False, unicode_errors="surrogatepass"
    )
    return rebuild(value)


_EXTENSIONS: tuple[tuple[type, int, Callable[[Any], Any]], ...] = (
    (tuple, _TUPLE, list),
    (set, _SET, list),
    (frozenset, _FROZENSET, list),
    (datetime, _DATETIME, lambda value: [datetime.isoformat(value), value.fold]),
    (date, _DATE, date.isoformat),
    (timedelta, _TIMEDELTA, lambda value: [value.days, value.seconds, value.microseconds]),
    (Decimal, _DECIMAL, str),
    (UUID, _UUID, lambda value: value.bytes),
)
_REBUILD: dict[int, Callable[[Any], Any]] = {
    _TUPLE: tuple,
    _SET: set,
    _FROZENSET: frozenset,
    _DATETIME: lambda value: datetime.fromisoformat(value[0]).replace(fold=value[1]),
    _DATE: date.fromisoformat,
    _TIMEDELTA: lambda value: timedelta(*value),
    _DECIMAL: Decimal,
    _UUID: lambda value: UUID(bytes=value),
}


def _walk(value: Any, path: str, above: tuple[int, ...] = ()) -> Iterator[tuple[str, Any]]:
    """A value, after all that is in it, with the path a programmer would write.

    A path ends with ``…`` where the walk stops: at what contains itself, and a hundred levels deep.
    """
    if id(value) in above or len(above) > 100:
        yield f"{path}…", value
        return
    above = (*above, id(value))
    if isinstance(value, dict):
        for key, inner in dict.items(value):
            yield from _walk(key, f"a key of {path}", above)
            yield from _walk(inner, f"{path}[{key!r:.50}]", above)
    for kind in _SEQUENCES:
        if isinstance(value, kind):
            # The plain type's iterator: a subclass's own may be what failed.
            for index, inner in enumerate(kind.__iter__(value)):
                yield from _walk(inner, f"{path}[{index}]", above)
    yield path, value


def _named(function: object) -> str:
    """A function as a person finds it in the source: its repr is an address."""
    name = getattr(function, "__qualname__", None)
    return f"{getattr(function, '__module__', '?')}.{name}" if name else _shown(repr(function))


def _shown(value: object) -> str:
    """A text that every log and every store takes: short, and without lone surrogates or breaks."""
    text = str(value)
    short = text if len(text) <= _URL_SHOWN else f"{text[:_URL_SHOWN]}…"
    return short if short.isprintable() else short.encode("unicode_escape").decode("ascii")


def _broken(why: str, fields: Mapping[str, Any]) -> CodecError:
    url = str(fields.get("u", ""))
    return CodecError(f"{_shown(url)}: {why}", path="payload", url=url)
