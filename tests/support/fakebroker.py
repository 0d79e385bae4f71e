"""A small broker inside the test's process that speaks the wire and does as it is told.

Owns a thread per connection, topics in lists, and a script of faults. It checks sequences as the
real one does, so that "stored once" can be tested at will. It must not grow into a second broker:
what is not needed to test a client is not here.

    with FakeBroker() as broker:
        broker.fault(m.ProduceRequest, "drop_reply")     # the next one is stored, never answered
        client = quiverlog.connect(broker.bootstrap)
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from quiverlog import errors as e
from quiverlog.batch.header import BatchHeader, peek, stamp
from quiverlog.batch.schema import deserialize_schema, normalize_schema, serialize_schema
from quiverlog.types import EARLIEST, LATEST, Durability
from quiverlog.wire import frames, registry
from quiverlog.wire import messages as m

__all__ = ["FakeBroker", "FakeTopic"]

Fault = str | e.QuiverlogError | Callable[[Any], None]
"""`drop_reply`: done, but the connection breaks before the answer. `drop`: breaks before it is
done. `hang`: done, and never answered. An error: answered with it (per partition where there are
any). A function: called with the request, which is then served."""


def _as_stored(schema: bytes) -> bytes:
    return serialize_schema(normalize_schema(deserialize_schema(schema)))


@dataclass
class FakePartition:
    """One log: stored batches, their offsets, and what producers sent last."""

    batches: list[bytes] = field(default_factory=list)
    start: int = 0
    end: int = 0
    epoch: int = 1
    sequences: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)


@dataclass
class FakeTopic:
    name: str
    topic_id: bytes
    schemas: list[bytes]
    key_columns: list[str]
    partitions: list[FakePartition]
    configs: dict[str, str]
    batch_bytes_max: int = 8 << 20


class FakeBroker:
    """See the module's docstring. `requests` lists what arrived, in order."""

    def __init__(self, *, node_id: int = 0, peers: dict[int, FakeBroker] | None = None) -> None:
        self.topics: dict[str, FakeTopic] = {}
        self.requests: list[m.Request] = []
        self.connections = 0
        self.node_id = node_id
        self.endpoints: list[m.BrokerEndpoint] = []
        self.leader_of: Callable[[str, int], int] = lambda _name, _partition: self.node_id
        self._faults: dict[type[m.Request], deque[Fault]] = {}
        self._changed = threading.Condition()
        self._next_producer_id = 100
        self._sockets: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self.port = self._listener.getsockname()[1]
        self._threads[0].start()

    def __enter__(self) -> FakeBroker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    # --- the test's side ------------------------------------------------------------------------
    def fault(self, request: type[m.Request], *faults: Fault) -> None:
        """The next requests of this type meet these faults, one each."""
        with self._changed:
            self._faults.setdefault(request, deque()).extend(faults)

    def seen(self, request: type[m.Request]) -> list[Any]:
        """The requests of a type that have arrived."""
        return [r for r in list(self.requests) if type(r) is request]

    def drop_connections(self) -> None:
        """Close every connection, as a broker does with idle ones."""
        with self._changed:
            sockets = list(self._sockets)
        for sock in sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop_connections()
        with self._changed:
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(5)
            assert not thread.is_alive(), "a thread of the fake broker hangs"

    # --- connections ----------------------------------------------------------------------------
    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._changed:
                self._sockets.add(sock)
            thread = threading.Thread(target=self._serve, args=(sock,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        receiver = frames.FrameReceiver(own_bodies=True)
        with sock, contextlib.suppress(OSError, _Broken):
            while count := sock.recv_into(receiver.get_buffer()):
                for frame in receiver.buffer_updated(count):
                    self._answer(sock, frame)
        with self._changed:
            self._sockets.discard(sock)

    def _answer(self, sock: socket.socket, frame: frames.Frame) -> None:
        request = frames.decode_request(frame.header)
        with self._changed:
            self.requests.append(request)
            faults = self._faults.get(type(request))
            fault = faults.popleft() if faults else None
        if fault == "drop":
            raise _Broken
        if isinstance(fault, e.QuiverlogError):
            response, body = _refusal(request, fault), b""
        else:
            if callable(fault):
                fault(request)
            response, body = getattr(self, f"_on_{request.API.name.lower()}")(request, frame.body)
        if fault == "drop_reply":
            raise _Broken
        if fault == "hang":
            return
        head = frames.encode(response, request.correlation_id, len(body))
        sock.sendall(head + body)

    # --- requests -------------------------------------------------------------------------------
    def _on_hello(self, request: m.HelloRequest, _: memoryview) -> tuple[m.Response, bytes]:
        return m.HelloResponse(
            cluster_id="fake", node_id=self.node_id, apis=registry.api_ranges()
        ), b""

    def _on_metadata(self, request: m.MetadataRequest, _: memoryview) -> tuple[m.Response, bytes]:
        names = list(self.topics) if request.topics is None else request.topics
        return m.MetadataResponse(
            cluster_id="fake",
            controller_id=self.node_id,
            metadata_version=len(self.topics),
            brokers=self.endpoints or [m.BrokerEndpoint(self.node_id, "127.0.0.1", self.port)],
            topics=[self._metadata(name) for name in names],
        ), b""

    def _metadata(self, name: str) -> m.TopicMetadata:
        topic = self.topics.get(name)
        if topic is None:
            return m.TopicMetadata(name=name, error_code=e.UnknownTopic.code)
        return m.TopicMetadata(
            name=name,
            topic_id=topic.topic_id,
            schema_id=len(topic.schemas),
            key_columns=topic.key_columns,
            durability=Durability.FLUSHED,
            batch_bytes_max=topic.batch_bytes_max,
            partitions=[
                m.PartitionMetadata(i, 0, self.leader_of(name, i), p.epoch, [0], [0])
                for i, p in enumerate(topic.partitions)
            ],
        )

    def _on_create_topics(
        self, request: m.CreateTopicsRequest, _: memoryview
    ) -> tuple[m.Response, bytes]:
        results = []
        for new in request.topics:
            if new.name in self.topics:
                results.append(m.TopicResult(new.name, b"", e.TopicExists.code, "It exists."))
                continue
            topic = FakeTopic(
                new.name,
                os.urandom(16),
                [_as_stored(new.schema)],
                new.key_columns,
                [FakePartition() for _ in range(max(1, new.partitions))],
                new.configs,
            )
            if not request.validate_only:
                self.topics[new.name] = topic
            results.append(m.TopicResult(new.name, topic.topic_id))
        return m.CreateTopicsResponse(topics=results), b""

    def _on_delete_topics(
        self, request: m.DeleteTopicsRequest, _: memoryview
    ) -> tuple[m.Response, bytes]:
        results = []
        for name in request.names:
            gone = self.topics.pop(name, None)
            code = 0 if gone else e.UnknownTopic.code
            results.append(m.TopicResult(name, b"", code))
        return m.DeleteTopicsResponse(topics=results), b""

    def _on_alter_topic(
        self, request: m.AlterTopicRequest, _: memoryview
    ) -> tuple[m.Response, bytes]:
        topic = self.topics[request.name]
        if request.schema:
            topic.schemas.append(request.schema)
        while len(topic.partitions) < request.partitions:
            topic.partitions.append(FakePartition())
        topic.configs.update(request.set_configs)
        return m.AlterTopicResponse(schema_id=len(topic.schemas)), b""

    def _on_describe_topics(
        self, request: m.DescribeTopicsRequest, _: memoryview
    ) -> tuple[m.Response, bytes]:
        names = list(self.topics) if request.names is None else request.names
        return m.DescribeTopicsResponse(topics=[self._describe(name) for name in names]), b""

    def _describe(self, name: str) -> m.TopicDescription:
        topic = self.topics.get(name)
        if topic is None:
            return m.TopicDescription(name=name, error_code=e.UnknownTopic.code)
        return m.TopicDescription(
            name=name,
            topic_id=topic.topic_id,
            key_columns=topic.key_columns,
            configs=[m.ConfigEntry(k, v, "topic") for k, v in topic.configs.items()],
            schemas=[m.SchemaVersion(i + 1, 0, s) for i, s in enumerate(topic.schemas)],
            partitions=[
                m.PartitionDescription(i, 0, p.epoch, [0], [0], p.start, p.end, p.end, p.end)
                for i, p in enumerate(topic.partitions)
            ],
        )

    def _on_topic_schemas(
        self, request: m.TopicSchemasRequest, _: memoryview
    ) -> tuple[m.Response, bytes]:
        topic = self._by_id(request.topic_id)
        if topic is None:
            return m.TopicSchemasResponse(error_code=e.UnknownTopicId.code), b""
        return m.TopicSchemasResponse(
            schemas=[m.SchemaVersion(i + 1, 0, s) for i, s in enumerate(topic.schemas)]
        ), b""

    def _on_init_producer_id(
        self, request: m.InitProducerIdRequest, _: memoryview
    ) -> tuple[m.Response, bytes]:
        with self._changed:
            self._next_producer_id += 1
            return m.InitProducerIdResponse(
                producer_id=self._next_producer_id, producer_epoch=0
            ), b""

    def _on_list_offsets(
        self, request: m.ListOffsetsRequest, _: memoryview
    ) -> tuple[m.Response, bytes]:
        results = []
        for asked in request.partitions:
            log = self._log(asked.topic_id, asked.partition)
            if log is None:
                code = e.UnknownTopicId.code
                results.append(m.ListOffsetsPartitionResult(asked.topic_id, asked.partition, code))
                continue
            offset = {LATEST: log.end, EARLIEST: log.start}.get(asked.at)
            if offset is None:
                headers = map(BatchHeader.unpack, log.batches)
                later = (h.base_offset for h in headers if h.timestamp_max_us >= asked.at)
                offset = next(later, -1)
            results.append(
                m.ListOffsetsPartitionResult(
                    asked.topic_id, asked.partition, 0, "", offset, -1, log.epoch
                )
            )
        return m.ListOffsetsResponse(metadata_version=len(self.topics), partitions=results), b""

    def _on_delete_records(
        self, request: m.DeleteRecordsRequest, _: memoryview
    ) -> tuple[m.Response, bytes]:
        results = []
        for asked in request.partitions:
            log = self._log(asked.topic_id, asked.partition)
            assert log is not None
            log.start = log.end if asked.before_offset < 0 else asked.before_offset
            results.append(
                m.DeleteRecordsPartitionResult(
                    asked.topic_id, asked.partition, log_start_offset=log.start
                )
            )
        return m.DeleteRecordsResponse(partitions=results), b""

    def _on_produce(self, request: m.ProduceRequest, body: memoryview) -> tuple[m.Response, bytes]:
        results = []
        at = 0
        for asked in request.partitions:
            batch = bytearray(body[at : at + asked.batch_bytes])
            at += asked.batch_bytes
            results.append(self._append(asked, batch))
        return m.ProduceResponse(partitions=results), b""

    def _append(self, asked: m.ProducePartition, batch: bytearray) -> m.ProducePartitionResult:
        log = self._log(asked.topic_id, asked.partition)
        result = m.ProducePartitionResult(asked.topic_id, asked.partition)
        if log is None:
            result.error_code = e.UnknownTopicId.code
            return result
        header = BatchHeader.unpack(batch)
        assert header.total_bytes == len(batch), "one batch per partition"
        with self._changed:
            known = log.sequences.setdefault(header.producer_id, [])
            result.durability = Durability.FLUSHED
            result.row_count = header.row_count
            if header.producer_id >= 0:
                for sequence, rows, offset in known[-5:]:
                    if (sequence, rows) == (header.base_sequence, header.row_count):
                        result.base_offset, result.duplicate = offset, True
                        return result
                expected = known[-1][0] + known[-1][1] if known else 0
                if header.base_sequence != expected:
                    result.error_code = e.OutOfOrderSequence.code
                    result.error_message = f"Expected {expected}, got {header.base_sequence}."
                    return result
                known.append((header.base_sequence, header.row_count, log.end))
            stamp(batch, 0, log.end, log.epoch)
            result.base_offset = log.end
            log.batches.append(bytes(batch))
            log.end += header.row_count
            self._changed.notify_all()
        return result

    def _on_fetch(self, request: m.FetchRequest, _: memoryview) -> tuple[m.Response, bytes]:
        with self._changed:
            self._changed.wait_for(
                lambda: self._has_rows(request), timeout=request.max_wait_ms / 1000
            )
            parts, results, left = [], [], request.bytes_max
            for asked in request.partitions:
                result, chunk = self._read(asked, left, bool(parts))
                left -= len(chunk)
                parts.append(chunk) if chunk else None
                results.append(result)
            return m.FetchResponse(partitions=results), b"".join(parts)

    def _has_rows(self, request: m.FetchRequest) -> bool:
        logs = [(p, self._log(p.topic_id, p.partition)) for p in request.partitions]
        return any(log is None or p.offset < log.end or p.offset > log.end for p, log in logs)

    def _read(
        self, asked: m.FetchPartition, left: int, any_before: bool
    ) -> tuple[m.FetchPartitionResult, bytes]:
        log = self._log(asked.topic_id, asked.partition)
        result = m.FetchPartitionResult(asked.topic_id, asked.partition)
        if log is None:
            result.error_code = e.UnknownTopicId.code
            return result, b""
        result.leader_epoch = log.epoch
        result.log_start_offset = log.start
        result.high_watermark = result.last_stable_offset = log.end
        if not log.start <= asked.offset <= log.end:
            result.error_code = e.OffsetOutOfRange.code
            result.error_message = f"Offset {asked.offset} is out of range."
            return result, b""
        chunk = b""
        for batch in log.batches:
            header = BatchHeader.unpack(batch)
            if header.next_offset <= asked.offset:
                continue
            if 0 <= asked.end_offset <= header.base_offset:
                break
            if (chunk or any_before) and len(chunk) + len(batch) > min(left, asked.bytes_max):
                break
            chunk += batch
        result.batch_bytes = len(chunk)
        return result, chunk

    def _log(self, topic_id: bytes, partition: int) -> FakePartition | None:
        topic = self._by_id(topic_id)
        if topic is None or not 0 <= partition < len(topic.partitions):
            return None
        return topic.partitions[partition]

    def _by_id(self, topic_id: bytes) -> FakeTopic | None:
        return next((t for t in self.topics.values() if t.topic_id == topic_id), None)


class _Broken(Exception):
    """The script wants the connection to break."""


def _refusal(request: m.Request, error: e.QuiverlogError) -> m.Response:
    response_type = registry.APIS[int(request.API)].response
    parts = getattr(request, "partitions", None)
    if not isinstance(parts, list):
        return response_type(error_code=error.code, error_message=error.message)
    result_type = getattr(m, type(parts[0]).__name__ + "Result")
    return response_type(  # type: ignore[call-arg]
        partitions=[result_type(p.topic_id, p.partition, error.code, error.message) for p in parts]
    )


assert peek  # re-exported for tests that look into stored batches
