"""`--template`: rows as lines of the user's own form, like kcat's. The grammar:

    %t topic   %p partition   %o offset   %T the row's time, milliseconds since 1970   %% a percent
    %k the key's value (several: with commas)   %s the column `value`, or the whole row as JSON
    %{name} a column's value   \\n \\t \\r \\0 \\\\ as usual

A line end is added unless the template ends with one. Text and bytes are written unchanged, other
values as in JSON, null as nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import IO, Any, Final

import click
import pyarrow as pa

from quiverlog.cli.formats.json_encode import encodable, json_lines, json_text
from quiverlog.client.rows.metadata_columns import with_metadata

__all__ = ["TemplateSink", "parse_template"]

_PART: Final = re.compile(r"%\{([^}]*)\}|%(.?)|\\(.?)|([^%\\]+)", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}
_COLUMNS: Final = {"t": "_topic", "p": "_partition", "o": "_offset", "T": "_timestamp"}
_FIELDS: Final = "tpoTks%"

Part = tuple[str, str]
"""(`text`, itself), (`field`, its letter) or (`column`, its name)."""


def parse_template(text: str) -> list[Part]:
    """Raises click.BadParameter: a field is unknown."""
    parts: list[Part] = []
    for name, letter, escape, plain in _PART.findall(text):
        match = text if not (name or letter or escape or plain) else ""
        if match:
            raise click.BadParameter("ends in the middle of a field.", param_hint="--template")
        if name:
            parts.append(("column", name))
        elif plain or letter == "%":
            parts.append(("text", plain or "%"))
        elif escape:
            if escape not in _ESCAPES:
                raise click.BadParameter(f"has no \\{escape}.", param_hint="--template")
            parts.append(("text", _ESCAPES[escape]))
        elif letter in _FIELDS:
            parts.append(("field", letter))
        else:
            raise click.BadParameter(
                f"has no field %{letter}; there are %t %p %o %T %k %s %{{column}} %%.",
                param_hint="--template",
            )
    if not parts or not (parts[-1][0] == "text" and parts[-1][1].endswith("\n")):
        parts.append(("text", "\n"))
    return parts


class TemplateSink:
    """Writes rows whose metadata columns follow their own."""

    def __init__(
        self,
        target: IO[bytes],
        schema: pa.Schema,
        parts: Sequence[Part],
        *,
        key: Sequence[str],
        own: Sequence[str],
    ) -> None:
        """
        Args:
            schema: the topic's columns; `key`: its key columns.
            own: the columns of the row as JSON.

        Raises:
            click.BadParameter: an unknown column, or one that hides a metadata column.
        """
        self._target = target
        self._key = [*key] or [name for name in ("key",) if name in own]
        self._own = list(own)
        names = with_metadata(schema).names
        for kind, text in parts:
            if kind == "field" and _COLUMNS.get(text) in schema.names:
                raise click.BadParameter(
                    f"the topic has a column {_COLUMNS[text]!r} of its own, which hides where a "
                    f"row was: write %{{{_COLUMNS[text]}}} for the column.",
                    param_hint="--template",
                )
            if kind == "column" and text not in names:
                raise click.BadParameter(
                    f"the rows have no column {text!r}; they have {', '.join(names)}.",
                    param_hint="--template",
                )
        self._parts = list(parts)

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        pieces = [self._piece(batch, kind, text) for kind, text in self._parts]
        self._target.write(b"".join(b"".join(row) for row in zip(*pieces, strict=True)))

    def _piece(self, batch: pa.RecordBatch, kind: str, text: str) -> list[bytes]:
        if kind == "text":
            return [text.encode()] * batch.num_rows
        if kind == "column":
            return _column(batch, text)
        fields: dict[str, Callable[[pa.RecordBatch], list[bytes]]] = {
            "T": _milliseconds,
            "k": self._keys,
            "s": self._payloads,
        }
        if text in fields:
            return fields[text](batch)
        return _column(batch, _COLUMNS[text])

    def _keys(self, batch: pa.RecordBatch) -> list[bytes]:
        if not self._key:
            return [b""] * batch.num_rows
        columns = [_column(batch, name) for name in self._key]
        return [b",".join(row) for row in zip(*columns, strict=True)]

    def _payloads(self, batch: pa.RecordBatch) -> list[bytes]:
        if "value" in self._own:
            return _column(batch, "value")
        return json_lines(batch.select(self._own)).splitlines()

    def flush(self) -> None:
        self._target.flush()

    def close(self) -> None:
        pass


def _column(batch: pa.RecordBatch, name: str) -> list[bytes]:
    column = batch.column(name)
    if pa.types.is_binary(column.type) or pa.types.is_string(column.type):
        return [value or b"" for value in column.cast(pa.binary()).to_pylist()]
    return [_text(value) for value in encodable(column, name)]


def _text(value: Any) -> bytes:
    return b"" if value is None else json_text(value).encode()


def _milliseconds(batch: pa.RecordBatch) -> list[bytes]:
    stamps = batch.column("_timestamp").cast(pa.int64()).to_pylist()
    return [str(stamp // 1000).encode() for stamp in stamps]
