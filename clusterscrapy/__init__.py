"""Scrapy made into a crawl cluster: ``ADDONS = {"clusterscrapy.Addon": 500}`` switches it on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clusterscrapy.addon import Addon

__version__ = "0.1.0"
__all__ = ["Addon", "__version__"]


def __getattr__(name: str) -> Any:
    # Lazily, so that importing one part does not load Scrapy and all the others.
    if name == "Addon":
        from clusterscrapy.addon import Addon

        return Addon
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
