"""What the metadata record of replicas, held against what their logs hold.

Owns the newest metadata that any node has applied, and these rules of it (numbers go on from
`invariants`):

7. counted: each replica that is in sync, or eligible to lead, has all that readers may have seen,
   as long as it is in the life that is registered. So a mistake shows when a replica is counted
   that lacks rows, not when it happens to be elected.
8. fenced: no fenced replica is in sync, and a fenced broker appends nothing as a leader: its lease
   has ended before.
9. patience: an in-sync replica that lives is not dropped before it had the lag time, counted from
   the election.
10. producers: what is remembered of them speaks of rows that are in the log.

Not here: bytes of logs, clients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from quiverlog.node.partitions.replica import Replica
from tests.sim.checker import Key, Violation

from .host import ClusterHost

__all__ = ["Counted"]

_LAG_US: Final = 10_000_000


@dataclass(frozen=True, slots=True)
class _Recorded:
    """What the metadata record of one partition."""

    in_sync: tuple[int, ...]
    eligible: tuple[int, ...]
    replicas: tuple[int, ...]
    leader_id: int
    leader_epoch: int


class Counted:
    def __init__(self) -> None:
        self.hosts: list[ClusterHost] = []
        self.lag_us = _LAG_US
        """How long an in-sync replica may lack rows."""
        self.is_patient = False
        """Is rule 9 looked at? Not where replicas leave for other reasons: damage, moves."""
        self.is_lossy: Callable[[Key], bool] = lambda key: False
        """May copies of a partition lack committed rows?"""
        self.version = -1
        self.fenced: dict[int, bytes] = {}
        """Incarnations of the brokers that are registered and fenced."""
        self._registered: dict[int, bytes] = {}
        self._partitions: dict[Key, _Recorded] = {}
        self._names: dict[Key, str] = {}
        self._elected_us: dict[tuple[Key, int], int] = {}
        self._ends: dict[tuple[int, int, Key, int], int] = {}

    # --- the metadata --------------------------------------------------------------------------
    def look_at_image(self, image: Any, now_us: int, committed_end: Callable[[Key], int]) -> None:
        """A node has applied this image."""
        if image.version <= self.version:
            return
        is_next = image.version == self.version + 1
        self.version = image.version
        brokers = image.brokers
        self._registered = {node: bytes(one.incarnation) for node, one in brokers.items()}
        fenced = {node for node, one in brokers.items() if one.fenced}
        newly_fenced = fenced - self.fenced.keys()
        self.fenced = {node: self._registered[node] for node in fenced}
        away = fenced | {node for node, one in brokers.items() if one.in_shutdown}
        before, self._partitions = self._partitions, {}
        for topic in image.topics.values():
            for one in topic.partitions:
                key = (topic.topic_id, one.partition)
                current = _Recorded(
                    one.in_sync_replicas,
                    one.eligible_leader_replicas,
                    one.replicas,
                    one.leader_id,
                    one.leader_epoch,
                )
                self._partitions[key] = current
                was = before.get(key)
                if current == was and not newly_fenced:
                    continue
                name = self._names.setdefault(key, f"{topic.name}-{one.partition}")
                self.check_fenced(name, current.in_sync, fenced)
                if current == was:
                    continue
                since_us = self._elected_us.setdefault((key, current.leader_epoch), now_us)
                if is_next and was is not None and self.is_patient:
                    self._check_patience(name, was, current, away, now_us - since_us)
                # The log reports an unclean election a moment after the metadata.
                began = was is not None and current.leader_epoch != was.leader_epoch
                is_alone = current.in_sync == (current.leader_id,)
                if not (began and is_alone and topic.config.unclean_leader_election):
                    self.look_at_rows(key, committed_end(key))

    @staticmethod
    def check_fenced(name: str, in_sync: tuple[int, ...], fenced: set[int]) -> None:
        """Rule 8."""
        if fenced & set(in_sync):
            raise Violation(f"{name}: in sync are {in_sync}, fenced {sorted(fenced)}")

    def _check_patience(
        self, name: str, was: _Recorded, current: _Recorded, away: set[int], led_us: int
    ) -> None:
        if (was.leader_epoch, was.leader_id, was.replicas) == (
            current.leader_epoch,
            current.leader_id,
            current.replicas,
        ):
            left = set(was.in_sync) - set(current.in_sync) - away
            self.check_patience(name, left & self._registered.keys(), led_us, self.lag_us)

    @staticmethod
    def check_patience(name: str, left: set[int], led_us: int, lag_us: int) -> None:
        """Rule 9. `left`: live replicas that were dropped, `led_us` after the election."""
        if left and led_us < lag_us:
            raise Violation(
                f"{name}: {sorted(left)} were dropped {led_us / 1e6:.3f} s after the election"
            )

    # --- rows ----------------------------------------------------------------------------------
    def look_at_rows(self, key: Key, committed_end: int) -> None:
        """Rule 7: the counted replicas have changed, or more rows may be read."""
        current = self._partitions.get(key)
        if current is None or self.is_lossy(key):
            return
        for node_id in (*current.in_sync, *current.eligible):
            host = self.hosts[node_id]
            if host.node is None or host.incarnation != self._registered.get(node_id):
                continue
            replica = host.node.broker.assignment.find(key)
            if replica is None or replica.cutting or replica.deleted:
                continue
            kind = "in sync" if node_id in current.in_sync else "eligible"
            self.check_rows(
                f"{self._names[key]} on {host.name}",
                kind,
                replica.log.log_end_offset,
                committed_end,
            )

    @staticmethod
    def check_rows(name: str, kind: str, log_end_offset: int, committed_end: int) -> None:
        """Rule 7, of one replica that counts."""
        if log_end_offset < committed_end:
            raise Violation(
                f"{name} is {kind} with rows up to {log_end_offset}, committed is {committed_end}"
            )

    def look_at_fenced(self, host: ClusterHost) -> None:
        """Rule 8: code of this node has run while it was fenced."""
        assert host.node is not None
        if host.incarnation != self.fenced[host.node_id]:
            return
        for replica in host.node.broker.replicas.values():
            leadership = replica.state.leadership
            if leadership is None or not leadership.followers or replica.deleted:
                continue
            key = (replica.topic.topic_id, replica.name.partition)
            end = replica.log.log_end_offset
            where = (host.node_id, host.life, key, leadership.leader_epoch)
            if end > self._ends.setdefault(where, end):
                raise Violation(f"{replica.name}: {host.name} is fenced, and takes rows at {end}")

    @staticmethod
    def look_at_producers(replica: Replica) -> None:
        """Rule 10, when a log was cut."""
        end = replica.log.log_end_offset
        for producer_id, one in replica.producers._producers.items():
            if any(base + count > end for _, count, base in one.batches):
                raise Violation(
                    f"{replica.name}: producer {producer_id} is remembered by {one.batches}, the"
                    f" log ends at {end}"
                )
        for key, runs in replica.producers.publishes.table.items():
            if runs[-1].end_offset > end:
                raise Violation(f"{replica.name}: publishes {key} of {runs}, the log ends at {end}")
