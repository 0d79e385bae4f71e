"""What a client must do, whichever its kind and whatever broker answers.

The classes are collected where they are subclassed: with the scripted broker in tests/unit, with
real broker processes in tests/integration. A subclass gives the fixture `address`.
"""

from __future__ import annotations

import time
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import quiverlog
from quiverlog.client.producer import core as producer_core
from quiverlog.client.tables.fetcher import PartitionFetcher
from quiverlog.types import EARLIEST, LATEST, Durability, TopicPartition

from .client_kinds import CLIENT_KINDS, connect
from .cluster_scenarios import ClusterScenarios

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("score", pa.float64())])


def rows(count: int, first: int = 0) -> list[dict[str, Any]]:
    return [{"id": i, "name": f"n{i % 7}", "score": i / 2} for i in range(first, first + count)]


def read(client: Any, topic: str, **options: Any) -> list[dict[str, Any]]:
    return [row for batch in client.consumer(topic, **options) for row in batch.to_pylist()]


class ClientScenarios(ClusterScenarios):
    """Needs the fixture `address` (host:port of a broker)."""

    @pytest.fixture(params=CLIENT_KINDS)
    def client(self, request: pytest.FixtureRequest, address: str) -> Any:
        with connect(request.param, address, client_id="scenario") as client:
            yield client

    @pytest.fixture
    def topic(self) -> str:
        return f"t-{uuid.uuid4().hex[:12]}"

    # --- topics ---------------------------------------------------------------------------------
    def test_a_topic_is_created_described_altered_listed_and_deleted(
        self, client: Any, topic: str
    ) -> None:
        info = client.create_topic(
            topic, SCHEMA, partitions=2, key=["name"], config={"retention.ms": 3_600_000}
        )
        assert [p.partition for p in info.partitions] == [0, 1]
        assert topic in client.list_topics()
        detail = client.describe_topic(topic)
        assert detail.schema == SCHEMA
        assert detail.key_columns == ("name",)
        assert detail.configs["retention.ms"] == ("3600000", "topic")
        wider = SCHEMA.append(pa.field("extra", pa.int32()))
        assert client.alter_topic(topic, schema=wider, partitions=3) == 2
        detail = client.describe_topic(topic)
        assert detail.schema == wider
        assert len(detail.schemas) == 2
        assert len(detail.partitions) == 3
        assert client.schemas(topic).current == wider
        client.delete_topic(topic)
        assert topic not in client.list_topics()
        with pytest.raises(quiverlog.UnknownTopic):
            client.describe_topic(topic)

    def test_creating_twice_is_an_error_unless_it_may_exist(self, client: Any, topic: str) -> None:
        client.create_topic(topic, "raw")
        with pytest.raises(quiverlog.TopicExists):
            client.create_topic(topic, "raw")
        again = client.create_topic(topic, "raw", if_not_exists=True)
        assert again.topic_id == client.metadata([topic]).topics[topic].topic_id
        assert client.describe_topic(topic).schema == quiverlog.RAW_SCHEMA

    def test_deleting_what_is_not_there(self, client: Any, topic: str) -> None:
        with pytest.raises(quiverlog.UnknownTopic, match=topic):
            client.delete_topic(topic)
        client.delete_topic(topic, if_exists=True)

    def test_validation_creates_nothing(self, client: Any, topic: str) -> None:
        assert client.create_topic(topic, SCHEMA, validate_only=True) is None
        assert topic not in client.list_topics()

    def test_unknown_topics_are_named(self, client: Any, topic: str) -> None:
        for ask in (
            lambda: client.list_offsets(topic),
            lambda: client.schemas(topic),
            lambda: client.producer(topic),
            lambda: read(client, topic),
        ):
            with pytest.raises(quiverlog.UnknownTopic, match=topic):
                ask()

    # --- producing ------------------------------------------------------------------------------
    @pytest.mark.parametrize(
        "shape",
        ["list", "dict", "batch", "table", "pandas", "polars", "stream"],
    )
    def test_every_shape_of_data_is_taken(self, client: Any, topic: str, shape: str) -> None:
        client.create_topic(topic, SCHEMA)
        table = pa.Table.from_pylist(rows(5), schema=SCHEMA)
        data = {
            "list": rows(5),
            "batch": table.to_batches()[0],
            "table": table,
            "pandas": pd.DataFrame(rows(5)),
            "polars": pl.DataFrame(rows(5)),
            "stream": table.to_reader(),
        }
        with client.producer(topic) as producer:
            if shape == "dict":
                for row in rows(5):
                    producer.send(row)
            else:
                future = producer.send(data[shape])
                (produced,) = future.result()
                assert (produced.partition, produced.base_offset, produced.rows) == (0, 0, 5)
                assert produced.durability is Durability.FLUSHED
        assert read(client, topic) == rows(5)

    def test_rows_with_equal_keys_go_to_one_partition(self, client: Any, topic: str) -> None:
        client.create_topic(topic, SCHEMA, partitions=4, key=["name"])
        with client.producer(topic) as producer:
            whole = producer.send(rows(200))
            single = [producer.send(row) for row in rows(50, first=200)]
            assert sum(p.rows for p in whole.result()) == 200
            placed = [future.result() for future in single]
        homes: dict[str, set[int]] = {}
        found: dict[tuple[int, int], int] = {}
        for batch in client.consumer(topic):
            for i, row in enumerate(batch.to_pylist()):
                homes.setdefault(row["name"], set()).add(batch.partition)
                found[batch.partition, batch.base_offset + i] = row["id"]
        assert len(found) == 250
        assert all(len(partitions) == 1 for partitions in homes.values())
        # The future of a single row has the place of that very row.
        for row, (produced,) in zip(rows(50, first=200), placed, strict=True):
            assert found[produced.partition, produced.base_offset] == row["id"]

    def test_without_keys_batches_take_turns(self, client: Any, topic: str) -> None:
        client.create_topic(topic, SCHEMA, partitions=3)
        with client.producer(topic, batch_rows=10) as producer:
            produced = producer.send(rows(90)).result()
        assert {p.partition: p.rows for p in produced} == {0: 30, 1: 30, 2: 30}

    def test_a_partition_can_be_chosen(self, client: Any, topic: str) -> None:
        client.create_topic(topic, SCHEMA, partitions=3)
        with client.producer(topic, partition=2) as producer:
            assert [p.partition for p in producer.send(rows(3)).result()] == [2]
            assert [p.partition for p in producer.send(rows(3), partition=1).result()] == [1]
            with pytest.raises(quiverlog.UnknownPartition):
                producer.send(rows(1), partition=3)
        with pytest.raises(quiverlog.UnknownPartition):
            client.producer(topic, partition=7)

    def test_a_bad_row_is_named_and_harms_no_other(self, client: Any, topic: str) -> None:
        client.create_topic(topic, SCHEMA)
        with client.producer(topic) as producer:
            with pytest.raises(quiverlog.SchemaMismatch, match=r"'nmae'.*id int64"):
                producer.send([{"id": 1, "nmae": "x"}])
            futures = [
                producer.send(row) for row in ({"id": 1}, {"id": "one"}, {"id": 3, "bad": 1})
            ]
            assert futures[0].result()[0].rows == 1
            with pytest.raises(quiverlog.SchemaMismatch, match=r"'id'.*int64.*'one'"):
                futures[1].result()
            assert isinstance(futures[2].exception(), quiverlog.SchemaMismatch)
        assert [row["id"] for row in read(client, topic)] == [1]

    def test_a_failure_without_a_waiting_caller_surfaces_at_flush(
        self, client: Any, topic: str
    ) -> None:
        client.create_topic(topic, SCHEMA)
        with pytest.raises(quiverlog.SchemaMismatch), client.producer(topic) as producer:
            producer.send({"id": "one"})
        producer = client.producer(topic)
        producer.send({"id": "one"})
        with pytest.raises(quiverlog.SchemaMismatch):
            producer.flush()
        producer.flush()
        producer.close()
        with pytest.raises(quiverlog.ClientClosed):
            producer.send({"id": 1})

    def test_the_error_of_the_body_is_not_hidden(self, client: Any, topic: str) -> None:
        client.create_topic(topic, SCHEMA)

        def body() -> None:
            with client.producer(topic) as producer:
                producer.send({"id": "one"})
                _ = 1 // 0

        with pytest.raises(ZeroDivisionError) as caught:
            body()
        assert "SCHEMA_MISMATCH" in caught.value.__notes__[0]

    def test_compression_travels(self, client: Any, topic: str) -> None:
        client.create_topic(topic, SCHEMA)
        for codec in ("none", "lz4", "zstd"):
            with client.producer(topic, compression=codec) as producer:
                producer.send(rows(1_000))
        assert read(client, topic) == rows(1_000) * 3
        assert read(client, topic, columns=["score"], start={0: 2_999}) == [{"score": 499.5}]

    # --- consuming ------------------------------------------------------------------------------
    def test_where_to_start_and_to_end(self, client: Any, topic: str) -> None:
        client.create_topic(topic, SCHEMA, partitions=2)
        with client.producer(topic, batch_rows=10) as producer:
            producer.send(rows(30), partition=0)
            producer.send(rows(5, first=100), partition=1)
        middle = datetime.now(UTC)
        with client.producer(topic, partition=0) as producer:
            producer.send(rows(10, first=30))

        def ids(**options: Any) -> list[int]:
            return sorted(row["id"] for row in read(client, topic, **options))

        everything = [*range(40), *range(100, 105)]
        assert ids() == everything
        assert ids(start="latest") == []
        assert ids(start=middle) == [*range(30, 40)]
        assert ids(start=middle + timedelta(hours=1)) == []
        assert ids(start={0: 25, 1: "latest"}) == [*range(25, 40)]
        assert ids(start={0: 33}) == [*range(33, 40), *range(100, 105)]
        assert ids(start={0: 33}, partitions=[0]) == [*range(33, 40)]
        assert ids(start={0: 13}, end={0: 27, 1: 0}) == [*range(13, 27)]
        batch = next(iter(client.consumer(topic, start={0: 15}, partitions=[0])))
        assert (batch.base_offset, batch.next_offset, len(batch)) == (15, 20, 5)
        assert batch.timestamps.type == pa.timestamp("us", tz="UTC")
        assert batch.timestamps[0].as_py() <= middle
        assert batch.offsets.to_pylist() == [15, 16, 17, 18, 19]

    def test_columns_in_the_order_asked_for(self, client: Any, topic: str) -> None:
        client.create_topic(topic, SCHEMA)
        with client.producer(topic) as producer:
            producer.send(rows(2))
        (batch,) = client.consumer(topic, columns=["score", "id"])
        assert batch.data.schema.names == ["score", "id"]
        with pytest.raises(quiverlog.InvalidArgument, match="nope"):
            read(client, topic, columns=["nope"])

    def test_an_offset_out_of_range_names_the_range(self, client: Any, topic: str) -> None:
        client.create_topic(topic, SCHEMA)
        with client.producer(topic, batch_rows=5) as producer:
            producer.send(rows(20))
        assert client.delete_records(topic, {0: 10}) == {0: 10}
        with pytest.raises(quiverlog.OffsetOutOfRange, match="10 to 20") as caught:
            read(client, topic, start={0: 3})
        assert caught.value.details["log_start_offset"] == 10
        for follow in (False, True):
            with pytest.raises(quiverlog.OffsetOutOfRange, match="10 to 20"):
                read(client, topic, start={0: 21}, follow=follow)
        assert read(client, topic, start={0: 20}) == []
        assert [row["id"] for row in read(client, topic)] == [*range(10, 20)]
        assert client.list_offsets(topic, at="earliest") == {0: 10}

    def test_nonsense_is_refused_with_a_reason(self, client: Any, topic: str) -> None:
        client.create_topic(topic, SCHEMA)
        options: dict[str, Any]
        for options in (
            {"start": "yesterday"},
            {"start": datetime(2020, 1, 1)},  # noqa: DTZ001 - that is what is refused
            {"start": {0: -5}},
            {"end": "never"},
            {"follow": True, "end": "latest"},
            {"fetch_bytes": 1},
            {"columns": []},
            {"partitions": 0},
            {"start": {"0": 1}},
        ):
            with pytest.raises(quiverlog.InvalidArgument):
                read(client, topic, **options)
        for before in (5, {0: -1}, {0: "1"}):  # on the wire, -1 would mean all there is
            with pytest.raises(quiverlog.InvalidArgument, match="delete_records"):
                client.delete_records(topic, before)
        with client.producer(topic) as producer, pytest.raises(quiverlog.InvalidArgument):
            producer.send({"id": 1}, partition="0")
        with pytest.raises(quiverlog.InvalidArgument, match="partitions='4'"):
            client.create_topic("another", SCHEMA, partitions="4")
        with pytest.raises(quiverlog.InvalidArgument, match="name=5: give text"):
            client.create_topic(5, SCHEMA)
        with pytest.raises(quiverlog.UnknownPartition):
            read(client, topic, partitions=[4])
        with pytest.raises(quiverlog.InvalidArgument, match="none, lz4, zstd"):
            client.producer(topic, compression="gzip")

    def test_following_sees_rows_and_partitions_that_come_later(
        self, client: Any, topic: str
    ) -> None:
        client.create_topic(topic, SCHEMA)
        seen: list[int] = []
        with client.producer(topic) as producer, client.consumer(topic, follow=True) as consumer:
            for count in range(3):
                producer.send(rows(2, first=2 * count)).result()
                while len(seen) < 2 * count + 2:
                    batch = consumer.poll(timeout=10)
                    assert batch is not None, "the row did not come"
                    seen.extend(row["id"] for row in batch.to_pylist())
            client.alter_topic(topic, partitions=2)
            with client.producer(topic, partition=1) as late:
                late.send(rows(1, first=6))
            batch = consumer.poll(timeout=20)
            assert batch is not None
            assert batch.partition == 1
            assert consumer.positions == {0: 6, 1: 1}
            assert consumer.poll(timeout=0.05) is None
        assert seen == [*range(6)]

    def test_what_another_client_has_altered_is_seen(
        self, client: Any, address: str, topic: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(producer_core, "METADATA_AGE_US", 50_000)
        client.create_topic(topic, SCHEMA)
        with client.producer(topic) as old:
            old.send(rows(1)).result()
            wider = SCHEMA.append(pa.field("more", pa.string()))
            with quiverlog.connect(address) as other:
                other.alter_topic(topic, partitions=3, schema=wider)
            assert client.list_offsets(topic, at="latest") == {0: 1, 1: 0, 2: 0}
            (batch,) = client.consumer(topic)
            assert batch.to_pylist() == [{**rows(1)[0], "more": None}]
            with quiverlog.connect(address) as other:
                PartitionFetcher(other, topic, 0, 0, 1, columns=["id"]).close()
                widest = wider.append(pa.field("most", pa.int64()))
                other.alter_topic(topic, schema=widest)
                fetcher = PartitionFetcher(other, topic, 0, 0, 1, columns=["most"])
                assert [b.to_pylist() for b in fetcher] == [[{"most": None}]]
            assert client.schemas(topic).current == widest
            with client.producer(topic) as new:
                assert new.schema == widest
            used: set[int] = set()
            deadline = time.monotonic() + 20
            while used != {0, 1, 2}:
                assert time.monotonic() < deadline, used
                used |= {part.partition for part in old.send(rows(1)).result()}

    def test_a_schema_may_grow_under_a_reader(self, client: Any, topic: str) -> None:
        client.create_topic(topic, SCHEMA)
        with client.consumer(topic, follow=True) as consumer:
            with client.producer(topic) as producer:
                producer.send(rows(1))
            assert consumer.poll(timeout=10).to_pylist() == rows(1)
            client.alter_topic(topic, schema=SCHEMA.append(pa.field("extra", pa.int32())))
            with client.producer(topic) as producer:
                producer.send([{"id": 1, "extra": 5}])
            assert consumer.poll(timeout=10).to_pylist()[0]["extra"] == 5
        assert [row["extra"] for row in read(client, topic)] == [None, 5]

    # --- low level ------------------------------------------------------------------------------
    def test_offsets_with_epochs(self, client: Any, topic: str) -> None:
        info = client.create_topic(topic, SCHEMA, partitions=2)
        with client.producer(topic, partition=1) as producer:
            producer.send(rows(7))
        where = TopicPartition(topic, 1)
        _, found = client.offsets_with_epochs({where: LATEST, TopicPartition(topic, 0): EARLIEST})
        assert found[where].offset == 7
        assert found[where].leader_epoch >= 0
        _, found = client.offsets_with_epochs(
            {where: LATEST}, topic_ids={topic: bytes(len(info.topic_id))}
        )
        assert found[where].error_code == quiverlog.UnknownTopicId.code
