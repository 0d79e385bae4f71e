"""A coordinator of groups on one node: members, commits, what is due, and a failover to itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quiverlog.core.controller.internal_topics import GROUPS
from quiverlog.errors import (
    CoordinatorNotReady,
    FeatureNotFinalised,
    FencedInstance,
    FencedMemberEpoch,
    GroupFull,
    GroupNotEmpty,
    InternalTopic,
    InvalidGroup,
    InvalidRequest,
    OutcomeUnknown,
    ThrottledBroker,
    UnknownMember,
    UnknownPartition,
    UnknownTopicId,
    UnsupportedAssignor,
)
from quiverlog.limits import OFFSETS_RETENTION_MS_DEFAULT
from quiverlog.node.groups import coordinators as module
from quiverlog.types import Durability
from quiverlog.wire import group_messages as g
from quiverlog.wire import messages as m
from quiverlog.wire.config_messages import AlterConfigsRequest, ConfigChange
from tests.support.groups import GroupDriver, Played, commit_of, refused
from tests.support.node import NodeDriver, batch_of

SESSION_MS = 45_000


@pytest.fixture
def node(tmp_path: Path) -> GroupDriver:
    return GroupDriver(tmp_path)


def codes(response: Any) -> list[int]:
    assert not response.error_code, response
    return [one.error_code for one in response.entries]


# --- the topic ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "request_",
    [
        g.GroupHeartbeatRequest(group="g", member_id=bytes(16), topics=["t"]),
        g.CommitOffsetsRequest(group="g"),
        g.AlterGroupOffsetsRequest(group="g"),
    ],
)
def test_the_first_use_has_the_topic_made(tmp_path: Path, request_: Any) -> None:
    node = NodeDriver(tmp_path)
    assert node.node.broker.groups.next_us() is None, "a broker without groups pays nothing"
    refused(node.call(request_)[0], CoordinatorNotReady)
    (topic,) = node.call(m.MetadataRequest())[0].topics
    assert (topic.name, topic.is_internal, len(topic.partitions)) == (GROUPS, True, 16)
    assert topic.durability == Durability.FLUSHED


def test_with_several_replicas_its_level_is_replicated() -> None:
    from quiverlog.core.controller.internal_topics import INTERNAL_TOPICS

    configs = INTERNAL_TOPICS[GROUPS].configs(3)
    assert (configs["durability"], configs["min.insync.replicas"]) == ("replicated", "2")


def test_asking_makes_nothing(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path)
    topic = node.create("t")
    asked = [g.TopicPartitions(topic, [0, 3])]
    response = node.call(g.FetchOffsetsRequest(group="g", topics=asked))[0]
    assert [(one.partition, one.offset) for one in response.offsets] == [(0, -1), (3, -1)]
    assert node.call(g.FetchOffsetsRequest(group="g"))[0].offsets == []
    assert node.call(g.DescribeGroupsRequest(groups=["g"]))[0].groups == []
    assert node.call(g.ListGroupsRequest())[0].groups == []
    (result,) = node.call(g.DeleteGroupsRequest(groups=["g"]))[0].groups
    assert result.error_code == CoordinatorNotReady.code
    assert [one.name for one in node.call(m.MetadataRequest())[0].topics] == ["t"]


def test_it_needs_its_feature_level(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path)
    node.node.broker.metadata.image.feature_level = 3
    node.node.broker.metadata.pending.feature_level = 3
    for request in (
        g.GroupHeartbeatRequest(group="g", member_id=bytes(16), topics=["t"]),
        g.CommitOffsetsRequest(group="g"),
        g.FetchOffsetsRequest(group="g"),
        g.AlterGroupOffsetsRequest(group="g"),
    ):
        assert "level 4" in refused(node.call(request)[0], FeatureNotFinalised)


def test_clients_do_not_write_to_it(node: GroupDriver) -> None:
    topic = node.node.broker.view.image.topics[GROUPS].topic_id
    assert node.produced(topic, batch_of([1])).error_code == InternalTopic.code


# --- members ------------------------------------------------------------------------------------
def test_members_share_partitions_and_one_leaves(node: GroupDriver) -> None:
    one = node.member(1)
    assert one.has == {"t": [0, 1, 2, 3]}
    other = Played(node, 2)
    assert other.beat().member_epoch == 0
    node.pass_ms(250)
    one.beat(owned=one.owned())
    assert one.has == {"t": [0, 1]}
    node.pass_ms(250)
    assert other.beat(owned=[]).assignment in (None, []), "what the first still has is not given"
    one.beat(owned=one.owned())
    other.settle()
    assert other.has == {"t": [2, 3]}
    assert one.leave().member_epoch == -1
    other.settle()
    assert other.has == {"t": [0, 1, 2, 3]}
    refused(Played.beat(one, topics=None, member_epoch=2), UnknownMember)


def test_a_heartbeat_is_answered_when_its_record_is_safe(node: GroupDriver) -> None:
    correlation = node.request(Played(node).request())
    assert node.answer(correlation) is None
    second = node.request(g.DescribeGroupsRequest(groups=["g"]))
    assert node.answer(second) is not None, "who looks waits for nothing"
    fetch = node.request(g.FetchOffsetsRequest(group="g"))
    assert node.answer(fetch) is not None, "no offset pends"
    node.settle()
    answer = node.answer(correlation)
    assert answer is not None
    assert answer[0].member_epoch == 0


def test_a_repetition_rests_on_what_its_first_try_wrote(node: GroupDriver) -> None:
    played = Played(node)
    request = played.request()
    first = node.request(request)
    second = node.request(played.request(beat=1))
    assert [node.answer(one) for one in (first, second)] == [None, None]
    node.settle()
    assert all(node.answer(one) is not None for one in (first, second))


def test_an_epoch_of_the_future_or_the_past_is_fenced(node: GroupDriver) -> None:
    one = node.member(1)
    fenced = node.node.broker.metrics.groups_fenced
    for epoch in (one.epoch + 1, one.epoch + 7):
        refused(one.beat(member_epoch=epoch), FencedMemberEpoch)
    assert fenced["epoch"] == 2
    assert not one.beat().error_code, "the member itself goes on"
    again = one.beat(member_epoch=0, topics=["t"])
    assert (again.member_epoch, len(again.assignment[0].partitions)) == (one.epoch, 4)


def test_a_member_that_waits_for_its_first_target_names_its_topics_once(node: GroupDriver) -> None:
    one = Played(node)
    assert one.beat().member_epoch == 0
    node.pass_ms(250)
    one.fields = {}
    assert one.beat(owned=[]).assignment[0].partitions == [0, 1, 2, 3]


def test_an_older_heartbeat_changes_nothing(node: GroupDriver) -> None:
    one = node.member(1)
    refused(one.beat(beat=1, topics=["none"]), ThrottledBroker)
    assert node.machine().groups["g"].members[one.id].topics == ("t",)


def test_what_a_member_was_never_given_is_told_in_the_log(node: GroupDriver) -> None:
    one = node.member(1)
    strange = [*one.owned(), g.TopicPartitions(b"x" * 16, [1, 2])]
    assert not one.beat(owned=strange).error_code
    (line,) = [x for x in node.lines if x.event == "a member reports what it was not given"]
    assert line.fields["what"] == "2 partitions that it was not given"


def test_newcomers_take_the_assignor_of_the_group(node: GroupDriver) -> None:
    node.member(1, assignor="range")
    assert "range" in refused(Played(node, 2, assignor="uniform").beat(), UnsupportedAssignor)
    refused(Played(node, 3, "h", assignor="sticky").beat(), UnsupportedAssignor)
    assert not Played(node, 2).beat().error_code


def test_an_instance_keeps_its_partitions_for_a_session(node: GroupDriver) -> None:
    one = node.member(1, instance_id="rack-1")
    assert one.leave(-2).member_epoch == -2
    back = Played(node, 7, instance_id="rack-1")
    response = back.beat()
    assert response.assignment[0].partitions == [0, 1, 2, 3]
    text = refused(Played(node, 8, instance_id="rack-1").beat(), FencedInstance)
    assert "rack-1" in text
    assert node.node.broker.metrics.groups_fenced["instance"] == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"member_id": b"short"},
        {"topics": None},
        {"topics": [f"t{n}" for n in range(10_001)]},
        {"session_timeout_ms": 5_999},
        {"session_timeout_ms": 1_800_001},
        {"rebalance_timeout_ms": 999},
        {"rebalance_timeout_ms": 3_600_001},
    ],
)
def test_a_heartbeat_that_is_wrong(node: GroupDriver, fields: dict[str, Any]) -> None:
    refused(Played(node).beat(**fields), InvalidRequest)


@pytest.mark.parametrize("name", ["", "x" * 256, "__x", "a/b"])
def test_the_name_of_a_group(node: GroupDriver, name: str) -> None:
    refused(Played(node, 1, name).beat(), InvalidGroup)
    refused(node.commit(1, group=name), InvalidGroup)
    refused(node.done(g.FetchOffsetsRequest(group=name)), InvalidGroup)
    refused(node.done(g.AlterGroupOffsetsRequest(group=name)), InvalidGroup)
    (result,) = node.done(g.DeleteGroupsRequest(groups=[name])).groups
    assert result.error_code == InvalidGroup.code


def test_the_most_members_of_a_group(node: GroupDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    from quiverlog.core.groups import group as core

    monkeypatch.setattr(core, "GROUP_MEMBERS_MAX", 2)
    node.member(1)
    assert not Played(node, 2).beat().error_code
    refused(Played(node, 3).beat(), GroupFull)


# --- what is due --------------------------------------------------------------------------------
def test_a_silent_member_is_fenced_and_its_partitions_go_on(node: GroupDriver) -> None:
    one = node.member(1)
    other = Played(node, 2)
    other.beat()
    for _ in range(4):
        node.pass_ms(250)
        one.beat(owned=one.owned())
        other.beat(owned=other.owned())
    for _ in range(SESSION_MS // 5_000):
        node.pass_ms(5_000)
        other.beat(owned=other.owned())
    other.settle()
    assert other.has == {"t": [0, 1, 2, 3]}
    assert node.node.broker.metrics.groups_fenced["silent"] == 1
    (line,) = [x for x in node.lines if x.event == "member fenced"]
    assert (line.fields["group"], line.fields["member"]) == ("g", one.id.hex())
    refused(one.beat(), UnknownMember)
    refused(node.commit(1, member_id=one.id, member_epoch=1), UnknownMember)


def test_a_member_that_does_not_give_up_is_fenced(node: GroupDriver) -> None:
    one = node.member(1, rebalance_timeout_ms=10_000)
    Played(node, 2).beat()
    for _ in range(11):
        node.pass_ms(1_000)
        response = one.beat()
    assert response.error_code in (0, UnknownMember.code)
    node.pass_ms(1_000)
    refused(one.beat(), UnknownMember)
    assert node.node.broker.metrics.groups_fenced["unrevoked"] == 1


def test_partitions_that_come_are_given_out_and_a_deleted_topic_goes(node: GroupDriver) -> None:
    one = node.member(1, topics=["t", "late"])
    assert one.has == {"t": [0, 1, 2, 3]}
    node.create("late", partitions=2)
    one.settle()
    assert one.has == {"t": [0, 1, 2, 3], "late": [0, 1]}
    node.done(m.AlterTopicRequest(name="late", partitions=3))
    one.settle()
    assert one.has["late"] == [0, 1, 2]
    node.done(m.DeleteTopicsRequest(names=["t"]))
    one.settle()
    assert one.has == {"late": [0, 1, 2]}
    assert node.node.broker.metrics.group_rebalances >= 4


def test_offsets_of_a_deleted_topic_are_not_those_of_the_next(node: GroupDriver) -> None:
    assert codes(node.commit(5)) == [0]
    node.done(m.DeleteTopicsRequest(names=["t"]))
    node.pass_ms(1_000)
    before, node.topic = node.topic, node.create("t", partitions=4)
    assert node.topic != before
    node.pass_ms(2_000)
    assert node.offsets() == {}
    assert codes(node.done(commit_of(before, 6))) == [UnknownTopicId.code]


def test_offsets_expire_when_the_group_has_been_empty(node: GroupDriver) -> None:
    hour = 3_600_000
    change = ConfigChange("offsets.retention.ms", str(hour))
    assert not node.done(AlterConfigsRequest(changes=[change])).error_code
    assert codes(node.commit(5)) == [0]
    node.pass_ms(hour - 10_000)
    assert node.offsets() == {0: 5}
    node.pass_ms(20_000)
    for _ in range(3):
        node.pass_ms(1_000)
    assert node.offsets() == {}
    assert 7 * 24 * hour == OFFSETS_RETENTION_MS_DEFAULT


def test_members_are_counted_by_their_states(node: GroupDriver) -> None:
    node.member(1)
    Played(node, 2).beat()
    node.pass_ms(module.CENSUS_MS)
    node.pass_ms(1_000)
    members = node.node.broker.metrics.group_members
    assert sum(members.values()) == 2
    assert members["joining"] == 1


# --- a heartbeat that is held back --------------------------------------------------------------
def test_a_member_without_news_may_wait_for_some(node: GroupDriver) -> None:
    one = node.member(1)
    held = node.request(one.request(max_wait_ms=60_000))
    node.settle()
    assert node.answer(held) is None
    Played(node, 2).beat()
    assert node.answer(held) is None, "the target comes later"
    node.pass_ms(250)
    answer = node.answer(held)
    assert answer is not None, "at once, not with the next heartbeat"
    assert answer[0].assignment[0].partitions == [0, 1]


def test_a_held_heartbeat_ends_with_its_interval_or_with_the_next_one(node: GroupDriver) -> None:
    one = node.member(1)
    held = node.request(one.request(max_wait_ms=60_000))
    node.pass_ms(4_999)
    assert node.answer(held) is None
    node.pass_ms(1)
    assert node.answer(held) is not None
    held = node.request(one.request(max_wait_ms=60_000))
    node.settle()
    assert not one.beat().error_code
    assert node.answer(held) is not None
    held = node.request(one.request(max_wait_ms=1_000))
    node.pass_ms(1_000)
    assert node.answer(held) is not None


def test_news_that_come_while_a_record_is_written_are_not_missed(node: GroupDriver) -> None:
    one = node.member(1)
    other = Played(node, 2)
    other.beat()
    node.pass_ms(250)
    one.beat(owned=one.owned())
    other.beat(owned=[])
    assert (one.epoch, other.epoch) == (1, 2)
    node.request(commit_of(node.topic, 5, member_id=one.id, member_epoch=one.epoch))
    held = node.request(other.request(max_wait_ms=60_000, owned=[]))
    # It waits for the commit's flush, and not for the interval, when the first gives up.
    node.request(one.request(owned=one.owned()))
    assert node.answer(held) is None
    node.settle()
    answer = node.answer(held)
    assert answer is not None, "not after the interval"
    assert answer[0].assignment[0].partitions == [2, 3]


def test_only_so_many_heartbeats_are_held_back(
    node: GroupDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HELD_MAX", 1)
    one, other = node.member(1), node.member(1, "h")
    held = node.request(one.request(max_wait_ms=60_000))
    node.settle()
    assert node.done(other.request(max_wait_ms=60_000)).error_code == 0
    assert node.answer(held) is None
    node.pass_ms(5_000)
    assert node.answer(held) is not None
    assert not node.node.broker.groups._held


def test_a_member_that_leaves_ends_its_held_heartbeat(node: GroupDriver) -> None:
    one = node.member(1)
    held = node.request(one.request(max_wait_ms=60_000))
    node.settle()
    one.leave()
    assert node.answer(held) is not None


# --- commits ------------------------------------------------------------------------------------
def test_a_commit_is_answered_when_it_is_safe(node: GroupDriver) -> None:
    one = node.member(1)
    request = commit_of(node.topic, 5, member_id=one.id, member_epoch=one.epoch)
    commit = node.request(request)
    fetch = node.request(g.FetchOffsetsRequest(group="g"))
    assert [node.answer(each) for each in (commit, fetch)] == [None, None]
    node.settle()
    assert codes(node.answer(commit)[0]) == [0]  # type: ignore[index]
    assert [x.offset for x in node.answer(fetch)[0].offsets] == [5]  # type: ignore[index]
    assert node.node.broker.metrics.offset_commits == {"committed": 1, "refused": 0}


def test_commits_of_many_share_one_append(node: GroupDriver) -> None:
    sent = [node.request(commit_of(node.topic, n, 0, f"simple-{n}")) for n in range(50)]
    machines = len(node.node.broker.groups.coordinated())
    appends = len(node.syncs)
    assert appends <= machines, "one for each partition of __groups"
    node.settle()
    assert all(node.answer(one) is not None for one in sent)


@pytest.mark.parametrize(
    ("offset", "partition", "error"),
    [
        (10**12, 0, None),
        (0, 3, None),
        (-1, 0, InvalidRequest),
        (5, 4, UnknownPartition),
        (5, -1, UnknownPartition),
    ],
)
def test_an_entry_of_a_commit(
    node: GroupDriver, offset: int, partition: int, error: type[Exception] | None
) -> None:
    good = g.CommittedOffset(node.topic, 1, 1)
    bad = g.CommittedOffset(node.topic, partition, offset, 3, "m" * 4_096)
    response = node.done(g.CommitOffsetsRequest(group="g", entries=[good, bad]))
    assert codes(response) == [0, 0 if error is None else error.code]  # type: ignore[attr-defined]
    expected = {1: 1} if error else {1: 1, partition: offset}
    assert node.offsets() == expected


def test_other_entries_of_a_commit(node: GroupDriver) -> None:
    entries = [
        g.CommittedOffset(b"x" * 16, 0, 1),
        g.CommittedOffset(b"short", 0, 1),
        g.CommittedOffset(node.node.broker.view.image.topics[GROUPS].topic_id, 0, 1),
        g.CommittedOffset(node.topic, 0, 1, 0, "m" * 4_097),
    ]
    response = node.done(g.CommitOffsetsRequest(group="g", entries=entries))
    unknown = UnknownTopicId.code
    assert codes(response) == [unknown, unknown, unknown, InvalidRequest.code]
    assert node.node.broker.metrics.offset_commits == {"committed": 0, "refused": 4}
    assert node.offsets() == {}


def test_a_commit_of_a_partition_of_another_member(node: GroupDriver) -> None:
    one = node.member(1)
    other = Played(node, 2)
    other.beat()
    ours = {"member_id": one.id, "member_epoch": one.epoch}
    node.pass_ms(250)
    one.beat(owned=None)
    assert codes(node.commit(7, 3, **ours)) == [0], "what it is to give up is its own until then"
    one.settle()
    assert codes(node.commit(8, 0, **ours)) == [0], "an epoch that was only raised fails no commit"
    assert codes(node.commit(8, 3, **ours)) == [FencedMemberEpoch.code]
    other.settle()
    assert codes(node.commit(9, 3, member_id=other.id, member_epoch=other.epoch)) == [0]
    assert codes(node.commit(9, 0, member_id=other.id, member_epoch=other.epoch + 1)) == [95]
    refused(node.commit(9), GroupNotEmpty)
    assert node.offsets() == {0: 8, 3: 9}


def test_an_append_of_unknown_outcome_is_no_commit(node: GroupDriver) -> None:
    assert codes(node.commit(5)) == [0]
    commit = node.request(commit_of(node.topic, 9))
    (hosted, _) = node.node.broker.groups.ask("g")
    hosted.end(OutcomeUnknown("gone"), node.now)
    node.settle()
    answer = node.answer(commit)
    assert answer is not None
    assert answer[0].error_code


# --- a failover ---------------------------------------------------------------------------------
def test_members_go_on_under_their_epochs_after_a_failover(node: GroupDriver) -> None:
    one = node.member(1)
    assert codes(node.commit(5, 2, member_id=one.id, member_epoch=one.epoch)) == [0]
    node.crash()
    node.settle()
    node.pass_ms(SESSION_MS - 1_000)
    response = one.beat()
    assert not response.error_code, "it counts as seen when the coordinator began"
    assert one.has == {"t": [0, 1, 2, 3]}
    assert codes(node.commit(6, 2, member_id=one.id, member_epoch=one.epoch)) == [0]
    assert node.offsets() == {2: 6}
    node.pass_ms(SESSION_MS + 1_000)
    refused(one.beat(), UnknownMember)


def test_a_held_heartbeat_is_not_left_behind(node: GroupDriver) -> None:
    one = node.member(1)
    held = node.request(one.request(max_wait_ms=60_000))
    node.settle()
    hosted, _ = node.node.broker.groups.ask("g")
    hosted.end(CoordinatorNotReady("gone"), node.now)
    node.settle()
    answer = node.answer(held)
    assert answer is not None
    refused(answer[0], CoordinatorNotReady)


def test_a_snapshot_keeps_groups_and_offsets(
    node: GroupDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    from quiverlog.node.transactions import hosted as hosting

    monkeypatch.setattr(hosting, "SNAPSHOT_LOG_BYTES_MIN", 2_000)
    one = node.member(1)
    for offset in range(60):
        node.commit(offset, 1, member_id=one.id, member_epoch=one.epoch)
    topic = node.node.broker.view.image.topics[GROUPS].topic_id
    hosted, _ = node.node.broker.groups.ask("g")
    assert hosted.replica.log.reader.log_start_offset > 0, "rows before the snapshot are gone"
    assert node.offset_of(topic, -2, hosted.replica.name.partition) is not None
    node.crash()
    node.settle()
    assert not one.beat().error_code
    assert node.offsets() == {1: 59}
