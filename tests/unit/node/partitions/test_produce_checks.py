"""Produces whose rows take long to check: bounds first, then a job; order; shutdown; bugs."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest

from quiverlog.batch import rows
from quiverlog.batch.codec import encode_batch
from quiverlog.errors import BatchTooLarge, CorruptBatch, QuiverlogError, ThrottledBroker
from quiverlog.node.runtime.events import JobDone, RequestReceived, Shutdown
from quiverlog.types import Compression
from quiverlog.wire import messages as m
from tests.support.node import SCHEMA, START_WALL_US, NodeDriver, batch_of, rows_of

ROWS_MAX = 16 * 1024 * 1024


def bomb(row_count: int, *, producer: tuple[int, int, int] = (-1, -1, -1)) -> bytes:
    """Few bytes, many rows."""
    zeros = pa.Array.from_buffers(pa.int64(), row_count, [None, pa.py_buffer(bytes(8 * row_count))])
    pid, epoch, sequence = producer
    return bytes(
        encode_batch(
            pa.record_batch([zeros], schema=SCHEMA),
            schema_id=1,
            timestamp_us=START_WALL_US,
            compression=Compression.ZSTD,
            producer_id=pid,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
    )


@pytest.fixture(scope="module")
def heavy() -> bytes:
    """8 MiB of decompression: 32 times what is checked on the loop."""
    return bomb(2**20)


@pytest.fixture(scope="module")
def largest() -> bytes:
    return bomb(ROWS_MAX)


@pytest.fixture
def node(tmp_path: Path) -> NodeDriver:
    return NodeDriver(tmp_path)


def produce_all(
    node: NodeDriver, topic: bytes, bodies: list[bytes]
) -> list[m.ProducePartitionResult]:
    """One request with one entry for each."""
    entries = [m.ProducePartition(topic, 0, -1, len(body)) for body in bodies]
    request = m.ProduceRequest(partitions=entries, timeout_ms=2_000)
    correlation = node.request(request, b"".join(bodies))
    while node.syncs:
        node.flush()
    answer = node.answer(correlation)
    assert answer is not None
    assert answer[0].error_code == 0, answer[0].error_message
    return list(answer[0].partitions)


def test_a_heavy_produce_is_checked_by_a_job_and_delays_no_other_request(
    node: NodeDriver, heavy: bytes
) -> None:
    topic = node.create(durability="memory")
    node.hold_jobs = True
    with mock.patch.object(rows, "check_rows", wraps=rows.check_rows) as looked:
        slow = node.produce(topic, heavy)
        assert looked.call_count == 0, "rows were read on the loop"
        quick = node.produce(topic, bytes(batch_of([1, 2])), connection=2)
        assert node.answer(slow) is None
        answer = node.answer(quick)
        assert answer is not None
        assert answer[0].partitions[0].base_offset == 0
        node.hold_jobs = False
        node.run_until_idle()
        assert looked.call_count == 2
    answer = node.answer(slow)
    assert answer is not None
    assert (answer[0].partitions[0].error_code, answer[0].partitions[0].base_offset) == (0, 2)


def test_entries_that_are_quick_one_by_one_and_slow_together_go_to_a_job(node: NodeDriver) -> None:
    topic = node.create(durability="memory")
    node.hold_jobs = True
    light = bomb(20_000)  # 160 KB.
    alone = node.produce(topic, light, connection=2)
    assert node.answer(alone) is not None
    entries = [m.ProducePartition(topic, 0, -1, len(light)) for _ in range(20)]
    together = node.request(m.ProduceRequest(partitions=entries), light * 20)
    assert node.answer(together) is None
    assert [start.job.kind for start in node.jobs] == ["check rows"]
    node.hold_jobs = False
    node.run_until_idle()
    answer = node.answer(together)
    assert answer is not None
    assert [r.base_offset for r in answer[0].partitions] == [20_000 * i for i in range(1, 21)]


def test_later_produces_of_the_connection_keep_their_order(node: NodeDriver, heavy: bytes) -> None:
    """Sequences of one producer prove it: out of order they would be refused."""
    topic = node.create(durability="memory")
    node.give_out(0, 0)
    node.hold_jobs = True
    bodies = [
        bytes(batch_of([1], producer=(0, 0, 0))),
        bomb(2**20, producer=(0, 0, 1)),
        bytes(batch_of([2, 3], producer=(0, 0, 1 + 2**20))),
        bomb(2**20, producer=(0, 0, 3 + 2**20)),
        bytes(batch_of([4], producer=(0, 0, 3 + 2**21))),
    ]
    asked = [node.produce(topic, body) for body in bodies]
    assert [node.answer(correlation) is not None for correlation in asked] == [True] + [False] * 4
    node.hold_jobs = False
    node.run_until_idle()
    results = []
    for correlation in asked:
        answer = node.answer(correlation)
        assert answer is not None
        results.append(answer[0].partitions[0])
    assert [r.error_code for r in results] == [0] * 5, [r.error_message for r in results]
    assert [r.base_offset for r in results] == [0, 1, 1 + 2**20, 3 + 2**20, 3 + 2**21]
    order = [r.correlation_id for r in node.responses if r.correlation_id in asked]
    assert order == asked


def test_the_body_of_a_heavy_produce_is_copied(node: NodeDriver, heavy: bytes) -> None:
    """The event's body is written over as soon as the call has returned."""
    topic = node.create(durability="memory")
    body = bytearray(heavy)
    request = m.ProduceRequest(partitions=[m.ProducePartition(topic, 0, -1, len(body))])
    request.correlation_id = 77
    node.hold_jobs = True
    node.send(RequestReceived(1, request, memoryview(body)))
    body[:] = bytes(len(body))
    node.hold_jobs = False
    node.run_until_idle()
    answer = node.answer(77)
    assert answer is not None
    assert answer[0].partitions[0].error_code == 0, answer[0].partitions[0].error_message
    _, stored = node.fetched(topic, entry_bytes_max=2**26)
    assert rows_of(stored) == [(0, 2**20)]


def test_bad_rows_are_refused_by_the_job_as_well(node: NodeDriver, heavy: bytes) -> None:
    topic = node.create(durability="memory")
    with mock.patch.object(rows, "check_rows", side_effect=CorruptBatch("bad")):
        bad, _ = produce_all(node, topic, [heavy, heavy])
    assert bad.error_code == CorruptBatch.code
    assert node.broker_end(topic) == 0


# --- bounds -----------------------------------------------------------------------------------
def test_rows_of_an_entry_are_added_up_before_any_is_read(node: NodeDriver, largest: bytes) -> None:
    """2,000 such batches once stalled the broker for 11 s, and were refused after that."""
    topic = node.create(durability="memory")
    with mock.patch.object(rows, "check_rows", side_effect=AssertionError("rows were read")):
        (result,) = produce_all(node, topic, [largest * 50])
    assert result.error_code == BatchTooLarge.code
    assert not node.metrics.internal_errors


def test_rows_and_bytes_of_a_request_are_added_up_before_any_is_read(
    node: NodeDriver, largest: bytes
) -> None:
    """The bound of an entry is none: a request may have ten thousand."""
    topic = node.create(durability="memory")
    with mock.patch.object(rows, "check_rows", wraps=rows.check_rows) as looked:
        results = produce_all(node, topic, [largest] * 50)
    # 128 MiB of decompression each, of 512 MiB that one request may ask for; 64 Mi rows.
    assert [r.error_code for r in results] == [0] * 4 + [ThrottledBroker.code] * 46
    assert looked.call_count == 4
    assert results[3].base_offset == 3 * ROWS_MAX
    assert node.broker_end(topic) == 4 * ROWS_MAX


def test_declared_bytes_of_an_entry_are_added_up(node: NodeDriver) -> None:
    topic = node.create(durability="memory")
    part = bomb(4 * 2**20)  # 32 MiB: the rows of four are allowed, nine are 288 MiB.
    with mock.patch("quiverlog.node.partitions.produce_checks.BATCH_ROWS_MAX", 2**30):
        (result,) = produce_all(node, topic, [part * 9])
    assert result.error_code == BatchTooLarge.code
    (result,) = produce_all(node, topic, [part * 4])
    assert result.error_code == 0


def test_batches_of_an_entry_are_counted(node: NodeDriver) -> None:
    topic = node.create(durability="memory")
    one = bytes(batch_of([1]))
    (result,) = produce_all(node, topic, [one * 10_001])
    assert result.error_code == BatchTooLarge.code
    (result,) = produce_all(node, topic, [one * 600])
    assert (result.error_code, result.row_count) == (0, 600)


def test_only_so_many_wait_and_one_connection_leaves_room(node: NodeDriver, heavy: bytes) -> None:
    topic = node.create(durability="memory")
    node.hold_jobs = True
    mine = [node.produce(topic, heavy) for _ in range(200)]
    refused = [c for c in mine if node.answer(c) is not None]
    assert len(mine) - len(refused) == 128, "half of 256"
    answer = node.answer(refused[0])
    assert answer is not None
    assert answer[0].error_code == ThrottledBroker.code
    other = node.produce(topic, heavy, connection=2)
    assert node.answer(other) is None, "there is room for another connection"
    node.hold_jobs = False
    node.run_until_idle()
    assert all(node.answer(c) is not None for c in [*mine, other])
    assert node.broker_end(topic) == 129 * 2**20
    held = node.node.broker.held_produces
    assert (held.count, held.byte_count) == (0, 0)


# --- what happens meanwhile -------------------------------------------------------------------
def test_a_stop_waits_for_the_checks(node: NodeDriver, heavy: bytes) -> None:
    topic = node.create()
    node.hold_jobs = True
    asked = [node.produce(topic, heavy), node.produce(topic, bytes(batch_of([1])))]
    node.send(Shutdown())
    assert [start.job.kind for start in node.jobs] == ["check rows"], "nothing is closed before"
    node.hold_jobs = False
    node.run_until_idle()
    while node.syncs:
        node.flush()
    assert node.shut_down
    for correlation in asked:
        answer = node.answer(correlation)
        assert answer is not None
        assert answer[0].partitions[0].error_code == 0
    node.start()
    assert node.broker_end(topic) == 2**20 + 1


def test_a_topic_that_went_meanwhile(node: NodeDriver, heavy: bytes) -> None:
    topic = node.create(durability="memory")
    node.hold_jobs = True
    asked = node.produce(topic, heavy)
    check = node.jobs.pop()
    node.hold_jobs = False
    node.call(m.DeleteTopicsRequest(names=["t"]))
    node._run(check)
    answer = node.answer(asked)
    assert answer is not None
    assert answer[0].partitions[0].error_code == 22


def test_a_connection_that_went_meanwhile(node: NodeDriver, heavy: bytes) -> None:
    topic = node.create(durability="memory")
    node.hold_jobs = True
    node.produce(topic, heavy)
    node.close_connection(1)
    node.hold_jobs = False
    node.run_until_idle()
    assert node.broker_end(topic) == 2**20


@pytest.mark.parametrize("where", ["check_structures", "rows", "run"])
def test_a_bug_in_the_job_is_answered_once(node: NodeDriver, heavy: bytes, where: str) -> None:
    topic = node.create(durability="memory")
    target = {
        "check_structures": "quiverlog.node.partitions.produce_checks._check_structures",
        "rows": "quiverlog.node.partitions.produce_checks.EntryCheck.rows",
        "run": "quiverlog.node.partitions.produce_checks.CheckJob.run",
    }[where]
    node.hold_jobs = True
    asked = [node.produce(topic, heavy), node.produce(topic, bytes(batch_of([1])))]
    check = node.jobs.pop(0)
    result: object = None
    error: Exception | None = None
    with mock.patch(target, side_effect=RuntimeError("planted")):
        try:
            result = check.job.run()
        except RuntimeError as planted:
            error = planted
    node.send(JobDone(check.job, result, error))
    node.hold_jobs = False
    node.run_until_idle()
    first, second = (node.answer(correlation) for correlation in asked)
    assert first is not None
    code = first[0].error_code or first[0].partitions[0].error_code
    assert code == QuiverlogError.code
    assert node.metrics.internal_errors == 1
    assert second is not None, "those in line behind it have their turn"
    assert second[0].partitions[0].base_offset == 0
    assert node.produced(topic, heavy).base_offset == 1


def test_a_bug_after_the_job_is_answered_once(node: NodeDriver, heavy: bytes) -> None:
    topic = node.create(durability="memory")
    node.hold_jobs = True
    asked = [node.produce(topic, heavy), node.produce(topic, bytes(batch_of([1])))]
    with mock.patch("quiverlog.node.apis.produce.look", side_effect=RuntimeError("planted")):
        node.step()
    answers = [node.answer(correlation) for correlation in asked]
    assert [a is not None and a[0].error_code for a in answers] == [QuiverlogError.code] * 2
    node.hold_jobs = False
    assert node.produced(topic, heavy).base_offset == 0


def test_two_connections_are_checked_at_once_and_no_more(node: NodeDriver, heavy: bytes) -> None:
    topic = node.create(partitions=3)
    node.hold_jobs = True
    for connection in (1, 2):
        node.produce(topic, heavy, connection=connection, partition=connection)
    node.call(m.HelloRequest(client_id="test-3"), connection=3)
    node.produce(topic, heavy, connection=3)
    assert [start.job.kind for start in node.jobs] == ["check rows"] * 2
    assert node.node.held_bytes == 3 * len(heavy)
    node.step()
    assert [start.job.kind for start in node.jobs] == ["check rows"] * 2
    node.hold_jobs = False
    node.run_until_idle()
    while node.syncs:
        node.flush()
    assert [node.broker_end(topic, p) > 0 for p in range(3)] == [True] * 3
    assert node.node.held_bytes == 0
