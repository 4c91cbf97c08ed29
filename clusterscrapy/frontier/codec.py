"""Requests as plain data: what is written into a queue, and how it becomes a request again.

A payload is one version byte and a msgpack map of what differs from a default request. Nothing in
it is code: callbacks are names of the spider's methods, and the only classes a payload can name
are request classes of Scrapy, of the project's own packages or of ``CLUSTER_REQUEST_CLASSES``.

Values in ``meta``, ``cb_kwargs``, ``cookies`` and ``flags`` may be None, bool, int of any size,
float, str, bytes, list, tuple, dict, set, frozenset, datetime, date, timedelta, Decimal, UUID and
requests. Subclasses become the plain type they extend.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from importlib import import_module
from typing import Any, NoReturn
from urllib.parse import urlsplit
from uuid import UUID

import msgpack
from scrapy import Request, Spider
from scrapy.http.request import NO_CALLBACK

from clusterscrapy.exceptions import CodecError

VERSION = 1
NOTE = 0
"""Version byte of a note about a request that could not be stored; it is never made a request again."""

_URL_SHOWN = 200
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
        self._packer = msgpack.Packer(
            default=self._extended, strict_types=True, unicode_errors="surrogatepass"
        )

    # --- request to bytes -------------------------------------------------------------------

    def encode(self, request: Request) -> bytes:
        """The payload of a request; the request is not changed.

        Raises:
            CodecError: a callback is not the spider's method, a value is not plain data, the class
                would not be rebuilt, or the payload is too large. The error names the place.
        """
        fields = self._fields(request)
        try:
            payload = b"\x01" + self._packer.pack(fields)
        except CodecError:
            raise
        except (TypeError, ValueError, OverflowError, RecursionError) as exc:
            self._packer.reset()
            self._blame(request, exc)
        if len(payload) > self.max_bytes:
            self._too_large(request, len(payload))
        return bytes(payload)

    def _fields(self, request: Request) -> dict[str, Any]:
        fields: dict[str, Any] = {
            short: value
            for short, value, default in (
                ("m", request.method, "GET"),
                ("b", request.body, b""),
                ("p", request.priority, 0),
                ("d", request.dont_filter, False),
                ("e", request.encoding, "utf-8"),
            )
            if value != default
        }
        fields["u"] = request.url
        containers = (
            ("h", dict(request.headers)),
            ("c", request.cookies),
            ("a", request.meta),
            ("k", request.cb_kwargs),
            ("f", request.flags),
        )
        fields |= {short: value for short, value in containers if value}
        if request.callback is NO_CALLBACK:
            fields["n"] = True
        elif request.callback is not None:
            fields["r"] = self._name_of(request, "callback", request.callback)
        if request.errback is not None and request.errback != self.transparent_errback:
            fields["x"] = self._name_of(request, "errback", request.errback)
        if type(request) is not Request:
            self._class_fields(request, fields)
        return fields

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
            f"{_shown(request.url)}: its {role} {function!r:.100} is no method of spider "
            f"{self.spider.name!r}, so no other process could call it; make it one",
            path=role,
            url=request.url,
        )

    def _find_method(self, function: Any) -> str:
        usual: str = function.__name__
        candidates = [usual, *(name for cls in type(self.spider).__mro__ for name in vars(cls))]
        for name in candidates:
            found = getattr(self.spider, name, None)
            if getattr(found, "__func__", None) is function:
                return name
        return ""

    def _extended(self, value: Any) -> Any:
        """What msgpack has no type for. Order matters: a datetime is a date."""
        for kind, code, data in _EXTENSIONS:
            if isinstance(value, kind):
                return msgpack.ExtType(code, self._packed(data(value)))
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
            return msgpack.ExtType(_INT, str(small).encode())
        if isinstance(value, Request):
            return msgpack.ExtType(_REQUEST, self.encode_nested(value))
        raise TypeError(f"{type(value).__module__}.{type(value).__qualname__} is no plain data")

    def _packed(self, value: Any) -> bytes:
        # A packer cannot be used inside itself.
        packed: bytes = msgpack.packb(
            value, default=self._extended, strict_types=True, unicode_errors="surrogatepass"
        )
        return packed

    def encode_nested(self, request: Request) -> bytes:
        """The payload of a request inside another's ``meta`` or ``cb_kwargs``."""
        return b"\x01" + self._packed(self._fields(request))

    def _blame(self, request: Request, exc: Exception) -> NoReturn:
        """Name the place that made packing fail."""
        values = {name: getattr(request, name) for name in _PLAIN}
        values |= {
            name: getattr(request, name) for name in self._own_attributes.get(type(request), ())
        }
        for name, value in values.items():
            for path, inner in _walk(value, name):
                if path.endswith("…"):
                    why = "contains itself, or is nested too deep"
                elif _is_container(inner):
                    continue
                else:
                    try:
                        self._packed(inner)
                        continue
                    except CodecError:
                        raise
                    except (TypeError, ValueError, OverflowError, RecursionError) as inner_exc:
                        why = f"cannot be stored: {inner_exc}"
                raise CodecError(
                    f"{_shown(request.url)}: {path} {why}; pass plain data, such as "
                    "ItemAdapter(item).asdict()",
                    path=path,
                    url=request.url,
                ) from exc
        raise CodecError(
            f"{_shown(request.url)} cannot be stored: {exc}", path="request", url=request.url
        ) from exc

    def _too_large(self, request: Request, size: int) -> NoReturn:
        sizes = {"url": len(request.url)}
        for name in _PLAIN:
            value = getattr(request, name)
            if isinstance(value, Mapping) and name in ("meta", "cb_kwargs"):
                sizes |= {f"{name}[{key!r}]": len(self._packed(v)) for key, v in value.items()}
            elif value:
                sizes[name] = len(self._packed(dict(value) if name == "headers" else value))
        biggest = max(sizes, key=lambda name: sizes[name])
        raise CodecError(
            f"{_shown(request.url)}: {size:,} bytes are more than CLUSTER_REQUEST_MAX_BYTES="
            f"{self.max_bytes:,}; the largest part is {biggest} with {sizes[biggest]:,} bytes",
            path=biggest,
            url=request.url,
        )

    def note(self, request: Request) -> bytes:
        """A payload that only tells which request could not be stored."""
        url = request.url if len(request.url) <= self.max_bytes else request.url[: self.max_bytes]
        return bytes([NOTE]) + self._packed({"u": url, "m": request.method})

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
            raise _broken(f"unknown fields {sorted(map(str, unknown))}", fields)
        kwargs = {name: fields[short] for short, name in _NAMES.items() if short in fields}
        cls: type[Request] = Request
        if "t" in fields:
            cls = self._class_of(fields)
            # Some classes choose their own method and filter unless told.
            kwargs.setdefault("method", "GET")
            kwargs.setdefault("dont_filter", False)
        if "r" in fields:
            kwargs["callback"] = self._method(fields, "callback", fields["r"])
        elif "n" in fields:
            kwargs["callback"] = NO_CALLBACK
        if "x" in fields:
            kwargs["errback"] = self._method(fields, "errback", fields["x"])
        meta = kwargs.get("meta")
        if cls is Request:
            # The URL has been through Scrapy's quoting once; a verbatim one is taken as it is.
            kwargs["meta"] = _VERBATIM
        try:
            request = cls(**kwargs, **fields.get("z", {}))
            request._meta = meta
            if request.url != fields["u"]:
                request._url = str(fields["u"])
        except Exception as exc:
            raise _broken(f"{cls.__qualname__} cannot be made: {exc}", fields) from exc
        return request

    def _ext_hook(self, code: int, data: bytes) -> Any:
        if code == _REQUEST:
            return self.decode(data)
        return _extension(code, data, self._ext_hook)

    def _method(self, fields: dict[str, Any], role: str, name: Any) -> Callable[..., Any]:
        method = getattr(self.spider, name, None) if isinstance(name, str) else None
        if getattr(method, "__self__", None) is not self.spider:
            raise CodecError(
                f"{_shown(fields['u'])}: spider {self.spider.name!r} has no method {name!s:.100} "
                f"for its {role}; was it renamed?",
                path=role,
                url=str(fields["u"]),
            )
        found: Callable[..., Any] = method  # type: ignore[assignment]
        return found

    def _allowed(self, path: str) -> bool:
        return path in self._classes or path.partition(".")[0] in self._packages

    def _class_of(self, fields: dict[str, Any]) -> type[Request]:
        path = fields["t"]
        if not isinstance(path, str) or not self._allowed(path):
            raise _broken(
                f"class {path!s:.100} may not be rebuilt (CLUSTER_REQUEST_CLASSES)", fields
            )
        module, _, name = path.rpartition(".")
        try:
            cls = getattr(import_module(module), name)
        except (ImportError, AttributeError, ValueError) as exc:
            raise _broken(f"class {path:.100} is not there: {exc}", fields) from exc
        if not (isinstance(cls, type) and issubclass(cls, Request)):
            raise _broken(f"{path:.100} is no request class", fields)
        return cls


# --- reading payloads without a spider ----------------------------------------------------


def url_of(payload: bytes) -> str:
    """The URL in a payload; an empty text when it cannot be read."""
    try:
        return str(_unpack(payload)["u"])
    except CodecError:
        return ""


@lru_cache(maxsize=4096)
def slot_of(payload: bytes) -> str:
    """The downloader slot a payload's request goes to: its ``download_slot``, or its host."""
    try:
        fields = _unpack(payload)
        meta = fields.get("a", {})
        return str(meta.get("download_slot") or urlsplit(fields["u"]).hostname or "")
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
        "method": fields.get("m", "GET"),
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
            ext_hook=ext_hook or _lenient,
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


def _lenient(code: int, data: bytes) -> Any:
    return None if code == _REQUEST else _extension(code, data, _lenient)


def _extension(code: int, data: bytes, ext_hook: Callable[[int, bytes], Any]) -> Any:
    if code == _INT:
        return int(data)
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
    (datetime, _DATETIME, lambda value: [value.isoformat(), value.fold]),
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


def _is_container(value: object) -> bool:
    return isinstance(value, Mapping | list | tuple | set | frozenset)


def _walk(value: Any, path: str, above: tuple[int, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every value inside a value, with the path a programmer would write; ``…`` where it does not end."""
    if id(value) in above or len(above) > 100:
        yield f"{path}…", value
        return
    yield path, value
    above = (*above, id(value))
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _walk(key, f"a key of {path}", above) if isinstance(key, Hashable) else ()
            yield from _walk(inner, f"{path}[{key!r:.50}]", above)
    elif _is_container(value):
        for index, inner in enumerate(value):
            yield from _walk(inner, f"{path}[{index}]", above)


def _shown(url: object) -> str:
    text = str(url)
    return text if len(text) <= _URL_SHOWN else f"{text[:_URL_SHOWN]}…"


def _broken(why: str, fields: Mapping[str, Any]) -> CodecError:
    url = str(fields.get("u", ""))
    return CodecError(f"{_shown(url)}: {why}", path="payload", url=url)
