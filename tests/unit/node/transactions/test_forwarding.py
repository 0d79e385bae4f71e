"""Committed rows on one node: from a partition with the schema of `__staged` to their targets."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from quiverlog.batch.checksum import crc32c
from quiverlog.batch.codec import split_batches
from quiverlog.batch.header import CRC_START, BatchHeader
from quiverlog.batch.schema import serialize_schema
from quiverlog.core.controller.features import cluster_number
from quiverlog.core.controller.internal_topics import INTERNAL_TOPICS, STAGED
from quiverlog.core.controller.records import BrokerRecord, PartitionChangeRecord, Record
from quiverlog.errors import NotLeader, OutOfOrderSequence, PeerUnreachable, ThrottledBroker
from quiverlog.limits import FORWARD_BACKOFF_MS_MIN, FORWARD_BATCHES_MAX
from quiverlog.node.runtime.config import LISTENER_DEFAULT
from quiverlog.node.runtime.effects import Peer, Purpose, SendToPeer
from quiverlog.node.runtime.events import PeerClosed, ResponseReceived, Tick
from quiverlog.node.transactions import forwarding as module
from quiverlog.node.transactions import renumbering
from quiverlog.node.transactions.forwarded import check_batches
from quiverlog.node.transactions.forwarding import Source
from quiverlog.node.transactions.queues import Item, Publish, TargetKey
from quiverlog.storage.segment.segment_files import SEGMENT_HEADER_BYTES
from quiverlog.types import Compression, Durability, PublishId
from quiverlog.wire import messages as m
from quiverlog.wire.transaction_messages import ForwardRequest, ForwardResponse, ForwardResult
from tests.support.batches import encode_data
from tests.support.node import NodeDriver, batch_of

SCHEMA = INTERNAL_TOPICS[STAGED].schema
run = renumbering.RenumberJob.run
FLUSHED, REPLICATED = Durability.FLUSHED, Durability.REPLICATED


def staged_batch(
    *rows: tuple[TargetKey, bytes | bytearray], compression: Compression = Compression.NONE
) -> bytearray:
    """One batch of `__staged`, a row for each inner batch."""
    columns: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}
    for (topic_id, partition), batch in rows:
        values = [
            0, "app", 1, 1, b"a" * 16, topic_id, partition,
            BatchHeader.unpack(batch).row_count, bytes(batch),
        ]  # fmt: skip
        for column, value in zip(columns.values(), values, strict=True):
            column.append(value)
    data = pa.RecordBatch.from_pydict(columns, schema=SCHEMA)
    return encode_data(data, at_us=1, compression=compression)


class Publisher:
    """A node with a partition of staged rows, and targets t-0 and t-1."""

    def __init__(self, tmp_path: Path) -> None:
        self.node = NodeDriver(tmp_path)
        new = m.NewTopic("staged", serialize_schema(SCHEMA), 1, 1, [], {"durability": "flushed"})
        response, _ = self.node.call(m.CreateTopicsRequest(topics=[new]))
        self.staged = bytes(response.topics[0].topic_id)
        self.topic = self.node.create(partitions=2, durability="memory")
        self.keys = [(self.topic, 0), (self.topic, 1)]
        self.forwarding = self.node.node.broker.forwarding
        self.source: Source = self.forwarding.begin(self.node.node.broker.replicas[self.staged, 0])
        self.counter = 0
        self.finished: list[Publish] = []

    def stage(self, *rows: tuple[TargetKey, bytes | bytearray], **options: Any) -> int:
        """Returns the offset of the first one."""
        return int(self.node.produced(self.staged, staged_batch(*rows, **options)).base_offset)

    def publish(
        self, targets: dict[TargetKey, list[tuple[int, int]]], *, producer_id: int | None = None
    ) -> Publish:
        """`targets`: (staged offset, rows) of each."""
        parts = {}
        for key, rows in targets.items():
            items, sequence = [], 0
            for offset, row_count in rows:
                items.append(Item(offset, sequence, row_count))
                sequence += row_count
            parts[key] = items
        self.counter += 1
        publish_id = PublishId(7, 3, self.counter).pack() if producer_id is None else producer_id
        publish = Publish(publish_id, FLUSHED, parts, self.finished.append)
        self.forwarding.add(self.source, publish, self.node.now)
        self.node.send(Tick())
        return publish

    def settle(self) -> None:
        while self.node.syncs:
            self.node.flush()

    def headers(self, partition: int = 0) -> list[BatchHeader]:
        response = self.node.fetched(self.topic, 0, partition=partition)
        return [header for header, _ in split_batches(memoryview(response[1]))]


@pytest.fixture
def publisher(tmp_path: Path) -> Publisher:
    return Publisher(tmp_path)


@pytest.mark.parametrize("compression", list(Compression))
def test_rows_reach_their_targets_with_the_numbers_of_the_publish(
    publisher: Publisher, compression: Compression
) -> None:
    first, second = publisher.keys
    inner = [batch_of([1, 2]), batch_of([3]), batch_of([4, 5, 6])]
    rows = [(first, inner[0]), (second, inner[1]), (first, inner[2])]
    offset = publisher.stage(*rows, compression=compression)
    publish = publisher.publish({first: [(offset, 2), (offset + 2, 3)], second: [(offset + 1, 1)]})
    assert not publisher.finished, "at `flushed`, though the topic's level is `memory`"
    publisher.settle()
    assert publisher.finished == [publish]
    assert publish.ends == {first: 5, second: 1}
    assert publish.level == FLUSHED
    number = cluster_number(publisher.node.node.broker.directory.cluster_id)
    _, body = publisher.node.fetched(publisher.topic, 0)
    stored = list(split_batches(memoryview(body)))
    assert [header.base_offset for header, _ in stored] == [0, 2]
    assert [header.base_sequence for header, _ in stored] == [0, 2]
    for (header, view), sent in zip(stored, (inner[0], inner[2]), strict=True):
        assert (header.producer_id, header.producer_epoch) == (publish.producer_id, number)
        assert header.crc32c == crc32c(view[CRC_START:])
        assert bytes(view[64:]) == bytes(sent[64:]), "the rows are not touched"
        assert header.timestamp_max_us == BatchHeader.unpack(sent).timestamp_max_us
    assert publisher.forwarding.queues.byte_count == 0


@pytest.mark.parametrize(("more", "pieces"), [(-1, 4), (0, 2), (1, 2)])
def test_each_batch_is_numbered_once_whatever_fits_a_piece(
    publisher: Publisher, more: int, pieces: int
) -> None:
    """A checksum costs what its bytes cost: the batch that is too much is left to the next."""
    (key, _) = publisher.keys
    inner = batch_of([1, 2])
    first = publisher.stage(*[(key, inner)] * 4)
    with (
        mock.patch.object(renumbering, "FORWARD_PIECE_BYTES", 2 * len(inner) + more),
        mock.patch.object(renumbering, "number", wraps=renumbering.number) as numbered,
        mock.patch.object(renumbering.RenumberJob, "run", autospec=True, side_effect=run) as job,
    ):
        publish = publisher.publish({key: [(first + at, 2) for at in range(4)]})
        publisher.settle()
    assert publisher.finished == [publish]
    assert publish.ends == {key: 8}
    assert numbered.call_count == 4
    assert job.call_count == pieces


def test_a_publish_that_is_sent_again_is_stored_once(publisher: Publisher) -> None:
    first, _ = publisher.keys
    offset = publisher.stage((first, batch_of([1, 2])), (first, batch_of([3])))
    rows = {first: [(offset, 2), (offset + 1, 1)]}
    publish = publisher.publish(rows)
    publisher.settle()
    again = publisher.publish(rows, producer_id=publish.producer_id)
    publisher.settle()
    assert [header.row_count for header in publisher.headers()] == [2, 1]
    assert again.ends == {first: 3}
    assert publisher.finished == [publish, again]


def test_an_older_publish_is_stored_already(publisher: Publisher) -> None:
    first, _ = publisher.keys
    offset = publisher.stage((first, batch_of([1])), (first, batch_of([2])))
    old = publisher.publish({first: [(offset, 1)]})
    new = publisher.publish({first: [(offset + 1, 1)]})
    publisher.settle()
    again = publisher.publish({first: [(offset, 1)]}, producer_id=old.producer_id)
    publisher.settle()
    assert publisher.finished == [old, new, again]
    assert len(publisher.headers()) == 2


def test_rows_of_a_deleted_topic_are_dropped_and_counted(publisher: Publisher) -> None:
    first, second = publisher.keys
    offset = publisher.stage((first, batch_of([1, 2])), (second, batch_of([3])))
    publisher.node.call(m.DeleteTopicsRequest(names=["t"]))
    publish = publisher.publish({first: [(offset, 2)], second: [(offset + 1, 1)]})
    assert publisher.finished == [publish]
    assert publish.dropped_count == publisher.forwarding.dropped_count == 3
    assert publish.ends == {}
    lines = [line.fields["rows"] for line in publisher.node.lines if "dropped" in line.event]
    assert sorted(map(int, map(str, lines))) == [1, 2]


def test_a_disk_without_room_is_tried_again(publisher: Publisher) -> None:
    first, _ = publisher.keys
    offset = publisher.stage((first, batch_of([1])))
    admission = publisher.node.node.broker.admission
    admission.disk_filled()
    publish = publisher.publish({first: [(offset, 1)]})
    (waiting,) = publisher.forwarding.queues.waiting()
    assert waiting.key == first
    assert type(waiting.error).__name__ == "DiskFull"
    assert waiting.row_count == 1
    publisher.node.disk_space(2**40)
    publisher.node.advance(FORWARD_BACKOFF_MS_MIN)
    publisher.settle()
    assert publisher.finished == [publish]


def damaged(batch: bytearray, at: int = -70) -> bytearray:
    batch = bytearray(batch)
    batch[at] ^= 1
    return batch


def test_rows_whose_checksum_is_wrong_are_missing_and_what_is_there_is_published(
    publisher: Publisher,
) -> None:
    first, _ = publisher.keys
    inner = [batch_of([1]), damaged(batch_of([2, 3])), batch_of([4])]
    offset = publisher.stage(*((first, batch) for batch in inner))
    publish = publisher.publish({first: [(offset, 1), (offset + 1, 2), (offset + 2, 1)]})
    publisher.settle()
    assert publisher.finished == [publish]
    assert publish.missing_count == publisher.source.missing_count == 2
    assert [header.base_sequence for header in publisher.headers()] == [0, 3]
    (line,) = [line for line in publisher.node.lines if "lost" in line.event]
    assert line.level == "error"
    assert line.fields["rows"] == 2


@pytest.mark.parametrize("which", [0, 2])
def test_rows_are_missing_at_the_begin_and_at_the_end(publisher: Publisher, which: int) -> None:
    first, _ = publisher.keys
    inner = [batch_of([number]) for number in range(3)]
    inner[which] = damaged(inner[which])
    offset = publisher.stage(*((first, batch) for batch in inner))
    publish = publisher.publish({first: [(offset + n, 1) for n in range(3)]})
    publisher.settle()
    assert publisher.finished == [publish]
    assert publish.missing_count == 1
    assert [header.base_sequence for header in publisher.headers()] == [
        n for n in range(3) if n != which
    ]


def test_another_row_in_its_place_is_none_of_the_publish(publisher: Publisher) -> None:
    first, second = publisher.keys
    offset = publisher.stage((second, batch_of([1])), (first, batch_of([1, 2])))
    publish = publisher.publish({first: [(offset, 1), (offset + 1, 2)]})
    publisher.settle()
    assert publish.missing_count == 1
    assert [header.base_sequence for header in publisher.headers()] == [1]


def test_a_staged_batch_that_is_damaged_on_the_disk_is_missing(publisher: Publisher) -> None:
    first, _ = publisher.keys
    offsets = [publisher.stage((first, batch_of([n, n]))) for n in range(3)]
    log = publisher.node.node.broker.replicas[publisher.staged, 0].log
    segment = log.reader.segments[0]
    size = (segment.file.size - SEGMENT_HEADER_BYTES) // 3
    with open(segment.file.path, "r+b") as file:
        file.seek(SEGMENT_HEADER_BYTES + 2 * size - 8)
        file.write(b"\xff")
    log.distrust(offsets[1])
    publish = publisher.publish({first: [(offset, 2) for offset in offsets]})
    publisher.settle()
    assert publisher.finished == [publish]
    assert publish.missing_count == publisher.forwarding.missing_count == 2
    assert [header.base_sequence for header in publisher.headers()] == [0, 4]


def test_rows_below_the_log_start_and_beyond_its_end_are_missing(publisher: Publisher) -> None:
    first, _ = publisher.keys
    offset = publisher.stage((first, batch_of([1])))
    last = publisher.stage((first, batch_of([2])))
    publisher.source.replica.log.reader.start_at(last)
    publish = publisher.publish({first: [(offset, 1), (last, 1), (last + 1, 1)]})
    publisher.settle()
    assert publisher.finished == [publish]
    assert publish.missing_count == 2
    assert [header.base_sequence for header in publisher.headers()] == [1]


def test_nothing_is_forwarded_after_the_source_has_stopped(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_AT_ONCE_BYTES", 0)
    first, _ = publisher.keys
    offset = publisher.stage((first, batch_of([1])))
    publisher.node.hold_jobs = True
    publisher.publish({first: [(offset, 1)]})
    publisher.forwarding.stop(publisher.source)
    publisher.node.hold_jobs = False
    publisher.node.run_until_idle()
    publisher.settle()
    assert not publisher.finished
    assert publisher.headers() == []
    assert not publisher.forwarding.queues


@pytest.mark.parametrize(("room", "is_at_once"), [(-1, False), (0, True), (1, True)])
def test_few_rows_are_renumbered_without_a_job(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch, room: int, is_at_once: bool
) -> None:
    first, _ = publisher.keys
    row = (first, batch_of([1]))
    monkeypatch.setattr(module, "_AT_ONCE_BYTES", len(staged_batch(row)) + room)
    offset = publisher.stage(row)
    publisher.node.hold_jobs = True
    publisher.publish({first: [(offset, 1)]})
    assert bool(publisher.headers()) == is_at_once
    publisher.node.hold_jobs = False
    publisher.node.run_until_idle()
    publisher.settle()
    assert len(publisher.headers()) == len(publisher.finished) == 1


def test_pieces_of_one_turn_are_bounded(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PIECES_PER_TURN", 1)
    rows = [(key, batch_of([1])) for key in publisher.keys]
    offset = publisher.stage(*rows)
    with mock.patch.object(publisher.node, "send"):
        publisher.publish({key: [(offset + n, 1)] for n, key in enumerate(publisher.keys)})
    publisher.forwarding.run(publisher.node.now)
    assert len(publisher.node.node.broker.appends.added) == 1
    assert publisher.forwarding.next_us() == 0, "it goes on at once"
    publisher.node.send(Tick())
    publisher.settle()
    assert len(publisher.finished) == 1


# --- to another broker ---------------------------------------------------------------------------
OTHER = 1
PEER = Peer(OTHER, Purpose.ROWS)


class Remote(Publisher):
    """Target 0 is led by another broker, which is this test."""

    def __init__(self, tmp_path: Path) -> None:
        super().__init__(tmp_path)
        where = ((LISTENER_DEFAULT, "127.0.0.1", 9),)
        self.lead(BrokerRecord(OTHER, b"1", listeners=where), leader_id=OTHER, leader_epoch=4)

    def lead(self, *records: Record, leader_id: int, leader_epoch: int) -> None:
        change = PartitionChangeRecord(
            self.topic, 0, leader_id=leader_id, leader_epoch=leader_epoch,
            replicas=(0, OTHER), in_sync_replicas=(0, OTHER),
        )  # fmt: skip
        outcomes: list[BaseException | None] = []
        self.node.node.broker.propose(
            [*records, change], self.node.now, lambda _result, error, _now: outcomes.append(error)
        )
        self.node.send(Tick())
        assert outcomes == [None]

    def sent(self) -> SendToPeer:
        """The oldest FORWARD that is sent and was not looked at."""
        while not isinstance((one := self.node.sent.pop(0)).request, ForwardRequest):
            pass
        assert one.peer == PEER
        return one

    def answer(self, asked: SendToPeer, **fields: Any) -> None:
        result = ForwardResult(self.topic, 0, durability=REPLICATED, **fields)
        response = ForwardResponse(partitions=[result])
        self.node.send(ResponseReceived(PEER, asked.token, response, memoryview(b"")))

    def close(self, asked: SendToPeer) -> None:
        self.node.send(PeerClosed(PEER, (asked.token,), PeerUnreachable("gone")))


@pytest.fixture
def remote(tmp_path: Path) -> Remote:
    return Remote(tmp_path)


def test_rows_go_to_the_broker_that_leads_their_target(remote: Remote) -> None:
    first, second = remote.keys
    offset = remote.stage(
        (first, batch_of([1, 2])), (second, batch_of([9])), (first, batch_of([3]))
    )
    publish = remote.publish({first: [(offset, 2), (offset + 2, 1)], second: [(offset + 1, 1)]})
    remote.settle()
    assert publish.ends == {second: 1}
    asked = remote.sent()
    assert isinstance(asked.request, ForwardRequest)
    (entry,) = asked.request.partitions
    assert asked.request.broker_id == 0
    assert (entry.topic_id, entry.partition, entry.leader_epoch) == (*first, 4)
    assert (entry.producer_id, entry.base_sequence) == (publish.producer_id, 0)
    body = b"".join(map(bytes, asked.body))
    assert entry.batch_bytes == len(body)
    batches = check_batches(memoryview(bytearray(body)), {1: None})  # type: ignore[dict-item]
    assert [header.base_sequence for header, _ in batches] == [0, 2]
    remote.answer(asked, base_offset=7, end_offset=10)
    assert remote.finished == [publish]
    assert publish.ends == {first: 10, second: 1}
    assert publish.level == FLUSHED, "the weakest of both"


def test_a_request_without_an_answer_is_sent_again_with_the_same_numbers(remote: Remote) -> None:
    first, _ = remote.keys
    offset = remote.stage((first, batch_of([1, 2])))
    publish = remote.publish({first: [(offset, 2)]})
    asked = remote.sent()
    remote.close(asked)
    remote.node.advance(FORWARD_BACKOFF_MS_MIN)
    again = remote.sent()
    assert again.request.partitions == asked.request.partitions  # type: ignore[attr-defined]
    assert b"".join(map(bytes, again.body)) == b"".join(map(bytes, asked.body))
    remote.answer(again, base_offset=-1, end_offset=2)
    assert remote.finished == [publish]


def test_the_target_has_lost_rows_that_it_had_acknowledged(remote: Remote) -> None:
    first, _ = remote.keys
    offset = remote.stage(*((first, batch_of([n])) for n in range(FORWARD_BATCHES_MAX + 1)))
    publish = remote.publish({first: [(offset + n, 1) for n in range(FORWARD_BATCHES_MAX + 1)]})
    remote.answer(remote.sent(), base_offset=0, end_offset=FORWARD_BATCHES_MAX)
    asked = remote.sent()
    assert asked.request.partitions[0].base_sequence == FORWARD_BATCHES_MAX  # type: ignore[attr-defined]
    remote.answer(asked, error_code=OutOfOrderSequence.code, expected_sequence=3)
    asked = remote.sent()
    assert asked.request.partitions[0].base_sequence == 3  # type: ignore[attr-defined]
    remote.answer(asked, base_offset=3, end_offset=FORWARD_BATCHES_MAX + 1)
    assert remote.finished == [publish]


def test_rows_follow_a_leader_that_is_elected(remote: Remote) -> None:
    first, _ = remote.keys
    offset = remote.stage((first, batch_of([1])))
    publish = remote.publish({first: [(offset, 1)]})
    remote.answer(remote.sent(), error_code=NotLeader.code)
    image = remote.node.node.broker.view.image.topics_by_id[remote.topic].partitions[0]
    with mock.patch.object(image, "leader_id", -1):
        remote.node.advance(FORWARD_BACKOFF_MS_MIN)
    (waiting,) = remote.forwarding.queues.waiting()
    assert isinstance(waiting.error, NotLeader)
    assert waiting.error.message == "t-0 has no leader now."
    remote.lead(leader_id=OTHER, leader_epoch=6)
    remote.node.advance(2 * FORWARD_BACKOFF_MS_MIN)
    asked = remote.sent()
    assert asked.request.partitions[0].leader_epoch == 6  # type: ignore[attr-defined]
    remote.answer(asked, base_offset=0, end_offset=1)
    assert remote.finished == [publish]


def test_an_answer_after_the_source_has_stopped(remote: Remote) -> None:
    first, _ = remote.keys
    offset = remote.stage((first, batch_of([1])))
    remote.publish({first: [(offset, 1)]})
    asked = remote.sent()
    remote.forwarding.stop(remote.source)
    remote.answer(asked, base_offset=0, end_offset=1)
    assert not remote.finished
    assert not remote.forwarding.queues
    assert remote.forwarding.queues.byte_count == 0


def test_a_response_that_is_an_error_as_a_whole(remote: Remote) -> None:
    first, _ = remote.keys
    offset = remote.stage((first, batch_of([1])))
    remote.publish({first: [(offset, 1)]})
    response = ForwardResponse(error_code=ThrottledBroker.code, error_message="full")
    asked = remote.sent()
    remote.node.send(ResponseReceived(PEER, asked.token, response, memoryview(b"")))
    (waiting,) = remote.forwarding.queues.waiting()
    assert isinstance(waiting.error, ThrottledBroker)
    assert waiting.error.message == "full"
