"""FETCH through the whole node: what may be read, how much, and the long poll."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiverlog import errors
from quiverlog.batch.header import SIZE_END
from quiverlog.node.runtime.events import ConnectionOpened, RequestsEnded
from quiverlog.wire import messages as m
from tests.support.node import NodeDriver, batch_of, rows_of


@pytest.fixture
def node(tmp_path: Path) -> NodeDriver:
    return NodeDriver(tmp_path)


def fill(node: NodeDriver, topic: bytes, batches: int, rows: int = 10, partition: int = 0) -> None:
    for i in range(batches):
        node.produced(topic, batch_of([i] * rows), partition=partition)


def test_whole_batches_from_the_one_that_holds_the_offset(node: NodeDriver) -> None:
    """Rule 32 of docs/replication-rules.md."""
    topic = node.create()
    fill(node, topic, 3)
    for offset, first in [(0, 0), (9, 0), (10, 10), (15, 10), (29, 20)]:
        result, body = node.fetched(topic, offset)
        assert rows_of(body)[0] == (first, 10)
        assert result.batch_bytes == len(body)
        assert (result.high_watermark, result.last_stable_offset) == (30, 30)
        assert result.log_start_offset == 0
    assert node.fetched(topic, 30)[1] == b""


def test_no_batch_starts_at_or_after_the_end_offset(node: NodeDriver) -> None:
    topic = node.create()
    fill(node, topic, 3)
    for end, count in [(0, 0), (1, 1), (10, 1), (11, 2), (20, 2), (99, 3)]:
        assert len(rows_of(node.fetched(topic, 0, end_offset=end)[1])) == count, end


def test_sizes_are_bounded_but_the_first_batch_always_travels(node: NodeDriver) -> None:
    topic = node.create(partitions=2)
    for partition in (0, 1):
        fill(node, topic, 4, partition=partition)
    size = len(batch_of([0] * 10))
    assert len(rows_of(node.fetched(topic, entry_bytes_max=1)[1])) == 1
    assert len(rows_of(node.fetched(topic, entry_bytes_max=2 * size)[1])) == 2
    assert len(rows_of(node.fetched(topic, bytes_max=3 * size)[1])) == 3
    entries = [m.FetchPartition(topic, p) for p in (0, 1)]
    for limit, counts in [(1, (1, 0)), (5 * size, (4, 1)), (5 * size - 1, (4, 0))]:
        request = m.FetchRequest(bytes_max=limit, partitions=entries)
        response, body = node.call(request)
        got = [r.batch_bytes // size for r in response.partitions]
        assert tuple(got) == counts, limit
        assert len(body) == sum(counts) * size


def test_offsets_out_of_range_name_the_range(node: NodeDriver) -> None:
    topic = node.create()
    fill(node, topic, 3)
    node.call(m.DeleteRecordsRequest(partitions=[m.DeleteRecordsPartition(topic, 0, 10)]))
    for offset in (-1, 9, 31):
        result, body = node.fetched(topic, offset)
        assert result.error_code == errors.OffsetOutOfRange.code
        assert "valid range 10 to 30" in result.error_message
        assert (result.log_start_offset, result.high_watermark) == (10, 30)
        assert body == b""


def test_rows_that_are_not_flushed_are_not_read(node: NodeDriver) -> None:
    topic = node.create()
    fill(node, topic, 1)
    node.produce(topic, batch_of([1]))
    assert rows_of(node.fetched(topic, 0)[1]) == [(0, 10)]
    result, body = node.fetched(topic, 10)
    assert (result.error_code, body) == (0, b"")


def test_leader_epochs_are_checked(node: NodeDriver) -> None:
    """Rule 4 of docs/replication-rules.md."""
    topic = node.create()
    fill(node, topic, 1)
    node.crash()
    assert node.fetched(topic, leader_epoch=1)[1]
    result, _ = node.fetched(topic, leader_epoch=0)
    assert result.error_code == errors.FencedLeaderEpoch.code
    result, _ = node.fetched(topic, leader_epoch=2)
    assert result.error_code == errors.UnknownLeaderEpoch.code


def test_a_reader_of_lost_rows_learns_where_they_diverge(node: NodeDriver) -> None:
    """Rule 4 of docs/replication-rules.md."""
    topic = node.create()
    fill(node, topic, 2)
    node.crash()
    fill(node, topic, 1)
    assert node.fetched(topic, 20, last_epoch=0)[0].error_code == 0
    assert node.fetched(topic, 30, last_epoch=1)[0].error_code == 0
    for offset, last_epoch, diverging in [(25, 0, (0, 20)), (30, 0, (0, 20)), (30, 7, (1, 30))]:
        result, body = node.fetched(topic, offset, last_epoch=last_epoch)
        assert result.error_code == errors.LogTruncated.code
        assert (result.diverging_epoch, result.diverging_end_offset) == diverging
        assert body == b""


# --- the long poll ------------------------------------------------------------------------------
def test_a_parked_fetch_is_answered_when_rows_become_visible(node: NodeDriver) -> None:
    topic = node.create()
    parked = node.request(node.fetch_request(topic, 0, max_wait_ms=1000), connection=2)
    assert node.answer(parked) is None
    assert node.metrics.parked_requests == 1
    node.produce(topic, batch_of([1, 2]))
    assert node.answer(parked) is None, "not flushed yet"
    node.flush()
    answer = node.answer(parked)
    assert answer is not None
    assert rows_of(answer[1]) == [(0, 2)]
    assert node.metrics.parked_requests == 0


def test_a_parked_fetch_is_answered_empty_at_its_deadline(node: NodeDriver) -> None:
    topic = node.create()
    parked = node.request(node.fetch_request(topic, 0, max_wait_ms=500))
    node.advance(499)
    assert node.answer(parked) is None
    node.advance(1)
    answer = node.answer(parked)
    assert answer is not None
    assert answer[0].partitions[0].error_code == 0
    assert answer[1] == b""


def test_deadlines_come_in_their_order(node: NodeDriver) -> None:
    topic = node.create()
    waits = [300, 100, 200]
    parked = {w: node.request(node.fetch_request(topic, 0, max_wait_ms=w)) for w in waits}
    for wait in sorted(waits):
        node.advance(100)
        done = [w for w, c in parked.items() if node.answer(c) is not None]
        assert sorted(done) == [w for w in sorted(waits) if w <= wait]


def test_min_bytes_over_several_partitions(node: NodeDriver) -> None:
    topic = node.create(partitions=2)
    size = len(batch_of([1]))
    entries = [m.FetchPartition(topic, p) for p in (0, 1)]
    request = m.FetchRequest(max_wait_ms=1000, min_bytes=3 * size, partitions=entries)
    parked = node.request(request)
    for partition in (0, 1):
        node.produced(topic, batch_of([1]), partition=partition)
        assert node.answer(parked) is None
    node.produced(topic, batch_of([1]), partition=0)
    answer = node.answer(parked)
    assert answer is not None
    assert [r.batch_bytes for r in answer[0].partitions] == [2 * size, size]


def test_a_parked_fetch_does_not_hold_up_later_requests(node: NodeDriver) -> None:
    topic = node.create()
    parked = node.request(node.fetch_request(topic, 0, max_wait_ms=1000))
    node.call(m.MetadataRequest())
    node.produced(topic, batch_of([1]))
    assert node.answer(parked) is not None


def test_a_bounded_range_that_is_readable_does_not_wait_for_more(node: NodeDriver) -> None:
    topic = node.create()
    fill(node, topic, 1)
    request = node.fetch_request(topic, 0, end_offset=10, max_wait_ms=1000, min_bytes=10**6)
    _, body = node.call(request)
    assert rows_of(body) == [(0, 10)]


def test_a_closed_connection_forgets_its_fetches(node: NodeDriver) -> None:
    topic = node.create()
    parked = node.request(node.fetch_request(topic, 0, max_wait_ms=1000), connection=2)
    node.close_connection(2)
    node.produced(topic, batch_of([1]))
    node.advance(2000)
    assert node.answer(parked) is None
    assert node.node.broker.replicas[topic, 0].waiters == {}
    assert node.metrics.parked_requests == 0


def test_a_client_that_can_ask_no_more_gets_its_answers_at_once(node: NodeDriver) -> None:
    """Something that is no request came behind them."""
    topic = node.create()
    mine = node.request(node.fetch_request(topic, 0, max_wait_ms=60_000))
    others = node.request(node.fetch_request(topic, 0, max_wait_ms=60_000), connection=2)
    poll = m.ListOffsetsPartition(topic, 0, known_offset=0)
    offsets = node.request(m.ListOffsetsRequest(max_wait_ms=60_000, partitions=[poll]))
    node.send(RequestsEnded(1))
    assert node.answer(mine) is not None
    assert node.answer(offsets) is not None
    assert node.answer(others) is None


def test_deleting_the_topic_answers_its_fetches(node: NodeDriver) -> None:
    topic = node.create()
    parked = node.request(node.fetch_request(topic, 0, max_wait_ms=1000))
    node.call(m.DeleteTopicsRequest(names=["t"]))
    answer = node.answer(parked)
    assert answer is not None
    assert answer[0].partitions[0].error_code == errors.UnknownTopicId.code


def test_deleting_records_answers_fetches_that_wait_for_them(node: NodeDriver) -> None:
    topic = node.create()
    fill(node, topic, 1)
    parked = node.request(node.fetch_request(topic, 0, max_wait_ms=1000, min_bytes=10**6))
    node.call(m.DeleteRecordsRequest(partitions=[m.DeleteRecordsPartition(topic, 0, 10)]))
    answer = node.answer(parked)
    assert answer is not None
    assert answer[0].partitions[0].error_code == errors.OffsetOutOfRange.code


def test_an_error_in_one_entry_answers_at_once(node: NodeDriver) -> None:
    topic = node.create()
    entries = [m.FetchPartition(topic, 0), m.FetchPartition(topic, 9)]
    response, _ = node.call(m.FetchRequest(max_wait_ms=1000, partitions=entries))
    assert [r.error_code for r in response.partitions] == [0, errors.UnknownPartition.code]


def test_parked_requests_are_bounded(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path, parked_requests_max=3)
    topic = node.create()

    def parks(connection: int) -> bool:
        request = node.fetch_request(topic, 0, max_wait_ms=1000)
        return node.answer(node.request(request, connection=connection)) is None

    assert [parks(1), parks(1), parks(1)] == [True, True, False]
    assert parks(2), "one client never takes the last place"
    assert not parks(2)


def test_connections_of_one_client_share_its_long_polls(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path, parked_requests_max=4)
    topic = node.create()
    for connection in range(10, 16):
        node.call(m.HelloRequest(client_id="greedy"), connection=connection)
    request = node.fetch_request(topic, 0, max_wait_ms=60_000)
    parked = [node.answer(node.request(request, connection=c)) is None for c in range(10, 16)]
    assert parked == [True, True, False, False, False, False]
    assert node.answer(node.request(request, connection=1)) is None
    node.close_connection(10)
    assert node.node.broker.purgatory.parked == 2


@pytest.mark.parametrize("entries", [1, 20])
def test_made_up_names_and_connections_give_no_more_long_polls(
    tmp_path: Path, entries: int
) -> None:
    """Sixty connections with names of their own took all but one of the places."""
    bounds = {1: (130, 200_000), 20: (100_000, 2_600)}[entries]
    node = NodeDriver(tmp_path, parked_requests_max=bounds[0], parked_entries_max=bounds[1])
    topic = node.create(partitions=entries)
    node.close_connection(1)
    node.close_connection(2)
    attackers = range(10, 70)
    for connection in attackers:
        node.send(ConnectionOpened(connection, f"10.0.0.1:{connection}"))
        node.call(m.HelloRequest(client_id=f"made-up-{connection}"), connection=connection)
    for connection, peer in ((1, "10.0.0.1:1"), (2, "10.0.0.2:1")):
        node.send(ConnectionOpened(connection, peer))
        node.call(m.HelloRequest(client_id="honest"), connection=connection)

    def parks(connection: int, count: int = entries) -> bool:
        parts = [m.FetchPartition(topic_id=topic, partition=p) for p in range(count)]
        request = m.FetchRequest(max_wait_ms=60_000, partitions=parts)
        asked = node.request(request, connection=connection)
        node.run_until_idle()
        return node.answer(asked) is None

    while True:
        parked = [parks(connection) for connection in attackers]
        if not any(parked):
            break
    assert parks(1, 1), "each connection has room for one, also from one address"
    assert sum(parks(2) for _ in range(100)) >= 20
    purgatory = node.node.broker.purgatory
    assert purgatory.parked <= bounds[0]
    assert purgatory.parked_entries <= bounds[1]
    for connection in (*attackers, 1, 2):
        node.close_connection(connection)
    assert not purgatory._polls
    assert not node.node.broker.clients.accounts


def test_a_greedy_client_leaves_long_polls_to_others_of_its_address(tmp_path: Path) -> None:
    """One client id took all that its address may have, and others there got a first poll only."""
    node = NodeDriver(tmp_path, parked_entries_max=3_000)
    topic = node.create(partitions=20)
    for connection, client_id in ((10, "greedy"), (11, "greedy"), (12, "another")):
        node.send(ConnectionOpened(connection, f"10.0.0.1:{connection}"))
        node.call(m.HelloRequest(client_id=client_id), connection=connection)

    def parks(connection: int) -> bool:
        parts = [m.FetchPartition(topic_id=topic, partition=p) for p in range(20)]
        request = m.FetchRequest(max_wait_ms=60_000, partitions=parts)
        asked = node.request(request, connection=connection)
        node.run_until_idle()
        return node.answer(asked) is None

    taken = sum(parks(connection) for _ in range(200) for connection in (10, 11))
    assert taken in range(60, 80), "about half"
    assert sum(parks(12) for _ in range(100)) >= 15


def test_many_short_waits_with_long_timeouts_keep_no_memory(node: NodeDriver) -> None:
    topic = node.create()
    for i in range(2_000):
        node.request(node.fetch_request(topic, i, max_wait_ms=300_000))
        node.produced(topic, batch_of([1]))
        node.responses.clear()
    purgatory = node.node.broker.purgatory
    assert purgatory.live == 0
    assert len(purgatory._heap) < 600


def test_views_stay_good_while_the_log_goes_on(node: NodeDriver) -> None:
    topic = node.create()
    fill(node, topic, 2)
    node.request(node.fetch_request(topic, 0))
    held = node.responses[-1].body
    before = b"".join(held)
    fill(node, topic, 20)
    node.call(m.DeleteTopicsRequest(names=["t"]))
    assert b"".join(held) == before


def test_a_flipped_bit_on_the_disk_is_never_served_as_rows(node: NodeDriver) -> None:
    """The bytes travel as they lie; what cannot be framed is CorruptLog, the rest has its CRC."""
    topic = node.create()
    fill(node, topic, 1)
    (log,) = Path(node.config.data_dir, "data").rglob("*.log")
    data = bytearray(log.read_bytes())
    at = data.index(bytes(batch_of([0] * 10))[SIZE_END : SIZE_END + 32]) - SIZE_END
    data[at + 12 : at + 16] = b"\xff\xff\xff\x7f"  # The batch's size field.
    log.write_bytes(data)
    result, body = node.fetched(topic, 0)
    assert result.error_code == errors.CorruptLog.code
    assert body == b""
    assert (result.damage_start_offset, result.damage_end_offset) == (0, 10)
    assert node.metrics.corrupt_reads == 1


def test_a_flush_shows_only_the_rows_that_it_covers(node: NodeDriver) -> None:
    topic = node.create()
    node.produce(topic, batch_of([1]))
    node.produce(topic, batch_of([2, 2]))  # While the flush of the first runs.
    node.flush()
    assert node.fetched(topic, 0)[0].high_watermark == 1
    node.flush()
    assert node.fetched(topic, 0)[0].high_watermark == 3
