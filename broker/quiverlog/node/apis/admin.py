"""Administration of a cluster: moves, elections, voters, features, configuration.

A change becomes one proposal (removing a voter, up to two), and is answered when that is committed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from functools import partial
from typing import Final

from quiverlog.broker_keys import CONFIG_KEYS
from quiverlog.core.controller import decommissioning
from quiverlog.core.controller.broker_configs import alter_configs, why_unknown
from quiverlog.core.controller.elections import unclean_leader
from quiverlog.core.controller.features import finalise, level_records
from quiverlog.core.controller.image import Image
from quiverlog.core.controller.leaders import preferred_leader
from quiverlog.core.controller.reassignment import cancel, reassign
from quiverlog.core.controller.records import (
    BrokerChangeRecord,
    PartitionChangeRecord,
    Record,
)
from quiverlog.core.controller.replication_factor import check_factor
from quiverlog.core.controller.topic_image import PartitionImage, TopicImage
from quiverlog.core.controller.topics import find_topic
from quiverlog.core.raft.log import Place
from quiverlog.core.raft.messages import ProposalRefused, Refusal, ReplicaKey
from quiverlog.errors import (
    InvalidRequest,
    InvalidVoterChange,
    NotController,
    QuiverlogError,
    UnknownConfig,
    UnknownPartition,
    UnsupportedFeatureLevel,
    VoterChangePending,
    VoterNotReady,
)
from quiverlog.limits import FEATURE_LEVEL_MIN, QUORUM_REPLICAS_SHOWN_MAX
from quiverlog.node.apis.topics import topic_page
from quiverlog.node.broker import Broker
from quiverlog.node.controller.not_controller import check_is_controller, decided
from quiverlog.node.runtime.config import NodeConfig
from quiverlog.node.runtime.jobs import Then
from quiverlog.node.runtime.tasks import Call, Making, Steps, Wait
from quiverlog.types import Now
from quiverlog.wire.cluster_messages import (
    BrokerFeatures,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from quiverlog.wire.config_messages import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
)
from quiverlog.wire.decommission_messages import (
    DecommissionBrokerRequest,
    DecommissionBrokerResponse,
    DecommissionStep,
)
from quiverlog.wire.election_messages import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionLeader,
)
from quiverlog.wire.reassignment_messages import (
    PartitionReplicas,
    PartitionTarget,
    ReassignPartitionsRequest,
    ReassignPartitionsResponse,
    TopicMoves,
)
from quiverlog.wire.voters_messages import (
    ChangeVotersRequest,
    ChangeVotersResponse,
    QuorumReplica,
    VoterChange,
)

__all__ = [
    "describe_quorum",
    "first_level",
    "handle_alter_configs",
    "handle_change_voters",
    "handle_decommission_broker",
    "handle_describe_configs",
    "handle_elect_leaders",
    "handle_reassign_partitions",
    "handle_update_features",
]


_PARTITIONS_PER_STEP: Final = 64


def handle_reassign_partitions(broker: Broker, call: Call) -> Steps:
    """Decide the whole request or nothing."""
    request = call.request
    assert isinstance(request, ReassignPartitionsRequest)
    if not request.name:
        return _all_moves(broker, call, request)
    return _reassign(broker, call, request)


def _reassign(broker: Broker, call: Call, request: ReassignPartitionsRequest) -> Steps:
    named = [one.partition for one in request.partitions]
    if len(set(named)) != len(named):
        raise InvalidRequest("a partition is named twice.")
    if request.move_bytes_per_s < 0:
        raise InvalidRequest(
            f"move_bytes_per_s {request.move_bytes_per_s} is negative: 0 is no bound."
        )
    changes = yield from decided(broker, call, partial(_decide, broker, request))
    if changes and not request.validate_only:
        yield broker.metadata.proposal(changes, call.now)
        broker.outbox.log("info", "partitions reassigned", topic=request.name, count=len(changes))
    topic = find_topic(broker.metadata.image, request.name)
    assert all(number < len(topic.partitions) for number in named), "partitions only grow"
    return ReassignPartitionsResponse(
        moves=[
            _held_by(one)
            for one in topic.partitions
            if (one.partition in named if named else one.moves)
        ]
    )


def _held_by(one: PartitionImage) -> PartitionReplicas:
    return PartitionReplicas(
        one.partition,
        list(one.replicas),
        list(one.in_sync_replicas),
        [n for n in one.adding_replicas if n not in one.removing_replicas],
        list(one.removing_replicas),
        one.move_bytes_per_s,
    )


def _all_moves(broker: Broker, call: Call, request: ReassignPartitionsRequest) -> Steps:
    if request.partitions:
        raise InvalidRequest("partitions are named without their topic: give `name`.")
    check_is_controller(broker, call.connection_id)
    found, next_name = yield from topic_page(broker, call, None, request.first_name, _moves_of)
    return ReassignPartitionsResponse(
        topics=[one for one in found if one.moves], next_name=next_name
    )


def _moves_of(topic: TopicImage | None, name: str) -> Making[TopicMoves]:
    moves: list[PartitionReplicas] = []
    for number, one in enumerate(topic.partitions if topic is not None else ()):
        if number % _PARTITIONS_PER_STEP == _PARTITIONS_PER_STEP - 1:
            yield
        if one.moves:
            moves.append(_held_by(one))
    return TopicMoves(name, moves)


def _decide(broker: Broker, request: ReassignPartitionsRequest) -> list[Record]:
    pending = broker.metadata.pending
    topic = find_topic(pending, request.name)
    changes: list[Record] = []
    for target in request.partitions:
        changes += _decide_one(pending, topic, target, request)
    assert len(changes) <= len(request.partitions), "one change of each at most"
    return changes


def _decide_one(
    pending: Image, topic: TopicImage, target: PartitionTarget, request: ReassignPartitionsRequest
) -> list[Record]:
    """Raises UnknownPartition, and as `reassign`, `cancel` and `check_factor` do."""
    if not 0 <= target.partition < len(topic.partitions):
        raise UnknownPartition(f"topic {topic.name!r} has no partition {target.partition}.")
    partition = topic.partitions[target.partition]
    if not target.replicas:
        return cancel(topic, partition)
    changes = reassign(
        pending,
        topic,
        partition,
        target.replicas,
        changes_count=request.changes_count,
        bytes_per_s=request.move_bytes_per_s,
    )
    if request.changes_count:
        check_factor(pending, topic, len(target.replicas))
    return changes


# ELECT_LEADERS
def handle_elect_leaders(broker: Broker, call: Call) -> Steps:
    """Decide the whole request or nothing."""
    request = call.request
    assert isinstance(request, ElectLeadersRequest)
    return _elect_leaders(broker, call, request)


def _elect_leaders(broker: Broker, call: Call, request: ElectLeadersRequest) -> Steps:
    changes = yield from decided(broker, call, partial(_elect_leaders_decide, broker, request))
    if changes:
        yield broker.metadata.proposal(changes, call.now)
        broker.outbox.log(
            "info",
            "leaders elected",
            topic=request.name,
            count=len(changes),
            unclean=request.unclean,
        )
    topic = find_topic(broker.metadata.image, request.name)
    numbers = _numbers(topic, request)
    elected = {one.partition for one in changes if isinstance(one, PartitionChangeRecord)}
    assert len(elected) == len(changes), "one change of each"
    return ElectLeadersResponse(
        leaders=[
            PartitionLeader(number, one.leader_id, one.leader_epoch, number in elected)
            for number, one in enumerate(topic.partitions)
            if number in numbers
        ]
    )


def _elect_leaders_decide(broker: Broker, request: ElectLeadersRequest) -> list[Record]:
    pending = broker.metadata.pending
    topic = find_topic(pending, request.name)
    known = broker.membership.log_end_decisions
    # Most partitions are led as they should be: the image lists the others.
    some = pending.leaderless if request.unclean else pending.unpreferred
    changes: list[Record] = []
    for number in _numbers(topic, request):
        if (topic.topic_id, number) in some:
            key = (topic.topic_id, number)
            if request.unclean:
                changes += unclean_leader(pending, *key, known.of(pending, *key))
            else:
                changes += preferred_leader(pending, *key, broker.membership.full_disks)
    return changes


def _numbers(topic: TopicImage, request: ElectLeadersRequest) -> set[int]:
    """Raises UnknownPartition."""
    numbers = set(range(len(topic.partitions)))
    if request.partitions is None:
        return numbers
    unknown = set(request.partitions) - numbers
    if unknown:
        raise UnknownPartition(f"topic {topic.name!r} has no partition {min(unknown)}.")
    return set(request.partitions)


# CHANGE_VOTERS
_KINDS: dict[Refusal, type[QuiverlogError]] = {
    Refusal.NOT_LEADER: NotController,
    Refusal.TRANSFERRING: NotController,
    Refusal.NOTHING_COMMITTED_YET: VoterChangePending,
    Refusal.CHANGE_PENDING: VoterChangePending,
    Refusal.TOO_MUCH_UNCOMMITTED: VoterChangePending,
    Refusal.NOT_CAUGHT_UP: VoterNotReady,
    Refusal.TOO_LARGE: InvalidVoterChange,
    Refusal.ALREADY_VOTER: InvalidVoterChange,
    Refusal.NOT_VOTER: InvalidVoterChange,
    Refusal.TOO_MANY_VOTERS: InvalidVoterChange,
    Refusal.LAST_VOTER: InvalidVoterChange,
    Refusal.TOO_FEW_REACHABLE: InvalidVoterChange,
}
assert _KINDS.keys() == set(Refusal), "every refusal has its error"


def handle_change_voters(broker: Broker, call: Call) -> Steps:
    request = call.request
    assert isinstance(request, ChangeVotersRequest)
    if request.change not in set(VoterChange):
        raise InvalidRequest(f"change {request.change} of the voters is unknown.")
    change, asked = VoterChange(request.change), ReplicaKey(request.node_id, request.directory_id)
    if change is not VoterChange.NOTHING:
        if not broker.quorum.check_leading(call.now):
            raise NotController
        key = _replica_of(broker, asked, change)
        if change is VoterChange.ADD:
            endpoint = _endpoint_of(broker, key)
            yield partial(broker.membership.reach.check, key, endpoint, call.now)
            if _endpoint_of(broker, key) != endpoint:
                raise VoterNotReady(f"node {key.node_id} has moved from {endpoint}.")
        if change is VoterChange.REMOVE:
            # Checked before anything is proposed.
            with _refusals():
                broker.quorum.raft.check_removal(key, call.now.mono_us)
            yield from _keep_out(broker, key, call)
        yield partial(_propose, broker, change, key, call.now)
        done = "voter added" if change is VoterChange.ADD else "voter removed"
        broker.outbox.log("info", done, node=key.node_id, directory=key.directory_id)
        broker.membership.changed()  # Another broker may wait for a vote.
    return ChangeVotersResponse(
        leader_id=broker.controller.controller_id,
        term=broker.quorum.raft.term,
        committed_index=broker.quorum.raft.log.commit,
        replicas=describe_quorum(broker, call.now),
    )


def _keep_out(broker: Broker, key: ReplicaKey, call: Call) -> Generator[Wait, object, None]:
    """Withdraw its wish for a vote: it would be added again a moment later."""
    known = broker.metadata.image.brokers.get(key.node_id)
    if known is None or not known.wants_vote or known.directory_id != key.directory_id:
        return
    if known.decommissioning:
        return  # It gets no vote while it leaves, and one again if that is cancelled.
    change = BrokerChangeRecord(key.node_id, known.broker_epoch, wants_vote=False)
    yield broker.metadata.proposal([change], call.now)


def _replica_of(broker: Broker, asked: ReplicaKey, change: VoterChange) -> ReplicaKey:
    """Return the replica that is meant: with an empty directory id, its node's only one."""
    voters = broker.quorum.raft.voters
    if change is VoterChange.REMOVE:
        known = {key for key in voters if key.node_id == asked.node_id}
    else:
        reported = broker.broker_addresses.contact_of(asked.node_id)
        known = set() if reported is None else {reported.key}
        if any(key.node_id == asked.node_id for key in voters):
            raise InvalidVoterChange(
                f"node {asked.node_id}, or another disk of it, is a voter already."
            )
    found = [key for key in known if asked.directory_id in ("", key.directory_id)]
    if not found:
        which = f"node {asked.node_id}"
        if asked.directory_id:
            which += f" with the directory {asked.directory_id}"
        if change is VoterChange.REMOVE:
            raise InvalidVoterChange(f"{which} is no voter.")
        raise VoterNotReady(f"{which} does not follow the metadata log of this controller.")
    assert len(found) == 1, "two disks of one node are never known at once"
    return found[0]


def _propose(broker: Broker, change: VoterChange, key: ReplicaKey, now: Now, then: Then) -> None:
    with _refusals():
        place = _place(broker, change, key, now)
    broker.quorum.when_decided(place, then, now)


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except ProposalRefused as refused:
        raise _KINDS[refused.refusal](f"{refused.refusal.value}.") from refused


def _place(broker: Broker, change: VoterChange, key: ReplicaKey, now: Now) -> Place:
    raft = broker.quorum.raft
    if change is VoterChange.REMOVE:
        return raft.remove_voter(key, now.mono_us)
    # A quorum of one has no address of its own in its log.
    own = str(broker.config.endpoint)
    return raft.add_voter(key, _endpoint_of(broker, key), now.mono_us, own_endpoint=own)


def _endpoint_of(broker: Broker, key: ReplicaKey) -> str:
    """Return the endpoint that a future voter sends; it may have stopped meanwhile."""
    reported = broker.broker_addresses.contact_of(key.node_id)
    if reported is None or reported.key != key:
        raise VoterNotReady(f"node {key.node_id} does not follow the metadata log any more.")
    if not reported.is_controller:
        raise InvalidVoterChange(f"node {key.node_id} does not have the role `controller`.")
    return str(reported.address)


def describe_quorum(broker: Broker, now: Now) -> list[QuorumReplica]:
    """Return the quorum as this node sees it; only a leader has each replica's index."""
    raft = broker.quorum.raft
    assert broker.quorum.log is not None
    own = broker.quorum.log.key
    last_index = raft.log.last_index if broker.quorum.is_leading else None
    indexes = {own: raft.log.durable_index, **raft.match_indexes}
    contact_us = {own: now.mono_us, **raft.last_contact_us}
    voters = raft.voters
    addresses = broker.broker_addresses.known()
    replicas = []
    for key in sorted({*voters, *indexes}):
        one = QuorumReplica(
            key.node_id,
            key.directory_id,
            voters.get(key) or str(addresses.get(key.node_id, "")),
            key in voters,
            indexes.get(key, -1),
        )
        if last_index is not None and key in indexes:
            one.lag = last_index - indexes[key]
            one.silent_ms = (now.mono_us - contact_us[key]) // 1_000
            assert one.lag >= 0, "no replica has more than the leader"
            assert one.silent_ms >= 0
        replicas.append(one)
    return replicas[:QUORUM_REPLICAS_SHOWN_MAX]


# DECOMMISSION_BROKER
_STEP_EVENTS = {
    DecommissionStep.BEGIN: "broker is decommissioned",
    DecommissionStep.CANCEL: "broker stays",
    DecommissionStep.UNREGISTER: "broker unregistered",
}


def handle_decommission_broker(broker: Broker, call: Call) -> Steps:
    request = call.request
    assert isinstance(request, DecommissionBrokerRequest)
    if request.step not in set(DecommissionStep):
        raise InvalidRequest(f"step {request.step} of decommissioning is unknown.")
    step, node_id = DecommissionStep(request.step), request.node_id
    records = yield from decided(
        broker, call, partial(_decommission_broker_decide, broker, step, node_id)
    )
    if records:
        yield broker.metadata.proposal(records, call.now)
        broker.outbox.log("info", _STEP_EVENTS[step], node=node_id)
    image = broker.metadata.image
    found = image.brokers.get(node_id)
    return DecommissionBrokerResponse(
        is_registered=found is not None,
        is_decommissioning=found is not None and found.decommissioning,
        is_fenced=found is not None and found.fenced,
        is_voter=node_id in _voters(broker),
        replica_count=image.replica_counts[node_id],
    )


def _decommission_broker_decide(
    broker: Broker, step: DecommissionStep, node_id: int
) -> list[Record]:
    pending = broker.metadata.pending
    match step:
        case DecommissionStep.BEGIN:
            return decommissioning.begin(pending, node_id, _voters(broker))
        case DecommissionStep.CANCEL:
            return decommissioning.cancel(pending, node_id)
        case DecommissionStep.UNREGISTER:
            return decommissioning.unregister(pending, node_id, _voters(broker))
    return []


def _voters(broker: Broker) -> set[int]:
    return {key.node_id for key in broker.quorum.raft.voters}


# UPDATE_FEATURES
def handle_update_features(broker: Broker, call: Call) -> Steps:
    request = call.request
    assert isinstance(request, UpdateFeaturesRequest)
    if request.level:
        changes = yield from decided(broker, call, partial(_features_decide, broker, request.level))
        if changes and not request.validate_only:
            yield broker.metadata.proposal(changes, call.now)
            broker.outbox.log("warning", "feature level finalised", feature_level=request.level)
    yield None
    image = broker.metadata.image
    assert image.feature_level >= FEATURE_LEVEL_MIN
    brokers = [image.brokers[node_id] for node_id in sorted(image.brokers)]
    return UpdateFeaturesResponse(
        level=image.feature_level,
        level_max=min((one.feature_level_max for one in brokers), default=image.feature_level),
        brokers=[
            BrokerFeatures(one.node_id, one.feature_level_min, one.feature_level_max)
            for one in brokers
        ],
    )


def _features_decide(broker: Broker, level: int) -> list[Record]:
    return finalise(broker.metadata.pending, level, broker.directory.cluster_id)


def first_level(config: NodeConfig, image: Image, cluster_id: str) -> list[Record]:
    """Return the records with which a single broker begins a new cluster above level 1."""
    level_max = config.feature_level_max
    assert level_max >= FEATURE_LEVEL_MIN
    if image.feature_level > level_max:
        raise UnsupportedFeatureLevel(
            f"the data directory has feature level {image.feature_level}, this broker supports"
            f" {FEATURE_LEVEL_MIN} to {level_max}."
        )
    is_new = not image.brokers and not image.topics
    if not is_new or level_max == image.feature_level:
        return []
    return level_records(image, level_max, cluster_id)


# ALTER_CONFIGS and DESCRIBE_CONFIGS
def handle_alter_configs(broker: Broker, call: Call) -> Steps:
    """Decide the whole request or nothing."""
    request = call.request
    assert isinstance(request, AlterConfigsRequest)
    changes = yield from decided(broker, call, partial(_configs_decide, broker, request))
    if changes:
        assert len(changes) <= len(request.changes), "each key once"
        yield broker.metadata.proposal(changes, call.now)
    return AlterConfigsResponse(metadata_version=broker.metadata.image.version)


def _configs_decide(broker: Broker, request: AlterConfigsRequest) -> list[Record]:
    changes = [(one.key, one.value) for one in request.changes]
    return alter_configs(broker.metadata.pending, request.node_id, changes)


def handle_describe_configs(broker: Broker, call: Call) -> Steps:
    """Return this broker's own values: another broker's may differ."""
    request = call.request
    assert isinstance(request, DescribeConfigsRequest)
    entries = {one.key: one for one in broker.live_config.entries()}
    for key in request.keys:
        if key not in entries:
            raise UnknownConfig(f"{key}: {why_unknown(key)}.")
    assert len(entries) >= len(CONFIG_KEYS)
    yield None
    return DescribeConfigsResponse(
        node_id=broker.config.node_id,
        metadata_version=broker.metadata.image.version,
        configs=[entries[key] for key in dict.fromkeys(request.keys or entries)],
    )
