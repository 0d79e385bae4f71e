"""The bounds of the messages of groups: each tried below, at and above."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from quiverlog import limits
from quiverlog.errors import (
    CorruptFrame,
    InvalidGroup,
    InvalidRequest,
    InvalidResponse,
    QuiverlogError,
)
from quiverlog.wire import frames
from quiverlog.wire import group_messages as g

MEMBER = bytes(16)
PARTITIONS_MAX, TOPICS_MAX = limits.GROUP_PARTITIONS_MAX, limits.GROUP_TOPICS_MAX
SESSION = (limits.GROUP_SESSION_TIMEOUT_MS_MIN, limits.GROUP_SESSION_TIMEOUT_MS_MAX)
REBALANCE = (limits.GROUP_REBALANCE_TIMEOUT_MS_MIN, limits.GROUP_REBALANCE_TIMEOUT_MS_MAX)


def beat(**changes: Any) -> g.GroupHeartbeatRequest:
    return g.GroupHeartbeatRequest(
        **{"group": "g", "member_id": MEMBER, "topics": ["t"], **changes}
    )


def commit(count: int = 1, **changes: Any) -> g.CommitOffsetsRequest:
    entries = [g.CommittedOffset(MEMBER, n, 0) for n in range(count)]
    return g.CommitOffsetsRequest(**{"group": "g", "entries": entries, **changes})


def fetch(**changes: Any) -> g.FetchOffsetsRequest:
    return g.FetchOffsetsRequest(**{"group": "g", **changes})


def alter(count: int = 1, **changes: Any) -> g.AlterGroupOffsetsRequest:
    entries = [g.CommittedOffset(MEMBER, n, 0) for n in range(count)]
    return g.AlterGroupOffsetsRequest(**{"group": "g", "entries": entries, **changes})


def partitions(count: int) -> list[g.TopicPartitions]:
    """Of two topics."""
    half = count // 2
    return [
        g.TopicPartitions(bytes(16), list(range(half))),
        g.TopicPartitions(b"1" * 16, list(range(count - half))),
    ]


def judge(request: Any, error: type[QuiverlogError] | None, *words: str) -> None:
    if error is None:
        request.check()
        return
    with pytest.raises(error) as caught:
        request.check()
    for word in words:
        assert word in caught.value.message


@pytest.mark.parametrize("make", [beat, commit, fetch, alter])
@pytest.mark.parametrize(
    ("name", "is_good"),
    [
        ("", False),
        ("g", True),
        ("A.b-c_9", True),
        ("x" * 255, True),
        ("x" * 256, False),
        ("__x", False),
        ("_x", True),
        ("a/b", False),
        ("ü", False),
        ("a\n", False),
    ],
)
def test_the_name_of_a_group(make: Any, name: str, is_good: bool) -> None:
    judge(make(group=name), None if is_good else InvalidGroup, "letters")


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17])
def test_a_member_id_has_16_bytes(length: int) -> None:
    member = bytes(length)
    is_good = length == 16
    judge(beat(member_id=member), None if is_good else InvalidRequest, "16 bytes")
    is_good = length in (0, 16)
    judge(commit(member_id=member), None if is_good else InvalidRequest, "16 bytes")


@pytest.mark.parametrize(
    ("field", "low", "high"),
    [
        ("member_epoch", -2, 2**63 - 1),
        ("beat", 0, 2**63 - 1),
        ("session_timeout_ms", *SESSION),
        ("rebalance_timeout_ms", *REBALANCE),
    ],
)
def test_the_numbers_of_a_heartbeat(field: str, low: int, high: int) -> None:
    assert SESSION == (6_000, 1_800_000)
    for value in (low, high):
        judge(beat(**{field: value}), None)
    if field.endswith("timeout_ms"):
        judge(beat(**{field: -1}), None)
    for value in (low - 1, high + 1):
        judge(beat(**{field: value}), InvalidRequest, field, str(value))


@pytest.mark.parametrize("field", ["instance_id", "rack"])
def test_the_texts_of_a_heartbeat(field: str) -> None:
    judge(beat(**{field: "x" * 255}), None)
    judge(beat(**{field: "x" * 256}), InvalidRequest, field)
    judge(beat(**{field: "a\x00b"}), InvalidRequest, field)


def test_topics_of_a_heartbeat() -> None:
    judge(beat(topics=None), None)
    judge(beat(topics=[]), None)
    names = [f"t{n}" for n in range(TOPICS_MAX + 1)]
    judge(beat(topics=names[:-1]), None)
    judge(beat(topics=names), InvalidRequest, "10001 topics")
    judge(beat(topics=["a", "a"]), InvalidRequest, "twice")
    for name in ("__groups", "", "a/b", "x" * 250):
        judge(beat(topics=[name]), InvalidRequest, "no name of a topic")


@pytest.mark.parametrize(
    "make", [lambda topics: beat(owned=topics), lambda topics: fetch(topics=topics)]
)
def test_partitions_of_a_request(make: Any) -> None:
    judge(make(None), None)
    judge(make(partitions(PARTITIONS_MAX)), None)
    judge(make(partitions(PARTITIONS_MAX + 1)), InvalidRequest, "10001 partitions")
    judge(make([g.TopicPartitions(MEMBER), g.TopicPartitions(MEMBER)]), InvalidRequest, "twice")


@pytest.mark.parametrize("make", [commit, alter])
def test_entries_of_a_request(make: Any) -> None:
    judge(make(PARTITIONS_MAX), None)
    judge(make(PARTITIONS_MAX + 1), InvalidRequest, "10001 entries")
    twice = [g.CommittedOffset(MEMBER, 1, 0), g.CommittedOffset(MEMBER, 1, 2)]
    judge(make(entries=twice), InvalidRequest, "twice")


def test_a_commit_has_no_negative_epoch() -> None:
    judge(commit(member_epoch=0), None)
    judge(commit(member_epoch=-1), InvalidRequest, "member_epoch")


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (g.CommittedOffset(MEMBER, 0, 0), ""),
        (g.CommittedOffset(MEMBER, 0, 2**63 - 1, -1, "ü" * 2_048), ""),
        (g.CommittedOffset(MEMBER, 0, -1), "-1"),
        (g.CommittedOffset(MEMBER, 0, 0, -2), "-2"),
        (g.CommittedOffset(MEMBER, 0, 0, 0, "x" * 4_097), "4097 bytes"),
        (g.CommittedOffset(MEMBER, 0, 0, 0, "ü" * 2_049), "4098 bytes"),
    ],
)
def test_an_entry(entry: g.CommittedOffset, why: str) -> None:
    found = g.why_no_offset(entry)
    assert bool(found) is bool(why)
    assert why in found


@pytest.mark.parametrize(
    "make",
    [
        lambda n: beat(topics=["t"] * n),
        lambda n: beat(owned=[g.TopicPartitions()] * n),
        lambda n: beat(owned=[g.TopicPartitions(b"", [0] * n)]),
        lambda n: fetch(topics=[g.TopicPartitions()] * n),
        commit,
        alter,
    ],
)
def test_twice_the_bounds_is_no_message(make: Callable[[int], g.Request]) -> None:
    most = 2 * PARTITIONS_MAX
    assert frames.decode_request(frames.encode(make(most), 1)[8:]).API is make(0).API
    with pytest.raises(CorruptFrame, match=r"length <=|arrays and maps"):
        frames.decode_request(frames.encode(make(most + 1), 1)[8:])


@pytest.mark.parametrize(
    ("make", "most"),
    [
        (lambda n: g.FetchOffsetsResponse(offsets=[g.FetchedOffset()] * n), PARTITIONS_MAX),
        (lambda n: g.CommitOffsetsResponse(entries=[g.OffsetResult()] * n), PARTITIONS_MAX),
        (lambda n: described(g.GroupDescription(members=[g.GroupMember()] * n)), 1_000),
        (lambda n: described(g.GroupDescription(state=n)), g.GroupState.STABLE),
        (lambda n: described(g.GroupDescription(type=n)), g.GroupType.SIMPLE),
        (
            lambda n: described(g.GroupDescription(members=[g.GroupMember(state=n)])),
            g.MemberState.LEFT,
        ),
        (lambda n: g.DescribeGroupsResponse(next_page=b"p" * n), 4_096),
    ],
)
def test_answers(make: Callable[[int], g.Response], most: int) -> None:
    api = int(make(0).API)
    for count in (most - 1, most):
        frames.decode_response(frames.encode(make(count), 1)[8:], api)
    with pytest.raises(InvalidResponse, match="<="):
        frames.decode_response(frames.encode(make(most + 1), 1)[8:], api)


def described(group: g.GroupDescription) -> g.DescribeGroupsResponse:
    return g.DescribeGroupsResponse(groups=[group])
