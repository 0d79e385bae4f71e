"""Bugs on a switch: each is planted, and the checker must find it, or it would prove nothing.

Owns the list. Each bug changes what one production line means (some need a second line so that the
first can matter), and is there only while the code of one node runs (`mutations`, `host`).
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from multiprocessing import get_context

from .checker import Violation
from .mutations import Mutation, NotThere, planted
from .run import simulate

__all__ = ["BUGS", "Bug", "Caught", "hunt", "hunt_all"]


@dataclass(frozen=True, slots=True)
class Bug:
    """`changes`: one line, and whatever would hide that it was changed."""

    name: str
    changes: tuple[Mutation, ...]
    issue: str = ""
    """The defect of issue 6 that it brings back."""
    opened: frozenset[str] = frozenset()
    seed: int = 0
    """Where to look first: the seed that caught it last time."""

    def plant(self) -> AbstractContextManager[None]:
        """The bug is there for the length of the `with`."""
        return planted(self.changes)


@dataclass(frozen=True, slots=True)
class Caught:
    """`seed` None: not caught within the bound. `said`: by the checker, or why it cannot be."""

    bug: str
    seed: int | None
    said: str


def _bug(name: str, where: str, before: str, after: str, *, issue: str = "", seed: int = 0) -> Bug:
    return Bug(name, (Mutation(where, before, after),), issue, seed=seed)


BUGS = (
    _bug(
        "acknowledge before fsync",
        "storage.jobs:FlushJob.run",
        "segment.file.sync()",
        "pass",
    ),
    _bug(
        "cut at the first bad CRC below the flushed point",
        "storage.scan:_Judge._judge_fitting",
        "return Damage(at, end, offset, header.next_offset)",
        "return Torn(at, offset)",
    ),
    _bug(
        "index ahead of the log",
        "storage.index:SparseIndex.add",
        "self.relative_offsets.append(relative_offset)",
        "self.relative_offsets.append(relative_offset + (position > 64))",
    ),
    _bug(
        "sequence state forgotten at restart",
        "core.partition.producers:ProducerStates.replay",
        "self.record(header, header.base_offset, self._opened_us)",
        "pass",
    ),
    _bug(
        "retention takes a row younger than its bound",
        "storage.retention:_by_time",
        "cutoff_us = now.wall_us - retention_ms * 1000",
        "cutoff_us = now.wall_us - retention_ms * 100",
    ),
    _bug(
        "off-by-one in a sliced fetch",
        "storage.log:Log.read",
        "more = reading.read(segment, offset, bytes_max, end_offset)",
        "more = reading.read(segment, min(offset + 1, end_offset - 1), bytes_max, end_offset)",
    ),
    _bug(
        "trim that is not durable",
        "storage.jobs:TrimJob.run",
        "checkpoint.save_log_start(self.disk, self.key, self.offset)",
        "pass",
    ),
    _bug(
        "failed fsync ignored",
        "node.broker:Broker._flushed",
        "if error is None:",
        "replica.log.fault = ''\n    if True:",
    ),
    _bug(
        "cache taken for disk after a failed fsync",
        "storage.segment:Segment.rewrite",
        "self.file.rewrite(at, self.file.read_copy(at, count))",
        "pass",
    ),
    _bug(
        "long polls sleep on when rows come",
        "core.partition.partition:PartitionState.flushed",
        "return self._advance()",
        "return self._advance() and False",
    ),
)


def hunt(bug: Bug, *, seeds: Iterable[int], duration_ms: int) -> Caught:
    """A seed that catches the bug and that sound code passes: the known one, or the first."""
    try:
        for mutation in bug.changes:
            mutation.code()
    except NotThere as error:
        return Caught(bug.name, None, f"cannot be planted: {error}")
    for seed in dict.fromkeys((bug.seed, *seeds)):
        said = _run(bug, seed, duration_ms, plant=True)
        if said and not _run(bug, seed, duration_ms, plant=False):
            return Caught(bug.name, seed, said)
    return Caught(bug.name, None, "")


def _run(bug: Bug, seed: int, duration_ms: int, *, plant: bool) -> str:
    try:
        simulate(
            seed,
            duration_ms=duration_ms,
            opened=bug.opened,
            plant=bug.plant if plant else None,
        )
    except Violation as violation:
        return str(violation).splitlines()[0].partition(": ")[2]
    return ""


def _hunt_number(number: int, seeds: int, duration_ms: int) -> Caught:
    return hunt(BUGS[number], seeds=range(seeds), duration_ms=duration_ms)


def hunt_all(*, seeds: int, duration_ms: int, processes: int = 2) -> Iterable[Caught]:
    """All bugs, in the order of the list, on some processes."""
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        found = [pool.submit(_hunt_number, n, seeds, duration_ms) for n in range(len(BUGS))]
        for future in found:
            yield future.result()
