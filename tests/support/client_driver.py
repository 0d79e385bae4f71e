"""Plays the driver of the client's operations in virtual time: each command is answered by a model.

Owns what is under way and the waiting; the moments between are the model's. Not here: what is
asked.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from quiverlog.client.base.commands import (
    Abandon,
    Call,
    CallMany,
    Finish,
    FinishAny,
    Operation,
    Reply,
    Sleep,
    Start,
)
from quiverlog.errors import ConnectionFailed, QuiverlogError, RequestTimedOut

__all__ = ["ClientDriver"]


@dataclass
class Pending:
    """A request under way."""

    call: Call
    sent_s: float
    reply: Reply | QuiverlogError | None = None


class ClientDriver:
    now_s = 0.0

    def step(self) -> None:
        """A moment passes."""
        raise NotImplementedError

    def answer(self, call: Call, sent_s: float) -> Reply | QuiverlogError | None:
        """None: not yet."""
        raise NotImplementedError

    def is_up(self, port: int) -> bool:
        """True when a request can be sent there."""
        raise NotImplementedError

    def run(self, operation: Operation[Any]) -> Any:
        """What a driver does: answer each command, and throw failures in."""
        answer: Any = None
        failure: QuiverlogError | None = None
        generator: Generator[Any, Any, Any] = operation
        while True:
            try:
                command = generator.send(answer) if failure is None else generator.throw(failure)
            except StopIteration as stop:
                return stop.value
            answer, failure = None, None
            try:
                answer = self._perform(command)
            except QuiverlogError as error:
                failure = error

    def _perform(self, command: Any) -> Any:
        match command:
            case Call():
                return self._reply(Pending(command, self.now_s))
            case CallMany(calls):
                return [self._reply_or_error(Pending(call, self.now_s)) for call in calls]
            case Start(call):
                if not self.is_up(call.address.port):
                    raise ConnectionFailed(f"node {call.address.port} is down.")
                return Pending(call, self.now_s)
            case Finish(pending):
                assert isinstance(pending, Pending)
                return self._reply(pending)
            case FinishAny(several, timeout_s):
                end_s = self.now_s + timeout_s
                while True:
                    for one in several:
                        assert isinstance(one, Pending)
                        if self._look(one):
                            return one
                    if self.now_s >= end_s:
                        return None
                    self.step()
            case Sleep(seconds):
                end_s = self.now_s + seconds
                while self.now_s < end_s:
                    self.step()
            case Abandon():
                return None
        return None

    def _look(self, pending: Pending) -> bool:
        if pending.reply is None:
            pending.reply = self.answer(pending.call, pending.sent_s)
        if pending.reply is None and self.now_s - pending.sent_s >= pending.call.timeout_s:
            pending.reply = RequestTimedOut("no answer.")
        return pending.reply is not None

    def _reply(self, pending: Pending) -> Reply:
        while not self._look(pending):
            self.step()
        if isinstance(pending.reply, QuiverlogError):
            raise pending.reply
        assert pending.reply is not None
        return pending.reply

    def _reply_or_error(self, pending: Pending) -> Reply | QuiverlogError:
        try:
            return self._reply(pending)
        except QuiverlogError as error:
            return error
