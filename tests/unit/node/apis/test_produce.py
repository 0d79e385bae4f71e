"""PRODUCE through the whole node: validation, durability, group commit, repetitions."""

from __future__ import annotations

import gc
from pathlib import Path
from unittest import mock

import pytest

from quiverlog import errors
from quiverlog.node.apis.produce import Produce
from quiverlog.node.runtime.effects import Respond
from quiverlog.node.runtime.events import RequestReceived
from quiverlog.storage.segment.segment import Segment
from quiverlog.types import Durability
from quiverlog.wire import messages as m
from tests.support.node import NodeDriver, batch_of


@pytest.fixture
def node(tmp_path: Path) -> NodeDriver:
    return NodeDriver(tmp_path)


def result_of(node: NodeDriver, correlation: int) -> m.ProducePartitionResult | None:
    answer = node.answer(correlation)
    if answer is None:
        return None
    assert answer[0].error_code == 0, answer[0].error_message
    result: m.ProducePartitionResult = answer[0].partitions[0]
    return result


def test_a_flushed_acknowledgement_waits_for_the_disk(node: NodeDriver) -> None:
    topic = node.create()
    correlation = node.produce(topic, batch_of([1, 2, 3]))
    assert node.answer(correlation) is None
    assert len(node.syncs) == 1
    assert node.fetched(topic)[1] == b"", "readers see rows when they are as safe as promised"
    node.flush()
    result = result_of(node, correlation)
    assert result is not None
    assert (result.error_code, result.base_offset, result.row_count) == (0, 0, 3)
    assert result.durability == Durability.FLUSHED
    assert [h.row_count for h in node.headers(topic)] == [3]


def test_a_memory_acknowledgement_does_not_wait(node: NodeDriver) -> None:
    topic = node.create(durability="memory")
    result = result_of(node, node.produce(topic, batch_of([1])))
    assert result is not None
    assert result.durability == Durability.MEMORY
    assert node.syncs == []
    assert len(node.headers(topic)) == 1


def test_a_request_may_ask_a_memory_topic_for_flushed(node: NodeDriver) -> None:
    topic = node.create(durability="memory")
    correlation = node.produce(topic, batch_of([1]), durability=Durability.FLUSHED)
    assert node.answer(correlation) is None
    node.flush()
    result = result_of(node, correlation)
    assert result is not None
    assert result.durability == Durability.FLUSHED


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (Durability.MEMORY, "may only ask for more"),
        (Durability.REPLICATED, "the topic is not replicated"),
        (3, "the topic is not replicated"),
        (4, "no durability has the number 4"),
        (-2, "no durability has the number -2"),
    ],
)
def test_other_levels_are_refused(node: NodeDriver, asked: int, why: str) -> None:
    topic = node.create()
    result = result_of(node, node.produce(topic, batch_of([1]), durability=asked))
    assert result is not None
    assert result.error_code == errors.UnsupportedDurability.code
    assert why in result.error_message
    assert node.syncs == []


def test_group_commit_one_flush_for_all_that_came_meanwhile(node: NodeDriver) -> None:
    topic = node.create()
    first = node.produce(topic, batch_of([1]))
    later = [node.produce(topic, batch_of([i])) for i in range(5)]
    assert len(node.syncs) == 1, "one flush at a time"
    node.flush()
    assert node.answer(first) is not None
    assert all(node.answer(c) is None for c in later), "the flush began before their rows came"
    assert len(node.syncs) == 1
    node.flush()
    offsets = [node.answer(c)[0].partitions[0].base_offset for c in later]  # type: ignore[index]
    assert offsets == [1, 2, 3, 4, 5]
    assert node.syncs == []


def test_requests_of_one_read_share_the_first_flush(node: NodeDriver) -> None:
    topic = node.create()
    requests = []
    for i in range(10):
        body = bytes(batch_of([i]))
        entry = m.ProducePartition(topic, 0, -1, len(body))
        requests.append((m.ProduceRequest(partitions=[entry]), body))
    node.request_many(requests)
    assert len(node.syncs) == 1
    node.flush()
    assert node.syncs == []
    found = [node.answer(r.correlation_id)[0].partitions[0].base_offset for r, _ in requests]  # type: ignore[index]
    assert found == list(range(10))
    assert [h.base_offset for h in node.headers(topic)] == list(range(10))


def test_flushes_in_flight_are_bounded(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path, flushes_in_flight_max=2)
    topic = node.create(partitions=5)
    sent = [node.produce(topic, batch_of([p]), partition=p, connection=p % 3) for p in range(5)]
    assert len(node.syncs) == 2
    for _ in range(3):
        node.flush()
        assert len(node.syncs) <= 2
    assert all(node.answer(c) is not None for c in sent)


def test_entries_are_independent(node: NodeDriver) -> None:
    topic = node.create(partitions=2)
    good, bad = bytes(batch_of([1])), bytearray(batch_of([2]))
    bad[-1] ^= 1
    entries = [
        m.ProducePartition(topic, 0, -1, len(bad)),
        m.ProducePartition(topic, 1, -1, len(good)),
        m.ProducePartition(topic, 7, -1, len(good)),
        m.ProducePartition(b"?" * 16, 0, -1, len(good)),
    ]
    correlation = node.request(m.ProduceRequest(partitions=entries), bytes(bad) + good * 3)
    node.flush()
    answer = node.answer(correlation)
    assert answer is not None
    assert [r.error_code for r in answer[0].partitions] == [
        errors.CorruptBatch.code,
        0,
        errors.UnknownPartition.code,
        errors.UnknownTopicId.code,
    ]
    assert "partitions 0 to 1" in answer[0].partitions[2].error_message
    assert node.headers(topic) == []


def test_a_batch_of_an_entry_that_is_bad_refuses_the_entry(node: NodeDriver) -> None:
    topic = node.create()
    bad = bytearray(batch_of([2]))
    bad[70] ^= 1
    result = result_of(node, node.produce(topic, batch_of([1]), bad))
    assert result is not None
    assert result.error_code == errors.CorruptBatch.code
    assert node.broker_end(topic) == 0


def test_batches_of_an_entry_are_stored_together(node: NodeDriver) -> None:
    topic = node.create()
    result = node.produced(topic, batch_of([1, 2]), batch_of([3]))
    assert (result.base_offset, result.row_count) == (0, 3)
    assert [(h.base_offset, h.leader_epoch) for h in node.headers(topic)] == [(0, 0), (2, 0)]


@pytest.mark.parametrize("sizes", [[1], [200, 63], [10**9], [-1]])
def test_lying_sizes_refuse_the_request(node: NodeDriver, sizes: list[int]) -> None:
    topic = node.create()
    entries = [m.ProducePartition(topic, 0, -1, size) for size in sizes]
    response, _ = node.call(m.ProduceRequest(partitions=entries), bytes(batch_of([1])))
    assert response.error_code == errors.InvalidRequest.code
    assert node.broker_end(topic) == 0


def test_wrong_leader_epochs_are_refused(node: NodeDriver) -> None:
    topic = node.create()
    node.crash()
    for epoch, error in [(0, errors.FencedLeaderEpoch), (2, errors.UnknownLeaderEpoch)]:
        result = result_of(node, node.produce(topic, batch_of([1]), leader_epoch=epoch))
        assert result is not None
        assert result.error_code == error.code
    assert node.produced(topic, batch_of([1]), leader_epoch=1).leader_epoch == 1


def test_a_batch_larger_than_the_topics_bound_is_refused(node: NodeDriver) -> None:
    topic = node.create(max_message_bytes="4096")
    result = result_of(node, node.produce(topic, batch_of(list(range(2000)))))
    assert result is not None
    assert result.error_code == errors.BatchTooLarge.code


def test_unknown_schema_id_is_refused(node: NodeDriver) -> None:
    topic = node.create()
    result = result_of(node, node.produce(topic, batch_of([1], schema_id=2)))
    assert result is not None
    assert result.error_code == errors.UnknownSchema.code


# --- idempotent producers -----------------------------------------------------------------------
def test_a_repetition_is_stored_once_and_waits_for_the_disk(node: NodeDriver) -> None:
    topic = node.create()
    batch = batch_of([1, 2], producer=(5, 0, 0))
    first = node.produce(topic, batch)
    again = node.produce(topic, batch)
    assert node.answer(again) is None, "its rows are not on the disk yet"
    node.flush()
    node.flush()
    one, two = result_of(node, first), result_of(node, again)
    assert one is not None
    assert two is not None
    assert (one.base_offset, one.duplicate) == (0, False)
    assert (two.base_offset, two.duplicate, two.row_count) == (0, True, 2)
    third = result_of(node, node.produce(topic, batch))
    assert third is not None, "the rows are on the disk: no reason to wait"
    assert third.duplicate
    assert node.broker_end(topic) == 2
    assert node.metrics.batches_deduplicated == 2


def test_a_repetition_in_the_same_read_is_found(node: NodeDriver) -> None:
    topic = node.create()
    body = bytes(batch_of([1, 2], producer=(5, 0, 0)))
    entry = m.ProducePartition(topic, 0, -1, len(body))
    requests = [(m.ProduceRequest(partitions=[entry]), body) for _ in range(3)]
    node.request_many(requests)
    node.flush()
    assert node.broker_end(topic) == 2
    found = [node.answer(r.correlation_id)[0].partitions[0].duplicate for r, _ in requests]  # type: ignore[index]
    assert found == [False, True, True]


@pytest.mark.parametrize("clean", [True, False])
def test_producers_survive_a_restart(node: NodeDriver, *, clean: bool) -> None:
    topic = node.create()
    for i in range(7):
        node.produced(topic, batch_of([i, i], producer=(5, 0, 2 * i)))
    if clean:
        node.restart()
    else:
        node.crash()
    again = node.produced(topic, batch_of([6, 6], producer=(5, 0, 12)))
    assert (again.duplicate, again.base_offset) == (True, 12)
    assert node.produced(topic, batch_of([7, 7], producer=(5, 0, 14))).base_offset == 14
    result = result_of(node, node.produce(topic, batch_of([1], producer=(5, 0, 99))))
    assert result is not None
    assert result.error_code == errors.OutOfOrderSequence.code


def test_an_entry_of_several_batches_has_no_producer_id(node: NodeDriver) -> None:
    """What is remembered follows from the log, batch by batch: five entries could not be."""
    topic = node.create()
    one, two = batch_of([1], producer=(5, 0, 0)), batch_of([2], producer=(5, 0, 1))
    for batches in [(one, two), (batch_of([0]), one), (one, batch_of([0]))]:
        result = result_of(node, node.produce(topic, *batches))
        assert result is not None
        assert result.error_code == errors.InvalidRequest.code
        assert "one batch" in result.error_message
    assert node.broker_end(topic) == 0
    assert node.produced(topic, batch_of([1]), batch_of([2])).row_count == 2


@pytest.mark.parametrize("producer", [(777_777, 0, 0), (5, 9, 0)])
def test_ids_and_epochs_that_were_never_given_out_are_refused(
    node: NodeDriver, producer: tuple[int, int, int]
) -> None:
    """An epoch made up by a stranger would fence the producer that has the id."""
    topic = node.create()
    node.give_out(5, 0)
    node.produced(topic, batch_of([1], producer=(5, 0, 0)))
    for _ in range(2):
        body = bytes(batch_of([1], producer=producer))
        entry = m.ProducePartition(topic, 0, -1, len(body))
        request = m.ProduceRequest(partitions=[entry], correlation_id=900_000)
        node.responses.clear()
        node.send(RequestReceived(1, request, memoryview(bytearray(body))))
        result = result_of(node, 900_000)
        assert result is not None
        assert result.error_code in (
            errors.UnknownProducerId.code,
            errors.InvalidProducerEpoch.code,
        )
        node.crash()
    assert node.produced(topic, batch_of([1], producer=(5, 0, 1))).base_offset == 1


@pytest.mark.parametrize("producer_id", [2**62 - 1, 2**62, 2**63 - 1])
def test_ids_of_publishes_are_refused_for_good(node: NodeDriver, producer_id: int) -> None:
    """Only brokers append publishes: THROTTLED_BROKER would have a client try for ever."""
    topic = node.create()
    body = bytes(batch_of([1], producer=(producer_id, 5, 0)))
    entry = m.ProducePartition(topic, 0, -1, len(body))
    request = m.ProduceRequest(partitions=[entry], correlation_id=900_000)
    node.send(RequestReceived(1, request, memoryview(bytearray(body))))
    result = result_of(node, 900_000)
    assert result is not None
    expected = errors.UnknownProducerId if producer_id < 2**62 else errors.InvalidRequest
    assert result.error_code == expected.code
    assert node.broker_end(topic) == 0


def test_an_older_epoch_is_refused_where_the_newer_has_not_written_yet(node: NodeDriver) -> None:
    """The producer with epoch 1 relies on epoch 0 being over, also after a crash."""
    topic = node.create()
    node.give_out(5, 0)
    assert node.produced(topic, batch_of([1, 2], producer=(5, 0, 0))).base_offset == 0
    node.give_out(5, 1)
    for _ in range(2):
        result = result_of(node, node.produce(topic, batch_of([3], producer=(5, 0, 2))))
        assert result is not None
        assert (result.error_code, result.next_sequence) == (errors.InvalidProducerEpoch.code, 2)
        again = node.produced(topic, batch_of([1, 2], producer=(5, 0, 0)))
        assert (again.base_offset, again.duplicate, again.next_sequence) == (0, True, -1)
        node.crash()
    assert node.broker_end(topic) == 2
    result = result_of(node, node.produce(topic, batch_of([4], producer=(5, 1, 2))))
    assert result is not None
    assert result.error_code == errors.OutOfOrderSequence.code, "a new epoch begins at 0"
    assert node.produced(topic, batch_of([4], producer=(5, 1, 0))).base_offset == 2
    result = result_of(node, node.produce(topic, batch_of([1, 2], producer=(5, 0, 0))))
    assert result is not None
    assert (result.error_code, result.next_sequence) == (errors.InvalidProducerEpoch.code, -1), (
        "what the older one has stored is not known any more"
    )


def test_a_refused_older_epoch_gets_the_first_sequence_not_stored(
    node: NodeDriver,
) -> None:
    """By that the producer that raised the epoch finds out which of its batches were stored."""
    topic, other = node.create("t", partitions=1), node.create("other", partitions=1)
    node.give_out(5, 0)
    for sequence in range(7):
        node.produced(topic, batch_of([sequence], producer=(5, 0, sequence)))
    node.give_out(5, 1)

    def refused(where: bytes, sequence: int) -> tuple[int, int, int]:
        batch = batch_of([sequence], producer=(5, 0, sequence))
        result = result_of(node, node.produce(where, batch))
        assert result is not None
        return result.error_code, result.base_offset, result.next_sequence

    over = errors.InvalidProducerEpoch.code
    assert [refused(topic, sequence) for sequence in (1, 2, 6, 7, 8)] == [
        (over, -1, 7), (0, 2, -1), (0, 6, -1), (over, -1, 7), (over, -1, 7),
    ]  # fmt: skip
    assert refused(other, 0) == (over, -1, 0)
    assert refused(other, 3) == (over, -1, 0)
    assert (node.broker_end(topic), node.broker_end(other)) == (7, 0)


def test_epochs_never_go_back_and_survive_restarts(node: NodeDriver) -> None:
    topic = node.create()

    def ask(epoch: int) -> int:
        response, _ = node.call(m.InitProducerIdRequest(producer_id=5, producer_epoch=epoch))
        assert response.error_code == 0
        assert response.producer_id == 5
        return int(response.producer_epoch)

    node.give_out(5, 0)

    def refusal(epoch: int) -> int:
        response, _ = node.call(m.InitProducerIdRequest(producer_id=5, producer_epoch=epoch))
        assert response.producer_id == -1
        return int(response.error_code)

    assert [ask(0), ask(1)] == [1, 2]
    assert refusal(0) == errors.InvalidProducerEpoch.code, "two holders came after it"
    node.crash()
    assert refusal(1) == errors.InvalidProducerEpoch.code
    assert ask(2) == 3
    assert node.produced(topic, batch_of([1], producer=(5, 3, 0))).base_offset == 0
    node.restart()
    assert ask(3) == 4
    assert refusal(9) == errors.UnknownProducerId.code, "never given out"


def test_the_epoch_that_is_being_given_out_counts(node: NodeDriver) -> None:
    """Two holders of one epoch ask at once: only one of them follows it."""
    node.give_out(5, 0)
    request = m.InitProducerIdRequest
    effects = node.request_many([(request(producer_id=5, producer_epoch=0), b"") for _ in "ab"])
    answers = [e.response for e in effects if isinstance(e, Respond)]
    codes = sorted(answer.error_code for answer in answers)  # type: ignore[attr-defined]
    assert codes == [0, errors.InvalidProducerEpoch.code]


def test_after_the_last_epoch_comes_a_new_id(node: NodeDriver) -> None:
    node.give_out(5, 0)
    with mock.patch("quiverlog.node.apis.producers._PRODUCER_EPOCH_MAX", 1):
        node.give_out(5, 1)
        response, _ = node.call(m.InitProducerIdRequest(producer_id=5, producer_epoch=1))
    assert response.error_code == 0
    assert (response.producer_id != 5, response.producer_epoch) == (True, 0)


def test_producer_ids_are_never_given_twice(node: NodeDriver) -> None:
    seen: set[int] = set()
    for life in range(3):
        for _ in range(1_200 if life == 0 else 3):
            response, _ = node.call(m.InitProducerIdRequest())
            assert response.error_code == 0
            assert response.producer_epoch == 0
            assert response.producer_id not in seen
            seen.add(response.producer_id)
        node.crash()


def test_a_producer_may_ask_for_its_next_epoch(node: NodeDriver) -> None:
    mine, _ = node.call(m.InitProducerIdRequest())
    request = m.InitProducerIdRequest(producer_id=mine.producer_id, producer_epoch=0)
    response, _ = node.call(request)
    assert (response.producer_id, response.producer_epoch) == (mine.producer_id, 1)
    for pid, epoch in [(10**6, 0), (mine.producer_id, 2**15 - 1)]:
        request = m.InitProducerIdRequest(producer_id=pid, producer_epoch=epoch)
        response, _ = node.call(request)
        assert response.error_code == errors.UnknownProducerId.code
    for pid, epoch in [(mine.producer_id, -5), (-7, 0), (-1, 0), (-1, 3)]:
        request = m.InitProducerIdRequest(producer_id=pid, producer_epoch=epoch)
        response, _ = node.call(request)
        assert response.error_code == errors.InvalidRequest.code
    response, _ = node.call(m.InitProducerIdRequest(transactional_id="tx"))
    assert response.error_code == errors.InvalidRequest.code


# --- trouble ------------------------------------------------------------------------------------
def test_a_slow_disk_times_the_produce_out(node: NodeDriver) -> None:
    topic = node.create()
    correlation = node.produce(topic, batch_of([1]), timeout_ms=500)
    node.advance(499)
    assert node.answer(correlation) is None
    node.advance(2)
    result = result_of(node, correlation)
    assert result is not None
    assert result.error_code == errors.RequestTimedOut.code
    node.flush()  # Too late for the answer (a second one would fail), not for the rows.
    assert len(node.headers(topic)) == 1
    assert node.metrics.produces_timed_out == 1


def test_a_refused_produce_that_times_out_behind_another_stays_refused(node: NodeDriver) -> None:
    topic = node.create()
    node.produce(topic, batch_of([1]))
    refused = node.produce(topic, batch_of([2], schema_id=7), timeout_ms=1)
    assert node.answer(refused) is None, "in the order of the partition"
    node.advance(2)
    result = result_of(node, refused)
    assert result is not None
    assert result.error_code == errors.UnknownSchema.code


def test_a_failed_flush_fails_waiting_produces_and_the_partition(node: NodeDriver) -> None:
    topic = node.create(partitions=2)
    waiting = [node.produce(topic, batch_of([i])) for i in range(2)]
    node.flush(OSError(5, "Input/output error"))
    for correlation in waiting:
        result = result_of(node, correlation)
        assert result is not None
        assert result.error_code == errors.OutcomeUnknown.code, "the disk may hold the rows"
    refused = result_of(node, node.produce(topic, batch_of([3])))
    assert refused is not None
    assert refused.error_code == errors.StorageFault.code
    assert node.syncs == [], "a second fsync would prove nothing"
    assert node.fetched(topic)[1] == b""
    assert node.produced(topic, batch_of([4]), partition=1).base_offset == 0
    assert node.metrics.partitions_with_faults == 1
    node.crash()
    assert node.produced(topic, batch_of([5])).base_offset >= 0


def test_an_answered_produce_leaves_nothing_to_the_collector(node: NodeDriver) -> None:
    """The deadline of a produce stays in a heap for a while, with what it holds."""
    topic = node.create(durability="memory")
    gc.collect()
    gc.disable()
    try:
        before = _produce_count()  # Of other tests.
        for level in (Durability.MEMORY, Durability.FLUSHED):
            node.produced(topic, batch_of([1]), durability=level)
        assert _produce_count() == before
    finally:
        gc.enable()


def test_a_log_with_a_fault_keeps_nothing_of_the_produces_that_it_refuses(node: NodeDriver) -> None:
    topic = node.create()
    node.produce(topic, batch_of([1]))
    node.flush(OSError("the disk failed"))
    for value in (2, 3):
        result = node.produced(topic, batch_of([value]))
        assert result.error_code == errors.StorageFault.code
    fault = node.node.broker.replicas[topic, 0].fault
    assert fault is not None
    assert fault.__traceback__ is None, "its frames have the rows"


def _produce_count() -> int:
    return sum(isinstance(one, Produce) for one in gc.get_objects())


def test_answers_of_a_closed_connection_are_dropped(node: NodeDriver) -> None:
    topic = node.create()
    correlation = node.produce(topic, batch_of([1]), connection=2)
    node.close_connection(2)
    node.flush()
    node.answer(correlation)  # At most one; the server drops an answer without a request.
    assert len(node.headers(topic)) == 1


def test_counters(node: NodeDriver) -> None:
    topic = node.create()
    batch = batch_of([1, 2, 3])
    node.produced(topic, batch)
    node.fetched(topic, 1)
    counters = node.metrics.topics["t"]
    assert (counters.batches_in, counters.rows_in, counters.bytes_in) == (1, 3, len(batch))
    assert (counters.rows_out, counters.bytes_out) == (2, len(batch))


@pytest.mark.parametrize("when", ["answered", "appended"])
def test_acknowledged_rows_are_there_once_after_a_crash(node: NodeDriver, when: str) -> None:
    """The client without an answer sends again; the client that was answered does not."""
    topic = node.create()
    batches = [batch_of([i] * (i + 1), producer=(5, 0, i * (i + 1) // 2)) for i in range(8)]
    for batch in batches[:5]:
        node.produced(topic, batch)
    node.produce(topic, batches[5])
    if when == "answered":
        node.flush()
    node.crash()
    for batch in batches[5:]:
        node.produced(topic, batch)
    assert [h.row_count for h in node.headers(topic)] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_timeout_fails_only_what_the_disk_did_not_confirm(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path, flushes_in_flight_max=1)
    topic = node.create(partitions=2)
    body = bytes(batch_of([1]))
    entries = [m.ProducePartition(topic, p, -1, len(body)) for p in (0, 1)]
    correlation = node.request(m.ProduceRequest(timeout_ms=500, partitions=entries), body * 2)
    node.flush()
    node.advance(500)
    answer = node.answer(correlation)
    assert answer is not None
    codes = [r.error_code for r in answer[0].partitions]
    assert codes == [0, errors.RequestTimedOut.code]


def test_too_much_unacknowledged_work_is_refused(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path, parked_requests_max=3, requests_waiting_max=3)
    topic = node.create()
    waiting = [node.produce(topic, batch_of([i])) for i in range(3)]
    entry = m.ProducePartition(topic, 0, -1, len(batch_of([1])))
    response, _ = node.call(m.ProduceRequest(partitions=[entry]), bytes(batch_of([1])))
    assert response.error_code == errors.ThrottledBroker.code
    node.flush()
    node.flush()
    assert all(node.answer(c) is not None for c in waiting)
    assert node.produced(topic, batch_of([3])).base_offset == 3


def test_a_snapshot_is_never_ahead_of_the_log(
    node: NodeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The roll writes a snapshot, the append after it fails, and the process dies: the retry of
    the batch that was never stored must not be taken for a repetition."""
    topic = node.create(segment_ms="1000")
    node.produced(topic, batch_of([1] * 1_000, producer=(5, 0, 0)))
    sequence = 1_000
    lost = batch_of([2] * 1_000, producer=(5, 0, sequence))
    calls = 0

    def fail(*arguments: object) -> None:
        nonlocal calls
        calls += 1
        raise errors.DiskFull

    node.set_clock(node.mono_us + 5_000_000)  # The next append begins a new segment.
    monkeypatch.setattr(Segment, "append", fail)
    refused = result_of(node, node.produce(topic, lost))
    assert refused is not None
    assert refused.error_code == errors.DiskFull.code
    assert calls == 1
    monkeypatch.undo()
    node.crash()
    result = node.produced(topic, lost)
    assert not result.duplicate
    assert result.base_offset == sequence


def test_batches_of_one_read_roll_segments_and_keep_their_producers(node: NodeDriver) -> None:
    topic = node.create(segment_bytes="65536")
    requests: list[tuple[m.Request, bytes]] = []
    for i in range(40):
        body = bytes(batch_of([i] * 1_000, producer=(5, 0, i * 1_000)))
        entry = m.ProducePartition(topic, 0, -1, len(body))
        requests.append((m.ProduceRequest(partitions=[entry]), body))
    for start in range(0, 40, 4):
        node.request_many(requests[start : start + 4])
    while node.syncs:
        node.flush()
    assert node.node.broker.replicas[topic, 0].log.reader.segment_count > 3
    node.crash()
    for request, body in requests[-4:]:
        correlation = node.request(request, body)
        result = result_of(node, correlation)
        assert result is not None
        assert result.duplicate
    assert [h.base_offset for h in node.headers(topic)] == list(range(0, 40_000, 1_000))
