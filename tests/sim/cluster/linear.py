"""Linearizability of small histories, after Wing and Gong, with Lowe's memory of what was tried.

Owns the search: is there an order of the operations in which each takes effect at one moment
between its call and its return, and every answer is that of a simple sequential model. An operation
without an answer may have taken effect at any moment after its call, or never.

Two models: one value that is written, read and compared-and-set (a fact of the metadata), and one
log that is appended to and read (a partition).

Not here: brokers, requests.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["NEVER", "Operation", "is_linearizable", "log_model", "register_model"]

NEVER: Final = 1 << 62
"""When an operation returned whose answer no client got."""
_TRIED_MAX: Final = 30_000

State = Any
Model = Callable[[State, "Operation"], tuple[bool, State]]
"""Takes a state and an operation; returns whether its answer is right, and the state after it."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of one client. `answer` None: the client got none, or there is none."""

    kind: str
    argument: Hashable
    answer: Hashable
    called_us: int
    returned_us: int = NEVER

    def __post_init__(self) -> None:
        assert self.called_us <= self.returned_us, "an answer comes after the call"


def is_linearizable(history: Sequence[Operation], model: Model, state: State) -> bool:
    """Whether an order exists. `state` is that before the first operation.

    Raises:
        OverflowError: too much was tried; give shorter histories.
    """
    operations = sorted(history, key=lambda one: one.called_us)
    called = [one.called_us for one in operations]
    # Those that have returned, the earliest first: the search for the next one begins there.
    returned = sorted(
        (one.returned_us, n) for n, one in enumerate(operations) if one.returned_us != NEVER
    )
    # Sets of operations are the bits of a number.
    tried: set[tuple[int, Hashable]] = set()
    stack: list[tuple[int, State, int]] = [(0, state, 0)]
    while stack:
        done, now, at = stack.pop()
        while at < len(returned) and done >> returned[at][1] & 1:
            at += 1
        if at == len(returned):
            return True
        if (done, now) in tried:
            continue
        tried.add((done, now))
        if len(tried) > _TRIED_MAX:
            raise OverflowError("the history is too long")
        first_return = returned[at][0]
        # All that were called before the first one that is not done are done.
        number = (~done & (done + 1)).bit_length() - 1
        while number < len(operations) and called[number] <= first_return:
            if not done >> number & 1:
                is_right, after = model(now, operations[number])
                if is_right:
                    stack.append((done | 1 << number, after, at))
            number += 1
        # The rest was called after something else had returned that is not done yet.
    return False


def register_model(state: State, one: Operation) -> tuple[bool, State]:
    """One value. `write` v; `read`, answered with the value; `change` (before, after), answered
    with whether it was `before`."""
    if one.kind == "write":
        return True, one.argument
    if one.kind == "read":
        return one.returned_us == NEVER or one.answer == state, state
    assert one.kind == "change"
    assert isinstance(one.argument, tuple)
    before, after = one.argument
    applies = state == before
    if one.returned_us != NEVER and one.answer != applies:
        return False, state
    return True, after if applies else state


def log_model(state: State, one: Operation) -> tuple[bool, State]:
    """A log, as the tuple of its values. `append` v, answered with its offset; `read` offset,
    answered with the value there, or None at the end."""
    assert isinstance(state, tuple)
    if one.kind == "append":
        if one.returned_us != NEVER and one.answer != len(state):
            return False, state
        return True, (*state, one.argument)
    assert one.kind == "read"
    assert isinstance(one.argument, int)
    value = state[one.argument] if one.argument < len(state) else None
    return one.returned_us == NEVER or one.answer == value, state
