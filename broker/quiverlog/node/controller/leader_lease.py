"""The lease under which this broker leads partitions of several replicas.

Without contact to the controller for a session, another broker may lead: this one steps down. It
appends nothing and reports no end of rows until contact is back; waiting produces get an unknown
outcome. Rows served before stay available, and copying goes on: both hold under the next leader.

A leader that asked for a successor (failed write, damaged rows, stopping) does the same while the
controller may have elected one. Partitions of one replica go on, except for idempotent producers,
whose epoch may have ended unnoticed (docs/adr/0069).
"""

from __future__ import annotations

from collections.abc import Mapping

from quiverlog.core.controller.alter_partition import fit_epoch
from quiverlog.errors import NotEnoughReplicasAfterAppend, NotLeader
from quiverlog.node.controller.membership import Membership
from quiverlog.node.metadata.metadata import Metadata
from quiverlog.node.partitions.replica import Replica
from quiverlog.node.runtime.outbox import Outbox
from quiverlog.node.runtime.purgatory import Wakeups
from quiverlog.types import Now

__all__ = ["LeaderLease"]


class LeaderLease:
    """The lease.

    | API | answered while it is over |
    |---|---|
    | PRODUCE, DELETE_RECORDS | NOT_LEADER: nothing is written or deleted (`Lookup.leading`) |
    | PRODUCE of idempotent producers | NOT_LEADER in partitions of one replica, too (`produce`) |
    | PRODUCE after asking for a successor | NOT_LEADER in place of a refused sequence |
    | LIST_OFFSETS, EPOCH_END_OFFSETS, DESCRIBE_RANGES | NOT_LEADER: `leader_for_offsets` |
    | FETCH | rows that were served; at their end NOT_LEADER (`Lookup.check_end`) |
    | DESCRIBE_TOPICS | no offsets (`offsets_are_known`) |
    | REPLICA_FETCH | as ever: a follower asks under a leader epoch, and cuts what its leader lacks
        |

    Attributes:
        is_over: this broker has stepped down; False on a broker alone.
    """

    __slots__ = ("_membership", "_metadata", "_outbox", "_replicas", "_wakeups", "is_over")

    def __init__(
        self,
        membership: Membership,
        metadata: Metadata,
        replicas: Mapping[tuple[bytes, int], Replica],
        wakeups: Wakeups,
        outbox: Outbox,
    ) -> None:
        self._membership = membership
        self._metadata = metadata
        self._replicas = replicas
        self._wakeups = wakeups
        self._outbox = outbox
        self.is_over = False

    def next_us(self) -> int | None:
        due_us = self._membership.next_us()
        if self.is_over or not self._replicas:
            return due_us
        ends_us = self._membership.registration.lease_ends_us
        assert ends_us is None or ends_us >= 0
        if ends_us is None or (due_us is not None and due_us <= ends_us):
            return due_us
        return ends_us

    def look(self, now: Now) -> None:
        """Check the lease; called before anything else in a call of the node."""
        was_over = self.is_over
        self.is_over = not self._membership.registration.may_lead(now)
        if self.is_over and not was_over:
            self._step_down(now)

    def check(self, replica: Replica) -> None:
        assert not replica.deleted, "what is deleted is not found"
        if self.is_over and _has_copies(replica):
            raise NotLeader(
                f"{replica.name}: the controller is out of reach, another broker may lead."
            )

    def check_end(self, replica: Replica) -> None:
        """Raise NotLeader where another broker may have served rows that are not here."""
        self.check(replica)
        if self.hands_over(replica):
            raise NotLeader(
                f"{replica.name}: another broker was asked to lead, and may do so by now."
            )

    def hands_over(self, replica: Replica) -> bool:
        """Return whether the controller may have elected another leader, as this broker asked."""
        gives_up = replica.fault is not None or self._membership.registration.asks_to_stop
        if not gives_up and not replica.damage:
            return False
        leadership = replica.state.leadership
        if leadership is None or not leadership.followers:
            return False
        assert leadership.in_sync.maximal, "a leader is in sync"
        if len(leadership.in_sync.maximal) > 1:
            return True
        image = self._metadata.image
        topic = image.topics_by_id.get(replica.topic.topic_id)
        # A damaged leader asks only for in-sync replicas: it goes on with writes.
        if topic is None or not gives_up:
            return False
        # An eligible live replica may lead after a failed write, or for a stopping broker, which is
        # out of the in-sync set before it learns so. If only dead replicas could lead, this one
        # answers: fewer than the minimum are in sync then, so one that returns and leads alone
        # serves no more rows than this one.
        eligible = topic.partitions[replica.name.partition].eligible_leader_replicas
        return any(fit_epoch(image, node_id) is not None for node_id in eligible)

    def offsets_are_known(self, replica: Replica) -> bool:
        assert not replica.deleted, "what is deleted is not found"
        return not (self.is_over and _has_copies(replica)) and not self.hands_over(replica)

    def _step_down(self, now: Now) -> None:
        assert self.is_over
        held = [replica for replica in self._replicas.values() if _has_copies(replica)]
        if held:
            self._outbox.log(
                "warning", "stepping down: the controller is out of reach", partitions=len(held)
            )
        for replica in held:
            replica.fail_replicated(
                NotEnoughReplicasAfterAppend(
                    f"{replica.name}: the controller is out of reach, another broker may lead."
                ),
                now,
            )
            if replica.waiters:
                self._wakeups.changed(replica)


def _has_copies(replica: Replica) -> bool:
    leadership = replica.state.leadership
    return leadership is not None and bool(leadership.followers)
