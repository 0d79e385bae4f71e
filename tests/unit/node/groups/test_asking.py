"""What people and programs ask about groups: offsets, lists, descriptions, resets, deletions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quiverlog.errors import (
    GroupNotEmpty,
    InvalidGroup,
    InvalidRequest,
    UnknownPartition,
    UnknownTopicId,
    UnstableOffsets,
)
from quiverlog.node.apis import groups as module
from quiverlog.node.groups import coordinators
from quiverlog.wire import group_messages as g
from tests.support.groups import GroupDriver, Played, refused


@pytest.fixture
def node(tmp_path: Path) -> GroupDriver:
    return GroupDriver(tmp_path)


def commit_many(node: GroupDriver, group: str = "g", metadata: str = "") -> None:
    entries = [g.CommittedOffset(node.topic, n, 10 + n, 2, metadata) for n in range(4)]
    response = node.done(g.CommitOffsetsRequest(group=group, entries=entries))
    assert not any(one.error_code for one in response.entries), response


def alter(node: GroupDriver, *entries: tuple[int, int], **fields: Any) -> list[int]:
    """The codes of what is set, by (partition, offset)."""
    made = [g.CommittedOffset(node.topic, *one) for one in entries]
    response = node.done(g.AlterGroupOffsetsRequest(group="g", entries=made, **fields))
    assert not response.error_code, response
    assert [(one.partition) for one in response.entries] == [one[0] for one in entries]
    return [one.error_code for one in response.entries]


def pages(node: GroupDriver, request: Any) -> list[Any]:
    """All answers, until one has no next page."""
    found = []
    for _ in range(50):
        found.append(node.done(request))
        assert not found[-1].error_code, found[-1]
        if not found[-1].next_page:
            return found
        assert found[-1].next_page > request.page
        request = type(request)(
            **{n: getattr(request, n) for n in request.__struct_fields__[3:]},
        )
        request.page = found[-1].next_page
    raise AssertionError("pages without an end")


# --- FETCH_OFFSETS ------------------------------------------------------------------------------
def test_what_was_committed_is_fetched(node: GroupDriver) -> None:
    commit_many(node, metadata="me")
    asked = [g.TopicPartitions(node.topic, [3, 0, 9]), g.TopicPartitions(b"x" * 16, [1])]
    response = node.done(g.FetchOffsetsRequest(group="g", topics=asked))
    found = {(one.topic_id, one.partition): one for one in response.offsets}
    assert len(found) == 4
    three = found[node.topic, 3]
    assert (three.offset, three.leader_epoch, three.metadata) == (13, 2, "me")
    assert three.committed_us > 0
    assert [found[key].offset for key in ((node.topic, 9), (b"x" * 16, 1))] == [-1, -1]
    assert node.offsets() == {0: 10, 1: 11, 2: 12, 3: 13}
    assert node.offsets("another") == {}


def test_offsets_come_in_pages(node: GroupDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    commit_many(node)
    monkeypatch.setattr(module, "_PAGE_OFFSETS", 3)
    monkeypatch.setattr(module, "_PER_STEP", 2)
    asked = [g.TopicPartitions(node.topic, [0, 1, 2, 3, -5])]
    for topics, expected in ((None, [0, 1, 2, 3]), (asked, [-5, 0, 1, 2, 3])):
        answers = pages(node, g.FetchOffsetsRequest(group="g", topics=topics))
        assert [one.partition for page in answers for one in page.offsets] == expected
        assert len(answers) == 2


def test_a_page_has_a_bound_in_bytes(node: GroupDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    commit_many(node, metadata="ü" * 2_048)
    monkeypatch.setattr(module, "REPLY_PAGE_BYTES", 20_000)
    answers = pages(node, g.FetchOffsetsRequest(group="g"))
    assert [len(page.offsets) for page in answers] == [2, 2]
    monkeypatch.setattr(module, "REPLY_PAGE_BYTES", 1)
    assert len(pages(node, g.FetchOffsetsRequest(group="g"))) == 4, "one fits always"


@pytest.mark.parametrize("page", [b"x", b"x" * 19, b"x" * 21])
def test_a_page_that_no_answer_named(node: GroupDriver, page: bytes) -> None:
    refused(node.done(g.FetchOffsetsRequest(group="g", page=page)), InvalidRequest)
    refused(node.done(g.DescribeGroupsRequest(groups=["g"], page=page)), InvalidRequest)


@pytest.mark.parametrize("page", [b"g\0\3", b"\xff\0\1", b"__x\0\1", b"g\0\1" + b"x" * 21])
def test_a_page_of_a_description_that_no_answer_named(node: GroupDriver, page: bytes) -> None:
    refused(node.done(g.DescribeGroupsRequest(groups=["g"], page=page)), InvalidRequest)


def test_a_pending_offset_is_unstable_and_stays(node: GroupDriver) -> None:
    commit_many(node)
    pend(node)
    fetched = node.done(g.FetchOffsetsRequest(group="g", stable=True)).offsets
    assert [one.error_code for one in fetched] == [0, UnstableOffsets.code, 0, 0]
    assert fetched[1].offset == -1
    assert node.offsets()[1] == 11, "the pending one is not shown"
    response = node.commit(99, 1)
    assert [one.error_code for one in response.entries] == [UnstableOffsets.code]
    assert alter(node, (1, 99)) == [UnstableOffsets.code]
    assert alter(node, (1, -1)) == [UnstableOffsets.code]
    (result,) = node.done(g.DeleteGroupsRequest(groups=["g"])).groups
    assert result.error_code == UnstableOffsets.code
    (described,) = node.done(g.DescribeGroupsRequest(groups=["g"])).groups
    assert [one.is_pending for one in described.offsets] == [False, True, False, False]


def pend(node: GroupDriver) -> None:
    """As PREPARE_OFFSETS does: an offset of partition 1."""
    from quiverlog.core.groups.records import Entry, Kind, Pending, Record

    hosted, _ = node.node.broker.groups.ask("g")
    pending = Pending(1, 1, b"d", 1, (Entry(node.topic, 1, 50, 0, ""),), 1)
    record = Record(Kind.PENDING, "g", b"tid", pending)
    hosted.propose([record], node.now, lambda *_: None)
    node.settle()


# --- LIST_GROUPS, DESCRIBE_GROUPS ---------------------------------------------------------------
def test_groups_are_listed_in_pages(node: GroupDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAGE_GROUPS", 2)
    for name in ("c", "a", "b"):
        commit_many(node, name)
    node.member(1, "m")
    first = node.done(g.ListGroupsRequest())
    assert ([one.group for one in first.groups], first.next_group) == (["a", "b"], "c")
    second = node.done(g.ListGroupsRequest(first_group="c"))
    assert [one.group for one in second.groups] == ["c", "m"]
    assert second.next_group == ""
    simple, members = second.groups
    assert (simple.type, simple.state, simple.member_count) == (3, g.GroupState.EMPTY, 0)
    assert (members.type, members.state, members.member_count) == (1, g.GroupState.STABLE, 1)
    assert members.epoch == 1


def test_groups_are_listed_by_state_and_type(node: GroupDriver) -> None:
    commit_many(node)
    node.member(1, "m")

    def listed(**fields: Any) -> list[str]:
        return [one.group for one in node.done(g.ListGroupsRequest(**fields)).groups]

    assert listed(states=[0]) == ["g"]
    assert listed(states=[3]) == ["m"]
    assert listed(types=[1]) == ["m"]
    assert listed(types=[3], states=[0, 3]) == ["g"]
    assert listed(types=[]) == []
    refused(node.done(g.ListGroupsRequest(states=[4])), InvalidRequest)
    refused(node.done(g.ListGroupsRequest(types=[0])), InvalidRequest)


def test_a_group_is_described(node: GroupDriver) -> None:
    one = node.member(1, instance_id="i", rack="r", session_timeout_ms=30_000)
    entries = [g.CommittedOffset(node.topic, 2, 7, 1, "x")]
    ours = {"member_id": one.id, "member_epoch": one.epoch}
    node.done(g.CommitOffsetsRequest(group="g", entries=entries, **ours))
    joining = Played(node, 2)
    joining.beat()
    node.pass_ms(1_000)
    (group,) = node.done(g.DescribeGroupsRequest(groups=["g", "none", "g"])).groups
    assert (group.group, group.type, group.state) == ("g", 1, g.GroupState.RECONCILING)
    assert (group.epoch, group.target_epoch, group.assignor) == (2, 2, "uniform")
    old, new = group.members
    assert (old.member_id, old.instance_id, old.rack) == (one.id, "i", "r")
    assert (old.client_id, old.epoch, old.topics) == ("test-1", 1, ["t"])
    assert [(p.topic_id, p.partitions) for p in old.assignment] == [(node.topic, [0, 1, 2, 3])]
    assert [p.partitions for p in old.target] == [[0, 1]]
    assert (old.state, new.state) == (g.MemberState.STABLE, g.MemberState.JOINING)
    assert old.silent_ms >= 1_000
    assert [x.partition for x in group.offsets] == [0, 1, 2, 3], "what members have, too"
    assert [x.offset for x in group.offsets] == [-1, -1, 7, -1]
    assert {x.member_id for x in group.offsets} == {one.id}
    assert group.offsets[2].metadata == "x"
    one.beat(owned=one.owned())
    (group,) = node.done(g.DescribeGroupsRequest(groups=["g"])).groups
    assert group.members[0].state == g.MemberState.UNREVOKED
    assert [p.partitions for p in group.members[0].revoking] == [[2, 3]]


def test_a_name_that_no_group_can_have_is_left_out(node: GroupDriver) -> None:
    commit_many(node)
    names = ["", "a/b", "__x", "x" * 256, "g", "\ud7ff"]
    (group,) = node.done(g.DescribeGroupsRequest(groups=names)).groups
    assert group.group == "g"


def test_a_description_comes_in_pages(node: GroupDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    commit_many(node, "a", metadata="m" * 100)
    for number in range(3):
        Played(node, number, "b").beat()
    node.member(9, "c")
    whole = node.done(g.DescribeGroupsRequest(groups=["a", "b", "c"]))
    assert [len(one.members) for one in whole.groups] == [0, 3, 1]
    for size in (1, 700, 3_000, 6_000):
        monkeypatch.setattr(module, "REPLY_PAGE_BYTES", size)
        answers = pages(node, g.DescribeGroupsRequest(groups=["c", "a", "b"]))
        merged: dict[str, tuple[list[bytes], list[int]]] = {}
        for group in (one for page in answers for one in page.groups):
            members, offsets = merged.setdefault(group.group, ([], []))
            members += [one.member_id for one in group.members]
            offsets += [one.partition for one in group.offsets]
        assert {name: (len(m), o) for name, (m, o) in merged.items()} == {
            "a": (0, [0, 1, 2, 3]),
            "b": (3, []),
            "c": (1, [0, 1, 2, 3]),
        }
        assert all(len(set(members)) == len(members) for members, _ in merged.values())
    assert len(answers) < 5


# --- ALTER_GROUP_OFFSETS, DELETE_GROUPS ---------------------------------------------------------
def test_offsets_are_set_and_deleted(node: GroupDriver) -> None:
    assert alter(node, (0, 5), (3, 0)) == [0, 0]
    assert node.offsets() == {0: 5, 3: 0}
    assert alter(node, (0, -1), (3, 9), (1, -1)) == [0, 0, 0]
    assert node.offsets() == {3: 9}
    assert alter(node, (3, 10), (3 - 1, 1), validate_only=True) == [0, 0]
    assert node.offsets() == {3: 9}
    assert alter(node, (4, 1), (0, -2)) == [UnknownPartition.code, InvalidRequest.code]
    unknown = g.CommittedOffset(b"x" * 16, 0, 1)
    response = node.done(g.AlterGroupOffsetsRequest(group="g", entries=[unknown]))
    assert response.entries[0].error_code == UnknownTopicId.code


def test_what_a_member_has_is_not_reset(node: GroupDriver) -> None:
    node.create("other")
    one = node.member(1)
    response = node.done(
        g.AlterGroupOffsetsRequest(group="g", entries=[g.CommittedOffset(node.topic, 0, 1)])
    )
    (entry,) = response.entries
    assert entry.error_code == GroupNotEmpty.code
    assert one.id.hex() in entry.error_message
    assert alter(node, (0, -1)) == [GroupNotEmpty.code]
    (result,) = node.done(g.DeleteGroupsRequest(groups=["g"])).groups
    assert result.error_code == GroupNotEmpty.code
    assert "test-1" in result.error_message
    one.leave()
    assert alter(node, (0, 4)) == [0]


def test_a_group_is_deleted_with_all_that_it_has(
    node: GroupDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinators, "RECORDS_AT_ONCE", 2)
    commit_many(node)
    commit_many(node, "h")
    first, second = node.done(g.DeleteGroupsRequest(groups=["none", "g"])).groups
    assert (first.error_code, second.error_code) == (InvalidGroup.code, 0)
    assert node.offsets() == {}
    assert [one.group for one in node.done(g.ListGroupsRequest()).groups] == ["h"]
    node.crash()
    node.settle()
    assert [one.group for one in node.done(g.ListGroupsRequest()).groups] == ["h"]
    assert node.offsets("h") == {0: 10, 1: 11, 2: 12, 3: 13}


def test_an_observer_is_not_joined_committed_to_or_reset(node: GroupDriver) -> None:
    hosted, machine = node.node.broker.groups.ask("spark")
    records = machine.report("spark", b"r" * 16, "query", [], 1.0, node.now)
    node.node.broker.groups.propose(hosted, records, node.now, lambda *_: None)
    node.settle()
    refused(Played(node, 1, "spark").beat(), InvalidGroup)
    refused(node.commit(1, group="spark"), InvalidGroup)
    entries = [g.CommittedOffset(node.topic, 0, 1)]
    refused(node.done(g.AlterGroupOffsetsRequest(group="spark", entries=entries)), InvalidGroup)
    (listed,) = node.done(g.ListGroupsRequest(types=[2])).groups
    assert listed.group == "spark"
