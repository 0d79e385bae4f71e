"""Requests that take several steps: administration, lookups that read cold files.

Owns the steps. A handler of such a request is a generator that returns the response; it yields

- nothing (`None`) where others may have their turn: so many topics, so many partitions are done;
- a `Starter` (a job, a proposal) where it has to wait: it goes on with the result, or with the
  exception that the job raised.

Whatever a generator raises becomes the answer of its request, so a request is answered once,
however it ends. At most `STEPS_PER_CALL` steps are made in one call of the node, round robin, fewer
where a step says that it was worth several (`Call.cost`); when some are left, `busy` says so, and
the node asks to be called again at once.

What has begun goes on in ticks only: a call that brings requests or finished jobs begins what has
come with it, so that a row and its acknowledgement do not each wait for the steps of others.

At most `COMPUTING_MAX` tasks are half way through an answer at the same time: what they have made
so far is counted nowhere. The others have not begun, and hold nothing but their request; they begin
in turns of their connections, each of which has at most `COMPUTING_PER_CONNECTION_MAX` half way. A
task that waits for a job is not counted, so that jobs cannot keep lookups from beginning.

Tasks that have not begun end with their connection, and with the broker's stop.

What all of them take in memory (`Call.held_bytes`) is bounded, as is their number by it: a
connection may have as much as is still free, so one that takes all it can leaves room for the next.

Must not know: what the steps do.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Final, NamedTuple

from quiverlog.errors import QuiverlogError, StorageFault, ThrottledBroker
from quiverlog.limits import REQUESTS_WAITING_BYTES_MAX
from quiverlog.node.jobs import Starter, Then
from quiverlog.node.outbox import Outbox
from quiverlog.types import Now
from quiverlog.wire.messages import Request, Response

__all__ = [
    "COMPUTING_MAX",
    "COMPUTING_PER_CONNECTION_MAX",
    "STEPS_PER_CALL",
    "Call",
    "Future",
    "Outcome",
    "Steps",
    "Tasks",
    "Wait",
    "gather",
]

STEPS_PER_CALL: Final = 8
"""Steps of all requests together in one call, about half a millisecond: a step takes some 60 us.

A row that comes meanwhile, the thread that flushes it and its answer each wait for such a call."""

COMPUTING_MAX: Final = 32
"""An answer half made may hold a megabyte; so many of them stay small beside a broker."""

COMPUTING_PER_CONNECTION_MAX: Final = 4
"""So that it takes eight connections to make a ninth wait before it begins."""

Wait = Starter | None
Steps = Generator[Wait, object, Response | None]
"""What a handler that takes several steps is; `None` at the end: it has answered, or parked."""


class Call:
    """One such request. `now` is the moment of the current step.

    `cost`: what the current step takes, in ordinary steps; a handler says so where it is more.
    `bare`: no waiter or queue refers to the request, so it may be dropped before it has begun.
    `held_bytes`: what the request takes in memory, unless somebody else counts it.
    `on_end`: called once when it is over, also if it has never begun.
    """

    __slots__ = (
        "bare",
        "connection_id",
        "correlation_id",
        "cost",
        "held_bytes",
        "now",
        "on_end",
        "request",
        "step",
        "steps",
    )

    def __init__(
        self, connection_id: int, request: Request, now: Now, *, held_bytes: int = 0
    ) -> None:
        self.held_bytes = held_bytes
        self.connection_id = connection_id
        self.correlation_id = request.correlation_id
        self.request = request
        self.now = now
        self.bare = False
        self.on_end: Callable[[Now], None] | None = None
        self.cost = 1
        self.step = 0
        self.steps: Steps | None = None


class Outcome(NamedTuple):
    """The result or error of one of the started things that were gathered."""

    result: object
    error: BaseException | None


class Future:
    """What will come of something that was started; `wait` may be yielded, before or after.

    Not asyncio's: there is no loop, and one waits at most.
    """

    __slots__ = ("_done", "_then")

    def __init__(self) -> None:
        self._done: tuple[object, BaseException | None, Now] | None = None
        self._then: Then | None = None

    def set(self, result: object, error: BaseException | None, now: Now) -> None:
        """Set the outcome. Only the first one counts."""
        if self._done is None:
            self._done = (result, error, now)
            if self._then is not None:
                self._then(*self._done)

    def wait(self, then: Then) -> None:
        """Call `then` when it is done."""
        assert self._then is None
        self._then = then
        if self._done is not None:
            then(*self._done)


class Tasks:
    """See the module docstring.

    Args:
        outbox: where answers go.
        fail: answers a request with an error.
    """

    __slots__ = ("_fail", "_held_by", "_new", "_outbox", "_ready", "held_bytes", "live")

    def __init__(
        self, outbox: Outbox, fail: Callable[[int, Request, QuiverlogError], None]
    ) -> None:
        self._outbox = outbox
        self._fail = fail
        # Those that have not begun, by connection, in the order of their turns.
        self._new: dict[int, deque[Call]] = {}
        # Those that go on with a value or an exception.
        self._ready: deque[tuple[Call, object, BaseException | None]] = deque()
        self._held_by: Counter[int] = Counter()  # Of `held_bytes`, by connection.
        self.held_bytes = 0
        self.live = 0

    @property
    def busy(self) -> bool:
        """True when a task has steps that could be made at once."""
        return bool(self._ready or self._new)

    def start(self, call: Call, steps: Steps, *, bare: bool = False) -> None:
        """The first step is made in this call of the node, if its bound allows.

        Args:
            bare: nothing was done for the request yet: see `Call`.
        """
        assert call.steps is None, "a request is started once"
        call.steps = steps
        call.bare = bare
        self.live += 1
        if call.held_bytes:
            self.held_bytes += call.held_bytes
            self._held_by[call.connection_id] += call.held_bytes
        self._new.setdefault(call.connection_id, deque()).append(call)

    def check_room(self, connection_id: int, held_bytes: int) -> None:
        """Raises ThrottledBroker: the connection has its share of what may wait."""
        if self._held_by[connection_id] + held_bytes > REQUESTS_WAITING_BYTES_MAX - self.held_bytes:
            raise ThrottledBroker("too many requests wait for their turns: send this one again.")

    def forget(self, connection_id: int) -> None:
        """The connection is gone: what it has asked for and has not begun is dropped."""
        for call in self._take_bare(connection_id):
            self._end(call)

    def refuse(self, error: QuiverlogError) -> None:
        """Nothing begins any more: answer what has not begun with `error`."""
        for connection_id in list(self._new):
            for call in self._take_bare(connection_id):
                self._end(call)
                self._fail(connection_id, call.request, error)

    def _take_bare(self, connection_id: int) -> list[Call]:
        line = self._new.pop(connection_id, deque())
        others = deque(call for call in line if not call.bare)
        if others:
            self._new[connection_id] = others
        return [call for call in line if call.bare]

    def run(self, now: Now) -> None:
        """Make the steps that are due, at most so many."""
        left = STEPS_PER_CALL
        while self.busy and left > 0:
            if self._new and len(self._ready) < COMPUTING_MAX:
                self._ready_next()
            left -= self._step(now)

    def begin(self, now: Now) -> None:
        """Make the first steps of those that have not begun, at most so many."""
        left = STEPS_PER_CALL
        while self._new and left > 0 and len(self._ready) < COMPUTING_MAX:
            if not self._ready_next():
                break
            self._ready.rotate()
            left -= self._step(now)

    def _step(self, now: Now) -> int:
        """The next step of the task whose turn it is; what it was worth."""
        assert len(self._ready) <= self.live, "all that go on are alive"
        call, value, error = self._ready.popleft()
        call.now = now
        call.cost = 1
        call.step += 1
        self._advance(call, value, error)
        return call.cost

    def _ready_next(self) -> bool:
        """The first task of the connection whose turn it is; False when none may have one."""
        computing = Counter(call.connection_id for call, _, _ in self._ready)
        for connection_id, line in self._new.items():
            if computing[connection_id] < COMPUTING_PER_CONNECTION_MAX:
                del self._new[connection_id]
                self._ready.append((line.popleft(), None, None))
                if line:
                    self._new[connection_id] = line  # The next turn is the others'.
                return True
        assert self._ready, "a connection that has no more turns has tasks half way"
        return False

    def _advance(self, call: Call, value: object, error: BaseException | None) -> None:
        assert call.steps is not None
        try:
            try:
                wait = call.steps.send(value) if error is None else call.steps.throw(error)
            except StopIteration as stop:
                if stop.value is not None:
                    self._outbox.respond(call.connection_id, call.correlation_id, stop.value)
                self._end(call)
                return
            if wait is None:
                self._ready.append((call, None, None))
            else:
                wait(partial(self._resume, call, call.step))
        except Exception as failure:
            self._end(call)
            self._fail(call.connection_id, call.request, self._as_error(call, failure))

    def _resume(
        self, call: Call, step: int, result: object, error: BaseException | None, now: Now
    ) -> None:
        # A continuation may be called again with an error (see `jobs`): only the first one counts.
        assert call.step >= step
        if call.steps is not None and step == call.step:
            call.step += 1
            self._ready.append((call, result, error))

    def _end(self, call: Call) -> None:
        if call.steps is not None:
            self.live -= 1
            assert self.live >= 0
            call.steps.close()
            call.steps = None
            if call.on_end is not None:
                call.on_end(call.now)
            if call.held_bytes:
                self.held_bytes -= call.held_bytes
                self._held_by[call.connection_id] -= call.held_bytes
                assert self.held_bytes >= 0
                assert self._held_by[call.connection_id] >= 0
                if not self._held_by[call.connection_id]:
                    del self._held_by[call.connection_id]

    def _as_error(self, call: Call, failure: Exception) -> QuiverlogError:
        if isinstance(failure, QuiverlogError):
            return failure
        api = call.request.API.name
        if isinstance(failure, OSError):
            self._outbox.log("error", "the disk failed", api=api, why=str(failure))
            return StorageFault(f"the disk failed: {failure.strerror or failure}.")
        self._outbox.internal_error(api, failure)
        return QuiverlogError()


def gather(starters: Sequence[Starter], window: int, now: Now) -> Starter:
    """All of them, at most `window` at once; the result is a list of `Outcome`, in their order."""
    assert starters
    assert window >= 1

    def start(then: Then) -> None:
        outcomes: list[Outcome | None] = [None] * len(starters)
        todo = iter(enumerate(starters))
        left = len(starters)

        def start_next() -> None:
            found = next(todo, None)
            if found is not None:
                index, starter = found
                try:
                    starter(partial(finish, index))
                except Exception as error:
                    finish(index, None, error, now)

        def finish(index: int, result: object, error: BaseException | None, now: Now) -> None:
            nonlocal left
            if outcomes[index] is not None:
                return
            outcomes[index] = Outcome(result, error)
            left -= 1
            assert left >= 0
            if left:
                start_next()
            else:
                then(outcomes, None, now)

        for _ in range(window):
            start_next()

    return start
