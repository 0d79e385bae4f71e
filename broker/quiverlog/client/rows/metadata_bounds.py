"""The partitions, offsets and times for which an Arrow expression can be true.

Arrow finds them: it drops a dataset's fragment whose guarantee (`_offset < 100`) the condition
contradicts, and keeps what it cannot decide: bounds are never too narrow. The fragments' files are
never opened. A topic's own column of such a name sets no bounds.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from quiverlog.batch.numbers import integer

from .metadata_columns import OFFSET, PARTITION, TIMESTAMP

__all__ = ["MetadataBounds"]

_MOMENT: Final = pa.timestamp("us", "UTC")
TIME_US_MAX: Final = 1 << 60


class MetadataBounds:
    """`schema` has the columns that the condition may use; `own` names those of the topic."""

    def __init__(
        self, condition: pc.Expression, schema: pa.Schema, *, own: Collection[str] = ()
    ) -> None:
        self._condition = condition
        self._schema = schema
        self._own = frozenset(own)
        self._format = ds.IpcFileFormat()
        self._filesystem = LocalFileSystem()

    def offsets(self, partition: int, start: int, end: int) -> tuple[int, int]:
        """Return the part of [start, end) that holds all rows that can be selected."""
        assert 0 <= start <= end, (start, end)
        here = pc.scalar(True)
        if PARTITION not in self._own:
            here = pc.field(PARTITION) == integer(partition, pa.int32())
        if start == end or not self._can_hold(here):
            return start, start
        if OFFSET in self._own:
            return start, end

        def between(low: int, high: int) -> bool:
            return self._can_hold(here & _range(OFFSET, low, high, pa.int64()))

        # Rows can be selected from the first on, and up to the second.
        first = _last(start, end, lambda at: not between(start, at))
        after = -_last(-end, -first, lambda at: not between(-at, end))
        assert start <= first <= after <= end, (start, first, after, end)
        return first, after

    def time_us_min(self) -> int:
        """Return the time before which no row can be selected; 0: no bound."""
        # None for the end: producers' clocks differ, and older times may follow younger ones.
        if TIMESTAMP in self._own:
            return 0
        return _last(
            0, TIME_US_MAX, lambda at: not self._can_hold(_range(TIMESTAMP, 0, at, _MOMENT))
        )

    def _can_hold(self, promise: pc.Expression) -> bool:
        made: Any = ds.FileSystemDataset.from_paths(
            ["rows"],
            schema=self._schema,
            format=self._format,
            filesystem=self._filesystem,
            partitions=[promise],
        )
        return any(True for _ in made.get_fragments(filter=self._condition))


def _range(name: str, low: int, high: int, data_type: pa.DataType) -> pc.Expression:
    field = pc.field(name)
    return (field >= integer(low, data_type)) & (field < integer(high, data_type))


def _last(low: int, high: int, holds: Any) -> int:
    """Bisect: `holds` is true from `low` to the result."""
    assert low <= high, (low, high)
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low
