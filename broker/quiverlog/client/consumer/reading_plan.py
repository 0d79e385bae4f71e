"""The plan of a bounded read: fixed offsets, one schema, the columns to decode."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from quiverlog.client.base.arguments import ROWS_SHOWN_MAX, cells, html_table
from quiverlog.client.base.commands import Operation
from quiverlog.client.base.results import TopicInfo
from quiverlog.client.cluster.answers import about
from quiverlog.client.cluster.metadata import partition_info
from quiverlog.client.cluster.partition_questions import at_us
from quiverlog.client.cluster.routing import Cluster
from quiverlog.client.rows.decoding import ConsumerBatch
from quiverlog.client.rows.metadata_columns import (
    METADATA_NAMES,
    RowFilter,
    add_metadata,
    check_condition,
    filter_of,
    mentioned,
    with_metadata,
)
from quiverlog.errors import InvalidArgument, QuiverlogError
from quiverlog.types import LATEST

from .options import FETCH_BYTES_MIN, ConsumerOptions
from .positions import PositionFinder

if TYPE_CHECKING:
    from quiverlog.client.rows.metadata_bounds import MetadataBounds

__all__ = ["ReadPlan", "ReadProgress", "html_of_reading", "plan_read"]

_LOOKED_AT_MAX: Final = 10_000
"""Rows that are read to show those of a condition: it may hold for none."""


class ReadProgress(NamedTuple):
    """The progress of a read. `rows` counts also rows that the condition leaves out."""

    topic: str
    rows: int
    rows_total: int


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """A read with fixed ends. `ranges`: partition -> (first offset, end); none is empty."""

    topic: str
    schema: pa.Schema
    ranges: Mapping[int, tuple[int, int]]
    options: ConsumerOptions
    row_filter: RowFilter | None
    has_metadata: bool

    @property
    def rows_total(self) -> int:
        """The rows in the ranges, before the condition selects some."""
        return sum(end - start for start, end in self.ranges.values())

    def first(self) -> ReadPlan:
        """Return the plan of the few rows that are shown in a notebook."""
        left = ROWS_SHOWN_MAX if self.row_filter is None else _LOOKED_AT_MAX
        ranges = {}
        for partition, (start, end) in self.ranges.items():
            if left == 0:
                break
            ranges[partition] = (start, min(end, start + left))
            left -= ranges[partition][1] - start
        return self.over(ranges, fetch_bytes=FETCH_BYTES_MIN)

    def over(self, ranges: Mapping[int, tuple[int, int]], **changed: Any) -> ReadPlan:
        """Return this plan over other offsets, which are settled."""
        options = replace(
            self.options,
            start={p: start for p, (start, _) in ranges.items()},
            end={p: stop for p, (_, stop) in ranges.items()},
            partitions=tuple(ranges),
            is_settled=True,
            **changed,
        )
        return replace(self, ranges=ranges, options=options)

    def shaped(self, batch: ConsumerBatch) -> pa.RecordBatch:
        rows = add_metadata(batch) if self.has_metadata else batch.data
        if self.row_filter is not None:
            rows = self.row_filter.chosen(rows)
        if rows.schema.names != self.schema.names:
            rows = rows.select(self.schema.names)
        assert rows.schema.equals(self.schema), (rows.schema, self.schema)
        return rows


def html_of_reading(caption: str, first: Iterable[pa.RecordBatch], plan: ReadPlan) -> str:
    """Return the first rows of `plan` as a table; an error of the read as its caption."""
    try:
        rows = pa.Table.from_batches(first, plan.schema).slice(0, ROWS_SHOWN_MAX)
    except QuiverlogError as error:
        return html_table(f"{caption}: {error}", plan.schema.names, [])
    left_out = plan.rows_total - rows.num_rows
    if plan.row_filter is not None:
        # How many of the others the condition chooses is not known.
        caption += f"; of the first {min(plan.rows_total, _LOOKED_AT_MAX):,} rows"
        left_out = 0
    columns = [cells(column) for column in rows.columns]
    lines = [tuple(column[row] for column in columns) for row in range(rows.num_rows)]
    return html_table(caption, plan.schema.names, lines, left_out=left_out)


def plan_read(
    cluster: Cluster, topic: str, options: ConsumerOptions, *, end: Any, where: Any
) -> Operation[ReadPlan]:
    """Ask for offsets and schema. `end` and `where`: as in `Client.read`."""
    if where is not None:
        check_condition(where)

    def attempt() -> Operation[ReadPlan]:
        info = yield from cluster.topic(topic, fresh=True)
        finder = PositionFinder(cluster, topic, info.topic_id, replace(options, columns=None))
        starts, latest = yield from _bounds(finder, info, options)
        ends = yield from _ends(finder, latest, end)
        ranges = {p: (start, max(start, ends[p])) for p, start in starts.items()}
        # After the ends: all rows below them were written with this schema or an older one.
        history = yield from cluster.history(info.topic_id, topic, fresh=True)
        plan = _shape(topic, history.current, options, where)
        if isinstance(where, pc.Expression):
            from quiverlog.client.rows.metadata_bounds import (
                MetadataBounds,  # imports pyarrow.dataset, and so pandas
            )

            current = history.current
            bounds = MetadataBounds(where, with_metadata(current), own=current.names)
            ranges = yield from _narrowed(finder, bounds, ranges)
        ranges = {p: (start, stop) for p, (start, stop) in ranges.items() if start < stop}
        return plan.over(ranges, topic_id=info.topic_id)

    return (yield from about(topic, cluster.retrying(attempt)))


def _bounds(
    finder: PositionFinder, info: TopicInfo, options: ConsumerOptions
) -> Operation[tuple[dict[int, int], dict[int, int]]]:
    wanted = options.partitions
    chosen = [p.partition for p in info.partitions] if wanted is None else list(wanted)
    for partition in finder.named_partitions(chosen):
        partition_info(info, partition)
    positions = yield from finder.resolve(chosen)
    latest = {p: position.end or 0 for p, position in positions.items()}
    return {p: position.offset for p, position in positions.items()}, latest


def _ends(finder: PositionFinder, latest: dict[int, int], end: Any) -> Operation[dict[int, int]]:
    wanted = {p: end.get(p, "latest") if isinstance(end, Mapping) else end for p in latest}
    asked = {p: at_us(at) for p, at in wanted.items() if not isinstance(at, int)}
    asked = {p: at for p, at in asked.items() if at != LATEST}
    found = yield from finder.offsets(asked)
    fixed = {p: at for p, at in wanted.items() if isinstance(at, int)}
    # -1: all rows are older than `end`; the partition is read to its latest offset.
    ends = {**latest, **{p: at for p, at in found.items() if at >= 0}, **fixed}
    return {p: min(at, latest[p]) for p, at in ends.items()}


def _narrowed(
    finder: PositionFinder, bounds: MetadataBounds, ranges: Mapping[int, tuple[int, int]]
) -> Operation[dict[int, tuple[int, int]]]:
    kept = {p: bounds.offsets(p, start, end) for p, (start, end) in ranges.items()}
    time_us = bounds.time_us_min()
    if time_us == 0:
        return kept
    asked = [p for p, (start, end) in kept.items() if start < end]
    since = yield from finder.offsets(dict.fromkeys(asked, time_us))
    for p, offset in since.items():
        start, end = kept[p]
        # -1: all rows are older than the condition allows.
        kept[p] = (end if offset < 0 else min(end, max(start, offset)), end)
    return kept


def _shape(topic: str, current: pa.Schema, options: ConsumerOptions, where: Any) -> ReadPlan:
    full = with_metadata(current)
    if options.columns is None:
        schema = current
    else:
        unknown = [name for name in options.columns if name not in full.names]
        if unknown:
            raise InvalidArgument(
                f"Topic {topic!r} has no column {unknown[0]!r}; it has {', '.join(full.names)}."
            )
        twice = [name for at, name in enumerate(options.columns) if name in options.columns[:at]]
        if twice:
            raise InvalidArgument(f"columns: {twice[0]!r} is named twice; name each column once.")
        schema = pa.schema([full.field(name) for name in options.columns])
    used = set(schema.names)
    row_filter = None
    if where is not None:
        used |= mentioned(where, full.names)
    fetched = pa.schema([f for f in current if f.name in used] or [_cheapest(current)])
    has_metadata = any(name in used and name not in current.names for name in METADATA_NAMES)
    if where is not None:
        row_filter = filter_of(where, with_metadata(fetched) if has_metadata else fetched)
    return ReadPlan(
        topic,
        schema,
        {},
        replace(options, columns=None, reader_schema=fetched),
        row_filter,
        has_metadata,
    )


_WIDE: Final = 1 << 20


def _cheapest(current: pa.Schema) -> pa.Field:
    # Some column is needed to count rows.
    def cost(field: pa.Field) -> int:
        try:
            return int(field.type.bit_width)
        except ValueError:
            return _WIDE

    return min(current, key=cost)
