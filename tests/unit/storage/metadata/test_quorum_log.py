"""The log of a quorum's replica: promises survive, whichever system call fails or is the last."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
from pathlib import Path

import pytest

from quiverlog.core.raft.messages import (
    HardState,
    SnapshotMeta,
)
from quiverlog.core.raft.outbox import Write
from quiverlog.errors import QuiverlogError
from quiverlog.storage.disk.posix import PosixDisk
from quiverlog.storage.metadata.quorum_log import QuorumLog
from tests.support.failing_os import failing_calls
from tests.support.quorum_logs import (
    KEY,
    VOTERS,
    Cut,
    State,
    Story,
    entry,
    incoming,
    new_disk,
    open_log,
    read,
)

NUMBERS = [errno.EIO, errno.ENOSPC, errno.EMFILE]


def test_a_life_is_read_back(tmp_path: Path) -> None:
    story = Story(open_log(PosixDisk(), str(tmp_path)), incoming())
    story.run()
    assert story.promised.entries == (entry(21, 6),)
    assert story.promised.snapshot == SnapshotMeta(20, 5, VOTERS)
    assert read(PosixDisk(), str(tmp_path)) == story.promised
    assert sorted(os.listdir(tmp_path)) == ["metadata.log", "quorum-state"]


@pytest.mark.parametrize("number", NUMBERS, ids=errno.errorcode.get)
def test_every_system_call_may_fail_once(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory starts again, with a state that was promised, or asked for last."""
    for name in ("fsync", "fdatasync"):  # No power fails here.
        monkeypatch.setattr(os, name, lambda _: None)
    failed: set[str] = set()
    for nth in itertools.count():
        path = str(tmp_path / f"{nth}")
        open_log(PosixDisk(), path).close()
        before = read(PosixDisk(), path)
        story = None
        with failing_calls(nth, number) as calls, contextlib.suppress(QuiverlogError):
            story = Story(open_log(PosixDisk(), path), incoming())
            story.run()
        found = read(PosixDisk(), path)
        assert sorted(os.listdir(path)) == ["metadata.log", "quorum-state"]
        if not calls.failed:
            break
        failed.add(calls.failed)
        assert found in ([before] if story is None else story.possible), (nth, calls.failed)
        again = Story(open_log(PosixDisk(), path), incoming())
        again.write(entry(again.log.last_index + 1, 9), state=HardState(9, KEY))
        assert read(PosixDisk(), path) == again.promised
        assert again.promised.hard_state.term == 9
    assert failed >= {"open", "fsync", "fdatasync", "pwrite", "rename"}, "some never failed"


def test_the_power_may_fail_between_any_two_calls() -> None:
    others = incoming()
    for nth in itertools.count():
        cut = False
        for seed in range(6):
            disk = new_disk(seed)
            before = read(disk, "m")
            story = None
            disk.fuse = nth
            try:
                story = Recorded(open_log(disk, "m"), others)
                story.run()
            except Cut:
                cut = True
            disk.fuse = -1
            disk.crash()
            possible = [before] if story is None else story.between
            assert read(disk, "m") in possible, (nth, seed)
        if not cut:
            break
    assert nth > 60


class Recorded(Story):
    """Also checks what a write that was cut short may have left."""

    between: list[State]

    def __init__(self, log: QuorumLog, incoming: bytes) -> None:
        super().__init__(log, incoming)
        self.between = list(self.possible)

    def _steps(self, write: Write, restored: State | None) -> list[State]:
        steps = super()._steps(write, restored)
        self.between = [self.promised, *steps]
        return steps

    def snapshot(self, index: int, kept: int) -> None:
        now = self.promised
        meta = SnapshotMeta(index, self.log.term(index), VOTERS)
        entries = tuple(e for e in now.entries if e.index > index - kept)
        after = now._replace(snapshot=meta, records=b"as of %d" % index, entries=entries)
        self.between = [now, after]
        super().snapshot(index, kept)
        self.between = list(self.possible)


@pytest.mark.parametrize("number", NUMBERS, ids=errno.errorcode.get)
def test_power_fails_after_a_system_call_failed(number: int) -> None:
    others = incoming()
    for nth in itertools.count():
        left = -1
        for seed in range(4):
            disk = new_disk(seed)
            before = read(disk, "m")
            disk.error = lambda path: OSError(number, os.strerror(number), path)
            disk.fuse = nth
            story = None
            with contextlib.suppress(QuiverlogError):
                story = Story(open_log(disk, "m"), others)
                story.run()
            left, disk.fuse = disk.fuse, -1
            disk.crash()
            assert read(disk, "m") in ([before] if story is None else story.possible), (nth, seed)
        if left >= 0:
            break
    assert nth > 60
