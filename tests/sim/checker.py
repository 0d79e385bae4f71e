"""What must be true, whatever the seed did: the log against a model of plain dictionaries.

Owns the memory of everything that was acknowledged and everything that was seen, and these rules:

1. acknowledged: a row acknowledged as `flushed` is at its offset for ever, until trimming or
   retention had the right to take it (no lost row).
2. once: no value lies at two offsets (idempotent retries).
3. stable: what a reader has seen at an offset of a `flushed` topic never changes.
4. dense: a fetch begins with the batch that holds the asked offset, and has no gap.
5. order: values of one producer in one partition ascend with the offsets.
6. young: retention by time takes no row that is younger than its bound.
7. trimmed: rows that a trim was confirmed to have taken never come back; those that retention took
   may, after a crash, until the broker looks again (it writes that down lazily).
8. awake: a long poll is answered when rows come (`follower`).
9. loud: a damaged batch is an error, never data (the flipped bit is found, rows around it stay).

A violation raises `Violation` with the seed's history at hand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from .scenario import TopicPlan

__all__ = ["Checker", "PartitionModel", "Violation"]


class Violation(AssertionError):
    """The broker broke a promise."""


@dataclass(slots=True)
class PartitionModel:
    """What is known of one partition. Values are unique over a whole run."""

    plan: TopicPlan
    acknowledged: dict[int, int] = field(default_factory=dict)
    """offset -> value, of acknowledgements that said `flushed`."""
    acknowledged_memory: dict[int, int] = field(default_factory=dict)
    """offset -> value, acknowledged as `memory`: may go with the machine."""
    seen: dict[int, int] = field(default_factory=dict)
    offset_of: dict[int, int] = field(default_factory=dict)
    """value -> offset, of rows seen."""
    timestamp_us: dict[int, int] = field(default_factory=dict)
    """offset -> row time, of rows acknowledged or seen."""
    log_start_offset: int = 0
    trimmed_to: int = 0
    """A trim up to here was asked for, so it may have happened."""
    trim_confirmed: int = 0
    damaged: bool = False
    """A bit of it was flipped: errors are allowed, wrong rows are not."""


class Checker:
    """See the module docstring."""

    def __init__(self) -> None:
        self.partitions: dict[tuple[bytes, int], PartitionModel] = {}
        self.rows_acknowledged = 0
        self.rows_seen = 0
        self.errors_seen: dict[int, int] = {}
        self.on_acked: list[Callable[[tuple[bytes, int], int], None]] = []
        """Called with a partition and the offset after rows that were acknowledged."""

    def add(self, topic_id: bytes, partition: int, plan: TopicPlan) -> None:
        """A partition exists from now on."""
        self.partitions[topic_id, partition] = PartitionModel(plan)

    # --- what happens --------------------------------------------------------------------------
    def acked(
        self, key: tuple[bytes, int], base_offset: int, values: list[int], at_us: int, flushed: bool
    ) -> None:
        """The broker acknowledged `values` at `base_offset`."""
        model = self.partitions[key]
        if model.plan.durability == "flushed" and not flushed:
            raise Violation(f"{model.plan.name}: an acknowledgement below the topic's level")
        target = model.acknowledged if flushed else model.acknowledged_memory
        for index, value in enumerate(values):
            offset = base_offset + index
            known = model.acknowledged.get(offset, value)
            if known != value:
                raise Violation(f"offset {offset} was acknowledged for {known} and for {value}")
            target[offset] = value
            model.timestamp_us[offset] = at_us
        self.rows_acknowledged += len(values)
        for listener in self.on_acked:
            listener(key, base_offset + len(values))

    def read(self, key: tuple[bytes, int], first_offset: int, values: list[int]) -> None:
        """A reader got these rows (rules 1 to 3 and 5)."""
        model = self.partitions[key]
        last_of_producer: dict[int, int] = {}
        for index, value in enumerate(values):
            offset = first_offset + index
            known = model.seen.get(offset)
            if known is not None and known != value:
                raise Violation(f"offset {offset} changed from {known} to {value}")
            promised = model.acknowledged.get(offset)
            if promised is not None and promised != value:
                raise Violation(f"offset {offset} holds {value}, acknowledged was {promised}")
            other = model.offset_of.get(value, offset)
            if other != offset:
                raise Violation(f"value {value} lies at offsets {other} and {offset}")
            model.seen[offset] = value
            model.offset_of[value] = offset
            producer, number = value >> 32, value & 0xFFFFFFFF
            if last_of_producer.get(producer, -1) >= number:
                raise Violation(f"rows of producer {producer} are out of order at {offset}")
            last_of_producer[producer] = number
        self.rows_seen += len(values)

    def log_start(self, key: tuple[bytes, int], offset: int, wall_us: int, floor: int) -> None:
        """The broker says where the log begins (rules 6, 7); `floor`: known when it was asked."""
        model = self.partitions[key]
        if offset < floor:
            raise Violation(f"log start went back from {floor} to {offset}")
        plan = model.plan
        if plan.retention_bytes < 0 and not model.damaged:
            for taken in range(max(model.log_start_offset, model.trimmed_to), offset):
                at_us = model.timestamp_us.get(taken)
                if plan.retention_ms < 0:
                    raise Violation(f"row {taken} is gone and nothing had the right to take it")
                if at_us is not None and at_us > wall_us - plan.retention_ms * 1000:
                    age_ms = (wall_us - at_us) // 1000
                    raise Violation(f"row {taken} was taken at an age of {age_ms} ms")
        model.log_start_offset = max(model.log_start_offset, offset)

    def log_end(self, key: tuple[bytes, int], offset: int) -> None:
        """The broker says how far one may read (rule 1, before anything is read)."""
        model = self.partitions[key]
        promised = max(model.acknowledged, default=-1) + 1
        if offset < promised:
            raise Violation(f"the log ends at {offset}, acknowledged was up to {promised}")

    def trimmed(self, key: tuple[bytes, int], offset: int) -> None:
        """A trim up to `offset` was asked for: it may take effect, answered or not."""
        model = self.partitions[key]
        model.trimmed_to = max(model.trimmed_to, offset)

    def trim_done(self, key: tuple[bytes, int], log_start_offset: int) -> None:
        """A trim was answered: it is for ever."""
        model = self.partitions[key]
        model.trim_confirmed = max(model.trim_confirmed, log_start_offset)

    def process_died(self) -> None:
        """However it died: what retention took may show again for a moment."""
        for model in self.partitions.values():
            if model.plan.retention_ms >= 0 or model.plan.retention_bytes >= 0:
                model.log_start_offset = min(model.log_start_offset, model.trim_confirmed)

    def machine_died(self) -> None:
        """Power loss: what was only in memory may be gone, and other rows may take its offsets."""
        for model in self.partitions.values():
            if model.plan.durability == "memory":
                kept = model.acknowledged
                model.acknowledged_memory.clear()
                model.seen = {o: v for o, v in model.seen.items() if o in kept}
                model.offset_of = {v: o for o, v in model.seen.items()}
                model.timestamp_us = {o: t for o, t in model.timestamp_us.items() if o in kept}

    # --- the end -------------------------------------------------------------------------------
    def finish(self, key: tuple[bytes, int], start: int, end: int) -> None:
        """All from `start` to `end` was read: is everything there? (rule 1)"""
        model = self.partitions[key]
        promised = {**model.acknowledged, **model.acknowledged_memory}
        missing = [o for o in promised if o >= start and model.seen.get(o) != promised[o]]
        if missing and not model.damaged:
            raise Violation(
                f"{model.plan.name}: {len(missing)} acknowledged rows are missing, first at"
                f" {min(missing)} (log is {start} to {end})"
            )
        unseen = [o for o in range(start, end) if o not in model.seen]
        if unseen and not model.damaged:
            raise Violation(f"{model.plan.name}: offsets {unseen[:5]} were never readable")
