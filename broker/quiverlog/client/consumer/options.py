"""The arguments of a consumer, and the checks that need no broker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

from quiverlog.client.cluster.partition_questions import at_us
from quiverlog.client.cluster.replica_choice import FetchFrom, check_fetch_from
from quiverlog.errors import InvalidArgument
from quiverlog.limits import FRAME_BYTES_MAX, HEADER_BYTES_MAX

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ConsumerOptions", "End", "StartAt", "consumer_options"]

StartAt: TypeAlias = (
    Literal["earliest", "latest"]
    | datetime
    | Mapping[int, int | Literal["earliest", "latest"] | datetime]
)
End: TypeAlias = "Literal['latest'] | Mapping[int, int] | None"

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
    start: StartAt,
    end: End,
    follow: bool,
    columns: str | Sequence[str] | None,
    partitions: Sequence[int] | None,
    fetch_bytes: int,
    skip_corrupt: bool,
    fetch_from: FetchFrom,
    client_rack: str,
) -> ConsumerOptions:
    for name, value in (("start", start), ("end", end)):
        if isinstance(value, Mapping) and not all(isinstance(p, int) for p in value):
            raise InvalidArgument(f"{name}={value!r}: partitions are numbers.")
    if partitions is not None and not (
        isinstance(partitions, Iterable) and all(isinstance(p, int) for p in partitions)
    ):
        raise InvalidArgument(f"partitions={partitions!r} is not a list of numbers.")
    return ConsumerOptions(
        start=start,
        end=end,
        follow=follow,
        # A str is a sequence of letters, too.
        columns=(columns,) if isinstance(columns, str) else _tuple(columns),
        partitions=_tuple(partitions),
        fetch_bytes=fetch_bytes,
        skip_corrupt=skip_corrupt,
        fetch_from=fetch_from,
        client_rack=client_rack,
    )


def _tuple(values: Iterable[T] | None) -> tuple[T, ...] | None:
    return None if values is None else tuple(values)
