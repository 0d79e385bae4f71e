"""Every field of every request does something: the broker reads it, or the docs have it as ignored.

A field that is not read is an option without effect, visible to clients in every language.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, Final, get_args

import msgspec
import pytest

from quiverlog import errors
from quiverlog.batch.schema import serialize_schema
from quiverlog.core.partition.partition import Assigned
from quiverlog.limits import FEATURE_LEVEL_MAX
from quiverlog.node.runtime.events import RequestReceived
from quiverlog.types import PublishId
from quiverlog.wire import broker_messages as b
from quiverlog.wire import config_messages as k
from quiverlog.wire import messages as m
from quiverlog.wire import quorum_messages as q
from quiverlog.wire import replica_messages as r
from quiverlog.wire import voters_messages as v
from quiverlog.wire.authentication_messages import CLUSTER_SHA_256, AuthenticateRequest
from quiverlog.wire.cluster_messages import DescribeClusterRequest, UpdateFeaturesRequest
from quiverlog.wire.decommission_messages import DecommissionBrokerRequest
from quiverlog.wire.election_messages import ElectLeadersRequest
from quiverlog.wire.group_messages import (
    AlterGroupOffsetsRequest,
    CommitOffsetsRequest,
    CommittedOffset,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FetchOffsetsRequest,
    GroupHeartbeatRequest,
    ListGroupsRequest,
    ReportedPosition,
    ReportProgressRequest,
)
from quiverlog.wire.peer_proof import ClusterSecrets
from quiverlog.wire.producer_messages import DescribeProducerRequest
from quiverlog.wire.reassignment_messages import (
    DescribeReplicasRequest,
    PartitionTarget,
    ReassignPartitionsRequest,
)
from quiverlog.wire.registry import APIS
from quiverlog.wire.security import user_messages as u
from quiverlog.wire.security.acl_messages import (
    AlterAclsRequest,
    DescribeAclsRequest,
    RulePart,
    RuleQuestion,
)
from quiverlog.wire.security.quota_messages import (
    AlterQuotasRequest,
    DescribeQuotasRequest,
    QuotaPart,
)
from quiverlog.wire.transaction_messages import (
    AbortTransactionRequest,
    CommitTransactionRequest,
    CountedAttempt,
    CountStagedRequest,
    DescribeTransactionsRequest,
    ForwardPartition,
    ForwardRequest,
    ListTransactionsRequest,
    OpenTransactionRequest,
    PublishRequest,
    ResolveStagedRequest,
    StagedTransaction,
)
from scripts.protocol_model import MEANINGS, fields_of, parts_of
from tests.support.groups import GroupDriver
from tests.support.logins import credential
from tests.support.node import SCHEMA, NodeDriver, batch_of
from tests.support.staged import ATTEMPT, make_staged, staged_batch, staged_row
from tests.support.transactions import TransactionDriver


@pytest.fixture
def node(tmp_path: Path) -> NodeDriver:
    secrets = ClusterSecrets((b"s" * 32,))
    return NodeDriver(tmp_path, cluster_id=CLUSTER, cluster_secrets=secrets, proof_required=False)


CLUSTER = "the-cluster"
QUORUM_MESSAGES = [
    *(cls() for cls in get_args(q.QuorumMessage)),
    q.QuorumAppend("d", 1, 0, 0, 0, [q.QuorumEntry(1, 0, 4)]),
    q.QuorumSnapshotChunk("d", 1, 1, 1, [q.QuorumVoter(1, "d", "a:1")], 0, 3, True),
]
"""Of every kind; two with something in the body."""
Fields = set[tuple[str, str]]
IGNORED: Fields = {
    ("HelloRequest", "software_version"),
    ("FetchRequest", "rack"),
}
"""By the server, before the node sees a request: it distinguishes brokers from clients."""


def watch(cls: type[msgspec.Struct], read: Fields, patch: pytest.MonkeyPatch) -> Fields:
    """Whenever a field of `cls` is read, it goes to `read`. Returns all its fields."""
    names = {field.name for field in fields_of(cls)}

    def look(self: Any, name: str) -> Any:
        if name in names:
            read.add((cls.__name__, name))
        return object.__getattribute__(self, name)

    patch.setattr(cls, "__getattribute__", look)
    return {(cls.__name__, name) for name in names}


def ask(cls: type[m.Request], *fields: object) -> m.Request:
    """With these fields behind API, version and correlation id."""
    return cls(int(cls.API), 1, 0, *fields)  # type: ignore[arg-type]


CREDENTIAL = credential(b"pw")
WITHOUT_TOPIC_ID = [
    (ask(AuthenticateRequest, CLUSTER_SHA_256, struct.pack("<II32x", 1, 0)), b""),
    (ask(u.WhoAmIRequest), b""),
    (ask(u.AlterUsersRequest, "alice", 1, [CREDENTIAL], True), b""),
    (ask(u.DescribeUsersRequest, None, "", True), b""),
    (ask(u.CreateTokenRequest, "alice", 1_000, CREDENTIAL), b""),
    (ask(u.EndTokensRequest, "alice", []), b""),
    (ask(DescribeClusterRequest), b""),
    (ask(DecommissionBrokerRequest, 0, 0), b""),
    (ask(DescribeProducerRequest, 0, ["t"], ""), b""),
    (ask(k.DescribeConfigsRequest, ["log.level"]), b""),
    (ask(DescribeAclsRequest, "*", 1, "t", 0, RuleQuestion("*", 1, 1, "t", "::1")), b""),
    (ask(AlterAclsRequest, [RulePart("*", True, 1, 1, "t")], [], False), b""),
    (ask(UpdateFeaturesRequest, FEATURE_LEVEL_MAX, True), b""),
    (ask(AlterQuotasRequest, [QuotaPart(1, "alice", 1 << 20, 1 << 20, 9)], False), b""),
    (ask(DescribeQuotasRequest, 1, "alice"), b""),
]


PUBLISH_ID = PublishId(0, 0, 0).pack()
PUBLISHED = bytes(batch_of([2], producer=(PUBLISH_ID, 7, 0)))
FORWARDED = (0, 0, 3, PUBLISH_ID, 0, len(PUBLISHED))


def requests_of(topic: bytes, batch: bytes) -> list[tuple[m.Request, bytes]]:
    """One of every API, so that every field matters."""
    forward = ask(ForwardRequest, 1, 9_000, [ForwardPartition(topic, *FORWARDED)])
    return [
        (ask(m.HelloRequest, "c", "s", "1"), b""),
        (ask(m.MetadataRequest, [], [topic], None), b""),
        (ask(m.MetadataRequest, None, [], ""), b""),
        (ask(m.ProduceRequest, -1, 9, [m.ProducePartition(topic, 0, 0, len(batch))]), batch),
        (
            ask(m.FetchRequest, 1, 1, 1, 0, "r", -1, [m.FetchPartition(topic, 0, 0, 0, 0, 9, 1)]),
            b"",
        ),
        (
            ask(
                r.ReplicaFetchRequest,
                *(1, 0, 0, 0, 1, 9, 9),
                [r.ReplicaFetchPartition(topic, 0, 0, 0, -1, 0, 0)],
                [r.PartitionKey(topic, 1)],
            ),
            b"",
        ),
        (  # Of one that has all rows: what is new besides may come a little later.
            ask(
                r.ReplicaFetchRequest,
                *(1, 0, 0, 0, 1, 9, 9),
                [r.ReplicaFetchPartition(topic, 0, 0, 2, 0, 2, 0)],
            ),
            b"",
        ),
        (forward, PUBLISHED),
        (
            ask(
                r.AlterPartitionRequest,
                0,
                2,
                [r.AlterPartition(topic, 0, 0, 0, [0], [-1])],
                [r.OfflineReplica(topic, 1)],
            ),
            b"",
        ),
        (ask(r.ReportLogEndsRequest, 0, 2, [r.PartitionLogEnd(topic, 0, 0, 0, 1)]), b""),
        (
            ask(
                b.RegisterBrokerRequest,
                *(CLUSTER, 4, b"i" * 16, "d", b"c" * 16, "h", 1, "r"),
                [b.RegisteredListener("default", "h", 1)],
                *(True, True, 1, FEATURE_LEVEL_MAX),
            ),
            b"",
        ),
        (ask(m.ListOffsetsRequest, 1, -1, 0, [m.ListOffsetsPartition(topic, 0, 0, -1, 0)]), b""),
        (ask(m.InitProducerIdRequest, "", -1, -1), b""),
        (ask(m.CreateTopicsRequest, [m.NewTopic("u", serialize_schema(SCHEMA))], True), b""),
        (ask(m.AlterTopicRequest, "t", {}, [], 2, b"", True), b""),
        (ask(m.DescribeTopicsRequest, ["t"], None), b""),
        (ask(m.TopicSchemasRequest, topic, 1), b""),
        (ask(m.EpochEndOffsetsRequest, [m.EpochEndOffsetsPartition(topic, 0, 0, 0)]), b""),
        (ask(m.DescribeRangesRequest, [m.RangePartition(topic, 0, 0, 1, 1)]), b""),
        (ask(m.DeleteRecordsRequest, [m.DeleteRecordsPartition(topic, 0, 1)], 0), b""),
        (ask(ElectLeadersRequest, "t", [0], True), b""),
        (ask(ReassignPartitionsRequest, "t", [PartitionTarget(0, [0])]), b""),
        (ask(ReassignPartitionsRequest, "", [], 0, False, False, "a"), b""),
        (ask(DescribeReplicasRequest, ["t"], ""), b""),
        (ask(m.DeleteTopicsRequest, ["t"]), b""),
        (ask(k.AlterConfigsRequest, -1, [k.ConfigChange("log.level", "info")]), b""),
        *WITHOUT_TOPIC_ID,
        (ask(v.ChangeVotersRequest, 0, 0, ""), b""),
        (ask(q.QuorumRequest, CLUSTER, 1, "d", 0, QUORUM_MESSAGES), b"dataxyz"),
        (ask(b.BrokerHeartbeatRequest, CLUSTER, 0, 2, 9, True, False, 0, "a:1", 1), b""),
    ]


OF_COORDINATORS: Final = (
    OpenTransactionRequest,
    CommitTransactionRequest,
    AbortTransactionRequest,
    ListTransactionsRequest,
    DescribeTransactionsRequest,
    ResolveStagedRequest,
)
"""Asked of a node that has coordinators, below."""
OF_GROUPS: Final = (
    GroupHeartbeatRequest,
    CommitOffsetsRequest,
    FetchOffsetsRequest,
    ListGroupsRequest,
    DescribeGroupsRequest,
    AlterGroupOffsetsRequest,
    DeleteGroupsRequest,
    ReportProgressRequest,
)
"""Asked of a coordinator of groups, below."""
OF_STAGING: Final = (CountStagedRequest, PublishRequest)
"""Asked of a leader of `__staged`, below."""


def test_every_field_is_read_or_documented_as_ignored(
    node: NodeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = node.create("t")
    node.produced(topic, batch_of([1]))
    state = node.node.broker.replicas[topic, 0].state
    state.lead(Assigned(state.leader_epoch, 1, (0, 1), (0,)), node.mono_us)  # With a follower.
    read: Fields = set()
    requests = requests_of(topic, bytes(batch_of([2])))
    elsewhere = (*OF_COORDINATORS, *OF_GROUPS, *OF_STAGING)
    asked = [spec.request for spec in APIS.values() if spec.request not in elsewhere]
    assert {type(request) for request, _ in requests} == set(asked)
    all_fields: Fields = set()
    for cls in {*asked, *(part for one in asked for part in parts_of(one))}:
        all_fields |= watch(cls, read, monkeypatch)
    for number, (request, body) in enumerate(requests, start=500_000):
        request.correlation_id = number
        node.send(RequestReceived(1, request, memoryview(bytearray(body))))
        node.run_until_idle()
        node.flush()
        node.advance(1_000)
    for response in node.responses:
        assert not getattr(response.response, "error_code", 0), response
    assert all_fields - read == IGNORED
    for cls, name in IGNORED:
        assert "ignored" in (MEANINGS.get(f"{cls}.{name}") or MEANINGS[name])


def test_coordinators_read_every_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = TransactionDriver(tmp_path)
    read: Fields = set()
    all_fields: Fields = set()
    for cls in {*OF_COORDINATORS, *(part for one in OF_COORDINATORS for part in parts_of(one))}:
        all_fields |= watch(cls, read, monkeypatch)
    epoch = node.open().epoch
    node.commit(epoch, 0)
    node.count()
    assert node.abort(epoch, 0).outcome == 1
    node.call(ListTransactionsRequest(states=[0]))
    node.call(DescribeTransactionsRequest(ids=["app"]))
    node.steps(ResolveStagedRequest(transactions=[StagedTransaction("app", epoch, 0, True)]))
    # Groups will read what a commit of theirs names; the door reads whose request it is.
    unread = {("TransactionOffsets", "group"), ("ResolveStagedRequest", "broker_id")}
    assert all_fields - read == unread


def test_coordinators_of_groups_read_every_field(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = GroupDriver(tmp_path)
    read: Fields = set()
    all_fields: Fields = set()
    for cls in {*OF_GROUPS, *(part for one in OF_GROUPS for part in parts_of(one))}:
        all_fields |= watch(cls, read, monkeypatch)
    member = node.member()
    node.done(member.request(owned=member.owned()))
    node.commit(1, member_id=member.id, member_epoch=member.epoch)
    node.done(FetchOffsetsRequest(group="g", topics=member.owned()))
    node.done(ListGroupsRequest(states=[0], types=[1]))
    node.done(DescribeGroupsRequest(groups=["g"]))
    node.done(AlterGroupOffsetsRequest(group="g", entries=[CommittedOffset(node.topic, 0, 1)]))
    node.done(DeleteGroupsRequest(groups=["g"]))
    position = ReportedPosition(node.topic, 0, 1)
    node.done(ReportProgressRequest(group="q", reporter=bytes(16), positions=[position]))
    assert all_fields == read


def test_leaders_of_staged_rows_read_every_field(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = NodeDriver(tmp_path, cluster_id=CLUSTER)
    staged, topic = make_staged(node), node.create("t")
    node.produced(staged, staged_batch([staged_row(topic, bytes(batch_of([1])))]))
    read: Fields = set()
    all_fields: Fields = set()
    for cls in (*OF_STAGING, CountedAttempt):
        all_fields |= watch(cls, read, monkeypatch)
    ours: dict[str, Any] = {"partition": 0, "transactional_id": "id", "epoch": 1, "sequence": 2}
    node.call(CountStagedRequest(**ours, attempts=[CountedAttempt(ATTEMPT, 1, 0, 1)]))
    node.request(PublishRequest(**ours, attempts=[ATTEMPT], first_offset=0, next_offset=1))
    assert all_fields == read


@pytest.mark.parametrize("level", [-1, 2, 7])
def test_a_level_of_isolation_that_does_not_exist_is_refused(node: NodeDriver, level: int) -> None:
    for request in (
        m.FetchRequest(isolation_level=level),
        m.ListOffsetsRequest(isolation_level=level),
    ):
        response, _ = node.call(request)
        assert response.error_code == errors.InvalidRequest.code
        assert str(level) in response.error_message


@pytest.mark.parametrize("replica_id", [-2, 0, 5])
def test_a_follower_is_refused_where_nothing_is_replicated(
    node: NodeDriver, replica_id: int
) -> None:
    response, _ = node.call(m.FetchRequest(replica_id=replica_id))
    assert response.error_code == errors.InvalidRequest.code
