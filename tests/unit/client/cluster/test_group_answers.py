"""Answers about groups that do not fit their requests."""

from __future__ import annotations

import pytest

from quiverlog.client.cluster.answers import check_answer
from quiverlog.errors import InvalidResponse, NotLeader
from quiverlog.wire import group_messages as g
from quiverlog.wire import messages as m

T = b"t" * 16
ENTRY = g.CommittedOffset(T, 0, 1)
COMMIT, ALTER = (
    kind(entries=[ENTRY]) for kind in (g.CommitOffsetsRequest, g.AlterGroupOffsetsRequest)
)
FETCH = g.FetchOffsetsRequest(topics=[g.TopicPartitions(T, [0, 1])], page=b"p")
ALL = g.FetchOffsetsRequest()
LIST = g.ListGroupsRequest(first_group="c")
DESCRIBE = g.DescribeGroupsRequest(groups=["a", "b"], page=b"p")
DELETE = g.DeleteGroupsRequest(groups=["a", "b"])


def beat(epoch: int) -> g.GroupHeartbeatRequest:
    return g.GroupHeartbeatRequest(member_epoch=epoch)


def fetched(*partitions: int, then: bytes = b"") -> g.FetchOffsetsResponse:
    return g.FetchOffsetsResponse(
        offsets=[g.FetchedOffset(T, n) for n in partitions], next_page=then
    )


def listed(*names: str, then: str = "") -> g.ListGroupsResponse:
    return g.ListGroupsResponse(groups=[g.GroupListing(one) for one in names], next_group=then)


def described(*names: str, then: bytes = b"") -> g.DescribeGroupsResponse:
    return g.DescribeGroupsResponse(
        groups=[g.GroupDescription(one) for one in names], next_page=then
    )


def deleted(*names: str) -> g.DeleteGroupsResponse:
    return g.DeleteGroupsResponse(groups=[g.GroupResult(one) for one in names])


@pytest.mark.parametrize(
    ("request_", "response"),
    [
        (beat(0), g.GroupHeartbeatResponse(member_epoch=0)),
        (beat(-1), g.GroupHeartbeatResponse(member_epoch=-1)),
        (beat(-2), g.GroupHeartbeatResponse(member_epoch=-2)),
        (beat(3), g.GroupHeartbeatResponse(error_code=NotLeader.code)),
        (COMMIT, g.CommitOffsetsResponse(entries=[g.OffsetResult(T, 0)])),
        (COMMIT, g.CommitOffsetsResponse(error_code=NotLeader.code)),
        (ALTER, g.AlterGroupOffsetsResponse(entries=[g.OffsetResult(T, 0, 99)])),
        (FETCH, fetched(1, then=b"q")),
        (ALL, fetched(0, 7)),
        (LIST, listed("c", "d", then="e")),
        (LIST, listed(then="d")),
        (DESCRIBE, described("b", then=b"q")),
        (DELETE, deleted("a", "b")),
    ],
)
def test_answers_that_fit(request_: m.Request, response: m.Response) -> None:
    check_answer(request_, response, 0)


@pytest.mark.parametrize(
    ("request_", "response", "why"),
    [
        (beat(0), g.GroupHeartbeatResponse(member_epoch=-1), "the epoch -1"),
        (beat(-1), g.GroupHeartbeatResponse(member_epoch=-2), "the epoch -2"),
        (COMMIT, g.CommitOffsetsResponse(), "were asked for"),
        (ALTER, g.AlterGroupOffsetsResponse(entries=[g.OffsetResult(T, 1)]), "were asked for"),
        (FETCH, fetched(0, 0), "twice"),
        (FETCH, fetched(2), "partitions of others"),
        (FETCH, fetched(0, then=b"p"), "followed by itself"),
        (FETCH, fetched(0, then=b"o"), "an earlier one"),
        (LIST, listed("b"), "from 'c' on come as"),
        (LIST, listed("d", "c"), "from 'c' on come as"),
        (LIST, listed("d", then="d"), "is followed by"),
        (DESCRIBE, described("c"), "Of other groups"),
        (DESCRIBE, described("a", "a"), "Of other groups"),
        (DESCRIBE, described("a", then=b"p"), "followed by itself"),
        (DELETE, deleted("b", "a"), "other groups"),
    ],
)
def test_answers_that_do_not_fit(request_: m.Request, response: m.Response, why: str) -> None:
    with pytest.raises(InvalidResponse, match=why):
        check_answer(request_, response, 0)
