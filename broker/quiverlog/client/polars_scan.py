"""`quiverlog.scan_polars`: a topic as a lazy frame of polars, by an IO plugin.

Unused columns are not decoded, a limit ends the reading, and a condition's bounds on `_partition`,
`_offset` and `_timestamp` narrow what is fetched.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from .base.arguments import checked, extra
from .client import Client, connect
from .rows.metadata_columns import METADATA_NAMES, OFFSET, PARTITION, TIMESTAMP, table_schema

if TYPE_CHECKING:
    import polars as pl

    from .consumer.options import StartAt

__all__ = ["metadata_condition", "scan_polars"]


# From polars' bounds on the metadata columns to Arrow's.
_TYPES: Final = {
    PARTITION: pa.int32(),
    OFFSET: pa.int64(),
    TIMESTAMP: pa.timestamp("us", "UTC"),
}
_COMPARE: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "Eq": operator.eq,
    "Lt": operator.lt,
    "LtEq": operator.le,
    "Gt": operator.gt,
    "GtEq": operator.ge,
}
_BOUNDS: Final = {
    "Both": ("GtEq", "LtEq"),
    "Left": ("GtEq", "Lt"),
    "Right": ("Gt", "LtEq"),
    "None": ("Gt", "Lt"),
}


def metadata_condition(predicate: pl.Expr, current: pa.Schema) -> pc.Expression | None:
    """Return a condition that is true wherever `predicate` is; None: none is found.

    Args:
        current: the topic's schema. A column of its own with such a name wins.
    """
    from polars.exceptions import PolarsError

    if any(name in current.names for name in METADATA_NAMES):
        return None
    try:
        tree = msgspec.json.decode(predicate.meta.serialize(format="json"))
        return _condition(tree)
    except (PolarsError, msgspec.DecodeError, LookupError, TypeError, ValueError, RecursionError):
        return None  # an unsupported form of polars


def _condition(node: Any) -> pc.Expression | None:
    match node:
        case {"BinaryExpr": {"left": left, "op": "And" | "LogicalAnd", "right": right}}:
            known = [part for part in (_condition(left), _condition(right)) if part is not None]
            return operator.and_(*known) if len(known) == 2 else next(iter(known), None)
        case {"BinaryExpr": {"left": left, "op": "Or" | "LogicalOr", "right": right}}:
            one, other = _condition(left), _condition(right)
            return None if one is None or other is None else one | other
        case {"BinaryExpr": {"left": {"Column": name}, "op": str(op), "right": {"Literal": value}}}:
            return _comparison(name, op, value, flipped=False)
        case {"BinaryExpr": {"left": {"Literal": value}, "op": str(op), "right": {"Column": name}}}:
            return _comparison(name, op, value, flipped=True)
        case {
            "Function": {
                "input": [{"Column": name}, {"Literal": low}, {"Literal": high}],
                "function": {"Boolean": {"IsBetween": {"closed": closed}}},
            }
        }:
            above, below = _BOUNDS[closed]
            one = _comparison(name, above, low, flipped=False)
            other = _comparison(name, below, high, flipped=False)
            return None if one is None or other is None else one & other
    return None


def _comparison(name: str, op: str, literal: Any, *, flipped: bool) -> pc.Expression | None:
    value = _value(name, literal)
    compare = _COMPARE.get(op)
    if value is None or compare is None:
        return None
    column, constant = pc.field(name), pc.scalar(value)
    found: pc.Expression = compare(constant, column) if flipped else compare(column, constant)
    return found


def _value(name: str, literal: Any) -> pa.Scalar | None:
    """Convert to the column's type; None where it does not fit."""
    data_type = _TYPES.get(name)
    match literal:
        case {"Scalar": {"Datetime": [int(ticks), "Microseconds", {"inner": "UTC"}]}}:
            fits_column = name == TIMESTAMP
        case {"Scalar": dict(scalar)} | {"Dyn": dict(scalar)}:
            ((kind, ticks),) = scalar.items()
            fits_column = name != TIMESTAMP and kind.startswith(("Int", "UInt"))
        case _:
            return None
    if data_type is None or not fits_column or not isinstance(ticks, int):
        return None
    try:
        return pa.scalar(ticks, data_type)
    except (pa.ArrowInvalid, OverflowError):
        return None


@checked()
def scan_polars(
    topic: str,
    *,
    bootstrap: str | Iterable[str] | None = None,
    client: Client | None = None,
    start: StartAt = "earliest",
    end: StartAt = "latest",
) -> pl.LazyFrame:
    """Return a lazy frame of a topic's rows, with `_partition`, `_offset`, `_timestamp` at the end.

    Rows are read when it is collected, each time anew, up to `end` as of then.

    Args:
        bootstrap: as in `connect`; a client is opened for each reading.
        client: an open client, instead.
        start: as in `Client.read`. Conditions on `_partition`, `_offset` and `_timestamp` with
            constants narrow what is fetched as well.
        end: as in `Client.read`.
    """
    polars = extra("polars", "scan_polars")
    plugins = extra("polars.io.plugins", "scan_polars")

    @contextlib.contextmanager
    def opened() -> Iterator[Client]:
        if client is not None:
            yield client
            return
        with connect(bootstrap) as own:
            yield own

    def schema() -> pl.Schema:
        with opened() as opened_client:
            return _polars_schema(table_schema(opened_client.schemas(topic).current))

    def rows(
        with_columns: list[str] | None,
        predicate: pl.Expr | None,
        n_rows: int | None,
        _batch_size: int | None,
    ) -> Iterator[pl.DataFrame]:
        with opened() as opened_client:
            current = opened_client.schemas(topic).current
            names = table_schema(current).names if with_columns is None else with_columns
            used = [] if predicate is None else predicate.meta.root_names()
            columns = list(dict.fromkeys([*names, *used]))
            reading = opened_client.read(
                topic,
                columns=columns or None,
                start=start,
                end=end,
                where=None if predicate is None else metadata_condition(predicate, current),
            )
            left = n_rows
            for batch in reading:
                frame: pl.DataFrame = polars.from_arrow(batch)
                if predicate is not None:
                    frame = frame.filter(predicate)
                frame = frame.select(names).head(frame.height if left is None else left)
                if left is not None:
                    left -= frame.height
                yield frame
                if left == 0:
                    return

    found: pl.LazyFrame = plugins.register_io_source(rows, schema=schema)
    return found


def _polars_schema(schema: pa.Schema) -> pl.Schema:
    import polars as pl

    frame = pl.from_arrow(schema.empty_table())
    assert isinstance(frame, pl.DataFrame)
    return frame.schema
