"""What `scripts/test.sh` makes of the statuses of its parts, with and without a choice of tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PYTEST = """#!{python}
import os, sys
words = " ".join(sys.argv)
without, spark, containers = map(int, os.environ["STATUSES"].split())
if "not spark" in words:
    sys.exit(without)
sys.exit(spark if "-m spark" in words else containers)
"""
"""In the place of `python -m pytest`: ends as each part is to end."""

PASSED, FAILED, INTERRUPTED, NONE, NO_ENGINE = 0, 1, 2, 5, 69


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The script beside an engine that is there, with tests that only have a status."""
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    for name in ("test.sh", "common.sh"):
        shutil.copy(ROOT / "scripts" / name, scripts)
    for path, text in (
        (tmp_path / "bin" / "python", PYTEST.format(python=sys.executable)),
        (scripts / "containers.sh", '#!/bin/sh\nexec "$@"\n'),
    ):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    return scripts / "test.sh"


def status_of(script: Path, statuses: tuple[int, int, int], *words: str) -> int:
    root = script.parents[1]
    environ = {
        **os.environ,
        "CI": "",
        "TMPDIR": str(root),
        "STATUSES": " ".join(map(str, statuses)),
    }
    environ["PATH"] = f"{root / 'bin'}:{environ['PATH']}"
    done = subprocess.run(
        [script, *words], env=environ, capture_output=True, timeout=60, check=False
    )
    return done.returncode


@pytest.mark.parametrize(
    ("statuses", "whole", "chosen"),
    [
        ((PASSED, PASSED, PASSED), 0, 0),
        ((PASSED, PASSED, NO_ENGINE), 0, 0),
        ((PASSED, NONE, NONE), 2, 0),
        ((NONE, NONE, PASSED), 2, 0),
        ((NONE, NONE, NONE), 2, 2),
        ((FAILED, NONE, NONE), 2, 1),
        ((PASSED, FAILED, PASSED), 1, 1),
        ((INTERRUPTED, PASSED, NONE), 2, 2),
    ],
)
def test_a_part_without_tests_fails_only_what_runs_all(
    script: Path, statuses: tuple[int, int, int], whole: int, chosen: int
) -> None:
    assert status_of(script, statuses) == whole
    assert status_of(script, statuses, "tests/unit", "-k", "a word") == chosen
