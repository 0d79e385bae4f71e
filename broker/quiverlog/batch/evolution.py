"""Schema evolution: allowed changes, reading with another schema, and a topic's schema history.

A change is allowed when every old batch can be read in the new schema without losing a value: new
nullable columns at the end, wider types, NOT NULL becoming nullable; also inside structs, lists and
maps. Readers find columns by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa

from quiverlog.errors import IncompatibleSchema, InvalidArgument, UnknownSchema

__all__ = ["SchemaHistory", "can_widen", "check_readable", "evolve"]

_WIDER: Final[dict[pa.DataType, tuple[pa.DataType, ...]]] = {
    pa.int8(): (pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()),
    pa.int16(): (pa.int32(), pa.int64(), pa.float32(), pa.float64()),
    pa.int32(): (pa.int64(), pa.float64()),
    pa.float32(): (pa.float64(),),
}
"""These keep every value exactly; an int64 does not fit a float64."""


def evolve(old: pa.Schema, new: pa.Schema) -> None:
    _check_fields(list(old), list(new), "column")


def _check_fields(old: list[pa.Field], new: list[pa.Field], what: str) -> None:
    for index, before in enumerate(old):
        if index >= len(new):
            raise IncompatibleSchema(f"{what} {before.name!r} is missing.")
        after = new[index]
        if after.name != before.name:
            raise IncompatibleSchema(
                f"{what} {index + 1} is {before.name!r} and cannot become {after.name!r}."
            )
        _check_field(before, after, f"{what} {before.name!r}")
    # Rows from before have no value for it.
    for added in new[len(old) :]:
        if not added.nullable:
            raise IncompatibleSchema(f"{what} {added.name!r} is new and must be nullable.")


def _check_field(before: pa.Field, after: pa.Field, what: str) -> None:
    # Stored rows may hold nulls that the new schema could not show.
    if before.nullable and not after.nullable:
        raise IncompatibleSchema(f"{what} holds nulls and must stay nullable.")
    old, new = before.type, after.type
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        _check_fields(list(old), list(new), f"{what}, field")
    elif pa.types.is_list(old) and pa.types.is_list(new):
        _check_field(old.value_field, new.value_field, f"{what}, element")
    elif pa.types.is_map(old) and pa.types.is_map(new):
        _check_field(old.key_field, new.key_field, f"{what}, key")
        _check_field(old.item_field, new.item_field, f"{what}, value")
    elif not can_widen(old, new):
        raise IncompatibleSchema(f"{what} is {old} and cannot become {new}.")


def can_widen(old: pa.DataType, new: pa.DataType) -> bool:
    """Return whether every value of `old` is also one of `new`.

    Structs may gain fields anywhere; the others keep their order.
    """
    types = pa.types
    # A column of nulls has no value to lose.
    if old == new or types.is_null(old):
        return True
    if types.is_decimal128(old) and types.is_decimal128(new):
        # More digits after the point must not take digits from before it.
        whole_digits_kept = new.precision - new.scale >= old.precision - old.scale
        return bool(whole_digits_kept and new.scale >= old.scale)
    if types.is_list(old) and types.is_list(new):
        return can_widen(old.value_type, new.value_type)
    if types.is_map(old) and types.is_map(new):
        return can_widen(old.key_type, new.key_type) and can_widen(old.item_type, new.item_type)
    if types.is_struct(old) and types.is_struct(new):
        before = {field.name: field.type for field in old}
        kept = [field for field in new if field.name in before]
        return [field.name for field in kept] == list(before) and all(
            can_widen(before[field.name], field.type) for field in kept
        )
    return new in _WIDER.get(old, ())


def check_readable(stored: pa.Schema, reader: pa.Schema) -> None:
    """Check that rows of `stored` can be read as `reader`, whatever their values.

    Missing columns are null, surplus ones are left out. Raises IncompatibleSchema, with `column`,
    `wanted` and, unless it is missing, `stored`: a type is not wider, or a column is NOT NULL in
    `reader` and missing or nullable in `stored`.
    """
    for wanted in reader:
        index = stored.get_field_index(wanted.name)
        name, details = repr(wanted.name), {"column": wanted.name, "wanted": str(wanted.type)}
        if index < 0:
            if not wanted.nullable:
                raise IncompatibleSchema(
                    f"column {name} is missing and NOT NULL in the reader's schema.", **details
                )
            continue
        field = stored.field(index)
        details["stored"] = str(field.type)
        if not can_widen(field.type, wanted.type):
            raise IncompatibleSchema(
                f"column {name} is {field.type}, in the reader's schema {wanted.type}.", **details
            )
        if not _nulls_are_known(field, wanted):
            raise IncompatibleSchema(
                f"column {name} may hold nulls and is NOT NULL in the reader's schema.", **details
            )


def _nulls_are_known(stored: pa.Field, wanted: pa.Field) -> bool:
    """Return whether `wanted` is nullable wherever `stored` is, at any depth."""
    if stored.nullable and not wanted.nullable:
        return False
    types = pa.types
    old, new = stored.type, wanted.type
    if types.is_list(old) and types.is_list(new):
        return _nulls_are_known(old.value_field, new.value_field)
    if types.is_map(old) and types.is_map(new):
        return _nulls_are_known(old.item_field, new.item_field)
    if types.is_struct(old) and types.is_struct(new):
        olds = {field.name: field for field in old}
        return all(
            _nulls_are_known(olds[field.name], field) if field.name in olds else field.nullable
            for field in new
        )
    return True


class SchemaHistory(Mapping[int, pa.Schema]):
    __slots__ = ("_projections", "_readable", "_schemas", "current", "current_id")

    def __init__(self, schemas: Mapping[int, pa.Schema]) -> None:
        assert schemas, "a topic has at least one schema"
        self._schemas = dict(schemas)
        self.current_id: int = max(schemas)
        self.current: pa.Schema = self._schemas[self.current_id]
        self._projections: dict[tuple[int, tuple[str, ...]], pa.Schema] = {}
        self._readable: dict[int, pa.Schema] = {}

    def __repr__(self) -> str:
        columns = ", ".join(f"{field.name} {field.type}" for field in self.current)
        return f"<SchemaHistory of ids {list(self._schemas)}, current {self.current_id}: {columns}>"

    def __getitem__(self, schema_id: int) -> pa.Schema:
        return self._schemas[schema_id]

    def __iter__(self) -> Iterator[int]:
        return iter(self._schemas)

    def __len__(self) -> int:
        return len(self._schemas)

    def __contains__(self, schema_id: object) -> bool:
        return schema_id in self._schemas

    def schema(self, schema_id: int) -> pa.Schema:
        """Return the schema. Raises UnknownSchema: ask the broker for the topic's schemas again."""
        schema = self._schemas.get(schema_id)
        if schema is None:
            raise UnknownSchema(f"schema id {schema_id} is not among {sorted(self._schemas)}.")
        return schema

    def check_readable(self, schema_id: int, reader: pa.Schema) -> None:
        if self._readable.get(schema_id) is not reader:
            check_readable(self.schema(schema_id), reader)
            self._readable[schema_id] = reader

    def projected(self, columns: Sequence[str], schema_id: int | None = None) -> pa.Schema:
        key = (self.current_id if schema_id is None else schema_id, tuple(columns))
        projection = self._projections.get(key)
        if projection is None:
            projection = project(self.schema(key[0]), columns)
            self._projections[key] = projection
        return projection


def project(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    names = schema.names
    unknown = [name for name in columns if name not in names]
    if unknown:
        raise InvalidArgument(
            f"no column {', '.join(map(repr, unknown))}; there are {', '.join(names)}."
        )
    if len(set(columns)) != len(columns):
        raise InvalidArgument(f"a column is named twice: {', '.join(columns)}.")
    return pa.schema([schema.field(name) for name in columns], metadata=schema.metadata)
