"""What clients asked for and the answers they got, as it happened.

Owns the shape of a history: sends with their outcome, batches that readers were handed, errors that
they got instead, and operations on topics. Values are unique over a run: a producer's number in the
upper half, the row's in the lower.

Not here: what is right.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

from tests.sim.cluster.linear import Operation

__all__ = ["History", "Outcome", "Read", "Send", "Stored", "TopicRow", "value"]

Key = tuple[str, int]
"""Topic and partition."""


def value(producer: int, number: int) -> int:
    """The row with this number of a producer."""
    return producer << 32 | number


class Outcome(Enum):
    """Of a send. `UNKNOWN`: the rows may be stored, or not; also before any answer."""

    OK = "ok"
    FAILED = "fail"
    UNKNOWN = "unknown"


class TopicRow(NamedTuple):
    """A topic of the run: what its rows must survive depends on level and replicas."""

    name: str
    level: str
    replicas: int
    partitions: int

    @property
    def is_kept(self) -> bool:
        """No fault of this harness may take an acknowledged row.

        Processes die here, machines do not: what a process has written is there when it comes back.
        With one replica no other broker can lead meanwhile; with several, rows below `replicated`
        go with a leader that another one follows (docs/replication.md).
        """
        return self.replicas == 1 or self.level.startswith("replicated")


class Stored(NamedTuple):
    """A run of acknowledged rows: the first is that with `number`, at `base_offset`."""

    base_offset: int
    number: int
    rows: int


@dataclass(slots=True, eq=False)
class Send:
    """One call of `send`: rows `number` to `number + rows` of a producer, to one partition.

    transaction: of this number of its producer; its answer has no offsets, so `stored` is empty.
    """

    key: Key
    producer: int
    number: int
    rows: int
    called_s: float
    outcome: Outcome = Outcome.UNKNOWN
    returned_s: float = float("inf")
    stored: tuple[Stored, ...] = ()
    transaction: int = -1
    level: str = ""
    error: str = ""


class Read(NamedTuple):
    """A batch that a reader was handed."""

    reader: str
    key: Key
    base_offset: int
    leader_epoch: int
    values: array[int]
    at_s: float


@dataclass(slots=True, eq=False)
class History:
    """Everything in the order in which it happened."""

    topics: tuple[TopicRow, ...] = ()
    sends: list[Send] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    final: list[Read] = field(default_factory=list)
    """Each partition from its first row to its end, read when nothing goes wrong any more."""
    errors: list[str] = field(default_factory=list)
    """Errors that no fault of this harness may cause, with the client that got them."""
    changes: dict[str, list[Operation]] = field(default_factory=dict)
    """By name of a topic that comes and goes: operations for the checker of linearizability."""
    unknown: Counter[str] = field(default_factory=Counter)
    """Why the outcome of operations on topics is unknown: names of errors."""
    elected: dict[Key, int] = field(default_factory=dict)
    """Leader epochs that passed in a partition during the run."""

    def acknowledged_rows(self) -> int:
        """Over all topics."""
        return sum(send.rows for send in self.sends if send.outcome is Outcome.OK)

    def longest_silence_s(self, topic: str, begin_s: float, end_s: float) -> float:
        """The longest time in which no row of a topic was acknowledged."""
        times = sorted(
            send.returned_s
            for send in self.sends
            if send.key[0] == topic and send.outcome is Outcome.OK
        )
        return longest_gap_s([begin_s, *(t for t in times if begin_s < t < end_s), end_s])


def longest_gap_s(times: Iterable[float]) -> float:
    """Between neighbours."""
    ordered = list(times)
    return max((b - a for a, b in pairwise(ordered)), default=0.0)
