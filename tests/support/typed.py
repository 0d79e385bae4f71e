"""A group of the command line, as typed against a scripted broker."""

from __future__ import annotations

import pytest

from quiverlog.cli.app import run

from .scripted_broker import ScriptedBroker

__all__ = ["Typed"]


class Typed:
    """Returns what a command prints; where it prints nothing, what it writes to standard error."""

    def __init__(
        self, group: str, broker: ScriptedBroker, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self._group = group
        self._broker = broker
        self._capsys = capsys

    def __call__(self, *words: str, code: int = 0) -> str:
        found = run([self._group, *words, "-b", self._broker.bootstrap])
        captured = self._capsys.readouterr()
        assert found == code, captured
        return captured.out or captured.err
