"""How `quiverlog cluster describe`, `status` and `brokers` show a cluster: JSON and tables.

Must not know what is healthy (cluster_health.py).
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from quiverlog.cli.cluster_health import (
    Finding,
    fewer_replicas,
    findings,
    is_healthy,
    replicas_possible,
    spare_voters,
)
from quiverlog.cli.output import print_fields, print_table

if TYPE_CHECKING:
    from quiverlog.client.results import (
        BrokerDetail,
        ClusterDetail,
        QuorumReplicaDetail,
        TopicInfo,
    )

__all__ = [
    "brokers_json",
    "cluster_json",
    "print_brokers",
    "print_cluster",
    "print_status",
    "status_json",
]


def cluster_json(found: ClusterDetail) -> dict[str, object]:
    """All of it, for scripts."""
    return {**asdict(found), "advice": [one.text for one in findings(found)]}


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
            "moving": found.moving,
        }
    )
    print("\nbrokers")
    print_brokers(found)
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
    said = findings(found)
    if said:
        print()
    for one in said:
        print(one.text)


def _state(broker: BrokerDetail) -> str:
    state = "fenced" if broker.fenced else "stopping" if broker.in_shutdown else "live"
    if broker.disk_full and not broker.fenced:
        state += ", disk full"
    return f"{state}, leaving" if broker.decommissioning else state


def _role(found: ClusterDetail, one: QuorumReplicaDetail) -> str:
    if not one.is_voter:
        return "observer"
    return "leader" if one.node_id == found.controller else "voter"


# --- status -------------------------------------------------------------------------------------
def status_findings(found: ClusterDetail, few: list[TopicInfo]) -> list[Finding]:
    """What is not as it should be, and which topics have fewer replicas than they could."""
    said = findings(found)
    if few:
        text, command = fewer_replicas(found, few)
        said.append(Finding(f"{text} To raise the first: {command}", is_warning=True))
    return said


def status_json(found: ClusterDetail, few: list[TopicInfo]) -> dict[str, object]:
    """Whether all is well, and why not."""
    return {
        "cluster_id": found.cluster_id,
        "is_healthy": is_healthy(found),
        "controller": found.controller,
        "brokers": len(found.brokers),
        "live": len(_live(found)),
        "voters": len(found.voters),
        "topics": found.topics,
        "partitions": found.partitions,
        "under_replicated": found.under_replicated,
        "under_min_in_sync": found.under_min_in_sync,
        "offline": found.offline,
        "moving": found.moving,
        "replicas_possible": replicas_possible(found),
        "topics_with_fewer_replicas": [{"name": one.name, "replicas": one.replicas} for one in few],
        "findings": [
            {"severity": "warning" if one.is_warning else "problem", "text": one.text}
            for one in status_findings(found, few)
        ],
    }


def print_status(found: ClusterDetail, few: list[TopicInfo]) -> None:
    """One screen: is it healthy, and what to do next."""
    decides = "nobody decides" if found.controller is None else f"broker {found.controller} decides"
    voters = f"{len(found.voters)} voter{'s' * (len(found.voters) != 1)}"
    partitions = f"{found.partitions:,} in {found.topics:,} topic{'s' * (found.topics != 1)}"
    not_well = {
        "copies out of sync": sum(one.out_of_sync for one in found.brokers),
        "below min.insync.replicas": found.under_min_in_sync,
        "without a leader": found.offline,
        "moving": found.moving,
    }
    counted = [f"{count:,} {what}" for what, count in not_well.items() if count]
    print_fields(
        {
            "cluster": found.cluster_id,
            "healthy": is_healthy(found),
            "brokers": f"{len(_live(found))} of {len(found.brokers)} live",
            "quorum": f"{voters}, {decides}, {spare_voters(found)} may be lost",
            "partitions": ", ".join([partitions, *(counted or ["all in sync"])]),
        }
    )
    said = status_findings(found, few)
    print("\nWhat to do:" if said else "\nNothing to do.")
    for one in said:
        print(f"- {one.text}")


def _live(found: ClusterDetail) -> list[BrokerDetail]:
    return [one for one in found.brokers if not one.fenced]


# --- brokers ------------------------------------------------------------------------------------
def brokers_json(found: ClusterDetail) -> list[dict[str, object]]:
    """A document for each broker."""
    voters = {one.node_id for one in found.voters}
    return [
        {
            **asdict(one),
            "state": _state(one),
            "is_voter": one.node_id in voters,
            "is_controller": one.node_id == found.controller,
        }
        for one in found.brokers
    ]


def print_brokers(found: ClusterDetail) -> None:
    """A line for each broker."""
    voters = {one.node_id for one in found.voters}
    heads = ["NODE", "ENDPOINT", "RACK", "STATE", "QUORUM", "LEADS", "HOLDS", "OUT OF SYNC"]
    heads += ["MOVING", "METADATA LAG"]
    print_table(
        heads,
        [
            (
                one.node_id,
                f"{one.host}:{one.port}",
                one.rack,
                _state(one),
                "controller"
                if one.node_id == found.controller
                else "voter"
                if one.node_id in voters
                else "observer",
                one.leaders,
                one.replicas,
                one.out_of_sync,
                one.moving,
                one.metadata_lag,
            )
            for one in found.brokers
        ],
        right=["NODE", "LEADS", "HOLDS", "OUT OF SYNC", "MOVING", "METADATA LAG"],
    )
