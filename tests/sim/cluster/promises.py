"""What an acknowledgement, and a row that was read, is worth in a cluster.

Owns the model of a topic with several replicas, and which rows may go with which fault:

- below `replicated`: with any change of the leader. No reader got such a row.
- `replicated`: when all machines lose their power; where one replica in sync was enough
  (`min.insync.replicas` 1 at any time), when any machine does.
- all levels: from the first unclean election of the partition on, which needs an operator's command
  or the topic's setting.

What a reader was handed lies below the high watermark of some node at that moment.

An answer that was still on its way when all machines lost their power promises nothing: it was
allowed to leave before any client got it. Neither do rows that a client fetched before a fault took
them, and hands out later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from quiverlog.types import Durability
from tests.sim.checker import CLOCK_SLACK_US, Checker, Key, TopicModel, Violation

from .histories import Histories
from .ledger import Ledger

__all__ = ["ClusterChecker", "ClusterTopicModel"]


@dataclass(slots=True, eq=False)
class ClusterTopicModel(TopicModel):
    """A topic with several replicas."""

    is_frail: bool = False
    """One replica in sync may have been enough."""
    may_be_unclean: bool = False
    """An unclean election may have been allowed."""

    def asked(self, configs: dict[str, str]) -> None:
        # By its name: a class with slots is made anew, which `super()` without arguments misses.
        TopicModel.asked(self, configs)
        if configs.get("min.insync.replicas") == "1":
            self.is_frail = True
        if configs.get("unclean.leader.election.enable") == "true":
            self.may_be_unclean = True

    @property
    def lossy(self) -> bool:
        return not self.durabilities <= {"replicated", "replicated_flushed"}


class ClusterChecker(Checker):
    """The single node's rules, as far as they hold for several."""

    def __init__(self) -> None:
        super().__init__()
        self.committed_end: Callable[[Key], int] | None = None
        """Up to where any node has rows of a partition as committed."""
        self.lost_us: dict[Key, int] = {}
        """When a fault last had the right to take rows that readers saw."""
        self.shown_before: dict[Key, int] = {}
        """Up to where rows were readable before such a fault: clients may have them in memory."""
        self.unclean: set[Key] = set()
        """Partitions that had an unclean election."""
        self.histories = Histories()
        self.ledger = Ledger(self)
        """Of transactions."""
        self.now_us: Callable[[], int] = lambda: 0
        """For the histories."""
        self.all_are_down: Callable[[], bool] = lambda: False
        """No machine runs, so whatever comes now was sent by one that has lost its power since."""
        self.clock_slack_us = CLOCK_SLACK_US
        """Retention may take a row so much too early."""

    # --- acknowledgements ----------------------------------------------------------------------
    def acked(
        self, key: Key, base_offset: int, values: list[int], at_us: int, flushed: bool
    ) -> None:
        lossy = self.partitions[key].topic.lossy
        level = Durability.FLUSHED if lossy else Durability.REPLICATED
        self.acked_at(key, base_offset, values, at_us, level)

    def acked_at(
        self, key: Key, base_offset: int, values: list[int], at_us: int, level: Durability
    ) -> None:
        """A leader acknowledged `values` at this level."""
        lasts = level >= Durability.REPLICATED and key not in self.unclean
        lasts = lasts and not self.all_are_down()
        if lasts:
            self.histories.acknowledged(key, values[0], self.now_us())
            super().acked(key, base_offset, values, at_us, flushed=True)
        else:
            self.rows_acknowledged += len(values)

    # --- what was read -------------------------------------------------------------------------
    def read(self, key: Key, first_offset: int, values: list[int]) -> None:
        if self.all_are_down():
            return
        model = self.partitions[key]
        end = first_offset + len(values)
        if self.committed_end is not None and not model.forgetful:
            known = self.committed_end(key)
            if end > known:
                raise Violation(f"{model.name}: rows up to {end} were read, committed is {known}")
        if key in self.unclean:
            for offset, value in enumerate(values, first_offset):
                self._drop_row(key, offset, value)
        super().read(key, first_offset, values)
        self.ledger.read(key, values)

    def are_from_before(self, key: Key, end: int) -> bool:
        """May a client have fetched rows up to `end` before a fault took them?"""
        return self.committed_end is not None and (
            self.committed_end(key) < end <= self.shown_before.get(key, 0)
        )

    def _drop_row(self, key: Key, offset: int, value: int) -> None:
        """A leader that has not learned of an unclean election goes on: rows may change."""
        model = self.partitions[key]
        if model.seen.get(offset, value) != value:
            model.offset_of.pop(model.seen.pop(offset), None)
        other = model.offset_of.get(value, offset)
        if other != offset:
            model.seen.pop(other, None)
            del model.offset_of[value]

    # --- losses --------------------------------------------------------------------------------
    def all_lost_power(self, *, is_flushed_kept: bool, at_us: int) -> None:
        """Rows that are on too few disks may be gone, and others in their place."""
        for key, model in self.partitions.items():
            kept_level = model.topic.durabilities == {"replicated_flushed"}
            is_kept = is_flushed_kept and kept_level and key not in self.unclean
            self.lost(key, at_us, kept=set(model.acknowledged) if is_kept else set())

    def lost(self, key: Key, at_us: int, *, kept: Iterable[int] = ()) -> None:
        """A fault had the right to take all rows of this partition but these."""
        model = self.partitions[key]
        kept = frozenset(kept)
        self.lost_us[key] = at_us
        if self.committed_end is not None:
            shown = max(self.shown_before.get(key, 0), self.committed_end(key))
            self.shown_before[key] = shown
        self.histories.forgive(key)
        for offset in [o for o in model.acknowledged if o not in kept]:
            del model.acknowledged[offset]
        model.acknowledged_memory.clear()
        for offset in [o for o in model.seen if o not in kept]:
            model.offset_of.pop(model.seen.pop(offset), None)
        for offset in [o for o in model.timestamp_us if o not in kept]:
            del model.timestamp_us[offset]
        if not kept:
            model.forgetful = True

    def unclean_election(self, key: Key, at_us: int) -> None:
        """A leader may lack rows that were readable."""
        model = self.partitions[key]
        topic = model.topic
        assert isinstance(topic, ClusterTopicModel)
        if not (topic.may_be_unclean or topic.doomed):
            raise Violation(f"{model.name}: an unclean election that was never allowed")
        self.unclean.add(key)
        self.histories.forgive(key)
        self.lost(key, at_us)

    # --- where logs begin ----------------------------------------------------------------------
    def log_start(self, key: Key, offset: int, wall_us: int, floor: int) -> None:
        """As on one node, but another leader may not have the start yet that retention, or an
        unconfirmed trim, has set.
        """
        model = self.partitions[key]
        if offset < min(floor, model.log_start_offset) and key not in self.unclean:
            raise Violation(
                f"{model.name}: rows below {model.log_start_offset} were deleted, they begin at"
                f" {offset}"
            )
        if model.topic.bounded_bytes:
            return
        limit_us = wall_us - model.topic.retention_ms * 1000 + self.clock_slack_us
        for taken in range(max(model.log_start_offset, model.trimmed_to), offset):
            at_us = model.timestamp_us.get(taken)
            if model.topic.retention_ms < 0:
                raise Violation(f"{model.name}: row {taken} is gone, nothing might take it")
            if at_us is not None and at_us > limit_us:
                age_ms = (wall_us - at_us) // 1000
                raise Violation(f"{model.name}: row {taken} was taken at an age of {age_ms} ms")

    def trim_done(self, key: Key, log_start_offset: int) -> None:
        super().trim_done(key, log_start_offset)
        model = self.partitions[key]
        model.log_start_offset = max(model.log_start_offset, model.trim_confirmed)
