"""What must be true, whatever the seed did: the logs against a model of plain dictionaries.

Owns the memory of everything that was acknowledged and everything that was seen, and these rules:

1. acknowledged: a row acknowledged as `flushed` is at its offset for ever, until trimming,
   retention or the end of its topic had the right to take it (no lost row).
2. once: no value lies at two offsets (idempotent retries).
3. stable: what a reader has seen at an offset of a `flushed` topic never changes.
4. dense: a fetch begins with the batch that holds the asked offset, and has no gap.
5. order: values of one producer in one partition ascend with the offsets, and were sent by it.
6. young: retention by time takes no row that is younger than its bound.
7. trimmed: rows that a trim was confirmed to have taken never come back; those that retention took
   may, after a crash, until the broker looks again (it writes that down lazily).
8. unique: no producer id with its epoch is handed out twice.

What belongs to the life of topics is in `topics`, the other rules with the actors that watch them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["Checker", "Key", "PartitionModel", "TopicModel", "Violation"]

Key = tuple[bytes, int]
CLOCK_SLACK_US = 1_000_000
"""How far a node's clock may be wrong without an effect."""


class Violation(AssertionError):
    """The broker broke a promise."""


@dataclass(slots=True, eq=False)
class TopicModel:
    """What is known of one topic, from its creation to its end.

    Settings that were asked for count from the moment of asking, and those before them go on
    counting: a row may have been written, or taken, under either.
    """

    name: str
    topic_id: bytes
    configs: dict[str, str]
    durabilities: set[str] = field(default_factory=set)
    retentions_ms: set[int] = field(default_factory=set)
    bounded_bytes: bool = False
    schema_id: int = 1
    doomed: bool = False
    """The topic's deletion was asked for, so it may have happened."""

    def __post_init__(self) -> None:
        self.asked(self.configs)

    def asked(self, configs: dict[str, str]) -> None:
        """These settings may be in force from now on."""
        if "durability" in configs:
            self.durabilities.add(configs["durability"])
        if "retention.ms" in configs:
            self.retentions_ms.add(int(configs["retention.ms"]))
        if int(configs.get("retention.bytes", "-1")) >= 0:
            self.bounded_bytes = True

    @property
    def lossy(self) -> bool:
        """May a power failure take what was acknowledged as `memory`, or seen?"""
        return "memory" in self.durabilities

    @property
    def retention_ms(self) -> int:
        """The shortest bound that may have been in force; -1 for none."""
        bounds = [bound for bound in self.retentions_ms if bound >= 0]
        return min(bounds) if bounds else -1

    @property
    def retained(self) -> bool:
        """May retention take rows?"""
        return self.retention_ms >= 0 or self.bounded_bytes


@dataclass(slots=True, eq=False)
class PartitionModel:
    """What is known of one partition. Values are unique over a whole run."""

    topic: TopicModel
    partition: int
    acknowledged: dict[int, int] = field(default_factory=dict)
    """offset -> value, of acknowledgements with the level `flushed`."""
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
    hits: list[tuple[int, int] | None] = field(default_factory=list)
    """Rows [first, next) of each batch that was damaged; None where that is not sure."""
    read_last: set[int] = field(default_factory=set)
    """Offsets of the rows that were readable at the end."""
    robbed: str = ""
    """What was taken from it, from outside, that the broker must notice."""
    robbed_at: int = 0
    """The number of lines in the broker's log by then."""
    snapshots_lost: bool = False
    """A producer snapshot was damaged, or there was no room for one."""
    forgetful: bool = False
    """Rows that were acknowledged had to go, and what is known of their producers with them."""
    cuttable: dict[int, int] = field(default_factory=dict)
    """offset -> value, of rows that a start may cut although they were acknowledged, or seen."""
    torn: bool = False
    """Pages arrived out of order: rows that were not acknowledged may be unreadable."""

    def log_start_lost(self) -> None:
        """No file holds where the log begins: trimmed rows may be back, and that is reported."""
        self.damaged = True
        self.hits.append(None)
        self.robbed = "its log-start was damaged"
        self.log_start_offset = self.trim_confirmed = 0

    def may_be_cut(self, offset: int) -> None:
        """The double fault that ADR 0017 names has hit the batch that begins here: all that is
        known from it on may be cut, all of it or nothing. What comes later may not."""
        known = {**self.seen, **self.acknowledged}
        self.cuttable.update({o: v for o, v in known.items() if o >= offset})

    def look_for_cut(self, offset: int, value: int) -> None:
        """`value` lies at `offset`: where another row was that may be cut, all such rows were."""
        if self.cuttable.get(offset, value) == value:
            return
        for cut, old in self.cuttable.items():
            self.acknowledged.pop(cut, None)
            self.seen.pop(cut, None)
            self.timestamp_us.pop(cut, None)
            self.offset_of.pop(old, None)
        self.cuttable.clear()

    @property
    def may_lose_producers(self) -> bool:
        """May the broker forget a producer that has rows in here?

        Trimming and retention are no reason: what is known of producers outlives their rows, in a
        snapshot (ADR 0021).
        """
        if self.topic.lossy or self.topic.doomed or self.damaged or self.forgetful:
            return True
        return self.snapshots_lost and (self.topic.retained or self.trimmed_to > 0)

    @property
    def name(self) -> str:
        """As directories and messages have it."""
        return f"{self.topic.name}-{self.partition}"


class Checker:
    def __init__(self) -> None:
        self.topics: dict[bytes, TopicModel] = {}
        self.partitions: dict[Key, PartitionModel] = {}
        self.rows_acknowledged = 0
        self.rows_seen = 0
        self.power_failed = False
        """A machine has lost its power: what was acknowledged as `memory` may be gone."""
        self.errors_seen: dict[int, int] = {}
        self.producers_given: set[tuple[int, int]] = set()
        self.sent_to: dict[int, Key] = {}
        """By value: the partition that it was written for."""
        self.resending: set[int] = set()
        """Numbers of producers that send rows again under another identity."""
        self.on_acked: list[Callable[[Key, int], None]] = []
        """Called with a partition and the offset after rows that were acknowledged."""
        self.on_trimmed: list[Callable[[], None]] = []
        """Called when a trim was confirmed."""
        self.on_full: list[Callable[[], None]] = []
        """Called when a disk has become full."""

    # --- topics --------------------------------------------------------------------------------
    def add(self, topic: TopicModel, partitions: int) -> None:
        """A topic has this many partitions (it exists, or has grown)."""
        self.topics.setdefault(topic.topic_id, topic)
        for partition in range(partitions):
            key = (topic.topic_id, partition)
            if key not in self.partitions:
                self.partitions[key] = PartitionModel(topic, partition)

    def live(self) -> list[Key]:
        """Partitions of topics that no client has deleted."""
        return [key for key, model in self.partitions.items() if not model.topic.doomed]

    def directory(self, name: str) -> PartitionModel | None:
        """The living partition whose directory has this name."""
        for key in self.live():
            if self.partitions[key].name == name:
                return self.partitions[key]
        return None

    # --- what happens --------------------------------------------------------------------------
    def error(self, code: int) -> None:
        """A request, or a part of one, was answered with an error."""
        self.errors_seen[code] = self.errors_seen.get(code, 0) + 1

    def producer_given(self, producer_id: int, epoch: int) -> None:
        """A broker gave a producer its identity (rule 8)."""
        if (producer_id, epoch) in self.producers_given:
            raise Violation(f"producer id {producer_id}, epoch {epoch} was handed out twice")
        self.producers_given.add((producer_id, epoch))

    def sent(self, key: Key, values: list[int]) -> None:
        """A producer has made these rows for this partition."""
        self.sent_to.update(dict.fromkeys(values, key))

    def acked(
        self, key: Key, base_offset: int, values: list[int], at_us: int, flushed: bool
    ) -> None:
        """The broker acknowledged `values` at `base_offset`."""
        model = self.partitions[key]
        if not model.topic.lossy and not flushed:
            raise Violation(f"{model.name}: an acknowledgement below the topic's level")
        target = model.acknowledged if flushed else model.acknowledged_memory
        for index, value in enumerate(values):
            offset = base_offset + index
            model.look_for_cut(offset, value)
            known = model.acknowledged.get(offset, value)
            if known != value:
                raise Violation(f"offset {offset} was acknowledged for {known} and for {value}")
            target[offset] = value
            model.timestamp_us[offset] = at_us
        self.rows_acknowledged += len(values)
        for listener in self.on_acked:
            listener(key, base_offset + len(values))

    def read(self, key: Key, first_offset: int, values: list[int]) -> None:
        """A reader got these rows (rules 1 to 3 and 5)."""
        model = self.partitions[key]
        last_of_producer: dict[int, int] = {}
        seen, offset_of, acknowledged = model.seen, model.offset_of, model.acknowledged
        for index, value in enumerate(values):
            offset = first_offset + index
            model.look_for_cut(offset, value)
            known = seen.get(offset)
            if known is None:
                promised = acknowledged.get(offset)
                if promised is not None and promised != value:
                    raise Violation(f"offset {offset} holds {value}, acknowledged was {promised}")
                other = offset_of.get(value, offset)
                if other != offset and not self._resent(model, other, value):
                    raise Violation(f"{model.name}: {value} lies at offsets {other} and {offset}")
                seen[offset] = value
                offset_of[value] = offset
            elif known != value:
                raise Violation(f"offset {offset} changed from {known} to {value}")
            producer, number = value >> 32, value & 0xFFFFFFFF
            if self.sent_to.get(value) != key:
                raise Violation(f"{model.name}: offset {offset} holds {value}, never sent")
            if last_of_producer.get(producer, -1) >= number:
                raise Violation(f"rows of producer {producer} are out of order at {offset}")
            last_of_producer[producer] = number
        self.rows_seen += len(values)

    def _resent(self, model: PartitionModel, offset: int, value: int) -> bool:
        """May the row at `offset` be stored again?

        Where damage took a batch without an acknowledgement, its producer sends it again, as it
        cannot learn that it was stored; the shipped one sends it under another identity, and with
        it the intact ones that came after it.
        """
        unknown = offset not in model.acknowledged or value >> 32 in self.resending
        return model.damaged and unknown

    def log_start(self, key: Key, offset: int, wall_us: int, floor: int) -> None:
        """The broker answers where the log begins (rules 6, 7); `floor`: the start when it was
        asked.
        """
        model = self.partitions[key]
        floor = min(floor, model.log_start_offset)  # The process may have died since it was asked.
        if offset < floor and not model.robbed:
            raise Violation(f"{model.name}: log start went back from {floor} to {offset}")
        topic = model.topic
        if not topic.bounded_bytes and not model.damaged:
            retention_ms = topic.retention_ms
            limit_us = wall_us - retention_ms * 1000 + CLOCK_SLACK_US
            for taken in range(max(model.log_start_offset, model.trimmed_to), offset):
                if retention_ms < 0:
                    raise Violation(
                        f"{model.name}: row {taken} is gone and nothing had the right to take it"
                    )
                at_us = model.timestamp_us.get(taken)
                if at_us is not None and at_us > limit_us:
                    age_ms = (wall_us - at_us) // 1000
                    raise Violation(f"{model.name}: row {taken} was taken at an age of {age_ms} ms")
        model.log_start_offset = max(model.log_start_offset, offset)

    def log_end(self, key: Key, offset: int) -> None:
        """The broker answers how far one may read (rule 1, before anything is read)."""
        model = self.partitions[key]
        promised = max(model.acknowledged, default=-1) + 1
        if offset < promised:
            raise Violation(
                f"{model.name}: the log ends at {offset}, acknowledged was up to {promised}"
            )

    def trimmed(self, key: Key, offset: int) -> None:
        """A trim up to `offset` was asked for: it may take effect, answered or not."""
        model = self.partitions[key]
        model.trimmed_to = max(model.trimmed_to, offset)

    def trim_done(self, key: Key, log_start_offset: int) -> None:
        """A trim was answered: it is for ever."""
        model = self.partitions[key]
        model.trim_confirmed = max(model.trim_confirmed, log_start_offset)
        for listener in self.on_trimmed:
            listener()

    def process_died(self) -> None:
        """However it died: what retention took may show again for a moment."""
        for model in self.partitions.values():
            if model.topic.retained:
                model.log_start_offset = min(model.log_start_offset, model.trim_confirmed)

    def machine_died(self) -> None:
        """Power loss: what was only in memory may be gone, and other rows may take its offsets."""
        self.power_failed = True
        for model in self.partitions.values():
            if model.topic.lossy:
                kept = model.acknowledged
                model.acknowledged_memory.clear()
                model.seen = {o: v for o, v in model.seen.items() if o in kept}
                model.offset_of = {v: o for o, v in model.seen.items()}
                model.timestamp_us = {o: t for o, t in model.timestamp_us.items() if o in kept}

    # --- the end -------------------------------------------------------------------------------
    def _check_order(self, model: PartitionModel, start: int, end: int) -> None:
        """Rule 5 across batches, of which rows that were given up are no exception."""
        newest: dict[int, int] = {}
        for offset in range(start, end):
            value = model.seen.get(offset, -1)
            producer, number = value >> 32, value & 0xFFFFFFFF
            if value >= 0 and newest.get(producer, -1) >= number:
                raise Violation(
                    f"{model.name}: row {number} of producer {producer} came behind row"
                    f" {newest[producer]}, at {offset}"
                )
            newest[producer] = number

    def finish(self, key: Key, start: int, end: int) -> None:
        """All from `start` to `end` was read: is everything there? (rule 1)"""
        model = self.partitions[key]
        promised = {**model.acknowledged, **model.acknowledged_memory}
        missing = [o for o in promised if o >= start and model.seen.get(o) != promised[o]]
        if missing and not model.damaged:
            raise Violation(
                f"{model.name}: {len(missing)} acknowledged rows are missing, first at"
                f" {min(missing)} (log is {start} to {end})"
            )
        if model.hits and None not in model.hits and not model.torn:
            hits = [range(*hit) for hit in model.hits if hit is not None]
            unread = [o for o in model.acknowledged if o >= start and o not in model.read_last]
            lost = [o for o in unread if not any(o in hit for hit in hits)]
            if lost:
                raise Violation(
                    f"{model.name}: bits were flipped in {hits}, and {len(lost)} other rows cannot"
                    f" be read, first at {min(lost)}"
                )
        if not (model.damaged or model.torn):
            self._check_order(model, start, end)
        unseen = [o for o in range(start, end) if o not in model.seen]
        if unseen and not (model.damaged or model.torn):
            raise Violation(f"{model.name}: offsets {unseen[:5]} were never readable")
