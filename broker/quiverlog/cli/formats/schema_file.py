"""Schemas from files: `--schema-file`. The suffix is the format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from quiverlog.batch.schema_text import SchemaSyntaxError, parse_schema
from quiverlog.cli.console.failures import PARSER_ERRORS, unreadable
from quiverlog.cli.formats.memory_bound import bounded_memory
from quiverlog.limits import SCHEMA_BYTES_MAX

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["load_schema"]


def load_schema(path: Path) -> pa.Schema:
    """Read a schema: JSON `{"id": "long", ...}`, that of Parquet or Arrow data, else DDL text.

    Raises:
        SchemaSyntaxError: the file holds no schema.
        CommandFailed: its bytes are not of its suffix's format.
        FileTooLarge: reading it takes too much memory.
        OSError: the file cannot be opened.
    """
    import pyarrow as pa

    suffix = path.suffix.lower()
    kind = _KINDS.get(suffix, "the text of a schema")
    try:
        with bounded_memory(str(path)):
            return _load(path, suffix)
    except SchemaSyntaxError:
        raise
    except (pa.ArrowException, OSError, *PARSER_ERRORS) as error:
        names_file = isinstance(error, OSError) and (error.filename or str(path) in str(error))
        if names_file:
            raise
        # Arrow reports damaged bytes as an OSError, without the file's name.
        raise unreadable(str(path), kind, error, next_step=_NEXT_STEP) from error


_KINDS = {".parquet": "Parquet", ".json": "JSON"} | dict.fromkeys(
    (".arrow", ".feather", ".ipc", ".arrows"), "Arrow"
)
_NEXT_STEP = "Its suffix names its format; --schema takes the columns as text."


def _load(path: Path, suffix: str) -> pa.Schema:
    kind = _KINDS.get(suffix)
    if kind == "Parquet":
        import pyarrow.parquet as pq

        return pq.read_schema(path).remove_metadata()
    if kind == "Arrow":
        return _arrow_file_schema(path)
    with path.open("rb") as file:  # Bounded: a device or a pipe may have no end.
        data = file.read(SCHEMA_BYTES_MAX + 1)
    if len(data) > SCHEMA_BYTES_MAX:
        raise SchemaSyntaxError(f"{path}: a schema has at most {SCHEMA_BYTES_MAX} bytes")
    text = data.decode("utf-8")
    return _json_schema(text) if kind == "JSON" else parse_schema(text)


def _arrow_file_schema(path: Path) -> pa.Schema:
    import pyarrow as pa

    with pa.OSFile(str(path)) as source:
        try:
            schema = pa.ipc.open_file(source).schema
        except pa.ArrowInvalid:
            source.seek(0)
            schema = pa.ipc.open_stream(source).schema
    return schema.remove_metadata()


def _json_schema(text: str) -> pa.Schema:
    import json

    columns = json.loads(text)
    if isinstance(columns, dict) and isinstance(columns.get("fields"), list):
        fields = columns["fields"]
        if not all(isinstance(f, dict) and isinstance(f.get("name"), str) for f in fields):
            raise SchemaSyntaxError('each of "fields" is an object with "name" and "type"')
        columns = {field["name"]: field.get("type") for field in fields}
    if not isinstance(columns, dict) or not all(isinstance(v, str) for v in columns.values()):
        raise SchemaSyntaxError('a JSON schema is an object like {"id": "long", "name": "string"}')
    quoted = (f"`{name.replace('`', '``')}` {kind}" for name, kind in columns.items())
    return parse_schema(", ".join(quoted))
