"""The blocking driver: plain sockets, one request at a time per connection.

Owns a pool of idle connections (blocking_connection.py) per broker. Decides nothing: what is asked,
of whom and how often lies in the operations.

Threads may share a driver: a connection belongs to one request from its start to its reply, then
goes back to the pool. A connection that the broker closed while it was idle is noticed when it is
taken out again, and silently replaced. After fork() the child may not touch the parent's sockets:
every entry compares the process id, which is one cached system call.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar, assert_never

from quiverlog.errors import (
    ClientClosed,
    ConnectionClosed,
    ForkedClient,
    QuiverlogError,
    RequestTimedOut,
)

from .blocking_connection import BlockingConnection, readable
from .commands import (
    Abandon,
    Advance,
    Call,
    CallMany,
    Command,
    Finish,
    FinishAny,
    Operation,
    PendingReply,
    Reply,
    Sleep,
    Start,
)
from .local_reads import LocalReads
from .results import Address
from .routing import Settings

__all__ = ["BlockingDriver"]

T = TypeVar("T")

IDLE_PER_BROKER_MAX = 8


class BlockingReply:
    """A started request: the connection is its own until the reply has been taken."""

    __slots__ = ("call", "connection", "failure", "reply")

    def __init__(self, call: Call) -> None:
        self.call = call
        self.connection: BlockingConnection | None = None
        self.reply: Reply | None = None
        self.failure: QuiverlogError | None = None

    @property
    def is_ready(self) -> bool:
        """Reply or failure is at hand."""
        return self.reply is not None or self.failure is not None


class BlockingDriver:
    """Performs the commands of operations; safe to share between threads."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._local_reads = LocalReads()
        self._idle: dict[Address, list[BlockingConnection]] = {}
        self._closed = False

    def run(self, operation: Operation[T]) -> T:
        """Run an operation to its end and return its result."""
        self.check_usable()
        answer: object = None
        failure: QuiverlogError | None = None
        while True:
            try:
                if failure is None:
                    command: Command = operation.send(answer)
                else:
                    command = operation.throw(failure)
            except StopIteration as stop:
                result: T = stop.value
                return result
            answer, failure = None, None
            try:
                if self._closed:  # by another thread, since the operation began
                    self.check_usable()
                answer = self._perform(command)
            except QuiverlogError as error:
                failure = error

    @property
    def is_own_process(self) -> bool:
        """False in a child that was forked after the client was opened."""
        return os.getpid() == self._pid

    @property
    def is_usable(self) -> bool:
        """The client is open, and this process may use it."""
        return self.is_own_process and not self._closed

    def check_usable(self) -> None:
        """Raise unless this process may use the client."""
        if not self.is_own_process:
            raise ForkedClient("This client was opened before the process forked.")
        if self._closed:
            raise ClientClosed("The client is closed: open a new one.")

    def close(self) -> None:
        """Close the idle connections; those in use are closed when their request ends."""
        with self._lock:
            self._closed = True
            self._local_reads.close()
            idle, self._idle = self._idle, {}
        for connection in (c for connections in idle.values() for c in connections):
            connection.close()

    # --- commands -------------------------------------------------------------------------------
    def _perform(self, command: Command) -> object:
        match command:
            case Call():
                return self.finish(self.start(command))
            case Start(call, within_s):
                return self.start(call, within_s)
            case Finish(pending):
                return self.finish(pending)
            case FinishAny(pending_many, timeout_s):
                return self._finish_any(pending_many, timeout_s)
            case CallMany(calls):
                return self._call_many(calls)
            case Advance(pending_many):
                return self._advance(pending_many)
            case Abandon(pending):
                self.abandon(pending)
                return None
            case Sleep(seconds):
                time.sleep(seconds)
                return None
            case _:
                assert_never(command)

    def start(self, call: Call, within_s: float | None = None) -> BlockingReply:
        """Send a request on a connection of its own."""
        now_s = time.monotonic()
        reply_by_s = now_s + call.timeout_s
        send_by_s = reply_by_s if within_s is None else min(reply_by_s, now_s + within_s)
        pending = BlockingReply(call)
        connection = self._take(call, send_by_s - now_s)
        try:
            connection.send(call, send_by_s, reply_by_s)
        except BaseException:
            connection.close()
            raise
        pending.connection = connection
        return pending

    def finish(self, pending: PendingReply) -> Reply:
        """Wait for the reply; the connection goes back to the pool, or is closed on a failure."""
        assert isinstance(pending, BlockingReply)
        if pending.failure is not None:
            raise pending.failure
        reply = pending.reply
        if reply is not None:
            return reply
        connection = pending.connection
        assert connection is not None, "a reply is taken once"
        pending.connection = None
        try:
            reply = connection.receive()
        except BaseException:  # also Ctrl-C: half a reply may be waiting on this connection
            connection.close()
            raise
        self._give_back(connection)
        return reply

    def abandon(self, pending: PendingReply) -> None:
        """The reply may come at any time: only closing the connection makes sure of it."""
        assert isinstance(pending, BlockingReply)
        if pending.connection is not None:
            pending.connection.close()
            pending.connection = None

    def _call_many(self, calls: Sequence[Call]) -> list[Reply | QuiverlogError]:
        """All are sent before any is awaited; the largest timeout bounds them together."""
        end_s = time.monotonic() + max((call.timeout_s for call in calls), default=0.0)
        started = [self._start_or_failure(call, end_s - time.monotonic()) for call in calls]
        results: list[Reply | QuiverlogError] = []
        for pending in started:
            try:
                results.append(self.finish(pending))
            except QuiverlogError as error:
                results.append(error)
        return results

    def _start_or_failure(self, call: Call, left_s: float) -> BlockingReply:
        try:
            timeout_s = min(call.timeout_s, left_s)
            if timeout_s <= 0:
                raise RequestTimedOut(f"{call.address} was not asked in time.")
            return self.start(replace(call, timeout_s=timeout_s))
        except QuiverlogError as error:
            failed = BlockingReply(call)
            failed.failure = error
            return failed

    def _finish_any(
        self, pending_many: Sequence[PendingReply], timeout_s: float
    ) -> BlockingReply | None:
        """Take in what arrives until one reply is whole; half a reply does not block others."""
        end_s = time.monotonic() + timeout_s
        waiting: dict[int, BlockingReply] = {}
        for pending in pending_many:
            assert isinstance(pending, BlockingReply)
            if pending.is_ready or pending.connection is None:
                return pending
            waiting[pending.connection.fileno()] = pending
        while True:
            for pending in waiting.values():
                if pending.connection is not None and pending.connection.has_answer:
                    self._receive(pending, pending.connection.receive_ready)
                    if pending.is_ready:
                        return pending
            connections = [p.connection for p in waiting.values() if p.connection is not None]
            wait_s = min([end_s - time.monotonic(), *(c.left_s for c in connections)])
            ready = readable(connections, max(0.0, wait_s))
            if not ready:  # somebody's time may be up, whether bytes came or not
                ready = [c.fileno() for c in connections if c.left_s <= 0]
            for fd in ready:
                pending = waiting[fd]
                assert pending.connection is not None
                self._receive(pending, pending.connection.receive_ready)
                if pending.is_ready:
                    return pending
            if time.monotonic() >= end_s:
                return None

    def _advance(self, pending_many: Sequence[PendingReply]) -> bool:
        """Take in what has come; False when all of it has."""
        is_waiting = False
        for pending in pending_many:
            assert isinstance(pending, BlockingReply)
            connection = pending.connection
            if connection is not None and not connection.has_answer:
                self._receive(pending, connection.advance)
                is_waiting = is_waiting or not (pending.is_ready or connection.has_answer)
        return is_waiting

    def _receive(self, pending: BlockingReply, receive: Callable[[], Reply | None]) -> None:
        """Take in what there is. What goes wrong is kept, for who waits for the reply."""
        connection = pending.connection
        assert connection is not None
        try:
            pending.reply = receive()
        except QuiverlogError as error:
            pending.failure = error
            connection.close()
        except BaseException:  # Ctrl-C: a program may go on, and ask for the same rows again
            pending.failure = ConnectionClosed("Waiting for an answer was interrupted.")
            pending.connection = None
            connection.close()
            raise
        if pending.is_ready:
            pending.connection = None
            if pending.reply is not None:
                self._give_back(connection)

    # --- the pool -------------------------------------------------------------------------------
    def _take(self, call: Call, within_s: float) -> BlockingConnection:
        while True:
            with self._lock:
                idle = self._idle.get(call.address)
                connection = idle.pop() if idle else None
            if connection is None:
                timeout_s = min(within_s, self._settings.connect_timeout_s)
                return BlockingConnection(
                    call.address, self._settings, timeout_s, self._local_reads
                )
            if not connection.is_stale():
                return connection
            connection.close()

    def _give_back(self, connection: BlockingConnection) -> None:
        with self._lock:
            idle = self._idle.setdefault(connection.address, [])
            is_useful = not (self._closed or connection.is_spent)
            if is_useful and len(idle) < IDLE_PER_BROKER_MAX:
                idle.append(connection)
                return
        connection.close()
