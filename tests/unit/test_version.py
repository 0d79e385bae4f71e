"""One version: the package's metadata, the broker's greeting and `quiverlog --version` agree."""

from __future__ import annotations

import tomllib
from pathlib import Path

import quiverlog
from quiverlog.version import VERSION

ROOT = Path(__file__).resolve().parents[2]


def test_the_version_is_written_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == VERSION
    assert quiverlog.__version__ == VERSION
