"""What the node emits for the audit: denials, logins, changes, and no secret."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quiverlog.batch.schema import serialize_schema
from quiverlog.core.security.acls import NO_RULE
from quiverlog.errors import NotAuthorized, NotController
from quiverlog.node.apis.changes import CHANGES
from quiverlog.node.controller.registrar import Registrar
from quiverlog.node.metadata.metadata import Metadata
from quiverlog.node.runtime.effects import Audited
from quiverlog.node.runtime.events import ConnectionClosed, RequestReceived, Tick
from quiverlog.node.security import audit as module
from quiverlog.node.security.audit import ALLOWED
from quiverlog.types import Operation as Op
from quiverlog.types import ResourceKind as Kind
from quiverlog.wire import messages as m
from quiverlog.wire.authentication_messages import TOKEN
from quiverlog.wire.cluster_messages import DescribeClusterRequest
from quiverlog.wire.config_messages import AlterConfigsRequest, ConfigChange
from quiverlog.wire.registry import ADMINISTRATION, APIS
from quiverlog.wire.security.acl_messages import AlterAclsRequest
from quiverlog.wire.security.user_messages import EndTokensRequest, UserChange
from tests.support.logins import alter, create_token, log_in
from tests.support.node import SCHEMA, NodeDriver, batch_of
from tests.support.rights import ALICE, ROOT, RightsDriver, rule, stage
from tests.support.staged import make_staged, staged_row


@pytest.fixture
def node(tmp_path: Path) -> RightsDriver:
    return RightsDriver(tmp_path)


def taken(node: NodeDriver, event: str) -> list[dict[str, Any]]:
    """Lines of this kind since the last look."""
    found = [dict(one.fields) for one in node.audited if one.fields["event"] == event]
    node.audited.clear()
    return found


def test_a_denial_names_who_from_where_what_and_why(node: RightsDriver) -> None:
    topic_id = node.create("t")
    (number,) = node.give(rule(Op.ALL, name="t", allows=False))
    taken(node, "denied")
    body = bytes(batch_of([1])) * 2
    half = len(body) // 2
    entries = [m.ProducePartition(topic_id, 0, -1, half)] * 2
    node.request(m.ProduceRequest(partitions=entries), body, connection=ALICE)
    (line,) = taken(node, "denied")
    assert line == {
        "event": "denied",
        "connection": ALICE,
        "address": "10.0.0.2",
        "listener": "default",
        "principal": "user:alice",
        "mechanism": "",
        "api": "PRODUCE",
        "resource": "topic t",
        "operation": "write",
        "result": "denied",
        "rule": number,
        "count": 2,
    }


def test_one_that_asks_for_a_hidden_topic_is_recorded_and_one_that_lists_is_not(
    node: RightsDriver,
) -> None:
    topic_id = node.create("t")
    node.audited.clear()
    node.call(m.MetadataRequest(topics=None), connection=ALICE)
    node.call(m.MetadataRequest(topics=["missing"]), connection=ALICE)
    assert taken(node, "denied") == []
    node.call(m.MetadataRequest(topics=["t"]), connection=ALICE)
    node.call(m.TopicSchemasRequest(topic_id=topic_id), connection=ALICE)
    node.call(node.fetch_request(topic_id, 0), connection=ALICE)
    found = [(one["api"], one["operation"], one["count"]) for one in taken(node, "denied")]
    assert found == [
        ("METADATA", "describe", 1),
        ("TOPIC_SCHEMAS", "describe", 1),
        ("FETCH", "read", 1),
    ]


def test_denials_beyond_the_kinds_of_a_call_are_counted(
    node: RightsDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_KINDS_MAX", 2)
    names = [f"t{number}" for number in range(5)]
    node.request(m.CreateTopicsRequest(topics=[_new(n) for n in names]), connection=ALICE)
    found = taken(node, "denied")
    assert sum(one["count"] for one in found) == 5


def test_a_line_shows_a_bounded_part_of_a_name(node: RightsDriver) -> None:
    long = "x" * 100_000
    alter(node, long, UserChange.DELETE, connection=ALICE)
    node.call(m.CreateTopicsRequest(topics=[_new(long)]), connection=ALICE)
    node.call(m.DeleteTopicsRequest(names=[long]), connection=ROOT)
    node.call(EndTokensRequest(owner="root", token_ids=[f"{n:024}" for n in range(900)]))
    lines = [dict(one.fields) for one in node.audited]
    assert len(lines) >= 4
    for line in lines:
        assert len(repr(line)) < 1_000
    node.audited.clear()
    longest = "x" * 512
    rights = node.node.broker.authoriser.rights_of(ALICE)
    assert rights is not None
    with pytest.raises(NotAuthorized):
        rights.check(m.Api.OPEN_TRANSACTION, Op.WRITE, Kind.TRANSACTIONAL_ID, longest)
    node.run_until_idle()
    node.send(Tick())
    assert taken(node, "denied")[0]["resource"] == f"transactional-id {longest}", "whole"


def _new(name: str) -> m.NewTopic:
    return m.NewTopic(name, b"", 1, 1, [], {})


def test_a_change_is_a_line_for_each_topic_with_its_result(node: RightsDriver) -> None:
    node.create("t")
    (line,) = taken(node, "change")
    assert (line["api"], line["resource"], line["result"]) == ("CREATE_TOPICS", "topic t", "ok")
    assert (line["principal"], line["operation"]) == ("user:root", "create")
    node.call(m.DeleteTopicsRequest(names=["t", "missing"]), connection=ROOT)
    found = taken(node, "change")
    assert [(one["resource"], one["result"]) for one in found] == [
        ("topic t", "ok"),
        ("topic missing", "UNKNOWN_TOPIC"),
    ]


def test_changes_of_a_request_that_fail_are_shown_up_to_a_bound_and_denied_ones_once(
    node: RightsDriver,
) -> None:
    taken(node, "change")
    names = [f"t{number}" for number in range(1_000)]
    node.call(m.DeleteTopicsRequest(names=names))
    found = taken(node, "change")
    assert len(found) == 101
    assert (found[-1]["resource"], found[-1]["count"]) == ("others of the request", 900)
    assert {one["result"] for one in found} == {"UNKNOWN_TOPIC"}
    node.call(m.CreateTopicsRequest(topics=[_new("t")]), connection=ALICE)
    assert [one.fields["event"] for one in node.audited] == ["denied"]


def test_a_denial_names_a_client_that_has_gone_meanwhile(node: RightsDriver) -> None:
    node.give(rule(Op.CREATE, name="t", prefix=True))
    node.hold_jobs = True
    taken(node, "denied")
    schema = serialize_schema(SCHEMA)
    names = [f"t{number}" for number in range(20)] + ["secret"]
    topics = [m.NewTopic(name, schema, 1, 1, [], {}) for name in names]
    node.request(m.CreateTopicsRequest(topics=topics), connection=ALICE)
    node.close_connection(ALICE)
    node.hold_jobs = False
    node.run_until_idle()
    (line,) = taken(node, "denied")
    assert (line["principal"], line["address"]) == ("user:alice", "10.0.0.2")


def test_a_denial_and_the_end_of_its_connection_in_one_call(node: RightsDriver) -> None:
    node.connect(7, "bob")
    node.audited.clear()
    asked = RequestReceived(7, DescribeClusterRequest(correlation_id=98), memoryview(b""))
    node._perform(node.handle(asked, ConnectionClosed(7)))
    (line,) = taken(node, "denied")
    assert (line["principal"], line["address"]) == ("user:bob", "10.0.0.9")


@pytest.mark.parametrize(
    ("error", "result"),
    [(OSError(28, "no room"), "STORAGE_FAULT"), (ZeroDivisionError(), "QUIVERLOG_ERROR")],
)
def test_a_change_that_ends_by_another_error_is_recorded(
    node: RightsDriver, monkeypatch: pytest.MonkeyPatch, error: Exception, result: str
) -> None:
    def fail(*_args: object, **_fields: object) -> None:
        raise error

    monkeypatch.setattr(Metadata, "proposal", fail)
    node.audited.clear()
    assert alter(node, "bob", UserChange.CREATE, b"pw").error_code
    (line,) = taken(node, "change")
    assert (line["resource"], line["result"]) == ("user bob: create", result)


def test_rules_that_are_committed_are_recorded_so_also_where_a_broker_lags(
    node: RightsDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = NotController("another is the controller.")
    monkeypatch.setattr(
        Registrar, "everywhere", lambda _self, now: lambda then: then(None, late, now)
    )
    node.audited.clear()
    request = AlterAclsRequest(additions=[rule(Op.READ, name="t")])
    assert node.call(request, connection=ROOT)[0].error_code == NotController.code
    (line,) = taken(node, "change")
    assert line["resource"] == "rule 1: user:alice allow read topic t"
    assert line["result"] == "ok"


def test_what_only_asks_or_validates_is_no_change(node: RightsDriver) -> None:
    taken(node, "change")
    request = AlterAclsRequest(additions=[rule(Op.READ, name="t")], validate_only=True)
    node.call(request, connection=ROOT)
    assert taken(node, "change") == []


def test_a_change_that_fails_has_the_error_and_a_denied_one_is_a_denial(
    node: RightsDriver,
) -> None:
    taken(node, "change")
    node.call(m.AlterTopicRequest(name="missing", partitions=2), connection=ROOT)
    (line,) = taken(node, "change")
    assert line["result"] == "UNKNOWN_TOPIC"
    node.create("t")
    node.give(rule(Op.DESCRIBE, name="t"))
    node.audited.clear()
    node.call(m.AlterTopicRequest(name="t", partitions=2), connection=ALICE)
    assert [one.fields["event"] for one in node.audited] == ["denied"]


def test_rules_are_recorded_with_their_numbers(node: RightsDriver) -> None:
    taken(node, "change")
    node.give(rule(Op.READ, name="or", prefix=True, network="10.0.0.0/8"))
    node.give(removals=[1])
    assert [one["resource"] for one in taken(node, "change")] == [
        "rule 1: user:alice allow read topic or* from 10.0.0.0/8",
        "rule 1 removed",
    ]


def test_logins_are_recorded_and_no_secret_is(node: RightsDriver) -> None:
    assert not alter(node, "bob", UserChange.CREATE, b"tops3cret").error_code
    done = create_token(node, b"k3yk3yk3y", owner="bob")
    assert not done.error_code
    changes = AlterConfigsRequest(changes=[ConfigChange("log.level", "debug")])
    node.call(changes, connection=ROOT)
    node.connect(7, "")
    assert log_in(node, "bob", b"tops3cret", 7).is_done
    node.connect(8, "")
    log_in(node, "bob", b"wr0ng", 8)
    node.connect(9, "")
    log_in(node, done.token_id, b"wr0ng", 9, TOKEN)
    node.call(EndTokensRequest(owner="bob", token_ids=[done.token_id]), connection=ROOT)
    found = [dict(one.fields) for one in node.audited]
    logins = [(o["principal"], o["result"]) for o in found if o["event"] == "login"]
    assert logins == [
        ("user:bob", "ok"),
        ("user:bob", "AUTHENTICATION_FAILED"),
        (f"token:{done.token_id[:4]}", "AUTHENTICATION_FAILED"),
    ]
    text = repr(found)
    for secret in ("tops3cret", "k3yk3yk3y", "wr0ng", done.token_id, "debug"):
        assert secret not in text
    resources = [one["resource"] for one in found if one["event"] == "change"]
    assert resources == [
        "user bob: create",
        f"tokens of bob: {done.token_id[:4]}...",
        "cluster log.level",
        f"tokens of bob: {done.token_id[:4]}...",
    ]


def test_a_proved_login_that_is_not_taken_is_recorded_with_its_reason(node: RightsDriver) -> None:
    assert not alter(node, "bob", UserChange.CREATE, b"pw").error_code
    done = create_token(node, b"k" * 32, owner="bob")
    node.advance(60_001)
    node.connect(7, "")
    assert log_in(node, done.token_id, b"k" * 32, 7, TOKEN).error_code
    assert log_in(node, "bob", b"pw", ALICE).error_code, "it is logged in as alice"
    found = [(o["principal"], o["mechanism"], o["result"]) for o in taken(node, "login")]
    assert found == [
        ("user:bob", TOKEN, "CREDENTIALS_EXPIRED"),
        ("user:bob", "SCRAM-SHA-256", "INVALID_REQUEST"),
    ]


def test_every_api_that_administers_is_a_change() -> None:
    changing = {kind.API for kind in CHANGES}
    assert changing >= ADMINISTRATION
    more = {m.Api.CREATE_TOPICS, m.Api.ALTER_TOPIC, m.Api.CREATE_TOKEN, m.Api.END_TOKENS}
    assert more <= changing
    for kind in CHANGES:
        assert APIS[int(kind.API)].request is kind


def test_where_nothing_authenticates_nothing_is_recorded(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path)
    node.create("t")
    assert node.audited == []
    other = NodeDriver(tmp_path / "other", audit_wanted=True)
    other.create("t")
    assert [dict(one.fields)["resource"] for one in other.audited] == ["topic t"]
    assert isinstance(other.audited[0], Audited)


def test_a_change_is_recorded_also_where_its_client_is_gone(node: RightsDriver) -> None:
    node.hold_jobs = True
    taken(node, "change")
    schema = serialize_schema(SCHEMA)
    topics = [m.NewTopic("late", schema, 1, 1, [], {})]
    node.request(m.CreateTopicsRequest(topics=topics), connection=ROOT)
    node.close_connection(ROOT)
    node.hold_jobs = False
    node.run_until_idle()
    while node.syncs:
        node.flush()
    (line,) = taken(node, "change")
    assert (line["result"], line["principal"], line["address"]) == ("ok", "user:root", "10.0.0.1")


def test_reads_and_writes_of_some_topics_are_recorded_with_the_rule(node: RightsDriver) -> None:
    audited, other = node.create("orders-eu"), node.create("orders")
    reading, writing = node.give(
        rule(Op.READ, name="orders", prefix=True), rule(Op.WRITE, name="orders", prefix=True)
    )
    node.node.broker.audit.set_topics(("orders-*", "absent"))
    taken(node, ALLOWED)
    for topic_id in (audited, other):
        for connection in (ALICE, ROOT):
            result = node.produced(topic_id, bytes(batch_of([1])), connection=connection)
            assert result.error_code == 0
            node.call(node.fetch_request(topic_id, 0), connection=connection)
            node.call(node.fetch_request(topic_id, 99), connection=connection)  # an error: no rows
    found = taken(node, ALLOWED)
    assert [(one["api"], one["operation"], one["principal"], one["rule"]) for one in found] == [
        ("PRODUCE", "write", "user:alice", writing),
        ("FETCH", "read", "user:alice", reading),
        ("PRODUCE", "write", "user:root", NO_RULE),
        ("FETCH", "read", "user:root", NO_RULE),
    ]
    assert {(one["resource"], one["result"], one["count"]) for one in found} == {
        ("topic orders-eu", "ok", 1)
    }
    node.node.broker.audit.set_topics(())
    node.call(node.fetch_request(audited, 0), connection=ALICE)
    assert not taken(node, ALLOWED)


def test_a_parked_fetch_is_recorded_when_it_gets_rows(node: RightsDriver) -> None:
    topic_id = node.create("t")
    (number,) = node.give(rule(Op.READ, name="t"))
    node.node.broker.audit.set_topics(("*",))
    request = node.fetch_request(topic_id, 0, max_wait_ms=10_000)
    correlation = node.request(request, connection=ALICE)
    assert not taken(node, ALLOWED)
    node.produced(topic_id, bytes(batch_of([1])), connection=ROOT)
    assert node.answer(correlation) is not None
    found = taken(node, ALLOWED)
    assert sorted((one["api"], one["rule"]) for one in found) == [
        ("FETCH", number), ("PRODUCE", NO_RULE)
    ]  # fmt: skip


def test_of_staged_rows_the_topics_are_recorded_where_a_commit_puts_them(
    node: RightsDriver,
) -> None:
    make_staged(node)
    mine = node.create("mine")
    number, _ = node.give(rule(Op.WRITE, name="mine"), rule(Op.WRITE, Kind.TRANSACTIONAL_ID, "app"))
    node.node.broker.audit.set_topics(("*",))
    taken(node, ALLOWED)
    row = staged_row(mine, bytes(batch_of([1])), transactional_id="app")
    assert stage(node, row, row).error_code == 0
    assert stage(node, row, connection=ROOT).error_code == 0
    found = taken(node, ALLOWED)
    assert [(one["resource"], one["rule"]) for one in found] == [
        ("topic mine", number), ("topic mine", NO_RULE)
    ]  # fmt: skip


def test_reads_beyond_the_kinds_of_a_call_take_no_place_of_denials(
    node: RightsDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_KINDS_MAX", 2)
    audit = node.node.broker.audit
    audit.set_topics(("*",))
    for name in ("a", "b", "c", "c"):
        audit.allowed(ALICE, m.Api.FETCH, Op.READ, name, NO_RULE)
    audit.denied(ALICE, m.Api.FETCH, Op.READ, Kind.TOPIC, "d", NO_RULE, {})
    assert audit.is_due
    node.call(m.MetadataRequest(), connection=ROOT)
    found = [(one.fields["event"], one.fields["count"]) for one in node.audited]
    assert sorted(found) == [("allowed", 1), ("allowed", 1), ("allowed", 2), ("denied", 1)]


def test_no_topic_is_audited_where_nothing_is(tmp_path: Path) -> None:
    plain = NodeDriver(tmp_path, audit_topics=("*",))
    assert not plain.node.broker.audit.has_topics
    wanted = NodeDriver(tmp_path / "b", audit_topics=("*",), audit_wanted=True)
    assert wanted.node.broker.audit.has_topics
    wanted.produced(wanted.create("t"), bytes(batch_of([1])))
    assert [one["principal"] for one in taken(wanted, ALLOWED)] == ["anonymous"]
