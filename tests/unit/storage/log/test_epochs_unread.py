"""What the disk does not give at a start is not taken for lost: the log is whole, or not opened.

A list without a leader epoch gives its rows an earlier one, by which logs are cut and readers get
errors of lost rows (seed 50000084 of the simulated cluster). A log whose recovery point and first
header could not be read for a moment was cut to nothing.
"""

from __future__ import annotations

import errno
import random

from quiverlog.errors import QuiverlogError
from quiverlog.storage.log.log import Log, LogConfig
from tests.model.test_log_model import make_batch
from tests.sim.disk import SimDisk
from tests.support.logs import flush
from tests.unit.storage.segment.test_damage_matrix import DIRECTORY, NOW, Producers

EPOCHS = [(0, 0), (3, 40), (4, 80), (7, 120)]
CONFIG = LogConfig(segment_bytes=2_000, index_interval_bytes=150, retention_ms=-1)


class Failing(SimDisk):
    """A disk that refuses some reads with EIO, drawn from a seed, while `rate` is above 0."""

    rate = 0.0

    def __init__(self, seed: int) -> None:
        super().__init__(1)
        self.chance = random.Random(seed)

    def step(self, kind: str, path: str) -> None:
        if kind == "read" and self.chance.random() < self.rate:
            raise OSError(errno.EIO, "Input/output error", path)


def stopped(seed: int) -> Failing:
    """Rows under four epochs, in many files; stopped in order."""
    disk = Failing(seed)
    disk.make_dir("data")
    disk.make_dir(DIRECTORY)
    log = Log.open(disk, DIRECTORY, config=CONFIG, clean=False, now=NOW, producers=Producers())
    for epoch, start in EPOCHS:
        log.epochs.assign(epoch, start)
        for _ in range(8):
            log.append([make_batch(5, NOW.wall_us, epoch, log.log_end_offset + 1)], epoch, NOW)
    flush(log)
    log.close(clean=True)
    disk.kill()
    return disk


def reopened(disk: Failing) -> Log:
    return Log.open(
        disk, DIRECTORY, config=CONFIG, clean=True, now=NOW, producers=Producers(), epoch_newest=7
    )


def test_a_list_is_whole_or_the_log_is_not_opened() -> None:
    assert reopened(stopped(0)).epochs.entries() == EPOCHS
    opened = refused = 0
    for seed in range(400):
        disk = stopped(seed)
        disk.rate = (0.1, 0.3, 0.5, 0.8)[seed % 4]
        try:
            log = reopened(disk)
        except (OSError, QuiverlogError):
            refused += 1
            disk.rate = 0.0
            assert reopened(disk).epochs.entries() == EPOCHS, "the file itself is sound"
            continue
        opened += 1
        assert log.epochs.entries() == EPOCHS, seed
        assert log.log_end_offset == 160, seed
    assert opened > 50
    assert refused > 50
