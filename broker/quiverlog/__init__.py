"""quiverlog: an Arrow-native event log for Spark.

This is the public API: `connect`, `Client`, the errors and a few values. Importing it must stay
cheap (no pyarrow, no sockets: the command line and Spark's discovery both pay for it), so
everything heavier than the error table is loaded when it is first asked for (PEP 562).

    client = quiverlog.connect("127.0.0.1:9292")

The asyncio twin lives in `quiverlog.aio`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import errors
from .errors import QuiverlogError
from .version import VERSION as __version__

if TYPE_CHECKING:
    from . import aio
    from .batch.schema import RAW_SCHEMA
    from .client.client import Client, connect
    from .types import Compression, Durability, TopicPartition

__all__ = [
    "RAW_SCHEMA",
    "Client",
    "Compression",
    "Durability",
    "QuiverlogError",
    "TopicPartition",
    "__version__",
    "aio",
    "connect",
    "errors",
]

_LAZY = {
    "connect": "quiverlog.client.client",
    "Client": "quiverlog.client.client",
    "RAW_SCHEMA": "quiverlog.batch.schema",
    "Durability": "quiverlog.types",
    "Compression": "quiverlog.types",
    "TopicPartition": "quiverlog.types",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "aio":
        return import_module("quiverlog.aio")
    if name in _LAZY:
        value = getattr(import_module(_LAZY[name]), name)
    elif isinstance(found := getattr(errors, name, None), type) and issubclass(
        found, QuiverlogError
    ):
        value = found
    else:
        raise AttributeError(f"module 'quiverlog' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
