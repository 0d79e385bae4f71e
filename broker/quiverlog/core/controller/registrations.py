"""Registrations of brokers: who belongs to the cluster under which epoch, and who is fenced.

A broker registers at its start, heartbeats from then on, and is fenced when it is silent for a
session: it leads nothing and counts as a copy of nothing until it is heard again and has applied
the metadata up to its own registration, and its fencing. Each function reads the image (`pending`:
as it will be) and returns the records of one entry, or raises; none changes it.

```
 (unknown) ──registers──▶ fenced ──heard, metadata applied──▶ live ──wants to stop──▶ in shutdown
                            ▲ ▲ ◀──────── silent ──────────────┘                          │
                            │ └───── leads nothing, and all live brokers know it ◀────────┘
                            └── registers anew, from any state (the same incarnation: from
                                shutdown, which was asked for in its name and not by itself)
```

Invariants:
- A broker epoch names one life of one process: who was replaced can do nothing in its name.
- Who is registered and alive is not replaced by another data directory under its node id, nor by
  a process with the same one at other addresses: a copy of its disk. (One at the same address has
  taken it, so the one before has ended.)
- Who was fenced knows it before it is told that it has caught up: till then it may believe that it
  leads what others lead.
- Who lives and hears of decisions only sessions later is told that it has not caught up, and leads
  nothing soon; sooner, and fenced, where a caller waits for that (overdue.py).
- A change of `fenced` and what follows for partitions are one entry.

Must not know: logs, requests, the quorum.
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
    """What a broker says. `version`: of the metadata that it has applied."""

    node_id: int
    broker_epoch: int
    version: int
    wants_to_stop: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a broker is told, and the records that follow; `records` empty: nothing changes.

    `may_stop`: it leads nothing, and all live brokers know that.
    """

    records: list[Record]
    is_caught_up: bool
    is_fenced: bool
    may_stop: bool = False


class Registrations:
    """The decisions of one controller. `sessions` is what it remembers beside the image.

    Args:
        node_id, incarnation: of this node, which needs no session of its own while it decides.
    """

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
        # By node id, of those in shutdown: the version of the image in which that was first seen.
        self._stopping: dict[int, int] = {}
        # The same of those that were fenced after they had registered; None: nobody has asked yet.
        self._fenced: dict[int, int | None] = {}

    def begin(self, image: Image, now_us: int, heard_us: dict[int, int]) -> None:
        """This node decides from now on. `heard_us`: whom it has heard itself, and when."""
        others = [n for n, one in image.brokers.items() if n != self.node_id and not one.fenced]
        self.sessions.begin(others, now_us, heard_us)
        self._overdue.begin(image.version, now_us)
        self._stopping.clear()
        # In which entry that was is not in the image.
        self._fenced = {n: image.version for n, one in image.brokers.items() if one.fenced}

    def end(self) -> None:
        """Another node decides, or nobody."""
        self.sessions.end()
        self.awaited.clear()
        self._stopping.clear()
        self._fenced.clear()

    # --- registering ---------------------------------------------------------------------------
    def register(
        self, pending: Image, newcomer: BrokerRecord, clean_incarnation: bytes, now_us: int
    ) -> list[Record]:
        """Records of a registration; empty when it is the one that holds (a repeated request).

        A life that is held for stopping, and registers, does not stop: it begins again, and lacks
        nothing. (One that stops does not register.)

        Args:
            newcomer: as it registers, without an epoch.
            clean_incarnation: its earlier life, if that ended cleanly; empty otherwise.

        Raises:
            DuplicateNodeId: another process is registered under this node id, and alive.
            PolicyViolation: there are too many brokers.
            UnsupportedFeatureLevel: the broker does not support what is finalised.
        """
        assert newcomer.broker_epoch == UNKNOWN_BROKER_EPOCH
        assert newcomer.node_id >= 0
        before = pending.brokers.get(newcomer.node_id)
        if before is None and len(pending.brokers) >= BROKERS_MAX:
            raise PolicyViolation(f"there are {len(pending.brokers)} brokers, the most allowed.")
        self._check_unique(before, newcomer, now_us)
        check_supports(pending, newcomer)
        if newcomer.node_id != self.node_id:
            self.sessions.heard(newcomer.node_id, now_us)
        if before is None:
            self._begin_life(newcomer.node_id)
            return [_fenced(newcomer)]
        if _is_same(before, newcomer) and not before.in_shutdown:
            return []
        self._begin_life(newcomer.node_id)
        if before.directory_id not in ("", newcomer.directory_id):
            follows = elections.disk_lost(pending, newcomer.node_id)
        elif before.incarnation in (newcomer.incarnation, clean_incarnation):
            follows = elections.broker_fenced(pending, newcomer.node_id)
        else:
            follows = elections.broker_restarted_uncleanly(pending, newcomer.node_id)
        return [_fenced(newcomer, before), *follows]

    def _begin_life(self, node_id: int) -> None:
        """What is remembered of an earlier life is over."""
        self._stopping.pop(node_id, None)
        self._fenced.pop(node_id, None)

    def _check_unique(
        self, before: BrokerRecord | None, newcomer: BrokerRecord, now_us: int
    ) -> None:
        """Raises DuplicateNodeId."""
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
            return  # The life before has ended.
        else:
            which = "with the same data directory"
        raise DuplicateNodeId(
            f"node {before.node_id} is registered {which}, at {before.host}:{before.port}, and"
            " alive."
        )

    # --- heartbeats ----------------------------------------------------------------------------
    def heartbeat(self, image: Image, pending: Image, beat: Heartbeat, now_us: int) -> Verdict:
        """A broker is alive: what it is told, and what follows.

        Args:
            image: what holds; the broker is told of nothing else.

        Raises:
            StaleBrokerEpoch: it is not registered under this epoch, or about to be no more.
        """
        broker = self._registered_as(pending, beat.node_id, beat.broker_epoch)
        assert broker.broker_epoch == beat.broker_epoch, "no other life speaks in its name"
        if beat.node_id != self.node_id:
            self.sessions.heard(beat.node_id, now_us, beat.version)
        is_caught_up = beat.version >= self._must_know(image, broker)
        due = max(self._overdue.version(image.version, now_us), self.awaited.due(now_us))
        if beat.version < due and not broker.fenced:
            is_caught_up = False  # It may believe that it leads what others have led for long.
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
        """The version of the metadata with which a broker knows what became of it."""
        node_id = broker.node_id
        held = image.brokers.get(node_id)
        assert broker.broker_epoch >= 0
        if not broker.fenced or node_id not in self._fenced:
            return broker.broker_epoch
        if held is None or held.broker_epoch != broker.broker_epoch or not held.fenced:
            return image.version + 1  # Its fencing is about to be decided.
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
        """The broker leads nothing, and whoever is alive has heard so.

        It has heard so itself, too: by older metadata it would go on taking rows that nobody has.
        """
        for one in image.live_brokers():
            decides = one.node_id == self.node_id
            if not decides and self.sessions.version_of(one.node_id) < since:
                return False
        return not any(
            partition.leader_id == node_id
            for topic in image.topics.values()
            for partition in topic.partitions
        )

    # --- silence -------------------------------------------------------------------------------
    def silent(self, image: Image, pending: Image, now_us: int) -> list[Record]:
        """The records that fence one broker that has been silent; empty when there is none."""
        for node_id in self.sessions.silent(now_us):
            broker, held = pending.brokers.get(node_id), image.brokers.get(node_id)
            if broker is not None and (
                broker.broker_epoch == UNKNOWN_BROKER_EPOCH
                or (not broker.fenced and (held is None or held.fenced))
            ):
                self.sessions.heard(node_id, now_us)  # It is registered, or unfenced, just now.
                continue
            self.sessions.forget(node_id)
            assert broker is None or broker.node_id == node_id
            if broker is not None and not broker.fenced:
                assert node_id != self.node_id, "who decides is alive"
                return self._fence(pending, broker)
        return []

    def applied_everywhere(self, image: Image) -> int:
        """The newest version that all live brokers have applied, as far as they have said."""
        versions = [
            self.sessions.version_of(one.node_id)
            for one in image.live_brokers()
            if one.node_id != self.node_id
        ]
        version = min(versions, default=image.version)
        self.awaited.reached(version)
        return version

    def lagging(self, image: Image, pending: Image, now_us: int) -> list[Record]:
        """The records that fence one broker which lives and lacks what is awaited for long."""
        late = self.awaited.late(now_us)
        for held in image.live_brokers():
            broker = pending.brokers.get(held.node_id)
            if held.node_id == self.node_id or broker is None or broker.fenced:
                continue
            if self.sessions.version_of(held.node_id) < late:
                assert broker.broker_epoch == held.broker_epoch, "another life begins fenced"
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
    """Where others reach a broker."""
    return {(broker.host, broker.port), *((host, port) for _, host, port in broker.listeners)}


def _fenced(newcomer: BrokerRecord, before: BrokerRecord | None = None) -> BrokerRecord:
    """Until it has applied the metadata up to here, it can be nobody's leader.

    That it is to leave the cluster outlives its restarts.
    """
    assert newcomer.broker_epoch == UNKNOWN_BROKER_EPOCH
    leaves = before is not None and before.decommissioning
    return replace(newcomer, fenced=True, in_shutdown=False, decommissioning=leaves)


def _is_same(before: BrokerRecord, newcomer: BrokerRecord) -> bool:
    """The same life of the same process, at the same addresses."""
    return before.incarnation == newcomer.incarnation and before == replace(
        newcomer,
        broker_epoch=before.broker_epoch,
        fenced=before.fenced,
        in_shutdown=before.in_shutdown,
        wants_vote=before.wants_vote,
        decommissioning=before.decommissioning,
    )
