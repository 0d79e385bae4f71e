"""How `quiverlog cluster describe` shows a cluster: as JSON for scripts, as tables for people.

Owns what is said to who looks at a cluster that is not as it should be: what to do about it.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from quiverlog.cli.output import print_fields, print_table

if TYPE_CHECKING:
    from quiverlog.client.results import BrokerDetail, ClusterDetail, QuorumReplicaDetail

__all__ = ["advice", "cluster_json", "print_cluster"]


def cluster_json(found: ClusterDetail) -> dict[str, object]:
    """All of it, for scripts."""
    return {**asdict(found), "advice": advice(found)}


def print_cluster(found: ClusterDetail) -> None:
    """As tables, for people."""
    controller = "nobody" if found.controller is None else f"broker {found.controller}"
    print_fields(
        {
            "cluster": found.cluster_id,
            "controller": f"{controller}, epoch {found.controller_epoch}",
            "metadata version": found.metadata_version,
            "as known to": f"broker {found.told_by}",
            "topics": found.topics,
            "partitions": found.partitions,
            "under-replicated": found.under_replicated,
            "below min.insync": found.under_min_in_sync,
            "without a leader": found.offline,
        }
    )
    print("\nbrokers")
    print_table(
        ["NODE", "ENDPOINT", "RACK", "STATE", "EPOCH", "LEADS", "HOLDS"],
        [
            (
                one.node_id,
                f"{one.host}:{one.port}",
                one.rack,
                _state(one),
                one.broker_epoch,
                one.leaders,
                one.replicas,
            )
            for one in found.brokers
        ],
        right=["NODE", "EPOCH", "LEADS", "HOLDS"],
    )
    print("\nquorum of the metadata")
    print_table(
        ["NODE", "ROLE", "DIRECTORY", "ENDPOINT", "LAST", "LAG", "SILENT"],
        [
            (
                one.node_id,
                _role(found, one),
                one.directory_id,
                one.endpoint,
                one.last_index,
                one.lag,
                None if one.silent_s is None else f"{one.silent_s:.1f} s",
            )
            for one in found.quorum
        ],
        right=["NODE", "LAST", "LAG", "SILENT"],
    )
    said = advice(found)
    if said:
        print()
    for line in said:
        print(line)


def _state(broker: BrokerDetail) -> str:
    if broker.fenced:
        return "fenced"
    return "stopping" if broker.in_shutdown else "live"


def _role(found: ClusterDetail, one: QuorumReplicaDetail) -> str:
    if not one.is_voter:
        return "observer"
    return "leader" if one.node_id == found.controller else "voter"


def advice(found: ClusterDetail) -> list[str]:
    """What is not as it should be, and what to do about it; a line each."""
    said: list[str] = []
    voters = found.voters
    majority = len(voters) // 2 + 1
    if found.controller is None:
        said.append(
            f"Nobody decides: {majority} of the {len(voters)} voters have to run and to reach each "
            "other. Start those that do not."
        )
    elif found.told_by != found.controller:
        said.append(
            f"Broker {found.controller} decides and did not answer: how far the voters have come "
            "is known there. If it stays away, the others elect another within two seconds."
        )
    if len(voters) == 2:
        said.append("Two voters: the loss of either stops all decisions. Start a third broker.")
    fenced = [str(one.node_id) for one in found.brokers if one.fenced]
    if fenced:
        said.append(
            f"Fenced: {', '.join(fenced)}. They do not run or do not reach the controller; "
            "the log of each says why."
        )
    if found.offline:
        said.append(
            "Partitions without a leader: start the brokers that hold them "
            "(quiverlog topic describe), or give up rows with quiverlog topic elect --unclean."
        )
    elif found.under_min_in_sync:
        said.append(
            "Partitions below min.insync.replicas take no replicated rows until more of their "
            "brokers run."
        )
    return said
