"""The machine that stages rows: where they go, how large they are, what a commit names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from quiverlog.batch.codec import decode_batch, encode_batch
from quiverlog.batch.header import BatchHeader
from quiverlog.batch.schema import SchemaHistory
from quiverlog.client.base.results import PartitionInfo, Produced, TopicInfo
from quiverlog.client.producer.core import ProducerOptions
from quiverlog.client.producer.types import Delivery, Identity
from quiverlog.client.rows.convert import Converter
from quiverlog.client.transactions.staging import StagingCore, staging_options
from quiverlog.core.controller.internal_topics import INTERNAL_TOPICS, STAGED
from quiverlog.errors import (
    BatchTooLarge,
    TransactionClosed,
    TransactionFenced,
    TransactionTooLarge,
    UnknownTopicId,
)
from quiverlog.types import Compression, Durability, Now
from quiverlog.wire import messages as m

NOW = Now(1_000_000, 1_700_000_000_000_000)
SCHEMA = pa.schema([pa.field("text", pa.string(), nullable=False)])
SHAPE = INTERNAL_TOPICS[STAGED]
ATTEMPT = b"a" * 16
OPTIONS = ProducerOptions(
    batch_rows=10,
    batch_bytes=1 << 20,
    linger_us=0,
    compression=Compression.ZSTD,
    durability=Durability.TOPIC_DEFAULT,
    buffer_bytes=1 << 26,
    delivery_timeout_us=60_000_000,
    request_timeout_us=10_000_000,
)


def topic(
    name: str,
    leaders: list[int],
    level: Durability = Durability.REPLICATED,
    bytes_max: int = SHAPE.batch_bytes_max,
    replicas: tuple[int, ...] = (1, 2, 3),
) -> TopicInfo:
    places = tuple(PartitionInfo(n, one, 1, replicas) for n, one in enumerate(leaders))
    number = name.encode().ljust(16, b"-")
    return TopicInfo(name, number, 1, (), level, bytes_max, Compression.NONE, places)


def machine(leaders: list[int], **shape: Any) -> StagingCore:
    converter = Converter(SHAPE.schema, STAGED)
    core = StagingCore(
        topic(STAGED, leaders, **shape),
        converter,
        1,
        staging_options(OPTIONS),
        Identity(1, 0),
        jitter=lambda: 0.0,
    )
    begin(core)
    return core


def begin(core: StagingCore, attempt: bytes = ATTEMPT, **options: Any) -> None:
    core.begin("app", 3, 7, attempt, replace(OPTIONS, **options))


def send(core: StagingCore, target: TopicInfo, partition: int, *texts: str) -> Delivery:
    found = core.target(target.name) or core.add_target(
        target, Converter(SCHEMA, target.name), 1, OPTIONS
    )
    delivery = Delivery()
    rows = pa.record_batch([pa.array(texts)], schema=SCHEMA)
    for where, part in core.split_for(found, rows, partition):
        core.add_to(found, where, part, delivery, NOW)
    delivery.mark_complete()
    return delivery


def staged_rows(body: Any) -> list[dict[str, Any]]:
    header = BatchHeader.unpack(body)
    assert not header.is_compressed
    found = decode_batch(memoryview(body), header, SchemaHistory({1: SHAPE.schema}))
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


def acknowledge(core: StagingCore, call: Any, base_offset: int) -> None:
    results = [
        m.ProducePartitionResult(
            topic_id=core.topic.topic_id,
            partition=number,
            base_offset=base_offset,
            row_count=batch.row_count,
            durability=Durability.REPLICATED,
        )
        for number, batch in call.batches.items()
    ]
    core.on_response(call, m.ProduceResponse(partitions=results), NOW)


def test_a_batch_becomes_a_row_at_the_leader_of_its_partition() -> None:
    core = machine([1, 2, 1, 2])
    delivery = send(core, topic("t", [2, 1]), 0, "one", "two")
    (call,) = core.poll(NOW).calls
    assert (call.leader, list(call.batches)) == (2, [1])
    (row,) = staged_rows(call.body[0])
    inner = row.pop("batch")
    assert row == {
        "kind": 0,
        "transactional_id": "app",
        "epoch": 3,
        "sequence": 7,
        "attempt": ATTEMPT,
        "topic_id": b"t".ljust(16, b"-"),
        "partition": 0,
        "row_count": 2,
    }
    header = BatchHeader.unpack(inner)
    assert (header.producer_id, header.base_sequence, header.base_offset) == (-1, -1, 0)
    assert header.is_compressed
    acknowledge(core, call, 40)
    assert delivery.is_done
    (attempt,) = core.attempts()
    (part,) = attempt.parts
    assert (part.staged_partition, part.first_offset, part.next_offset) == (1, 40, 41)
    assert (attempt.row_count, part.row_count) == (2, 2)
    assert core.durability == Durability.REPLICATED


def test_small_batches_share_a_staged_batch_of_bounded_rows() -> None:
    core = machine([1])
    target = topic("t", [1] * 200)
    for number in range(130):
        send(core, target, number, "x")
    calls = core.poll(NOW).calls
    assert [one.row_count for call in calls for one in call.batches.values()] == [64, 64, 2]
    for number, call in enumerate(calls):
        acknowledge(core, call, 1000 + 64 * number)
    (part,) = core.attempts()[0].parts
    assert (part.first_offset, part.next_offset, part.row_count) == (1000, 1130, 130)
    assert core.buffered_bytes == 0


def test_a_choice_follows_the_leaders() -> None:
    core = machine([1, 2])
    target = topic("t", [1, 1])
    send(core, target, 0, "x")
    (call,) = core.poll(NOW).calls
    assert list(call.batches) == [0]
    acknowledge(core, call, 5)
    core.topic_changed(topic(STAGED, [2, 1]))
    send(core, target, 1, "y")
    (call,) = core.poll(NOW).calls
    assert (call.leader, list(call.batches)) == (1, [1])
    acknowledge(core, call, 9)
    assert [part.staged_partition for part in core.attempts()[0].parts] == [0, 1]


def test_rows_for_one_partition_stay_in_one_place() -> None:
    """In another they would be published side by side, and lie in any order."""
    core = machine([1, 2])
    target = topic("t", [1])
    send(core, target, 0, "x")
    (call,) = core.poll(NOW).calls
    acknowledge(core, call, 5)
    core.topic_changed(topic(STAGED, [2, 1]))
    send(core, target, 0, "y")
    (call,) = core.poll(NOW).calls
    assert (call.leader, list(call.batches)) == (2, [0])
    acknowledge(core, call, 6)
    begin(core)
    send(core, target, 0, "z")
    (call,) = core.poll(NOW).calls
    assert (call.leader, list(call.batches)) == (1, [1]), "the next transaction chooses anew"


def test_a_commit_names_at_most_eight_parts_however_leaders_move() -> None:
    core = machine([*range(20)])
    for turn in range(5):
        target = topic(f"t{turn}", [*range(20)])
        for number in range(20):
            send(core, target, number, "x")
        while calls := core.poll(NOW).calls:
            for call in calls:
                acknowledge(core, call, 100 * turn)
        core.topic_changed(topic(STAGED, [(one + turn) % 20 for one in range(20)]))
    (attempt,) = core.attempts()
    assert (len(attempt.parts), attempt.row_count) == (8, 100)


@pytest.mark.parametrize(
    ("level", "asked", "replicas", "sent"),
    [
        (Durability.FLUSHED, Durability.TOPIC_DEFAULT, (1, 2), Durability.TOPIC_DEFAULT),
        (Durability.REPLICATED, Durability.TOPIC_DEFAULT, (1, 2), Durability.TOPIC_DEFAULT),
        (
            Durability.REPLICATED_FLUSHED,
            Durability.TOPIC_DEFAULT,
            (1, 2),
            Durability.REPLICATED_FLUSHED,
        ),
        (Durability.FLUSHED, Durability.REPLICATED_FLUSHED, (1, 2), Durability.REPLICATED_FLUSHED),
        (Durability.REPLICATED_FLUSHED, Durability.REPLICATED, (1,), Durability.TOPIC_DEFAULT),
    ],
)
def test_rows_are_staged_as_safely_as_it_can_be(
    level: Durability, asked: Durability, replicas: tuple[int, ...], sent: Durability
) -> None:
    core = machine([1], replicas=replicas)
    begin(core, durability=asked)
    send(core, topic("t", [1], level), 0, "x")
    (call,) = core.poll(NOW).calls
    assert call.request.durability == sent


@pytest.mark.parametrize("bytes_max", [1 << 16, SHAPE.batch_bytes_max])
@pytest.mark.parametrize("over", [-64, 0, 64])
def test_the_largest_batch_of_a_topic_fits_a_row(bytes_max: int, over: int) -> None:
    """Also under the longest id: a batch that the topic takes may be too large for `__staged`."""
    core = machine([1], bytes_max=bytes_max)
    target = topic("t", [1], bytes_max=bytes_max)
    options = replace(OPTIONS, compression=Compression.NONE)
    core.begin("\U0001f40d" * 512, 3, 7, ATTEMPT, options)
    core.add_target(target, Converter(SCHEMA, "t"), 1, options)
    room = bytes_max - 4096
    rows = pa.record_batch([pa.array(["x" * (room // 2)])], schema=SCHEMA)
    columns = len(encode_batch(rows, schema_id=1, timestamp_us=0)) - room // 2
    delivery = send(core, target, 0, "x" * (room - columns + over))
    if over > 0:
        assert isinstance(delivery.error, TransactionTooLarge)
        assert f"a batch of more than {room} bytes" in delivery.error.message
        assert not core.poll(NOW).calls
        return
    assert delivery.error is None
    (call,) = core.poll(NOW).calls
    assert len(call.body[0]) <= bytes_max
    (row,) = staged_rows(call.body[0])
    assert len(row["batch"]) == room + over


def test_the_bound_of_a_topic_is_named_where_it_is_less() -> None:
    core = machine([1])
    target = topic("t", [1], bytes_max=1 << 16)
    error = send(core, target, 0, "".join(map(str, range(1 << 17)))).error
    assert isinstance(error, BatchTooLarge)
    assert "topic 't' takes batches of at most 65536" in error.message


def test_rows_that_make_too_large_a_batch_together_are_divided() -> None:
    core = machine([1], bytes_max=1 << 16)
    target = topic("t", [1], bytes_max=1 << 16)
    options = replace(OPTIONS, compression=Compression.NONE, linger_us=1)
    begin(core, compression=Compression.NONE)
    core.add_target(target, Converter(SCHEMA, "t"), 1, options)
    delivery = send(core, target, 0, "x" * 30_000, "y" * 31_000)
    core.close_batches(NOW)
    assert delivery.error is None
    rows = [row for call in core.poll(NOW).calls for row in staged_rows(call.body[0])]
    assert [row["row_count"] for row in rows] == [1, 1]


def test_what_comes_late_of_another_attempt_is_not_named() -> None:
    core = machine([1])
    core.staged(b"b" * 16, produced(3), 5)
    assert core.attempts() == []


def produced(offset: int) -> Produced:
    return Produced(0, offset, 1, Durability.REPLICATED, False)


def test_a_target_that_a_broker_does_not_know_is_looked_for() -> None:
    core = machine([1])
    asked: list[list[str]] = []

    def find_targets(topics: list[TopicInfo]) -> Any:
        asked.append([one.name for one in topics])
        return "question"

    core.ask(lambda: None, 1_000_000, find_targets, NOW)
    delivery = send(core, topic("t", [1]), 0, "x")
    (call,) = core.poll(NOW).calls
    core.on_failure(call, UnknownTopicId("row 0"), NOW)
    assert core.poll(NOW).question is None, "one is under way"
    assert core.poll(NOW, may_ask=True).question == "question"
    assert asked == [["t"]]
    assert core.poll(NOW, may_ask=True).question is None
    core.on_answer(0, UnknownTopicId("Topic 't' is gone."))
    assert isinstance(delivery.error, UnknownTopicId)
    assert isinstance(core.lost, UnknownTopicId)
    assert core.buffered_bytes == 0


def test_signs_of_life_are_due_each_interval_and_end_with_the_epoch() -> None:
    core = machine([1])
    core.ask(lambda: "sign", 1_000_000, lambda _: None, NOW)  # type: ignore[arg-type,return-value]
    assert core.poll(NOW, may_ask=True).question is None
    assert core.poll(NOW, may_ask=True).wake_at_us == NOW.mono_us + 1_000_000
    due = Now(NOW.mono_us + 1_000_000, NOW.wall_us)
    assert core.poll(due).wake_at_us is None, "the answer wakes"
    assert core.poll(due, may_ask=True).question == "sign"
    core.on_answer(3, None)
    assert core.lost is None
    assert core.poll(due, may_ask=True).wake_at_us == due.mono_us + 1_000_000
    core.on_answer(0, TransactionFenced("another"))
    assert isinstance(core.lost, TransactionFenced)
    assert core.poll(due, may_ask=True).wake_at_us is None


def test_another_epoch_than_the_own_ends_the_transaction() -> None:
    core = machine([1])
    delivery = send(core, topic("t", [1]), 0, "x")
    core.on_answer(5, None)
    assert isinstance(core.lost, TransactionClosed)
    assert isinstance(delivery.error, TransactionClosed)
