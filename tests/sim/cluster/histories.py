"""The answers that clients got during a run, as histories that `linear` judges at its end.

Owns two kinds of history, each cut by key and by quiet moments, so that the search stays small:

- a partition: a batch is appended at an offset; the leader answers where the readable rows end.
  Where a batch lies in the end is known for each that lies anywhere, also without an answer, so the
  model is one number. Rows whose time of sending no client recorded may have come at any time.
- a topic's name: created, altered, deleted, and read by METADATA. Any broker may answer a read, and
  from an older version than the newest: it took effect when that version was the newest one.

An operation whose outcome is unknown (lost, timed out, another controller by now) may have taken
effect at any time after its call, or never.

Not here: how operations are sent.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tests.sim.checker import Key, Violation

from .linear import NEVER, Model, Operation, State, is_linearizable

__all__ = ["Histories", "judge", "name_model", "ready_log", "rows_model", "windows"]

_CHANGED = "done"


@dataclass(slots=True, eq=False)
class _Batch:
    """Rows that were sent together."""

    values: list[int]
    called_us: int
    returned_us: int = NEVER


class Histories:
    """`judged` and `too_long` count windows."""

    def __init__(self) -> None:
        self.judged = 0
        self.too_long = 0
        self._batches: dict[Key, dict[int, _Batch]] = {}
        self._ends: dict[Key, list[Operation]] = {}
        self._forgiven: set[Key] = set()
        self._names: dict[str, list[Operation]] = {}

    # --- what clients record -------------------------------------------------------------------
    def sent(self, key: Key, values: list[int], now_us: int) -> None:
        """A batch is on its way, for the first time."""
        self._batches.setdefault(key, {})[values[0]] = _Batch(values, now_us)

    def acknowledged(self, key: Key, first_value: int, now_us: int) -> None:
        """The answer has come: from now on everybody may read the rows."""
        batch = self._batches.get(key, {}).get(first_value)
        if batch is not None:
            batch.returned_us = min(batch.returned_us, now_us)

    def end(self, key: Key, offset: int, called_us: int, now_us: int) -> None:
        """The leader has answered where the readable rows end."""
        read = Operation("end", None, offset, called_us, now_us)
        self._ends.setdefault(key, []).append(read)

    def forgive(self, key: Key) -> None:
        """A fault had the right to take rows that were shown."""
        self._forgiven.add(key)

    def name(self, name: str, operation: Operation) -> None:
        """Something was done to, or learnt of, the topic of this name."""
        self._names.setdefault(name, []).append(operation)

    # --- the end -------------------------------------------------------------------------------
    def check_log(self, key: Key, name: str, offset_of: Mapping[int, int]) -> None:
        """Raises Violation. `offset_of`: where each row lies that is, or was ever seen, there."""
        if key in self._forgiven:
            return
        appends: list[Operation] = []
        for first, batch in self._batches.get(key, {}).items():
            base = offset_of.get(first)
            places = [offset_of.get(value, -1) for value in batch.values]
            if base is not None and places == list(range(base, base + len(places))):
                rows = (base, base + len(places))
                appends.append(Operation("append", rows, None, batch.called_us, batch.returned_us))
        history = ready_log(appends, self._ends.get(key, []))
        self._check(name, history, rows_model, 0)

    def check_names(self) -> None:
        """Raises Violation."""
        for name, history in self._names.items():
            self._check(f"topic {name}", history, name_model, (False, -1))

    def _check(self, what: str, history: Sequence[Operation], model: Model, state: State) -> None:
        for window, before in judge(history, model, state):
            self.judged += 1
            try:
                is_right = is_linearizable(window, model, before)
            except OverflowError:
                self.too_long += 1
                continue
            if not is_right:
                last = "; ".join(
                    f"{one.kind} {one.argument} -> {one.answer} in {one.called_us / 1e6:.6f} to"
                    + (" ?" if one.returned_us == NEVER else f" {one.returned_us / 1e6:.6f}")
                    for one in sorted(window, key=lambda one: one.called_us)[-12:]
                )
                raise Violation(f"{what}: no order explains the answers, from {before}: {last}")


def ready_log(appends: Sequence[Operation], ends: Sequence[Operation]) -> list[Operation]:
    """A partition's history, in which every batch has an end.

    Rows that no client recorded become batches that were sent at any time. Whatever lies below an
    answered end, or before a batch that was acknowledged, took effect before that answer.
    """
    known = sorted(appends, key=_rows)
    reach = max([0, *(_number(one.answer) for one in ends), *(_rows(one)[1] for one in known)])
    # Where unrecorded batches ended is unknown: at any end that was seen.
    seen_ends = sorted({_number(one.answer) for one in ends})
    whole: list[Operation] = []
    at = 0
    for one in [*known, Operation("append", (reach, reach), None, 0)]:
        if at < _rows(one)[0]:
            inside = [end for end in seen_ends if at < end < _rows(one)[0]]
            for before, after in itertools.pairwise([at, *inside, _rows(one)[0]]):
                whole.append(Operation("append", (before, after), None, 0))
        at = max(at, _rows(one)[1])
        whole.append(one)
    whole.pop()
    shown_by = [(_rows(one)[1], one.returned_us) for one in whole]
    shown_by += [(_number(one.answer), one.returned_us) for one in ends]
    shown_by.sort()
    # From behind: the earliest answer that showed at least this many rows.
    earliest = NEVER
    for place in range(len(shown_by) - 1, -1, -1):
        earliest = min(earliest, shown_by[place][1])
        shown_by[place] = (shown_by[place][0], earliest)
    levels = [level for level, _ in shown_by]
    shown = [
        replace(
            one,
            returned_us=max(shown_by[bisect.bisect_left(levels, _rows(one)[1])][1], one.called_us),
        )
        for one in whole
    ]
    # What no answer ever showed may be left out.
    return [*(one for one in shown if one.returned_us != NEVER), *ends]


def _rows(one: Operation) -> tuple[int, int]:
    assert isinstance(one.argument, tuple)
    return one.argument


def _number(value: object) -> int:
    assert isinstance(value, int)
    return value


def judge(
    history: Sequence[Operation], model: Model, state: State
) -> Iterator[tuple[list[Operation], State]]:
    """The windows of a history, each with the state before it.

    A window after which the state is not sure is joined with the next one.
    """
    joined: list[Operation] = []
    for window in windows(history):
        joined += window
        after = _after(joined, model, state)
        if after is not None:
            yield joined, state
            joined, state = [], after
    if joined:
        yield joined, state


def _after(window: Sequence[Operation], model: Model, state: State) -> State | None:
    """The state after all of these, where every order that explains them ends in the same."""
    if model is rows_model:
        return max([state, *(_rows(one)[1] for one in window if one.kind == "append")])
    if len(window) == 1 and window[0].returned_us != NEVER:
        is_right, after = model(state, window[0])
        return after if is_right else state
    return None


def windows(history: Sequence[Operation]) -> Iterator[list[Operation]]:
    """Pieces of a history: all of one have returned before any of the next was called."""
    piece: list[Operation] = []
    latest_us = -1
    for one in sorted(history, key=lambda one: one.called_us):
        if piece and one.called_us > latest_us:
            yield piece
            piece = []
        piece.append(one)
        latest_us = max(latest_us, one.returned_us)
    if piece:
        yield piece


def rows_model(state: State, one: Operation) -> tuple[bool, State]:
    """How many rows may be read. `append` (base, next); `end`, answered with the number."""
    assert isinstance(state, int)
    if one.kind == "append":
        base, after = _rows(one)
        return state == base, after
    assert one.kind == "end"
    return one.answer == state, state


def name_model(state: State, one: Operation) -> tuple[bool, State]:
    """Whether a topic is there, and the newest version that was read.

    `create`, `delete`, `alter`, answered "done" or with the reason against it; `read` version,
    answered with whether it is there.
    """
    assert isinstance(state, tuple)
    is_there, version = state
    if one.kind == "read":
        assert isinstance(one.argument, int)
        return one.answer == is_there and one.argument >= version, (is_there, one.argument)
    may_be = is_there != (one.kind == "create")
    after = is_there if one.kind == "alter" else one.kind == "create"
    if one.returned_us == NEVER:
        return True, (after if may_be else is_there, version)
    if one.answer == _CHANGED:
        return may_be, (after, version)
    return not may_be, state
