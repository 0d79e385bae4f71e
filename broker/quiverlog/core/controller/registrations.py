"""Registrations of brokers: broker epochs, heartbeats, fencing, controlled shutdown (KIP-631).

Functions read the image (`pending`: with decisions not committed yet) and return records, or raise.

```
 (unknown) ──registers──▶ fenced ──heartbeat, metadata applied──▶ live ──wants to stop──▶ stopping
                            ▲ ▲ ◀──────── silent for a session ──────────┘                    │
                            │ └──── leads nothing, and all live brokers applied that ◀────────┘
                            └── registers again, from any state
```

Invariants: a broker epoch names one start of one process. A change of `fenced` comes with what
follows for partitions, in one entry unless that is too large (`in_entries`).
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from quiverlog.core.controller import elections
from quiverlog.core.controller.features import check_supports
from quiverlog.core.controller.image import Image
from quiverlog.core.controller.overdue import Awaited, Overdue
from quiverlog.core.controller.records import (
    UNKNOWN_BROKER_EPOCH,
    BrokerChangeRecord,
    BrokerRecord,
    Record,
)
from quiverlog.core.controller.sessions import Sessions
from quiverlog.errors import DuplicateNodeId, PolicyViolation, StaleBrokerEpoch
from quiverlog.limits import BROKERS_MAX

__all__ = ["Heartbeat", "Registrations", "Verdict"]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """`version`: the metadata it has applied."""

    node_id: int
    broker_epoch: int
    version: int
    wants_to_stop: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """`may_stop`: it is fenced, or leads nothing and all live brokers have applied that."""

    records: list[Record]
    is_caught_up: bool
    is_fenced: bool
    may_stop: bool = False


class Registrations:
    """The decisions of one controller about brokers; its own node needs no session."""

    __slots__ = (
        "_fenced", "_overdue", "_stopping", "awaited", "incarnation", "node_id", "sessions",
    )  # fmt: skip

    def __init__(self, node_id: int, incarnation: bytes, session_us: int) -> None:
        assert incarnation
        self.node_id = node_id
        self.incarnation = incarnation
        self.sessions = Sessions(session_us)
        self._overdue = Overdue(session_us)
        self.awaited = Awaited(session_us)
        # Stopping brokers by node id, with the version of the image in which that was first seen.
        self._stopping: dict[int, int] = {}
        # The same of those that were fenced after they had registered; None: no heartbeat yet.
        self._fenced: dict[int, int | None] = {}

    def begin(self, image: Image, now_us: int, last_contact_us: dict[int, int]) -> None:
        """Start as the controller. `last_contact_us`: this node's last contact with each broker,
        as a leader or follower of the quorum."""
        others = [n for n, one in image.brokers.items() if n != self.node_id and not one.fenced]
        self.sessions.begin(others, now_us, last_contact_us)
        self._overdue.begin(image.version, now_us)
        self._stopping.clear()
        # The image does not hold the entry of each fencing: the present version is late enough.
        self._fenced = {n: image.version for n, one in image.brokers.items() if one.fenced}

    def end(self) -> None:
        self.sessions.end()
        self.awaited.clear()
        self._stopping.clear()
        self._fenced.clear()

    # --- registering ---------------------------------------------------------------------------
    def register(
        self, pending: Image, newcomer: BrokerRecord, clean_incarnation: bytes, now_us: int
    ) -> list[Record]:
        """Register a broker. `clean_incarnation`: its earlier one, if that stopped cleanly."""
        self.check(pending, newcomer, now_us)
        before = pending.brokers.get(newcomer.node_id)
        if newcomer.node_id != self.node_id:
            self.sessions.renew(newcomer.node_id, now_us)
        if before is None:
            self._begin_life(newcomer.node_id)
            return [_fenced(newcomer)]
        if _is_same(before, newcomer) and not before.in_shutdown:
            return []
        self._begin_life(newcomer.node_id)
        if before.directory_id not in ("", newcomer.directory_id):
            follows = elections.disk_lost(pending, newcomer.node_id)
        # The same start, which was about to stop and does not, or one after a clean stop: both lack
        # no rows.
        elif before.incarnation in (newcomer.incarnation, clean_incarnation):
            follows = elections.broker_fenced(pending, newcomer.node_id)
        else:
            follows = elections.broker_restarted_uncleanly(pending, newcomer.node_id)
        return [_fenced(newcomer, before), *follows]

    def check(self, pending: Image, newcomer: BrokerRecord, now_us: int) -> None:
        """Raises DuplicateNodeId, PolicyViolation, UnsupportedFeatureLevel."""
        assert newcomer.broker_epoch == UNKNOWN_BROKER_EPOCH
        assert newcomer.node_id >= 0
        before = pending.brokers.get(newcomer.node_id)
        if before is None and len(pending.brokers) >= BROKERS_MAX:
            raise PolicyViolation(f"there are {len(pending.brokers)} brokers, the most allowed.")
        self._check_unique(before, newcomer, now_us)
        check_supports(pending, newcomer)

    def _begin_life(self, node_id: int) -> None:
        self._stopping.pop(node_id, None)
        self._fenced.pop(node_id, None)

    def _check_unique(
        self, before: BrokerRecord | None, newcomer: BrokerRecord, now_us: int
    ) -> None:
        """Raise DuplicateNodeId where another live process has the node id: one with another data
        directory, or with the same one at other addresses, a copy of its disk."""
        assert before is None or before.node_id == newcomer.node_id
        is_own = newcomer.incarnation == self.incarnation
        if newcomer.node_id == self.node_id and not is_own:
            raise DuplicateNodeId(f"node {self.node_id} is the controller, and alive.")
        if before is None or is_own or before.incarnation == newcomer.incarnation:
            return
        if not self.sessions.is_alive(before.node_id, now_us):
            return
        if before.directory_id not in ("", newcomer.directory_id):
            which = "with another data directory"
        elif (before.fenced and before.in_shutdown) or _addresses(before) & _addresses(newcomer):
            return  # At the same address, the earlier process has ended.
        else:
            which = "with the same data directory"
        raise DuplicateNodeId(
            f"node {before.node_id} is registered {which}, at {before.host}:{before.port}, and"
            " alive."
        )

    # --- heartbeats ----------------------------------------------------------------------------
    def heartbeat(self, image: Image, pending: Image, beat: Heartbeat, now_us: int) -> Verdict:
        """Record a heartbeat; return the answer, by committed metadata (`image`), and what
        follows."""
        broker = self._registered_as(pending, beat.node_id, beat.broker_epoch)
        assert broker.broker_epoch == beat.broker_epoch, "no other life speaks in its name"
        if beat.node_id != self.node_id:
            self.sessions.renew(beat.node_id, now_us, beat.version)
        is_caught_up = beat.version >= self._must_know(image, broker)
        due = max(self._overdue.version(image.version, now_us), self.awaited.due(now_us))
        if beat.version < due and not broker.fenced:
            # It may still believe that it leads partitions that others have led for long.
            is_caught_up = False
        if beat.wants_to_stop:
            return self._stop(image, pending, broker, is_caught_up)
        records: list[Record] = []
        if broker.fenced and not broker.in_shutdown and is_caught_up:
            records = [
                BrokerChangeRecord(broker.node_id, broker.broker_epoch, fenced=False),
                *elections.broker_unfenced(pending, broker.node_id),
            ]
        held = image.brokers.get(broker.node_id)
        is_fenced = held is None or held.broker_epoch != broker.broker_epoch or held.fenced
        return Verdict(records, is_caught_up, is_fenced)

    def _must_know(self, image: Image, broker: BrokerRecord) -> int:
        """Return the version with which a broker has its own registration and fencing."""
        node_id = broker.node_id
        held = image.brokers.get(node_id)
        assert broker.broker_epoch >= 0
        # With an older one it may believe that it still leads.
        if not broker.fenced or node_id not in self._fenced:
            return broker.broker_epoch
        if held is None or held.broker_epoch != broker.broker_epoch or not held.fenced:
            return image.version + 1  # Its fencing is not committed yet.
        since = self._fenced[node_id]
        if since is None:
            since = self._fenced[node_id] = image.version
        return max(since, broker.broker_epoch)

    def _registered_as(self, pending: Image, node_id: int, broker_epoch: int) -> BrokerRecord:
        broker = pending.brokers.get(node_id)
        if broker is None or broker_epoch < 0 or broker.broker_epoch != broker_epoch:
            raise StaleBrokerEpoch(f"node {node_id} is not registered under epoch {broker_epoch}.")
        return broker

    def _stop(
        self, image: Image, pending: Image, broker: BrokerRecord, is_caught_up: bool
    ) -> Verdict:
        node_id, broker_epoch = broker.node_id, broker.broker_epoch
        held = image.brokers.get(node_id)
        assert held is not None, "its registration was decided before it knew its epoch"
        if broker.fenced:
            return Verdict([], is_caught_up, held.fenced, may_stop=held.fenced)
        if not broker.in_shutdown:
            change = BrokerChangeRecord(node_id, broker_epoch, in_shutdown=True)
            follows = elections.broker_shutting_down(pending, node_id)
            return Verdict([change, *follows], is_caught_up, held.fenced)
        if not held.in_shutdown:
            return Verdict([], is_caught_up, held.fenced)
        since = self._stopping.setdefault(node_id, image.version)
        assert since <= image.version, "it was seen in an image of before"
        if not self._may_stop(image, node_id, since):
            return Verdict([], is_caught_up, held.fenced)
        return Verdict(self._fence(pending, broker), is_caught_up, held.fenced, may_stop=True)

    def _may_stop(self, image: Image, node_id: int, since: int) -> bool:
        """Return whether the broker leads nothing, and all live brokers have applied that."""
        # Itself included: with older metadata it would go on accepting rows that no other has.
        for one in image.live_brokers():
            is_controller = one.node_id == self.node_id
            if not is_controller and self.sessions.version_of(one.node_id) < since:
                return False
        return not any(
            partition.leader_id == node_id
            for topic in image.topics.values()
            for partition in topic.partitions
        )

    # --- silence -------------------------------------------------------------------------------
    def silent(self, image: Image, pending: Image, now_us: int) -> list[Record]:
        for node_id in self.sessions.silent(now_us):
            broker, held = pending.brokers.get(node_id), image.brokers.get(node_id)
            if broker is not None and (
                broker.broker_epoch == UNKNOWN_BROKER_EPOCH
                or (not broker.fenced and (held is None or held.fenced))
            ):
                # Its registration or unfencing is not committed yet.
                self.sessions.renew(node_id, now_us)
                continue
            self.sessions.remove(node_id)
            assert broker is None or broker.node_id == node_id
            if broker is not None and not broker.fenced:
                assert node_id != self.node_id, "the controller is alive"
                return self._fence(pending, broker)
        return []

    def applied_everywhere(self, image: Image) -> int:
        versions = [
            self.sessions.version_of(one.node_id)
            for one in image.live_brokers()
            if one.node_id != self.node_id
        ]
        version = min(versions, default=image.version)
        self.awaited.reached(version)
        return version

    def lagging(self, image: Image, pending: Image, now_us: int) -> list[Record]:
        late = self.awaited.late(now_us)
        for held in image.live_brokers():
            broker = pending.brokers.get(held.node_id)
            if held.node_id == self.node_id or broker is None or broker.fenced:
                continue
            if self.sessions.version_of(held.node_id) < late:
                assert broker.broker_epoch == held.broker_epoch, "a new registration begins fenced"
                return self._fence(pending, broker)
        return []

    def _fence(self, pending: Image, broker: BrokerRecord) -> list[Record]:
        assert not broker.fenced
        assert broker.broker_epoch != UNKNOWN_BROKER_EPOCH
        self._fenced[broker.node_id] = None
        return [
            BrokerChangeRecord(broker.node_id, broker.broker_epoch, fenced=True),
            *elections.broker_fenced(pending, broker.node_id),
        ]


def _addresses(broker: BrokerRecord) -> set[tuple[str, int]]:
    return {(broker.host, broker.port), *((host, port) for _, host, port in broker.listeners)}


def _fenced(newcomer: BrokerRecord, before: BrokerRecord | None = None) -> BrokerRecord:
    """Return the registration as fenced, until the broker has applied the metadata up to it."""
    assert newcomer.broker_epoch == UNKNOWN_BROKER_EPOCH
    # Decommissioning outlives restarts.
    leaves = before is not None and before.decommissioning
    return replace(newcomer, fenced=True, in_shutdown=False, decommissioning=leaves)


def _is_same(before: BrokerRecord, newcomer: BrokerRecord) -> bool:
    return before.incarnation == newcomer.incarnation and before == replace(
        newcomer,
        broker_epoch=before.broker_epoch,
        fenced=before.fenced,
        in_shutdown=before.in_shutdown,
        wants_vote=before.wants_vote,
        decommissioning=before.decommissioning,
    )
