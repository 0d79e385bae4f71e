"""docs/operating.md, typed in from top to end: what comes back must be what the page shows."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from quiverlog.local.cluster import BROKERS_MAX, LocalCluster
from quiverlog.local.ports import free_port, is_free

pytestmark = pytest.mark.process

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "operating.md").read_text()
FIRST_PORT = 9292
COMMAND_S = 120
_SETTLES_S = 20.0
_LOOKS = tuple(
    f"quiverlog {what}"
    for what in (
        *("cluster brokers", "cluster status", "cluster describe", "cluster features"),
        *("partition list", "quorum status", "topic describe", "config get", "dev status"),
    )
)
"""Commands that only look may be typed again until all brokers have heard of what was decided."""
DIFFERS = (
    (re.compile(r"\b[0-9a-f]{32}\b"), "ID"),
    (re.compile(r"(127\.0\.0\.1:\d+ +)\d+$", re.MULTILINE), r"\1PID"),
    (re.compile(r"\b\d+\.\d s\b"), "N s"),
    (re.compile(r"broker \d decides"), "broker N decides"),
    (re.compile(r"[─ ]{2,}"), " "),
)
"""What is another from run to run, or with the width of a column."""


class Typed(NamedTuple):
    command: str
    shown: str


def typed_lines() -> Iterator[Typed]:
    """The commands of the page's consoles, with what it shows of each."""
    for block in re.findall(r"^```console\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        assert block.startswith("$ ")
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            lines = part.split("\n")
            more = list(itertools.takewhile(lambda line: line.startswith("> "), lines[1:]))
            command = "\n".join([lines[0], *(line[2:] for line in more)])
            yield Typed(command, "\n".join(lines[1 + len(more) :]))


class Shell:
    """One bash for the whole page. What a command says on stderr counts where it fails."""

    def __init__(self, directory: Path, port: int) -> None:
        env = {k: v for k, v in os.environ.items() if not k.startswith("QUIVERLOG_")}
        env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
        env["QUIVERLOG_BOOTSTRAP_SERVER"] = f"127.0.0.1:{port}"
        self._stderr = directory / "stderr"
        self._port = port
        self._bash = subprocess.Popen(
            ["bash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=directory,
            env=env,
        )  # fmt: skip

    def type(self, command: str) -> str:
        """What comes back, with the page's ports."""
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        moved = re.sub(r"127\.0\.0\.1:(9\d{3})", self._here, command)
        if moved.startswith("quiverlog dev up"):
            moved += f" --port {self._port}"
        elif moved.startswith("quiverlog"):
            moved = f"timeout {COMMAND_S} {moved}"
        end = 'rc=$?; printf "\\n@@@%d\\n" $rc; (exit $rc)'
        self._bash.stdin.write(f"{{ {moved}; }} 2>{self._stderr} </dev/null; {end}\n")
        self._bash.stdin.flush()
        said = ""
        for line in self._bash.stdout:
            if line.startswith("@@@"):
                failed = line != "@@@0\n"
                return self._of_page(said[:-1] + (self._stderr.read_text() if failed else ""))
            said += line
        raise AssertionError(f"the shell ended at {command!r}")

    def close(self) -> None:
        self._bash.kill()
        self._bash.communicate()

    def _here(self, found: re.Match[str]) -> str:
        return f"127.0.0.1:{int(found[1]) - FIRST_PORT + self._port}"

    def _of_page(self, text: str) -> str:
        return re.sub(
            r"127\.0\.0\.1:(\d+)",
            lambda found: f"127.0.0.1:{int(found[1]) - self._port + FIRST_PORT}",
            text,
        )


def comparable(text: str) -> str:
    for pattern, word in DIFFERS:
        text = pattern.sub(word, text)
    return "\n".join(line.strip() for line in text.strip().splitlines())


def differs(shown: str, said: str) -> bool:
    """`...` on the page stands for anything."""
    wanted = re.escape(comparable(shown)).replace(re.escape("..."), ".*?")
    return re.fullmatch(wanted, comparable(said), re.DOTALL) is None


def free_ports() -> int:
    """The first of as many ports side by side as the page may need."""
    for _ in range(100):
        first = free_port()
        ports = range(first, first + 2 * BROKERS_MAX)
        if ports[-1] < 65_536 and all(is_free(port) for port in ports):
            return first
    raise AssertionError("no free ports")


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path, free_ports())
    yield shell
    shell.close()
    found = LocalCluster.find(tmp_path / "quiverlog-dev")
    if found is not None:
        found.remove()


@pytest.mark.timeout(600)  # Some eighty commands, a process each.
def test_the_page_does_what_it_says(shell: Shell) -> None:
    typed = list(typed_lines())
    assert len(typed) > 10
    for command, shown in typed:
        said = shell.type(command)
        deadline_s = time.monotonic() + _SETTLES_S
        while differs(shown, said) and command.startswith(_LOOKS) and time.monotonic() < deadline_s:
            said = shell.type(command)  # A broker hears of a decision a moment after the others.
        assert not differs(shown, said), f"$ {command}\n{said}\n--- the page:\n{shown}"


def test_other_output_than_the_page_has_is_noticed() -> None:
    shown = "broker 2 has joined\nready after 1.6 s\n   1   127.0.0.1:9293   12149\n"
    assert not differs(shown, "broker 2 has joined\nready after 9.1 s\n 1  127.0.0.1:9293  7\n\n")
    assert differs(shown, "broker 3 has joined\nready after 9.1 s\n 1  127.0.0.1:9293  7\n")
    assert differs(shown, "broker 2 has joined\nready after 9.1 s\n 2  127.0.0.1:9293  7\n")
    assert differs(shown, shown + "more\n")
    assert not differs("a\n...\nd\n", "a\nb\nc\nd\n")
