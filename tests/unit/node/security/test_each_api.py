"""Every API through the real dispatch, with each right and without it.

The table has a line for each API of clients: a new one without a line fails. Without the right to
describe a topic, the answer is that for one which is not there, byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import msgspec
import pytest

from quiverlog.batch.schema import serialize_schema
from quiverlog.core.security.acls import MEANINGFUL
from quiverlog.errors import NotAuthorized, UnknownTopic, UnknownTopicId
from quiverlog.node.security.needs import NEEDS, Scope
from quiverlog.types import Operation as Op
from quiverlog.types import ResourceKind as Kind
from quiverlog.wire import messages as m
from quiverlog.wire.cluster_messages import DescribeClusterRequest, UpdateFeaturesRequest
from quiverlog.wire.config_messages import (
    AlterConfigsRequest,
    ConfigChange,
    DescribeConfigsRequest,
)
from quiverlog.wire.decommission_messages import DecommissionBrokerRequest, DecommissionStep
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
    TopicPartitions,
)
from quiverlog.wire.producer_messages import DescribeProducerRequest
from quiverlog.wire.reassignment_messages import (
    DescribeReplicasRequest,
    PartitionTarget,
    ReassignPartitionsRequest,
)
from quiverlog.wire.security.acl_messages import AlterAclsRequest, DescribeAclsRequest, RulePart
from quiverlog.wire.security.quota_messages import (
    AlterQuotasRequest,
    DescribeQuotasRequest,
    QuotaPart,
)
from quiverlog.wire.transaction_messages import (
    AbortTransactionRequest,
    CommitTransactionRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
    OpenTransactionRequest,
)
from quiverlog.wire.voters_messages import ChangeVotersRequest, VoterChange
from tests.support.node import SCHEMA, batch_of
from tests.support.rights import ALICE, ANONYMOUS, ROOT, RightsDriver, rule
from tests.support.staged import make_staged

HIDDEN, ABSENT = "hidden", "absent"
ABSENT_ID: Final = b"\xfe" * 16
TID: Final = "mover"
GID: Final = "readers"
BATCH = bytes(batch_of([1, 2]))


class Case(NamedTuple):
    """`make(topic name, topic id)`; `needs`: operations on the topic, or on what is named."""

    make: Callable[[str, bytes], m.Request]
    needs: tuple[Op, ...]
    kind: Kind = Kind.TOPIC
    body: bytes = b""
    listed: str = ""
    """Of an answer that shows what one may describe: the field with the entries."""


def part(cls: Any, **fields: Any) -> Callable[[str, bytes], list[Any]]:
    return lambda _name, topic_id: [cls(topic_id=topic_id, partition=0, **fields)]


def produced(_name: str, topic_id: bytes) -> m.Request:
    return m.ProduceRequest(partitions=[m.ProducePartition(topic_id, 0, -1, len(BATCH))])


def cluster(request: m.Request, operation: Op) -> Case:
    return Case(lambda _name, _id: _again(request), (operation,), Kind.CLUSTER)


def _again(request: m.Request) -> m.Request:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=type(request))


def new(name: str) -> m.NewTopic:
    return m.NewTopic(name, serialize_schema(SCHEMA), 1, 1, [], {})


FETCHED, RANGE = part(m.FetchPartition, offset=0), part(m.RangePartition)
ENDED = part(m.EpochEndOffsetsPartition, epoch=0)
LISTED, DELETED = part(m.ListOffsetsPartition), part(m.DeleteRecordsPartition, before_offset=1)

CASES: Final[dict[str, Case]] = {
    "METADATA": Case(lambda n, _: m.MetadataRequest(topics=[n]), (Op.DESCRIBE,)),
    "METADATA by id": Case(
        lambda _, i: m.MetadataRequest(topics=[], topic_ids=[i]), (Op.DESCRIBE,)
    ),
    "METADATA of all": Case(
        lambda *_: m.MetadataRequest(topics=None), (Op.DESCRIBE,), listed="topics"
    ),
    "METADATA in pages": Case(
        lambda *_: m.MetadataRequest(topics=None, first_name=""), (Op.DESCRIBE,), listed="topics"
    ),
    "PRODUCE": Case(produced, (Op.WRITE,), body=BATCH),
    "FETCH": Case(lambda *t: m.FetchRequest(partitions=FETCHED(*t)), (Op.READ,)),
    "LIST_OFFSETS": Case(lambda *t: m.ListOffsetsRequest(partitions=LISTED(*t)), (Op.DESCRIBE,)),
    "EPOCH_END_OFFSETS": Case(
        lambda *t: m.EpochEndOffsetsRequest(partitions=ENDED(*t)), (Op.DESCRIBE,)
    ),
    "DESCRIBE_RANGES": Case(
        lambda *t: m.DescribeRangesRequest(partitions=RANGE(*t)), (Op.DESCRIBE,)
    ),
    "DELETE_RECORDS": Case(lambda *t: m.DeleteRecordsRequest(partitions=DELETED(*t)), (Op.DELETE,)),
    "TOPIC_SCHEMAS": Case(lambda _, i: m.TopicSchemasRequest(topic_id=i), (Op.DESCRIBE,)),
    "DESCRIBE_TOPICS": Case(lambda n, _: m.DescribeTopicsRequest(names=[n]), (Op.DESCRIBE,)),
    "DESCRIBE_TOPICS of all": Case(
        lambda *_: m.DescribeTopicsRequest(names=None, first_name=""),
        (Op.DESCRIBE,),
        listed="topics",
    ),
    "DESCRIBE_REPLICAS": Case(
        lambda n, _: DescribeReplicasRequest(names=[n]), (Op.DESCRIBE,), listed="topics"
    ),
    "DESCRIBE_REPLICAS of all": Case(
        lambda *_: DescribeReplicasRequest(names=None), (Op.DESCRIBE,), listed="topics"
    ),
    "DESCRIBE_PRODUCER": Case(
        lambda n, _: DescribeProducerRequest(producer_id=0, names=[n]),
        (Op.DESCRIBE,),
        listed="topics",
    ),
    "DELETE_TOPICS": Case(lambda n, _: m.DeleteTopicsRequest(names=[n]), (Op.DELETE,)),
    "DELETE_TOPICS by id": Case(
        lambda n, i: m.DeleteTopicsRequest(names=[n], topic_ids=[i]), (Op.DELETE,)
    ),
    "ALTER_TOPIC": Case(lambda n, _: m.AlterTopicRequest(name=n, partitions=2), (Op.ALTER,)),
    "ALTER_TOPIC its schema": Case(
        lambda n, _: m.AlterTopicRequest(name=n, schema=serialize_schema(SCHEMA)), (Op.ALTER,)
    ),
    "ALTER_TOPIC its configuration": Case(
        lambda n, _: m.AlterTopicRequest(name=n, set_configs={"retention.ms": "1"}),
        (Op.ALTER_CONFIGS,),
    ),
    "ALTER_TOPIC both": Case(
        lambda n, _: m.AlterTopicRequest(name=n, delete_configs=["retention.ms"], partitions=2),
        (Op.ALTER, Op.ALTER_CONFIGS),
    ),
    "ALTER_TOPIC nothing": Case(lambda n, _: m.AlterTopicRequest(name=n), (Op.DESCRIBE,)),
    "DESCRIBE_CLUSTER": cluster(DescribeClusterRequest(), Op.DESCRIBE),
    "CHANGE_VOTERS": cluster(
        ChangeVotersRequest(change=int(VoterChange.REMOVE), node_id=7), Op.ALTER
    ),
    "CHANGE_VOTERS asks": cluster(ChangeVotersRequest(), Op.DESCRIBE),
    "ELECT_LEADERS": cluster(ElectLeadersRequest(name=HIDDEN), Op.ALTER),
    "REASSIGN_PARTITIONS": cluster(
        ReassignPartitionsRequest(name=HIDDEN, partitions=[PartitionTarget(0, [0])]), Op.ALTER
    ),
    "REASSIGN_PARTITIONS asks": cluster(ReassignPartitionsRequest(), Op.DESCRIBE),
    "ALTER_CONFIGS": cluster(
        AlterConfigsRequest(changes=[ConfigChange("leader.balance.moves.max", "5")]),
        Op.ALTER_CONFIGS,
    ),
    "DESCRIBE_CONFIGS": cluster(DescribeConfigsRequest(), Op.DESCRIBE),
    "UPDATE_FEATURES": cluster(UpdateFeaturesRequest(level=1, validate_only=True), Op.ALTER),
    "UPDATE_FEATURES asks": cluster(UpdateFeaturesRequest(), Op.DESCRIBE),
    "DECOMMISSION_BROKER": cluster(
        DecommissionBrokerRequest(step=int(DecommissionStep.CANCEL), node_id=0), Op.ALTER
    ),
    "DECOMMISSION_BROKER asks": cluster(DecommissionBrokerRequest(), Op.DESCRIBE),
    "ALTER_ACLS": cluster(
        AlterAclsRequest(additions=[RulePart("*", False, 1, 1, "x")], validate_only=True), Op.ALTER
    ),
    "DESCRIBE_ACLS": cluster(DescribeAclsRequest(), Op.DESCRIBE),
    "ALTER_QUOTAS": cluster(
        AlterQuotasRequest(changes=[QuotaPart(1, "alice", 1 << 20)], validate_only=True), Op.ALTER
    ),
    "DESCRIBE_QUOTAS": cluster(DescribeQuotasRequest(), Op.DESCRIBE),
    "OPEN_TRANSACTION": Case(
        lambda *_: OpenTransactionRequest(
            transactional_id=TID, instance=b"i" * 16, timeout_ms=60_000
        ),
        (Op.WRITE,),
        Kind.TRANSACTIONAL_ID,
    ),
    "COMMIT_TRANSACTION": Case(
        lambda *_: CommitTransactionRequest(transactional_id=TID, epoch=1, sequence=0),
        (Op.WRITE,),
        Kind.TRANSACTIONAL_ID,
    ),
    "ABORT_TRANSACTION": Case(
        lambda *_: AbortTransactionRequest(transactional_id=TID, epoch=1, sequence=0),
        (Op.WRITE,),
        Kind.TRANSACTIONAL_ID,
    ),
    "GROUP_HEARTBEAT": Case(
        lambda *_: GroupHeartbeatRequest(group=GID, member_id=b"m" * 16, topics=[]),
        (Op.READ,),
        Kind.GROUP,
    ),
    "COMMIT_OFFSETS": Case(lambda *_: CommitOffsetsRequest(group=GID), (Op.READ,), Kind.GROUP),
    "FETCH_OFFSETS": Case(lambda *_: FetchOffsetsRequest(group=GID), (Op.DESCRIBE,), Kind.GROUP),
    "LIST_GROUPS": Case(
        lambda *_: ListGroupsRequest(), (Op.DESCRIBE,), Kind.GROUP, listed="groups"
    ),
    "DESCRIBE_GROUPS": Case(
        lambda *_: DescribeGroupsRequest(groups=[GID]),
        (Op.DESCRIBE,),
        Kind.GROUP,
        listed="groups",
    ),
    "ALTER_GROUP_OFFSETS": Case(
        lambda *_: AlterGroupOffsetsRequest(group=GID), (Op.READ,), Kind.GROUP
    ),
    "REPORT_PROGRESS": Case(
        lambda _, topic: ReportProgressRequest(
            group=GID, reporter=bytes(16), positions=[ReportedPosition(topic)]
        ),
        (Op.READ,),
        Kind.GROUP,
    ),
    "DELETE_GROUPS": Case(lambda *_: DeleteGroupsRequest(groups=[GID]), (Op.DELETE,), Kind.GROUP),
    "LIST_TRANSACTIONS": Case(
        lambda *_: ListTransactionsRequest(),
        (Op.DESCRIBE,),
        Kind.TRANSACTIONAL_ID,
        listed="transactions",
    ),
    "DESCRIBE_TRANSACTIONS": Case(
        lambda *_: DescribeTransactionsRequest(ids=[TID]),
        (Op.DESCRIBE,),
        Kind.TRANSACTIONAL_ID,
        listed="transactions",
    ),
}
# These have no resource that is there before, or need different rights for each change.
OWN_TESTS: Final = {
    *(m.Api.CREATE_TOPICS, m.Api.INIT_PRODUCER_ID),
    *(m.Api.ALTER_USERS, m.Api.DESCRIBE_USERS, m.Api.CREATE_TOKEN, m.Api.END_TOKENS),
}
"""Of users and tokens: `test_rights_of_users.py`."""

NAMES = tuple(CASES)
HIDING = tuple(n for n, one in CASES.items() if one.kind is Kind.TOPIC and not one.listed)
LISTING = tuple(n for n, one in CASES.items() if one.listed)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> RightsDriver:
    """One for all: most of these requests are refused, and each test begins without rules."""
    made = RightsDriver(tmp_path_factory.mktemp("rights"))
    make_staged(made)
    made.request(CommitOffsetsRequest(group=GID), connection=ROOT)  # Has the topic made.
    settle(made)
    return made


@pytest.fixture
def node(driver: RightsDriver) -> Iterator[RightsDriver]:
    topics = driver.node.broker.view.image.topics
    if HIDDEN not in topics:
        driver.create(HIDDEN)
        driver.produced(topics[HIDDEN].topic_id, BATCH)
        opened = driver.request(
            OpenTransactionRequest(transactional_id=TID, instance=b"i" * 16, timeout_ms=60_000),
            connection=ROOT,
        )
        settle(driver)
        assert driver.answer(opened) is not None
    if driver.node.broker.groups.group(GID) is None:
        entries = [CommittedOffset(topics[HIDDEN].topic_id, 0, 1)]
        driver.request(CommitOffsetsRequest(group=GID, entries=entries), connection=ROOT)
        settle(driver)
    driver.take_all()
    yield driver
    driver.take_all()


def settle(node: RightsDriver) -> None:
    for _ in range(20):
        node.run_until_idle()
        if not node.syncs:
            return
        node.flush()


def ask(node: RightsDriver, case: Case, *, name: str = HIDDEN, connection: int = ALICE) -> Any:
    topic = node.node.broker.view.image.topics.get(name)
    topic_id = ABSENT_ID if topic is None else topic.topic_id
    correlation = node.request(case.make(name, topic_id), case.body, connection=connection)
    settle(node)
    answer = node.answer(correlation)
    if answer is None:
        node.advance(60_000)
        settle(node)
        answer = node.answer(correlation)
    assert answer is not None
    return answer[0]


def codes(response: Any) -> set[int]:
    found = {response.error_code}
    for field in ("partitions", "topics", "results", "entries", "groups"):
        found |= {one.error_code for one in getattr(response, field, ()) if has_code(one)}
    return found - {0}


def has_code(entry: Any) -> bool:
    return "error_code" in entry.__struct_fields__


def resource(case: Case) -> str:
    return {Kind.TOPIC: HIDDEN, Kind.TRANSACTIONAL_ID: TID, Kind.GROUP: GID}.get(case.kind, "")


def needed(case: Case, *, allows: bool = True) -> list[RulePart]:
    return [rule(one, case.kind, resource(case), allows=allows) for one in case.needs]


def alike(response: Any, node: RightsDriver) -> bytes:
    """The answer's bytes, with the name and id of one topic for those of the other."""
    data = msgspec.msgpack.encode(response)
    topic_id = node.node.broker.view.image.topics[HIDDEN].topic_id
    data = data.replace(HIDDEN.encode(), ABSENT.encode()).replace(topic_id, ABSENT_ID)
    return data.replace(topic_id.hex().encode(), ABSENT_ID.hex().encode())


def test_the_table_has_a_line_for_each_api_of_clients() -> None:
    asked = {CASES[name].make(HIDDEN, ABSENT_ID).API for name in NAMES}
    ours = {api for api, need in NEEDS.items() if need.scope in (Scope.WHOLE, Scope.EACH)}
    assert asked | OWN_TESTS == ours
    for need in NEEDS.values():
        if need.scope in (Scope.WHOLE, Scope.EACH):
            assert need.operation in MEANINGFUL[need.kind]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("connection", [ALICE, ANONYMOUS], ids=["alice", "anonymous"])
def test_without_a_rule_nothing_is_allowed(node: RightsDriver, name: str, connection: int) -> None:
    case = CASES[name]
    response = ask(node, case, connection=connection)
    if case.listed:
        assert codes(response) == set()
        assert not [one for one in getattr(response, case.listed) if not_internal(one)]
    elif case.kind is Kind.TOPIC:
        assert codes(response) in ({UnknownTopic.code}, {UnknownTopicId.code})
    else:
        assert codes(response) == {NotAuthorized.code}


def not_internal(entry: Any) -> bool:
    return not getattr(entry, "name", "").startswith("__")


@pytest.mark.parametrize("name", HIDING)
def test_a_hidden_topic_is_answered_as_one_that_is_not_there(node: RightsDriver, name: str) -> None:
    absent = ask(node, CASES[name], name=ABSENT)
    assert codes(absent)
    assert alike(ask(node, CASES[name]), node) == alike(absent, node)


@pytest.mark.parametrize("name", NAMES)
def test_to_describe_is_not_enough_for_more(node: RightsDriver, name: str) -> None:
    case = CASES[name]
    if case.needs == (Op.DESCRIBE,) or case.kind is Kind.CLUSTER:
        return
    node.give(rule(Op.DESCRIBE, case.kind, resource(case)))
    assert codes(ask(node, case)) == {NotAuthorized.code}


@pytest.mark.parametrize("name", NAMES)
def test_with_its_rights_it_is_served(node: RightsDriver, name: str) -> None:
    case = CASES[name]
    node.give(*needed(case))
    response = ask(node, case)
    assert not codes(response) & {NotAuthorized.code, UnknownTopic.code, UnknownTopicId.code}
    if case.listed and "PRODUCER" not in name:
        found = [one for one in getattr(response, case.listed) if not_internal(one)]
        assert len(found) == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_deny_takes_it_back(node: RightsDriver, name: str) -> None:
    case = CASES[name]
    node.give(rule(Op.ALL, case.kind, resource(case)), *needed(case, allows=False)[-1:])
    response = ask(node, case)
    if case.listed:
        assert not [one for one in getattr(response, case.listed) if not_internal(one)]
    else:
        assert codes(response)
        assert codes(response) <= {NotAuthorized.code, UnknownTopic.code, UnknownTopicId.code}


@pytest.mark.parametrize("name", NAMES)
def test_each_right_counts_when_several_are_needed(node: RightsDriver, name: str) -> None:
    case = CASES[name]
    for left_out in range(len(case.needs)):
        if len(case.needs) == 1:
            return
        node.take_all()
        given = needed(case)
        del given[left_out]
        node.give(*given)
        assert codes(ask(node, case)) == {NotAuthorized.code}


@pytest.mark.parametrize("name", NAMES)
def test_a_super_user_needs_no_rule_and_no_deny_stops_it(node: RightsDriver, name: str) -> None:
    case = CASES[name]
    everything = [] if case.kind is Kind.CLUSTER else [True]
    for prefix in everything or [False]:
        node.give(rule(Op.ALL, case.kind, allows=False, prefix=prefix, who="*"))
    response = ask(node, case, connection=ROOT)
    assert not codes(response) & {NotAuthorized.code, UnknownTopic.code, UnknownTopicId.code}


# --- those without a line ----------------------------------------------------------------------
def test_a_topic_is_created_with_the_right_to_its_name(node: RightsDriver) -> None:
    request = m.CreateTopicsRequest(topics=[new("orders-1"), new(HIDDEN), new("other")])
    node.give(rule(Op.CREATE, name="orders-", prefix=True))
    response, _ = node.call(request, connection=ALICE)
    assert [one.error_code for one in response.topics] == [0, 105, 105]
    taken, free = (one.error_message for one in response.topics[1:])
    assert taken.replace(HIDDEN, "other") == free, "no answer shows whether it is taken"
    node.call(m.DeleteTopicsRequest(names=["orders-1"]), connection=ROOT)


def test_a_producer_id_needs_a_topic_to_write_to(node: RightsDriver) -> None:
    request = m.InitProducerIdRequest
    assert node.call(request(), connection=ALICE)[0].error_code == NotAuthorized.code
    node.give(rule(Op.READ, name="orders"))
    assert node.call(request(), connection=ALICE)[0].error_code == NotAuthorized.code
    node.give(rule(Op.WRITE, name="orders"))
    assert node.call(request(), connection=ALICE)[0].error_code == 0
    node.give(rule(Op.WRITE, name="", prefix=True, allows=False, who="user:*"))
    assert node.call(request(), connection=ALICE)[0].error_code == NotAuthorized.code


def test_topics_of_a_group_need_their_rights(node: RightsDriver) -> None:
    topic_id = node.node.broker.view.image.topics[HIDDEN].topic_id
    entry = CommittedOffset(topic_id, 0, 7)
    absent = CommittedOffset(ABSENT_ID, 0, 7)

    def done(request: m.Request) -> Any:
        correlation = node.request(request, connection=ALICE)
        settle(node)
        answer = node.answer(correlation)
        assert answer is not None
        return answer[0]

    node.give(rule(Op.READ, Kind.GROUP, "mine"))
    for kind in (CommitOffsetsRequest, AlterGroupOffsetsRequest):
        hidden, unknown = done(kind(group="mine", entries=[entry, absent])).entries
        assert hidden.error_code == unknown.error_code == UnknownTopicId.code
        assert hidden.error_message.replace(topic_id.hex(), ABSENT_ID.hex()) == (
            unknown.error_message
        )
    joining = GroupHeartbeatRequest(group="mine", member_id=b"m" * 16, topics=[HIDDEN])
    refused = done(_again(joining))
    joining.topics = [ABSENT]
    assert refused.error_message.replace(HIDDEN, ABSENT) == done(_again(joining)).error_message
    assert refused.error_code == NotAuthorized.code
    node.give(rule(Op.DESCRIBE, Kind.TOPIC, HIDDEN))
    assert done(CommitOffsetsRequest(group="mine", entries=[entry])).entries[0].error_code == 105
    node.give(rule(Op.READ, Kind.TOPIC, HIDDEN))
    assert done(CommitOffsetsRequest(group="mine", entries=[entry])).entries[0].error_code == 0
    asked = [TopicPartitions(topic_id, [0])]
    fetch = FetchOffsetsRequest(group="mine", topics=asked)
    assert done(_again(fetch)).offsets[0].offset == 7
    assert len(done(DescribeGroupsRequest(groups=["mine"])).groups[0].offsets) == 1
    node.take_all()
    node.give(rule(Op.DESCRIBE, Kind.GROUP, "mine"))
    assert done(_again(fetch)).offsets[0].offset == -1, "as of a topic that is not there"
    assert done(FetchOffsetsRequest(group="mine")).offsets == []
    assert done(DescribeGroupsRequest(groups=["mine"])).groups[0].offsets == []


def test_a_refusal_names_the_principal_the_operation_the_resource_and_the_rule(
    node: RightsDriver,
) -> None:
    (first,) = node.give(rule(Op.DESCRIBE, name=HIDDEN))
    response = ask(node, CASES["FETCH"])
    assert response.partitions[0].error_message == (
        "user:alice may not read topic 'hidden': no rule allows it."
    )
    (second,) = node.give(rule(Op.READ, name=HIDDEN, allows=False))
    assert second > first
    response = ask(node, CASES["FETCH"])
    assert response.partitions[0].error_message == (
        f"user:alice may not read topic 'hidden': rule {second} denies it."
    )
    assert not NotAuthorized.retriable
