"""Packages that quiverlog can use and does not need: how one that is missing is told."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from quiverlog.errors import InvalidArgument

__all__ = ["extra"]


def extra(package: str, user: str) -> Any:
    """The package. Raises InvalidArgument: not installed, and `user` needs it."""
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise InvalidArgument(f"{user} needs {package}: pip install {package}.") from error
