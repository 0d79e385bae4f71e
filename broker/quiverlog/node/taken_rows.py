"""What retention has taken, as lines of the log: every partition and its rows, few lines.

Owns what is taken and not yet written: one line for each topic, after a moment in which more may
come. A thousand partitions of a topic that expire together are told in some lines, none is left
out, and no line grows without bound.

Must not know: why rows were taken.
"""

from __future__ import annotations

from typing import Final

from quiverlog.node.outbox import Outbox
from quiverlog.types import Now, TopicPartition

__all__ = ["TAKEN_CHARS_MAX", "TakenRows"]

_GATHER_US: Final = 1_000_000
"""What a killed process has not yet said is never more than it took in so long."""
TAKEN_CHARS_MAX: Final = 4_000
"""Of the partitions and rows in one line; what is more goes into another."""
_ENTRY_CHARS_MAX: Final = len(f"{2**31}:{2**63}-{2**63} ")


class _Topic:
    """What was taken of one topic: the rows of each partition as (first, next)."""

    __slots__ = ("byte_count", "chars", "rows", "segments")

    def __init__(self) -> None:
        self.rows: dict[int, tuple[int, int]] = {}
        self.segments = self.byte_count = self.chars = 0


class TakenRows:
    """See the module docstring. `due_us`: when `write` is wanted; None: there is nothing."""

    __slots__ = ("_gathers", "_outbox", "_topics", "due_us")

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._topics: dict[str, _Topic] = {}
        self._gathers = True
        self.due_us: int | None = None

    def add(
        self,
        name: TopicPartition,
        first: int,
        log_start_offset: int,
        *,
        segments: int,
        byte_count: int,
        now: Now,
    ) -> None:
        """Rows `first` to `log_start_offset` of this partition are gone, and these files."""
        assert first <= log_start_offset
        topic = self._topics.setdefault(name.topic, _Topic())
        before = topic.rows.get(name.partition)
        if before is not None and before[1] != first:
            # A client deleted rows in between, or there is a new topic of that name.
            self._write(name.topic)
            topic, before = self._topics.setdefault(name.topic, _Topic()), None
        topic.rows[name.partition] = (first if before is None else before[0], log_start_offset)
        topic.segments += segments
        topic.byte_count += byte_count
        topic.chars += len(f"{name.partition}:{first}-{log_start_offset} ")
        if not self._gathers or topic.chars > TAKEN_CHARS_MAX - _ENTRY_CHARS_MAX:
            self._write(name.topic)
        elif self.due_us is None:
            self.due_us = now.mono_us + _GATHER_US

    def write(self) -> None:
        """Say all of it."""
        for name in list(self._topics):
            self._write(name)
        self.due_us = None

    def stop(self) -> None:
        """Say all of it, and from now on everything at once: nobody comes back to write it."""
        self.write()
        self._gathers = False

    def _write(self, name: str) -> None:
        topic = self._topics.pop(name)
        rows = topic.rows
        assert rows
        assert topic.chars <= TAKEN_CHARS_MAX
        self._outbox.log(
            "info",
            "retention took rows",
            topic=name,
            partitions=len(rows),
            rows=sum(end - first for first, end in rows.values()),
            segments=topic.segments,
            bytes=topic.byte_count,
            taken=" ".join(f"{n}:{first}-{end}" for n, (first, end) in sorted(rows.items())),
        )
