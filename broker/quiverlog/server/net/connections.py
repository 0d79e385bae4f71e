"""The table of client connections, their limits, and the rules by which one is overdue.

Pure, so every rule is tested with a clock made of numbers; the protocol closes.

- `idle`: nothing was received, nothing is in flight, nothing waits to be sent.
- `frame`: a request was begun (or nothing was ever received) and not finished in time (slow loris).
- `write`: a reply waits, and the client has taken nothing of it for too long.

A quiet connection rests in the slot of the moment at which it could be idle for too long, so ten
thousand silent ones cost a look nothing. Bytes do not take it out: when the slot is due, it gets a
later one. Invariant: each connection stirs (every look is for it), or rests in a slot that is due
at most one slot after its idle limit has passed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from quiverlog.limits import DOOR_MS
from quiverlog.server.net.memory import Holder
from quiverlog.server.net.places import UNKNOWN_ORIGIN, Origin, Place, PlaceLimits, Places
from quiverlog.server.net.replies import Replies
from quiverlog.server.net.turns import TurnTaker
from quiverlog.wire.messages import Response

__all__ = ["Connection", "ConnectionLimits", "ConnectionState", "ConnectionTable", "overdue"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """The bounds of one connection, and of all together."""

    places: PlaceLimits
    lingering_max: int
    idle_us: int
    frame_us: int
    write_stall_us: int
    write_buffer_bytes: int
    in_flight_max: int
    frame_bytes_max: int
    local_reads: bool

    @property
    def check_s(self) -> float:
        """Looks are often enough for the shortest limit."""
        shortest = min(self.idle_us, self.frame_us, self.write_stall_us) / 1e6
        return min(1.0, max(0.02, shortest / 4))


class ConnectionState:
    """The moments (monotonic microseconds) and counts that `overdue` looks at."""

    __slots__ = (
        "frame_since_us",
        "in_flight",
        "last_read_us",
        "looked_sent_bytes",
        "origin",
        "place",
        "rests",
        "slot",
        "taken_bytes",
        "taken_since_us",
    )

    def __init__(self, now_us: int, origin: Origin = UNKNOWN_ORIGIN) -> None:
        self.origin = origin
        self.place = Place.NONE
        """Written by the table alone."""
        self.last_read_us = now_us
        # Until its first request is complete, the connection counts as in the middle of one.
        self.frame_since_us = now_us
        self.in_flight: dict[int, int] = {}
        """Correlation id -> arrival, in nanoseconds of the performance counter."""
        self.taken_bytes = 0
        self.taken_since_us = 0
        self.looked_sent_bytes = -1
        """What had been sent at the last look."""
        self.rests = False
        """The next look leaves it out; only the table writes this and `slot`."""
        self.slot = -1
        """-1: in none."""


def overdue(
    state: ConnectionState, limits: ConnectionLimits, now_us: int, *, sent: int, waiting: int
) -> str | None:
    """Return why the connection is to be closed, or None.

    Args:
        sent: bytes handed to the socket since the connection began.
        waiting: those of them that the client has not taken yet.
    """
    assert waiting >= 0
    if waiting:
        taken = sent - waiting
        if taken != state.taken_bytes or not state.taken_since_us:
            state.taken_bytes = taken
            state.taken_since_us = now_us
        return "write" if now_us - state.taken_since_us > limits.write_stall_us else None
    state.taken_since_us = 0
    if state.frame_since_us and now_us - state.frame_since_us > limits.frame_us:
        return "frame"
    if not state.in_flight and now_us - state.last_read_us > limits.idle_us:
        return "idle"
    return None


class Connection(Holder, TurnTaker, Protocol):
    state: ConnectionState
    replies: Replies
    sent_bytes: int
    """To the transport, since the connection began."""

    @property
    def waiting_bytes(self) -> int:
        """Sent, but not taken by the client's side."""

    @property
    def is_held(self) -> bool:
        """Nothing is read from it, now or for good."""

    @property
    def is_abandoned(self) -> bool:
        """The client hung up, unseen while reading is paused."""

    def queue(
        self, response: Response, correlation_id: int, body: Sequence[memoryview] = ()
    ) -> None:
        """Gather a reply for `flush`."""

    def flush(self) -> None:
        """Send what has gathered, in one call."""

    def close_soon(self, why: str) -> None:
        """Send what has gathered, then close."""

    def abort(self, reason: str) -> None:
        """Close now and drop what was not sent."""

    def turn_away(self) -> None:
        """Send the error that there is no place, then close."""

    def report(self) -> None:
        """Report to the memory budget."""

    def limits_changed(self) -> None:
        """Take over the table's new limits."""


class ConnectionTable:
    """Open connections by id; ids count up and are never used twice."""

    __slots__ = (
        "_door",
        "_limits",
        "_next_id",
        "_next_slot",
        "_slot_us",
        "_slots",
        "_stirring",
        "by_id",
        "lingering",
        "places",
    )

    def __init__(self, limits: ConnectionLimits) -> None:
        self.by_id: dict[int, Connection] = {}
        self.places = Places(limits.places)
        # May turn out to be brokers', the oldest first.
        self._door: dict[Connection, None] = {}
        self._next_id = 1
        self.lingering = 0
        """Connections whose final error was sent, and that wait for the client to close."""
        # Those that the next look is for.
        self._stirring: dict[Connection, None] = {}
        # The others, by the slot that is due when their limit may have passed.
        self._slots: dict[int, dict[Connection, None]] = {}
        self._next_slot = 0  # No earlier one is left.
        self._slot_us = 1
        self._limits = limits
        self.limits = limits

    @property
    def limits(self) -> ConnectionLimits:
        """May be set at any time; the next look is under the new ones."""
        return self._limits

    @limits.setter
    def limits(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self.places.limits = limits.places
        self._slot_us = max(1, round(limits.check_s * 1e6))
        self._slots.clear()
        self._next_slot = 0
        for connection in self.by_id.values():
            connection.state.slot = -1
            self.stir(connection)

    def add(self, connection: Connection) -> int:
        """Enter it under a new id; -1: there is no place."""
        state = connection.state
        state.place = self.places.enter(state.origin)
        if state.place is Place.NONE:
            return -1
        if state.place is Place.DOOR:
            self._door[connection] = None
            if len(self._door) > self._limits.places.door:
                self._turn_away(next(iter(self._door)))
        connection_id = self._next_id
        self._next_id += 1
        self.by_id[connection_id] = connection
        self.stir(connection)
        return connection_id

    def settle(self, connection: Connection, *, is_broker: bool) -> bool:
        """Settle the place by the first request. False: it has none."""
        state = connection.state
        if is_broker:
            self._door.pop(connection, None)
            state.place = self.places.claim(state.place, state.origin)
        elif state.place is Place.DOOR:
            self._leave(connection)
        return state.place is not Place.NONE

    def _leave(self, connection: Connection) -> None:
        state = connection.state
        self._door.pop(connection, None)
        self.places.leave(state.place, state.origin)
        state.place = Place.NONE

    def _turn_away(self, connection: Connection) -> None:
        self._leave(connection)
        connection.turn_away()

    def remove(self, connection_id: int) -> None:
        removed = self.by_id.pop(connection_id, None)
        assert removed is not None, connection_id
        self._leave(removed)
        self._stirring.pop(removed, None)
        slot = self._slots.get(removed.state.slot)
        if slot is not None:
            del slot[removed]

    def for_each(self, act: Callable[[Connection], None]) -> list[Exception]:
        """Run `act` on every connection, also behind one where it fails; return the failures."""
        return _on_each(list(self.by_id.values()), act)

    def __len__(self) -> int:
        return len(self.by_id)

    # --- looking -------------------------------------------------------------------------------
    def stir(self, connection: Connection) -> None:
        """Look at it again: something is under way."""
        connection.state.rests = False
        self._stirring[connection] = None

    def look(self, now_us: int) -> list[Exception]:
        """Close what is overdue, and report to the memory budget what is under way.

        Returns failures: what fails for one leaves the others theirs.
        """
        for connection in self._take_due(now_us):
            self._stirring[connection] = None
        return _on_each(list(self._stirring), partial(self._look_at, now_us))

    def _take_due(self, now_us: int) -> list[Connection]:
        """Empty the slots whose time has come."""
        end = now_us // self._slot_us  # This one is not over.
        numbers: Iterable[int] = range(self._next_slot, end)
        if end - self._next_slot > len(self._slots):
            numbers = [number for number in self._slots if number < end]
        self._next_slot = max(self._next_slot, end)
        due = [connection for number in numbers for connection in self._slots.pop(number, ())]
        for connection in due:
            connection.state.slot = -1
        return due

    def _look_at(self, now_us: int, connection: Connection) -> None:
        state, sent_bytes = connection.state, connection.sent_bytes
        if state.place is Place.DOOR and now_us - state.frame_since_us > DOOR_MS * 1000:
            self._turn_away(connection)
            return
        waiting = connection.waiting_bytes
        reason = overdue(state, self._limits, now_us, sent=sent_bytes, waiting=waiting)
        if state.in_flight:
            if reason is None and sent_bytes == state.looked_sent_bytes:
                reason = "gone" if connection.is_abandoned else None
            state.looked_sent_bytes = sent_bytes
        if reason is not None:
            connection.abort(reason)
            return
        if not state.rests:  # The budget is up to date for one that was silent since.
            connection.report()
        if not (waiting or state.in_flight or state.frame_since_us or connection.is_held):
            self._rest(connection)

    def _rest(self, connection: Connection) -> None:
        state = connection.state
        state.rests = True
        del self._stirring[connection]
        if state.slot < 0:
            # A slot is taken when it is over: by then the limit has passed.
            state.slot = (state.last_read_us + self._limits.idle_us) // self._slot_us
            state.slot = max(state.slot, self._next_slot)
            self._slots.setdefault(state.slot, {})[connection] = None


def _on_each(
    connections: Iterable[Connection], act: Callable[[Connection], None]
) -> list[Exception]:
    failures: list[Exception] = []
    for connection in connections:
        try:
            act(connection)
        except Exception as error:
            failures.append(error)
    return failures
