"""Brokers with several topics, as a consumer meets them, in virtual time and without faults.

Owns the logs and the requests that were sent. Which node leads a partition is its number modulo the
nodes; a fetch waits for rows as a broker's does.
"""

from __future__ import annotations

from random import Random

from quiverlog.addresses import Address
from quiverlog.batch.header import stamp
from quiverlog.batch.schema import serialize_schema
from quiverlog.client.base.commands import Call, Reply
from quiverlog.client.cluster.answers import check_answer
from quiverlog.client.cluster.routing import Cluster, Settings
from quiverlog.errors import ConnectionFailed, QuiverlogError, UnknownTopic, UnknownTopicId
from quiverlog.types import EARLIEST
from quiverlog.wire import messages as m

from .client_driver import ClientDriver
from .node import SCHEMA, batch_of

__all__ = ["TopicsWorld"]

NODES = (1, 2)
STEP_S = 0.1


class TopicsWorld(ClientDriver):
    """`topics`: name -> number of partitions."""

    def __init__(self, topics: dict[str, int], seed: int = 0, produce: float = 0.0) -> None:
        self.rng = Random(seed)
        self.now_s = 0.0
        self.chance = produce
        self.partitions = dict(topics)
        self.ids = {name: bytes([number]) * 16 for number, name in enumerate(topics, 1)}
        # Batches of each partition: first value, which is the offset, and count.
        self.logs: dict[tuple[bytes, int], list[tuple[int, int]]] = {
            (self.ids[name], p): [] for name, count in topics.items() for p in range(count)
        }
        self.fetches: list[tuple[int, m.FetchRequest]] = []
        self.addresses = {node: Address(f"node-{node}", node) for node in NODES}
        self.cluster = Cluster(
            [*self.addresses.values()],
            Settings(),
            clock=lambda: self.now_s,
            jitter=self.rng.random,
        )

    def step(self) -> None:
        self.now_s += STEP_S
        for key in self.logs:
            if self.rng.random() < self.chance:
                self.produce(key, self.rng.randint(1, 3))

    def produce(self, key: tuple[bytes, int], count: int) -> None:
        self.logs[key].append((self.end(key), count))

    def end(self, key: tuple[bytes, int]) -> int:
        return sum(count for _, count in self.logs[key])

    def delete(self, name: str) -> None:
        """The topic is gone."""
        topic_id = self.ids.pop(name)
        for key in [key for key in self.logs if key[0] == topic_id]:
            del self.logs[key]

    def is_up(self, port: int) -> bool:
        return True

    def answer(self, call: Call, sent_s: float) -> Reply | QuiverlogError | None:
        request, body = call.request, b""
        response: m.Response
        if isinstance(request, m.MetadataRequest):
            response = self._metadata(request)
        elif isinstance(request, m.TopicSchemasRequest):
            versions = [m.SchemaVersion(1, 0, serialize_schema(SCHEMA))]
            response = m.TopicSchemasResponse(schemas=versions)
        elif isinstance(request, m.ListOffsetsRequest):
            response = m.ListOffsetsResponse(
                partitions=[
                    m.ListOffsetsPartitionResult(
                        one.topic_id,
                        one.partition,
                        offset=0 if one.at == EARLIEST else self.end((one.topic_id, one.partition)),
                    )
                    for one in request.partitions
                ]
            )
        elif isinstance(request, m.FetchRequest):
            found = self._fetch(call, request, sent_s)
            if found is None:
                return None
            response, body = found
        else:
            return ConnectionFailed(f"{type(request).__name__} is not answered here.")
        response.correlation_id = 1
        try:
            check_answer(request, response, len(body))
        except QuiverlogError as error:
            return error
        return Reply(response, memoryview(body))

    def _metadata(self, request: m.MetadataRequest) -> m.MetadataResponse:
        wanted = self.ids if request.topics is None else request.topics
        return m.MetadataResponse(
            cluster_id="c",
            controller_id=1,
            metadata_version=1,
            brokers=[m.BrokerEndpoint(n, a.host, a.port, "") for n, a in self.addresses.items()],
            topics=[
                m.TopicMetadata(
                    name=name,
                    topic_id=self.ids[name],
                    schema_id=1,
                    batch_bytes_max=1024,
                    partitions=[
                        m.PartitionMetadata(p, 0, self.leader(p), 0, [*NODES], [*NODES])
                        for p in range(self.partitions[name])
                    ],
                )
                if name in self.ids
                else m.TopicMetadata(name=name, error_code=UnknownTopic.code)
                for name in wanted
            ],
        )

    def leader(self, partition: int) -> int:
        return NODES[partition % len(NODES)]

    def _fetch(
        self, call: Call, request: m.FetchRequest, sent_s: float
    ) -> tuple[m.FetchResponse, bytes] | None:
        if (call.address.port, request) not in self.fetches:
            self.fetches.append((call.address.port, request))
        response, body = m.FetchResponse(partitions=[]), b""
        is_due = self.now_s - sent_s >= request.max_wait_ms / 1000
        for entry in request.partitions:
            assert self.leader(entry.partition) == call.address.port, "asked of its leader"
            key = entry.topic_id, entry.partition
            result = m.FetchPartitionResult(*key, leader_epoch=0, log_start_offset=0)
            response.partitions.append(result)
            if key not in self.logs:
                result.error_code, is_due = UnknownTopicId.code, True
                continue
            result.high_watermark = result.last_stable_offset = self.end(key)
            data = self._rows(key, entry.offset, request.bytes_max - len(body))
            result.batch_bytes = len(data)
            body += data
        return (response, body) if is_due or body else None

    def _rows(self, key: tuple[bytes, int], offset: int, bytes_max: int) -> bytes:
        body = b""
        for base, count in self.logs[key]:
            if base + count > offset:
                data = batch_of(range(base, base + count))
                stamp(data, 0, base, 0)
                if len(body) + len(data) > bytes_max:
                    break
                body += data
        return body
