"""docs/protocol.json: the protocol for generators of clients."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from quiverlog import errors, limits
from quiverlog.wire.apis import Audience
from quiverlog.wire.messages import CORRELATION_ID_MAX, Message
from quiverlog.wire.registry import APIS
from scripts.protocol_model import (
    CLOSING,
    ENTRY_ERRORS,
    REQUEST_ERRORS,
    STAYS_OPEN,
    UNIONS,
    about,
    fields_of,
    parts_of,
    tag_of,
)

__all__ = ["render"]


def render() -> str:
    """The whole file."""
    messages = [cls for spec in APIS.values() for cls in (spec.request, spec.response)]
    parts = {part.__name__: part for cls in messages for part in parts_of(cls)}
    preamble = [{"at": at, "name": n} for at, n in enumerate(Message.__struct_fields__)]
    document = {
        "about": "Generated from the message definitions by `make docs`; see protocol.md.",
        "limits": {
            "frame_bytes_max": limits.FRAME_BYTES_MAX,
            "header_bytes_max": limits.HEADER_BYTES_MAX,
            "response_containers_max": limits.RESPONSE_CONTAINERS_MAX,
            "correlation_id_min": 1,
            "correlation_id_max": CORRELATION_ID_MAX,
            "requests_in_flight_max": limits.REQUESTS_IN_FLIGHT_MAX,
            "max_wait_ms_max": limits.FETCH_MAX_WAIT_MS_MAX,
        },
        "preamble": preamble,
        "errors": [_error(kind) for kind in _wire_errors()],
        "request_errors": sorted(kind.code for kind in REQUEST_ERRORS),
        "apis": [
            {
                "api": int(spec.api),
                "name": spec.api.name,
                "version_min": spec.version_min,
                "version_max": spec.version_max,
                "between_brokers": spec.between_brokers,
                "administration": spec.audience is Audience.ADMINISTRATION,
                "entry_errors": sorted({kind.code for kind in ENTRY_ERRORS[spec.api]}),
                "request": _struct(spec.request),
                "response": _struct(spec.response),
            }
            for spec in APIS.values()
        ],
        "parts": [_struct(part) for part in parts.values()],
        "unions": [
            {"name": name, "parts": {str(tag_of(kind)): kind.__name__ for kind in kinds}}
            for name, kinds in UNIONS.items()
        ],
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _wire_errors() -> list[type[errors.QuiverlogError]]:
    kinds = {
        kind.code: kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.QuiverlogError)
    }
    return [kind for code, kind in sorted(kinds.items()) if code < 1000 and not 80 <= code <= 83]


def _error(kind: type[errors.QuiverlogError]) -> dict[str, Any]:
    return {
        "code": kind.code,
        "name": kind.code_name(),
        "retriable": kind.retriable,
        "refresh_metadata": kind.refresh_metadata,
        "closes_connection": kind in CLOSING,
        "stays_open": STAYS_OPEN.get(kind, ""),
        "hint": kind.hint,
    }


def _struct(cls: type[msgspec.Struct]) -> dict[str, Any]:
    return {
        "name": cls.__name__,
        "about": about(cls),
        "fields": [_field(field._asdict()) for field in fields_of(cls)],
    }


def _field(field: dict[str, Any]) -> dict[str, Any]:
    default = field["default"]
    if isinstance(default, bytes):
        default = ""
    elif isinstance(default, int) and not isinstance(default, bool):
        default = int(default)
    return {**field, "default": default}
