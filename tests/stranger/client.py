"""A minimal client, written from docs/ alone: sockets, struct and msgpack; no quiverlog, no Arrow.

It is written from docs/protocol.md, docs/storage-format.md and docs/vectors alone. It sends one
column of int64: the batch of the vectors, with other numbers in it.
"""

from __future__ import annotations

import json
import socket
import struct
from pathlib import Path
from typing import Any, NamedTuple

import msgpack

VECTORS = Path(__file__).parents[2] / "docs" / "vectors"
HELLO, METADATA, PRODUCE, FETCH, INIT_PRODUCER_ID, CREATE_TOPICS = 0, 1, 2, 3, 5, 6
HEADER = struct.Struct("<qiIIBBhqiIIIqq")
BATCH_HEADER_BYTES = 64
MASK = 2**64 - 1


class Refused(Exception):
    """An error code from the broker."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class Batch(NamedTuple):
    """The header's fields of a fetched batch, and its values."""

    base_offset: int
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    row_count: int
    schema_id: int
    timestamp_max_us: int
    values: list[int]


def vector(file: str, name: str) -> dict[str, Any]:
    found = json.loads((VECTORS / file).read_text())
    return next(entry for entry in found if entry["name"] == name)


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


# --- keys -----------------------------------------------------------------------------------------
def key_hash(columns: list[dict[str, Any]]) -> int:
    """Columns as in key-hashes.json: `stored` is the number behind dates and times, or a text."""
    h = 0
    for column in columns:
        value = column["stored"]
        if value is None:
            bits = 0xA5A55A5AC3C33C3C
        elif isinstance(value, str):
            bits = crc32c(value.encode())
        else:
            bits = value & MASK
        h = ((h ^ bits) + 0x9E3779B97F4A7C15) & MASK
        h = ((h ^ (h >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        h = ((h ^ (h >> 27)) * 0x94D049BB133111EB) & MASK
        h ^= h >> 31
    return h


def partition_of(h: int, partitions: int) -> int:
    return ((h >> 32) * partitions) >> 32


# --- batches --------------------------------------------------------------------------------------
def int64_batch(
    values: list[int], at_us: int, producer_id: int, producer_epoch: int, base_sequence: int
) -> bytes:
    """The vector's batch with three other numbers."""
    batch = bytearray.fromhex(vector("batches.json", "int64")["hex"])
    assert len(values) == 3
    struct.pack_into("<3q", batch, values_at(batch), *values)
    fields = list(HEADER.unpack_from(batch))
    fields[6:9] = producer_epoch, producer_id, base_sequence
    fields[12:14] = at_us, at_us
    HEADER.pack_into(batch, 0, *fields)
    struct.pack_into("<I", batch, 16, crc32c(bytes(batch[20:])))
    return bytes(batch)


def values_at(batch: bytes | bytearray) -> int:
    """Where the body begins: without nulls there is no bitmap, the values come first."""
    marker, metadata_bytes = struct.unpack_from("<Ii", batch, BATCH_HEADER_BYTES)
    assert marker == 0xFFFFFFFF
    return BATCH_HEADER_BYTES + 8 + metadata_bytes


def read_batches(body: bytes) -> list[Batch]:
    found = []
    at = 0
    while at < len(body):
        fields = HEADER.unpack_from(body, at)
        base_offset, leader_epoch, size, crc, magic, flags = fields[:6]
        total = 16 + size
        batch = body[at : at + total]
        if magic != 1 or flags != 0 or crc32c(batch[20:]) != crc or len(batch) != total:
            raise ValueError(f"no uncompressed batch at {at}")
        epoch, producer_id, sequence, rows, schema_id = fields[6:11]
        values = list(struct.unpack_from(f"<{rows}q", batch, values_at(batch)))
        found.append(
            Batch(base_offset, leader_epoch, producer_id, epoch, sequence, rows, schema_id,
                  fields[13], values)
        )  # fmt: skip
        at += total
    return found


# --- the connection -------------------------------------------------------------------------------
class Stranger:
    """One connection; one request at a time."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), timeout=20)
        self._last_id = 0

    def close(self) -> None:
        self._socket.close()

    def ask(
        self, api: int, *fields: Any, body: bytes = b"", version: int = 1
    ) -> tuple[list[Any], bytes]:
        """(all fields of the response, its body). An error code does not raise here."""
        self._last_id += 1
        header = msgpack.packb([api, version, self._last_id, *fields])
        prefix = struct.pack("<II", 4 + len(header) + len(body), len(header))
        self._socket.sendall(prefix + header + body)
        size, header_size = struct.unpack("<II", self._read(8))
        header, body = self._read(header_size), self._read(size - 4 - header_size)
        response = msgpack.unpackb(header)
        assert response[:3] == [api, 1, self._last_id]
        return response, body

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self._socket.recv(count - len(data))
            if not part:
                raise ConnectionError("the broker closed the connection")
            data += part
        return data

    # --- requests ------------------------------------------------------------------------------
    def hello(self) -> dict[int, tuple[int, int]]:
        """The versions that the broker speaks, by API."""
        response, _ = self.ask(HELLO, "stranger", "tests/stranger", "1")
        check(response[3], response[4])
        return {api: (low, high) for api, low, high in response[9]}

    def create_topic(self, name: str, schema: bytes) -> bytes:
        response, _ = self.ask(CREATE_TOPICS, [[name, schema, 1, 1, ["n"], {}]], False)
        check(response[3], response[4])
        (_, topic_id, code, message), *_ = response[5]
        check(code, message)
        return bytes(topic_id)

    def leader_epoch(self, topic_id: bytes) -> int:
        response, _ = self.ask(METADATA, None, [topic_id])
        check(response[3], response[4])
        topic = response[9][0]
        check(topic[2], topic[0])
        return int(topic[8][0][3])

    def init_producer(self) -> tuple[int, int]:
        response, _ = self.ask(INIT_PRODUCER_ID, "", -1, -1)
        check(response[3], response[4])
        return response[5], response[6]

    def produce(self, topic_id: bytes, epoch: int, batch: bytes) -> tuple[int, bool]:
        """(offset of the first row, whether it was there already)."""
        entry = [topic_id, 0, epoch, len(batch)]
        response, _ = self.ask(PRODUCE, -1, 30_000, [entry], body=batch)
        check(response[3], response[4])
        result = response[5][0]
        check(result[2], result[3])
        return result[4], result[9]

    def fetch(self, topic_id: bytes, offset: int) -> tuple[int, list[Batch]]:
        """(high watermark, batches from the one that holds `offset` on)."""
        entry = [topic_id, 0, -1, offset]
        response, body = self.ask(FETCH, 1_000, 1, 0, 1, "", -1, [entry])
        check(response[3], response[4])
        result = response[5][0]
        check(result[2], result[3])
        assert result[11] == len(body)
        return result[6], read_batches(body)


def check(code: int, message: str) -> None:
    if code:
        raise Refused(code, message)
