"""Packages that quiverlog can use and does not need: how one that is missing is told."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from quiverlog.errors import InvalidArgument
from quiverlog.installing import install_line

__all__ = ["extra"]

_EXTRA_OF_PACKAGE: Final = {"duckdb": "sql", "polars": "polars", "opentelemetry": "otel"}


def extra(package: str, user: str) -> Any:
    """The package or module. Raises InvalidArgument: not installed, and `user` needs it."""
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        # Of a module that is missing, the package above it may be what is named.
        if error.name is None or not f"{package}.".startswith(f"{error.name}."):
            raise
        top = package.partition(".")[0]
        line = install_line(_EXTRA_OF_PACKAGE.get(top, ""), top)
        raise InvalidArgument(f"{user} needs {top}: {line}.") from error
