"""Findings about a cluster, with advice, and whether a broker may be restarted now: pure functions
of the brokers' answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from quiverlog.client.base.arguments import counted
from quiverlog.limits import REPLICATION_FACTOR_DEFAULT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from quiverlog.cli.console.probes import Probe, Seen
    from quiverlog.client.base.results import (
        BrokerDetail,
        ClusterDetail,
        QuorumReplicaDetail,
        TopicInfo,
    )

__all__ = [
    "Finding",
    "RestartVerdict",
    "as_known",
    "failed_writes",
    "fewer_replicas",
    "findings",
    "is_healthy",
    "may_restart",
    "not_raised",
    "replicas_possible",
    "spare_voters",
    "two_processes",
    "unfinished_raises",
    "with_fewer_replicas",
]

VOTER_SILENT_S: Final = 1.0
"""A voter that has not answered for this long counts as down. Voters answer ten times a second."""
VOTER_LAG_MAX: Final = 1_000
"""A voter that lacks at most this many entries catches up in a moment."""
_TOPICS_NAMED_MAX: Final = 3


class Finding(NamedTuple):
    """A problem and the advice. A cluster with warnings only is healthy."""

    text: str
    is_warning: bool = False


@dataclass(frozen=True, slots=True)
class RestartVerdict:
    """Whether a restart now fails no request. `reasons` forbid it; `notes` are costs that waiting
    does not avoid."""

    node_id: int
    reasons: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def may_restart(self) -> bool:
        return not self.reasons


def is_healthy(found: ClusterDetail, probes: Sequence[Probe] = ()) -> bool:
    return all(one.is_warning for one in findings(found, probes))


def findings(found: ClusterDetail, probes: Sequence[Probe] = ()) -> list[Finding]:
    """Return the problems, errors before warnings."""
    found_here = [
        *_of_quorum(found),
        *_of_probes(found, probes),
        *_of_brokers(found),
        *_of_partitions(found),
    ]
    return sorted(found_here, key=lambda one: one.is_warning)


def as_known(found: ClusterDetail) -> str:
    age = "of unknown age" if found.age_s is None else f"{found.age_s:.1f} s old"
    if found.is_current:
        return f"broker {found.reported_by}, the controller: {age}"
    if found.controller is None:
        why = "it has found no controller"
    elif found.is_behind:
        why = "it does not reach the controller"
    else:
        why = f"broker {found.controller}, the controller, did not answer"
    return f"broker {found.reported_by}: {age}, {why}"


def spare_voters(found: ClusterDetail) -> int:
    """Return how many of the answering voters may be lost with a majority left."""
    if not found.is_current:
        return 0  # Only the controller has the voters' lag.
    answering = sum(_is_counted_on(found, one) for one in found.voters)
    return max(0, answering - _majority(found))


def _of_quorum(found: ClusterDetail) -> list[Finding]:
    voters, found_here = found.voters, list[Finding]()
    if found.controller is None:
        found_here.append(
            Finding(
                f"There is no controller: {_majority(found)} of the {len(voters)} voters have to "
                "run and to reach each other. Start those that do not."
            )
        )
    elif found.is_behind:
        found_here.append(
            Finding(
                f"Broker {found.reported_by} has not reached a controller for a session, and none "
                "of the brokers that answered has: all of this may be old. Look at the brokers "
                "that do not answer, and at the network between them."
            )
        )
    elif found.reported_by != found.controller:
        found_here.append(
            Finding(
                f"The controller, broker {found.controller}, did not answer: only it has the "
                "voters' lag. If it stays away, the other voters elect another within two seconds."
            )
        )
    fenced = _fenced(found)  # `_of_brokers` reports them.
    away = [
        str(one.node_id)
        for one in voters
        if not _is_counted_on(found, one) and one.node_id not in fenced
    ]
    if away:
        found_here.append(
            Finding(
                f"Voters that do not answer or lag behind: {', '.join(away)}. If one is gone for "
                "good, take its vote: quiverlog quorum remove."
            )
        )
    if len(voters) == 2:
        text = "Two voters: the loss of either stops all decisions. Start a third broker."
        found_here.append(Finding(text, is_warning=True))
    return found_here


def _of_probes(found: ClusterDetail, probes: Sequence[Probe]) -> list[Finding]:
    silent = [one for one in probes if not one.answers]
    if not silent:
        return []
    by_address = {f"{one.host}:{one.port}": one for one in found.brokers}
    named = []
    is_known = found.is_current
    for one in silent:
        broker = by_address.get(one.address)
        name = one.address if broker is None else f"broker {broker.node_id} at {one.address}"
        named.append(f"{name} ({one.failure})")
        is_known = is_known and (broker is None or broker.fenced)
    advice = "Start what does not run, or correct the address."
    text = f"No answer to this machine: {'; '.join(named)}. {advice}"
    return [Finding(text, is_warning=is_known and any(one.answers for one in probes))]


def _of_brokers(found: ClusterDetail) -> list[Finding]:
    found_here = []
    fenced = [str(one.node_id) for one in found.brokers if one.fenced]
    if fenced:
        found_here.append(
            Finding(
                f"Fenced: {', '.join(fenced)}. They do not run or do not reach the controller; "
                "see the log of each."
            )
        )
    full = [str(one.node_id) for one in found.brokers if one.disk_full]
    if full:
        found_here.append(
            Finding(
                f"Without room for rows: {', '.join(full)}. Make room on their disks; until then "
                "others lead what they can, and the rest takes no rows."
            )
        )
    found_here += [Finding(" ".join(failed_writes(one))) for one in found.brokers if one.faulted]
    found_here += [Finding(" ".join(two_processes(one))) for one in found.brokers if one.second_at]
    stopping = [str(one.node_id) for one in found.brokers if one.in_shutdown and not one.fenced]
    if stopping:
        text = f"Stopping: {', '.join(stopping)}. They hand over what they lead, and end then."
        found_here.append(Finding(text, is_warning=True))
    return found_here


def failed_writes(broker: BrokerDetail) -> tuple[str, str]:
    """Return (finding, advice) about a failed write or fsync."""
    count = counted(broker.faulted, "partition takes no writes", "partitions take no writes")
    return (
        f"Broker {broker.node_id}: {count}, because a write or fsync has failed there.",
        f"Look at its disk, then restart broker {broker.node_id}: it trusts no file before it has"
        " read it again.",
    )


def two_processes(broker: BrokerDetail) -> tuple[str, str]:
    """Return (finding, advice) about a second process with a node id."""
    return (
        f"Two processes have node id {broker.node_id}: the broker, at {broker.host}:{broker.port},"
        f" and one at {broker.second_at}, which is refused.",
        "Stop the one that should not run, and empty its data directory before it is used again.",
    )


def _of_partitions(found: ClusterDetail) -> list[Finding]:
    found_here = []
    if not found.is_current and found.partitions:
        found_here.append(
            Finding(
                "Only the controller has the present state of the partitions: these figures are "
                "older. Clients cannot reach partitions whose leader does not answer."
            )
        )
    if found.offline:
        found_here.append(
            Finding(
                "Partitions without a leader: start the brokers that hold them "
                "(quiverlog topic describe), or give up rows with quiverlog topic elect --unclean."
            )
        )
    elif found.under_min_in_sync:
        found_here.append(
            Finding(
                "Partitions below min.insync.replicas take no replicated rows until more of their "
                "brokers run."
            )
        )
    behind = [one for one in found.brokers if one.out_of_sync]
    if behind:
        fenced = _fenced(found)
        running = [
            str(one.node_id) for one in behind if one.node_id not in fenced and not one.faulted
        ]
        advice = "They catch up when their brokers run."
        if running and not found.offline:  # Without a leader no copy is in sync.
            advice += (
                f" Broker {', '.join(running)} runs: if its copies do not catch up within a minute,"
                " look at its disk and its log, then restart it."
            )
        found_here.append(Finding(f"Copies out of sync: {_copies(behind)}. {advice}"))
    return found_here


def _copies(brokers: list[BrokerDetail]) -> str:
    return ", ".join(f"{one.out_of_sync:,} on broker {one.node_id}" for one in brokers)


def _fenced(found: ClusterDetail) -> set[int]:
    return {one.node_id for one in found.brokers if one.fenced}


def _majority(found: ClusterDetail) -> int:
    return len(found.voters) // 2 + 1


def _is_counted_on(found: ClusterDetail, voter: QuorumReplicaDetail) -> bool:
    """Return whether the voter answers the controller and follows its log."""
    if voter.node_id in _fenced(found):
        return False  # It has just stopped, or is starting.
    if found.reported_by != found.controller or voter.silent_s is None or voter.lag is None:
        return True  # Only the controller has figures; without them every voter counts.
    return voter.silent_s < VOTER_SILENT_S and voter.lag <= VOTER_LAG_MAX


def _holders(found: ClusterDetail) -> list[BrokerDetail]:
    return [one for one in found.brokers if one.takes_partitions and not one.decommissioning]


def replicas_possible(found: ClusterDetail) -> int:
    return min(REPLICATION_FACTOR_DEFAULT, len(_holders(found)))


def with_fewer_replicas(found: ClusterDetail, topics: Iterable[TopicInfo]) -> list[TopicInfo]:
    few = [one for one in topics if 0 < one.replicas < replicas_possible(found)]
    return sorted((one for one in few if not one.is_internal), key=lambda one: one.name)


def fewer_replicas(found: ClusterDetail, few: list[TopicInfo]) -> tuple[str, str]:
    """Return (finding, advice): raise the first topic's replicas, or wait for live brokers."""
    named = ", ".join(f"{one.name} ({one.replicas})" for one in few[:_TOPICS_NAMED_MAX])
    more = f" and {len(few) - _TOPICS_NAMED_MAX:,} more" if len(few) > _TOPICS_NAMED_MAX else ""
    possible = replicas_possible(found)
    found_here = (
        f"Topics with fewer replicas than the {possible} that this cluster has brokers for: "
        f"{named}{more}."
    )
    holders = _holders(found)
    live = sum(not one.fenced and not one.in_shutdown for one in holders)
    if live >= possible:
        command = f"quiverlog topic alter {few[0].name} --replication-factor {possible}"
        return found_here, f"To raise the first: {command}"
    wait = f"{live} of the {len(holders)} brokers that hold partitions are live: nothing is to be"
    return found_here, f"{wait} done about it until {possible} of them are live."


def unfinished_raises(found: ClusterDetail, topics: Iterable[TopicInfo]) -> list[TopicInfo]:
    """Return internal topics that the controller has to give more replicas; none while copies of
    other reasons are missing."""
    possible = replicas_possible(found)
    live = sum(not one.fenced and not one.in_shutdown for one in _holders(found))
    if live < possible or any(one.out_of_sync for one in found.brokers):
        return []
    few = [one for one in topics if one.is_internal and _fewest_in_sync(one) < possible]
    return sorted(few, key=lambda one: one.name)


def _fewest_in_sync(topic: TopicInfo) -> int:
    return min((len(one.in_sync_replicas) for one in topic.partitions), default=0)


def not_raised(found: ClusterDetail, few: list[TopicInfo]) -> tuple[str, str]:
    """Return (finding, advice) about `unfinished_raises`."""
    named = ", ".join(f"{one.name} ({_fewest_in_sync(one)})" for one in few)
    return (
        f"Internal topics with fewer copies than the {replicas_possible(found)} that this cluster"
        f" has brokers for: {named}.",
        "The controller adds them five minutes after the last broker has registered. If this stays"
        " for longer, see the log of the controller, and `quiverlog partition list --moving`.",
    )


def may_restart(seen: Seen, node_id: int) -> RestartVerdict:
    found, silent = seen.as_probed, seen.silent_brokers
    fenced = _fenced(seen.found)
    broker = next(one for one in found.brokers if one.node_id == node_id)
    reasons = _quorum_without(found, node_id)
    if broker.fenced:
        # It serves no client: only the quorum can lose by its restart.
        return RestartVerdict(node_id, tuple(reasons))
    others = [one for one in found.brokers if one.node_id != node_id]
    if not any(not one.fenced and not one.in_shutdown for one in others):
        reasons.append("no other broker is live: clients wait until it is back")
    reasons += [f"broker {one.node_id} is fenced" for one in others if one.node_id in fenced]
    reasons += [
        f"broker {one.node_id} does not answer this machine ({silent[one.node_id]})"
        for one in others
        if one.node_id in silent and one.node_id not in fenced
    ]
    reasons += [
        f"broker {one.node_id} is stopping" for one in others if one.in_shutdown and not one.fenced
    ]
    behind = [one for one in others if one.out_of_sync]
    if behind:
        reasons.append(f"copies are out of sync: {_copies(behind)}")
    if broker.moving:
        reasons.append(f"{broker.moving:,} of its partitions are moving")
    if found.offline:
        reasons.append(
            counted(found.offline, "partition has no leader", "partitions have no leader")
        )
    notes = []
    if broker.needed and not behind:
        notes.append(
            f"{broker.needed:,} of its partitions have no copy to spare: a client that writes "
            "there with `replicated`, or reads an only copy, waits until it is back"
        )
    return RestartVerdict(node_id, tuple(reasons), tuple(notes))


def _quorum_without(found: ClusterDetail, node_id: int) -> list[str]:
    if found.controller is None:
        return ["there is no controller"]
    if found.is_behind:
        return [f"broker {found.reported_by}, which reports this, does not reach the controller"]
    if found.reported_by != found.controller:
        return [f"broker {found.controller}, the controller, does not answer"]
    voters, needed = found.voters, _majority(found)
    left = [one for one in voters if one.node_id != node_id and _is_counted_on(found, one)]
    if len(left) >= needed:
        return []
    if len(voters) == 1:
        return ["it is the only voter: nothing is decided until it is back"]
    return [
        f"the quorum has no voter to spare: without it {len(left)} of {len(voters)} answer, "
        f"{needed} are needed"
    ]
