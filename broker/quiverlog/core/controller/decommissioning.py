"""Brokers that leave the cluster for good: begin, cancel, unregister.

    member ──begin──▶ decommissioning ──holds nothing, no vote, fenced: unregister──▶ (unknown)
                       │         ▲
       member ◀──cancel┘         └── keeps this when it registers again (registrations.py)

A broker that is being decommissioned gets no new partitions, no moves and no vote. The caller moves
its partitions away with REASSIGN_PARTITIONS; until then it leads and copies. A dead broker that
holds nothing is unregistered without this.
"""

from __future__ import annotations

from collections.abc import Collection

from quiverlog.core.controller.image import Image
from quiverlog.core.controller.records import (
    UNKNOWN_BROKER_EPOCH,
    BrokerChangeRecord,
    BrokerRecord,
    Record,
    UnregisterBrokerRecord,
)
from quiverlog.errors import (
    BrokerAlive,
    BrokerInUse,
    InvalidVoterChange,
    ThrottledBroker,
    TooFewBrokers,
    UnknownBroker,
)

__all__ = ["begin", "cancel", "unregister"]


def begin(image: Image, node_id: int, voters: Collection[int]) -> list[Record]:
    """Raises UnknownBroker; ThrottledBroker: its registration is not committed yet;
    InvalidVoterChange: no other broker has a vote; TooFewBrokers: the remaining ones are fewer than
    the replicas of one of its partitions."""
    broker = _found(image, node_id)
    if broker.decommissioning:
        return []
    if node_id in voters and len(voters) == 1:
        raise InvalidVoterChange(
            f"broker {node_id} is the last controller: give another broker a vote first, with"
            " `quiverlog quorum add`."
        )
    staying = [
        one
        for one in image.brokers.values()
        if one.node_id != node_id and one.takes_partitions and not one.decommissioning
    ]
    assert len(staying) < len(image.brokers), "it does not stay itself"
    _check_room(image, node_id, len(staying))
    return [BrokerChangeRecord(node_id, broker.broker_epoch, decommissioning=True)]


def cancel(image: Image, node_id: int) -> list[Record]:
    broker = _found(image, node_id)
    if not broker.decommissioning:
        return []
    return [BrokerChangeRecord(node_id, broker.broker_epoch, decommissioning=False)]


def unregister(image: Image, node_id: int, voters: Collection[int]) -> list[Record]:
    """Raises UnknownBroker; ThrottledBroker: its registration is not committed yet; BrokerAlive: it
    is not fenced; BrokerInUse: it holds replicas, or has a vote."""
    broker = _found(image, node_id)
    if not broker.fenced:
        raise BrokerAlive(f"broker {node_id}, at {broker.host}:{broker.port}, is alive.")
    count = image.replica_counts[node_id]
    assert count >= 0
    if count:
        holds = f"{count} partition{'s' * (count != 1)}"
        raise BrokerInUse(f"broker {node_id} holds replicas of {holds}.")
    if node_id in voters:
        raise BrokerInUse(f"broker {node_id} is a voter of the metadata quorum.")
    return [UnregisterBrokerRecord(node_id, broker.broker_epoch)]


def _found(image: Image, node_id: int) -> BrokerRecord:
    broker = image.brokers.get(node_id)
    if broker is None:
        known = ", ".join(map(str, sorted(image.brokers)))
        raise UnknownBroker(f"there is no broker {node_id}; there are: {known}.")
    # The change names the broker epoch: the version of an entry that is not committed yet.
    if broker.broker_epoch == UNKNOWN_BROKER_EPOCH:
        raise ThrottledBroker(f"the registration of broker {node_id} is not committed yet.")
    assert broker.node_id == node_id
    return broker


def _check_room(image: Image, node_id: int, staying: int) -> None:
    assert staying >= 0
    if not image.replica_counts[node_id]:
        return
    for topic in image.topics.values():
        for partition in topic.partitions:
            # Replicas that a move removes need no room.
            wanted = len(set(partition.replicas) - set(partition.removing_replicas))
            if node_id in partition.replicas and wanted > staying:
                raise TooFewBrokers(
                    f"{topic.name}-{partition.partition} has {wanted} replicas, and without broker"
                    f" {node_id} there are {staying} brokers to hold them."
                )
