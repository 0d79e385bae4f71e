"""Properties of the offset JSON: canonical, lossless, strict."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_quiverlog.offsets import Position, SourceOffset, TopicPositions, effective_start
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
offsets = st.builds(
    SourceOffset, topics=topics, is_start=st.booleans(), first=st.one_of(st.none(), topics)
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
    )
    assert json.dumps(other.to_json()) == json.dumps(offset.to_json())


def test_the_text_itself_is_fixed() -> None:
    """Golden: checkpoints in the field hold this."""
    offset = SourceOffset(
        {"b": TopicPositions("0f" * 16, {10: Position(7, 1), 9: Position(0, -1)})},
        first={"b": TopicPositions("0f" * 16, {9: Position(0, -1)})},
    )
    assert json.dumps(offset.to_json(), separators=(",", ":")) == (
        '{"v":1,"topics":{"b":{"id":"0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f",'
        '"partitions":{"9":[0,-1],"10":[7,1]}}},'
        '"_first":{"b":{"id":"0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f","partitions":{"9":[0,-1]}}}}'
    )


@given(topics, topics, topics)
def test_the_first_batch_starts_where_its_end_says(old: Any, new: Any, end: Any) -> None:
    """Whatever `initialOffset()` answers later, the start that was logged counts."""
    logged = SourceOffset(end, first=old)
    assert effective_start(SourceOffset(new, is_start=True), logged).topics == old
    # A start out of the checkpoint is never overruled.
    assert effective_start(SourceOffset(new), logged).topics == new
    assert effective_start(SourceOffset(new, is_start=True), logged.without_first()).topics == new


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
    ],
)
def test_what_is_no_offset_is_refused(data: Any, names: str) -> None:
    with pytest.raises(InvalidArgument, match=names):
        SourceOffset.from_json(data)
