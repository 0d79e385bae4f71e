"""Properties of the offset JSON: canonical, lossless, strict."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiverlog.client.replay.stream_offsets import (
    Position,
    SourceOffset,
    TopicPositions,
    begin_positions,
)
from quiverlog.errors import InvalidArgument

positions = st.builds(Position, st.integers(0, 2**62), st.integers(-1, 2**31 - 1))
topics = st.dictionaries(
    st.from_regex(r"[a-z0-9._-]{1,12}", fullmatch=True),
    st.builds(
        TopicPositions,
        st.binary(min_size=16, max_size=16).map(bytes.hex),
        st.dictionaries(st.integers(0, 9_999), positions, max_size=12),
    ),
    max_size=4,
)
offsets = st.one_of(
    st.builds(SourceOffset, topics=topics, is_start=st.just(True)),
    st.builds(
        SourceOffset,
        topics=topics,
        first=st.one_of(st.none(), topics),
        resume=st.one_of(st.none(), topics),
        kept=st.one_of(st.none(), topics),
        query_id=st.one_of(st.just(""), st.from_regex("[0-9a-f]{8}", fullmatch=True)),
        group=st.sampled_from(["", "billing"]),
    ),
)


@given(offsets)
def test_what_is_written_is_read_back(offset: SourceOffset) -> None:
    text = json.dumps(offset.to_json())
    assert SourceOffset.from_json(json.loads(text)) == offset


@given(offsets, st.randoms())
def test_equal_offsets_are_equal_texts(offset: SourceOffset, random: Any) -> None:
    def shuffled(items: Any) -> dict[Any, Any]:
        pairs = list(items)
        random.shuffle(pairs)
        return dict(pairs)

    def shuffle(topics: Any) -> Any:
        return shuffled(
            (name, TopicPositions(t.topic_id, shuffled(t.partitions.items())))
            for name, t in topics.items()
        )

    other = SourceOffset(
        shuffle(offset.topics),
        offset.is_start,
        None if offset.first is None else shuffle(offset.first),
        None if offset.resume is None else shuffle(offset.resume),
        None if offset.kept is None else shuffle(offset.kept),
        offset.query_id,
        offset.group,
    )
    assert json.dumps(other.to_json()) == json.dumps(offset.to_json())


def test_the_text_itself_is_fixed() -> None:
    """Golden: checkpoints in the field hold this."""
    offset = SourceOffset(
        {"b": TopicPositions("0f" * 16, {10: Position(7, 1), 9: Position(0, -1)})},
        first={"b": TopicPositions("0f" * 16, {9: Position(0, -1)})},
        query_id="5eed0f00",
        group="billing",
    )
    assert json.dumps(offset.to_json(), separators=(",", ":")) == (
        '{"v":1,"topics":{"b":{"id":"0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f",'
        '"partitions":{"9":[0,-1],"10":[7,1]}}},'
        '"_first":{"b":{"id":"0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f","partitions":{"9":[0,-1]}}},"_id":"5eed0f00","_group":"billing"}'
    )


def one_position(partition: str, position: Any) -> Any:
    """An offset with one position, as it may lie in a checkpoint that was tampered with."""
    return {"v": 1, "topics": {"a": {"id": "00" * 16, "partitions": {partition: position}}}}


ID, OTHER_ID = "0a" * 16, "0b" * 16


def at(topic_id: str = ID, **partitions: int) -> dict[str, TopicPositions]:
    """Positions in topic `t`: `at(p0=5)`."""
    numbered = {int(name[1:]): Position(offset) for name, offset in partitions.items()}
    return {"t": TopicPositions(topic_id, numbered)}


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        # In the checkpoint the start counts; a `_first` that is still there does not.
        (SourceOffset(at(p0=4)), SourceOffset(at(p0=9)), {0: 4}),
        (SourceOffset(at(p0=4)), SourceOffset(at(p0=9), first=at(p0=1)), {0: 4}),
        # The first batch starts where its end has it, whatever `initialOffset()` returns by now.
        (SourceOffset(at(p0=7), is_start=True), SourceOffset(at(p0=9), first=at(p0=1)), {0: 1}),
        # A partition that appeared, and one that lost rows.
        (SourceOffset(at(p0=4)), SourceOffset(at(p0=9, p1=3), resume=at(p1=2)), {0: 4, 1: 2}),
        (SourceOffset(at(p0=4)), SourceOffset(at(p0=9), resume=at(p0=6)), {0: 6}),
        # A topic that was created anew has nothing to do with the old one's positions.
        (SourceOffset(at(p0=4)), SourceOffset(at(OTHER_ID, p0=9)), {0: None}),
        (
            SourceOffset(at(p0=4)),
            SourceOffset(at(OTHER_ID, p0=9), resume=at(OTHER_ID, p0=0)),
            {0: 0},
        ),
        (SourceOffset(at(p0=4)), SourceOffset(at(p0=9, p1=3)), {0: 4, 1: None}),
        # Selected again: it continues at its last offset, unless rows were lost there.
        (SourceOffset(at(p0=4), kept=at(p1=2)), SourceOffset(at(p0=9, p1=3)), {0: 4, 1: 2}),
        (
            SourceOffset(at(p0=4), kept=at(p1=2)),
            SourceOffset(at(p0=9, p1=9), resume=at(p1=8)),
            {0: 4, 1: 8},
        ),
    ],
)
def test_where_a_batch_begins(
    start: SourceOffset, end: SourceOffset, expected: dict[int, int | None]
) -> None:
    found = begin_positions(start, end)
    offsets = {p: position and position.offset for (_, p), position in found.items()}
    assert offsets == expected


@pytest.mark.parametrize(
    ("data", "names"),
    [
        ({}, "no quiverlog offset"),
        ({"v": 2, "topics": {}}, "upgrade"),
        ({"v": True, "topics": {}}, "no quiverlog offset"),
        ({"v": 1}, "damaged"),
        ({"v": 1, "topics": {"a": {"id": "00", "partitions": {}}}}, "damaged"),
        ({"v": 1, "topics": {"a": {"id": "00" * 16, "partitions": {"0": 5}}}}, "damaged"),
        ({"v": 1, "topics": {"a": {"id": "00" * 16, "partitions": {"0": [-5, 0]}}}}, "damaged"),
        ({"v": 1, "topics": {"a": {"id": "00" * 16, "partitions": {"x": [5, 0]}}}}, "damaged"),
        ({"v": 1, "topics": {"a": {"id": "00" * 16, "partitions": {"0": [5, 0.5]}}}}, "damaged"),
        ([1, 2], "no quiverlog offset"),
        (None, "no quiverlog offset"),
        ("{}", "no quiverlog offset"),
        (23, "no quiverlog offset"),
        ({"flights": {"0": 23}}, "no quiverlog offset"),  # Kafka's
        ({"logOffset": 4}, "no quiverlog offset"),  # a file source's
        ({"v": "1", "topics": {}}, "no quiverlog offset"),
        ({"v": 1.0, "topics": {}}, "no quiverlog offset"),
        ({"v": 0, "topics": {}}, "no quiverlog offset"),
        ({"v": 1, "topics": []}, "damaged"),
        ({"v": 1, "topics": None}, "damaged"),
        ({"v": 1, "topics": {"a": None}}, "damaged"),
        ({"v": 1, "topics": {"a": {"id": "00" * 16}}}, "damaged"),
        ({"v": 1, "topics": {"a": {"id": 7, "partitions": {}}}}, "damaged"),
        ({"v": 1, "topics": {"a": {"id": "00 " * 16, "partitions": {}}}}, "damaged"),
        ({"v": 1, "topics": {"a": {"id": "0G" * 16, "partitions": {}}}}, "damaged"),
        ({"v": 1, "topics": {"a": {"id": "00" * 16, "partitions": []}}}, "damaged"),
        (one_position("-1", [5, 0]), "damaged"),
        (one_position("1_0", [5, 0]), "damaged"),
        (one_position(" 1", [5, 0]), "damaged"),
        (one_position("0", [5]), "damaged"),
        (one_position("0", [5, 0, 1]), "damaged"),
        (one_position("0", "50"), "damaged"),
        (one_position("0", {"5": 0, "6": 0}), "damaged"),
        (one_position("0", [True, 0]), "damaged"),
        (one_position("0", [5, -2]), "damaged"),
        (one_position("0", [2**63, 0]), "damaged"),
        (one_position("0", [5, 2**31]), "damaged"),
        ({"v": 1, "topics": {}, "_start": 1}, "damaged"),
        ({"v": 1, "topics": {}, "_first": None}, "damaged"),
        ({"v": 1, "topics": {}, "_kept": [1]}, "damaged"),
        ({"v": 1, "topics": {}, "_id": ""}, "damaged"),
        ({"v": 1, "topics": {}, "_id": "5EED0F00"}, "damaged"),
        ({"v": 1, "topics": {}, "_id": 5}, "damaged"),
        ({"v": 1, "topics": {}, "_group": ""}, "damaged"),
        ({"v": 1, "topics": {}, "_group": "a/b"}, "damaged"),
        ({"v": 1, "topics": {}, "_newer": {}}, "'_newer', which this release does not know"),
    ],
    ids=str,
)
def test_what_is_no_offset_is_refused(data: Any, names: str) -> None:
    with pytest.raises(InvalidArgument, match=names):
        SourceOffset.from_json(data)
