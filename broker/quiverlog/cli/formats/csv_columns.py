"""Names for a CSV file's columns, and numbers that lose their leading zero or plus sign.

Names are made up where a header has none (pandas' index) or one twice. 01234 is a zip code, +4912 a
telephone number: a column that begins so is text where no type is given; elsewhere a whole number
gets a warning.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.types as t

__all__ = ["Padded", "column_names", "is_number", "with_advice"]

INDEX: Final = "index"
"""pandas' name for its index, which it writes without one."""
_WHOLE_AS_FLOAT: Final = re.compile(r"not int\d+: invalid value '-?\d+\.0'")
_PADDED: Final = r"^\s*[+-]?0[0-9]|^\s*\+[0-9]"


def column_names(
    header: Sequence[str], topic: pa.Schema | None, chosen: Sequence[str] | None
) -> tuple[list[str], list[str]]:
    """Return names for all columns, and notes about made-up ones.

    Args:
        chosen: the columns that the user takes; None: all.
    """
    taken = set(header)
    has_all_names = topic is not None and "" in topic.names  # Then the header's "" is a name.
    names: list[str] = []
    notes: list[str] = []
    for number, given in enumerate(header):
        name = given
        if (not given and not has_all_names) or given in names:
            name = _free(given or (INDEX if number == 0 else f"column_{number + 1}"), taken, given)
            if chosen is None or name in chosen:
                notes.append(_note(number, given, name))
        taken.add(name)
        names.append(name)
        is_made_up = name != given
        if is_made_up and topic is not None and chosen is None and name not in topic.names:
            all_names = ",".join(dict.fromkeys(filter(None, header)))
            raise pa.ArrowInvalid(
                f"{_what(number, given)}, and the topic has no column {name!r}, as it would be "
                f"called: choose columns with --columns {all_names}"
                + (", or write the file without the index (index=False)" if number == 0 else "")
            )
    return names, notes


def _free(name: str, taken: set[str], given: str) -> str:
    """Return `a_1` for the second `a`, like `quiverlog sql`."""
    found, number = name, 0
    while found in taken or found == given:
        number += 1
        found = f"{name}_{number}"
    return found


def _what(number: int, given: str) -> str:
    if given:
        return f"column {given!r} is there twice"
    return f"column {number + 1} has no name" + (" (an index of pandas?)" if number == 0 else "")


def _note(number: int, given: str, name: str) -> str:
    return f"{_what(number, given)}: it is taken as {name!r}"


def with_advice(message: str) -> str:
    if "expected a zone offset" in message:
        message = message.partition(". If these")[0].replace("expected a zone offset in ", "")
        return f"{message} has no time zone: write one behind it (Z, +02:00), or use timestamp_ntz"
    message = message.replace(
        "not Rescaling Decimal value would cause data loss",
        "a value has more digits behind the point than the column's type",
    )
    if _WHOLE_AS_FLOAT.search(message):
        message += (
            ' (pandas writes whole numbers so where some are missing: .astype("Int64") first)'
        )
    return message


def is_number(kind: pa.DataType) -> bool:
    return bool(t.is_integer(kind) or t.is_floating(kind) or t.is_decimal(kind))


class Padded:
    """Finds numbers with a leading zero or plus sign: in the text first, as most have none."""

    def __init__(self, delimiter: str) -> None:
        mark = re.escape(delimiter.encode())
        # Patterns that begin with a literal: `re` searches for those fast.
        self._zeros = [re.compile(begin + b"-?0[0-9]") for begin in (mark, rb"\n", rb"\r")]
        self._quoted = re.compile(rb'"[+-]?0?[0-9]')
        self._plus = re.compile(rb"\+[0-9]")

    def may_be_in(self, text: bytes) -> bool:
        """Return False where the text has none; True: `first` must check the columns."""
        if text[:1] in (b"0", b"+", b"-") or self._plus.search(text) or self._quoted.search(text):
            return True
        return any(zeros.search(text) for zeros in self._zeros)

    @staticmethod
    def first(column: pa.ChunkedArray) -> str | None:
        import pyarrow.compute as pc

        found = column.filter(pc.match_substring_regex(column, _PADDED))
        return str(found[0]) if len(found) else None
