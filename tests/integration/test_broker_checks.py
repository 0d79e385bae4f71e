"""Batches that cost little to send and much to check, against all others, on a real broker."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from quiverlog.batch.codec import encode_batch
from quiverlog.errors import BatchTooLarge, ThrottledBroker
from quiverlog.types import Compression
from quiverlog.wire import messages as m
from tests.support.broker import BrokerProcess
from tests.support.rawclient import SCHEMA, RawClient, make_batch
from tests.support.until import slack

pytestmark = pytest.mark.process

STALL_S_MAX = 0.25
ROWS_MAX = 16 * 1024 * 1024


def bomb(row_count: int) -> bytes:
    """Rows of zeros and empty texts, 12 bytes each, in next to nothing."""
    zeros = pa.py_buffer(bytes(8 * (row_count + 1)))
    ids = pa.Array.from_buffers(pa.int64(), row_count, [None, zeros])
    texts = pa.Array.from_buffers(pa.string(), row_count, [None, zeros, pa.py_buffer(b"")])
    return bytes(
        encode_batch(
            pa.record_batch([ids, texts], schema=SCHEMA),
            schema_id=1,
            timestamp_us=time.time_ns() // 1000,
            compression=Compression.ZSTD,
        )
    )


def attack(
    broker: BrokerProcess, topic_id: bytes, entries: list[bytes]
) -> tuple[list[float], m.ProduceResponse]:
    """Seconds that another client's produces took until the request was answered."""
    parts = [m.ProducePartition(topic_id, 0, -1, len(entry)) for entry in entries]
    body = b"".join(entries)
    seconds: list[float] = []
    with (
        RawClient(broker.address, timeout=60) as attacker,
        RawClient(broker.address, timeout=60) as other,
        ThreadPoolExecutor(1) as thread,
    ):
        other.produce(topic_id, make_batch(0))
        asked = thread.submit(attacker.ask, m.ProduceRequest(partitions=parts), body)
        deadline = time.monotonic() + 60
        while not (seconds and asked.done()) and time.monotonic() < deadline:
            started = time.monotonic()
            other.produce(topic_id, make_batch(0))
            seconds.append(time.monotonic() - started)
        response = asked.result(60)
    assert isinstance(response, m.ProduceResponse)
    assert seconds
    return seconds, response


def test_a_request_that_takes_long_to_check_holds_no_other_up() -> None:
    """5,000 batches that decompress to what is allowed, in one entry, each text looked at.

    A 47 KB request once stalled everybody for 15 s, and 1.6 MB for 11 s.
    """
    part = bomb(ROWS_MAX // 5_000)
    with BrokerProcess() as broker:
        with RawClient(broker.address) as client:
            topic_id = client.create_topic("t", durability="memory", validation="full")
        seconds, response = attack(broker, topic_id, [part * 5_000])
        assert len(part) * 5_000 > 1_500_000
        assert response.partitions[0].error_code == 0, response.partitions[0].error_message
        assert max(seconds) < STALL_S_MAX * slack()
        assert len(seconds) > 2, "it was over before another client could have been held up"


def test_bombs_that_a_request_may_not_hold_are_refused_unread() -> None:
    largest = bomb(ROWS_MAX)
    with BrokerProcess() as broker:
        with RawClient(broker.address) as client:
            topic_id = client.create_topic("t", durability="memory", validation="full")
        copies = -(-2_000_000 // len(largest))
        seconds, response = attack(broker, topic_id, [largest * copies])
        assert response.partitions[0].error_code == BatchTooLarge.code
        assert max(seconds) < STALL_S_MAX * slack()
        seconds, response = attack(broker, topic_id, [largest] * copies)
        codes = [result.error_code for result in response.partitions]
        assert codes[0] == 0
        assert codes[-1] == ThrottledBroker.code
        assert codes.count(0) < 5
        assert max(seconds) < STALL_S_MAX * slack()
