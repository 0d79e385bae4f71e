"""The offset of a stream, as Spark keeps it in the checkpoint.

Owns the JSON: canonical (equal offsets are equal texts: Spark compares texts, and a text that
differs without cause makes it run empty batches for ever) and versioned. An offset is the next row
to read, so a range is half-open.

```
{"v":1,"topics":{"flights":{"id":"<32 hex digits>","partitions":{"0":[23,4]}}}}
```

`[23,4]`: the next row is 23, and the row before it was written under leader epoch 4 (-1: not
known). The topic id tells a topic from one that was created anew under its name; the epoch tells
rows from others that took their offsets after a truncation.

**The durable start.** Spark calls `initialOffset()` twice, and again at each restart until the
first micro-batch is committed, and plans with the last answer; so an answer that moves ("latest")
loses rows. The initial offset is therefore marked `"_start":true` and binds nobody: the first end
offset carries the start it was computed from as `_first`, Spark writes it to its log before it
runs the batch, and the plan takes the start from there. `_resume` does the same in a later end
offset for single partitions: those that are new, and those in which rows were lost and the query
went on behind the gap. Ends that follow carry neither.

**What is not selected now.** `_kept` holds the positions of partitions that the query read before
and that its options no longer select, so that it goes on there when they do again.

`begin_positions` puts all of these together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from quiverlog.errors import InvalidArgument
from quiverlog.types import NO_EPOCH

__all__ = ["Position", "SourceOffset", "TopicPositions", "begin_positions"]

OFFSET_VERSION: Final = 1
OFFSET_MAX: Final = 2**63 - 1
EPOCH_MAX: Final = 2**31 - 1
KEYS: Final = frozenset({"v", "topics", "_start", "_first", "_resume", "_kept"})


class Position(NamedTuple):
    """Next row to read, and the leader epoch of the row before it (-1: not known)."""

    offset: int
    epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class TopicPositions:
    """Positions in one topic. `topic_id` is 32 hex digits."""

    topic_id: str
    partitions: Mapping[int, Position]


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """A point in the stream: a position per partition.

    `is_start`: came from `initialOffset()` and is not durable. `first`: the start of the very
    first micro-batch, carried by that batch's end alone. `resume`: where the batch that ends here
    begins in partitions for which its start does not count. `kept`: positions in partitions that
    the query does not select at present.
    """

    topics: Mapping[str, TopicPositions]
    is_start: bool = False
    first: Mapping[str, TopicPositions] | None = None
    resume: Mapping[str, TopicPositions] | None = None
    kept: Mapping[str, TopicPositions] | None = None

    def position(self, topic: str, partition: int) -> Position | None:
        """The position in a partition, None where the offset does not know it."""
        positions = self.topics.get(topic)
        return None if positions is None else positions.partitions.get(partition)

    def to_json(self) -> dict[str, Any]:
        """The canonical form: keys sorted (partitions by number), whole numbers and texts only."""
        result: dict[str, Any] = {"v": OFFSET_VERSION, "topics": _topics_to_json(self.topics)}
        if self.is_start:
            result["_start"] = True
        if self.first is not None:
            result["_first"] = _topics_to_json(self.first)
        if self.resume is not None:
            result["_resume"] = _topics_to_json(self.resume)
        if self.kept is not None:
            result["_kept"] = _topics_to_json(self.kept)
        return result

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SourceOffset:
        """Read what `to_json` wrote, now or by an earlier release.

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
            return cls(topics, _flag(data.get("_start", False)), **optional)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidArgument(
                f"the checkpoint's offset is damaged ({error!r}): {_short(data)}"
            ) from error


def begin_positions(
    start: SourceOffset, end: SourceOffset
) -> dict[tuple[str, int], Position | None]:
    """Where the batch that ends at `end` begins, in each partition of `end`.

    None: neither offset says so (an end of PySpark 4.0 or 4.1, where a source learns its start too
    late); the partition's first row is meant.
    """
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
    if re.fullmatch("[0-9a-f]{32}", text) is None:
        raise ValueError(f"topic id {text!r}")
    return text


def _partition(text: str) -> int:
    if re.fullmatch("0|[1-9][0-9]{0,8}", text) is None:
        raise ValueError(f"partition {text!r}")
    return int(text)


def _position(pair: list[int]) -> Position:
    if not isinstance(pair, list):
        raise TypeError(f"position {pair!r}")
    offset, epoch = pair
    if type(offset) is not int or type(epoch) is not int:
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
