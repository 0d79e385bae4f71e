"""Whether this broker may speak for the partitions of several replicas that it leads.

Owns the moment in which a leader stands down by itself: the controller has been out of reach for a
session, so another broker may lead by now. Produces whose rows wait for copies are told that their
outcome is unknown, readers at the end of the log to ask again; until the controller is heard again,
nothing more is appended, and where the rows end is not said. Rows that were shown stay shown, and
copies go on: both are as true under the next leader.

A leader whose replica nobody may count on (a failed write, damaged rows: offline_replicas.py), or
whose broker is about to stop, has asked for another one. The controller does not wait for the end
of a session then, and the answer may be late: as long as somebody else could have been elected, it
says no end, takes no trim, and tells no producer that rows are missing.

What is asked of such a leader, and what becomes of it:

| API | answered |
|---|---|
| PRODUCE, DELETE_RECORDS | NOT_LEADER: nothing is written, nothing given up (`Lookup.leading`) |
| PRODUCE of idempotent producers | NOT_LEADER in partitions of one replica, too (`produce`) |
| PRODUCE of who has asked for another leader | NOT_LEADER in place of a refused sequence |
| LIST_OFFSETS, EPOCH_END_OFFSETS, DESCRIBE_RANGES | NOT_LEADER: ends may be others (`telling`) |
| FETCH | rows that were shown; at their end NOT_LEADER (`Lookup.check_end`) |
| DESCRIBE_TOPICS | no offsets (`offsets_are_known`) |
| REPLICA_FETCH | as ever: a copy asks under a leader epoch, and cuts what the next leader lacks |

A partition of one replica has no other leader, and goes on, but for batches of idempotent
producers: an epoch may have ended that is not known to have (docs/adr/0069). A broker that is the
whole quorum is never out of its own reach.

Must not know: requests, heartbeats.
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

__all__ = ["Standing"]


class Standing:
    """See the module docstring.

    Attributes:
        is_over: this broker has stood down; False on a broker alone.
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
        """When the node is to look again: for what its membership has to do, or to stand down."""
        due_us = self._membership.next_us()
        if self.is_over or not self._replicas:
            return due_us
        ends_us = self._membership.registration.lease_ends_us
        assert ends_us is None or ends_us >= 0
        if ends_us is None or (due_us is not None and due_us <= ends_us):
            return due_us
        return ends_us

    def look(self, now: Now) -> None:
        """To be called before anything else of a call of the node."""
        was_over = self.is_over
        self.is_over = not self._membership.registration.may_lead(now)
        if self.is_over and not was_over:
            self._stand_down()

    def check(self, replica: Replica) -> None:
        """Raise NotLeader where another broker may lead the partition by now."""
        assert not replica.deleted, "what is deleted is not found"
        if self.is_over and _has_copies(replica):
            raise NotLeader(
                f"{replica.name}: the controller is out of reach, another broker may lead."
            )

    def check_end(self, replica: Replica) -> None:
        """Raise NotLeader where another broker may have shown rows by now that are not here."""
        self.check(replica)
        if self.hands_over(replica):
            raise NotLeader(
                f"{replica.name}: another broker was asked to lead, and may do so by now."
            )

    def hands_over(self, replica: Replica) -> bool:
        """True while the controller may have somebody else lead, because this broker asked for it.

        Who is eligible and lives may lead after a failed write, or in place of a broker that is
        about to stop: that one is in sync no more before it knows. A damaged leader asks for nobody
        but those in sync, for it goes on with writes. Where nobody can lead but the dead, this one
        answers: for as long as they are eligible, less than the minimum is in sync, and who comes
        back and leads alone shows no more rows than are shown here.
        """
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
        if topic is None or not gives_up:
            return False
        eligible = topic.partitions[replica.name.partition].eligible_leader_replicas
        return any(fit_epoch(image, node_id) is not None for node_id in eligible)

    def offsets_are_known(self, replica: Replica) -> bool:
        """False where another broker may know better."""
        assert not replica.deleted, "what is deleted is not found"
        return not (self.is_over and _has_copies(replica)) and not self.hands_over(replica)

    def _stand_down(self) -> None:
        assert self.is_over
        held = [replica for replica in self._replicas.values() if _has_copies(replica)]
        if held:
            self._outbox.log(
                "warning", "standing down: the controller is out of reach", partitions=len(held)
            )
        for replica in held:
            replica.fail_replicated(
                NotEnoughReplicasAfterAppend(
                    f"{replica.name}: the controller is out of reach, another broker may lead."
                )
            )
            if replica.waiters:
                self._wakeups.changed(replica)


def _has_copies(replica: Replica) -> bool:
    leadership = replica.state.leadership
    return leadership is not None and bool(leadership.followers)
