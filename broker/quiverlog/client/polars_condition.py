"""What a condition of polars says of partitions, offsets and times, as a condition of Arrow.

Owns the walk over polars' own JSON of an expression. That form is polars' business and may change:
whatever is not known here says nothing, so that the condition given is at most wider than polars',
which chooses the rows in the end. Knows no I/O.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from .place import OFFSET, PARTITION, PLACE_NAMES, TIMESTAMP

if TYPE_CHECKING:
    import polars as pl

__all__ = ["place_condition"]

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


def place_condition(predicate: pl.Expr, current: pa.Schema) -> pc.Expression | None:
    """True for every row for which `predicate` is; None where nothing is known.

    Args:
        current: the topic's schema. Where it has a column of such a name itself, that is the one
            which polars means.
    """
    from polars.exceptions import PolarsError

    if any(name in current.names for name in PLACE_NAMES):
        return None
    try:
        tree = msgspec.json.decode(predicate.meta.serialize(format="json"))
        return _condition(tree)
    except (PolarsError, msgspec.DecodeError, LookupError, TypeError, ValueError, RecursionError):
        return None  # a form of polars that is not known


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
    """The literal in the column's type; None where it is of another, or does not fit."""
    data_type = _TYPES.get(name)
    match literal:
        case {"Scalar": {"Datetime": [int(ticks), "Microseconds", {"inner": "UTC"}]}}:
            is_meant = name == TIMESTAMP
        case {"Scalar": dict(scalar)} | {"Dyn": dict(scalar)}:
            ((kind, ticks),) = scalar.items()
            is_meant = name != TIMESTAMP and kind.startswith(("Int", "UInt"))
        case _:
            return None
    if data_type is None or not is_meant or not isinstance(ticks, int):
        return None
    try:
        return pa.scalar(ticks, data_type)
    except (pa.ArrowInvalid, OverflowError):
        return None
