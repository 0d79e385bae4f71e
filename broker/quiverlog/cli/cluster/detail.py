"""The output of `quiverlog cluster describe`, `status` and `brokers`: JSON and tables."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from quiverlog.cli.console.cluster_health import (
    Finding,
    as_known,
    fewer_replicas,
    findings,
    is_healthy,
    not_raised,
    replicas_possible,
    spare_voters,
)
from quiverlog.cli.console.output import human_bytes, print_fields, print_table

if TYPE_CHECKING:
    from quiverlog.cli.console.probes import Seen
    from quiverlog.client.base.results import BrokerDetail, ClusterDetail, QuorumReplicaDetail

__all__ = [
    "broker_rows",
    "brokers_json",
    "cluster_json",
    "knowledge_json",
    "print_brokers",
    "print_cluster",
    "print_status",
    "status_fields",
    "status_findings",
    "status_json",
]


_NUMBERS: Final = (
    *("NODE", "LEADS", "HOLDS", "OUT OF SYNC", "MOVING", "METADATA LAG"),
    *("FREE", "LOAD", "IN/S", "OUT/S"),
)
_OWN: Final = ("room_bytes", "load", "received_bytes_per_s", "sent_bytes_per_s")


def cluster_json(seen: Seen) -> dict[str, object]:
    found_here = findings(seen.found, seen.probes)
    return {
        **asdict(seen.found),
        **knowledge_json(seen),
        "advice": [one.text for one in found_here],
    }


def print_cluster(seen: Seen) -> None:
    found = seen.found
    controller = "none" if found.controller is None else f"broker {found.controller}"
    print_fields(
        {
            "cluster": found.cluster_id,
            "controller": f"{controller}, epoch {found.controller_epoch}",
            "metadata version": found.metadata_version,
            "as known to": as_known(found),
            "topics": found.topics,
            "partitions": found.partitions,
            "under-replicated": found.under_replicated,
            "below min.insync": found.under_min_in_sync,
            "without a leader": found.offline,
            "moving": found.moving,
        }
    )
    print("\nbrokers")
    print_brokers(seen)
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
    found_here = findings(found, seen.probes)
    if found_here:
        print()
    for one in found_here:
        print(one.text)


def _state(seen: Seen, broker: BrokerDetail) -> str:
    if not seen.found.is_current:
        # The figures may be older than the broker's present state.
        was = "fenced" if broker.fenced else "stopping" if broker.in_shutdown else "live"
        return f"unknown, was {was}"
    state = "fenced" if broker.fenced else "stopping" if broker.in_shutdown else "live"
    if broker.disk_full and not broker.fenced:
        state += ", disk full"
    if broker.faulted and not broker.fenced:
        state += ", writes failed"
    return f"{state}, leaving" if broker.decommissioning else state


def _role(found: ClusterDetail, one: QuorumReplicaDetail) -> str:
    if not one.is_voter:
        return "observer"
    return "leader" if one.node_id == found.controller else "voter"


def status_findings(seen: Seen) -> list[Finding]:
    found_here = findings(seen.found, seen.probes)
    if seen.few:
        text = " ".join(fewer_replicas(seen.as_probed, seen.few))
        found_here.append(Finding(text, is_warning=True))
    if seen.not_raised:
        text = " ".join(not_raised(seen.found, seen.not_raised))
        found_here.append(Finding(text, is_warning=True))
    found_here += [Finding(" ".join(one), is_warning=True) for one in seen.staging]
    return found_here


def knowledge_json(seen: Seen) -> dict[str, object]:
    return {
        "reported_by": seen.found.reported_by,
        "is_behind": seen.found.is_behind,
        "is_current": seen.found.is_current,
        "age_s": seen.found.age_s,
        "answering": sorted(seen.answering),
        "addresses": [
            {
                "address": one.address,
                "answers": one.answers,
                "node_id": one.node_id,
                "failure": one.failure,
            }
            for one in seen.probes
        ],
    }


def status_json(seen: Seen) -> dict[str, object]:
    found = seen.found
    known = found.is_current  # Without the controller's answer, figures that only it has are null.
    return {
        "cluster_id": found.cluster_id,
        "is_healthy": is_healthy(found, seen.probes),
        "controller": found.controller,
        **knowledge_json(seen),
        "brokers": len(found.brokers),
        "live": len(_live(seen.as_probed)) if known else None,
        "voters": len(found.voters),
        "voters_to_spare": spare_voters(seen.as_probed) if known else None,
        "topics": found.topics,
        "partitions": found.partitions,
        "under_replicated": found.under_replicated,
        "under_min_in_sync": found.under_min_in_sync,
        "offline": found.offline,
        "moving": found.moving,
        "replicas_possible": replicas_possible(found),
        "topics_with_fewer_replicas": [
            {"name": one.name, "replicas": one.replicas} for one in seen.few
        ],
        "findings": [
            {"severity": "warning" if one.is_warning else "problem", "text": one.text}
            for one in status_findings(seen)
        ],
    }


def status_fields(seen: Seen) -> dict[str, object]:
    found = seen.found
    return {
        "cluster": found.cluster_id,
        "as known to": as_known(found),
        "healthy": is_healthy(found, seen.probes),
        "brokers": _brokers_line(seen),
        "quorum": _quorum_line(seen),
        "partitions": _partitions_line(seen),
    }


def print_status(seen: Seen) -> None:
    print_fields(status_fields(seen))
    found_here = status_findings(seen)
    print("\nWhat to do:" if found_here else "\nNothing to do.")
    for one in found_here:
        print(f"- {one.text}")


def _brokers_line(seen: Seen) -> str:
    count, answer = len(seen.found.brokers), len(seen.answering)
    if seen.found.is_current:
        live = f"{len(_live(seen.as_probed))} of {count} live"
        return live if answer == count else f"{live}, {answer} answer this machine"
    return f"{answer} of {count} answer this machine"


def _quorum_line(seen: Seen) -> str:
    found = seen.found
    voters = f"{len(found.voters)} voter{'s' * (len(found.voters) != 1)}"
    if found.is_current:
        spare = spare_voters(seen.as_probed)
        return f"{voters}, {spare} may be lost, broker {found.controller} is the controller"
    answering = seen.answering & {one.node_id for one in found.voters}
    needed = len(found.voters) // 2 + 1
    controller = "no controller is known"
    if found.controller is not None:
        controller = f"broker {found.controller} was the controller"
    return f"{voters}, {controller}; {len(answering)} answer this machine, {needed} are needed"


def _partitions_line(seen: Seen) -> str:
    found = seen.found
    partitions = f"{found.partitions:,} in {found.topics:,} topic{'s' * (found.topics != 1)}"
    not_well = {
        "copies out of sync": sum(one.out_of_sync for one in found.brokers),
        "below min.insync.replicas": found.under_min_in_sync,
        "without a leader": found.offline,
        "moving": found.moving,
    }
    if found.is_current:
        known = {one.node_id for one in _live(seen.as_probed)}
        unreached = sum(one.replicas for one in _live(found) if one.node_id not in known)
        not_well["copies on brokers that do not answer this machine"] = unreached
    counted = [f"{count:,} {what}" for what, count in not_well.items() if count]
    if found.is_current:
        return ", ".join([partitions, *(counted or ["all in sync"])])
    return ", ".join([partitions, *(f"then {one}" for one in counted), "how they are now: unknown"])


def _live(found: ClusterDetail) -> list[BrokerDetail]:
    return [one for one in found.brokers if not one.fenced]


def brokers_json(seen: Seen) -> list[dict[str, object]]:
    found, answer = seen.found, seen.answering
    own = _own_figures(seen)
    voters = {one.node_id for one in found.voters}
    return [
        {
            **asdict(one),
            "state": _state(seen, one),
            "answers": one.node_id in answer,
            "is_voter": one.node_id in voters,
            "is_controller": one.node_id == found.controller,
            **{name: getattr(own.get(one.node_id), name, None) for name in _OWN},
        }
        for one in found.brokers
    ]


def print_brokers(seen: Seen) -> None:
    print_table(*broker_rows(seen), right=_NUMBERS)


def broker_rows(seen: Seen) -> tuple[list[str], list[tuple[object, ...]]]:
    """Return the heads and the rows of the table of brokers."""
    found, answer = seen.found, seen.answering
    voters = {one.node_id for one in found.voters}
    heads = ["NODE", "ENDPOINT", "RACK", "STATE", "ANSWERS", "QUORUM", "LEADS", "HOLDS"]
    heads += ["OUT OF SYNC", "MOVING", "METADATA LAG", "FREE", "LOAD", "IN/S", "OUT/S"]
    own = _own_figures(seen)
    return heads, [
        (
            one.node_id,
            f"{one.host}:{one.port}",
            one.rack,
            _state(seen, one),
            "yes" if one.node_id in answer else "no",
            "controller"
            if one.node_id == found.controller and found.is_current
            else "voter"
            if one.node_id in voters
            else "observer",
            one.leaders,
            one.replicas,
            one.out_of_sync,
            one.moving,
            one.metadata_lag,
            *_own_cells(own.get(one.node_id)),
        )
        for one in found.brokers
    ]


def _own_figures(seen: Seen) -> dict[int, ClusterDetail]:
    """Return each broker's own answer: only it has its free room and its load."""
    answers = [one.found for one in seen.probes if one.found is not None]
    return {one.reported_by: one for one in [seen.found, *answers]}


def _own_cells(own: ClusterDetail | None) -> tuple[str, ...]:
    if own is None:
        return ("", "", "", "")
    sizes = (own.room_bytes, own.received_bytes_per_s, own.sent_bytes_per_s)
    room, received, sent = ("" if one is None else human_bytes(one) for one in sizes)
    return room, "" if own.load is None else f"{own.load:.0%}", received, sent
