"""Conversion of a caller's data to record batches of the topic's schema.

Lossless: an unknown column, a value that does not fit, a null where none is allowed or a change of
meaning (text to number, local time to UTC) is refused with the column's name. Columns are matched
by name; nullable ones may be left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.types as t

from quiverlog.batch.arrow_types import normalize_type
from quiverlog.batch.halves import first_bad_row
from quiverlog.batch.held_values import can_be_wrong, first_wrong_value
from quiverlog.batch.normalize import cast_array
from quiverlog.batch.plain_arrays import array_of
from quiverlog.batch.rows import check_nested_nulls
from quiverlog.batch.structure import has_required_inside
from quiverlog.batch.unbent import Check, check_of
from quiverlog.client.base import arguments
from quiverlog.errors import InvalidValue, SchemaMismatch

from .why_not import first_line, why_not_type, why_not_value

__all__ = ["Converter"]

_SHOWN = 5
# pandas' name for an index without one.
_INDEX = re.compile(r"__index_level_\d+__").fullmatch
# A list is converted in slices whose values fit the processor's cache.
ROWS_AT_ONCE = 65_536


class Converter:
    """Converts to one schema, without a copy of data that already has it."""

    def __init__(self, schema: pa.Schema, topic: str) -> None:
        self.schema = schema
        self.topic = topic
        self._names = frozenset(schema.names)
        self._checks = {f.name: check_of(f.type) for f in schema}
        self._getters = [(itemgetter(f.name), f.type, self._checks[f.name]) for f in schema]
        self._not_null = [i for i, f in enumerate(schema) if not f.nullable]
        self._questionable = [i for i, f in enumerate(schema) if can_be_wrong(f.type)]
        self._not_null_inside = [i for i, f in enumerate(schema) if has_required_inside(f.type)]

    def batches(self, data: Any) -> list[pa.RecordBatch]:
        """Return record batches of the schema, without empty ones.

        Args:
            data: see `Producer.send`.

        Raises:
            SchemaMismatch: names the column that does not fit.
            InvalidValue: a value is not valid for its type; names column, row and value.
        """
        if isinstance(data, Mapping):
            data = [data]
        if isinstance(data, pa.RecordBatch):
            found = self._from_batches([data])
        elif isinstance(data, list):
            starts = range(0, len(data), ROWS_AT_ONCE)
            found = [self._from_slice(data, start) for start in starts]
        else:
            found = self._from_batches(self._arrow_batches(data))
        return [batch for batch in found if batch.num_rows]

    def from_rows(self, rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
        """Convert dicts. Raises SchemaMismatch: names the column, the row and the value."""
        try:
            batch = self._from_full_rows(rows)
            if batch is None:
                if not all(isinstance(row, Mapping) for row in rows):
                    raise TypeError("a row is no dict")
                unknown = set().union(*rows) - self._names
                if unknown:
                    raise self._unknown_columns(unknown)
                columns = [
                    _unbent_array([row.get(f.name) for row in rows], f.type, self._checks[f.name])
                    for f in self.schema
                ]
                batch = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        except (pa.ArrowException, TypeError, ValueError, AttributeError, OverflowError) as error:
            # The row is searched for only now: rows that fit pay nothing for it.
            raise self._blame_row(rows, error) from error
        self._check_nulls(batch)
        self._check_values(batch)  # a value may be one of Arrow's scalars
        return batch

    def _from_slice(self, rows: list[Mapping[str, Any]], start: int) -> pa.RecordBatch:
        try:
            return self.from_rows(rows[start : start + ROWS_AT_ONCE])
        except SchemaMismatch as error:
            if start and "row" in error.details:  # the row's number in the whole list
                raise self._blame_row(rows, error) from error.__cause__
            raise

    def _from_full_rows(self, rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch | None:
        """Convert the usual case in C: every row has every column. None when one has not."""
        # A row with all columns and no more keys than columns has no others.
        if max(map(len, rows)) != len(self._getters):
            return None
        try:
            columns = [
                _unbent_array(list(map(getter, rows)), type_, check)
                for getter, type_, check in self._getters
            ]
        except KeyError:
            return None
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _arrow_batches(self, data: Any) -> list[pa.RecordBatch]:
        if isinstance(data, pa.Table):
            return list(data.to_batches())
        try:
            if hasattr(data, "__arrow_c_stream__"):
                table = pa.RecordBatchReader.from_stream(data).read_all()
                return list(self._without_index(table).to_batches())
            if hasattr(data, "__arrow_c_array__"):
                return [pa.record_batch(data)]
            why = ""
        except (pa.ArrowException, ValueError, TypeError) as error:
            why = f" ({_words(error)})"  # for example one column in place of rows of columns
        raise SchemaMismatch(
            f"Cannot send a {type(data).__name__}{why}: give a pyarrow RecordBatch or Table, "
            "a dict, a list of dicts, or anything with __arrow_c_stream__.",
            topic=self.topic,
        )

    def _without_index(self, table: pa.Table) -> pa.Table:
        # pandas adds an index column after a selection of rows.
        surplus = [n for n in table.schema.names if _INDEX(n) and n not in self._names]
        return table.drop_columns(surplus) if surplus else table

    def _from_batches(self, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        found, rows_before = [], 0
        for batch in batches:
            converted = self._from_batch(batch, rows_before)
            self._check_values(converted, rows_before)
            found.append(converted)
            rows_before += batch.num_rows
        return found

    def _from_batch(self, batch: pa.RecordBatch, rows_before: int) -> pa.RecordBatch:
        if batch.schema.equals(self.schema):
            self._check_nulls(batch)
            return batch
        names = batch.schema.names
        if unknown := set(names) - self._names:
            raise self._unknown_columns(unknown)
        if len(set(names)) != len(names):
            twice = sorted({n for n in names if names.count(n) > 1})
            raise SchemaMismatch(f"Column {twice[0]!r} is there twice.", topic=self.topic)
        columns = [self._column(batch, field, rows_before) for field in self.schema]
        converted = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        self._check_nulls(converted)
        return converted

    def _column(self, batch: pa.RecordBatch, field: pa.Field, rows_before: int) -> pa.Array:
        if field.name not in batch.schema.names:
            return pa.nulls(batch.num_rows, field.type)
        column = batch.column(field.name)
        if not _keeps_meaning(normalize_type(column.type), field.type):
            raise SchemaMismatch(
                f"Column {field.name!r} of topic {self.topic!r} is {field.type}, the data has "
                f"{column.type}: {why_not_type(normalize_type(column.type), field.type)}.",
                topic=self.topic,
                column=field.name,
            )
        try:
            return cast_array(column, field.type)
        except (pa.ArrowException, ValueError, TypeError) as error:
            row = _first_row_not_cast(column, field.type)
            raise SchemaMismatch(
                f"Column {field.name!r} of topic {self.topic!r} is {field.type}; row "
                f"{rows_before + row} holds {_shown(column[row])} ({column.type}), which does not "
                f"fit: {first_line(error)}.",
                topic=self.topic,
                column=field.name,
                row=rows_before + row,
            ) from error

    # --- refusals -------------------------------------------------------------------------------
    def _check_nulls(self, batch: pa.RecordBatch) -> None:
        for i in self._not_null:
            if batch.column(i).null_count:
                name = self.schema.field(i).name
                raise SchemaMismatch(
                    f"Column {name!r} of topic {self.topic!r} must not be null, and "
                    f"{batch.column(i).null_count} of {batch.num_rows} rows have no value for it.",
                    topic=self.topic,
                    column=name,
                )
        for i in self._not_null_inside:
            try:
                check_nested_nulls(batch.column(i))
            except ValueError as error:
                name = self.schema.field(i).name
                raise SchemaMismatch(
                    f"Column {name!r} of topic {self.topic!r}: {error}.",
                    topic=self.topic,
                    column=name,
                ) from error

    def _check_values(self, batch: pa.RecordBatch, rows_before: int = 0) -> None:
        # After the conversion: a cast may keep values that neither type holds.
        for i in self._questionable:
            wrong = first_wrong_value(batch.column(i))
            if wrong is not None:
                field = self.schema.field(i)
                row = rows_before + wrong.row
                raise InvalidValue(
                    f"Column {field.name!r} of topic {self.topic!r} is {field.type}; row {row} "
                    f"holds {wrong.shown}, which {wrong.why}.",
                    topic=self.topic,
                    column=field.name,
                    row=row,
                )

    def _unknown_columns(self, unknown: set[Any]) -> SchemaMismatch:
        shown = ", ".join(repr(n) for n in sorted(map(str, unknown))[:_SHOWN])
        more = f" and {len(unknown) - _SHOWN} more" if len(unknown) > _SHOWN else ""
        has = ", ".join(f"{f.name} {f.type}" for f in self.schema)
        return SchemaMismatch(
            f"Topic {self.topic!r} has no column {shown}{more}; it has: {has}.",
            topic=self.topic,
            columns=sorted(map(str, unknown)),
        )

    def _blame_row(self, rows: Sequence[Any], error: Exception) -> SchemaMismatch:
        for index, row in enumerate(rows):
            if not isinstance(row, Mapping):
                return SchemaMismatch(
                    f"Item {index} of the list is a {type(row).__name__}, not a dict.",
                    topic=self.topic,
                    row=index,
                )
        for field in self.schema:
            for index, row in enumerate(rows):
                value = row.get(field.name)
                try:
                    _unbent_array([value], field.type, self._checks[field.name])
                except (pa.ArrowException, TypeError, ValueError, OverflowError) as cause:
                    return SchemaMismatch(
                        f"Column {field.name!r} of topic {self.topic!r} is {field.type}; row "
                        f"{index} holds {arguments.shown(value)} ({type(value).__name__}): "
                        f"{why_not_value(value, field.type, first_line(cause))}.",
                        topic=self.topic,
                        column=field.name,
                        row=index,
                    )
        return SchemaMismatch(f"The rows do not fit: {first_line(error)}.", topic=self.topic)


def _unbent_array(values: list[Any], kind: pa.DataType, check: Check | None) -> pa.Array:
    made = array_of(values, kind)  # first: pyarrow's own refusals keep their form
    if check is not None:
        check(values)
    return made


def _first_row_not_cast(column: pa.Array, kind: pa.DataType) -> int:
    def is_good(start: int, count: int) -> bool:
        try:
            cast_array(column.slice(start, count), kind)
        except (pa.ArrowException, ValueError, TypeError):
            return False
        return True

    return first_bad_row(len(column), is_good)


def _shown(value: pa.Scalar) -> str:
    try:
        found = value.as_py()
    except (pa.ArrowException, ValueError, OverflowError):
        return str(value)
    return str(found) if isinstance(found, Decimal) else arguments.shown(found)


def _keeps_meaning(source: pa.DataType, target: pa.DataType) -> bool:
    """Return True if fitting values mean the same in `target`. Both types are normalised."""
    if source == target or t.is_null(source):
        return True
    if t.is_integer(source):
        return bool(t.is_integer(target) or t.is_floating(target) or t.is_decimal(target))
    if t.is_floating(source):  # narrowing a float loses digits silently
        return bool(t.is_floating(target) and target.bit_width >= source.bit_width)
    if t.is_string(source):
        return bool(t.is_binary(target))
    if t.is_decimal(source):
        return bool(t.is_decimal(target))
    if t.is_map(source) and t.is_map(target):
        return _keeps_meaning(source.key_type, target.key_type) and _keeps_meaning(
            source.item_type, target.item_type
        )
    if t.is_list(source) and t.is_list(target):
        return _keeps_meaning(source.value_type, target.value_type)
    if t.is_struct(source) and t.is_struct(target):
        wanted = {f.name: f.type for f in target}
        return all(f.name in wanted and _keeps_meaning(f.type, wanted[f.name]) for f in source)
    return False


def _words(error: Exception) -> str:
    # pyarrow's refusal of pandas' data has two parts, of which the second names the column.
    parts = [str(part).rstrip(".") for part in reversed(error.args)]
    return (": ".join(parts).splitlines() or [type(error).__name__])[0]
