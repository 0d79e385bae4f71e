"""What the node emits for the audit: denials, logins, changes, and no secret."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quiverlog.batch.schema import serialize_schema
from quiverlog.node.apis.changes import CHANGES
from quiverlog.node.runtime.effects import Audited
from quiverlog.node.security import audit as module
from quiverlog.types import Operation as Op
from quiverlog.wire import messages as m
from quiverlog.wire.authentication_messages import TOKEN
from quiverlog.wire.config_messages import AlterConfigsRequest, ConfigChange
from quiverlog.wire.registry import ADMINISTRATION, APIS
from quiverlog.wire.security.acl_messages import AlterAclsRequest
from quiverlog.wire.security.user_messages import EndTokensRequest, UserChange
from tests.support.logins import alter, create_token, log_in
from tests.support.node import SCHEMA, NodeDriver, batch_of
from tests.support.rights import ALICE, ROOT, RightsDriver, rule


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
