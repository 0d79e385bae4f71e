"""Requests that wait for rows, offsets or the disk, and when they are checked again.

Owns their deadlines (one heap) and the shares of long polls of a connection, a client id and an
address. While there is room for two of each connection, others leave room for a small first one.

Invariants: a waiter is answered or dropped once, and checked after every change, in this call or a
later one; beyond 256 entries, the heap holds about twice as many as wait.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import ClassVar, Final, NamedTuple, Protocol

from quiverlog.errors import QuiverlogError
from quiverlog.node.runtime.clients import Account, Clients
from quiverlog.node.runtime.events import AT_ONCE_US
from quiverlog.node.runtime.outbox import Outbox
from quiverlog.node.runtime.tasks import Call, Wait
from quiverlog.types import Now
from quiverlog.wire.messages import Api, Response
from quiverlog.wire.registry import APIS

__all__ = [
    "MARKS_PER_CALL",
    "WAKES_PER_CALL",
    "Purgatory",
    "Replier",
    "Waiter",
    "Waits",
    "Wakeups",
    "Watched",
]


_SWEEP_MIN: Final = 256
_FIRST_ENTRIES: Final = 8
"""The most entries of a small long poll."""
_ADDRESS_SHARE: Final = 2
"""An address may have two thirds: a client that has taken its half leaves something to others of
its host or network.
"""


class Replier(Protocol):
    def respond(
        self,
        connection_id: int,
        correlation_id: int,
        response: Response,
        body: Sequence[memoryview] = (),
    ) -> None: ...


class Waiter:
    """A request that is not answered yet. `done`: it waits no more."""

    __slots__ = (
        "accounts",
        "answered",
        "connection_id",
        "correlation_id",
        "deadline_us",
        "done",
        "entry_count",
    )

    api: ClassVar[Api]

    def __init__(
        self, connection_id: int, correlation_id: int, deadline_us: int, entry_count: int = 1
    ) -> None:
        self.connection_id = connection_id
        self.correlation_id = correlation_id
        self.deadline_us = deadline_us
        self.accounts: tuple[Account, ...] = ()
        self.entry_count = entry_count
        self.done = False
        self.answered = False

    def wake(self, indexes: Sequence[int], now: Now) -> None:
        """Answer if the changed offsets of these entries suffice."""
        raise NotImplementedError

    def expire(self, now: Now) -> None:
        """Answer at the deadline with what there is."""
        raise NotImplementedError

    def release(self) -> None:
        """Leave every list but the purgatory's. May be called twice."""

    def answer(self, replier: Replier, response: Response, body: Sequence[memoryview] = ()) -> None:
        assert not self.answered
        replier.respond(self.connection_id, self.correlation_id, response, body)
        self.answered = True


class Purgatory:
    __slots__ = (
        "_by_connection",
        "_clients",
        "_entries",
        "_entries_max",
        "_heap",
        "_outbox",
        "_parked_max",
        "_polls",
        "_sequence",
        "live",
        "parked",
        "parked_entries",
    )

    def __init__(self, outbox: Outbox, clients: Clients, parked_max: int, entries_max: int) -> None:
        self._outbox = outbox
        self._clients = clients
        self._parked_max = parked_max
        self._entries_max = entries_max
        self._polls: dict[Account, int] = {}
        self._entries: dict[Account, int] = {}
        self._heap: list[tuple[int, int, Waiter]] = []
        self._sequence = 0
        self._by_connection: dict[int, dict[Waiter, None]] = {}
        self.live = 0
        self.parked = 0
        self.parked_entries = 0

    def may_park(self, connection_id: int, entry_count: int) -> bool:
        free = self._parked_max - self.parked
        free_entries = self._entries_max - self.parked_entries
        accounts = self._clients.accounts
        # While two small ones of each connection fit, one is kept free for each that has none.
        two_each = 2 * len(accounts)
        if two_each <= self._parked_max and two_each * _FIRST_ENTRIES <= self._entries_max:
            if connection_id not in self._by_connection and entry_count <= _FIRST_ENTRIES:
                return free > 0 and entry_count <= free_entries
            waiting = len(accounts) - len(self._by_connection)
            assert waiting >= 0, "long polls end with their connections"
            free -= waiting
            free_entries -= waiting * _FIRST_ENTRIES
        for account in accounts[connection_id]:
            share = _ADDRESS_SHARE if account[0] == "address" else 1
            if self._polls.get(account, 0) >= share * free:
                return False
            if self._entries.get(account, 0) + entry_count > share * free_entries:
                return False
        return True

    def park(self, waiter: Waiter) -> None:
        """Keep a long poll, which ends with its connection."""
        assert not waiter.accounts
        waiter.accounts = self._clients.accounts[waiter.connection_id]
        self.parked += 1
        self.parked_entries += waiter.entry_count
        for account in waiter.accounts:
            _count(self._polls, account, 1)
            _count(self._entries, account, waiter.entry_count)
        self._by_connection.setdefault(waiter.connection_id, {})[waiter] = None
        self.add(waiter)
        assert self.parked <= self.live

    def add(self, waiter: Waiter) -> None:
        """Wait until `waiter.deadline_us`, whether or not the connection lasts."""
        assert not waiter.done
        self._sequence += 1
        self.live += 1
        heap = self._heap
        heapq.heappush(heap, (waiter.deadline_us, self._sequence, waiter))
        # Finished waiters leave their entries behind: a heap has no cheap removal.
        if len(heap) > _SWEEP_MIN and len(heap) > 2 * self.live:
            self._sweep()

    def hasten(self, waiter: Waiter, deadline_us: int) -> None:
        """Give a waiter an earlier deadline; its old heap entry is out of date."""
        assert not waiter.done
        assert deadline_us < waiter.deadline_us
        waiter.deadline_us = deadline_us
        self._sequence += 1
        heapq.heappush(self._heap, (deadline_us, self._sequence, waiter))

    def _sweep(self) -> None:
        self._heap = [entry for entry in self._heap if _holds(entry)]
        heapq.heapify(self._heap)
        assert len(self._heap) <= self.live, "all but those that expire just now are in it"

    def finish(self, waiter: Waiter) -> None:
        assert not waiter.done
        waiter.done = True
        self.live -= 1
        assert self.live >= self.parked - bool(waiter.accounts), "long polls wait, and produces"
        if waiter.accounts:
            self._unpark(waiter)

    def _unpark(self, waiter: Waiter) -> None:
        self.parked -= 1
        self.parked_entries -= waiter.entry_count
        for account in waiter.accounts:
            _count(self._polls, account, -1)
            _count(self._entries, account, -waiter.entry_count)
        mine = self._by_connection[waiter.connection_id]
        del mine[waiter]
        if not mine:
            del self._by_connection[waiter.connection_id]
        assert self.parked >= 0
        assert self.parked or not self.parked_entries
        assert self.parked or not (self._polls or self._entries or self._by_connection)

    def answer(self, waiter: Waiter, response: Response, body: Sequence[memoryview] = ()) -> None:
        waiter.answer(self._outbox, response, body)
        self.finish(waiter)
        waiter.release()

    def drop(self, connection_id: int) -> None:
        for waiter in self.of_connection(connection_id):
            waiter.answered = True  # Its connection is gone: no answer is sent.
            self.finish(waiter)
            waiter.release()

    def fail(self, waiter: Waiter, where: str, error: Exception) -> None:
        self._outbox.internal_error(where, error)
        if not waiter.done:
            self.finish(waiter)
            waiter.release()
        # It may have answered before the bug.
        if not waiter.answered:
            bug = QuiverlogError()
            response = APIS[waiter.api].response(error_code=bug.code, error_message=bug.message)
            waiter.answer(self._outbox, response)

    def of_connection(self, connection_id: int) -> list[Waiter]:
        return list(self._by_connection.get(connection_id, ()))

    def of_request(self, connection_id: int, correlation_id: int) -> list[Waiter]:
        """The waiters of one request; slow, for a failed handler."""
        return [
            waiter
            for waiter in self.all_live()
            if (waiter.connection_id, waiter.correlation_id) == (connection_id, correlation_id)
        ]

    def expired(self, mono_us: int) -> list[Waiter]:
        found: list[Waiter] = []
        heap = self._heap
        while heap and heap[0][0] <= mono_us:
            entry = heapq.heappop(heap)
            if _holds(entry):
                found.append(entry[2])
        return found

    def next_deadline_us(self) -> int | None:
        heap = self._heap
        while heap and not _holds(heap[0]):
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def all_live(self) -> list[Waiter]:
        return [entry[2] for entry in self._heap if _holds(entry)]


def _holds(entry: tuple[int, int, Waiter]) -> bool:
    """True for the current deadline of a live waiter; `hasten` leaves older ones behind."""
    deadline_us, _, waiter = entry
    return not waiter.done and deadline_us == waiter.deadline_us


def _count(counts: dict[Account, int], account: Account, change: int) -> None:
    left = counts.get(account, 0) + change
    assert left >= 0
    if left:
        counts[account] = left
    else:
        counts.pop(account, None)


WAKES_PER_CALL: Final = 500
"""Partitions that waiting readers check in one call: some 10 us each."""
MARKS_PER_CALL: Final = 5_000
"""Readers that are marked in one call: a fraction of a microsecond each."""


class Watched:
    """A partition, or the metadata. `waiters`: its long polls, with their entry's index."""

    __slots__ = ("waiters",)

    def __init__(self) -> None:
        self.waiters: dict[Waiter, int] = {}

    def watch(self, waiter: Waiter, index: int) -> int:
        """Check a long poll again after a change; returns the entry watched before."""
        before = self.waiters.get(waiter, index)
        self.waiters[waiter] = index
        return before

    def unwatch(self, waiter: Waiter) -> None:
        self.waiters.pop(waiter, None)


class Wakeups:
    """Readers to be checked after a change: a bounded number in each call."""

    __slots__ = ("_changed", "_listener", "_marked", "_purgatory", "_round")

    def __init__(self, purgatory: Purgatory) -> None:
        self._purgatory = purgatory
        self._listener: Callable[[Watched], None] = lambda watched: None
        # Each once, however often it changes before its readers are marked.
        self._changed: dict[Watched, None] = {}
        self._round: deque[tuple[Waiter, int]] = deque()
        self._marked: dict[Waiter, dict[int, None]] = {}

    @property
    def busy(self) -> bool:
        return bool(self._marked or self._round or self._changed)

    def next_us(self) -> int | None:
        return AT_ONCE_US if self.busy else None

    def listen(self, listener: Callable[[Watched], None]) -> None:
        """Call `listener`, the sessions that copy partitions, for each change."""
        self._listener = listener

    def grown(self, watched: Watched) -> None:
        """Report rows that readers may not see yet; only copies are made of them."""
        self._listener(watched)

    def changed(self, watched: Watched) -> None:
        """Report that readers may see something new, also when the partition is about to go."""
        if watched.waiters:
            self._changed[watched] = None
        self._listener(watched)

    def mark(self, waiter: Waiter, indexes: Iterable[int]) -> None:
        self._marked.setdefault(waiter, {}).update(dict.fromkeys(indexes))
        assert self._marked[waiter], "a marked reader has something to look at"

    def run(self, now: Now) -> None:
        self._mark()
        left = WAKES_PER_CALL
        marked = self._marked
        while marked and left > 0:
            waiter = next(iter(marked))
            indexes = list(marked.pop(waiter))
            if waiter.done:
                left -= 1
                continue
            # The rest of a wide reader's partitions comes in the next call.
            if len(indexes) > left:
                marked[waiter] = dict.fromkeys(indexes[left:])
                del indexes[left:]
            left -= len(indexes)
            assert left >= 0
            assert indexes, "a marked reader has something to look at"
            try:
                waiter.wake(indexes, now)
            except Exception as error:
                self._purgatory.fail(waiter, "waking a request", error)
            if waiter.answered:
                # It has checked all of its entries, to answer.
                left -= waiter.entry_count - len(indexes)

    def _mark(self) -> None:
        for _ in range(MARKS_PER_CALL):
            if not self._round:
                if not self._changed:
                    return
                watched = next(iter(self._changed))
                del self._changed[watched]
                self._round.extend(watched.waiters.items())
                continue
            waiter, index = self._round.popleft()
            if not waiter.done:
                found = self._marked.get(waiter)
                if found is None:
                    self._marked[waiter] = {index: None}
                else:
                    found[index] = None


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
    """What a waiting request may do, besides reading (lookup.py).

    `fail`: end the wait by a bug of ours. `look_again`: check these entries soon. `start`: read in
    steps, because there is much to read.
    """

    answer: _Answer
    fail: _Fail
    look_again: _LookAgain
    start: _Start
    hasten: _Hasten
