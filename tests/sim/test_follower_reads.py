"""The shipped consumer reads a real follower while brokers die, and the link between them is cut.

Two nodes as in test_copies: the one leads, the other copies. The consumer reads the copy, or the
leader whenever that fails. What it gives out is in order, without a gap and without a repetition.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar

import pytest

from quiverlog.client.async_client import AsyncClient
from quiverlog.core.controller.records import BrokerRecord, Record
from quiverlog.errors import QuiverlogError

from .host import Host
from .loop import SimLoop
from .shipped import clients_world, live_in
from .test_copies import COPY, CREATED, LEADER, RECOVER_US, Copying

RACKS = {LEADER: "a", COPY: "b"}


class Reading(Copying):
    """`rows_read`: what the consumer gave out; `failure`: why it ended."""

    created: ClassVar[list[Record]] = CREATED

    def __init__(self, seed: int) -> None:
        self.rows_read: list[int] = []
        self.failure: BaseException | None = None
        self.stopped = False
        super().__init__(seed)
        self.loop = SimLoop(self.world, "reader")
        self.loop.enter(self._begin)

    def _started(self, host: Host) -> None:
        super()._started(host)
        # Both name both brokers, with their racks, as registrations do.
        assert host.node is not None
        known = host.node.broker.metadata.image.brokers
        for number, rack in RACKS.items():
            name = self.world.hosts[number].name
            record = known.get(number)
            if record is None:
                listeners = (("default", name, 9292),)
                record = BrokerRecord(number, bytes(16), name, 9292, rack, listeners, 1)
                self._decide(host, [record])

    def _begin(self) -> None:
        self.task = self.loop.create_task(self._guarded())

    async def _guarded(self) -> None:
        try:
            await self._read()
        except BaseException as error:
            self.failure = error

    async def _read(self) -> None:
        client = AsyncClient("node-0:9292,node-1:9292", connect_timeout=2.0, request_timeout=5.0)
        live_in(client, self.loop.time, self.rng.random)
        position = 0
        while not self.stopped:
            consumer = client.consumer(
                "t", start={0: position}, follow=True, fetch_from="follower", client_rack="b"
            )
            try:
                while not self.stopped:
                    batch = await consumer.poll(0.2)
                    if batch is not None:
                        assert batch.base_offset == position, "skipped or repeated"
                        self.rows_read += batch.data.column(0).to_pylist()
                        position = batch.next_offset
            except QuiverlogError as error:
                if not error.retriable:
                    raise
                await consumer.close()
                await asyncio.sleep(0.1)

    def served_by_copy(self) -> int:
        """Rows that the copy has sent to readers, in this life."""
        node = self.world.hosts[COPY].node
        if node is None or "t" not in node.broker.metrics.topics:
            return 0
        return node.broker.metrics.topics["t"].rows_out

    def has_all(self) -> bool:
        leader = self.replica(LEADER)
        return leader is not None and len(self.rows_read) >= leader.state.high_watermark > 0


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 6))]
)
def test_a_reader_of_a_copy_gets_every_row_once(seed: int) -> None:
    reading = Reading(seed)
    with clients_world(reading.world):
        _read_through_faults(reading)


def _read_through_faults(reading: Reading) -> None:
    world = reading.world
    world.run(RECOVER_US, until=reading.becomes_equal)
    world.run(RECOVER_US, until=reading.served_by_copy)
    assert reading.served_by_copy() > 0, "the copy is read"
    for _ in range(6):
        reading.break_something()
        world.run(reading.rng.randrange(1, 2_000_000))
        reading.check()
        assert reading.failure is None, reading.failure
    world.network.loss = 0.0
    world.run(5_000_000)
    world.run(RECOVER_US, until=reading.becomes_equal)
    world.run(RECOVER_US, until=reading.has_all)
    assert reading.failure is None, reading.failure
    assert reading.has_all(), world.last_words(5)
    # What is written is numbered; produces that got lost leave gaps, rows that were stored do not.
    assert reading.rows_read == sorted(set(reading.rows_read))
