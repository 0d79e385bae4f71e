"""A led partition of `__staged` on one node: rows are counted, published, and given up."""

from __future__ import annotations

import contextlib
import struct
from array import array
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from quiverlog.batch.header import BatchHeader
from quiverlog.core.partition.partition import PartitionState
from quiverlog.core.transactions import staged as staged_module
from quiverlog.core.transactions import staged_rows
from quiverlog.core.transactions.staged import Key, Staged
from quiverlog.core.transactions.staged_rows import (
    DoneRow,
    End,
    PublishRow,
    PublishTarget,
    StagedRow,
)
from quiverlog.errors import (
    CoordinatorNotReady,
    CorruptBatch,
    DiskFull,
    InvalidRequest,
    NotLeader,
    QuiverlogError,
    StagingFull,
    TransactionBusy,
    TransactionTooLarge,
    UnknownLeaderEpoch,
    UnknownPartition,
    UnsupportedFormat,
)
from quiverlog.limits import BATCH_HEADER_BYTES, GIB
from quiverlog.node.cluster_gauges import publish_waiting_rows, transaction_gauges
from quiverlog.node.runtime.events import Tick
from quiverlog.node.transactions import staging as staging_module
from quiverlog.node.transactions.hosted import LEISURE_US, Hosted
from quiverlog.node.transactions.kinds import encode_rows
from quiverlog.node.transactions.replay import PREFIX_BYTES
from quiverlog.node.transactions.staging import StagedKind
from quiverlog.types import Durability, PublishId
from quiverlog.wire import messages as m
from quiverlog.wire.config_messages import AlterConfigsRequest, ConfigChange
from quiverlog.wire.transaction_messages import (
    CountedAttempt,
    CountedTarget,
    CountStagedRequest,
    DescribeTransactionsRequest,
    PublishedTarget,
    PublishRequest,
)
from tests.support.node import NodeDriver, batch_of, rows_of
from tests.support.staged import ATTEMPT, make_staged, staged_batch, staged_row

LOSER = bytes(16)
FLUSHED = Durability.FLUSHED
PARTITION = 3
LEISURE_MS = LEISURE_US // 1000


class Staging:
    """A node with `__staged`, and a topic with two partitions."""

    def __init__(self, tmp_path: Path, **config: Any) -> None:
        self.node = NodeDriver(tmp_path, cluster_id="c", **config)
        self.staged = make_staged(self.node)
        self.topic = self.node.create(partitions=2, durability="memory")
        self.settle()

    @property
    def index(self) -> Staged:
        hosted = self.node.node.broker.transactions.find(self.staged, PARTITION)
        machine = hosted.machine
        assert isinstance(machine, Staged)
        return machine

    def settle(self, ms: int = 0) -> None:
        while self.node.syncs:
            self.node.flush()
        if ms:
            self.node.advance(ms)
            self.settle()

    def stage(self, *rows: dict[str, Any]) -> int:
        """Returns the offset of the first one."""
        result = self.node.produced(self.staged, staged_batch(rows), partition=PARTITION)
        return int(result.base_offset)

    def row(self, values: list[int], *, partition: int = 0, **changes: Any) -> dict[str, Any]:
        return staged_row(self.topic, bytes(batch_of(values)), partition=partition, **changes)

    def count(self, *attempts: CountedAttempt, **changes: Any) -> Any:
        request = {
            "partition": PARTITION, "transactional_id": "id", "epoch": 1, "sequence": 2,
            "attempts": list(attempts),
        }  # fmt: skip
        response, _ = self.node.call(CountStagedRequest(**{**request, **changes}))
        return response

    def publish(self, next_offset: int, **changes: Any) -> int:
        """Send a PUBLISH; returns the number of its response."""
        request = {
            "partition": PARTITION, "transactional_id": "id", "epoch": 1, "sequence": 2,
            "attempts": [ATTEMPT], "first_offset": 0, "next_offset": next_offset,
            "durability": FLUSHED, "max_wait_ms": 5_000,
        }  # fmt: skip
        return self.node.request(PublishRequest(**{**request, **changes}))

    def rows(self, partition: int = 0) -> list[tuple[int, int]]:
        _, body = self.node.fetched(self.topic, 0, partition=partition)
        return rows_of(body)


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    return Staging(tmp_path)


def published(staging: Staging, correlation: int) -> Any:
    answer = staging.node.answer(correlation)
    return None if answer is None else answer[0]


def end(partition: int, offset: int, rows: int, topic: bytes) -> PublishedTarget:
    return PublishedTarget(topic, partition, offset, rows)


# --- COUNT_STAGED -----------------------------------------------------------------------------
def test_rows_are_counted_by_target(staging: Staging) -> None:
    first = staging.stage(
        staging.row([1, 2]), staging.row([3], partition=1), staging.row([9], attempt=LOSER)
    )
    counted = staging.count(CountedAttempt(ATTEMPT, 3, first, first + 2))
    assert counted.is_whole
    assert counted.targets == [
        CountedTarget(staging.topic, 0, 2), CountedTarget(staging.topic, 1, 1)
    ]  # fmt: skip
    assert counted.durability == FLUSHED


def test_rows_that_are_not_safe_do_not_count(staging: Staging) -> None:
    staging.node.produce(staging.staged, staged_batch([staging.row([1])]), partition=PARTITION)
    asked = CountedAttempt(ATTEMPT, 1, 0, 1)
    assert not staging.count(asked).is_whole
    staging.settle()
    assert staging.count(asked).is_whole


def test_a_batch_that_is_sent_again_counts_once(staging: Staging) -> None:
    producer = (0, 0, 0)
    batch = staged_batch([staging.row([1])], producer=producer)
    for _ in range(2):
        staging.node.produced(staging.staged, batch, partition=PARTITION)
    assert staging.index.batch_count == 1
    assert staging.count(CountedAttempt(ATTEMPT, 1, 0, 1)).is_whole


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"leader_epoch": 99}, UnknownLeaderEpoch),
        ({"attempts": [CountedAttempt(b"short", 1, 0, 1)]}, InvalidRequest),
        ({"partition": 1_000}, UnknownPartition),
    ],
)
def test_a_count_that_cannot_be_answered(
    staging: Staging, changes: dict[str, Any], error: type[QuiverlogError]
) -> None:
    assert staging.count(**changes).error_code == error.code


# --- PUBLISH ----------------------------------------------------------------------------------
def test_rows_are_published_behind_a_row_that_is_safe_and_then_answered(staging: Staging) -> None:
    """Rule 22: rows become visible behind what is durable."""
    first = staging.stage(
        staging.row([1, 2]), staging.row([3], partition=1), staging.row([9], attempt=LOSER)
    )
    asked = staging.publish(first + 2)
    assert staging.rows() == [], "its row of kind 1 is not safe"
    staging.node.flush()
    assert staging.rows() == [(0, 2)]
    assert staging.rows(1) == [(0, 1)]
    assert published(staging, asked) is None, "they are not safe"
    staging.settle()
    targets = [end(0, 2, 2, staging.topic), end(1, 1, 1, staging.topic)]
    answer = published(staging, asked)
    assert (answer.targets, answer.durability) == (targets, FLUSHED)
    again = staging.publish(first + 2)
    assert published(staging, again).targets == targets
    # Its row of kind 2 is appended with others, or after a second.
    staging.settle(ms=LEISURE_MS - 1)
    assert staging.index.next_offset == first + 4
    assert staging.index.batch_count == 3
    staging.settle(ms=1)
    assert staging.index.next_offset == first + 5
    assert staging.index.batch_count == 0
    again = staging.publish(first + 2)
    assert published(staging, again).targets == targets
    assert staging.rows() == [(0, 2)]


def test_rows_are_recorded_at_levels_of_their_own(staging: Staging) -> None:
    levels: list[tuple[type, object]] = []
    propose = Hosted.propose

    def spy(hosted: Hosted, records: Any, now: Any, *args: Any, **options: Any) -> None:
        levels.append((type(records[0]), args[1] if len(args) > 1 else None))
        propose(hosted, records, now, *args, **options)

    staging.stage(staging.row([1]))
    with mock.patch.object(Hosted, "propose", spy):
        staging.publish(1)
        staging.settle()
    # A power failure that takes the first one lets its rows be published twice.
    assert levels == [(PublishRow, Durability.REPLICATED_FLUSHED), (DoneRow, None)]
    assert StagedKind.level == Durability.REPLICATED


def test_published_rows_have_the_numbers_of_their_publish(staging: Staging) -> None:
    for sequence in (2, 3):
        staging.stage(staging.row([1, 2], sequence=sequence))
        staging.publish(staging.index.next_offset, sequence=sequence)
        staging.settle()
    epoch = staging.node.node.broker.replicas[staging.staged, PARTITION].state.leader_epoch
    numbers = [header.producer_id for header in staging.node.headers(staging.topic)]
    assert numbers == [PublishId(PARTITION, epoch, count).pack() for count in (0, 1)]


def test_a_publish_that_is_asked_for_again_is_written_once(staging: Staging) -> None:
    first = staging.stage(staging.row([1]))
    asked = [staging.publish(first + 1), staging.publish(first + 1)]
    staging.node.flush()
    asked.append(staging.publish(first + 1))
    staging.settle(ms=LEISURE_MS)
    answers = [published(staging, one) for one in asked]
    assert [one.targets for one in answers] == [[end(0, 1, 1, staging.topic)]] * 3
    assert staging.rows() == [(0, 1)]
    assert staging.index.next_offset == first + 3


def test_a_publish_that_takes_longer_goes_on(staging: Staging) -> None:
    first = staging.stage(staging.row([1]))
    asked = staging.publish(first + 1, max_wait_ms=50)
    staging.node.advance(49)
    assert published(staging, asked) is None
    staging.node.advance(1)
    assert published(staging, asked).error_code == TransactionBusy.code
    staging.settle()
    assert staging.rows() == [(0, 1)]
    assert published(staging, staging.publish(first + 1)).targets


def test_rows_that_a_fault_took_from_the_log_are_counted_and_not_waited_for(
    staging: Staging,
) -> None:
    first = staging.stage(staging.row([1]))
    asked = staging.publish(first + 2, row_count=4)
    staging.settle()
    assert published(staging, asked).targets == [end(0, 1, 1, staging.topic)]
    assert staging.rows() == [(0, 1)]
    (one,) = described(staging, "id").transactions
    assert [rows.missing_count for rows in one.staged] == [3]
    lost = "rows of a committed transaction are lost"
    (line,) = [one for one in staging.node.lines if one.event == lost]
    assert (line.fields["rows"], line.fields["transactional_id"]) == (3, "id")
    assert published(staging, staging.publish(first + 2, row_count=4)).targets
    assert sum(one.event == lost for one in staging.node.lines) == 1


@pytest.mark.parametrize(
    ("changes", "error"),
    [({"leader_epoch": 99}, UnknownLeaderEpoch), ({"attempts": [b"short"]}, InvalidRequest)],
)
def test_a_publish_that_cannot_be_answered(
    staging: Staging, changes: dict[str, Any], error: type[QuiverlogError]
) -> None:
    assert published(staging, staging.publish(0, **changes)).error_code == error.code


def test_a_publish_whose_rows_are_gone_is_done_with_none(staging: Staging) -> None:
    staging.stage(staging.row([1], attempt=LOSER))
    asked = staging.publish(1)
    staging.settle()
    assert published(staging, asked).targets == []
    assert published(staging, asked).error_code == 0
    assert staging.rows() == []


def test_rows_of_a_topic_that_is_deleted_are_dropped(staging: Staging) -> None:
    first = staging.stage(staging.row([1]))
    staging.node.call(m.DeleteTopicsRequest(names=["t"]))
    asked = staging.publish(first + 1)
    staging.settle(ms=LEISURE_MS)
    assert published(staging, asked).targets == []
    assert staging.index.batch_count == 0


def test_nothing_is_answered_without_the_lease(staging: Staging) -> None:
    first = staging.stage(staging.row([1]))
    other = staging.stage(staging.row([1], transactional_id="other"))
    staging.publish(first + 1)
    staging.settle(ms=LEISURE_MS)
    deposed = NotLeader("a test")
    lookup = type(staging.node.node.broker.lookup)
    with mock.patch.object(lookup, "leader_for_offsets", side_effect=deposed):
        answers = [
            staging.count(CountedAttempt(ATTEMPT, 1, other, other + 1), transactional_id="other"),
            published(staging, staging.publish(first + 1)),
            published(staging, staging.publish(other + 1, transactional_id="other")),
        ]
    assert [one.error_code for one in answers] == [NotLeader.code] * 3
    assert staging.index.batch_count == 1


def test_the_end_of_a_publish_that_could_not_be_recorded_is_recorded_later(
    staging: Staging,
) -> None:
    first = staging.stage(staging.row([1]))
    asked = staging.publish(first + 1, max_wait_ms=60_000)
    with mock.patch.object(Hosted, "propose", side_effect=DiskFull("a test")):
        staging.settle()
        assert staging.rows() == [(0, 1)]
        assert published(staging, asked).targets == [end(0, 1, 1, staging.topic)]
        staging.settle(ms=499)
    with mock.patch.object(Hosted, "propose", autospec=True) as propose:
        staging.settle(ms=1)
    assert [type(one) for one in propose.call_args.args[1]] == [DoneRow]


# --- leaderships ------------------------------------------------------------------------------
def test_a_new_leader_has_the_rows_that_were_staged(staging: Staging) -> None:
    first = staging.stage(staging.row([1, 2]), staging.row([3], partition=1))
    staging.stage(staging.row([9], attempt=LOSER, transactional_id="other"))
    before = staging.index
    staging.node.crash()
    staging.settle()
    assert staging.index is not before
    assert staging.index.batch_count == 3
    assert staging.index.bytes_held == before.bytes_held > 0
    assert staging.index.ids() == ["id", "other"]
    assert 0 < staging.index.oldest_us <= staging.node.mono_us
    assert staging.count(CountedAttempt(ATTEMPT, 3, first, first + 2)).is_whole


@pytest.mark.parametrize("flushes", range(4))
def test_a_new_leader_goes_on_with_a_publish(staging: Staging, flushes: int) -> None:
    """Whatever the one before had come to: its row, the rows, the row of kind 2."""
    first = staging.stage(staging.row([1, 2]), staging.row([3], partition=1))
    staging.publish(first + 2)
    for _ in range(flushes):
        staging.node.flush()
    staging.node.crash()
    staging.settle()
    assert staging.rows() == [(0, 2)]
    asked = staging.publish(first + 2)
    staging.settle(ms=LEISURE_MS)
    assert published(staging, asked).targets == [
        end(0, 2, 2, staging.topic), end(1, 1, 1, staging.topic)
    ]  # fmt: skip
    assert staging.rows() == [(0, 2)]
    assert staging.rows(1) == [(0, 1)]
    assert staging.index.batch_count == 0


def test_numbers_go_on_where_the_index_is_built_again_under_one_leader_epoch(
    staging: Staging,
) -> None:
    staging.stage(staging.row([1]))
    staging.publish(1)
    staging.settle(ms=LEISURE_MS)
    staging.settle(ms=2_000)
    replica = staging.node.node.broker.replicas[staging.staged, PARTITION]
    assert replica.log.log_start_offset == replica.log.log_end_offset, "all of it is given up"
    hosted = staging.node.node.broker.transactions.find(staging.staged, PARTITION)
    hosted._restart(NotLeader("a test"), [], staging.node.now)
    staging.settle(ms=1_000)
    assert staging.index.next_publish == 1
    staging.stage(staging.row([2], sequence=3))
    staging.publish(staging.index.next_offset, sequence=3)
    staging.settle()
    assert staging.rows() == [(0, 1), (1, 1)]


def test_who_waits_is_answered_when_the_leadership_ends(staging: Staging) -> None:
    first = staging.stage(staging.row([1]))
    asked = staging.publish(first + 1)
    hosted = staging.node.node.broker.transactions.find(staging.staged, PARTITION)
    hosted._restart(NotLeader("a test"), [], staging.node.now)
    staging.node.send(Tick())
    assert published(staging, asked).error_code
    staging.settle(ms=1_000)
    assert staging.rows() == [(0, 1)], "its row was in the log"


def test_the_end_of_a_leadership_stops_what_it_forwards(staging: Staging) -> None:
    first = staging.stage(staging.row([1]))
    asked = staging.publish(first + 1)
    staging.node.hold_jobs = True
    staging.node.flush()
    broker = staging.node.node.broker
    assert list(broker.forwarding.queues.waiting())
    hosted = broker.transactions.find(staging.staged, PARTITION)
    hosted._restart(NotLeader("a test"), [], staging.node.now)
    assert not list(broker.forwarding.queues.waiting())
    staging.node.send(Tick())
    assert published(staging, asked).error_code
    staging.node.hold_jobs = False
    staging.settle(ms=1_000)
    assert staging.rows() == [(0, 1)]


# --- PRODUCE ----------------------------------------------------------------------------------
def test_rows_are_refused_where_the_partition_is_not_served(staging: Staging) -> None:
    hosted = staging.node.node.broker.transactions.find(staging.staged, PARTITION)
    staging.node.hold_jobs = True
    hosted._restart(NotLeader("a test"), [], staging.node.now)
    correlation = staging.node.produce(
        staging.staged, staged_batch([staging.row([1])]), partition=PARTITION
    )
    code = staging.node.answer(correlation)[0].partitions[0].error_code  # type: ignore[index]
    assert code == CoordinatorNotReady.code
    assert staging.node.broker_end(staging.staged, PARTITION) == 0


def test_rows_beyond_a_bound_are_refused(staging: Staging, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_module, "STAGED_BATCHES_MAX", 4)
    staging.stage(staging.row([1]), staging.row([2]))

    def code(**changes: Any) -> int:
        batch = staged_batch([staging.row([3], **changes)])
        correlation = staging.node.produce(staging.staged, batch, partition=PARTITION)
        answer = staging.node.answer(correlation)
        if answer is None:
            staging.settle()
            answer = staging.node.answer(correlation)
        assert answer is not None
        return int(answer[0].partitions[0].error_code)

    assert code() == TransactionTooLarge.code
    assert code(transactional_id="b") == code(transactional_id="c") == 0
    assert code(transactional_id="d") == StagingFull.code
    assert staging.node.broker_end(staging.staged, PARTITION) == 4


def test_rows_beyond_the_bytes_of_the_broker_are_refused(staging: Staging) -> None:
    held = len(batch_of([1]))
    broker = staging.node.node.broker
    broker.staging.set_bytes_max(4 * held)
    staging.stage(staging.row([1]), staging.row([2]))

    def produce(partition: int, name: str) -> int:
        batch = staged_batch([staging.row([3], transactional_id=name)])
        correlation = staging.node.produce(staging.staged, batch, partition=partition)
        staging.settle()
        answer = staging.node.answer(correlation)
        assert answer is not None
        return int(answer[0].partitions[0].error_code)

    # Of all partitions that the broker leads.
    assert produce(0, "id") == TransactionTooLarge.code
    assert produce(0, "b") == produce(1, "c") == 0
    assert produce(2, "d") == StagingFull.code


@pytest.mark.parametrize(
    ("given", "disk_bytes", "bytes_max"),
    [
        (0, 0, 256 * GIB),
        (0, 403, 100),
        (0, 1024 * GIB, 256 * GIB),
        (0, 1025 * GIB, 256 * GIB),
        (0, 1023 * GIB, 1023 * GIB // 4),
        (7, 1024 * GIB, 7),
        (2**50, 403, 2**50),
    ],
)
def test_the_bytes_are_a_quarter_of_the_disk_unless_they_are_given(
    tmp_path: Path, given: int, disk_bytes: int, bytes_max: int
) -> None:
    node = NodeDriver(tmp_path, staged_bytes_max=given, disk_bytes=disk_bytes)
    assert node.node.broker.staging.bytes_max == bytes_max


def test_the_bytes_follow_the_configuration(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path, disk_bytes=400)
    for value, bytes_max in (("9", 9), ("0", 100)):
        change = ConfigChange("staged.bytes.max", value)
        asked = node.request(AlterConfigsRequest(changes=[change]))
        while node.syncs:
            node.flush()
        answer = node.answer(asked)
        assert answer is not None
        assert answer[0].error_code == 0, answer[0].error_message
        assert node.node.broker.staging.bytes_max == bytes_max


def test_rows_that_could_not_be_stored_are_not_in_the_index(staging: Staging) -> None:
    batch = staged_batch([staging.row([1])])
    replica = staging.node.node.broker.replicas[staging.staged, PARTITION]
    with mock.patch.object(type(replica.log), "append", side_effect=DiskFull("a test")):
        correlation = staging.node.produce(staging.staged, batch, partition=PARTITION)
    answer = staging.node.answer(correlation)
    assert answer is not None
    assert answer[0].partitions[0].error_code == DiskFull.code
    assert staging.index.batch_count == 0


# --- the log start ----------------------------------------------------------------------------
def test_the_log_start_moves_past_what_is_published_and_not_past_what_is_staged(
    staging: Staging,
) -> None:
    staging.stage(staging.row([1]))
    other = staging.stage(staging.row([1], transactional_id="other"))
    staging.publish(1)
    staging.settle(ms=LEISURE_MS)
    staging.settle(ms=2_000)
    log = staging.node.node.broker.replicas[staging.staged, PARTITION].log
    assert log.log_start_offset == other == 1
    broker = staging.node.node.broker
    broker.staging.give_up(PARTITION, Key("other", 1, 2), staging.node.now)
    staging.settle(ms=2_000)
    assert log.log_start_offset == log.log_end_offset == 4
    asked = staging.publish(1)
    assert published(staging, asked).targets == [end(0, 1, 1, staging.topic)]
    staging.node.crash()
    staging.settle()


def test_rows_stay_until_their_row_of_kind_2_is_on_the_disks(staging: Staging) -> None:
    staging.stage(staging.row([1]))
    staging.publish(1)
    staging.settle()
    log = staging.node.node.broker.replicas[staging.staged, PARTITION].log
    flushed = mock.PropertyMock(return_value=2)
    with mock.patch.object(PartitionState, "replicas_flushed_offset", flushed):
        staging.settle(ms=5_000)
        assert log.log_start_offset == 0
        staging.stage(staging.row([1], sequence=3))
        staging.publish(4, sequence=3)
        staging.settle()
        flushed.return_value = 3
        staging.settle(ms=1_000)
        assert log.log_start_offset == 3, "what has become of the later rows is not on the disks"
        flushed.return_value = 5
        staging.settle(ms=3_000)
        assert log.log_start_offset == 3
        flushed.return_value = 6
        staging.settle(ms=1_000)
        assert log.log_start_offset == log.log_end_offset == 6


# --- bytes ------------------------------------------------------------------------------------
METADATA_BYTES = 1_000
"""Of a staged batch: its header, and Arrow's metadata."""


class Reading:
    """Reads a batch, and remembers how many bytes were asked for."""

    def __init__(self, batch: bytes | bytearray | memoryview) -> None:
        self._view = memoryview(batch)
        self.asked: list[int] = []

    def __call__(self, byte_count: int) -> memoryview:
        self.asked.append(min(byte_count, len(self._view)))
        return self._view[:byte_count]


def test_the_index_is_built_again_without_the_payload(staging: Staging) -> None:
    rows = [staging.row(list(range(5_000)), transactional_id=f"id{n}") for n in range(20)]
    batch = staged_batch(rows)
    header = BatchHeader.unpack(batch)
    kind = StagedKind(staging.node.node.broker.staging)
    reading = Reading(batch)
    found = kind.decode(header, reading(METADATA_BYTES), reading)
    needed = reading.asked[-1]
    assert needed < 3_000 < 20 * 40_000 < header.total_bytes
    payload = sum(len(row["batch"]) for row in rows)
    assert header.total_bytes - needed - payload < 128, "up to the payload, and no further"
    assert [offset for offset, _ in found] == list(range(20))
    for (_, one), row in zip(found, rows, strict=True):
        values = [row[name] for name in StagedRow._fields[:-1]]
        assert one == StagedRow(*values, len(row["batch"]))


def test_rows_of_brokers_are_read_whole(staging: Staging) -> None:
    kind = StagedKind(staging.node.node.broker.staging)
    target = PublishTarget(staging.topic, 1, array("q", [5]), array("i", [7]))
    records = [
        PublishRow("id", 1, 2, 2**62, FLUSHED, (target,)),
        DoneRow("id", 1, 2, (End(staging.topic, 1, 9, 7),), FLUSHED),
    ]
    ((header, view),) = encode_rows(
        kind.schema, 1, [kind.row(one) for one in records], staging.node.now
    )
    reading = Reading(view)
    assert kind.decode(header, reading(METADATA_BYTES), reading) == list(enumerate(records))
    assert reading.asked[-1] == header.total_bytes, "their CRC is verified"


@pytest.mark.parametrize("middle", [-1, 1_000, -(2**31)])
def test_ends_that_are_wrong_are_damage(staging: Staging, middle: int) -> None:
    kind = StagedKind(staging.node.node.broker.staging)
    batch = bytearray(staged_batch([staging.row([1]), staging.row([2])]))
    ends = struct.pack("<3i", 0, 2, 4)
    assert batch.count(ends) == 1, "of the transactional ids"
    struct.pack_into("<i", batch, batch.index(ends) + 4, middle)
    with pytest.raises(CorruptBatch, match="ends of a column"):
        kind.decode(BatchHeader.unpack(batch), memoryview(batch), Reading(batch))


def test_damage_before_the_payload_never_reaches_the_index(staging: Staging) -> None:
    kind = StagedKind(staging.node.node.broker.staging)
    rows = [staging.row([1]), staging.row([2], partition=1)]
    batch = staged_batch(rows)
    good = BatchHeader.unpack(batch)
    payload = sum(len(row["batch"]) for row in rows)
    for at in range(BATCH_HEADER_BYTES, good.total_bytes - payload):
        for bit in (1, 0x80):
            damaged = bytearray(batch)
            damaged[at] ^= bit
            reading = Reading(damaged)
            with contextlib.suppress(CorruptBatch):
                for _, row in kind.decode(good, reading(PREFIX_BYTES), reading):
                    # Not noticed, but still a row.
                    assert isinstance(row, StagedRow)
                    assert len(row.attempt) == len(row.topic_id) == 16
                    assert row.row_count > 0
                    assert row.byte_count >= 0


# --- DESCRIBE_TRANSACTIONS ----------------------------------------------------------------------
def described(staging: Staging, *ids: str) -> Any:
    correlation = staging.node.request(DescribeTransactionsRequest(ids=list(ids) or None))
    staging.settle(1)
    answer = staging.node.answer(correlation)
    assert answer is not None
    return answer[0]


@pytest.mark.parametrize(("kind", "row"), [(0, 0), (2, 1)])
def test_an_unreadable_row_is_what_the_partition_is_refused_with(
    staging: Staging, monkeypatch: pytest.MonkeyPatch, kind: int, row: int
) -> None:
    """One of a client, whose batch is not read otherwise, and one of a broker."""
    staging.stage(staging.row([1, 2]))
    if kind == 0:
        monkeypatch.setattr(staging_module, "_TOPIC_ID_BYTES", 17)
    else:
        monkeypatch.setattr(staged_rows, "_VERSION", 9)
        correlation = staging.publish(1)
        staging.settle()
        assert published(staging, correlation).error_code == 0
        monkeypatch.undo()
    staging.node.crash()
    staging.settle()
    found = [staging.count(CountedAttempt(ATTEMPT, 2, 0, 1))]
    batch = staged_batch([staging.row([4])])
    produced = staging.node.produce(staging.staged, batch, partition=PARTITION)
    found.append(published(staging, produced).partitions[0])
    correlation = staging.publish(1)
    staging.settle()
    found.append(published(staging, correlation))
    for response in found:
        assert response.error_code == UnsupportedFormat.code
        assert f"__staged-3 is not served: rows {row} to {row} are as" in response.error_message
    described, _ = staging.node.call(DescribeTransactionsRequest())
    assert [(one.name, one.partition) for one in described.unserved] == [("__staged", PARTITION)]


def test_a_description_has_what_is_staged(staging: Staging) -> None:
    nothing = described(staging)
    assert (nothing.transactions, nothing.staged_bytes, nothing.staged_oldest_ms) == ([], 0, 0)
    staging.stage(staging.row([1, 2]), staging.row([3], attempt=LOSER))
    staging.settle(2_500)
    other = staging.row([4], transactional_id="other")
    staging.stage(other)
    response = described(staging, "id", "unknown")
    (one,) = response.transactions
    (rows,) = one.staged
    assert (one.transactional_id, one.listing, one.waits) == ("id", None, [])
    assert (rows.partition, rows.row_count, rows.missing_count) == (PARTITION, 3, 0)
    assert 2_500 <= rows.oldest_ms < 3_000
    assert response.staged_oldest_ms == rows.oldest_ms
    everything = described(staging)
    assert [one.transactional_id for one in everything.transactions] == ["id", "other"]
    staged = sum(one.staged[0].byte_count for one in everything.transactions)
    assert response.staged_bytes == staged > rows.byte_count > 0
    assert response.staged_bytes_max == staging.node.node.broker.staging.room(0).bytes_max > 0


def test_a_description_names_the_target_that_a_publish_waits_for(staging: Staging) -> None:
    end = 1 + staging.stage(staging.row([1, 2]), staging.row([3], partition=1))
    image = staging.node.node.broker.view.image.topics_by_id[staging.topic].partitions[1]
    before_us = staging.node.wall_us
    with mock.patch.object(image, "leader_id", -1):
        staging.publish(end + 1)
        staging.settle(1_000)
        response = described(staging, "id", "other")
        (one,) = response.transactions
        assert one.waits == response.waits
        (wait,) = one.waits
        assert (wait.name, wait.topic_id, wait.partition) == ("t", staging.topic, 1)
        assert (wait.reason, wait.row_count) == (NotLeader.code, 1)
        assert "t-1 has no leader" in wait.reason_text
        assert before_us <= wait.since_us < staging.node.wall_us
        assert publish_waiting_rows(staging.node.node) == {"t": 1}
        shown = transaction_gauges(staging.node.node, staging.node.now)
        assert (shown.staged_bytes, shown.transactions_open) == (response.staged_bytes, 0)
        assert shown.staged_oldest_seconds >= 1.0
    staging.settle(5_000)
    assert described(staging).waits == []
    assert publish_waiting_rows(staging.node.node) == {}


def test_a_description_counts_what_is_lost(staging: Staging) -> None:
    staging.stage(staging.row([1]))
    led = next(iter(staging.node.node.broker.staging._led.values()))
    led.miss("oldest", 1)
    led.miss("lost", 2)
    led.miss("lost", 3)
    for number in range(998):
        led.miss(str(number), 1)
    assert [one.transactional_id for one in described(staging, "oldest").transactions] == ["oldest"]
    led.miss("newest", 1)
    (one,) = described(staging, "lost", "oldest").transactions
    assert [(rows.row_count, rows.missing_count) for rows in one.staged] == [(0, 5)]
