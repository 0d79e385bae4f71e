"""A small file of a partition that is well formed and not its own: another partition's, another
day's, another broker's. None is believed against the others: no row goes, and the file is named."""

from __future__ import annotations

import struct

import pytest

from quiverlog.core.partition.producers import ProducerStates
from quiverlog.errors import CorruptLog
from quiverlog.storage.disk.frames import pack_file
from quiverlog.storage.log.checkpoint import Bounds, pack_truncation
from quiverlog.storage.log.log import Log, LogConfig
from quiverlog.types import Now
from tests.model.test_log_model import make_batch
from tests.sim.disk import SimDisk
from tests.support.logs import flush, trim, truncate

DIRECTORY = "data/t-0"
CONFIG = LogConfig(segment_bytes=1_500, index_interval_bytes=200, retention_ms=-1)
ROWS = 10
START, END = 105, 400
NAMES = (
    "log-start", "log-start-copy", "recovery-point", "recovery-point-copy", "leader-epochs",
    "truncate-to", "snapshot", "index",
)  # fmt: skip


def at(ms: int) -> Now:
    return Now(ms * 1000, 1_000_000_000_000_000 + ms * 1000)


def fill(
    disk: SimDisk,
    batches: int,
    start: int,
    *,
    epochs: int = 4,
    base: int = 0,
    first: tuple[int, int, int] = (7, 0, 0),
    anonymous: int = 0,
) -> Log:
    """A log of batches of ten rows; `base`: where it begins.

    `first`: producer id, epoch and sequence of the first batch. The last `anonymous` have none.
    """
    pid, epoch, sequence = first
    disk.make_dir(DIRECTORY)
    producers = ProducerStates(10**12)
    log = Log.open(disk, DIRECTORY, config=CONFIG, clean=True, now=at(0), producers=producers)
    if base:
        job = log.begin_skip(base)
        log.complete_trim(job, job.run())
    for number in range(batches):
        if number * epochs % batches < epochs:
            log.epochs.assign(number * epochs // batches, log.log_end_offset)
        producer = (pid, epoch, sequence + number * ROWS)
        if pid < 0 or number >= batches - anonymous:
            producer = (-1, -1, -1)
        header, view = make_batch(ROWS, at(number).wall_us, 2, number % 250 + 1, producer)
        offset = log.append([(header, view)], max(0, log.epochs.newest), at(number))
        producers.record(header, offset, at(number).mono_us)
        flush(log)
    if start:
        trim(log, start)
    return log


FOREIGN = {
    "of a longer log": (90, 700, 2, 0),
    "of a log that begins beyond the end": (90, 0, 2, 10**6),
    "of a longer log from 0 on": (90, 0, 9, 0),
    "of one that begins later": (40, 255, 4, 0),
    "of a shorter log": (3, 0, 1, 0),
    "of yesterday": (12, 0, 2, 0),
}


def foreign_file(kind: str, name: str) -> bytes:
    """The contents of a file of that name in another log."""
    if name == "truncate-to":
        offset = {"of yesterday": 120, "of a shorter log": 30}.get(kind, 150)
        return pack_truncation(offset, "data/u-0")
    disk = SimDisk()
    batches, start, epochs, base = FOREIGN[kind]
    fill(disk, batches, start, epochs=epochs, base=base).close(clean=True)
    names = disk.list(DIRECTORY)
    if name in ("snapshot", "index"):
        name = [one for one in names if one.endswith(name)][-1]
    if name.startswith("log-start") and name not in names:
        return pack_file(b"QVLOGSTA", 1, struct.pack("<q", 0))
    return disk.read_file(f"{DIRECTORY}/{name}")


def rows_of(log: Log) -> list[int]:
    headers = log.reader.headers(log.log_start_offset)
    return [row for header in headers for row in range(header.base_offset, header.next_offset)]


@pytest.mark.parametrize("how", ["clean", "kill"])
@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("name", NAMES)
def test_no_row_goes_for_one_file_that_is_anothers(name: str, kind: str, how: str) -> None:
    disk = SimDisk()
    log = fill(disk, END // ROWS, START)
    bounds = Bounds(log.log_start_offset, log.log_end_offset)
    assert bounds == (START, END)
    if how == "clean":
        log.close(clean=True)
    disk.kill()
    names = disk.list(DIRECTORY)
    own = name
    if name in ("snapshot", "index"):
        own = [one for one in names if one.endswith(name)][-1]
    data = foreign_file(kind, name)
    path = f"{DIRECTORY}/{own}"
    before = disk.read_file(path) if own in names else b""
    disk.write_file_atomic(path, data)
    segments = [one for one in names if one.endswith(".log")]
    known = bounds if how == "clean" else None
    producers = ProducerStates(10**12)

    def start() -> Log:
        return Log.open(
            disk, DIRECTORY, config=CONFIG, clean=how == "clean", now=at(10_000), known=known,
            producers=producers, epoch_newest=5,
        )  # fmt: skip

    if (name, kind) == ("leader-epochs", "of a longer log from 0 on"):
        # It has all that the rows have, and more than the metadata: these may be the older ones.
        with pytest.raises(CorruptLog, match=r"t-0/leader-epochs: .* move the file away"):
            start()
        return
    log = start()
    reported = [line for line in (*log.recovery.damages, *log.recovery.notes) if own in line]
    assert [one for one in disk.list(DIRECTORY) if one.endswith(".log")] == segments
    assert (log.log_start_offset, log.log_end_offset) == bounds
    assert sorted(set(range(*bounds)) - set(rows_of(log))) == []
    assert log.epochs.entries() == [(0, 0), (1, 100), (2, 200), (3, 300)][1:], "as in the rows"
    if data != before and name in ("log-start", "log-start-copy", "truncate-to", "leader-epochs"):
        assert reported, "an operator gets the name of the file"
    for number in range(END // ROWS - 5, END // ROWS):
        header, _ = make_batch(ROWS, 1, 1, 1, (7, 0, number * ROWS))
        assert producers.check(header) == number * ROWS, "it would be stored twice"
    if how == "clean":
        return
    log.close(clean=True)
    log = Log.open(disk, DIRECTORY, config=CONFIG, clean=True, now=at(20_000), known=bounds)
    assert (log.recovery.notes, log.recovery.damages) == ([], []), "once is enough"


@pytest.mark.parametrize("how", ["clean", "kill"])
@pytest.mark.parametrize("start", [START, END])
@pytest.mark.parametrize("lost", ["log-start", "log-start-copy"])
def test_a_log_start_that_has_no_copy_counts(lost: str, start: int, how: str) -> None:
    """No other file there contradicts a file without a copy."""
    disk = SimDisk()
    log = fill(disk, END // ROWS, start)
    if how == "clean":
        log.close(clean=True)
    disk.kill()
    disk.remove(f"{DIRECTORY}/{lost}")
    log = Log.open(disk, DIRECTORY, config=CONFIG, clean=how == "clean", now=at(10_000))
    assert (log.recovery.notes, log.recovery.damages) == ([], [])
    assert (log.log_start_offset, log.log_end_offset) == (start, END)


def test_a_mark_of_a_cut_without_a_name_is_damaged_and_not_carried_out() -> None:
    disk = SimDisk()
    fill(disk, END // ROWS, 0)
    disk.kill()
    mark = pack_file(b"QVTRUNCA", 1, struct.pack("<q", 300))
    disk.write_file_atomic(f"{DIRECTORY}/truncate-to", mark)
    log = Log.open(disk, DIRECTORY, config=CONFIG, clean=False, now=at(10_000))
    assert log.log_end_offset == END


SNAPSHOTS_OF = {
    "of another producer": (8, 0, 0),
    "of the same producer, further on": (7, 0, 5_000),
    "of the same producer, under a later epoch": (7, 1, 0),
    "of no producer": (-1, -1, -1),
}


def snapshot_names(disk: SimDisk) -> list[str]:
    return [name for name in disk.list(DIRECTORY) if name.endswith(".snapshot")]


def copy_snapshots(other: SimDisk, disk: SimDisk, names: list[str]) -> None:
    for name in names:
        disk.write_file_atomic(f"{DIRECTORY}/{name}", other.read_file(f"{DIRECTORY}/{name}"))


@pytest.mark.parametrize("anonymous", [0, 3])
@pytest.mark.parametrize("how", ["clean", "kill"])
@pytest.mark.parametrize("which", ["the newest", "all"])
@pytest.mark.parametrize("kind", SNAPSHOTS_OF)
def test_a_snapshot_of_another_partition_at_the_same_offset_is_not_believed(
    kind: str, which: str, how: str, anonymous: int
) -> None:
    """Good batches were out of order by it, or one that was sent again was stored twice."""
    if kind == "of no producer" and anonymous:
        anonymous = 0  # Nothing contradicts it then (adr/0072, Costs).
    disk, other = SimDisk(), SimDisk()
    log = fill(disk, END // ROWS, 0, anonymous=anonymous)
    foreign = fill(other, END // ROWS, 0, first=SNAPSHOTS_OF[kind], anonymous=anonymous)
    for one in (log, foreign):
        if how == "clean":
            one.close(clean=True)
    disk.kill()
    other.kill()
    names = snapshot_names(disk)
    assert len(names) == 2
    names = names[-1:] if which == "the newest" else names
    copy_snapshots(other, disk, names)
    producers = ProducerStates(10**12)

    def start() -> Log:
        return Log.open(
            disk, DIRECTORY, config=CONFIG, clean=how == "clean", now=at(10_000),
            producers=producers,
        )  # fmt: skip

    log = start()
    last = END - anonymous * ROWS
    following, _ = make_batch(ROWS, 1, 1, 1, (7, 0, last))
    assert producers.check(following) is None, "a good batch is refused"
    newest, _ = make_batch(ROWS, 1, 1, 1, (7, 0, last - ROWS))
    assert producers.check(newest) == last - ROWS, "it would be stored twice"
    if kind == "of no producer":
        return  # It may be the log's own, of a day on which all were silent.
    notes = [note for note in log.recovery.notes if "has other batches of producers" in note]
    assert [note.split(" ")[0] for note in notes] == [f"t-0/{name}" for name in reversed(names)]
    assert [f"{name}.unusable" in disk.list(DIRECTORY) for name in names] == [True] * len(names)
    log.close(clean=True)
    how = "clean"
    log = start()
    assert log.recovery.notes == [], "once is enough"
    assert producers.check(following) is None
    assert len(snapshot_names(disk)) >= 1, "the next start need not read all headers again"


def given_up_to_a_snapshot(first: tuple[int, int, int]) -> SimDisk:
    """Of a log that was killed: no row in front of its older snapshot is left, and no newer one."""
    disk = SimDisk()
    log = fill(disk, 42, 0, first=first)
    older, newer = (int(name[10:30]) for name in snapshot_names(disk))
    trim(log, older)
    disk.kill()
    disk.remove(f"{DIRECTORY}/producers-{newer:020d}.snapshot")
    assert (
        min(name for name in disk.list(DIRECTORY) if name.endswith(".log")) == f"{older:020d}.log"
    )
    return disk


@pytest.mark.parametrize(
    "kind", ["of the same producer, further on", "of the same producer, under a later epoch"]
)
def test_where_the_rows_in_front_are_gone_those_behind_a_snapshot_contradict_it(kind: str) -> None:
    disk, other = given_up_to_a_snapshot((7, 0, 0)), given_up_to_a_snapshot(SNAPSHOTS_OF[kind])
    (name,) = snapshot_names(disk)
    copy_snapshots(other, disk, [name])
    producers = ProducerStates(10**12)
    log = Log.open(disk, DIRECTORY, config=CONFIG, clean=False, now=at(10_000), producers=producers)
    assert [note.split(" ")[0] for note in log.recovery.notes] == [f"t-0/{name}"]
    following, _ = make_batch(ROWS, 1, 1, 1, (7, 0, 420))
    assert producers.check(following) is None


def open_killed(disk: SimDisk) -> tuple[Log, ProducerStates]:
    producers = ProducerStates(10**12)
    log = Log.open(disk, DIRECTORY, config=CONFIG, clean=False, now=at(10_000), producers=producers)
    return log, producers


def test_a_snapshot_is_compared_with_good_batches_only() -> None:
    """A bit of the header flipped: the batch is damaged, the snapshot is the log's own."""
    disk = SimDisk()
    fill(disk, 42, 0)
    disk.kill()
    name = snapshot_names(disk)[-1]
    offset = int(name[10:30])
    segment = max(n for n in disk.list(DIRECTORY) if n.endswith(".log") and n < f"{offset:020d}")
    data = bytearray(disk.read_file(f"{DIRECTORY}/{segment}"))
    data[-192 + 24] ^= 1  # Of its last batch, the id of the producer.
    disk.write_file_atomic(f"{DIRECTORY}/{segment}", bytes(data))
    log, producers = open_killed(disk)
    assert not [note for note in log.recovery.notes if ".snapshot" in note]
    assert name in disk.list(DIRECTORY)
    following, _ = make_batch(ROWS, 1, 1, 1, (7, 0, 420))
    assert producers.check(following) is None


@pytest.mark.parametrize("start", [0, 395, END])
def test_a_snapshot_of_ones_own_is_believed_wherever_the_log_starts(start: int) -> None:
    disk = SimDisk()
    log = fill(disk, END // ROWS, start)
    log.close(clean=True)
    disk.kill()
    names = snapshot_names(disk)
    log, producers = open_killed(disk)
    assert log.recovery.notes == []
    assert snapshot_names(disk) == names
    newest, _ = make_batch(ROWS, 1, 1, 1, (7, 0, END - ROWS))
    assert producers.check(newest) == END - ROWS


def test_an_empty_snapshot_contradicts_nothing() -> None:
    disk = SimDisk()
    fill(disk, 20, 0)
    disk.kill()
    log, producers = open_killed(disk)
    producers.expire(10**12 + 25 * 3_600_000_000)
    assert len(producers) == 0
    log.close(clean=True)
    disk.kill()
    assert snapshot_names(disk)[-1] == "producers-00000000000000000200.snapshot"
    log, producers = open_killed(disk)
    assert log.recovery.notes == []
    assert len(producers) == 1, "the rows have it, for another day"


def test_a_cut_that_is_made_while_the_broker_runs_believes_no_other_snapshot_either() -> None:
    disk, other = SimDisk(), SimDisk()
    fill(disk, 42, 0)
    fill(other, 42, 0, first=(8, 0, 0))
    disk.kill()
    log, producers = open_killed(disk)
    names = snapshot_names(disk)
    copy_snapshots(other, disk, names)
    truncate(log, 415)
    assert [note.split(" ")[0] for note in log.recovery.notes] == [
        f"t-0/{name}" for name in reversed(names)
    ]
    following, _ = make_batch(ROWS, 1, 1, 1, (7, 0, 410))
    assert producers.check(following) is None


def test_epochs_of_another_partition_are_no_wrong_checksum() -> None:
    """The message names what to do with the file: it is whole, and moved away."""
    disk = SimDisk()
    fill(disk, END // ROWS, 0).close(clean=True)
    with pytest.raises(CorruptLog) as caught:
        Log.open(
            disk, DIRECTORY, config=CONFIG, clean=True, now=at(0),
            producers=ProducerStates(10**12), epoch_newest=2,
        )  # fmt: skip
    message = str(caught.value)
    assert "leader epoch 3, metadata.log has 2" in message
    assert "move the file away" in message
    assert "checksum" not in message
    disk.remove(f"{DIRECTORY}/leader-epochs")
    producers = ProducerStates(10**12)
    log = Log.open(
        disk, DIRECTORY, config=CONFIG, clean=True, now=at(0), producers=producers, epoch_newest=3
    )
    assert (log.epochs.newest, log.log_end_offset) == (3, END), "as the error asks"
