"""quiverlog: an Arrow-native event log for Spark.

The public API: `connect`, `Client`, the errors and a few values. Importing it must stay cheap, as
the command line and Spark's discovery pay for it: everything heavier than the error table is loaded
at first use (PEP 562).

    client = quiverlog.connect("127.0.0.1:9292")

The asyncio twin is `quiverlog.aio`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import errors
from .errors import *  # noqa: F403 - every error, under its name
from .version import VERSION as __version__

if TYPE_CHECKING:
    from . import aio
    from .batch.schema import RAW_SCHEMA
    from .client.admin.rules import AccessRule
    from .client.base.security import Security
    from .client.client import Client, connect
    from .client.polars_scan import scan_polars
    from .types import Compression, Durability, TopicPartition

__all__ = [
    "RAW_SCHEMA",
    "AccessRule",
    "Client",
    "Compression",
    "Durability",
    "Security",
    "TopicPartition",
    "__version__",
    "aio",
    "connect",
    "errors",
    "scan_polars",
]
__all__ += errors.__all__

_LAZY = {
    "AccessRule": "quiverlog.client.admin.rules",
    "aio": "quiverlog.aio",
    "connect": "quiverlog.client.client",
    "Client": "quiverlog.client.client",
    "Security": "quiverlog.client.base.security",
    "scan_polars": "quiverlog.client.polars_scan",
    "RAW_SCHEMA": "quiverlog.batch.schema",
    "Durability": "quiverlog.types",
    "Compression": "quiverlog.types",
    "TopicPartition": "quiverlog.types",
}

if not TYPE_CHECKING:  # Type checkers see the names above, and would take any other for good.

    def __getattr__(name: str) -> Any:
        from importlib import import_module

        if name not in _LAZY:
            import difflib

            near = difflib.get_close_matches(name, __all__, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise AttributeError(f"module 'quiverlog' has no attribute {name!r}.{hint}")
        module = import_module(_LAZY[name])
        value = module if name == "aio" else getattr(module, name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
