"""What jobs may not do: touch what the loop shares, or leave reading of files to the loop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

from quiverlog.batch.header import BatchHeader
from quiverlog.node.closing import CloseLogJob
from quiverlog.node.partitions.replica import Replica
from quiverlog.storage.log.log import Log, LogConfig
from quiverlog.storage.segment.segment import Segment
from quiverlog.storage.segment.segments import IndexCache
from quiverlog.types import Now
from tests.model.test_log_model import make_batch
from tests.sim.disk import SimDisk
from tests.support.logs import flush

NOW = Now(0, 1_000_000_000_000_000)
DIRECTORY = "data/t-0"


class Watched(IndexCache):
    """Remembers which threads have taken a segment out."""

    __slots__ = ("threads",)

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[int] = set()

    def discard(self, segment: Segment) -> None:
        if segment.cached:
            self.threads.add(threading.get_ident())
        super().discard(segment)


def test_a_stop_takes_no_index_out_of_the_shared_cache_in_a_job() -> None:
    disk = SimDisk()
    disk.make_dir(DIRECTORY)
    cache = Watched()
    config = LogConfig(segment_bytes=300, retention_ms=-1)
    log = Log.open(disk, DIRECTORY, config=config, clean=False, now=NOW, indexes=cache)
    for _ in range(6):
        log.append([make_batch(1, NOW.wall_us, 1, 7)], 0, NOW)
    assert cache.byte_count > 0
    job = CloseLogJob(cast(Replica, SimpleNamespace(log=log, fault=None)))
    thread = threading.Thread(target=job.run)
    thread.start()
    thread.join()
    assert cache.threads == {threading.get_ident()}
    assert cache.byte_count == 0


class NoDisk(SimDisk):
    """Refuses everything while the loop completes what a job has done."""

    on_loop = False

    def step(self, kind: str, path: str) -> None:
        assert not self.on_loop, f"{kind} of {path} on the loop"


class Producers:
    def __init__(self) -> None:
        self.seen: list[int] = []

    @property
    def newest_offset(self) -> int:
        return self.seen[-1] if self.seen else -1

    def check(self, header: BatchHeader) -> int | None:
        return header.base_sequence if header.base_sequence in self.seen else None

    def capture(self) -> Callable[[], bytes]:
        now = bytes(self.seen)
        return lambda: now

    def blank(self) -> Producers:
        return Producers()

    def adopt(self, restored: Producers) -> None:
        self.seen = restored.seen

    def restore(self, blob: bytes) -> None:
        self.seen = list(blob)

    def replay(self, header: object) -> None:
        self.seen.append(header.base_sequence)  # type: ignore[attr-defined]


def test_completing_a_truncation_reads_no_file() -> None:
    disk = NoDisk()
    disk.make_dir(DIRECTORY)
    producers = Producers()
    config = LogConfig(segment_bytes=500, retention_ms=-1)
    log = Log.open(disk, DIRECTORY, config=config, clean=False, now=NOW, producers=producers)
    for number in range(9):
        batch = make_batch(1, NOW.wall_us, 1, 7, (5, 0, number))
        log.append([batch], 0, NOW)
        producers.replay(batch[0])
        flush(log)
    job = log.begin_truncate(5)
    assert job is not None
    result = job.run()
    disk.on_loop = True
    assert log.complete_truncate(job, result) == 5
    assert producers.seen == [0, 1, 2, 3, 4]
