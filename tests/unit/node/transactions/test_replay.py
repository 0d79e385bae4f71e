"""Reading a led partition by jobs: pieces, segments, log starts, damage, calls that fail."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from quiverlog.batch.header import BatchHeader
from quiverlog.core.controller.topic_image import TopicImage
from quiverlog.errors import CoordinatorNotReady, CorruptBatch, CorruptLog, UnsupportedFormat
from quiverlog.node.assignment import assignment
from quiverlog.node.partitions.replica import log_config
from quiverlog.node.runtime.events import JobDone, Tick
from quiverlog.node.transactions import hosted as module
from quiverlog.node.transactions import replay
from quiverlog.node.transactions.replay import Piece, Replay
from quiverlog.storage.disk.posix_file import PosixFile
from quiverlog.storage.log.log import LogConfig
from quiverlog.storage.segment.segment_files import SEGMENT_HEADER_BYTES
from quiverlog.wire import messages as m
from tests.support.counters import CounterKind
from tests.support.node import batch_of
from tests.unit.node.transactions.test_hosted import Counters

BATCH_BYTES = 256
"""Of one row."""


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three batches of one row each."""

    def small(topic: TopicImage) -> LogConfig:
        return replace(log_config(topic), segment_bytes=1024, index_interval_bytes=64)

    monkeypatch.setattr(assignment, "log_config", small)


def filled(tmp_path: Path, count: int, **configs: str) -> Counters:
    """A partition with batches of one row."""
    counters = Counters(tmp_path, **configs)
    for number in range(count):
        counters.propose(number)
        counters.node.settle()
    return counters


def led_anew(counters: Counters) -> None:
    """The machine is made anew; jobs of the replay wait for the test."""
    counters.node.holds_replays = True
    counters.lead(epoch=counters.replica.state.leader_epoch + 1)
    counters.node.settle()


def pieces(counters: Counters) -> list[int]:
    """Perform the replay; the rows of each of its pieces."""
    found: list[int] = []

    def passed(one: Replay, piece: Piece) -> None:
        found.append(len(piece.records))
        take(one, piece)

    take = Replay.passed
    with mock.patch.object(Replay, "passed", passed):
        while counters.node.replays:
            counters.node.replay()
    return found


def is_served(counters: Counters) -> bool:
    try:
        counters.hosted.serve()
    except (CoordinatorNotReady, CorruptLog, UnsupportedFormat):
        return False
    return True


def test_a_piece_is_bounded_by_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counters = filled(tmp_path, 10)
    assert counters.replica.log.reader.size_bytes == SEGMENT_HEADER_BYTES + 10 * BATCH_BYTES
    monkeypatch.setattr(replay, "PREFIX_BYTES", 64)
    monkeypatch.setattr(replay, "_WINDOW_BYTES", 64)
    monkeypatch.setattr(replay, "PIECE_BYTES", 3 * (BATCH_BYTES + 64))
    led_anew(counters)
    assert pieces(counters) == [3, 3, 3, 1]
    assert counters.machine.numbers == list(range(10))


def test_a_piece_is_bounded_by_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counters = filled(tmp_path, 10)
    monkeypatch.setattr(replay, "PIECE_RECORDS", 4)
    led_anew(counters)
    assert pieces(counters) == [4, 4, 2]
    assert counters.machine.numbers == list(range(10))


def test_a_piece_is_bounded_by_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counters = filled(tmp_path, 5)
    monkeypatch.setattr(replay, "_BATCHES_MAX", 2)
    led_anew(counters)
    assert pieces(counters) == [2, 2, 1]
    assert counters.machine.numbers == list(range(5))


def test_few_records_are_applied_in_a_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counters = Counters(tmp_path)
    counters.propose(*range(10))
    counters.node.settle()
    monkeypatch.setattr(module, "APPLY_RECORDS", 4)
    led_anew(counters)
    machine = counters.kind.machines[-1]
    counters.node.hold_jobs = True  # Turns are the test's.
    seen = [0]
    counters.node._run(counters.node.replays.pop())
    while len(machine.numbers) > seen[-1]:
        seen.append(len(machine.numbers))
        counters.node._perform(counters.node.handle(Tick()))
    assert seen == [0, 4, 8, 10]
    assert is_served(counters)


@pytest.mark.usefixtures("small_segments")
def test_segments(tmp_path: Path) -> None:
    counters = filled(tmp_path, 30)
    segments = len(counters.replica.log.reader.segments)
    assert segments > 5
    led_anew(counters)
    assert len(pieces(counters)) == segments
    assert counters.machine.numbers == list(range(30))
    assert counters.machine.offsets == list(range(30))


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize("start", [0, 1, 2, 6, 7, 11, 12])
@pytest.mark.parametrize("crashes", [False, True])
def test_from_the_log_start_on(tmp_path: Path, start: int, crashes: bool) -> None:
    """Also in a batch, at the end of a segment or of the log; with an index or without."""
    counters = Counters(tmp_path)
    for number in range(0, 12, 3):
        counters.propose(number, number + 1, number + 2)
        counters.node.settle()
    trim(counters, start)
    if crashes:
        counters.node.crash()
        counters.node.settle()
    else:
        for segment in counters.replica.log.reader.segments:
            segment.release_index()
        led_anew(counters)
        pieces(counters)
    assert counters.machine.numbers == list(range(start, 12))
    assert counters.machine.offsets == list(range(start, 12))


def trim(counters: Counters, offset: int) -> None:
    entry = m.DeleteRecordsPartition(counters.topic, 0, before_offset=offset)
    counters.node.call(m.DeleteRecordsRequest(partitions=[entry]))
    assert counters.replica.log.log_start_offset == offset


@pytest.mark.usefixtures("small_segments")
def test_rows_that_are_trimmed_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counters = filled(tmp_path, 12)
    monkeypatch.setattr(replay, "PIECE_RECORDS", 2)
    led_anew(counters)
    counters.node.replay()
    trim(counters, 9)
    machines = len(counters.kind.machines)
    pieces(counters)
    assert counters.machine.numbers == [9, 10, 11]
    assert len(counters.kind.machines) == machines + 1


@pytest.mark.usefixtures("small_segments")
def test_a_trim_behind_the_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counters = filled(tmp_path, 12)
    monkeypatch.setattr(replay, "PIECE_RECORDS", 2)
    led_anew(counters)
    for _ in range(3):
        counters.node.replay()
    trim(counters, 4)
    pieces(counters)
    assert counters.machine.numbers == list(range(12)), "no row was lost on the way"


@pytest.mark.usefixtures("small_segments")
def test_a_trim_between_a_job_and_its_end(tmp_path: Path) -> None:
    counters = filled(tmp_path, 12)
    led_anew(counters)
    start = counters.node.replays.pop()
    result = start.job.run()
    trim(counters, 9)
    counters.node.send(JobDone(start.job, result, None))
    pieces(counters)
    assert counters.machine.numbers == [9, 10, 11]


@pytest.mark.usefixtures("small_segments")
def test_a_file_that_is_removed_while_a_job_reads_it(tmp_path: Path) -> None:
    counters = filled(tmp_path, 12)
    led_anew(counters)
    first = counters.node.replays[0].job
    trim(counters, 9)
    assert first.segment.dropped  # type: ignore[attr-defined]
    counters.node.replay(FileNotFoundError(errno.ENOENT, "gone"))
    pieces(counters)
    assert counters.machine.numbers == [9, 10, 11]
    assert not [line for line in counters.node.lines if line.level == "warning"]


def test_rows_that_come_while_it_reads(tmp_path: Path) -> None:
    counters = filled(tmp_path, 2)
    led_anew(counters)
    counters.node.produce(counters.topic, batch_of([7, 8]))
    counters.node.replay()
    assert not is_served(counters)
    counters.node.replay()
    assert not is_served(counters), "they are not on the disk"
    counters.node.flush()
    assert counters.machine.numbers == [0, 1, 7, 8]


def test_a_job_of_an_earlier_leadership(tmp_path: Path) -> None:
    counters = filled(tmp_path, 2)
    led_anew(counters)
    led_anew(counters)
    assert len(counters.node.replays) == 2, "each hosted partition reads for itself"
    pieces(counters)
    assert counters.machine.numbers == [0, 1]
    assert counters.replica.jobs_running == 0


# --- damage --------------------------------------------------------------------------------------
def damage(counters: Counters, number: int, at: int, data: bytes = b"\x55") -> None:
    """Overwrite bytes of a batch in the first segment."""
    path = counters.replica.log.reader.segments[0].path
    with open(path, "r+b") as file:
        file.seek(SEGMENT_HEADER_BYTES + number * BATCH_BYTES + at)
        file.write(data)


@pytest.mark.parametrize(
    "at", [0, 20, 36, 40, 100], ids=["offset", "magic", "rows", "schema", "rows"]
)
def test_a_damaged_batch(tmp_path: Path, at: int) -> None:
    counters = filled(tmp_path, 3)
    damage(counters, 1, at)
    led_anew(counters)
    counters.node.replay()
    failed_for_good(counters, CorruptLog, "t-0 is not served: .*rows 1 to")
    assert counters.replica.corrupt


def failed_for_good(counters: Counters, kind: type[Exception], text: str) -> None:
    lines = [line for line in counters.node.lines if line.level == "error"]
    (line,) = [line for line in lines if line.event == "internal partition cannot be served"]
    assert line.fields["partition"] == "t-0"
    assert "operating.md" in line.fields["advice"]
    assert not is_served(counters)
    with pytest.raises(kind, match=text):
        counters.propose(9)
    assert counters.node.node.broker.transactions.failed() == [counters.hosted]
    counters.node.advance(60_000)
    counters.node.settle()
    assert not counters.node.replays
    assert not is_served(counters)
    assert counters.replica.jobs_running == 0
    assert len(counters.kind.serves) == 1


def test_damage_that_is_known(tmp_path: Path) -> None:
    counters = filled(tmp_path, 3)
    damage(counters, 1, 100)
    segment = counters.replica.log.reader.segments[0]
    segment.distrust()
    assert segment.diagnose()
    led_anew(counters)
    assert not counters.node.replays
    failed_for_good(counters, CorruptLog, "damaged")


@pytest.mark.usefixtures("small_segments")
def test_damage_before_the_log_start(tmp_path: Path) -> None:
    counters = filled(tmp_path, 4)
    trim(counters, 2)
    damage(counters, 0, 100)
    damage(counters, 1, 100)
    assert counters.replica.log.reader.segments[0].diagnose()
    led_anew(counters)
    pieces(counters)
    assert counters.machine.numbers == [2, 3]


@pytest.mark.usefixtures("small_segments")
def test_a_segment_that_is_missing(tmp_path: Path) -> None:
    counters = filled(tmp_path, 12)
    files = counters.replica.log.reader.files
    lost = files.items.pop(1)
    del files._bases[1]
    led_anew(counters)
    counters.node.replay()
    assert lost.base_offset > 0
    failed_for_good(counters, CorruptLog, "missing")


@pytest.mark.parametrize("kind", [CorruptBatch, CorruptLog, UnsupportedFormat])
def test_rows_that_no_kind_can_read(tmp_path: Path, kind: type[Exception]) -> None:
    """No replica is made anew for rows that all have."""
    counters = filled(tmp_path, 2)
    with mock.patch.object(CounterKind, "decode", side_effect=kind("a row of kind 99.")):
        led_anew(counters)
        counters.node.replay()
    failed_for_good(counters, UnsupportedFormat, "rows 0 to 0 are as .* a row of kind 99")
    assert not counters.replica.corrupt
    counters.lead(epoch=9)
    pieces(counters)
    assert is_served(counters), "another version can read it"
    assert not counters.node.node.broker.transactions.failed()


@pytest.mark.parametrize("where", ["decode", "apply", "new_machine"])
def test_a_bug_in_a_replay(tmp_path: Path, where: str) -> None:
    counters = filled(tmp_path, 2)
    owner: Any = CounterKind if where != "apply" else counters.kind.machines[0].__class__
    with mock.patch.object(owner, where, side_effect=RuntimeError("a bug")):
        led_anew(counters)
        for _ in counters.node.replays[:]:
            counters.node.replay()
    failed_for_good(counters, CoordinatorNotReady, "see the log")


# --- each disk call fails once -------------------------------------------------------------------
@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE, errno.ENOENT])
def test_each_read_fails_once(tmp_path: Path, code: int) -> None:
    counters = filled(tmp_path, 12)
    for number in range(1, 30):
        serves = len(counters.kind.serves)
        with FailingOnce(number, code) as failing:
            led_anew(counters)
            pieces(counters)
            assert len(counters.kind.serves) == serves + (not failing.has_failed)
            counters.node.advance(3_000)
            pieces(counters)
        assert counters.machine.numbers == list(range(12))
        assert counters.replica.jobs_running == 0
        if not failing.has_failed:
            break
    assert 4 < number < 29, "a segment is read in a job"


class FailingOnce:
    """Lets one read of a file fail."""

    def __init__(self, number: int, code: int) -> None:
        self._left = number
        self._code = code
        self.sizes: list[int] = []
        self._read_copy: Callable[[PosixFile, int, int], bytes] = PosixFile.read_copy

    def __enter__(self) -> FailingOnce:
        def read(file: PosixFile, position: int, size: int) -> bytes:
            return self._read(file, position, size)

        self._patch = mock.patch.object(PosixFile, "read_copy", read)
        self._patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.stop()

    def _read(self, file: PosixFile, position: int, size: int) -> bytes:
        self._left -= 1
        self.sizes.append(size)
        if self._left == 0:
            raise OSError(self._code, "it fails")
        return self._read_copy(file, position, size)

    @property
    def has_failed(self) -> bool:
        return self._left <= 0


def test_a_file_that_was_cut(tmp_path: Path) -> None:
    counters = filled(tmp_path, 2)
    with mock.patch.object(PosixFile, "read_copy", return_value=b""):
        led_anew(counters)
        counters.node.replay()
    assert not is_served(counters)
    counters.node.advance(1_000)
    counters.node.replay()
    assert counters.machine.numbers == [0, 1]


# --- parts of batches ----------------------------------------------------------------------------
def test_a_kind_that_needs_only_the_beginning_of_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not read is not verified either."""
    counters = filled(tmp_path, 3)
    damage(counters, 1, BATCH_BYTES - 1)
    seen: list[int] = []

    def rows(_: CounterKind, header: BatchHeader, view: memoryview) -> list[tuple[int, int]]:
        seen.append(len(view))
        return [(header.base_offset, 5)]

    monkeypatch.setattr(CounterKind, "bytes_needed", lambda *_: 128)
    monkeypatch.setattr(CounterKind, "rows", rows)
    led_anew(counters)
    counters.node.replay()
    assert seen == [128, 128, 128]
    assert counters.machine.numbers == [5, 5, 5]


@pytest.mark.parametrize(
    ("row_count", "reads"), [(1_000, 2), (20_000, 6)], ids=["read ahead", "each beginning"]
)
def test_little_is_read_of_large_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row_count: int, reads: int
) -> None:
    """Small ones are read ahead."""
    monkeypatch.setattr(module, "PENDING_RECORDS_MAX", row_count)
    counters = Counters(tmp_path)
    for _ in range(6):
        counters.propose(*range(row_count))
        counters.node.settle()
    monkeypatch.setattr(CounterKind, "bytes_needed", lambda *_: 128)
    monkeypatch.setattr(CounterKind, "rows", lambda *_: [])
    with FailingOnce(0, 0) as counting:
        led_anew(counters)
        pieces(counters)
    sizes = counting.sizes
    assert is_served(counters)
    assert len(sizes) == reads
    assert sizes == [replay.PREFIX_BYTES] * reads or row_count == 1_000
