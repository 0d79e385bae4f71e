"""Ctrl-C at a chosen place of the product, where the interpreter looks for signals: nowhere else.

CPython looks for them behind calls (of functions written in C, and at the beginning of others) and
at the ends of loops. Between two of those places statements are whole.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, TypeVar

import quiverlog

__all__ = ["Place", "interrupted_at", "places_of"]

T = TypeVar("T")
Place = tuple[str, int]
"""File and line."""

_PRODUCT: Final = str(Path(quiverlog.__file__).parent)

_LOOKS_BEHIND: Final = frozenset(
    dis.opmap[name] for name in ("CALL", "CALL_FUNCTION_EX", "RESUME", "JUMP_BACKWARD")
)


class _Trace:
    """Counts the places that a call comes by, and interrupts it at the n-th."""

    def __init__(self, nth: int) -> None:
        self._left = nth
        self.places: list[Place] = []
        self._last: dict[FrameType, int | None] = {}
        self._operations: dict[CodeType, bytes] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if event == "call":
            if not code.co_filename.startswith(_PRODUCT):
                if frame.f_back in self._last:  # as at a return, of which no event comes
                    self._last[frame.f_back] = None
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "return":
            self._last.pop(frame, None)
            if (
                frame.f_back in self._last
            ):  # no event comes from inside a function written in Python
                self._last[frame.f_back] = None
        elif event == "opcode":
            operations = self._operations.setdefault(code, code.co_code)
            last, self._last[frame] = self._last.get(frame), operations[frame.f_lasti]
            if last in _LOOKS_BEHIND:
                self._pass((code.co_filename, frame.f_lineno))
        return self

    def _pass(self, place: Place) -> None:
        self.places.append(place)
        self._left -= 1
        if self._left == 0:
            raise KeyboardInterrupt


def _traced(trace: _Trace, call: Callable[[], T]) -> T:
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return call()
    finally:
        sys.settrace(before)


def places_of(call: Callable[[], object]) -> list[Place]:
    """The places that a call comes by, in order."""
    trace = _Trace(0)
    _traced(trace, call)
    return trace.places


def interrupted_at(nth: int, call: Callable[[], T]) -> tuple[T | None, int]:
    """What the call returns, if Ctrl-C at its n-th place lets it, and how many are still to come.

    With 0 the call is neither interrupted nor traced, which costs ten times the call.

    Raises:
        KeyboardInterrupt
    """
    if nth == 0:
        return call(), 0
    trace = _Trace(nth)
    found = _traced(trace, call)
    return found, nth - len(trace.places)
