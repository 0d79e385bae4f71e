"""Requests that take several steps, each a generator that returns the response.

A generator yields None where others may have their turn, or a `Starter` (a job, a proposal) where
it waits; it continues with the result or the exception. Bounded: steps of one call (round robin),
tasks half way, memory. Also: answers in pages, and `TopicOrder`.

Invariant: a request is answered once, however its generator ends.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeVar

import msgspec

from quiverlog.core.controller.records import SchemaRecord
from quiverlog.errors import FrameTooLarge, QuiverlogError, StorageFault, ThrottledBroker
from quiverlog.limits import (
    HEADER_BYTES_MAX,
    REPLY_PAGE_BYTES,
    REQUEST_ENTRY_BYTES,
    REQUEST_WAITING_BYTES,
    REQUESTS_WAITING_BYTES_MAX,
    SCHEMAS_DESCRIBED_BYTES_MAX,
)
from quiverlog.node.runtime.events import AT_ONCE_US, RequestReceived
from quiverlog.node.runtime.jobs import Starter, Then
from quiverlog.node.runtime.outbox import Outbox
from quiverlog.types import Now
from quiverlog.wire import messages as m
from quiverlog.wire.messages import Part, Request, Response

__all__ = [
    "COMPUTING_MAX",
    "COMPUTING_PER_CONNECTION_MAX",
    "STEPS_PER_CALL",
    "Call",
    "Change",
    "Future",
    "Making",
    "Outcome",
    "Steps",
    "Tasks",
    "TopicOrder",
    "Wait",
    "by_name",
    "check_fits",
    "gather",
    "newest_schemas",
    "schema_page",
    "waiting_bytes",
]


STEPS_PER_CALL: Final = 8
"""About half a millisecond, at some 60 us a step.

A row that arrives meanwhile, its flush and its answer each wait for such a call.
"""

COMPUTING_MAX: Final = 32
"""An answer half made may hold a megabyte: this many stay small beside a broker."""

COMPUTING_PER_CONNECTION_MAX: Final = 4
"""Eight connections are needed to make a ninth wait before it begins."""

Wait = Starter | None
Steps = Generator[Wait, object, Response | None]
"""A handler's steps; `None` at the end: it has answered, or parked."""


class Call:
    """`now` is the moment of the current step.

    `cost`: of the current step, in ordinary steps; set by a handler where it is more. `bare`: no
    waiter or queue refers to the request, so it may be dropped before it has begun. `held_bytes`:
    its memory, unless counted elsewhere. `on_end`: called once when it is over, also if it has
    never begun. `is_committed`: what it changes is, whatever comes then.
    """

    __slots__ = (
        "bare",
        "connection_id",
        "correlation_id",
        "cost",
        "held_bytes",
        "is_committed",
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
        self.is_committed = False
        self.on_end: Callable[[Now], None] | None = None
        self.cost = 1
        self.step = 0
        self.steps: Steps | None = None


class Outcome(NamedTuple):
    result: object
    error: BaseException | None


class Future:
    """An outcome; `wait` may be yielded before or after `set`. Not asyncio's: no loop, at most one
    waiter.
    """

    __slots__ = ("_done", "_then")

    def __init__(self) -> None:
        self._done: tuple[object, BaseException | None, Now] | None = None
        self._then: Then | None = None

    @property
    def is_set(self) -> bool:
        return self._done is not None

    def set(self, result: object, error: BaseException | None, now: Now) -> None:
        """Set the outcome. Only the first one counts."""
        if self._done is None:
            self._done = (result, error, now)
            if self._then is not None:
                self._then(*self._done)

    def wait(self, then: Then) -> None:
        assert self._then is None
        self._then = then
        if self._done is not None:
            then(*self._done)


class Tasks:
    __slots__ = (
        "_fail", "_held_by", "_is_tick", "_new", "_outbox", "_ready", "held_bytes", "live"
    )  # fmt: skip

    def __init__(
        self, outbox: Outbox, fail: Callable[[int, Request, QuiverlogError], None]
    ) -> None:
        self._outbox = outbox
        self._fail = fail
        self._is_tick = False
        # Not begun, by connection, in the order of their turns.
        self._new: dict[int, deque[Call]] = {}
        self._ready: deque[tuple[Call, object, BaseException | None]] = deque()
        self._held_by: Counter[int] = Counter()  # Of `held_bytes`.
        self.held_bytes = 0
        self.live = 0

    @property
    def busy(self) -> bool:
        return bool(self._ready or self._new)

    def next_us(self) -> int | None:
        return AT_ONCE_US if self._ready or self._new else None

    @property
    def ends_calls(self) -> bool:
        return bool(self._ready or self._new) or self._is_tick

    def ticked(self, _now: Now) -> None:
        """Let tasks half way go on at the end of this call."""
        self._is_tick = True

    def end_call(self, now: Now) -> None:
        """Make steps: after a tick of all tasks, else only first ones."""
        is_tick, self._is_tick = self._is_tick, False
        if is_tick:
            self.run(now)
        else:
            self.begin(now)

    def start(self, call: Call, steps: Steps, *, bare: bool = False) -> None:
        """Begin in this call of the node, if its bound allows. `bare`: see `Call`."""
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

    def drop(self, connection_id: int) -> None:
        for call in self._take_bare(connection_id):
            self._end(call)

    def refuse(self, error: QuiverlogError) -> None:
        """Answer requests that have not begun with `error`."""
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
        left = STEPS_PER_CALL
        while self.busy and left > 0:
            if self._new and len(self._ready) < COMPUTING_MAX:
                self._ready_next()
            left -= self._step(now)

    def begin(self, now: Now) -> None:
        left = STEPS_PER_CALL
        while self._new and left > 0 and len(self._ready) < COMPUTING_MAX:
            if not self._ready_next():
                break
            # To the front: tasks half way go on after a tick only.
            self._ready.rotate()
            left -= self._step(now)

    def _step(self, now: Now) -> int:
        assert len(self._ready) <= self.live, "all that go on are alive"
        call, value, error = self._ready.popleft()
        call.now = now
        cost = 0
        while True:
            call.cost = 1
            call.step += 1
            is_waiting = self._advance(call, value, error)
            cost += call.cost
            # What it waits for may have been there already: no tick is needed to go on.
            if not is_waiting or cost >= STEPS_PER_CALL:
                return cost
            if not self._ready or self._ready[-1][0] is not call:
                return cost
            _, value, error = self._ready.pop()

    def _ready_next(self) -> bool:
        """Ready the first task of the connection whose turn it is; False when none may have one."""
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

    def _advance(self, call: Call, value: object, error: BaseException | None) -> bool:
        """Make a step; returns whether the task then waits for something."""
        assert call.steps is not None
        try:
            try:
                wait = call.steps.send(value) if error is None else call.steps.throw(error)
            except StopIteration as stop:
                if stop.value is not None:
                    self._outbox.respond(call.connection_id, call.correlation_id, stop.value)
                self._end(call)
                return False
            if wait is None:
                self._ready.append((call, None, None))
                return False
            wait(partial(self._resume, call, call.step))
            return True
        except Exception as failure:
            self._end(call)
            self._fail(call.connection_id, call.request, self._as_error(call, failure))
            return False

    def _resume(
        self, call: Call, step: int, result: object, error: BaseException | None, now: Now
    ) -> None:
        # `Jobs` may call a continuation again with an error: only the first call counts.
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
    """Start all, at most `window` at once; the result is a list of `Outcome`, in their order."""
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
            # A continuation may be called again with an error: only its first call counts.
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


# A request's memory while it waits for its steps, estimated on the safe side.
_CHARACTER_BYTES_MAX: Final = 4
"""One wide character makes Python keep four bytes for each of its string."""
_INNER_ENTRY_BYTES: Final = 128
"""A name or a setting of an entry, which is no object with fields."""


def waiting_bytes(event: RequestReceived) -> int:
    request = event.request
    entries = inner = 0
    for name in request.__struct_fields__:
        value = getattr(request, name)
        if isinstance(value, list | dict):
            entries += len(value)
    if isinstance(request, m.CreateTopicsRequest):
        inner = sum(len(new.key_columns) + len(new.configs) for new in request.topics)
    return (
        REQUEST_WAITING_BYTES
        + entries * REQUEST_ENTRY_BYTES
        + inner * _INNER_ENTRY_BYTES
        + event.header_bytes * _CHARACTER_BYTES_MAX
    )


_Entry = TypeVar("_Entry", bound=Part)
Making = Generator[None, object, _Entry]
"""An entry that is made in steps: one of thousands of partitions takes several."""
_STEP_BYTES: Final = 1024
"""Ten topics of one partition, or one that is larger or described: some 60 us."""
_SCHEMA_OVERHEAD_BYTES: Final = 64
"""More than msgpack puts around a schema."""


def by_name(
    names: Iterable[str],
    first_name: str | None,
    make: Callable[[str], Making[_Entry]],
    bytes_min: Callable[[str], int],
) -> Generator[None, object, tuple[list[_Entry], str]]:
    """Return (entries, first name of the next page; "" when there is none), in steps.

    Args:
        first_name: where the page begins, by name; None makes all entries in the order given.
        bytes_min: lower bound of an entry's size, checked before it is made.

    Raises:
        FrameTooLarge: all entries were asked for, and are more than a header holds.
    """
    entries: list[_Entry] = []
    byte_count = yielded_at = 0
    paged = first_name is not None
    for name in sorted(set(names)) if paged else dict.fromkeys(names):
        if first_name is not None and name < first_name:
            continue
        if not paged:
            check_fits(byte_count + bytes_min(name))
        entry = yield from make(name)
        byte_count += len(msgspec.msgpack.encode(entry))
        if not paged:
            check_fits(byte_count)
        elif entries and byte_count > REPLY_PAGE_BYTES:
            assert first_name is None or name > first_name, "pages go on"
            return entries, name
        entries.append(entry)
        if byte_count - yielded_at >= _STEP_BYTES:
            yielded_at = byte_count
            yield
    return entries, ""


def check_fits(byte_count: int) -> None:
    if byte_count > HEADER_BYTES_MAX:
        raise FrameTooLarge(
            f"the answer has more than {HEADER_BYTES_MAX} bytes: ask for less, or for pages."
        )


def schema_page(records: Sequence[SchemaRecord], first_id: int) -> tuple[list[SchemaRecord], int]:
    """Return (schemas from `first_id` on, first id of the next page; 0 when there is none).

    `first_id` 0 gives them all.

    Raises:
        FrameTooLarge: all were asked for, and are more than a header holds.
    """
    if first_id == 0:
        check_fits(sum(len(record.schema) for record in records))
        return list(records), 0
    page: list[SchemaRecord] = []
    byte_count = 0
    for record in records:
        if record.schema_id < first_id:
            continue
        byte_count += len(record.schema) + _SCHEMA_OVERHEAD_BYTES
        if page and byte_count > REPLY_PAGE_BYTES:
            assert record.schema_id > first_id, "pages go on"
            return page, record.schema_id
        page.append(record)
    return page, 0


def newest_schemas(records: Sequence[SchemaRecord]) -> list[SchemaRecord]:
    """The newest schemas that a topic's description has room for, oldest first."""
    newest: list[SchemaRecord] = []
    byte_count = 0
    for record in reversed(records):
        byte_count += len(record.schema) + _SCHEMA_OVERHEAD_BYTES
        if newest and byte_count > SCHEMAS_DESCRIBED_BYTES_MAX:
            break
        newest.append(record)
    newest.reverse()
    assert bool(newest) == bool(records), "the newest one, however large"
    return newest


class Change:
    __slots__ = ("_last", "connection_id", "decided", "names", "waiting")

    def __init__(self, connection_id: int, names: Sequence[str]) -> None:
        self.connection_id = connection_id
        self.names = names
        self.decided = 0
        self.waiting: list[Then] = []
        self._last: dict[str, int] | None = None

    def will_decide(self, name: str) -> bool:
        if self._last is None:  # Asked for the first time: most never are.
            self._last = {name: index for index, name in enumerate(self.names)}
        return self._last.get(name, -1) >= self.decided


class TopicOrder:
    """Keeps one connection's changes of one topic in the order in which they were sent."""

    __slots__ = ("_changes",)

    def __init__(self) -> None:
        self._changes: dict[int, dict[Change, None]] = {}

    def enter(self, connection_id: int, names: Sequence[str]) -> Change:
        """Record a request that has arrived; `leave` must follow, however it ends."""
        change = Change(connection_id, names)
        if names:
            self._changes.setdefault(connection_id, {})[change] = None
        return change

    def wait(self, change: Change) -> Starter | None:
        """What to wait for before the next name may be decided; None: nothing."""
        assert change.decided < len(change.names), "all of its names are decided"
        name = change.names[change.decided]
        for earlier in self._changes[change.connection_id]:
            if earlier is change:
                return None
            if earlier.will_decide(name):
                return earlier.waiting.append
        raise AssertionError("a change that has left decides nothing")

    def decided(self, change: Change, now: Now) -> None:
        change.decided += 1
        assert change.decided <= len(change.names)
        if change.decided == len(change.names):
            self.leave(change, now)
        else:
            self._wake(change, now)

    def leave(self, change: Change, now: Now) -> None:
        """May be called twice."""
        assert change.decided <= len(change.names)
        mine = self._changes.get(change.connection_id)
        if mine is not None and change in mine:
            del mine[change]
            if not mine:
                del self._changes[change.connection_id]
        self._wake(change, now)

    @staticmethod
    def _wake(change: Change, now: Now) -> None:
        waiting, change.waiting = change.waiting, []
        for then in waiting:
            then(None, None, now)
