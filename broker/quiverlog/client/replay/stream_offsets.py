"""The offset of a stream, as Spark keeps it in the checkpoint.

Its JSON is versioned and canonical: Spark compares texts, and would run empty batches for ever on
texts that differ without cause. An offset is the next row to read: ranges are half-open.

```
{"v":1,"topics":{"flights":{"id":"<32 hex digits>","partitions":{"0":[23,4]}}}}
```

`[23,4]` is a `Position`. The topic id detects a topic created again under its name; the epoch
detects rows replaced by a truncation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from quiverlog.errors import InvalidArgument
from quiverlog.types import GROUP_NAME, NO_EPOCH

__all__ = ["ID_DIGITS", "Position", "SourceOffset", "TopicPositions", "begin_positions"]

OFFSET_VERSION: Final = 1
OFFSET_MAX: Final = 2**63 - 1
EPOCH_MAX: Final = 2**31 - 1
TOPIC_ID_DIGITS: Final = 32
ID_DIGITS: Final = 8
KEYS: Final = frozenset({"v", "topics", "_start", "_first", "_resume", "_kept", "_id", "_group"})


class Position(NamedTuple):
    """Next row to read, and the leader epoch of the row before it (-1: unknown)."""

    offset: int
    epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class TopicPositions:
    """`topic_id` is 32 hex digits."""

    topic_id: str
    partitions: Mapping[int, Position]


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """A point in the stream: a position per partition.

    `is_start`: from `initialOffset()`, not durable. `first`: the start of the very first
    micro-batch. `resume`: where the batch that ends here begins, for new partitions and those where
    rows were lost. `kept`: positions of partitions that the options do not select now. `query_id`:
    8 hex digits, drawn for the first end and carried on by all later ones: a source gets
    neither the query's id nor its name. "": of an earlier release, or a start. `group`:
    the option `groupId`, for those who see the offset alone; "": none.
    """

    topics: Mapping[str, TopicPositions]
    is_start: bool = False
    first: Mapping[str, TopicPositions] | None = None
    resume: Mapping[str, TopicPositions] | None = None
    kept: Mapping[str, TopicPositions] | None = None
    query_id: str = ""
    group: str = ""

    def position(self, topic: str, partition: int) -> Position | None:
        positions = self.topics.get(topic)
        return None if positions is None else positions.partitions.get(partition)

    def to_json(self) -> dict[str, Any]:
        """Return the canonical form: topics sorted by name, partitions by number."""
        # An end that Spark logs with the mark would be replaced by the options' start.
        assert not self.is_start or self.first is self.resume is self.kept is None, "no end"
        assert not (self.is_start and self.query_id), "no end"
        result: dict[str, Any] = {"v": OFFSET_VERSION, "topics": _topics_to_json(self.topics)}
        if self.is_start:
            result["_start"] = True
        if self.first is not None:
            result["_first"] = _topics_to_json(self.first)
        if self.resume is not None:
            result["_resume"] = _topics_to_json(self.resume)
        if self.kept is not None:
            result["_kept"] = _topics_to_json(self.kept)
        if self.query_id:
            result["_id"] = self.query_id
        if self.group:
            result["_group"] = self.group
        return result

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SourceOffset:
        """Read what `to_json` wrote, in this or an earlier release.

        Raises:
            InvalidArgument: the JSON is not an offset of this source, or a newer release wrote it.
        """
        version = data.get("v") if isinstance(data, Mapping) else None
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise InvalidArgument(f"the checkpoint holds no quiverlog offset: {_short(data)}")
        if version > OFFSET_VERSION:
            raise InvalidArgument(
                f"the checkpoint's offsets have version {version}, this release reads up to "
                f"{OFFSET_VERSION}: upgrade quiverlog on the driver."
            )
        # Read without it, the offset would give other rows.
        unknown = sorted(set(map(str, data)) - KEYS)
        if unknown:
            raise InvalidArgument(
                f"the checkpoint's offset holds {unknown[0]!r}, which this release does not know: "
                f"upgrade quiverlog on the driver. {_short(data)}"
            )
        try:
            optional = {
                name: _topics_from_json(data[f"_{name}"]) if f"_{name}" in data else None
                for name in ("first", "resume", "kept")
            }
            topics = _topics_from_json(data["topics"])
            is_start = _flag(data.get("_start", False))
            query_id = _query_id(data["_id"]) if "_id" in data else ""
            group = _group(data["_group"]) if "_group" in data else ""
            return cls(topics, is_start, **optional, query_id=query_id, group=group)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidArgument(
                f"the checkpoint's offset is damaged ({error!r}): {_short(data)}"
            ) from error


def begin_positions(
    start: SourceOffset, end: SourceOffset
) -> dict[tuple[str, int], Position | None]:
    """Return where the batch that ends at `end` begins, in each partition of `end`.

    None: the partition's first row, as neither offset has a start (an end from PySpark 4.0 or 4.1,
    where a source gets its start too late).
    """
    # Spark calls `initialOffset()` again until the first micro-batch is committed, and plans with
    # the last answer. One that moves ("latest") would lose rows: the logged end has the start.
    counted = end.first if start.is_start and end.first is not None else start.topics
    result: dict[tuple[str, int], Position | None] = {}
    for topic, ends in end.topics.items():
        sources = (
            (end.resume or {}).get(topic),
            counted.get(topic),
            (start.kept or {}).get(topic),
        )
        usable = [s.partitions for s in sources if s is not None and s.topic_id == ends.topic_id]
        for partition in ends.partitions:
            known = (positions[partition] for positions in usable if partition in positions)
            result[topic, partition] = next(known, None)
    return result


def _topics_to_json(topics: Mapping[str, TopicPositions]) -> dict[str, Any]:
    for positions in topics.values():
        # `from_json` refuses others: after a restart the checkpoint could not be read.
        assert len(positions.topic_id) == TOPIC_ID_DIGITS
        assert all(p.offset >= 0 and p.epoch >= NO_EPOCH for p in positions.partitions.values())
    return {
        name: {
            "id": topics[name].topic_id,
            "partitions": {
                str(partition): list(position)
                for partition, position in sorted(topics[name].partitions.items())
            },
        }
        for name in sorted(topics)
    }


def _topics_from_json(data: Mapping[str, Any]) -> dict[str, TopicPositions]:
    return {
        name: TopicPositions(
            topic_id=_topic_id(topic["id"]),
            partitions={_partition(p): _position(pair) for p, pair in topic["partitions"].items()},
        )
        for name, topic in data.items()
    }


def _topic_id(text: str) -> str:
    if re.fullmatch(f"[0-9a-f]{{{TOPIC_ID_DIGITS}}}", text) is None:
        raise ValueError(f"topic id {text!r}")
    return text


def _query_id(text: str) -> str:
    if re.fullmatch(f"[0-9a-f]{{{ID_DIGITS}}}", text) is None:
        raise ValueError(f"_id {text!r}")
    return text


def _group(text: str) -> str:
    if GROUP_NAME.fullmatch(text) is None:
        raise ValueError(f"_group {text!r}")
    return text


def _partition(text: str) -> int:
    if re.fullmatch("0|[1-9][0-9]{0,8}", text) is None:
        raise ValueError(f"partition {text!r}")
    return int(text)


def _position(pair: list[int]) -> Position:
    if not isinstance(pair, list):
        raise TypeError(f"position {pair!r}")
    offset, epoch = pair
    if type(offset) is not int or type(epoch) is not int:  # JSON's true is an int in Python
        raise TypeError(f"position {pair!r}")
    if not (0 <= offset <= OFFSET_MAX and NO_EPOCH <= epoch <= EPOCH_MAX):
        raise ValueError(f"position {pair!r}")
    return Position(offset, epoch)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"_start {value!r}")
    return value


def _short(data: object) -> str:
    text = repr(data)
    return text if len(text) <= 200 else text[:200] + "..."
