"""Answers in pages: what does not fit one header is asked for in several.

A page is cut after `REPLY_PAGE_BYTES`, but always holds one entry; `limits` asserts that the
largest entry fits a header. A request that asks for no page gets everything: an older client must
not take the first page for the whole.

Must not know: the broker, what an entry means.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Final, TypeVar

import msgspec

from quiverlog.core.controller.records import SchemaRecord
from quiverlog.limits import REPLY_PAGE_BYTES, SCHEMAS_DESCRIBED_BYTES_MAX
from quiverlog.wire.messages import Part

__all__ = ["by_name", "newest_schemas", "schema_page"]

_Entry = TypeVar("_Entry", bound=Part)
_ENTRIES_PER_STEP: Final = 16
_SCHEMA_OVERHEAD_BYTES: Final = 64
"""More than msgpack puts around a schema."""


def by_name(
    names: Iterable[str], first_name: str | None, make: Callable[[str], _Entry]
) -> Generator[None, object, tuple[list[_Entry], str]]:
    """(entries, name with which the next page begins; "" when there is none), in steps.

    Args:
        first_name: where the page begins, in the order of the names; None makes all entries in
            the order given.
    """
    entries: list[_Entry] = []
    if first_name is None:
        for number, name in enumerate(names, 1):
            entries.append(make(name))
            if number % _ENTRIES_PER_STEP == 0:
                yield
        return entries, ""
    byte_count = 0
    for name in sorted(set(names)):
        if name < first_name:
            continue
        entry = make(name)
        byte_count += len(msgspec.msgpack.encode(entry))
        if entries and byte_count > REPLY_PAGE_BYTES:
            return entries, name
        entries.append(entry)
        if len(entries) % _ENTRIES_PER_STEP == 0:
            yield
    return entries, ""


def schema_page(records: Sequence[SchemaRecord], first_id: int) -> tuple[list[SchemaRecord], int]:
    """(schemas from `first_id` on, id with which the next page begins; 0 when there is none).

    `first_id` 0 gives them all.
    """
    if first_id == 0:
        return list(records), 0
    page: list[SchemaRecord] = []
    byte_count = 0
    for record in records:
        if record.schema_id < first_id:
            continue
        byte_count += len(record.schema) + _SCHEMA_OVERHEAD_BYTES
        if page and byte_count > REPLY_PAGE_BYTES:
            return page, record.schema_id
        page.append(record)
    return page, 0


def newest_schemas(records: Sequence[SchemaRecord]) -> list[SchemaRecord]:
    """The newest schemas that a topic's description has room for, oldest first."""
    newest: list[SchemaRecord] = []
    byte_count = 0
    for record in reversed(records):
        byte_count += len(record.schema) + _SCHEMA_OVERHEAD_BYTES
        if newest and byte_count > SCHEMAS_DESCRIBED_BYTES_MAX:
            break
        newest.append(record)
    newest.reverse()
    return newest
