"""Answers in pages: what does not fit one header is asked for in several.

A page is cut after `REPLY_PAGE_BYTES`, but always holds one entry; `limits` asserts that the
largest entry fits a header. A request that asks for no page gets everything, or FRAME_TOO_LARGE
before more than a header's worth is made: an older client must not take the first page for the
whole. A name that is asked for several times is answered once.

Must not know: the broker, what an entry means.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Final, TypeVar

import msgspec

from quiverlog.core.controller.records import SchemaRecord
from quiverlog.errors import FrameTooLarge
from quiverlog.limits import HEADER_BYTES_MAX, REPLY_PAGE_BYTES, SCHEMAS_DESCRIBED_BYTES_MAX
from quiverlog.wire.messages import Part

__all__ = ["Making", "by_name", "check_fits", "newest_schemas", "schema_page"]

_Entry = TypeVar("_Entry", bound=Part)
Making = Generator[None, object, _Entry]
"""An entry that is made in steps: one of thousands of partitions takes several."""
_STEP_BYTES: Final = 1024
"""Ten topics of one partition, or one that is larger or described: some 60 us."""
_SCHEMA_OVERHEAD_BYTES: Final = 64
"""More than msgpack puts around a schema."""


def by_name(
    names: Iterable[str],
    first_name: str | None,
    make: Callable[[str], Making[_Entry]],
    bytes_min: Callable[[str], int],
) -> Generator[None, object, tuple[list[_Entry], str]]:
    """(entries, name with which the next page begins; "" when there is none), in steps.

    Args:
        first_name: where the page begins, in the order of the names; None makes all entries in
            the order given.
        bytes_min: what the entry of a name takes at least, looked at before it is made.

    Raises:
        FrameTooLarge: all entries were asked for, and are more than a header holds.
    """
    entries: list[_Entry] = []
    byte_count = yielded_at = 0
    paged = first_name is not None
    for name in sorted(set(names)) if paged else dict.fromkeys(names):
        if first_name is not None and name < first_name:
            continue
        if not paged:
            check_fits(byte_count + bytes_min(name))
        entry = yield from make(name)
        byte_count += len(msgspec.msgpack.encode(entry))
        if not paged:
            check_fits(byte_count)
        elif entries and byte_count > REPLY_PAGE_BYTES:
            assert first_name is None or name > first_name, "pages go on"
            return entries, name
        entries.append(entry)
        if byte_count - yielded_at >= _STEP_BYTES:
            yielded_at = byte_count
            yield
    return entries, ""


def check_fits(byte_count: int) -> None:
    """Raises FrameTooLarge: an answer of so many bytes is more than a header holds."""
    if byte_count > HEADER_BYTES_MAX:
        raise FrameTooLarge(
            f"the answer has more than {HEADER_BYTES_MAX} bytes: ask for less, or for pages."
        )


def schema_page(records: Sequence[SchemaRecord], first_id: int) -> tuple[list[SchemaRecord], int]:
    """(schemas from `first_id` on, id with which the next page begins; 0 when there is none).

    `first_id` 0 gives them all.

    Raises:
        FrameTooLarge: all were asked for, and are more than a header holds.
    """
    if first_id == 0:
        check_fits(sum(len(record.schema) for record in records))
        return list(records), 0
    page: list[SchemaRecord] = []
    byte_count = 0
    for record in records:
        if record.schema_id < first_id:
            continue
        byte_count += len(record.schema) + _SCHEMA_OVERHEAD_BYTES
        if page and byte_count > REPLY_PAGE_BYTES:
            assert record.schema_id > first_id, "pages go on"
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
    assert bool(newest) == bool(records), "the newest one, however large"
    return newest
