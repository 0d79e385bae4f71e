"""A program that ends the epochs of its own producer, and tries at once whether they are over.

Owns the promise of INIT_PRODUCER_ID: when the next epoch is answered, no leader takes a row of the
one before, over a connection that was open all the time.

Not here: how brokers keep it.
"""

from __future__ import annotations

from quiverlog.client.base.results import Address
from quiverlog.client.producer.async_producer import AsyncProducer
from quiverlog.client.producer.runner import CHANNEL, new_identity
from quiverlog.client.producer.types import Identity
from quiverlog.errors import QuiverlogError
from quiverlog.wire import messages as m
from tests.sim.checker import Key, Violation
from tests.sim.rows import encode_rows

from .cluster import Cluster
from .programs import ProducingProgram
from .promises import ClusterChecker

__all__ = ["Successor"]

_NUMBERS = 300
"""Theirs in the rows are those of no other program."""
_ANSWER_S = 3.0


class Successor(ProducingProgram):
    def __init__(self, cluster: Cluster, checker: ClusterChecker, number: int) -> None:
        super().__init__(cluster, checker, _NUMBERS + number)

    async def _use(self, producer: AsyncProducer, topic_id: bytes) -> None:
        topic, identity = producer._core.topic, producer._core.identity
        await producer.close()  # Its id is all that is wanted of it.
        key = (topic_id, self.rng.randrange(len(topic.partitions)))
        leader = topic.partitions[key[1]].leader
        if key not in self.checker.partitions or leader < 0:
            await self.nap(0.05)
            return
        client = self.client()
        try:
            address = client.cluster.address_of(leader)
            for _ in range(self.rng.randrange(1, 8)):
                if self.stopped or await self._write(address, key, identity, 0):
                    break
                newer = await client.run(new_identity(client.cluster, identity))
                if newer.producer_id != identity.producer_id:
                    break
                self.world.events["epoch ended"] += 1
                if not await self._write(address, key, identity, 1):
                    raise Violation(f"a row of {identity} was taken after {newer} was answered")
                identity = newer
                await self.nap(self.rng.random() * 0.05)
        except QuiverlogError as error:
            self.checker.error(error.code)
            await self.nap(0.05)

    async def _write(self, address: Address, key: Key, identity: Identity, sequence: int) -> int:
        """The error of one row, answered over the connection that is there."""
        value = (self.number << 32) + self._next_value
        self._next_value += 1
        self.checker.sent(key, [value])
        data = encode_rows(
            [value], self.rng, schema_id=1, at_us=self.world.wall_us, producer=identity,
            sequence=sequence,
        )  # fmt: skip
        entry = m.ProducePartition(*key, batch_bytes=len(data))
        request = m.ProduceRequest(partitions=[entry], timeout_ms=1_000)
        timeout_s = _ANSWER_S * self._scale
        connection = await self.client().driver.connection(address, CHANNEL, timeout_s)
        reply = await connection.request(request, [data], timeout_s)
        response = reply.response
        assert isinstance(response, m.ProduceResponse)
        return response.error_code or response.partitions[0].error_code
