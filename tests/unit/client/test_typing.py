"""What type checkers report of programs that use the client: wrong ones are found, right ones pass.

The sample is checked as a user would have it, beside an installed package: strictly, without this
project's settings.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import quiverlog

ROOT = Path(__file__).resolve().parents[3]
SAMPLE = ROOT / "tests" / "support" / "typing_sample.py"
WRONG = re.compile(r"# wrong: (?P<mypy>[\w-]+)")


def wrong_lines() -> dict[int, str]:
    """Line -> the code of the error that mypy must report there."""
    lines = SAMPLE.read_text().splitlines()
    found = {n: WRONG.search(line) for n, line in enumerate(lines, start=1)}
    return {n: match["mypy"] for n, match in found.items() if match}


def test_mypy_finds_what_is_wrong_and_nothing_else(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    config = tmp_path / "mypy.ini"
    config.write_text(
        "[mypy]\n"
        f"mypy_path = {ROOT / 'broker'}\n"
        "follow_imports = silent\n"
        "[mypy-pyarrow.*,fastcrc.*,pandas.*]\nignore_missing_imports = true\n"
    )
    run = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--config-file", str(config)),
            *("--cache-dir", str(tmp_path / "cache"), str(SAMPLE)),
        ],
        capture_output=True,
        text=True,
        timeout=170,
        cwd=tmp_path,
    )
    reported = re.findall(
        r"typing_sample\.py:(\d+): error: .*\[([\w-]+)\]$", run.stdout, re.MULTILINE
    )
    assert {int(line): code for line, code in reported} == wrong_lines(), run.stdout + run.stderr


@pytest.mark.long
def test_pyright_finds_them_too(tmp_path: Path) -> None:
    """By basedpyright: it brings pyright along, where the package `pyright` fetches it when run."""
    pytest.importorskip("basedpyright")
    config = tmp_path / "pyrightconfig.json"
    settings = {
        "include": [str(SAMPLE)],
        "extraPaths": [str(ROOT / "broker")],
        "typeCheckingMode": "standard",
        "reportMissingTypeStubs": False,
    }
    config.write_text(json.dumps(settings))
    run = subprocess.run(
        [
            *(sys.executable, "-m", "basedpyright", "--outputjson", "--project", str(config)),
            *("--pythonpath", sys.executable),
        ],
        capture_output=True,
        text=True,
        timeout=170,
        cwd=tmp_path,
    )
    found = json.loads(run.stdout)["generalDiagnostics"]
    errors = {d["range"]["start"]["line"] + 1 for d in found if d["severity"] == "error"}
    assert errors == set(wrong_lines()), run.stdout


def test_the_package_lists_its_errors_and_nothing_that_is_not_there() -> None:
    listed = dir(quiverlog)
    assert {"UnknownTopic", "SchemaMismatch", "connect", "aio"} <= set(listed)
    table = set(quiverlog.errors._BY_CODE.values())
    assert {e.__name__ for e in table} == set(quiverlog.errors.__all__) <= set(listed)
    assert all(getattr(quiverlog, name) is not None for name in listed)
    with pytest.raises(AttributeError, match="Did you mean 'connect'"):
        quiverlog.conect  # type: ignore[attr-defined]  # noqa: B018
