"""What README.md tells people to type does what it says."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.broker import BrokerProcess

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()
pytestmark = pytest.mark.process


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def run(arguments: list[str], cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_python_example_prints_the_rows_that_it_sent(tmp_path: Path) -> None:
    with BrokerProcess() as broker:
        program = next(block for block in blocks("python") if "quiverlog.connect" in block)
        assert "127.0.0.1:9292" in program
        out = run(["-c", program.replace("127.0.0.1:9292", broker.bootstrap)], tmp_path)
    assert "{'carrier': 'UA', 'delay': 2.0}" in out
    assert "{'carrier': 'AA', 'delay': -5.5}" in out


def test_the_command_line_example_works(tmp_path: Path) -> None:
    (tmp_path / "late.csv").write_text("carrier,delay\nUA,61.5\nAA,75\n")
    commands = next(block for block in blocks("sh") if "topic create" in block).splitlines()
    assert [shlex.split(line)[1] for line in commands] == ["topic", "produce", "consume", "doctor"]
    with BrokerProcess() as broker:
        for line in commands[:-1]:  # `doctor` looks at the machine, which is not the README's
            words = [*shlex.split(line)[1:], "--bootstrap-server", broker.bootstrap]
            out = run(["-m", "quiverlog", *words], tmp_path)
    assert "61.5" in out
    assert "75" in out
