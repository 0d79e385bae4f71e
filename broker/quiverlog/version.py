"""The version of quiverlog, at floor 0 so that every floor may say it.

`pyproject.toml` has it once more for the package's metadata; a test holds the two together.
"""

from __future__ import annotations

from typing import Final

__all__ = ["VERSION"]

VERSION: Final = "0.1.0"
