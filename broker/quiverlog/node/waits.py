"""What a waiting request may do, besides looking (lookup.py): five things.

Must not know: the parts that do them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import NamedTuple, Protocol

from quiverlog.node.purgatory import Waiter
from quiverlog.node.tasks import Call, Wait
from quiverlog.wire.messages import Response

__all__ = ["Waits"]


class _Answer(Protocol):
    def __call__(
        self, waiter: Waiter, response: Response, body: Sequence[memoryview] = (), /
    ) -> None: ...


class _Fail(Protocol):
    def __call__(self, waiter: Waiter, where: str, error: Exception, /) -> None: ...


class _LookAgain(Protocol):
    def __call__(self, waiter: Waiter, indexes: Iterable[int], /) -> None: ...


class _Start(Protocol):
    def __call__(self, call: Call, steps: Generator[Wait, object, None], /) -> None: ...


class _Hasten(Protocol):
    def __call__(self, waiter: Waiter, deadline_us: int, /) -> None: ...


class Waits(NamedTuple):
    """See the module docstring.

    `answer`: the wait is over. `fail`: so it is, by a bug of ours. `look_again`: at these entries
    of the request, soon. `start`: look in steps, because there is much to look at. `hasten`: the
    deadline is earlier than it was.
    """

    answer: _Answer
    fail: _Fail
    look_again: _LookAgain
    start: _Start
    hasten: _Hasten
