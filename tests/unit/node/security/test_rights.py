"""Rights that change while a request waits, and those of what is inside another: staged rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quiverlog.addresses import Address
from quiverlog.batch.schema import serialize_schema
from quiverlog.core.controller.internal_topics import STAGED, TRANSACTIONS
from quiverlog.core.security.acls import Rule
from quiverlog.core.security.principals import of_user
from quiverlog.errors import NotAuthorized, UnknownTopic, UnknownTopicId
from quiverlog.limits import TOPIC_NAME_CHARS_MAX
from quiverlog.node.apis import acls, produce, transactions
from quiverlog.node.apis.fetch import ENTRIES_PER_STEP, FILE_RANGE_BYTES_MIN
from quiverlog.node.runtime.events import ConnectionOpened, Tick
from quiverlog.node.security import authoriser as module
from quiverlog.types import Operation as Op
from quiverlog.types import ResourceKind as Kind
from quiverlog.wire import messages as m
from quiverlog.wire.reassignment_messages import DescribeReplicasRequest
from quiverlog.wire.security.acl_messages import AlterAclsRequest, DescribeAclsRequest, RuleQuestion
from quiverlog.wire.transaction_messages import (
    CommittedAttempt,
    CommittedPart,
    CommitTransactionRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
    OpenTransactionRequest,
    PublishWait,
)
from tests.support.node import SCHEMA, NodeDriver, batch_of
from tests.support.rights import ALICE, ANONYMOUS, ROOT, RightsDriver, rule, settle, stage
from tests.support.staged import ATTEMPT, make_staged, staged_row

BATCH = bytes(batch_of([1, 2]))


@pytest.fixture
def node(tmp_path: Path) -> RightsDriver:
    return RightsDriver(tmp_path)


def wait_for_rows(node: RightsDriver, *topic_ids: bytes, connection: int = ALICE) -> int:
    entries = [m.FetchPartition(topic_id, 0, offset=0) for topic_id in topic_ids]
    request = m.FetchRequest(max_wait_ms=10_000, partitions=entries)
    return node.request(request, connection=connection)


# --- requests that wait ------------------------------------------------------------------------
@pytest.mark.parametrize("topics", [1, 2, ENTRIES_PER_STEP + 1])
def test_a_parked_fetch_ends_when_its_right_does_and_gets_no_row(
    node: RightsDriver, topics: int
) -> None:
    ids = [node.create(f"t{number}") for number in range(topics)]
    (number,) = node.give(rule(Op.READ, name="t", prefix=True))
    waiting = wait_for_rows(node, *ids)
    node.run_until_idle()
    assert node.answer(waiting) is None
    node.give(rule(Op.READ, name="t0", allows=False))
    response, body = node.answer(waiting) or (None, b"")
    assert response is not None, "it is looked at again"
    assert response.partitions[0].error_code == NotAuthorized.code
    assert body == b""
    assert not node.node.broker.authoriser.watched.waiters, "nothing is left behind"
    assert number == 1


def test_a_parked_fetch_of_a_topic_that_gets_hidden_is_told_of_none(node: RightsDriver) -> None:
    topic_id = node.create("t")
    (number,) = node.give(rule(Op.READ, name="t"))
    waiting = wait_for_rows(node, topic_id)
    node.give(removals=[number])
    response, _ = node.answer(waiting) or (None, b"")
    assert response.partitions[0].error_code == UnknownTopicId.code


def test_a_rule_about_another_topic_ends_no_wait(node: RightsDriver) -> None:
    topic_id = node.create("t")
    node.give(rule(Op.READ, name="t"))
    waiting = wait_for_rows(node, topic_id)
    node.give(rule(Op.READ, name="other"))
    assert node.answer(waiting) is None
    node.produced(topic_id, BATCH)
    response, body = node.answer(waiting) or (None, b"")
    assert response.partitions[0].error_code == 0
    assert body
    assert not node.node.broker.authoriser.watched.waiters


def test_a_rule_ends_no_wait_of_a_client_that_may_do_all(node: RightsDriver) -> None:
    waiting = wait_for_rows(node, node.create("t"), connection=ROOT)
    node.give(rule(Op.READ, name="t", allows=False, who="*"))
    node.run_until_idle()
    assert node.answer(waiting) is None


@pytest.mark.parametrize("partitions", [1, 2, ENTRIES_PER_STEP + 1])
@pytest.mark.parametrize("wide", [False, True])
def test_a_wait_does_not_outlive_the_super_user(
    node: RightsDriver, partitions: int, wide: bool
) -> None:
    topic_id = node.create("t", partitions)
    count = range(partitions)
    fetch = m.FetchRequest(
        max_wait_ms=300_000,
        min_bytes=2**20 if wide else 1,
        partitions=[m.FetchPartition(topic_id, one, offset=0) for one in count],
    )
    offsets = m.ListOffsetsRequest(
        max_wait_ms=300_000,
        partitions=[m.ListOffsetsPartition(topic_id, one, known_offset=0) for one in count],
    )
    waiting = [node.request(one, connection=ROOT) for one in (fetch, offsets)]
    node.run_until_idle()
    assert [node.answer(one) for one in waiting] == [None, None]
    node.node.broker.authoriser.set_super_users(("alice",))
    node.send(Tick())
    settle(node)
    for one in waiting:
        response, body = node.answer(one) or (None, b"")
        assert response is not None, "it is looked at again"
        assert {part.error_code for part in response.partitions} == {UnknownTopicId.code}
        assert not body
    assert not node.node.broker.authoriser.watched.waiters, "nothing is left behind"


def test_rows_that_are_read_in_steps_are_read_anew_when_rights_change_in_between(
    node: RightsDriver,
) -> None:
    first_id, wide_id = node.create("t0"), node.create("t1", 2 * ENTRIES_PER_STEP)
    for topic_id in (first_id, wide_id):
        node.produced(topic_id, BATCH)
    node.give(rule(Op.READ, name="t", prefix=True))
    entries = [m.FetchPartition(first_id, 0, offset=0)]
    entries += [m.FetchPartition(wide_id, n, offset=0) for n in range(2 * ENTRIES_PER_STEP)]
    node.hold_jobs = True
    request = m.FetchRequest(max_wait_ms=10_000, partitions=entries)
    waiting = node.request(request, connection=ALICE)
    assert node.answer(waiting) is None, "the first step has read t0"
    rules = node.node.broker.view.image.rules
    rules.add(99, Rule("user:alice", False, Op.READ, Kind.TOPIC, "t0"))
    node.hold_jobs = False
    settle(node)
    response, _ = node.answer(waiting) or (None, b"")
    first, second = response.partitions[:2]
    assert first.error_code == NotAuthorized.code
    assert first.batch_bytes == 0
    assert second.batch_bytes > 0


@pytest.mark.parametrize("partitions", [1, 20])
def test_a_parked_question_for_offsets_ends_when_its_right_does(
    node: RightsDriver, partitions: int
) -> None:
    topic_id = node.create("t", partitions)
    (number,) = node.give(rule(Op.DESCRIBE, name="t"))
    entries = [m.ListOffsetsPartition(topic_id, n, known_offset=0) for n in range(partitions)]
    request = m.ListOffsetsRequest(max_wait_ms=10_000, partitions=entries)
    waiting = node.request(request, connection=ALICE)
    node.run_until_idle()
    assert node.answer(waiting) is None
    node.give(removals=[number])
    settle(node)
    response, _ = node.answer(waiting) or (None, b"")
    assert {one.error_code for one in response.partitions} == {UnknownTopicId.code}
    assert not node.node.broker.authoriser.watched.waiters


def test_a_name_that_a_connection_gets_counts_at_once(node: RightsDriver) -> None:
    topic_id = node.create("t")
    node.give(rule(Op.READ, name="t", who="user:bob"))
    node.connect(7, "")
    answer = node.call(node.fetch_request(topic_id, 0), connection=7)[0]
    assert answer.partitions[0].error_code == UnknownTopicId.code
    node.node.broker.clients.authenticated(7, of_user("bob"))
    answer = node.call(node.fetch_request(topic_id, 0), connection=7)[0]
    assert answer.partitions[0].error_code == 0


def test_an_address_outside_the_network_of_a_rule_gets_nothing(node: RightsDriver) -> None:
    topic_id = node.create("t")
    node.give(rule(Op.READ, name="t", who="user:*", network="10.1.0.0/16"))
    node.connect(7, "bob", "10.1.2.3:5000")
    node.connect(8, "bob", "10.2.2.3:5000")
    node.connect(9, "bob", "[::ffff:10.1.2.3]:5000")
    codes = [
        node.call(node.fetch_request(topic_id, 0), connection=one)[0].partitions[0].error_code
        for one in (7, 8, 9)
    ]
    assert codes == [0, UnknownTopicId.code, 0]


def test_what_is_remembered_is_bounded(node: RightsDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DECISIONS_CACHED_MAX", 3)
    monkeypatch.setattr(module, "_GUARDED_MAX", 2)
    ids = [node.create(f"t{number}") for number in range(5)]
    node.give(rule(Op.READ, name="t", prefix=True))
    for _ in range(2):
        for topic_id in ids:
            answer = node.call(node.fetch_request(topic_id, 0), connection=ALICE)[0]
            assert answer.partitions[0].error_code == 0
    decisions = node.node.broker.authoriser._decisions
    assert decisions._count <= 3
    rights = node.node.broker.authoriser.rights_of(ALICE)
    assert rights is not None
    assert len(rights.guard(m.Api.FETCH)._allowed) <= 2


def test_a_connection_that_is_gone_leaves_nothing(node: RightsDriver) -> None:
    node.connect(7, "bob")
    node.call(m.MetadataRequest(topics=["t"]), connection=7)
    assert 7 in node.node.broker.authoriser._rights
    node.close_connection(7)
    assert 7 not in node.node.broker.authoriser._rights
    with pytest.raises(NotAuthorized):
        node.node.broker.authoriser.rights_of(7)
    with pytest.raises(NotAuthorized):
        node.node.broker.authoriser.guard(7, m.Api.FETCH)
    assert 7 not in node.node.broker.authoriser._rights


@pytest.mark.parametrize(("length", "is_kept"), [(249, True), (272, False), (1_000_000, False)])
def test_a_name_longer_than_any_is_decided_and_not_remembered(
    node: RightsDriver, length: int, is_kept: bool
) -> None:
    node.give(rule(Op.CREATE, Kind.USER, "a", prefix=True))
    rights = node.node.broker.authoriser.rights_of(ALICE)
    assert rights is not None
    before = node.node.broker.authoriser._decisions._count
    for letter in ("a", "b"):
        assert rights.may(Op.CREATE, Kind.USER, letter * length) is (letter == "a")
    assert node.node.broker.authoriser._decisions._count - before == (2 if is_kept else 0)


# --- requests whose client has gone -------------------------------------------------------------
def deny_alice(node: RightsDriver) -> None:
    """Give everyone all rights, and take from alice those on the topic `secret`."""
    node.give(
        rule(Op.ALL, prefix=True, who="*"),
        rule(Op.ALL, Kind.TRANSACTIONAL_ID, prefix=True, who="*"),
        rule(Op.ALL, name="secret", allows=False),
    )


def finish(node: RightsDriver, connection: int) -> None:
    """Close a connection whose request has begun, and let the request go on."""
    node.close_connection(connection)
    node.hold_jobs = False
    settle(node)
    assert not node.metrics.internal_errors


def test_rows_are_not_deleted_for_a_client_that_has_gone(node: RightsDriver) -> None:
    ids = [node.create(f"t{number}") for number in range(8)] + [node.create("secret")]
    for topic_id in ids:
        node.produced(topic_id, BATCH)
    deny_alice(node)
    node.hold_jobs = True
    entries = [m.DeleteRecordsPartition(topic_id, 0, 2) for topic_id in ids]
    node.request(m.DeleteRecordsRequest(partitions=entries, timeout_ms=100), connection=ALICE)
    finish(node, ALICE)
    starts = [node.node.broker.replicas[one, 0].state.log_start_offset for one in ids]
    assert starts == [2] * 8 + [0]


def test_a_topic_is_not_altered_for_a_client_that_has_gone(node: RightsDriver) -> None:
    node.give(rule(Op.ALL, prefix=True, who="*"), rule(Op.ALTER, name="secret", allows=False))
    node.hold_jobs = True
    names = [f"t{number}" for number in range(20)] + ["secret"]
    schema = serialize_schema(SCHEMA)
    topics = [m.NewTopic(name, schema, 1, 1, [], {}) for name in names]
    node.request(m.CreateTopicsRequest(topics=topics), connection=ALICE)
    node.request(m.AlterTopicRequest(name="secret", partitions=3), connection=ALICE)
    finish(node, ALICE)
    assert len(node.node.broker.view.image.topics["secret"].partitions) == 1


def test_rows_that_are_being_checked_are_not_stored_for_a_client_that_has_gone(
    node: RightsDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic_id = node.create("secret")
    (number,) = node.give(rule(Op.ALL, prefix=True, who="*"))
    monkeypatch.setattr(produce, "check_quick", lambda entries, now_us: False)
    node.hold_jobs = True
    node.produce(topic_id, BATCH, connection=ALICE)
    node.node.broker.view.image.rules.add(
        number + 1, Rule("user:alice", False, Op.ALL, Kind.TOPIC, "secret")
    )
    finish(node, ALICE)
    assert node.broker_end(topic_id) == 0


def test_rules_last_over_a_restart(node: RightsDriver) -> None:
    topic_id = node.create("t")
    node.give(rule(Op.READ, name="t"), rule(Op.READ, name="x"))
    node.give(removals=[2])
    node.restart()
    answer = node.call(node.fetch_request(topic_id, 0), connection=ALICE)[0]
    assert answer.partitions[0].error_code == 0
    assert node.give(rule(Op.READ, name="x")) == [3]


# --- internal topics and transactions ----------------------------------------------------------
def test_internal_topics_are_read_by_operators_alone(node: RightsDriver) -> None:
    staged = make_staged(node)
    node.give(rule(Op.ALL, prefix=True), rule(Op.ALL, Kind.TRANSACTIONAL_ID, prefix=True))
    answer = node.call(node.fetch_request(staged, 0), connection=ALICE)[0].partitions[0]
    assert answer.error_code == NotAuthorized.code
    assert answer.error_message == "user:alice may not read cluster: no rule allows it."
    offsets = m.ListOffsetsRequest(partitions=[m.ListOffsetsPartition(staged, 0)])
    code = node.call(offsets, connection=ALICE)[0].partitions[0].error_code
    assert code == NotAuthorized.code
    # A transaction needs their leaders.
    metadata = node.call(m.MetadataRequest(topics=[STAGED, TRANSACTIONS]), connection=ALICE)[0]
    assert [one.error_code for one in metadata.topics] == [0, 0]
    described = node.call(m.DescribeTopicsRequest(names=[STAGED]), connection=ALICE)[0]
    assert described.topics[0].error_code == NotAuthorized.code
    assert node.call(m.MetadataRequest(), connection=ALICE)[0].topics == []
    node.give(rule(Op.READ, Kind.CLUSTER), rule(Op.DESCRIBE, Kind.CLUSTER))
    answer = node.call(node.fetch_request(staged, 0), connection=ALICE)[0].partitions[0]
    assert answer.error_code == 0
    names = {one.name for one in node.call(m.MetadataRequest(), connection=ALICE)[0].topics}
    assert names == {STAGED, TRANSACTIONS}


def test_each_staged_row_needs_its_topic_and_its_id(node: RightsDriver) -> None:
    make_staged(node)
    mine, theirs = node.create("mine"), node.create("theirs")
    node.give(
        rule(Op.WRITE, name="mine"),
        rule(Op.WRITE, Kind.TRANSACTIONAL_ID, "app-", prefix=True),
    )
    good = staged_row(mine, BATCH, transactional_id="app-1")
    assert stage(node, good).error_code == 0
    other = staged_row(mine, BATCH, transactional_id="other")
    found = stage(node, good, other)
    assert found.error_code == NotAuthorized.code
    assert found.error_message == (
        "staged row 1: user:alice may not write transactional-id 'other': no rule allows it."
    )
    hidden = staged_row(theirs, BATCH, transactional_id="app-1")
    absent = staged_row(b"\xfe" * 16, BATCH, transactional_id="app-1")
    of_hidden = stage(node, good, hidden)
    assert of_hidden.error_code == UnknownTopicId.code
    as_absent = stage(node, good, absent)
    assert of_hidden.error_message.replace(theirs.hex(), (b"\xfe" * 16).hex()) == (
        as_absent.error_message
    )
    node.give(rule(Op.READ, name="theirs"))
    assert stage(node, good, hidden).error_code == NotAuthorized.code
    assert stage(node, hidden, connection=ROOT).error_code == 0
    assert stage(node, good, connection=ANONYMOUS).error_code == NotAuthorized.code


def test_what_is_wrong_with_a_batch_for_a_hidden_topic_is_not_told(node: RightsDriver) -> None:
    make_staged(node)
    theirs = node.create("theirs")
    node.give(rule(Op.WRITE, Kind.TRANSACTIONAL_ID, "id"))
    for batch, partition in ((bytes(batch_of([1], schema_id=9)), 0), (BATCH, 99)):
        found = stage(node, staged_row(theirs, batch, partition=partition))
        assert found.error_code == UnknownTopicId.code
        assert theirs.hex() in found.error_message


def open_as(node: RightsDriver, tid: str, connection: int) -> Any:
    for _ in range(3):
        correlation = node.request(
            OpenTransactionRequest(transactional_id=tid, instance=b"one"), connection=connection
        )
        settle(node)
        answer = node.answer(correlation)
        assert answer is not None
        if not answer[0].error_code:
            break
    return answer[0]


def test_a_commit_needs_the_topics_of_what_is_staged_then(node: RightsDriver) -> None:
    make_staged(node)
    mine = node.create("mine")
    topic_rule, _ = node.give(
        rule(Op.WRITE, name="mine"), rule(Op.WRITE, Kind.TRANSACTIONAL_ID, "app")
    )
    epoch = open_as(node, "app", ALICE).epoch
    row = staged_row(mine, BATCH, transactional_id="app", epoch=epoch, sequence=0)
    result = stage(node, row)
    assert result.error_code == 0, result.error_message
    offset = result.base_offset
    part = CommittedPart(0, offset, offset + 1, 2)
    commit = CommitTransactionRequest(
        transactional_id="app",
        epoch=epoch,
        sequence=0,
        attempts=[CommittedAttempt(ATTEMPT, 2, [part])],
        timeout_ms=1_000,
    )

    def answered() -> Any:
        correlation = node.request(commit, connection=ALICE)
        settle(node)
        answer = node.answer(correlation)
        assert answer is not None
        return answer[0]

    node.give(removals=[topic_rule])
    refused = answered()
    assert refused.error_code == UnknownTopicId.code, refused
    node.give(rule(Op.READ, name="mine"))
    assert answered().error_code == NotAuthorized.code
    assert node.broker_end(mine) == 0, "nothing is published"
    node.give(rule(Op.WRITE, name="mine"))
    done = answered()
    assert done.error_code == 0, done
    assert node.broker_end(mine) == 2


def test_what_is_staged_by_all_is_for_operators(node: RightsDriver) -> None:
    make_staged(node)
    open_as(node, "theirs", ROOT)
    node.give(rule(Op.WRITE, Kind.TRANSACTIONAL_ID, "mine"))
    open_as(node, "mine", ALICE)
    listed = node.call(ListTransactionsRequest(), connection=ALICE)[0]
    assert [one.transactional_id for one in listed.transactions] == ["mine"]
    described = node.call(DescribeTransactionsRequest(), connection=ALICE)[0]
    assert described.staged_bytes_max == 0
    node.give(rule(Op.DESCRIBE, Kind.CLUSTER))
    described = node.call(DescribeTransactionsRequest(), connection=ALICE)[0]
    assert described.staged_bytes_max > 0


def test_the_reason_of_an_internal_wait_is_for_operators(node: RightsDriver) -> None:
    waits = [PublishWait("mine", reason_text="m"), PublishWait(STAGED, reason_text="theirs-0")]
    waits.append(PublishWait("theirs", reason_text="t"))
    node.give(rule(Op.READ, name="mine"))
    rights = node.node.broker.authoriser.rights_of(ALICE)

    def shown() -> list[tuple[str, str]]:
        return [(one.name, one.reason_text) for one in transactions._seen(rights, waits)]

    assert shown() == [("mine", "m"), (STAGED, "")]
    node.give(rule(Op.DESCRIBE, Kind.CLUSTER))
    assert shown() == [("mine", "m"), (STAGED, "theirs-0")]
    assert waits[1].reason_text == "theirs-0", "of the broker, and not changed"


# --- the rules themselves ----------------------------------------------------------------------
def test_rules_are_shown_in_pages_and_by_what_they_are_about(
    node: RightsDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.give(
        rule(Op.READ, name="orders"),
        rule(Op.WRITE, name="or", prefix=True),
        rule(Op.READ, Kind.GROUP, "orders"),
        rule(Op.READ, name="x", who="user:bob"),
    )
    monkeypatch.setattr(acls, "RULES_PER_REQUEST_MAX", 2)

    def shown(**fields: Any) -> tuple[list[int], int]:
        answer = node.call(DescribeAclsRequest(**fields), connection=ROOT)[0]
        return [one.number for one in answer.rules], answer.next_number

    assert shown() == ([1, 2], 3)
    assert shown(first_number=3) == ([3, 4], 0)
    assert shown(principal="user:bob") == ([4], 0)
    assert shown(kind=int(Kind.GROUP)) == ([3], 0)
    assert shown(name="orders", kind=int(Kind.TOPIC)) == ([1, 2], 0)
    assert shown(name="orphan") == ([2], 0)


def test_a_question_is_answered_with_the_rule_that_decides(node: RightsDriver) -> None:
    node.give(rule(Op.READ, name="orders"), rule(Op.READ, name="o", prefix=True, allows=False))

    def ask(
        principal: str, operation: Op = Op.READ, kind: Kind = Kind.TOPIC, name: str = "orders"
    ) -> Any:
        question = RuleQuestion(principal, operation, kind, name)
        return node.call(DescribeAclsRequest(question=question), connection=ROOT)[0]

    alice, root = ask("user:alice"), ask("user:root")
    assert (alice.is_allowed, alice.rule, alice.is_super_user) == (False, 2, False)
    assert (root.is_allowed, root.rule, root.is_super_user) == (True, 0, True)
    assert (ask("user:bob").is_allowed, ask("user:bob").rule) == (False, 0)
    assert alice.is_on
    assert ask("user:alice", Op.CREATE, Kind.GROUP).error_code != 0
    assert ask("user:alice", Op.ALL).error_code != 0
    for name in ("o*", "a b", "x" * (TOPIC_NAME_CHARS_MAX + 1)):
        assert "no name of a topic" in ask("user:alice", name=name).error_message


def test_a_question_about_an_internal_topic_is_answered_as_its_requests_are(
    node: RightsDriver,
) -> None:
    def may(operation: Op, name: str = STAGED) -> tuple[bool, int]:
        question = RuleQuestion("user:alice", operation, Kind.TOPIC, name)
        found = node.call(DescribeAclsRequest(question=question), connection=ROOT)[0]
        assert not found.error_code
        return found.is_allowed, found.rule

    staged = make_staged(node)
    node.give(rule(Op.ALL, prefix=True))
    answer = node.call(node.fetch_request(staged, 0), connection=ALICE)[0]
    assert answer.partitions[0].error_code == NotAuthorized.code
    assert may(Op.READ) == may(Op.DELETE) == (False, 0)
    assert may(Op.WRITE) == (True, 0), "its rows are checked one by one"
    assert may(Op.WRITE, TRANSACTIONS) == (False, 0)
    (number,) = node.give(rule(Op.READ, Kind.CLUSTER))
    assert may(Op.READ) == (True, number)


def test_the_room_of_a_broker_is_shown_to_those_who_may_see_brokers(node: RightsDriver) -> None:
    def room(connection: int) -> int:
        answer = node.call(DescribeReplicasRequest(), connection=connection)[0]
        assert not answer.error_code
        return int(answer.room_bytes)

    node.give(rule(Op.DESCRIBE, prefix=True))
    assert room(ALICE) == -1
    assert room(ROOT) > 0
    node.give(rule(Op.DESCRIBE, Kind.CLUSTER))
    assert room(ALICE) == room(ROOT)


def test_a_producer_that_may_write_no_topic_is_told_so(node: RightsDriver) -> None:
    def refusal() -> Any:
        return node.call(m.InitProducerIdRequest(), connection=ALICE)[0].error_message

    assert refusal() == "user:alice may not write any topic: no rule allows it."
    node.give(rule(Op.WRITE, name="t"), rule(Op.DESCRIBE, name="t", allows=False))
    assert refusal() == "user:alice may not write any topic: rule 2 denies it."


def test_too_many_changes_at_once_are_refused(
    node: RightsDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acls, "RULES_PER_REQUEST_MAX", 2)
    request = AlterAclsRequest(additions=[rule(Op.READ, name=n) for n in "abc"])
    assert node.call(request, connection=ROOT)[0].error_code != 0
    assert node.give(rule(Op.READ, name="a"), rule(Op.READ, name="b")) == [1, 2]


def test_where_nothing_authenticates_each_client_may_all(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path)
    topic_id = node.create("t")
    denied = rule(Op.ALL, prefix=True, allows=False, who="*")
    assert node.call(AlterAclsRequest(additions=[denied]))[0].error_code == 0
    assert node.call(node.fetch_request(topic_id, 0))[0].partitions[0].error_code == 0
    assert not node.call(DescribeAclsRequest())[0].is_on
    assert UnknownTopic.code not in {
        one.error_code for one in node.call(m.MetadataRequest(topics=["t"]))[0].topics
    }


@pytest.mark.parametrize("listener", ["default", "inner"])
@pytest.mark.parametrize("is_set", [False, True])
def test_files_are_named_at_a_listener_that_authenticates_only_where_that_is_set(
    tmp_path: Path, listener: str, is_set: bool
) -> None:
    node = RightsDriver(
        tmp_path,
        listeners={"inner": Address("127.0.0.1", 9293)},
        local_reads_authenticated=is_set,
    )
    topic_id = node.create("t")
    node.produced(topic_id, bytes(batch_of([1] * 20_000)))
    node.give(rule(Op.READ, name="t", who="*"), rule(Op.ALL, name="hidden", who="*"))
    node.send(ConnectionOpened(7, "127.0.0.1:5000", listener))
    node.call(m.HelloRequest(client_id="reader"), connection=7)
    entry = m.FetchPartition(topic_id, 0, offset=0)
    request = m.FetchRequest(partitions=[entry], file_ranges=True)
    result = node.call(request, connection=7)[0].partitions[0]
    assert result.batch_bytes > FILE_RANGE_BYTES_MIN
    assert bool(result.file_ranges) is (is_set or listener == "inner")
