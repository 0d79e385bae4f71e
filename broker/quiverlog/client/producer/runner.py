"""Performs the steps of `ProducerCore` on an event loop, the caller's or the background thread's.

Owns timers, the connections' futures and the producer's questions: fresh metadata, the next epoch
of its id, and one of the core's own. It changes the core under the lock only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from quiverlog.client.base.commands import Operation, Reply
from quiverlog.client.base.results import Address
from quiverlog.client.base.waits import LOG_AFTER_S, Wait
from quiverlog.client.cluster.routing import Cluster, backoff_s, pause_s
from quiverlog.client.cluster.topic_identity import topic_with_id
from quiverlog.client.drivers.asynchronous import AsyncDriver
from quiverlog.errors import (
    ConnectionFailed,
    InvalidProducerEpoch,
    NotLeader,
    QuiverlogError,
    UnknownProducerId,
)
from quiverlog.types import Now
from quiverlog.wire import messages as m

from .core import ProducerCore
from .types import Identity, ProduceCall

__all__ = ["ProducerRunner", "new_identity"]

CHANNEL = "produce"


def new_identity(cluster: Cluster, last: Identity | None = None) -> Operation[Identity]:
    """Ask for a producer id, or for the epoch after `last`."""

    def asked(identity: Identity) -> Operation[Identity]:
        request = m.InitProducerIdRequest(
            producer_id=identity.producer_id, producer_epoch=identity.producer_epoch
        )
        reply = yield from cluster.call_controller(request)
        assert isinstance(reply.response, m.InitProducerIdResponse)
        return Identity(reply.response.producer_id, reply.response.producer_epoch)

    def attempt() -> Operation[Identity]:
        try:
            return (yield from asked(last or Identity()))
        except (InvalidProducerEpoch, UnknownProducerId):
            # A lost answer has assigned the next epoch, or the controller has no record of the id.
            # Batches in flight under `last` may still be stored: unknown until they expire.
            return (yield from asked(Identity()))

    return (yield from cluster.retrying(attempt))


class ProducerRunner:
    """Runs one core on one loop.

    Args:
        changed: called, with the lock held, when something was acknowledged or failed.
    """

    def __init__(
        self,
        cluster: Cluster,
        driver: AsyncDriver,
        core: ProducerCore,
        loop: asyncio.AbstractEventLoop,
        *,
        lock: AbstractContextManager[Any],
        now: Callable[[], Now],
        changed: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._driver = driver
        self._core = core
        self._loop = loop
        self._lock = lock
        self._now = now
        self._changed = changed
        self._woken = False
        self._stopped = False
        self._timer: asyncio.TimerHandle | None = None
        self._finished_seen = 0
        self._progressed_us = now().mono_us
        self._logged_reasons: set[str] = set()
        cluster.waits.others.add(self)
        # Metadata refreshes since a leader last answered.
        self._looks = 0
        self._questions: dict[str, asyncio.Task[None]] = {}
        self._connecting: dict[asyncio.Task[None], ProduceCall] = {}
        # Leader -> the address of its last request, which the metadata may have dropped.
        self._asked: dict[int, Address] = {}

    def wake_from_thread(self) -> None:
        """Schedule `step`, from any thread; cheap when it is due already."""
        if not self._woken:
            self._woken = True
            self._loop.call_soon_threadsafe(self.step)

    def wake(self) -> None:
        if not self._woken:
            self._woken = True
            self._loop.call_soon(self.step)

    def step(self) -> None:
        self._woken = False
        if self._stopped:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        with self._lock:
            now = self._now()
            work = self._core.poll(now, may_ask="own" not in self._questions)
            self._notify()
        for leader in work.deposed:
            self._leave(leader)
        for call in work.calls:
            self._send(call)
        for leader in work.silent:
            self._cluster.suspect(self._asked[leader])
        if work.needs_metadata:
            self._ask("metadata", self._refresh)
        if work.needs_identity:
            self._ask("identity", self._renew)
        if work.question is not None:
            self._ask_own(work.question)
        if work.wake_at_us is not None:
            delay_s = max(0.0005, (work.wake_at_us - now.mono_us) / 1_000_000)
            self._timer = self._loop.call_later(delay_s, self.step)

    def waiting(self) -> Wait | None:
        with self._lock:
            return None if self._stopped else self._core.waiting(self._progressed_us)

    def _log_wait(self) -> None:
        wait = self.waiting()
        if wait is not None and wait.reason not in self._logged_reasons:
            self._logged_reasons.update(self._cluster.waits.log_long(wait))

    async def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        tasks = [*self._questions.values(), *self._connecting]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- sending --------------------------------------------------------------------------------
    def _send(self, call: ProduceCall) -> None:
        timeout_s = call.timeout_us / 1_000_000
        try:
            address = self._asked[call.leader] = self._cluster.address_of(call.leader)
            connection = self._driver.ready(address, CHANNEL)
            if connection is not None:
                waiting = connection.request(call.request, call.body, timeout_s)
                waiting.add_done_callback(partial(self._replied, call))
                return
        except QuiverlogError as error:
            self._failed(call, error)
            return
        task = self._loop.create_task(self._connect_and_send(call))
        self._connecting[task] = call
        task.add_done_callback(self._connecting.pop)

    async def _connect_and_send(self, call: ProduceCall) -> None:
        timeout_s = call.timeout_us / 1_000_000
        try:
            address = self._cluster.address_of(call.leader)
            connection = await self._driver.connection(address, CHANNEL, timeout_s)
            waiting = connection.request(call.request, call.body, timeout_s)
        except QuiverlogError as error:
            self._failed(call, error)
            return
        waiting.add_done_callback(partial(self._replied, call))

    def _leave(self, leader: int) -> None:
        address = self._asked[leader]
        why = f"{address} is silent, and no longer leads."
        self._driver.leave(address, CHANNEL, why)
        for task, call in list(self._connecting.items()):
            if call.leader == leader and task.cancel():
                self._failed(call, ConnectionFailed(why))

    def _replied(self, call: ProduceCall, waiting: asyncio.Future[Reply]) -> None:
        if waiting.cancelled():
            return
        error = waiting.exception()
        if isinstance(error, QuiverlogError):
            self._failed(call, error)
            return
        assert error is None
        self._looks = 0
        with self._lock:
            self._core.on_response(call, waiting.result().response, self._now())
            self._notify()
        if self._now().mono_us - self._progressed_us > LOG_AFTER_S * 1_000_000:
            self._log_wait()
        self.step()

    def _failed(self, call: ProduceCall, error: QuiverlogError) -> None:
        with self._lock:
            self._core.on_failure(call, error, self._now())
            self._notify()
        self._log_wait()
        self.wake()

    def _notify(self) -> None:
        if self._core.finished != self._finished_seen:
            self._finished_seen = self._core.finished
            self._progressed_us = self._now().mono_us
            self._logged_reasons.clear()
            self._cluster.progressed()
            self._changed()

    def _ask(self, what: str, question: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if what in self._questions:
            return
        task = self._loop.create_task(self._until_answered(question))
        self._questions[what] = task
        task.add_done_callback(lambda _: self._answered(what))

    def _ask_own(self, question: Operation[int]) -> None:
        task = self._loop.create_task(self._own(question))
        self._questions["own"] = task
        task.add_done_callback(lambda _: self._answered("own"))

    async def _own(self, question: Operation[int]) -> None:
        answer, failure = 0, None
        try:
            answer = await self._driver.run(question)
        except QuiverlogError as error:
            failure = error
        with self._lock:
            if not self._stopped:
                self._core.on_answer(answer, failure)
                self._changed()

    def _answered(self, what: str) -> None:
        self._questions.pop(what, None)
        self.wake()

    async def _until_answered(self, question: Callable[[], Coroutine[Any, Any, None]]) -> None:
        attempt = 0
        while not self._stopped and self._has_unsent():
            try:
                await question()
                return
            except QuiverlogError as error:
                if not error.retriable:
                    with self._lock:
                        self._core.fail_all(error)
                        self._notify()
                    return
            # Batches may expire meanwhile.
            with self._lock:
                self._core.give_up_expired(self._now())
                self._notify()
            await asyncio.sleep(backoff_s(attempt, self._cluster.jitter()))
            attempt += 1

    def _has_unsent(self) -> bool:
        with self._lock:
            return self._core.has_unsent

    async def _refresh(self) -> None:
        opened, is_unconfirmed = self._core.topic, self._core.is_topic_unconfirmed
        topic = await self._driver.run(
            topic_with_id(
                self._cluster,
                opened.name,
                opened.topic_id,
                fresh=True,
                from_controller=is_unconfirmed,
            )
        )
        with self._lock:
            self._core.topic_changed(topic)
            self._notify()
        self.wake()
        # A missing leader would be asked for in a loop.
        await asyncio.sleep(pause_s(NotLeader(), self._looks, self._cluster.jitter()))
        self._looks += 1

    async def _renew(self) -> None:
        identity = await self._driver.run(new_identity(self._cluster, self._core.identity))
        with self._lock:
            self._core.identity_renewed(identity)
