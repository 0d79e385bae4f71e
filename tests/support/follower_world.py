"""A model of brokers with copies, as a reader meets them: the client's commands are answered here.

Owns the brokers (which are up, which lie), the copies of each partition, and the clock, which moves
while the client waits. What happens in the meantime is drawn.
"""

from __future__ import annotations

from random import Random
from typing import Any

from quiverlog.addresses import Address
from quiverlog.batch.header import stamp
from quiverlog.batch.schema import serialize_schema
from quiverlog.client.base.commands import Call, Reply
from quiverlog.client.cluster.answers import check_answer
from quiverlog.client.cluster.routing import Cluster, Settings
from quiverlog.errors import (
    ConnectionFailed,
    CorruptLog,
    LogTruncated,
    NotLeader,
    OffsetNotAvailable,
    OffsetOutOfRange,
    QuiverlogError,
    StorageFault,
    UnknownTopicId,
)
from quiverlog.types import EARLIEST
from quiverlog.wire import messages as m

from .client_driver import ClientDriver
from .follower_copies import Copy, Partition, View, read
from .node import SCHEMA, batch_of
from .replication import ModelLog

__all__ = ["LIES", "TOPIC", "World"]

TOPIC = bytes(range(16))
NODES = (1, 2, 3)
RACKS = {1: "a", 2: "b", 3: "b"}
PARTITIONS = 2
ROWS_MAX = 5
STEP_S = 0.1
LIES = ("silent", "cut", "empty", "high", "error", "bit", "garbage", "gap", "other", "behind")


class World(ClientDriver):
    """Brokers with copies, and readers that choose among them.

    Args:
        liar: a broker that answers readers of its copies with `lies`.
        unclean: leaders may be elected that have not all rows.
    """

    def __init__(
        self,
        seed: int,
        *,
        liar: int | None = None,
        lies: tuple[str, ...] = LIES,
        unclean: bool = False,
    ) -> None:
        self.rng = Random(seed)
        self.now_s = 0.0
        self.faults = True
        self.calm = False
        """No producer writes."""
        self.liar, self.lies, self.unclean = liar, lies, unclean
        self.up = set(NODES)
        self.batches: dict[int, bytes] = {}
        self.sizes: dict[int, int] = {}
        first = View(1, 0, NODES)
        self.partitions = [
            Partition(first, {n: Copy(ModelLog(), first, True) for n in NODES})
            for _ in range(PARTITIONS)
        ]
        self.addresses = {n: Address(f"node-{n}", n) for n in NODES}
        self.cluster = Cluster(
            list(self.addresses.values()),
            Settings(),
            clock=lambda: self.now_s,
            jitter=self.rng.random,
        )
        self.asked: list[tuple[int, bool]] = []
        """(node, as a follower) of each entry of a FETCH that was answered with rows."""

    # --- what happens ----------------------------------------------------------------------------
    def step(self) -> None:
        """A moment passes."""
        self.now_s += STEP_S
        for number, partition in enumerate(self.partitions):
            for chance, event in (
                (0.0 if self.calm else 0.3, self._produce), (0.9, self._copy), (0.9, self._copy),
                (0.3, self._learn), (0.2, self._expand),
            ):  # fmt: skip
                if self.rng.random() < chance:
                    event(number, partition)
            for chance, event in ((0.03, self._shrink), (0.01, self._elect)):
                if self.faults and self.rng.random() < chance:
                    event(number, partition)
        if self.faults and self.rng.random() < 0.02:
            node = self.rng.choice(NODES)
            (self.up.discard if node in self.up else self.up.add)(node)

    def heal(self) -> None:
        """From now on all brokers are up, and only the liar goes on."""
        self.calm, self.faults = True, False
        self.up = set(NODES)

    def produce(self, number: int) -> None:
        """A row or some more, if there is a leader."""
        self._produce(number, self.partitions[number])

    def _produce(self, number: int, partition: Partition) -> None:
        # A leader that was deposed and has not received it takes rows, too.
        leaders = [n for n in self.up if partition.copies[n].view.leader == n]
        if leaders:
            node = self.rng.choice(leaders)
            copy = partition.copies[node]
            batch = len(self.sizes)
            count = self.sizes[batch] = self.rng.randint(1, ROWS_MAX)
            values = range(batch * 10, batch * 10 + count)
            self.batches[batch] = bytes(batch_of(values))
            copy.log.append((copy.view.leader_epoch, value) for value in values)
            self._advance(node, partition)

    def _advance(self, node: int, partition: Partition) -> None:
        copy = partition.copies[node]
        if copy.view != partition.truth or partition.truth.leader != node:
            return  # No follower copies from it any more.
        ends = [partition.acked.get(n, 0) for n in copy.view.in_sync if n != node]
        log = copy.log
        log.high_watermark = max(log.high_watermark, min([log.log_end_offset, *ends]))
        shown = [value for _, value in log.rows[: log.high_watermark]]
        known = partition.committed
        if not self.unclean:
            both = min(len(shown), len(known))
            assert shown[:both] == known[:both], "the model loses rows"
        if len(shown) > len(known) or self.unclean:
            partition.committed = shown

    def _copy(self, number: int, partition: Partition) -> None:
        node = self.rng.choice(NODES)
        copy = partition.copies[node]
        leader = copy.view.leader
        if leader in (node, -1) or not {node, leader} <= self.up or copy.stuck_at is not None:
            return
        source = partition.copies[leader]
        if source.view.leader != leader or source.view.leader_epoch != copy.view.leader_epoch:
            return
        log, rows = copy.log, source.log.rows
        common = 0
        for mine, theirs in zip(log.rows, rows, strict=False):
            if mine != theirs:
                break
            common += 1
        if common < log.log_end_offset or not copy.agreed:
            log.cut(common)  # The list of epochs is cut even where no row is.
            log.high_watermark = min(log.high_watermark, common)
        copy.agreed = True
        sent = source.log.high_watermark
        if partition.truth.leader == leader:
            partition.acked[node] = log.log_end_offset
        end = common
        for _ in range(self.rng.randint(0, 3)):
            if end < len(rows):
                end += self.sizes[rows[end][1] // 10]
        log.append(rows[log.log_end_offset : end])
        log.high_watermark = max(log.high_watermark, min(sent, log.log_end_offset))
        self._advance(leader, partition)

    def _learn(self, number: int, partition: Partition) -> None:
        node = self.rng.choice(NODES)
        copy, truth = partition.copies[node], partition.truth
        if node in self.up and copy.view != truth:
            if copy.view.leader_epoch != truth.leader_epoch:
                copy.agreed = False
                if truth.leader == node:
                    copy.log.epochs.assign(truth.leader_epoch, copy.log.log_end_offset)
            copy.view = truth
            self._advance(node, partition)

    def _shrink(self, number: int, partition: Partition) -> None:
        truth = partition.truth
        others = [n for n in truth.in_sync if n != truth.leader]
        if others and truth.leader >= 0:
            gone = self.rng.choice(others)
            partition.truth = truth._replace(in_sync=tuple(n for n in truth.in_sync if n != gone))

    def _expand(self, number: int, partition: Partition) -> None:
        truth = partition.truth
        for node in NODES:
            copy, leader = partition.copies[node], partition.copies[truth.leader]
            caught_up = copy.log.log_end_offset >= leader.log.high_watermark
            agrees = copy.agreed and copy.view.leader_epoch == truth.leader_epoch
            if node not in truth.in_sync and agrees and caught_up and leader.view == truth:
                partition.acked[node] = copy.log.log_end_offset
                in_sync = tuple(sorted((*truth.in_sync, node)))
                # The leader counts it from the moment of the decision on.
                partition.truth = leader.view = truth._replace(in_sync=in_sync)
                return

    def _elect(self, number: int, partition: Partition) -> None:
        truth = partition.truth
        may = [n for n in truth.in_sync if n != truth.leader]
        in_sync = truth.in_sync
        if self.unclean and self.rng.random() < 0.5:
            may = [n for n in NODES if n != truth.leader]
            in_sync = ()
        if may:
            leader = self.rng.choice(may)
            partition.truth = View(leader, truth.leader_epoch + 1, in_sync or (leader,))
            partition.acked.clear()

    @property
    def is_settled(self) -> bool:
        """The leaders have received that they lead: until then a deposed one may be `committed`."""
        return all(one.copies[one.truth.leader].view == one.truth for one in self.partitions)

    def is_up(self, port: int) -> bool:
        """Nodes are known by their ports."""
        return port in self.up

    # --- answers ---------------------------------------------------------------------------------
    def answer(self, call: Call, sent_s: float) -> Reply | QuiverlogError | None:
        """None: not yet."""
        node = call.address.port
        if node not in self.up:
            return ConnectionFailed(f"node {node} is down.")
        request = call.request
        body = b""
        response: m.Response
        if isinstance(request, m.MetadataRequest):
            response = self._metadata(node)
        elif isinstance(request, m.TopicSchemasRequest):
            response = m.TopicSchemasResponse(
                schemas=[m.SchemaVersion(1, 0, serialize_schema(SCHEMA))]
            )
        elif isinstance(request, m.ListOffsetsRequest):
            response = m.ListOffsetsResponse(
                partitions=[self._offset(node, entry) for entry in request.partitions]
            )
        else:
            assert isinstance(request, m.FetchRequest)
            found = self._fetch(node, request, sent_s)
            if not isinstance(found, tuple):
                return found
            response, body = found
        response.correlation_id = 1
        try:
            check_answer(request, response, len(body))
        except QuiverlogError as error:
            return error
        return Reply(response, memoryview(body))

    def _metadata(self, node: int) -> m.MetadataResponse:
        views = [partition.copies[node].view for partition in self.partitions]
        return m.MetadataResponse(
            cluster_id="c",
            controller_id=1,
            metadata_version=1,
            brokers=[
                m.BrokerEndpoint(n, address.host, address.port, RACKS[n])
                for n, address in self.addresses.items()
            ],
            topics=[
                m.TopicMetadata(
                    name="t", topic_id=TOPIC, schema_id=1, batch_bytes_max=1024,
                    partitions=[
                        m.PartitionMetadata(
                            p, 0, view.leader, view.leader_epoch, list(NODES), list(view.in_sync)
                        )
                        for p, view in enumerate(views)
                    ],
                )
            ],
        )  # fmt: skip

    def _offset(self, node: int, entry: m.ListOffsetsPartition) -> m.ListOffsetsPartitionResult:
        result = m.ListOffsetsPartitionResult(entry.topic_id, entry.partition)
        copy = self.partitions[entry.partition].copies[node]
        if copy.view.leader != node:
            result.error_code = NotLeader.code
        else:
            result.offset = 0 if entry.at == EARLIEST else copy.log.high_watermark
        return result

    def _fetch(
        self, node: int, request: m.FetchRequest, sent_s: float
    ) -> tuple[m.FetchResponse, bytes] | QuiverlogError | None:
        follower = any(entry.from_follower for entry in request.partitions)
        if follower and node == self.liar:
            found = self._lie(node, request, self.rng.choice(self.lies))
            if found != "behind":
                return found
        late = self.now_s - sent_s >= request.max_wait_ms / 1000
        response, body = m.FetchResponse(partitions=[]), b""
        answered = late
        for entry in request.partitions:
            copy = self.partitions[entry.partition].copies[node]
            result = m.FetchPartitionResult(entry.topic_id, entry.partition)
            try:
                rows = read(copy, node, entry, result)
            except QuiverlogError as error:
                result.error_code, rows = error.code, []
                answered = answered or not isinstance(error, OffsetNotAvailable)
            data = self._encode(copy.log, entry.offset, rows)
            result.batch_bytes = len(data)
            body += data
            answered = answered or bool(data)
            if data:
                self.asked.append((node, entry.from_follower))
            response.partitions.append(result)
        return (response, body) if answered else None

    def _encode(self, log: ModelLog, offset: int, rows: list[tuple[int, int]]) -> bytes:
        body = b""
        at = offset
        while rows and at < offset + len(rows):
            epoch, value = log.rows[at]
            batch = value // 10
            base = at - value % 10
            data = bytearray(self.batches[batch])
            stamp(data, 0, base, epoch)
            body += data
            at = base + self.sizes[batch]
        return body

    # --- lies ------------------------------------------------------------------------------------
    def _lie(self, node: int, request: m.FetchRequest, kind: str) -> Any:
        if kind == "silent":
            return None
        if kind == "cut":
            return ConnectionFailed("in the middle of an answer.")
        if kind == "behind":
            return kind
        response, body = m.FetchResponse(partitions=[]), b""
        for entry in request.partitions:
            copy = self.partitions[entry.partition].copies[node]
            log = copy.log
            result = m.FetchPartitionResult(
                entry.topic_id, entry.partition, leader_epoch=max(0, entry.leader_epoch),
                log_start_offset=0, high_watermark=entry.offset, last_stable_offset=entry.offset,
            )  # fmt: skip
            data = b""
            if kind == "high":
                result.high_watermark = result.last_stable_offset = 10**9
            elif kind == "error":
                self._draw_error(entry, result)
            elif kind == "other":
                result.partition += 7
            elif kind in ("bit", "garbage", "gap"):
                at = entry.offset + (kind == "gap")
                rows = log.rows[at : log.high_watermark]
                data = self._encode(log, at, rows)
                result.high_watermark = result.last_stable_offset = max(
                    entry.offset, at + len(rows)
                )
                if data and kind == "bit":
                    data = data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]
                elif data and kind == "garbage":
                    data = self.rng.randbytes(len(data))
            result.batch_bytes = len(data)
            body += data
            response.partitions.append(result)
        return response, body

    def _draw_error(self, entry: m.FetchPartition, result: m.FetchPartitionResult) -> None:
        kind: type[QuiverlogError] = self.rng.choice(
            (OffsetOutOfRange, LogTruncated, CorruptLog, UnknownTopicId, StorageFault, NotLeader,
             QuiverlogError)
        )  # fmt: skip
        result.error_code = kind.code
        if kind is OffsetOutOfRange:
            result.log_start_offset = result.high_watermark = entry.offset + 9
        elif kind is LogTruncated and entry.offset:
            result.diverging_epoch, result.diverging_end_offset = 0, entry.offset - 1
        elif kind is CorruptLog:
            result.damage_start_offset = entry.offset
            result.damage_end_offset = entry.offset + 9
