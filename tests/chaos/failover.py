"""How long a producer waits when the leader is killed, over many kills, and that no row goes.

Owns one partition on three brokers with default timeouts, one idempotent producer of the level
`replicated` that sends all the time, and the kills: each hits the broker that leads just then, and
the next one waits until all replicas are in sync again. What counts is the time from the kill to
the acknowledgement of the first send that was made after it.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from array import array
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from quiverlog import aio
from quiverlog.errors import QuiverlogError

from .brokers import Brokers
from .checker import check
from .faults import look_at_metadata
from .history import History, Outcome, Read, Send, Stored, TopicRow, value
from .nemesis import NODE_IDS
from .workload import SCHEMA

__all__ = ["Failover", "failover"]

HOT: Final = TopicRow("hot", "replicated", 3, 1)
ROWS_PER_SEND: Final = 5
PACE_S: Final = 0.005
SENDS_UNANSWERED_MAX: Final = 64
BOUND_S: Final = 60.0
POLL_S: Final = 0.005


@dataclass(slots=True, eq=False)
class Failover:
    """Seconds of each kind, and what was wrong with the rows."""

    writes_s: list[float] = field(default_factory=list)
    """From the kill of the leader to the next acknowledged write."""
    of_controller_s: list[float] = field(default_factory=list)
    """Those of `writes_s` where the leader was the controller, too."""
    decisions_s: list[float] = field(default_factory=list)
    """From the kill of a controller to the next topic that was created."""
    problems: list[str] = field(default_factory=list)
    rows: int = 0

    def text(self) -> str:
        """For people."""
        return "\n".join(
            [
                f"leader killed, until the next acknowledged write, s: {_spread(self.writes_s)}",
                f"  of these, where it was the controller: {_spread(self.of_controller_s)}",
                f"controller killed, until the next decision, s: {_spread(self.decisions_s)}",
                f"rows acknowledged: {self.rows}",
                *(f"PROBLEM {problem}" for problem in self.problems),
            ]
        )


def _spread(times_s: list[float]) -> str:
    if not times_s:
        return "none"
    ordered = sorted(times_s)
    p90 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.9))]
    return (
        f"min {ordered[0]:.2f}, median {statistics.median(ordered):.2f}, p90 {p90:.2f},"
        f" max {ordered[-1]:.2f} of {len(ordered)}"
    )


async def failover(kills: int, controller_kills: int, on_step: Callable[[str], None]) -> Failover:
    found = Failover()
    async with (
        Brokers() as brokers,
        aio.connect(brokers.bootstrap, client_id="client-producer") as client,
    ):
        await _until(lambda: _created(client))
        load = _Load(client)
        task = asyncio.create_task(load.run())
        for number in range(kills + controller_kills):
            await _until(lambda: _all_in_sync(brokers))
            metadata = await look_at_metadata(brokers)
            assert metadata is not None
            leader = metadata.topics[HOT.name].partitions[0].leader
            if number < kills:
                took_s = await _kill_leader(brokers, load, leader)
                found.writes_s.append(took_s)
                if leader == metadata.controller_id:
                    found.of_controller_s.append(took_s)
                on_step(f"kill {number + 1}: {took_s:.2f} s")
                await brokers.start(leader)
            else:
                await brokers.kill(metadata.controller_id)
                begin_s = time.monotonic()
                await _until(lambda n=number: _decided(client, f"decided-{n}"))  # type: ignore[misc]
                found.decisions_s.append(time.monotonic() - begin_s)
                await brokers.start(metadata.controller_id)
        await load.stop()
        await task
        async for batch in client.consumer(HOT.name):
            values = array("q", batch.data.column(0).to_pylist())
            key = (batch.topic, batch.partition)
            read = Read("last", key, batch.base_offset, batch.leader_epoch, values, 0.0)
            load.history.final.append(read)
        brokers.look_at_logs()
    found.rows = load.history.acknowledged_rows()
    found.problems = check(load.history).problems + brokers.problems
    return found


async def _created(client: aio.AsyncClient) -> bool:
    try:
        await client.create_topic(
            HOT.name, SCHEMA, replication_factor=3, config={"durability": HOT.level},
            if_not_exists=True,
        )  # fmt: skip
    except QuiverlogError:
        return False
    return True


async def _decided(client: aio.AsyncClient, name: str) -> bool:
    await client.create_topic(name, SCHEMA, replication_factor=1, if_not_exists=True)
    return True


async def _all_in_sync(brokers: Brokers) -> bool:
    metadata = await look_at_metadata(brokers)
    if metadata is None or len(metadata.brokers) != len(NODE_IDS):
        return False
    return len(metadata.topics[HOT.name].partitions[0].in_sync_replicas) == len(NODE_IDS)


async def _kill_leader(brokers: Brokers, load: _Load, leader: int) -> float:
    await brokers.kill(leader)
    begin_s = time.monotonic()
    sent = len(load.history.sends)

    async def has_acknowledged() -> bool:
        return any(send.outcome is Outcome.OK for send in load.history.sends[sent:])

    await _until(has_acknowledged)
    return min(
        send.returned_s for send in load.history.sends[sent:] if send.outcome is Outcome.OK
    ) - begin_s  # fmt: skip


async def _until(condition: Callable[[], Coroutine[Any, Any, bool]]) -> None:
    deadline_s = time.monotonic() + BOUND_S
    while not await condition():
        assert time.monotonic() < deadline_s, f"not within {BOUND_S:g} s"
        await asyncio.sleep(POLL_S)


class _Load:
    """One producer that sends all the time."""

    def __init__(self, client: aio.AsyncClient) -> None:
        self.history = History(topics=(HOT,))
        self._client = client
        self._is_on = True
        self._waiting: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Until `stop`; then until each send has an outcome."""
        async with self._client.producer(HOT.name) as producer:
            number = 0
            while self._is_on:
                send = Send((HOT.name, 0), 0, number, ROWS_PER_SEND, time.monotonic())
                self.history.sends.append(send)
                values = [value(0, number + index) for index in range(ROWS_PER_SEND)]
                number += ROWS_PER_SEND
                data = pa.record_batch([pa.array(values, pa.int64())], schema=SCHEMA)
                task = asyncio.create_task(self._outcome(send, await producer.send(data)))
                self._waiting.add(task)
                task.add_done_callback(self._waiting.discard)
                await asyncio.sleep(PACE_S)
                while len(self._waiting) >= SENDS_UNANSWERED_MAX:
                    await asyncio.wait(self._waiting, return_when=asyncio.FIRST_COMPLETED)

    async def stop(self) -> None:
        """No more sends."""
        self._is_on = False

    async def _outcome(self, send: Send, future: aio.AsyncSendFuture) -> None:
        try:
            produced = await future.result()
        except QuiverlogError as error:
            self.history.errors.append(f"error: the producer: {error}")
            return
        send.returned_s = time.monotonic()
        (run,) = produced
        send.stored = (Stored(run.base_offset, send.number, run.rows),)
        send.outcome = Outcome.OK
