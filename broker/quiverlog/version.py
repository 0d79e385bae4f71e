"""The version of quiverlog. A test compares it with `pyproject.toml`'s."""

from __future__ import annotations

from typing import Final

__all__ = ["VERSION"]

VERSION: Final = "0.1.0"
