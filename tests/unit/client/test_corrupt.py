"""Rows that cannot be decoded: named, met again at every call, and stepped over on demand only."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.pandas.types import from_arrow_schema

import quiverlog
from pyspark_quiverlog.options import Use, parse_read_options
from pyspark_quiverlog.planning.ranges import Range
from pyspark_quiverlog.reader import SplitReader
from quiverlog.batch.codec import split_batches, write_crc
from quiverlog.batch.header import FLAG_CONTROL, FLAG_TRANSACTIONAL, BatchHeader
from quiverlog.client.tables.fetcher import PartitionFetcher
from quiverlog.errors import CorruptLog
from quiverlog.limits import BATCH_HEADER_BYTES
from quiverlog.wire import messages as m
from tests.support.client_kinds import CLIENT_KINDS, connect
from tests.support.client_scenarios import SCHEMA, rows
from tests.support.connector import connections
from tests.support.scripted_broker import Answer, ScriptedBroker

__all__ = ["connections"]

BAD = slice(10, 20)
"""The rows of the batch that is damaged on its way out."""


def spoil(request: Any, response: Any, body: bytes) -> tuple[m.Response, bytes]:
    """Break the compressed rows of one batch and give it a good CRC."""
    broken = bytearray(body)
    at = 0
    while at < len(broken):
        header = BatchHeader.unpack(broken, at)
        end = at + header.total_bytes
        if header.base_offset == BAD.start:
            middle = (at + BATCH_HEADER_BYTES + end) // 2
            broken[middle : end - 8] = bytes(end - 8 - middle)
            write_crc(memoryview(broken)[at:end])
        at = end
    return response, bytes(broken)


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as broker:
        with quiverlog.connect(broker.bootstrap) as client:
            client.create_topic("t", SCHEMA)
            with client.producer("t", batch_rows=10, compression="zstd") as producer:
                producer.send(rows(30))
        broker.always(m.FetchRequest, Answer(spoil))
        yield broker


@pytest.fixture(params=CLIENT_KINDS)
def client(request: pytest.FixtureRequest, broker: ScriptedBroker) -> Iterator[Any]:
    with connect(request.param, broker.bootstrap, request_timeout=5.0) as client:
        yield client


def test_a_consumer_meets_a_bad_batch_at_every_poll_until_it_seeks(client: Any) -> None:
    with client.consumer("t") as consumer:
        assert consumer.poll(timeout=30).base_offset == 0
        for _ in range(3):
            with pytest.raises(quiverlog.CorruptBatch, match=r"t-0.*\[10, 20\)") as caught:
                consumer.poll(timeout=30)
            details = caught.value.details
            assert (details["topic"], details["partition"]) == ("t", 0)
            assert (details["offset"], details["next_offset"]) == (10, 20)
            assert consumer.positions == {0: 10}
        consumer.seek(0, details["next_offset"])
        assert consumer.poll(timeout=30).base_offset == 20
        assert consumer.positions == {0: 30}
        consumer.seek(0, 3)
        assert consumer.poll(timeout=30).base_offset == 3
        with pytest.raises(quiverlog.UnknownPartition, match="t-4"):
            consumer.seek(4, 0)


def test_a_bad_batch_is_skipped_on_request(client: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="quiverlog"):
        offsets = [b.base_offset for b in client.consumer("t", skip_corrupt=True)]
    assert offsets == [0, 20]
    assert "[10, 20)" in caplog.text


def test_the_schema_of_a_damaged_header_is_not_asked_for(
    broker: ScriptedBroker, client: Any
) -> None:
    def rename(request: Any, response: Any, body: bytes) -> tuple[m.Response, bytes]:
        broken = bytearray(body)
        for header, view in split_batches(memoryview(broken)):
            if header.base_offset == BAD.start:
                header._replace(schema_id=header.schema_id ^ 2**30).pack_into(view)
        return response, bytes(broken)

    broker.always(m.FetchRequest, Answer(rename))
    with client.consumer("t") as consumer:
        assert consumer.poll(timeout=30).base_offset == 0
        broker.requests.clear()
        with pytest.raises(quiverlog.CorruptBatch, match=r"t-0.*\[10, 20\).*CRC"):
            consumer.poll(timeout=30)
    assert not broker.seen(m.TopicSchemasRequest)
    assert [b.base_offset for b in client.consumer("t", skip_corrupt=True)] == [0, 20]


def spoiling(*, alone: bool = False, **fields: int) -> Answer:
    """The header of the second batch is damaged. `alone`: each answer has one batch."""

    def change(request: Any, response: Any, body: bytes) -> tuple[m.Response, bytes]:
        broken = bytearray(body)
        sizes = []
        for header, view in split_batches(memoryview(broken)):
            sizes.append(len(view))
            if header.base_offset == BAD.start:
                header._replace(**fields).pack_into(view)
        sent = bytes(broken)
        if alone and sizes:
            response.partitions[0].batch_bytes = sizes[0]
            sent = sent[: sizes[0]]
        return response, sent

    return Answer(change)


DAMAGE: list[dict[str, int]] = [
    {"leader_epoch": 2**20},
    {"leader_epoch": -7},
    {"row_count": 5},
    {"row_count": 15},
    {"row_count": 2, "leader_epoch": 2**20},
    {"crc32c": 0},
]


@pytest.mark.parametrize("damage", DAMAGE, ids=str)
def test_a_damaged_number_in_a_header_costs_the_rows_of_its_batch_only(
    broker: ScriptedBroker, client: Any, damage: dict[str, int]
) -> None:
    """A bit that the disk had turned was once reported as a broken protocol."""
    broker.always(m.FetchRequest, spoiling(**damage))
    with client.consumer("t") as consumer:
        assert consumer.poll(timeout=30).base_offset == 0
        with pytest.raises(quiverlog.CorruptBatch, match=r"t-0.*\[10, 20\)") as caught:
            consumer.poll(timeout=30)
        assert caught.value.details["next_offset"] == BAD.stop
    assert [b.base_offset for b in client.consumer("t", skip_corrupt=True)] == [0, 20]
    cut = client.consumer("t", start={0: 3}, end={0: 23}, skip_corrupt=True)
    assert [(b.base_offset, len(b)) for b in cut] == [(3, 7), (20, 3)]


@pytest.mark.parametrize("count", [5, 15, 10_000, 0, 2**31])
def test_the_row_count_of_a_damaged_header_is_not_skipped(
    broker: ScriptedBroker, client: Any, count: int
) -> None:
    """No batch came behind it that would show where it ends."""
    broker.always(m.FetchRequest, spoiling(alone=True, row_count=count))
    found = []
    with client.consumer("t", skip_corrupt=True) as consumer:
        with pytest.raises(quiverlog.CorruptBatch, match="t-0") as caught:
            found.extend(b.base_offset for b in consumer)
        assert found == [0]
        assert "next_offset" not in caught.value.details
        assert caught.value.details["offset"] == consumer.positions[0] == BAD.start


def test_a_batch_that_comes_alone_is_stepped_over_where_its_rows_count_as_many(
    broker: ScriptedBroker, client: Any
) -> None:
    broker.always(m.FetchRequest, spoiling(alone=True, crc32c=0))
    assert [b.base_offset for b in client.consumer("t", skip_corrupt=True)] == [0, 20]


@pytest.mark.parametrize("damage", DAMAGE, ids=str)
def test_a_fetcher_names_the_rows_that_a_damaged_header_costs(
    broker: ScriptedBroker, damage: dict[str, int]
) -> None:
    broker.always(m.FetchRequest, spoiling(**damage))
    with (
        quiverlog.connect(broker.bootstrap) as client,
        PartitionFetcher(client, "t", 0, 0, 30) as fetcher,
    ):
        assert next(fetcher).base_offset == 0
        with pytest.raises(quiverlog.CorruptBatch) as caught:
            next(fetcher)
    assert (caught.value.details["offset"], caught.value.details["next_offset"]) == (10, 20)


def test_damage_that_the_broker_reports_is_stepped_over_too(
    broker: ScriptedBroker, client: Any
) -> None:
    def damaged(request: Any, response: Any, body: bytes) -> tuple[m.Response, bytes]:
        part = response.partitions[0]
        if not 0 <= request.partitions[0].offset < BAD.stop:
            return response, body
        part.error_code = CorruptLog.code
        part.batch_bytes = 0
        part.damage_start_offset, part.damage_end_offset = BAD.start, BAD.stop
        return response, b""

    broker.always(m.FetchRequest, Answer(damaged))
    with client.consumer("t", start={0: 10}) as consumer:
        for _ in range(2):
            with pytest.raises(quiverlog.CorruptLog, match=r"t-0.*\[10, 20\)"):
                consumer.poll(timeout=30)
    found = [b.base_offset for b in client.consumer("t", start={0: 10}, skip_corrupt=True)]
    assert found == [20]


def test_a_fetcher_meets_a_bad_batch_at_every_call(broker: ScriptedBroker) -> None:
    with (
        quiverlog.connect(broker.bootstrap) as client,
        PartitionFetcher(client, "t", 0, 0, 30) as fetcher,
    ):
        assert next(fetcher).base_offset == 0
        for _ in range(2):
            with pytest.raises(quiverlog.CorruptBatch, match=r"t-0.*\[10, 20\)"):
                next(fetcher)


def test_spark_fails_by_default_and_steps_over_on_demand(
    broker: ScriptedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    with quiverlog.connect(broker.bootstrap) as client:
        topic_id = client.metadata(["t"]).topics["t"].topic_id.hex()

    def read(**options: str) -> list[int]:
        given = {"bootstrap.servers": broker.bootstrap, "subscribe": "t", **options}
        reader = SplitReader(parse_read_options(given, Use.BATCH_READ), from_arrow_schema(SCHEMA))
        piece = Range("t", topic_id, 0, 5, 27, -1)
        return [i for b in reader._read_range(piece) for i in b.column("id").to_pylist()]

    with pytest.raises(quiverlog.CorruptBatch, match=r"t-0.*\[10, 20\)"):
        read()
    with pytest.raises(quiverlog.CorruptBatch):
        read(failOnDataLoss="false")
    with caplog.at_level(logging.WARNING, logger="pyspark_quiverlog"):
        assert read(failOnCorruptData="false") == [*range(5, 10), *range(20, 27)]
    assert "rows [10, 20) of t-0" in caplog.text


def test_spark_does_not_read_rows_that_took_the_place_of_planned_ones(
    broker: ScriptedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """The log was cut at row 10 after planning; rows of a newer epoch are for a later batch."""

    def refilled(request: Any, response: Any, body: bytes) -> tuple[m.Response, bytes]:
        changed = bytearray(body)
        at = 0
        for header, view in split_batches(memoryview(body)):
            if header.base_offset >= BAD.start:
                header._replace(leader_epoch=header.leader_epoch + 1).pack_into(changed, at)
            at += len(view)
        for part in response.partitions:
            part.leader_epoch += 1
        return response, bytes(changed)

    broker.always(m.FetchRequest, Answer(refilled))
    with quiverlog.connect(broker.bootstrap) as client:
        topic = client.metadata(["t"]).topics["t"]
    epoch = topic.partitions[0].leader_epoch

    def read(**options: str) -> list[int]:
        given = {"bootstrap.servers": broker.bootstrap, "subscribe": "t", **options}
        reader = SplitReader(parse_read_options(given, Use.BATCH_READ), from_arrow_schema(SCHEMA))
        piece = Range("t", topic.topic_id.hex(), 0, 5, 27, -1, epoch)
        return [i for b in reader._read_range(piece) for i in b.column("id").to_pylist()]

    with pytest.raises(quiverlog.DataLoss, match=r"t-0: rows \[10, 27\) are gone"):
        read()
    with caplog.at_level(logging.WARNING, logger="pyspark_quiverlog"):
        assert read(failOnDataLoss="false") == [*range(5, 10)]
    assert "rows [10, 27) are gone" in caplog.text


@pytest.mark.parametrize("flag", [FLAG_CONTROL, FLAG_TRANSACTIONAL, 0x80])
def test_a_batch_with_flags_of_another_version_is_not_left_out_silently(
    broker: ScriptedBroker, client: Any, flag: int
) -> None:
    def flagged(request: Any, response: Any, body: bytes) -> tuple[m.Response, bytes]:
        changed = bytearray(body)
        at = 0
        for header, view in split_batches(memoryview(body)):
            if header.base_offset == BAD.start:
                header._replace(flags=header.flags | flag).pack_into(changed, at)
                write_crc(memoryview(changed)[at : at + len(view)])
            at += len(view)
        return response, bytes(changed)

    broker.always(m.FetchRequest, Answer(flagged))
    with client.consumer("t") as consumer:
        assert consumer.poll(timeout=30).base_offset == 0
        with pytest.raises(quiverlog.CorruptBatch, match=r"t-0.*\[10, 20\).*flags"):
            consumer.poll(timeout=30)


def test_an_error_of_one_partition_is_met_however_busy_the_others_are(
    broker: ScriptedBroker, client: Any
) -> None:
    """Damage of one partition came with rows of another, every time, and was never reported."""

    def damaged(request: Any, response: Any, body: bytes) -> tuple[m.Response, bytes]:
        for part in response.partitions:
            if part.partition == 0 and not part.batch_bytes:
                part.error_code = CorruptLog.code
                part.damage_start_offset, part.damage_end_offset = 0, 10
        return response, body

    client.create_topic("busy", SCHEMA, partitions=2)
    broker.always(m.FetchRequest, Answer(damaged))
    with client.consumer("busy", follow=True) as consumer, client.producer("busy") as producer:

        def poll_busily() -> None:
            for _ in range(20):
                producer.send(rows(1), partition=1)
                producer.flush()
                consumer.poll(timeout=2)

        with pytest.raises(quiverlog.CorruptLog, match="busy-0"):
            poll_busily()
