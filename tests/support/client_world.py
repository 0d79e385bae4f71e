"""Plays the driver of an operation against answers that a test has written down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quiverlog.client.base.commands import Call, Operation, Reply, Sleep
from quiverlog.client.base.results import Address
from quiverlog.errors import QuiverlogError
from quiverlog.wire import messages as m

__all__ = ["World"]


class World:
    """`answers`: by address, a response or the error of a call; others are not to be asked."""

    def __init__(self, answers: Mapping[Address, m.Response | QuiverlogError]) -> None:
        self.answers = answers
        self.asked: list[Address] = []

    def play(self, operation: Operation[Any]) -> Any:
        """Run it to its end."""
        command = next(operation)
        while True:
            try:
                if isinstance(command, Sleep):
                    command = operation.send(None)
                    continue
                assert isinstance(command, Call)
                self.asked.append(command.address)
                answer = self.answers[command.address]
                if isinstance(answer, QuiverlogError):
                    command = operation.throw(answer)
                else:
                    command = operation.send(Reply(answer, memoryview(b"")))
            except StopIteration as end:
                return end.value
