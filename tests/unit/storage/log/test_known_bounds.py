"""Files of a partition lost together after a stop in order: the clean mark has its bounds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from quiverlog.errors import CorruptLog
from quiverlog.storage.directory.data_directory import DataDirectory
from quiverlog.storage.disk.frames import pack_file
from quiverlog.storage.disk.posix import PosixDisk
from quiverlog.storage.log.checkpoint import Bounds
from quiverlog.storage.log.log import Log
from tests.model.test_log_model import make_batch
from tests.sim.disk import SimDisk
from tests.support.node import NodeDriver, batch_of
from tests.unit.storage.segment.test_damage_matrix import (
    BATCHES,
    CONFIG,
    DIRECTORY,
    NOW,
    ROWS,
    TRIMMED,
    Producers,
    build,
)

END = ROWS * BATCHES
KNOWN = Bounds(TRIMMED, END)
Select = Callable[[list[str]], list[str]]
LOST: dict[str, Select] = {
    "recovery point, newest segment": lambda names: ["recovery-point", newest(names)],
    "both log starts": lambda names: ["log-start", "log-start-copy"],
    "all of these": lambda names: [
        "recovery-point",
        "log-start",
        "log-start-copy",
        newest(names),
    ],
    "all segments, recovery point": lambda names: ["recovery-point", *segments(names)],
    "all": lambda names: names,
    "all but the segments": lambda names: [n for n in names if not n.endswith(".log")],
}


def segments(names: list[str]) -> list[str]:
    return sorted(name for name in names if name.endswith(".log"))


def newest(names: list[str]) -> str:
    return segments(names)[-1]


def open_log(disk: SimDisk) -> Log:
    return Log.open(
        disk, DIRECTORY, config=CONFIG, clean=True, now=NOW, producers=Producers(), known=KNOWN
    )


@pytest.mark.parametrize("lost", LOST.values(), ids=LOST.keys())
def test_files_that_know_of_each_other_are_lost_together(lost: Select) -> None:
    disk, stored = build(clean=True)
    gone = lost(disk.list(DIRECTORY))
    left = [name for name in segments(disk.list(DIRECTORY)) if name not in gone]
    bases = [int(name[:-4]) for name in segments(disk.list(DIRECTORY))]
    kept = dict(zip(bases, [*bases[1:], END], strict=True))
    readable = {o for name in left for o in range(int(name[:-4]), kept[int(name[:-4])])}
    for name in gone:
        disk.remove(f"{DIRECTORY}/{name}")
    log = open_log(disk)
    assert (log.log_start_offset, log.log_end_offset) == (TRIMMED, END)
    for offset in range(TRIMMED, END):
        if offset in readable:
            views = log.reader.read(offset, bytes_max=1, end_offset=offset + 1)
            assert b"".join(views) == stored[offset // ROWS * ROWS]
        else:
            with pytest.raises(CorruptLog):
                log.reader.read(offset, bytes_max=1, end_offset=offset + 1)
    assert bool(log.recovery.damages) == (len(readable) < END), "missing rows are reported"
    assert log.recovery.damages or log.recovery.notes
    assert log.append([make_batch(1, NOW.wall_us, 1, 9)], 5, NOW) == END


def test_a_log_that_lost_nothing_reports_nothing() -> None:
    disk, _ = build(clean=True)
    log = open_log(disk)
    assert log.recovery.clean
    assert not log.recovery.damages
    assert not log.recovery.notes


# --- the clean mark -----------------------------------------------------------------------------
def take(path: Path) -> DataDirectory:
    return DataDirectory.open(
        PosixDisk(), str(path), node_id=0, entropy=lambda count: b"\x07" * count
    )


def test_the_mark_keeps_the_bounds_and_one_without_them_is_damaged(tmp_path: Path) -> None:
    written = {"a-0": Bounds(0, 7), "b-3": Bounds(5, 2**62)}
    take(tmp_path).close(clean=True, metadata_bytes=16, written=written)
    directory = take(tmp_path)
    assert directory.written == written
    directory.close(clean=False)
    payload = b"\x07" * 16 + (16).to_bytes(8, "little") + b"a-0\nb-3"
    (tmp_path / "clean-shutdown").write_bytes(pack_file(b"QVCLEAN\0", 1, payload))
    directory = take(tmp_path)
    assert (directory.clean, directory.written) == (False, {})
    directory.close(clean=False)


def test_a_stopped_broker_finds_the_bounds_that_it_had(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path)
    topic_id = node.create("t")
    node.produced(topic_id, batch_of([1, 2, 3]))
    node.stop()
    directory = Path(node.config.data_dir) / "data/t-0"
    (directory / f"{0:020d}.log").unlink()
    (directory / "recovery-point").unlink()
    node.start()
    (replica,) = node.node.broker.replicas.values()
    assert replica.log.log_end_offset == 3
    with pytest.raises(CorruptLog, match="rows 0 to 3 are missing"):
        replica.log.reader.read(0, bytes_max=1, end_offset=3)
    assert node.produced(topic_id, batch_of([4])).base_offset == 3
    # In the same life another topic may get the name.
    assert node.node.broker.directory.written == {}
