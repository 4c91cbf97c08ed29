"""Stand-in codec."""
from __future__ import annotations
import msgpack
from scrapy import Request
from clusterscrapy.exceptions import CodecError
class RequestCodec:
    def __init__(self, spider, *, request_classes=(), project_packages=(), max_bytes=1_000_000):
        self.spider=spider; self.transparent_errback=None
    def encode(self, r):
        d=r.to_dict(spider=None) if False else {"url": r.url,"m":r.method,"h":dict(r.headers),"b":r.body,"meta":r.meta,"cb":r.callback.__name__ if r.callback else None,"p":r.priority,"df":r.dont_filter,"kw":r.cb_kwargs,"eb":r.errback.__name__ if r.errback and r.errback!=self.transparent_errback else None}
        try: return msgpack.packb(d)
        except Exception as e: raise CodecError(f"{e}", path="x", url=r.url)
    def tombstone(self, r): return b""
    def decode(self, p):
        d=msgpack.unpackb(p)
        g=lambda n: getattr(self.spider,n) if n else None
        return Request(d["url"],method=d["m"],headers=d["h"],body=d["b"],meta=d["meta"],callback=g(d["cb"]),priority=d["p"],dont_filter=d["df"],cb_kwargs=d["kw"],errback=g(d["eb"]))
    def host_of(self,p): return ""
def url_of(p): return msgpack.unpackb(p)["url"]
def describe(p): return {"url":url_of(p)}
