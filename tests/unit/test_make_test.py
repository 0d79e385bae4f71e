"""What `scripts/test.sh` runs in each of its tiers, and makes of the statuses of its parts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PYTEST = """#!{python}
import os, sys
marks = next(word for word in sys.argv if " and " in word)
without, spark, containers = map(int, os.environ["STATUSES"].split())
with open("marks", "a") as file:
    print(marks, file=file)
if "not spark" in marks:
    with open(os.environ["QUIVERLOG_TEST_LEFT"], "w") as file:
        file.write(os.environ["LEFT"])
    sys.exit(without)
sys.exit(spark if "and spark" in marks else containers)
"""
"""In the place of `python -m pytest`: ends as each part is to end, and notes what it was to run."""

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


def run(
    script: Path, statuses: tuple[int, int, int], *words: str, left: str = ""
) -> subprocess.CompletedProcess[str]:
    root = script.parents[1]
    environ = {
        **os.environ,
        "CI": "",
        "TMPDIR": str(root),
        "STATUSES": " ".join(map(str, statuses)),
        "LEFT": left,
    }
    environ["PATH"] = f"{root / 'bin'}:{environ['PATH']}"
    return subprocess.run(
        [script, *words], env=environ, capture_output=True, text=True, timeout=60, check=False
    )


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
    assert run(script, statuses).returncode == whole
    assert run(script, statuses, "--long", "tests/unit", "-k", "a word").returncode == chosen


PARTS = "not spark and not containers", "spark", "containers"


@pytest.mark.parametrize(("words", "tier"), [([], "not long"), (["--long"], "long")])
def test_each_part_runs_the_tests_of_its_tier(script: Path, words: list[str], tier: str) -> None:
    run(script, (PASSED, PASSED, PASSED), *words)
    asked = (script.parents[1] / "marks").read_text().splitlines()
    assert asked == [f"{tier} and {part}" for part in PARTS]


@pytest.mark.parametrize(
    ("words", "left", "last"),
    [
        ([], "7", "quiverlog: 7 more tests are left to make test-long"),
        ([], "", None),
        (["--long"], "12000", None),
    ],
)
def test_the_last_line_counts_what_is_left(
    script: Path, words: list[str], left: str, last: str | None
) -> None:
    done = run(script, (PASSED, FAILED, PASSED), *words, left=left)
    lines = (done.stdout + done.stderr).splitlines()
    assert [line for line in lines if "left to" in line] == [last] * (last is not None)
    assert last is None or lines[-1] == last


@pytest.mark.parametrize(("words", "counts"), [([], True), (["-k", "slow"], False)])
def test_long_tests_that_are_left_out_are_counted(
    tmp_path: Path, words: list[str], counts: bool
) -> None:
    """In each process, of all that was collected; what `-k` leaves out is left to no other run."""
    marked = (
        "import pytest\n\n@pytest.mark.long\ndef test_slow(): pass\ndef test_slow_too(): pass\n"
    )
    (tmp_path / "test_it.py").write_text(marked)
    command = [sys.executable, "-m", "pytest", "-q", "-c", str(ROOT / "pyproject.toml")]
    done = subprocess.run(
        [*command, "-p", "tests.conftest", "-n", "1", "-m", "not long", *words, str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"QUIVERLOG_TEST_LEFT": str(tmp_path / "left")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "1 passed" in done.stdout, done.stdout
    assert (tmp_path / "left").exists() is counts
    assert not counts or (tmp_path / "left").read_text() == "1"


def test_the_long_cases_are_there() -> None:
    """By file and name; what a test is given is seen when it is collected."""
    lines = (ROOT / "tests" / "long_cases.txt").read_text().splitlines()
    gone = []
    for line in lines:
        if not line.startswith("#"):
            # The first name alone: methods may be those of a base class elsewhere.
            file, name, *_ = line.partition("[")[0].split("::")
            text = (ROOT / file).read_text() if (ROOT / file).exists() else ""
            if not re.search(rf"(def|class) {name}\b", text):
                gone.append(line)
    assert gone == []
    assert lines[2:] == sorted(set(lines[2:]))
