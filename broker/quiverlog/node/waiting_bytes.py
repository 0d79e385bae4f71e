"""What a request takes in memory while it waits for its steps, estimated on the safe side.

Must not know: who waits, how much may wait (`tasks`).
"""

from __future__ import annotations

from typing import Final

from quiverlog.limits import REQUEST_ENTRY_BYTES, REQUEST_WAITING_BYTES
from quiverlog.node.events import RequestReceived
from quiverlog.wire import messages as m

__all__ = ["waiting_bytes"]

_CHARACTER_BYTES_MAX: Final = 4
"""One wide character makes Python keep four bytes for each of its string."""
_INNER_ENTRY_BYTES: Final = 128
"""A name or a setting of an entry, which is no object with fields."""


def waiting_bytes(event: RequestReceived) -> int:
    """The request itself, the entries of its lists, and the characters and bytes in them."""
    request = event.request
    entries = inner = 0
    for name in request.__struct_fields__:
        value = getattr(request, name)
        if isinstance(value, list | dict):
            entries += len(value)
    if isinstance(request, m.CreateTopicsRequest):
        inner = sum(len(new.key_columns) + len(new.configs) for new in request.topics)
    return (
        REQUEST_WAITING_BYTES
        + entries * REQUEST_ENTRY_BYTES
        + inner * _INNER_ENTRY_BYTES
        + event.header_bytes * _CHARACTER_BYTES_MAX
    )
