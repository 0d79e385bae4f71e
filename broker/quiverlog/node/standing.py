"""Whether this broker may speak for the partitions of several replicas that it leads.

Owns the moment in which a leader stands down by itself: the controller has been out of reach for a
session, so another broker may lead by now. Produces whose rows wait for copies are told that their
outcome is unknown, readers at the end of the log to ask again; until the controller is heard again,
nothing more is appended, and where the rows end is not said. Rows that were shown stay shown, and
copies go on: both are as true under the next leader.

What is asked of such a leader, and what becomes of it:

| API | answered |
|---|---|
| PRODUCE, DELETE_RECORDS | NOT_LEADER: nothing is written, nothing given up (`Lookup.leading`) |
| LIST_OFFSETS, EPOCH_END_OFFSETS, DESCRIBE_RANGES | NOT_LEADER: ends may be others (`leading`) |
| FETCH | rows that were shown; at their end NOT_LEADER (`Lookup.check_end`) |
| DESCRIBE_TOPICS | no offsets (`offsets_are_known`) |
| REPLICA_FETCH | as ever: a copy asks under a leader epoch, and cuts what the next leader lacks |

A partition of one replica has no other leader, and a broker that is the whole quorum is never out
of its own reach.

Must not know: requests, heartbeats.
"""

from __future__ import annotations

from collections.abc import Mapping

from quiverlog.errors import NotEnoughReplicasAfterAppend, NotLeader
from quiverlog.node.membership import Membership
from quiverlog.node.outbox import Outbox
from quiverlog.node.replica import Replica
from quiverlog.node.wakeups import Wakeups
from quiverlog.types import Now

__all__ = ["Standing"]


class Standing:
    """See the module docstring.

    Attributes:
        is_over: this broker has stood down; False on a broker alone.
    """

    __slots__ = ("_membership", "_outbox", "_replicas", "_wakeups", "is_over")

    def __init__(
        self,
        membership: Membership,
        replicas: Mapping[tuple[bytes, int], Replica],
        wakeups: Wakeups,
        outbox: Outbox,
    ) -> None:
        self._membership = membership
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

    def offsets_are_known(self, replica: Replica) -> bool:
        """False where another broker may know better."""
        assert not replica.deleted, "what is deleted is not found"
        return not (self.is_over and _has_copies(replica))

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
