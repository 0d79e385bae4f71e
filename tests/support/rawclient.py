"""A client as small as the wire allows: one blocking socket, requests one by one or pipelined.

Owns nothing but the socket, so that a test can send exactly the bytes it wants, right or wrong.
The rows of its topics are `id int64, text string`, and every batch holds consecutive ids, so that
what was stored can be checked to the row.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import ssl
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, NamedTuple

import pyarrow as pa

from quiverlog.batch.codec import decode_batch, split_batches
from quiverlog.batch.schema import SchemaHistory, serialize_schema
from quiverlog.errors import error_from_code
from quiverlog.types import EARLIEST, LATEST
from quiverlog.wire import messages as m
from quiverlog.wire.frames import Frame, FrameReceiver, decode_error, encode
from quiverlog.wire.registry import APIS

from .batches import encode_data

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])

__all__ = ["SCHEMA", "RawClient", "Stored", "make_batch"]


class Stored(NamedTuple):
    """A batch as it was read back."""

    base_offset: int
    ids: list[int]


def make_batch(
    first_id: int,
    rows: int = 10,
    *,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    text: str = "some text",
    timestamp_us: int | None = None,
) -> bytes:
    """A batch with the ids `first_id`, `first_id + 1`, ..."""
    ids = list(range(first_id, first_id + rows))
    data = pa.record_batch([ids, [text] * rows], schema=SCHEMA)
    at_us = time.time_ns() // 1000 if timestamp_us is None else timestamp_us
    return bytes(
        encode_data(data, at_us=at_us, producer=(producer_id, producer_epoch, base_sequence))
    )


class RawClient:
    """One connection. `hello=False` leaves the greeting to the test.

    Args:
        address: host and port of the broker.
        timeout: seconds for every single receive.
        tls: of a listener with TLS.
    """

    def __init__(
        self,
        address: tuple[str, int],
        *,
        hello: bool = True,
        timeout: float = 20.0,
        receive_bytes: int | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.socket = socket.socket()
        self.socket.settimeout(timeout)
        if receive_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self._receiver = FrameReceiver(own_bodies=True)
        self._frames: list[Frame] = []
        self._ids = itertools.count(1)
        self._apis: dict[int, int] = {}
        try:
            self.socket.connect(address)
            if tls is not None:
                self.socket = tls.wrap_socket(self.socket, server_hostname=address[0])
            if hello:
                self.ask(m.HelloRequest(client_id="raw"))
        except BaseException:
            self.socket.close()
            raise

    def __enter__(self) -> RawClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()

    # --- bytes ---------------------------------------------------------------------------------
    def send_bytes(self, data: bytes) -> None:
        """Whatever the test wants the broker to see."""
        self.socket.sendall(data)

    def next_frame(self) -> Frame | None:
        """The next frame; None when the broker has closed (or reset) the connection."""
        while not self._frames:
            with contextlib.suppress(ConnectionResetError):
                count = self.socket.recv_into(self._receiver.get_buffer())
                if count:
                    self._frames.extend(self._receiver.buffer_updated(count))
                    continue
            return None
        return self._frames.pop(0)

    def expect_refusal(self) -> m.Response:
        """The error with which the broker ends the connection; checks that it does end."""
        frame = self.next_frame()
        assert frame is not None, "closed without an answer"
        response = decode_error(frame.header)
        assert response.error_code != 0, response
        assert self.next_frame() is None, "still open"
        return response

    # --- messages ------------------------------------------------------------------------------
    def send(self, request: m.Request, body: bytes = b"") -> int:
        """Send without waiting; returns the correlation id."""
        correlation_id = next(self._ids)
        self._apis[correlation_id] = int(request.API)
        self.send_bytes(encode(request, correlation_id, len(body)) + body)
        return correlation_id

    def receive(self) -> tuple[int, m.Response, memoryview]:
        """The next response, whichever request it answers; ConnectionResetError at the end."""
        frame = self.next_frame()
        if frame is None:
            raise ConnectionResetError("the broker closed the connection")
        common = decode_error(frame.header)
        api = self._apis.pop(common.correlation_id, None)
        if api is None:
            raise error_from_code(common.error_code, common.error_message)
        response = APIS[api].response_decoder.decode(frame.header)
        return common.correlation_id, response, frame.body

    def ask(self, request: m.Request, body: bytes = b"") -> Any:
        """One request and its response. Raises the response's own error, not its parts'."""
        return self.ask_for_body(request, body)[0]

    def ask_for_body(self, request: m.Request, body: bytes = b"") -> tuple[Any, memoryview]:
        """As `ask`, with the response's body."""
        wanted = self.send(request, body)
        correlation_id, response, answer = self.receive()
        assert correlation_id == wanted, (correlation_id, wanted)
        if response.error_code:
            raise error_from_code(response.error_code, response.error_message)
        return response, answer

    # --- topics and rows -----------------------------------------------------------------------
    def create_topic(self, name: str, partitions: int = 1, **configs: object) -> bytes:
        """Returns the topic id. Config keys have underscores for dots (`retention_ms`)."""
        topic = m.NewTopic(
            name=name,
            schema=serialize_schema(SCHEMA),
            partitions=partitions,
            configs={key.replace("_", "."): str(value) for key, value in configs.items()},
        )
        response = self.ask(m.CreateTopicsRequest(topics=[topic]))
        return bytes(_checked(response.topics[0]).topic_id)

    def init_producer(self) -> tuple[int, int]:
        """A new producer id and its epoch."""
        response = self.ask(m.InitProducerIdRequest())
        return response.producer_id, response.producer_epoch

    def send_produce(
        self, topic_id: bytes, batch: bytes, partition: int = 0, durability: int = -1
    ) -> int:
        """One batch, without waiting for its acknowledgement; returns the correlation id."""
        entry = m.ProducePartition(topic_id=topic_id, partition=partition, batch_bytes=len(batch))
        return self.send(m.ProduceRequest(durability=durability, partitions=[entry]), batch)

    def produce(
        self, topic_id: bytes, batch: bytes, partition: int = 0, durability: int = -1
    ) -> m.ProducePartitionResult:
        """One batch and its acknowledgement. Raises what the partition was refused for."""
        self.send_produce(topic_id, batch, partition, durability)
        _, response, _ = self.receive()
        assert isinstance(response, m.ProduceResponse)
        if response.error_code:
            raise error_from_code(response.error_code, response.error_message)
        result = response.partitions[0]
        _checked(result)
        return result

    def list_offset(self, topic_id: bytes, partition: int = 0, at: int = LATEST) -> int:
        """One offset."""
        entry = m.ListOffsetsPartition(topic_id=topic_id, partition=partition, at=at)
        response = self.ask(m.ListOffsetsRequest(partitions=[entry]))
        return int(_checked(response.partitions[0]).offset)

    def fetch_request(
        self, topic_id: bytes, offset: int, partition: int = 0, **fields: Any
    ) -> m.FetchRequest:
        """A fetch of one partition."""
        entry = m.FetchPartition(
            topic_id=topic_id, partition=partition, offset=offset, bytes_max=4 << 20
        )
        return m.FetchRequest(bytes_max=16 << 20, partitions=[entry], **fields)

    def read_all(self, topic_id: bytes, partition: int = 0) -> Iterator[Stored]:
        """Every stored batch from the log's start to its end, CRC and rows checked."""
        schemas = SchemaHistory({1: SCHEMA})
        offset = self.list_offset(topic_id, partition, EARLIEST)
        end = self.list_offset(topic_id, partition, LATEST)
        while offset < end:
            response, body = self.ask_for_body(self.fetch_request(topic_id, offset, partition))
            _checked(response.partitions[0])
            assert body.nbytes, f"nothing at offset {offset} of {end}"
            for header, batch in split_batches(body):
                data = decode_batch(batch, header, schemas, verify_crc=True)
                assert data.num_rows == header.row_count
                yield Stored(header.base_offset, data.column("id").to_pylist())
                offset = header.next_offset


def _checked(part: Any) -> Any:
    if part.error_code:
        raise error_from_code(part.error_code, part.error_message)
    return part
