"""What the opening of a log hands to the log: the files of a directory, as found.

Owns nothing but this value. It is made in two ways, which tell the same of the same files:
opening.py looks into everything; clean_opening.py knows the one picture that a clean stop leaves.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from quiverlog.storage.checkpoint import RecoveryPoint
from quiverlog.storage.marks import Marks
from quiverlog.storage.recovery import RecoveryReport
from quiverlog.storage.segment import Segment

__all__ = ["OpenedFiles"]


@dataclass(slots=True)
class OpenedFiles:
    """The files of a log as found. `writable`: the last segment takes more appends.

    `given_up`: files below the log start, which go once nothing needs to be read from them.
    `start_durable`: `log-start` or its copy says where the log starts. Where neither does, files
    must stay, and every start tells it again until the next trim: the broker may die before it is
    heard.
    """

    segments: list[Segment]
    marks: Marks
    given_up: list[Segment] = field(default_factory=list)
    log_start_offset: int = 0
    log_end_offset: int = 0
    start_saved: int = 0
    start_durable: bool = True
    writable: bool = False
    changed: bool = False
    point: RecoveryPoint = field(default_factory=RecoveryPoint)
    snapshots: list[int] = field(default_factory=list)
    report: RecoveryReport = field(default_factory=RecoveryReport)
