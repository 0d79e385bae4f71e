"""Snapshots of a machine as rows, and the log start that follows them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from quiverlog.batch.codec import decode_batch, split_batches
from quiverlog.batch.evolution import SchemaHistory
from quiverlog.errors import DiskFull, OutcomeUnknown
from quiverlog.node.partitions.trimming import Trims
from quiverlog.node.runtime.events import Tick
from quiverlog.node.transactions import hosted as module
from quiverlog.storage.log.log import Log
from quiverlog.storage.segment.segment_files import SEGMENT_HEADER_BYTES
from tests.support.counters import BEGIN, END, CounterKind
from tests.support.node import SCHEMA
from tests.unit.node.transactions.test_hosted import Counters

BATCH_BYTES = 256


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot when the log has more than five small batches, in pieces of three records."""
    monkeypatch.setattr(module, "SNAPSHOT_LOG_BYTES_MIN", 5 * BATCH_BYTES)
    monkeypatch.setattr(module, "_SNAPSHOT_PIECE_RECORDS", 3)
    monkeypatch.setattr(CounterKind, "takes_snapshots", True)


@pytest.fixture
def counters(tmp_path: Path) -> Counters:
    return Counters(tmp_path)


def propose(counters: Counters, *numbers: int) -> None:
    for number in numbers:
        counters.propose(number)
        counters.node.send(Tick())
        counters.node.flush()


def rows(counters: Counters, offset: int = 0) -> list[int]:
    """As a consumer reads them."""
    _, body = counters.node.fetched(counters.topic, offset, entry_bytes_max=2**20)
    found: list[int] = []
    for header, view in split_batches(memoryview(body)):
        first = max(0, offset - header.base_offset)
        data = decode_batch(view, header, SchemaHistory({1: SCHEMA}), start=first)
        found += data.column(0).to_pylist()
    return found


def state(*numbers: int) -> list[int]:
    return [BEGIN, *(-10 - number for number in numbers), END]


def start(counters: Counters) -> int:
    return counters.replica.log.log_start_offset


def test_when_the_log_is_large(counters: Counters) -> None:
    propose(counters, *range(5))
    counters.node.settle()
    assert rows(counters) == [0, 1, 2, 3, 4]
    propose(counters, 5)
    counters.node.settle()
    assert start(counters) == 6
    assert rows(counters, 6) == state(0, 1, 2, 3, 4, 5)
    assert counters.machine.numbers == [0, 1, 2, 3, 4, 5]
    assert counters.outcomes.of(5) == 5


def test_a_new_machine_begins_with_the_snapshot(counters: Counters) -> None:
    propose(counters, *range(6), 6, 7)
    counters.node.settle()
    expected = counters.machine.numbers
    assert sorted(expected) == list(range(8))
    counters.node.crash()
    counters.node.settle()
    assert counters.machine.offsets[0] == start(counters) == 6, "it is on the disk"
    assert counters.machine.numbers == expected


def test_records_between_its_pieces(counters: Counters) -> None:
    propose(counters, *range(6))
    counters.propose(6)  # Its first piece is under way, and has what was pending then only.
    counters.node.flush()
    counters.propose(7)
    counters.node.settle()
    found = rows(counters, 6)
    assert [n for n in found if n < 0] == state(0, 1, 2, 3, 4, 5)
    assert found.index(END) > found.index(6) > found.index(BEGIN)
    assert start(counters) == 6
    counters.lead(epoch=5)
    counters.node.settle()
    assert counters.machine.numbers == list(range(8))


def test_what_is_pending_when_it_begins_is_in_it(counters: Counters) -> None:
    propose(counters, *range(5))
    counters.propose(5)
    counters.node.send(Tick())
    counters.propose(6)
    counters.node.settle()
    found = rows(counters, start(counters))
    assert found == state(0, 1, 2, 3, 4, 5, 6)
    assert start(counters) == 7


def test_the_next_one_comes_at_four_times_its_size(counters: Counters) -> None:
    propose(counters, *range(6))
    counters.node.settle()
    first = start(counters)
    snapshot_bytes = len(state(*range(6))) * module.bytes_of((1,))
    assert 4 * snapshot_bytes < 5 * BATCH_BYTES, "so five batches count"
    with mock.patch.object(module, "SNAPSHOT_LOG_BYTES_MIN", 0):
        number = 100
        while start(counters) == first:
            propose(counters, number)
            counters.node.settle()
            number += 1
    held = counters.replica.log.reader.size_bytes - 64 - 6 * BATCH_BYTES
    assert number - 100 <= 4 * snapshot_bytes // BATCH_BYTES + 1
    assert held > 0


def test_one_leadership_takes_it_again_and_again(counters: Counters) -> None:
    """The small state is rewritten each time the log has grown by five batches."""
    with mock.patch.object(CounterKind, "capture", side_effect=lambda *_: iter([BEGIN, END])):
        starts = []
        for number in range(24):
            propose(counters, number)
            counters.node.settle()
            if start(counters) not in [0, *starts]:
                starts.append(start(counters))
    # A snapshot counts as a batch of the log, which six more than five batches bring over it.
    assert starts == [6, 13, 20, 27]
    assert len(counters.kind.serves) == 1


@pytest.mark.parametrize("per_turn", [1, 27, 28, 1_000])
def test_a_new_leadership_waits_until_the_log_is_four_times_the_state(
    counters: Counters, monkeypatch: pytest.MonkeyPatch, per_turn: int
) -> None:
    monkeypatch.setattr(module, "SNAPSHOT_LOG_BYTES_MIN", 0)
    monkeypatch.setattr(module, "_COUNTED_PER_TURN", per_turn)
    counters.propose(*range(24))
    counters.node.settle()
    state_bytes = len(state(*range(25))) * module.bytes_of((1,))  # With the record that follows.
    counters.lead(epoch=5)
    counters.node.settle()
    held: list[int] = []
    while start(counters) == 0:
        held.append(counters.replica.log.reader.size_bytes - SEGMENT_HEADER_BYTES)
        propose(counters, 1)
        counters.node.settle()
    assert len(counters.kind.serves) == 2
    if per_turn > 1:  # Else it is not counted by then.
        assert held[-1] <= 4 * state_bytes < held[-1] + BATCH_BYTES, "at the bound not, above it"
    rows_before = start(counters)
    counters.lead(epoch=6)
    counters.node.settle()
    assert len(counters.machine.numbers) == rows_before


def test_its_start_without_its_end(counters: Counters) -> None:
    propose(counters, *range(6))
    counters.propose(6)
    counters.lead(epoch=5)
    assert counters.outcomes.of(6) is not None
    counters.node.settle()
    assert start(counters) == 0
    assert BEGIN in rows(counters)
    assert END not in rows(counters)
    assert counters.machine.numbers[:6] == list(range(6))
    propose(counters, 7)
    counters.node.settle()
    assert start(counters) > 0, "the next one"
    expected = counters.machine.numbers
    counters.lead(epoch=6)
    counters.node.settle()
    assert counters.machine.numbers == expected


def test_a_piece_that_is_not_stored(counters: Counters) -> None:
    propose(counters, *range(5))
    counters.propose(5)
    counters.node.send(Tick())
    with mock.patch.object(Log, "append", side_effect=DiskFull()):
        counters.node.flush()
    counters.node.disk_space(2**40)
    assert start(counters) == 0
    assert counters.outcomes.of(5) == 5
    propose(counters, 6)
    counters.node.settle()
    assert start(counters) == 7
    assert rows(counters, 7) == state(*range(7))


def test_a_start_that_cannot_be_moved(counters: Counters) -> None:
    propose(counters, *range(5))

    def trim(
        trims: Trims, replica: object, offset: int, now: object, then: object, **_: object
    ) -> None:
        then(None, OutcomeUnknown("the disk failed"), now)  # type: ignore[operator]

    with mock.patch.object(Trims, "trim", trim):
        propose(counters, 5)
        counters.node.settle()
    assert [x.event for x in counters.node.lines if x.level == "warning"] == [
        "internal partition not trimmed"
    ]
    assert start(counters) == 0
    counters.lead(epoch=5)
    counters.node.settle()
    assert counters.machine.numbers == list(range(6)), "the snapshot is passed"


def test_a_snapshot_that_raises(counters: Counters) -> None:
    def capture(*_: object) -> Iterator[int]:
        raise RuntimeError("a bug")

    with mock.patch.object(CounterKind, "capture", capture):
        propose(counters, *range(8))
    assert counters.node.metrics.internal_errors == 1, "not with each record"
    assert counters.machine.numbers == list(range(8))


def test_a_topic_without_snapshots(counters: Counters, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CounterKind, "takes_snapshots", False)
    propose(counters, *range(12))
    counters.node.settle()
    assert rows(counters) == list(range(12))
