"""The log against a plain list of batches, with crashes at any moment, on a simulated disk."""

from __future__ import annotations

import errno
from typing import NamedTuple

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from quiverlog.batch.checksum import crc32c
from quiverlog.batch.header import CRC_START, BatchHeader, stamp
from quiverlog.core.partition.producers import ProducerStates
from quiverlog.errors import DiskFull, QuiverlogError, StorageFault
from quiverlog.limits import PRODUCER_BATCHES_REMEMBERED
from quiverlog.storage.log.log import Log, LogConfig
from quiverlog.types import Now
from tests.sim.disk import SimDisk
from tests.sim.mutations import Mutation, planted
from tests.support.logs import foreign_snapshot, retain, truncate

DIRECTORY = "data/t-0"
START_US = 1_000_000_000_000_000
CONFIG = LogConfig(
    segment_bytes=1_500,
    segment_ms=50,
    index_interval_bytes=150,
    retention_ms=60,
    retention_bytes=-1,
)


class Stored(NamedTuple):
    offset: int
    rows: int
    time_us: int
    epoch: int
    data: bytes

    @property
    def end(self) -> int:
        return self.offset + self.rows


def make_batch(
    rows: int, time_us: int, size: int, fill: int, producer: tuple[int, int, int] = (-1, -1, -1)
) -> tuple[BatchHeader, memoryview]:
    """`producer`: id, epoch and the number of the first row."""
    data = bytearray([fill]) * (64 + size * 64)
    pid, epoch, sequence = producer
    fields = (0, 0, len(data) - 16, 0, 1, 0, epoch, pid, sequence, rows, 1, 0, time_us, time_us)
    header = BatchHeader._make(fields)
    header.pack_into(data)
    header = header._replace(crc32c=crc32c(memoryview(data)[CRC_START:]))
    header.pack_into(data)
    return header, memoryview(data)


BATCHES = st.lists(
    st.tuples(st.integers(1, 9), st.integers(-30, 10), st.integers(0, 9), st.integers(1, 255)),
    min_size=1,
    max_size=4,
)


class LogMachine(RuleBasedStateMachine):
    """`stored`: every batch that the log must have, in order. `promised`: flushed end offset.

    `sent`: every batch that was ever stored and where; all are of one idempotent producer.

    `arrived`: when late batches came, by their offsets. `late_us`: retention may keep rows for this
    time beyond the rule, for it is not recorded which rows of a segment were late, and after a
    crash nothing is of those that no flush has covered.

    `expired`: batches that retention took; as that is recorded only when files go, they may be
    there again after a crash, up to `revived_end`, and their epochs may be lost.
    """

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.disk = SimDisk(seed)
        self.disk.make_dir(DIRECTORY)
        self.stored: list[Stored] = []
        self.expired: list[Stored] = []
        self.revived_end = 0
        self.arrived: dict[int, int] = {}
        self.late_us = 0
        self.start = 0
        self.durable_start = 0
        self.promised = 0
        self.epoch = 0
        self.clock_ms = 0
        self.sent: list[tuple[BatchHeader, int]] = []
        self.sequence = 0
        self.producer = 1
        self.open(clean=True)

    @property
    def now(self) -> Now:
        return Now(self.clock_ms * 1000, START_US + self.clock_ms * 1000)

    @property
    def end(self) -> int:
        return self.stored[-1].end if self.stored else self.start

    def open(self, *, clean: bool) -> None:
        self.producers = ProducerStates(START_US)
        self.log = Log.open(
            self.disk,
            DIRECTORY,
            config=CONFIG,
            clean=clean,
            now=self.now,
            producers=self.producers,
        )
        self.sent = [
            (header, offset) for header, offset in self.sent if offset < self.log.log_end_offset
        ]
        self.retries_are_repetitions()

    def make(self, rows: int, time_us: int, size: int, fill: int) -> tuple[BatchHeader, memoryview]:
        """The producer's next batch."""
        made = make_batch(rows, time_us, size, fill, (self.producer, 0, self.sequence))
        self.sequence += rows
        return made

    def record(self, header: BatchHeader, offset: int, *, known: bool = False) -> None:
        """`known`: the log has answered its producers."""
        if not known:
            self.producers.record(header, offset, self.now.wall_us)
        self.sent.append((header, offset))

    def retries_are_repetitions(self) -> None:
        for header, offset in self.sent[-PRODUCER_BATCHES_REMEMBERED:]:
            assert self.producers.check(header) == offset, "a batch would be stored twice"
        newest = self.sent[-1][0] if self.sent else None
        self.sequence = newest.base_sequence + newest.row_count if newest is not None else 0

    @rule(batches=BATCHES)
    def append(self, batches: list[tuple[int, int, int, int]]) -> None:
        made = [
            self.make(rows, self.now.wall_us + age * 1000, size, fill)
            for rows, age, size, fill in batches
        ]
        base_offset = self.log.append(made, self.epoch, self.now)
        assert base_offset == self.end
        offset = base_offset
        if any(header.timestamp_max_us < self.now.wall_us - 1_000_000 for header, _ in made):
            self.arrived[base_offset] = self.late_us = self.now.wall_us
        for header, view in made:
            stored = Stored(
                offset, header.row_count, header.timestamp_max_us, self.epoch, bytes(view)
            )
            self.stored.append(stored)
            self.record(header, offset)
            offset = stored.end

    @rule(batches=BATCHES, behind_ms=st.integers(900, 100_000))
    def append_late(self, batches: list[tuple[int, int, int, int]], behind_ms: int) -> None:
        self.append([(rows, age - behind_ms, size, fill) for rows, age, size, fill in batches])

    @rule(batches=BATCHES, room=st.integers(0, 800))
    def append_to_a_full_disk(self, batches: list[tuple[int, int, int, int]], room: int) -> None:
        self.disk.capacity = self.disk.used_bytes + room
        sequence = self.sequence
        try:
            self.append(batches)
        except DiskFull:
            self.sequence = sequence
            assert self.log.log_end_offset == self.end
        finally:
            self.disk.capacity = None

    @rule(fail=st.booleans(), more=st.booleans(), crash=st.booleans())
    def flush(self, fail: bool, more: bool, crash: bool) -> None:
        job = self.log.begin_flush()
        end = self.end
        if more:
            self.append([(1, 0, 1, 7)])
        if fail:
            self.disk.fail_syncs = 1
        try:
            result = job.run()
        except (OSError, StorageFault) as error:
            faulty = self.log.fail_flush(job, error)
            self.crash()
            if not faulty:
                raise
            return
        self.disk.fail_syncs = 0  # There may have been nothing to flush.
        if (
            crash
        ):  # Between the job and its completion: no producer has an answer, but it is on the disk.
            self.promised = max(end, self.promised)
            self.crash()
            return
        assert self.log.complete_flush(job, result) == max(end, self.promised)
        self.promised = max(end, self.promised)

    @rule()
    def flush_without_descriptors(self) -> None:
        """Nothing was tried, so the next flush brings all of it to the disk."""
        job = self.log.begin_flush()
        assert not self.log.fail_flush(job, OSError(errno.EMFILE, "Too many open files"))

    @rule(batches=BATCHES, epochs=st.lists(st.booleans(), min_size=4, max_size=4))
    def append_copied(self, batches: list[tuple[int, int, int, int]], epochs: list[bool]) -> None:
        copies, records, offset = [], [], self.end
        for (rows, age, size, fill), newer in zip(batches, epochs, strict=False):
            self.epoch += newer
            _, view = self.make(rows, self.now.wall_us + age * 1000, size, fill)
            stamp(view, 0, offset, self.epoch)
            header = BatchHeader.unpack(view)
            copies.append((header, view))
            stored = Stored(offset, rows, header.timestamp_max_us, self.epoch, bytes(view))
            self.stored.append(stored)
            records.append((header, offset))
            offset = stored.end
        assert self.log.append_copied(copies, self.now) == offset == self.end
        for header, at in records:
            self.record(header, at, known=True)

    @rule(ms=st.integers(1, 40))
    def wait(self, ms: int) -> None:
        self.clock_ms += ms

    @rule()
    def new_epoch(self) -> None:
        self.epoch += 1
        self.log.epochs.assign(self.epoch, self.end)

    @rule()
    def crash(self) -> None:
        self.disk.crash()
        self.reopen_after_crash()

    @rule()
    def kill(self) -> None:
        self.disk.kill()
        self.promised = self.end
        self.reopen_after_crash()

    @precondition(
        lambda self: self.log.reader.segments and self.log.reader.segments[0].base_offset == 0
    )
    @rule()
    def kill_and_exchange_snapshots(self) -> None:
        """Keep all batches: they are the truth."""
        self.disk.kill()
        self.promised = self.end
        for path in self.disk.paths():
            if path.endswith(".snapshot"):
                self.disk.exchange(path, foreign_snapshot(path, self.disk.read_file(path)))
        self.reopen_after_crash()

    def reopen_after_crash(self) -> None:
        self.open(clean=False)
        damages = self.log.recovery.damages
        assert not damages, f"a crash alone is never damage: {damages}"
        end = self.log.log_end_offset
        assert end >= self.promised, "an acknowledged row is gone"
        old = [batch for batch in self.expired if batch.end > self.log.log_start_offset]
        self.revived_end = max([self.revived_end, *(batch.end for batch in old)])
        self.stored = [batch for batch in old + self.stored if batch.end <= end]
        self.expired = []
        self.start = self.log.log_start_offset
        assert self.start >= self.durable_start
        assert end == max(self.end, self.start), "rows came back that were never written"
        self.stored = [batch for batch in self.stored if batch.end > self.start]
        self.arrived = {offset: us for offset, us in self.arrived.items() if offset < end}
        self.late_us = self.now.wall_us
        self.promised = end
        self.epoch += 1
        self.log.epochs.assign(self.epoch, end)

    @rule()
    def clean_reopen(self) -> None:
        self.log.close(clean=True)
        self.disk.kill()
        self.open(clean=True)
        assert self.log.recovery.bytes_scanned == 0
        self.promised = self.end
        self.expired = []

    @rule(share=st.floats(0, 1), crash=st.sampled_from(["", "before", "after"]))
    def trim(self, share: float, crash: str) -> None:
        offset = self.start + int((self.end - self.start) * share)
        job = self.log.begin_trim(offset)
        if job is None:
            self.durable_start = max(self.durable_start, offset)
            return
        assert self.log.log_start_offset == self.start, "readers have the rows until it is durable"
        if crash != "before":
            result = job.run()
            self.durable_start = max(self.durable_start, job.offset)
            if job.segments:
                self.promised = max(self.promised, self.end)
        if crash:
            self.start = max(self.start, self.durable_start)
            self.forget()
            self.crash()
            return
        remove = self.log.complete_trim(job, result)
        self.start = max(self.start, offset)
        self.forget()
        if remove is not None and share < 0.9:  # Else the files are left to the next start.
            remove.run()

    def forget(self) -> None:
        self.stored = [batch for batch in self.stored if batch.end > self.start]

    @rule()
    def retention(self) -> None:
        cutoff_us = self.now.wall_us - CONFIG.retention_ms * 1000
        ages = [(b.offset, max(b.time_us, self.arrived.get(b.offset, 0))) for b in self.stored]
        want = next((offset for offset, time_us in ages if time_us >= cutoff_us), self.end)
        retain(self.log, self.now, self.end)
        start = self.log.log_start_offset
        if self.late_us < cutoff_us:
            assert start == max(self.start, want)
        else:
            assert self.start <= start <= max(self.start, want)
        self.start = start
        self.expired += [batch for batch in self.stored if batch.end <= start]
        self.forget()

    @precondition(lambda self: len(self.stored) > 1)
    @rule(share=st.floats(0, 0.99))
    def truncate(self, share: float) -> None:
        batch = self.stored[int(len(self.stored) * share)]
        if batch.offset < self.start:
            return
        end = self.end
        truncate(self.log, batch.offset)
        assert self.end == end
        self.stored = [b for b in self.stored if b.end <= batch.offset]
        self.arrived = {offset: us for offset, us in self.arrived.items() if offset < batch.offset}
        # A snapshot that lay above the cut went with it, and files below it may have gone before:
        # the producer begins anew, under another id.
        self.producer += 1
        self.sent, self.sequence = [], 0
        self.promised = min(self.promised, batch.offset)
        if not self.stored:
            self.start = max(self.start, self.log.log_start_offset)

    @precondition(lambda self: self.stored)
    @rule(where=st.floats(0, 1), upto=st.floats(0, 1), size=st.integers(0, 3_000))
    def read(self, where: float, upto: float, size: int) -> None:
        offset = self.start + int((self.end - self.start) * where)
        end = offset + int((self.end - offset) * upto)
        views = self.log.reader.read(offset, bytes_max=size, end_offset=end)
        wanted = [b for b in self.stored if b.end > offset and b.offset < end]
        if offset >= end:
            wanted = []
        got = b"".join(views)
        expected = b""
        for batch in wanted:
            if expected and len(expected) + len(batch.data) > size:
                break
            expected += batch.data
        assert got == expected
        if views:
            assert BatchHeader.unpack(views[-1]).total_bytes == len(views[-1])
        found = self.log.reader.bytes_between(offset, end)
        assert found[:2] == (end, sum(len(b.data) for b in wanted))
        first_us = BatchHeader.unpack(wanted[0].data).timestamp_max_us if wanted else -1
        assert found[2] == first_us
        bounded_end, count, _ = self.log.reader.bytes_between(offset, end, size)
        assert count == len(expected)
        assert bounded_end == (
            min(end, BatchHeader.unpack(views[-1]).next_offset) if views else end
        )

    @rule(age=st.integers(-20, 120))
    def lookup(self, age: int) -> None:
        at = self.now.wall_us - age * 1000
        found = next((b for b in self.stored if b.time_us >= at), None)
        want = None if found is None else (max(found.offset, self.start), found.time_us)
        assert self.log.reader.offset_for_timestamp(at) == want

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "log"):
            return
        log = self.log
        assert (log.log_start_offset, log.log_end_offset) == (self.start, self.end)
        for batch in self.stored:
            epoch = log.epochs.epoch_for(max(batch.offset, self.start))
            assert epoch == batch.epoch or (epoch == -1 and batch.end <= self.revived_end)
        assert log.reader.size_bytes == sum(segment.file.size for segment in log.reader.segments)


TestLog = LogMachine.TestCase
# Not shrunk: crashes draw from the seed, so shorter runs go other ways and shrinking has no end.
TestLog.settings = settings(
    max_examples=2 * settings.default.max_examples,
    stateful_step_count=40,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)


BUGS = {
    "late rows go by their own times": Mutation(
        "storage.log.log:_by_arrival",
        "if segment.arrival_by(clock) >= max(cutoff_us, 1):",
        "if False:",
    ),
    "a producer snapshot of another partition is believed": Mutation(
        "storage.log.checkpoint:restore_producers",
        "if rows.confirm(producers, offset) and rows.replay(producers, offset):",
        "if rows.replay(producers, offset) or True:",
    ),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_noticed(name: str) -> None:
    """Else the model proves nothing of these rules."""
    seeded = settings(TestLog.settings, database=None, derandomize=True, max_examples=400)
    with planted((BUGS[name],)), pytest.raises((AssertionError, QuiverlogError)):
        run_state_machine_as_test(LogMachine, settings=seeded)
