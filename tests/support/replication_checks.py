"""What must hold in a cluster that copies one partition, whatever happens, after each step.

Owns the promises; the world that they are about is replication_world.py.
"""

from __future__ import annotations

from quiverlog.core.partition.in_sync import Proposal

from .replication import LAG_US, ModelBroker, Row
from .replication_controller import Controller

__all__ = ["Checks", "Violation"]


class Violation(AssertionError):
    """A promise was broken."""


class Checks:
    """Raises Violation."""

    controller: Controller
    brokers: list[ModelBroker]
    now_us: int
    committed: list[Row]
    acknowledged: dict[int, int]
    lossy: dict[int, bool]
    watermarks: dict[tuple[int, int, int], int]

    def up(self) -> list[ModelBroker]:
        return [one for one in self.brokers if one.up]

    def check(self) -> None:
        for member in self.controller.in_sync:
            if self.lossy.get(member) and member not in self.controller.fenced:
                del self.lossy[member]
        for one in self.up():
            self._check_watermark(one)
            for done in one.acknowledge():
                self._acknowledge(one, done.start, done.end)
        for member in self.controller.in_sync | self.controller.eligible:
            if member not in self.lossy:
                self._check_has_all(self.brokers[member], "counts as a copy")

    def _check_watermark(self, one: ModelBroker) -> None:
        """What may be read is the same everywhere, and never becomes less."""
        state, rows = one.state, one.log.rows
        end = state.high_watermark
        if end > len(rows):
            raise Violation(f"broker {one.broker_id} shows {end} rows and has {len(rows)}")
        life = (one.broker_id, one.lives, state.leader_epoch)
        if end < self.watermarks.get(life, 0):
            raise Violation(f"the high watermark of broker {one.broker_id} fell to {end}")
        self.watermarks[life] = end
        if state.leads:
            self.committed += rows[len(self.committed) : end]
        seen = min(end, len(self.committed))
        if rows[:seen] != self.committed[:seen] or end > seen:
            raise Violation(f"broker {one.broker_id} shows other rows below {end} than others have")

    def _acknowledge(self, one: ModelBroker, start: int, end: int) -> None:
        for offset in range(start, end):
            value = one.log.rows[offset][1]
            if self.acknowledged.setdefault(offset, value) != value:
                raise Violation(f"two rows were acknowledged at {offset}")

    def _check_has_all(self, one: ModelBroker, what: str) -> None:
        rows = one.log.rows
        if rows[: len(self.committed)] != self.committed:
            raise Violation(f"broker {one.broker_id} {what}, and lacks rows that were shown")
        for offset, value in self.acknowledged.items():
            if offset >= len(rows) or rows[offset][1] != value:
                raise Violation(f"broker {one.broker_id} {what}, and lacks an acknowledged row")

    def _check_leader(self, one: ModelBroker) -> None:
        meta = self.controller.history[-1]
        if meta.leader == one.broker_id and one.state.leader_epoch == meta.leader_epoch:
            self._check_has_all(one, "leads")

    def _check_proposal(self, one: ModelBroker, before: frozenset[int], proposal: Proposal) -> None:
        """No replica joins that the leader cannot judge to be fit, none leaves before its time."""
        for member, epoch in zip(proposal.members, proposal.broker_epochs, strict=True):
            if member not in before and one.meta.fit_epoch(member) != epoch:
                raise Violation(f"broker {member} is to be in sync: fenced, or an earlier life")
        if before - set(proposal.members) and self.now_us - one.elected_us <= LAG_US:
            raise Violation("a follower is to leave before the new leader can know its lag")
