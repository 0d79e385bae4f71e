"""The arguments of a consumer, and the checks that need no broker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, cast

from quiverlog.client.cluster.partition_questions import at_us
from quiverlog.client.cluster.replica_choice import FetchFrom, check_fetch_from
from quiverlog.errors import InvalidArgument
from quiverlog.limits import FRAME_BYTES_MAX, HEADER_BYTES_MAX

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "ConsumerEnd",
    "ConsumerOptions",
    "ConsumerStart",
    "Partitions",
    "StartAt",
    "StartOf",
    "consumer_options",
    "options_by_topic",
]

StartOf: TypeAlias = int | Literal["earliest", "latest"] | datetime
StartAt: TypeAlias = Literal["earliest", "latest"] | datetime | Mapping[int, StartOf]
End: TypeAlias = "Literal['latest'] | Mapping[int, int] | None"

# Of one topic partitions are numbers; of several they are pairs of a topic's name and a number. As
# the key of a mapping this is Any: no mapping of one kind would be one of both.
ConsumerStart: TypeAlias = Literal["earliest", "latest"] | datetime | Mapping[Any, StartOf]
ConsumerEnd: TypeAlias = "Literal['latest'] | Mapping[Any, int] | None"
Partitions: TypeAlias = "Sequence[int | tuple[str, int]] | None"

T = TypeVar("T")

FETCH_BYTES_MIN = 64 * 1024


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    start: StartAt
    end: End
    follow: bool
    columns: tuple[str, ...] | None
    partitions: tuple[int, ...] | None
    fetch_bytes: int
    skip_corrupt: bool
    fetch_from: FetchFrom = "leader"
    client_rack: str = ""
    # Refuses another topic with the name; empty: accepts any.
    topic_id: bytes = b""
    # In place of the topic's newest one.
    reader_schema: pa.Schema | None = None
    # `start` and `end` are offsets that leaders have just confirmed: no broker is asked again.
    is_settled: bool = False

    @property
    def follows_all(self) -> bool:
        return self.follow and self.partitions is None

    def __post_init__(self) -> None:
        if self.follow and self.end is not None:
            raise InvalidArgument("follow=True has no end: leave `end` out.")
        if not FETCH_BYTES_MIN <= self.fetch_bytes <= FRAME_BYTES_MAX - HEADER_BYTES_MAX:
            raise InvalidArgument(
                f"fetch_bytes must lie between {FETCH_BYTES_MIN} and "
                f"{FRAME_BYTES_MAX - HEADER_BYTES_MAX}."
            )
        if not isinstance(self.start, Mapping):
            at_us(self.start)
        if self.is_settled:
            assert self.partitions is not None
            assert isinstance(self.start, Mapping)
            assert isinstance(self.end, Mapping)
            assert {*self.partitions} == {*self.start} == {*self.end}
        check_fetch_from(self.fetch_from, self.client_rack)
        if self.columns is not None and not self.columns:
            raise InvalidArgument("columns is empty: leave it out, or name at least one.")
        if self.end is not None and self.end != "latest" and not isinstance(self.end, Mapping):
            raise InvalidArgument(
                f"end={self.end!r} is neither 'latest' nor {{partition: offset}}."
            )


def consumer_options(
    *,
    start: ConsumerStart,
    end: ConsumerEnd,
    follow: bool,
    columns: str | Sequence[str] | None,
    partitions: Partitions,
    fetch_bytes: int,
    skip_corrupt: bool,
    fetch_from: FetchFrom,
    client_rack: str,
) -> ConsumerOptions:
    for name, value in (("start", start), ("end", end)):
        if isinstance(value, Mapping) and not all(isinstance(p, int) for p in value):
            raise InvalidArgument(
                f"{name}={value!r}: partitions are numbers; they are pairs of a topic and a number "
                "where a list of topics is read."
            )
    if partitions is not None and not (
        isinstance(partitions, Iterable) and all(isinstance(p, int) for p in partitions)
    ):
        raise InvalidArgument(f"partitions={partitions!r} is not a list of numbers.")
    return ConsumerOptions(
        start=cast(StartAt, start),
        end=cast(End, end),
        follow=follow,
        # A str is a sequence of letters, too.
        columns=(columns,) if isinstance(columns, str) else _tuple(columns),
        partitions=cast("tuple[int, ...] | None", _tuple(partitions)),
        fetch_bytes=fetch_bytes,
        skip_corrupt=skip_corrupt,
        fetch_from=fetch_from,
        client_rack=client_rack,
    )


def options_by_topic(
    topics: Iterable[str],
    *,
    start: ConsumerStart,
    end: ConsumerEnd,
    partitions: Partitions,
    **others: Any,
) -> dict[str, ConsumerOptions]:
    """Return the options of each topic of a list; `others` are those of all."""
    names = list(topics)
    if not names:
        raise InvalidArgument("topics is empty: name at least one.")
    twice = [name for at, name in enumerate(names) if name in names[:at]]
    if twice:
        raise InvalidArgument(f"Topic {twice[0]!r} is named twice; name each once.")
    for what, value in (("start", start), ("end", end), ("partitions", partitions)):
        if value is not None and not isinstance(value, (str, datetime)):
            _check_pairs(what, value, names)
    found = {}
    for name in names:
        chosen = None if partitions is None else [p for t, p in _pairs(partitions) if t == name]
        if chosen == []:
            raise InvalidArgument(
                f"partitions={partitions!r} has none of topic {name!r}: leave the topic out."
            )
        # A topic that a mapping leaves out gets an empty one: its defaults hold.
        found[name] = consumer_options(
            start=_of_topic(start, name), end=_of_topic(end, name), partitions=chosen, **others
        )
    assert list(found) == names
    return found


def _pairs(keys: Any) -> list[tuple[str, int]]:
    return list(keys)


def _of_topic(value: Any, topic: str) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {p: at for (t, p), at in value.items() if t == topic}


def _check_pairs(what: str, keys: Iterable[Any], topics: Sequence[str]) -> None:
    for key in keys:
        is_pair = isinstance(key, tuple) and len(key) == 2
        if not (is_pair and isinstance(key[0], str) and isinstance(key[1], int)):
            raise InvalidArgument(
                f"{what}: {key!r} is not a pair of a topic and a partition, as ('flights', 0), "
                "which a list of topics needs."
            )
        if key[0] not in topics:
            raise InvalidArgument(f"{what}: {key!r} is of a topic that is not read.")


def _tuple(values: Iterable[T] | None) -> tuple[T, ...] | None:
    return None if values is None else tuple(values)
