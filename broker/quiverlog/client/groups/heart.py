"""The heart of a member: it beats and commits while the program computes.

Owns the loop's tasks, on a client's event loop or on the thread that producers have, too. A member
is changed under the lock only; the program's thread waits for changes by `wait_for`.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any

from quiverlog.client.cluster.routing import Cluster, pause_s
from quiverlog.client.drivers.asynchronous import AsyncDriver, IoThread
from quiverlog.errors import QuiverlogError
from quiverlog.wire import group_messages as g

from .member import GroupMember
from .questions import ask_coordinator, heartbeat, matching_topics

__all__ = ["AsyncHostedMember", "Heart", "HostedMember"]

LOOK_EVERY_S = 5.0
"""How often a pattern is matched against the topics that there are."""


class Heart:
    """Runs one member on one loop. `changed`: called, with the lock held, after each change."""

    def __init__(
        self,
        cluster: Cluster,
        driver: AsyncDriver,
        member: GroupMember,
        pattern: re.Pattern[str] | None,
        *,
        lock: AbstractContextManager[Any],
        changed: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._driver = driver
        self._member = member
        self._pattern = pattern
        self._lock = lock
        self._changed = changed
        self._tasks: list[asyncio.Task[None]] = []
        self._woken = (asyncio.Event(), asyncio.Event())
        self._failures = 0

    def start(self) -> None:
        works = [self._beats(self._woken[0]), self._commits(self._woken[1])]
        if self._pattern is not None:
            works.append(self._looks(self._pattern))
        self._tasks = [asyncio.get_running_loop().create_task(self._guarded(w)) for w in works]

    def wake(self) -> None:
        """On the loop: something of the member may be due."""
        for event in self._woken:
            event.set()

    def leave(self) -> None:
        """On the loop: the program has dropped the consumer, and the group is not to wait."""
        with self._lock:
            self._member.leave(for_a_while=True)
        self.wake()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _guarded(self, work: Awaitable[None]) -> None:
        try:
            await work
        except Exception as error:  # A member without a heart would wait for ever.
            failure = error if isinstance(error, QuiverlogError) else QuiverlogError(repr(error))
            with self._lock:
                self._member.fail(failure)
                self._changed()

    # --- heartbeats -----------------------------------------------------------------------------
    async def _beats(self, woken: asyncio.Event) -> None:
        member, clock = self._member, self._cluster.clock
        while not member.is_over:
            woken.clear()
            with self._lock:
                request = member.next_beat(clock())
                due_s = member.beat_due_s(clock())
                self._changed()  # The program's time may be over.
            if request is None:
                await _until(woken, due_s - clock())
            else:
                await self._beat(request, woken)

    async def _beat(self, request: g.GroupHeartbeatRequest, woken: asyncio.Event) -> None:
        member, clock = self._member, self._cluster.clock
        asked = asyncio.ensure_future(self._driver.run(heartbeat(self._cluster, request)))
        try:
            while not asked.done():
                with self._lock:
                    member.look_at_program(clock())
                    if member.interrupts:
                        member.interrupted()
                        return
                    due_s = member.program_due_s
                await _first_of(asked, woken, due_s - clock())
                woken.clear()
        finally:
            if not asked.done():
                asked.cancel()
                await asyncio.gather(asked, return_exceptions=True)
        try:
            response = asked.result()
        except QuiverlogError as error:
            self._failures += 1
            with self._lock:
                member.failed(request, error, self._pause_s(error), clock())
                self._changed()
            return
        self._failures = 0
        with self._lock:
            member.answered(request, response, clock())
            self._changed()

    def _pause_s(self, error: QuiverlogError) -> float:
        if error.refresh_metadata:
            self._cluster.invalidate_topics()
        return pause_s(error, self._failures, self._cluster.jitter())

    # --- commits --------------------------------------------------------------------------------
    async def _commits(self, woken: asyncio.Event) -> None:
        member, clock = self._member, self._cluster.clock
        while not member.is_over:
            woken.clear()
            with self._lock:
                request = member.next_commit(clock())
                due_s = member.commit_due_s(clock())
            if request is None:
                await _until(woken, due_s - clock())
                continue
            question = ask_coordinator(
                self._cluster, request.group, request, g.CommitOffsetsResponse
            )
            try:
                response = await self._driver.run(question)
            except QuiverlogError as error:
                with self._lock:
                    member.commit_failed(error, self._pause_s(error), clock())
                    self._changed()
            else:
                with self._lock:
                    member.commit_answered(response, clock())
                    self._changed()
            # A refusal may have made a heartbeat due.
            self._woken[0].set()

    async def _looks(self, pattern: re.Pattern[str]) -> None:
        while not self._member.is_over:
            with contextlib.suppress(QuiverlogError):
                names = await self._driver.run(matching_topics(self._cluster, pattern))
                with self._lock:
                    self._member.subscribe(names)
                self.wake()
            await asyncio.sleep(LOOK_EVERY_S)


async def _until(event: asyncio.Event, seconds: float) -> None:
    if seconds <= 0:
        return
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(None if math.isinf(seconds) else seconds):
            await event.wait()


async def _first_of(asked: asyncio.Future[Any], event: asyncio.Event, seconds: float) -> None:
    waiting = asyncio.ensure_future(event.wait())
    timeout_s = None if math.isinf(seconds) else max(0.0, seconds)
    try:
        await asyncio.wait({asked, waiting}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


class HostedMember:
    """A member whose heart beats on a thread with its own connections."""

    def __init__(
        self, cluster: Cluster, member: GroupMember, pattern: re.Pattern[str] | None, io: IoThread
    ) -> None:
        self.member = member
        self.lock = threading.Condition()
        self._io = io
        self._heart = io.run(self._made(cluster, pattern))

    async def _made(self, cluster: Cluster, pattern: re.Pattern[str] | None) -> Heart:
        heart = Heart(
            cluster, self._io.driver, self.member, pattern,
            lock=self.lock, changed=self.lock.notify_all,
        )  # fmt: skip
        heart.start()
        return heart

    def wake(self) -> None:
        self._schedule(self._heart.wake)

    def drop(self) -> None:
        self._schedule(self._heart.leave)

    def _schedule(self, act: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # The loop has ended.
            self._io.loop.call_soon_threadsafe(act)

    def wait_for(self, is_true: Callable[[], bool], timeout_s: float | None) -> bool:
        with self.lock:
            return self.lock.wait_for(is_true, timeout_s)

    def stop(self) -> None:
        if not self._io.loop.is_closed():
            self._io.run(self._heart.stop())


class AsyncHostedMember:
    """A member whose heart beats on the running loop, over the client's connections."""

    def __init__(
        self,
        cluster: Cluster,
        member: GroupMember,
        pattern: re.Pattern[str] | None,
        driver: AsyncDriver,
    ) -> None:
        self.member = member
        self.lock: AbstractContextManager[Any] = contextlib.nullcontext()
        self._change = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._heart = Heart(cluster, driver, member, pattern, lock=self.lock, changed=self._notify)
        self._heart.start()

    def _notify(self) -> None:
        change, self._change = self._change, asyncio.Event()
        change.set()

    def wake(self) -> None:
        self._heart.wake()

    def drop(self) -> None:
        with contextlib.suppress(RuntimeError):  # The loop has ended.
            self._loop.call_soon_threadsafe(self._heart.leave)

    async def wait_for(self, is_true: Callable[[], bool], timeout_s: float | None) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                while not is_true():
                    await self._change.wait()
        except TimeoutError:
            return is_true()
        return True

    async def stop(self) -> None:
        await self._heart.stop()
