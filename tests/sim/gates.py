"""What the generator may do and what the checker may demand: one switch for each known defect.

A gate is closed while the production code still has the defect behind it: the generator then leaves
the situation out (or the checker the demand), so that other findings are not buried. Opening a gate
(`python -m tests.sim --open NAME`) shows the defect. When it is mended, the gate is removed from
`CLOSED`, and the defect comes back as a planted bug (`planted`).
"""

from __future__ import annotations

from typing import Final

__all__ = ["CLOSED", "GATES", "check_names"]

GATES: Final = {
    "emfile": "descriptors run out for a while",
    "lost-directories": "machines of a cluster lose their power soon after a topic was created",
    "long-names": "topics have names as long as a name may be",
    "memory-flushed": "rows of `memory` topics are on the disk half a minute later",
    "page-order": "pages of a file reach the disk in any order",
    "payload-batches": "a payload holds bytes that look like a stored batch",
    "full-disk-start": "a full disk does not refuse the start",
    "loop-never-blocks": "no handler calls fsync, rename, unlink or writes a file atomically",
    "jobs-change-nothing": "a job changes nothing that the loop reads",
    "clock-jump": "the wall clock jumps eight days ahead and comes back",
    "segment-gone": "the oldest of several files of a log is gone at a start",
    "log-start-damaged": "a bit of `log-start` is flipped",
    "topic-changes": "topics are created, altered, grown and deleted under load",
    "read-errors": "reads fail with EIO",
    "write-errors": "appends fail with EIO",
    "sync-errors": "fsyncs fail wherever they are called",
    "evictions": "descriptors of files go at any time",
    "cuts": "node and client are cut off from each other for a while",
    "killed-while-frail": "a process is killed while another machine has not got back what it lost",
    "moves": "partitions of a cluster move to other brokers, and moves are given up",
    "resizes": "partitions of a cluster get more replicas, or fewer",
    "machine-faults": "seeds draw what goes wrong with single machines (fault_plan.py)",
    "flushed-everywhere": "`replicated_flushed` survives a power failure of all machines",
}
CLOSED: Final[dict[str, str]] = {}
"""Gates that are closed, each with its reason."""


def check_names(names: frozenset[str]) -> None:
    """Raise for a name that is no gate."""
    unknown = sorted(names - GATES.keys())
    if unknown:
        raise ValueError(f"no gates: {', '.join(unknown)}; there are {', '.join(GATES)}")
