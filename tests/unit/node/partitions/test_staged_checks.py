"""PRODUCE to `__staged`: what each row must be, each bad input with its answer, and the bounds."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pyarrow as pa
import pytest

from quiverlog import errors as e
from quiverlog.batch import codec
from quiverlog.batch.checksum import crc32c
from quiverlog.batch.codec import encode_batch, write_crc
from quiverlog.batch.header import BatchHeader, stamp
from quiverlog.batch.schema import serialize_schema
from quiverlog.core.controller.internal_topics import TRANSACTIONS
from quiverlog.core.transactions.staged_rows import StagedRow
from quiverlog.limits import BATCH_BYTES_MAX
from quiverlog.node.apis import produce
from quiverlog.node.partitions import produce_checks, staged_checks
from quiverlog.types import Compression
from quiverlog.wire import messages as m
from tests.support.node import SCHEMA, START_WALL_US, NodeDriver, batch_of
from tests.support.staged import ATTEMPT, make_staged, staged_batch, staged_row

HOUR_US = 3_600_000_000
TEXT = pa.schema([("s", pa.string())])


class World(NamedTuple):
    node: NodeDriver
    staged: bytes
    topic: bytes

    def result(self, *batches: bytes) -> Any:
        """The entry's result; what was refused is not stored."""
        end = self.node.broker_end(self.staged)
        correlation = self.node.produce(self.staged, *batches)
        while self.node.syncs and self.node.answer(correlation) is None:
            self.node.flush()
        answer = self.node.answer(correlation)
        assert answer is not None
        assert answer[0].error_code == 0, answer[0].error_message
        result = answer[0].partitions[0]
        stored = self.node.broker_end(self.staged) - end
        assert stored == (0 if result.error_code else result.row_count)
        return result

    def row(self, batch: bytes | None = None, **changes: Any) -> dict[str, Any]:
        return {**staged_row(self.topic, good() if batch is None else batch), **changes}

    def stage(self, *rows: dict[str, Any]) -> Any:
        return self.result(staged_batch(rows))

    def image(self, name: str) -> Any:
        return self.node.node.broker.metadata.image.topics[name]


@pytest.fixture
def world(tmp_path: Path) -> World:
    node = NodeDriver(tmp_path)
    staged = make_staged(node)
    return World(node, staged, node.create("t", partitions=2))


def good(values: tuple[int, ...] = (1, 2, 3)) -> bytes:
    return bytes(batch_of(values))


def again(batch: bytes, change: Callable[[bytearray], None]) -> bytes:
    """Changed, with a CRC that fits."""
    changed = bytearray(batch)
    change(changed)
    write_crc(changed)
    return bytes(changed)


def zipped(row_count: int) -> bytes:
    """Many rows in few bytes."""
    zeros = [None, pa.py_buffer(bytes(8 * row_count))]
    column = pa.Array.from_buffers(pa.int64(), row_count, zeros)
    return bytes(
        encode_batch(
            pa.record_batch([column], schema=SCHEMA),
            schema_id=1,
            timestamp_us=START_WALL_US,
            compression=Compression.ZSTD,
        )
    )


# --- what is good -------------------------------------------------------------------------------
def test_rows_are_stored_as_they_came(world: World) -> None:
    rows = [world.row(), world.row(good((4,)), partition=1, epoch=0, sequence=0)]
    batch = staged_batch(rows)
    world.node.give_out(0, 0)
    sent = staged_batch(rows, producer=(0, 0, 0))
    assert (world.result(sent).base_offset, world.result(batch).base_offset) == (0, 2)
    _, body = world.node.fetched(world.staged)
    assert body[20 : len(sent)] == sent[20:]
    result = world.node.produced(world.staged, sent)
    assert (result.base_offset, result.duplicate) == (0, True)


@pytest.mark.parametrize("inline_max", [0, 16], ids=["by a job", "at once"])
def test_what_is_checked_is_handed_on(world: World, inline_max: int) -> None:
    """In the order of the rows, over all batches of an entry."""
    seen: list[StagedRow] = []
    admit = produce._admit

    def look(broker: Any, replica: Any, entry: Any, *rest: Any) -> int:
        seen.extend(entry.inner.rows)
        return admit(broker, replica, entry, *rest)

    first = good()
    with (
        mock.patch.object(produce, "_admit", look),
        mock.patch.object(produce_checks, "_STAGED_BATCHES_INLINE_MAX", inline_max),
    ):
        world.result(
            staged_batch([world.row(first, transactional_id="ü" * 512)]),
            staged_batch([world.row(first, sequence=2**63 - 2, epoch=2**62 - 1), world.row()]),
        )
    one = StagedRow("ü" * 512, 1, 2, ATTEMPT, world.topic, 0, 3, len(first))
    assert seen == [
        one,
        one._replace(transactional_id="id", epoch=2**62 - 1, sequence=2**63 - 2),
        one._replace(transactional_id="id"),
    ]


def test_a_batch_in_a_row_may_be_compressed(world: World) -> None:
    assert world.stage(world.row(zipped(100), row_count=100)).error_code == 0


def test_the_times_of_a_topic_that_stamps_them_do_not_count(world: World) -> None:
    topic = world.node.create("stamped", message_timestamp_type="LogAppendTime")
    late = bytes(batch_of([1], at_us=START_WALL_US + 9 * HOUR_US))
    assert world.stage(staged_row(topic, late)).error_code == 0


# --- what is bad --------------------------------------------------------------------------------
Bad = tuple[Callable[[World], dict[str, Any]], type[e.QuiverlogError], str]
BAD: dict[str, Bad] = {
    "a kind of brokers": (lambda w: w.row(kind=1), e.InvalidRequest, "kind 1"),
    "another kind": (lambda w: w.row(kind=-1), e.InvalidRequest, "kind -1"),
    "an empty id": (lambda w: w.row(transactional_id=""), e.InvalidRequest, "this one 0"),
    "a long id": (lambda w: w.row(transactional_id="x" * 513), e.InvalidRequest, "this one 513"),
    "a negative epoch": (lambda w: w.row(epoch=-1), e.InvalidRequest, "`epoch` is -1"),
    "a negative sequence": (lambda w: w.row(sequence=-1), e.InvalidRequest, "`sequence` is -1"),
    "an epoch that no id gets": (lambda w: w.row(epoch=2**62), e.InvalidRequest, "`epoch` is 46"),
    "the last sequence": (
        lambda w: w.row(sequence=2**63 - 1),
        e.InvalidRequest,
        "`sequence` is 92",
    ),
    "no attempt": (lambda w: w.row(attempt=b""), e.InvalidRequest, "this one 0"),
    "a short attempt": (lambda w: w.row(attempt=b"a" * 15), e.InvalidRequest, "this one 15"),
    "a long attempt": (lambda w: w.row(attempt=b"a" * 17), e.InvalidRequest, "this one 17"),
    **{
        f"no {name}": (
            lambda w, name=name: w.row(**{name: None}),  # type: ignore[misc]
            e.InvalidRequest,
            f"'{name}' is null",
        )
        for name in staged_row(b"", bytes(64))
    },
    "an unknown topic": (lambda w: w.row(topic_id=bytes(16)), e.UnknownTopicId, "no topic with id"),
    "no topic id": (lambda w: w.row(topic_id=b""), e.UnknownTopicId, "no topic with id"),
    "a topic's name": (lambda w: w.row(topic_id=b"t"), e.UnknownTopicId, "no topic with id"),
    "a partition too many": (lambda w: w.row(partition=2), e.UnknownPartition, "0 to 1, not 2"),
    "a negative partition": (lambda w: w.row(partition=-1), e.UnknownPartition, "not -1"),
    "__staged inside": (lambda w: w.row(topic_id=w.staged), e.InternalTopic, "__staged"),
    "__transactions inside": (
        lambda w: w.row(topic_id=w.image(TRANSACTIONS).topic_id),
        e.InternalTopic,
        "__transactions",
    ),
    "no batch": (lambda w: w.row(batch=b"", row_count=1), e.CorruptBatch, "has no header"),
    "a cut batch": (lambda w: w.row(batch=good()[:-64]), e.CorruptBatch, "claims"),
    "two batches": (lambda w: w.row(batch=good() * 2), e.CorruptBatch, "claims"),
    "a wrong CRC": (
        lambda w: w.row(batch=good()[:-65] + b"\x01" + good()[-64:]),
        e.CorruptBatch,
        "CRC",
    ),
    "another schema id": (
        lambda w: w.row(bytes(batch_of([1], schema_id=7))),
        e.UnknownSchema,
        "no schema 7",
    ),
    "another schema": (
        lambda w: w.row(bytes(batch_of(["x"], schema=TEXT))),  # type: ignore[list-item]
        e.CorruptBatch,
        "buffers",
    ),
    "a large batch": (
        lambda w: staged_row(w.node.create("small", max_message_bytes="1024"), good((1,) * 200)),
        e.BatchTooLarge,
        "above 1024",
    ),
    "times ahead": (
        lambda w: w.row(bytes(batch_of([1], at_us=START_WALL_US + 2 * HOUR_US))),
        e.InvalidTimestamp,
        "in the future",
    ),
    "flags": (
        lambda w: w.row(again(good(), lambda b: b.__setitem__(21, 1))),
        e.CorruptBatch,
        "flags",
    ),
    "an offset": (
        lambda w: w.row(again(good(), lambda b: stamp(b, 0, 5, 0))),
        e.CorruptBatch,
        r"not \(5, 0\)",
    ),
    "a leader epoch": (
        lambda w: w.row(again(good(), lambda b: stamp(b, 0, 0, 4))),
        e.CorruptBatch,
        r"not \(0, 4\)",
    ),
    "a producer": (
        lambda w: w.row(bytes(batch_of([1], producer=(5, 0, 0)))),
        e.CorruptBatch,
        r"not \(5, 0, 0\)",
    ),
    "too few rows counted": (lambda w: w.row(row_count=2), e.CorruptBatch, "`row_count` is 2"),
    "too many rows counted": (lambda w: w.row(row_count=4), e.CorruptBatch, "`row_count` is 4"),
    "damaged compression": (
        lambda w: w.row(again(zipped(3), lambda b: b.__setitem__(slice(-64, -40), b"x" * 24))),
        e.CorruptBatch,
        "",
    ),
    "no UTF-8 where values are checked": (
        lambda w: staged_row(full_topic(w), no_utf8(bytes(batch_of(["aaaa"], schema=TEXT)))),  # type: ignore[list-item]
        e.CorruptBatch,
        "UTF8",
    ),
}


def full_topic(world: World) -> bytes:
    new = m.NewTopic("full", serialize_schema(TEXT), 1, 1, [], {"validation": "full"})
    response, _ = world.node.call(m.CreateTopicsRequest(topics=[new]))
    return bytes(response.topics[0].topic_id)


def no_utf8(batch: bytes) -> bytes:
    assert batch.count(b"aaaa") == 1
    return again(
        batch,
        lambda b: b.__setitem__(slice(batch.index(b"aaaa"), batch.index(b"aaaa") + 4), b"\xff" * 4),
    )


@pytest.mark.parametrize("by_job", [False, True], ids=["at once", "by a job"])
@pytest.mark.parametrize("what", BAD)
def test_one_bad_row_refuses_all_and_is_named(world: World, what: str, by_job: bool) -> None:
    make, kind, why = BAD[what]
    bad = make(world)
    with mock.patch.object(produce_checks, "_STAGED_BATCHES_INLINE_MAX", 0 if by_job else 16):
        result = world.stage(world.row(), world.row(), bad, world.row())
    assert result.error_code == kind.code, result.error_message
    assert re.search(why, result.error_message)
    assert result.error_message.startswith("staged row 2: "), result.error_message


def test_a_row_is_counted_over_all_batches_of_the_entry(world: World) -> None:
    pair = staged_batch([world.row(), world.row()])
    result = world.result(pair, staged_batch([world.row(), world.row(kind=2)]))
    assert result.error_message.startswith("staged row 3: kind 2")


def test_an_id_that_is_no_utf8(world: World) -> None:
    batch = staged_batch([world.row(transactional_id="aaaa")])
    result = world.result(no_utf8(batch))
    assert result.error_code == e.InvalidRequest.code
    assert "staged row 0: its transactional id is no UTF-8" in result.error_message


def test_staged_rows_are_not_compressed(world: World) -> None:
    result = world.result(staged_batch([world.row()], compression=Compression.ZSTD))
    assert result.error_code == e.InvalidRequest.code
    assert "not compressed" in result.error_message


@pytest.mark.parametrize("over", [-64, 0, 64])
def test_a_staged_batch_is_as_large_as_any_with_all_that_is_in_it(world: World, over: int) -> None:
    """So a batch just below the bound cannot be staged: its row has other columns, too."""
    large = world.node.create("large", max_message_bytes=str(BATCH_BYTES_MAX))
    beside = len(staged_batch([staged_row(large, good((1,) * 8))])) - 8 * 8
    values = range((BATCH_BYTES_MAX + over - beside) // 8)
    with mock.patch.object(codec, "BATCH_BYTES_MAX", 2 * BATCH_BYTES_MAX):
        batch = staged_batch([staged_row(large, bytes(batch_of(values)))])
    assert len(batch) == BATCH_BYTES_MAX + over
    result = world.result(batch)
    if over <= 0:
        assert (result.error_code, result.row_count) == (0, 1)
    else:
        assert result.error_code == e.BatchTooLarge.code
        assert f"a batch of {len(batch)} bytes is above {BATCH_BYTES_MAX}." in result.error_message


def test_the_batch_itself_is_checked_as_any(world: World) -> None:
    batch = staged_batch([world.row()])
    damaged = batch[:-70] + bytes(6) + batch[-64:]
    assert world.result(damaged).error_code == e.CorruptBatch.code
    plain = world.result(good())
    assert (plain.error_code, plain.row_count) == (e.CorruptBatch.code, 0)
    assert (
        world.result(
            again(batch, lambda b: b.__setitem__(slice(40, 44), struct.pack("<I", 2)))
        ).error_code
        == e.UnknownSchema.code
    )


def test_wild_offsets_of_a_column_are_not_followed(world: World) -> None:
    """The rows are decoded here, so their layout is checked here."""
    batch = staged_batch([world.row(transactional_id="aaaa"), world.row(transactional_id="bbbb")])
    at = batch.index(struct.pack("<iii", 0, 4, 8))
    wild = again(batch, lambda b: b.__setitem__(slice(at + 4, at + 8), struct.pack("<i", 2**30)))
    result = world.result(wild)
    assert result.error_code == e.CorruptBatch.code
    assert "Arrow refuses the rows" in result.error_message


def test_no_client_writes_transactions(world: World) -> None:
    answer, _ = world.node.call(
        m.ProduceRequest(
            partitions=[m.ProducePartition(world.image(TRANSACTIONS).topic_id, 0, -1, len(good()))]
        ),
        good(),
    )
    assert answer.partitions[0].error_code == e.InternalTopic.code


def test_entries_for_other_topics_beside_are_stored(world: World) -> None:
    bad, plain = staged_batch([world.row(kind=1)]), good()
    entries = [
        m.ProducePartition(world.staged, 0, -1, len(bad)),
        m.ProducePartition(world.topic, 0, -1, len(plain)),
        m.ProducePartition(world.staged, 1, -1, len(staged_batch([world.row()]))),
    ]
    request = m.ProduceRequest(partitions=entries)
    asked = world.node.request(request, bad + plain + staged_batch([world.row()]))
    while world.node.syncs:
        world.node.flush()
    answer = world.node.answer(asked)
    assert answer is not None
    codes = [one.error_code for one in answer[0].partitions]
    assert codes == [e.InvalidRequest.code, 0, 0]


# --- bounds -------------------------------------------------------------------------------------
@pytest.mark.parametrize("over", [-1, 0, 1])
def test_the_most_batches_of_an_entry(world: World, over: int) -> None:
    row = world.row(good((1,)))
    result = world.stage(*[row] * (10_000 + over))
    wanted = e.BatchTooLarge.code if over > 0 else 0
    assert result.error_code == wanted, result.error_message


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_the_most_rows_of_an_entry(world: World, over: int) -> None:
    with mock.patch.object(staged_checks, "BATCH_ROWS_MAX", 9):
        rows = [world.row(), world.row(), world.row(good((1,) * (3 + over)))]
        result = world.stage(*rows)
        assert world.stage(world.row(good((1,) * 10))).error_code == 0, "alone, as in PRODUCE"
    wanted = e.BatchTooLarge.code if over > 0 else 0
    assert result.error_code == wanted, result.error_message


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_the_most_bytes_that_an_entry_claims(world: World, over: int) -> None:
    batch = zipped(64)
    with mock.patch.object(staged_checks, "BATCH_DECODED_BYTES_MAX", 3 * 8 * 64 - over):
        result = world.stage(*[world.row(batch, row_count=64)] * 3)
    wanted = e.BatchTooLarge.code if over > 0 else 0
    assert result.error_code == wanted, result.error_message


@pytest.mark.parametrize("bound", ["PRODUCE_ROWS_MAX", "PRODUCE_DECODED_BYTES_MAX"])
@pytest.mark.parametrize("over", [-1, 0, 1])
def test_the_most_of_a_request(world: World, bound: str, over: int) -> None:
    """An entry beyond it may come again, in another request."""
    batch = zipped(64)
    staged = staged_batch([world.row(batch, row_count=64)])
    each = 64 if bound == "PRODUCE_ROWS_MAX" else 8 * 64
    entries = [m.ProducePartition(world.staged, 0, -1, len(staged)) for _ in range(3)]
    entries[0] = m.ProducePartition(world.topic, 0, -1, len(batch))
    with mock.patch.object(produce_checks, bound, 3 * each - over):
        asked = world.node.request(m.ProduceRequest(partitions=entries), batch + staged * 2)
        while world.node.syncs:
            world.node.flush()
        answer = world.node.answer(asked)
    assert answer is not None
    codes = [one.error_code for one in answer[0].partitions]
    assert codes == [0, 0, e.ThrottledBroker.code if over > 0 else 0]


# --- on the loop, or by a job ---------------------------------------------------------------------
@pytest.mark.parametrize(
    ("rows", "bytes_each", "by_job"),
    [(16, 100, False), (17, 100, True), (1, 2_000_000, False), (1, 2_100_000, True)],
)
def test_many_rows_or_bytes_are_checked_by_a_job(
    world: World, rows: int, bytes_each: int, by_job: bool
) -> None:
    batch = good((1,) * (bytes_each // 8 - 100 if bytes_each > 100 else 1))
    staged = staged_batch([world.row(batch)] * rows)
    world.node.hold_jobs = True
    with mock.patch.object(staged_checks, "_rows_of", wraps=staged_checks._rows_of) as read:
        asked = world.node.produce(world.staged, staged)
        assert (read.call_count == 0) is by_job
        assert [one.job.kind for one in world.node.jobs] == ["check rows"] * by_job
        world.node.hold_jobs = False
        world.node.run_until_idle()
    while world.node.syncs:
        world.node.flush()
    answer = world.node.answer(asked)
    assert answer is not None
    assert answer[0].partitions[0].error_code == 0, answer[0].partitions[0].error_message


def test_rows_inside_that_cost_much_are_checked_by_a_job(world: World) -> None:
    world.node.hold_jobs = True
    asked = world.node.produce(world.staged, staged_batch([world.row(zipped(2**20))]))
    assert world.node.answer(asked) is None
    assert [one.job.kind for one in world.node.jobs] == ["check rows"]
    world.node.hold_jobs = False
    world.node.run_until_idle()
    while world.node.syncs:
        world.node.flush()
    assert world.node.answer(asked) is not None


def test_the_crc_is_the_batchs_own() -> None:
    """`again` mends what it changes: the cases above do not all end at the CRC."""
    changed = again(good(), lambda b: stamp(b, 0, 5, 0))
    assert BatchHeader.unpack(changed).crc32c == crc32c(memoryview(changed)[20:])
