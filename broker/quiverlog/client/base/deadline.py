"""One deadline over all commands of an operation, and the pauses between tries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from quiverlog.errors import ConnectionClosed, ConnectionFailed, QuiverlogError, RequestTimedOut
from quiverlog.limits import (
    ELSEWHERE_BACKOFF_MS_MAX,
    ELSEWHERE_TRIES,
    RETRY_BACKOFF_MS_MAX,
    RETRY_BACKOFF_MS_MIN,
)

from .commands import (
    Abandon,
    Call,
    CallMany,
    Command,
    Finish,
    FinishAny,
    Operation,
    Sleep,
    Start,
)
from .waits import Wait

__all__ = ["backoff_s", "empty_pause_s", "pause_s", "within"]


T = TypeVar("T")

_FAILURES_NAMED_MAX = 4


def within(
    clock: Callable[[], float],
    timeout_s: float,
    operation: Operation[T],
    wait: Wait | None = None,
) -> Operation[T]:
    """Run an operation that ends at most `timeout_s` seconds from now; `wait` records its calls.

    Its next command then fails with RequestTimedOut, which names the last failures. A started
    request keeps its timeout: it may outlive the operation.
    """
    failed: dict[str, None] = {}

    def late() -> RequestTimedOut:
        return RequestTimedOut(" ".join([f"No answer within {timeout_s:.3g} s.", *failed]))

    deadline_s = clock() + timeout_s
    answer: Any = None
    failure: QuiverlogError | None = None
    while True:
        try:
            command = operation.send(answer) if failure is None else operation.throw(failure)
        except StopIteration as stop:
            result: T = stop.value
            return result
        answer, failure = None, None
        if wait is not None:
            wait.asks(command)
        left_s = deadline_s - clock()
        is_over = left_s <= 0
        # What has arrived by now is still taken: the other commands go on.
        if is_over and isinstance(command, (Call, CallMany, Start, Sleep)):
            failure = late()
            continue
        try:
            answer = yield _cut(command, left_s)
            if answer is None and isinstance(command, FinishAny) and command.pending:
                _note(failed, f"{command.pending[0].call.address} has not answered.")
            if is_over and answer is None and isinstance(command, FinishAny):
                # An operation that goes on to wait would loop without a pause.
                failure = late()
        except QuiverlogError as error:
            failure = error
            if isinstance(error, (ConnectionClosed, ConnectionFailed, RequestTimedOut)):
                _note(failed, error.message)
        except GeneratorExit:
            operation.close()
            raise


def _note(failed: dict[str, None], what: str) -> None:
    failed.pop(what, None)
    failed[what] = None
    if len(failed) > _FAILURES_NAMED_MAX:
        del failed[next(iter(failed))]


def _cut(command: Command, left_s: float) -> Command:
    match command:
        case Call():
            return _cut_call(command, left_s)
        case CallMany(calls):
            return CallMany([_cut_call(call, left_s) for call in calls])
        case Start(call, within_s):
            return Start(call, left_s if within_s is None else min(within_s, left_s))
        case FinishAny(pending, timeout_s):
            return FinishAny(pending, max(0.0, min(timeout_s, left_s)))
        case Sleep(seconds):
            return Sleep(min(seconds, left_s))
        case Finish() | Abandon():
            return command


def _cut_call(call: Call, left_s: float) -> Call:
    return call if call.timeout_s <= left_s else replace(call, timeout_s=left_s)


def backoff_s(attempt: int, jitter: float) -> float:
    """Return the pause before try `attempt + 1`; `jitter` lies in [0, 1)."""
    assert attempt >= 0
    # The shift is bounded, attempts are not.
    ceiling_ms: int = min(RETRY_BACKOFF_MS_MAX, RETRY_BACKOFF_MS_MIN << min(attempt, 16))
    return jitter * ceiling_ms / 1000


def pause_s(error: QuiverlogError, attempt: int, jitter: float) -> float:
    """Like `backoff_s`, but short at first where the next election may end `error`."""
    found_s = backoff_s(attempt, jitter)
    if error.refresh_metadata and attempt < ELSEWHERE_TRIES:
        found_s = min(found_s, jitter * ELSEWHERE_BACKOFF_MS_MAX / 1000)
    return found_s


def empty_pause_s(attempt: int, jitter: float) -> float:
    """Return the pause after a long poll that returned early without rows."""
    # At least half the ceiling: a pause of 0 bounds no rate.
    return (backoff_s(attempt, 1.0) + backoff_s(attempt, jitter)) / 2
