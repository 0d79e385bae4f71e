"""Decodes a topic's schema history from brokers' answers; refuses impossible ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from quiverlog.errors import InvalidResponse, QuiverlogError
from quiverlog.limits import SCHEMA_HISTORY_BYTES_MAX, SCHEMAS_PER_TOPIC_MAX
from quiverlog.wire import messages as m

if TYPE_CHECKING:
    from quiverlog.batch.schema import SchemaHistory

__all__ = ["check_history_size", "history_from_wire"]


def check_history_size(versions: Sequence[m.SchemaVersion]) -> None:
    # A broker's pages may be endless.
    size = sum(len(version.schema) for version in versions)
    if len(versions) > SCHEMAS_PER_TOPIC_MAX or size > SCHEMA_HISTORY_BYTES_MAX:
        raise InvalidResponse(f"{len(versions)} schemas of {size} bytes are no topic's history.")


def history_from_wire(versions: Iterable[m.SchemaVersion], topic: str) -> SchemaHistory:
    from quiverlog.batch.schema import SchemaHistory, deserialize_stored, evolve

    schemas = {}
    try:
        before = None
        for version in versions:
            schema = deserialize_stored(version.schema)
            if before is not None:
                evolve(before, schema)
            before = schemas[version.schema_id] = schema
    except (QuiverlogError, ValueError) as error:  # ValueError: a name that is not UTF-8
        why = error.message if isinstance(error, QuiverlogError) else str(error)
        raise InvalidResponse(f"Topic {topic!r}, its schemas: {why}", topic=topic) from error
    return SchemaHistory(schemas)
