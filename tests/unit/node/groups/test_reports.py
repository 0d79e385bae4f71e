"""Spark queries that report where they read: shown as groups, and nothing is decided by them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quiverlog.core.groups.coordinator import OBSERVED_WRITTEN_MS, OBSERVERS_PER_GROUP_MAX
from quiverlog.errors import GroupFull, InvalidGroup, InvalidRequest
from quiverlog.limits import GROUP_PARTITIONS_MAX, GROUP_TITLE_CHARS_MAX
from quiverlog.node.apis import groups as module
from quiverlog.wire import group_messages as g
from tests.support.groups import GroupDriver, commit_of, refused

ONE, OTHER = b"1" * 16, b"2" * 16


@pytest.fixture
def node(tmp_path: Path) -> GroupDriver:
    return GroupDriver(tmp_path)


def report(node: GroupDriver, reporter: bytes = ONE, group: str = "q", **fields: Any) -> Any:
    offsets = fields.pop("offsets", {0: 7, 2: 9})
    positions = [g.ReportedPosition(node.topic, p, offset, 3) for p, offset in offsets.items()]
    return node.done(
        g.ReportProgressRequest(
            **{
                "group": group,
                "reporter": reporter,
                "title": "late flights",
                "positions": positions,
                "rows_per_s": 5,
                **fields,
            }
        )
    )


def described(node: GroupDriver, group: str = "q") -> Any:
    (found,) = node.done(g.DescribeGroupsRequest(groups=[group])).groups
    return found


def test_two_queries_of_one_name_are_shown_as_two_members(node: GroupDriver) -> None:
    assert report(node).reporter_count == 1
    node.pass_ms(2_000)
    assert report(node, OTHER, offsets={0: 4}, title="again").reporter_count == 2
    found = described(node)
    assert (found.type, found.state) == (g.GroupType.OBSERVER, g.GroupState.EMPTY)
    shown = [(one.member_id, one.title, one.rows_per_s, one.silent_ms) for one in found.members]
    assert shown == [(ONE, "late flights", 5, 2_000), (OTHER, "again", 5, 0)]
    # The slowest counts.
    offsets = [
        (one.partition, one.offset, one.leader_epoch, one.member_id) for one in found.offsets
    ]
    assert offsets == [(0, 4, 3, OTHER), (2, 9, 3, ONE)]
    (listed,) = node.done(g.ListGroupsRequest(types=[g.GroupType.OBSERVER])).groups
    assert (listed.group, listed.member_count) == ("q", 2)


def test_the_newest_report_is_shown_and_one_in_ten_seconds_is_stored(node: GroupDriver) -> None:
    report(node)
    stored = node.machine("q").groups["q"].observed
    for second in range(1, 10):
        node.pass_ms(1_000)
        report(node, offsets={0: 7 + second})
    assert stored[ONE].positions[0].next_offset == 7
    assert described(node).offsets[0].offset == 16
    node.pass_ms(OBSERVED_WRITTEN_MS)
    report(node, offsets={0: 20})
    node.pass_ms(2_000)
    assert node.machine("q").groups["q"].observed[ONE].positions[0].next_offset == 20


def test_a_name_is_a_groups_or_a_querys(node: GroupDriver) -> None:
    node.member(group="g")
    assert "consumers" in refused(report(node, group="g"), InvalidGroup)
    report(node)
    refused(node.done(commit_of(node.topic, 5, group="q")), InvalidGroup)
    entries = [g.CommittedOffset(node.topic, 0, 5)]
    refused(node.done(g.AlterGroupOffsetsRequest(group="q", entries=entries)), InvalidGroup)


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"reporter": b"1" * 15}, InvalidRequest),
        ({"reporter": b"1" * 17}, InvalidRequest),
        ({"group": ""}, InvalidGroup),
        ({"group": "__q"}, InvalidGroup),
        ({"title": "x" * (GROUP_TITLE_CHARS_MAX + 1)}, InvalidRequest),
        ({"offsets": {0: -1}}, InvalidRequest),
        ({"offsets": {-1: 0}}, InvalidRequest),
        ({"offsets": dict.fromkeys(range(GROUP_PARTITIONS_MAX + 1), 0)}, InvalidRequest),
        ({"positions": [g.ReportedPosition(b"t" * 16)] * 2}, InvalidRequest),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_refused(node: GroupDriver, fields: dict[str, Any], kind: Any) -> None:
    refused(report(node, **fields), kind)
    assert "q" not in node.machine("q").groups


def test_each_bound_is_taken(node: GroupDriver) -> None:
    offsets = dict.fromkeys(range(GROUP_PARTITIONS_MAX), 1)
    assert not report(node, title="x" * GROUP_TITLE_CHARS_MAX, offsets=offsets).error_code
    for number in range(2, OBSERVERS_PER_GROUP_MAX + 1):
        assert not report(node, bytes([number]) * 16).error_code
    refused(report(node, b"x" * 16), GroupFull)
    # One that has reported goes on.
    assert not report(node).error_code


def test_a_topic_that_is_gone_is_left_out(node: GroupDriver) -> None:
    report(node, positions=[g.ReportedPosition(b"x" * 16, 0, 4), g.ReportedPosition(node.topic)])
    (offset,) = described(node).offsets
    assert (offset.topic_id, offset.offset) == (node.topic, 0)


def test_a_title_alone_leaves_the_position(node: GroupDriver) -> None:
    """The source reports positions, the listener of the driver the title."""
    report(node, title="")
    report(node, title="late, micro-batch 7", offsets={}, rows_per_s=0)
    report(node, title="", offsets={0: 8})
    found = described(node)
    assert [(one.title, one.rows_per_s) for one in found.members] == [("late, micro-batch 7", 5)]
    assert [one.offset for one in found.offsets] == [8]


def test_positions_come_in_pages(node: GroupDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    report(node, offsets={0: 7, 1: 8, 2: 9, 3: 10})
    monkeypatch.setattr(module, "_PAGE_OFFSETS", 3)
    first = node.done(g.DescribeGroupsRequest(groups=["q"]))
    second = node.done(g.DescribeGroupsRequest(groups=["q"], page=first.next_page))
    assert (bool(first.next_page), second.next_page) == (True, b"")
    found = [[one.offset for one in answer.groups[0].offsets] for answer in (first, second)]
    assert found == [[7, 8, 9], [10]]
    assert [len(answer.groups[0].members) for answer in (first, second)] == [1, 0]


def test_a_query_that_is_silent_for_a_minute_is_not_counted(node: GroupDriver) -> None:
    report(node)
    node.pass_ms(59_999)
    assert report(node, OTHER).reporter_count == 2
    node.pass_ms(1)
    assert report(node, OTHER).reporter_count == 1
