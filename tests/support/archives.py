"""Archives that the tests keep, or have made."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

__all__ = ["unpack"]


def unpack(archive: Path, place: Path) -> None:
    """All members of a tar file. Python before 3.11.4 has no filters (PEP 706)."""
    safely: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(archive) as tar:
        tar.extractall(place, **safely)
