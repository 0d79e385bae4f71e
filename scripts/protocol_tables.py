"""The tables of the two pages on the protocol, made from the messages themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import msgspec

from quiverlog.wire.registry import APIS
from scripts.protocol_model import ENTRY_ERRORS, UNIONS, about, fields_of, parts_of, tag_of

__all__ = ["apis_table", "errors_table", "key_vectors_table", "messages_tables"]

GOLDEN: Final = Path(__file__).resolve().parents[1] / "tests" / "golden"


def _default(value: object) -> str:
    if value is None:
        return "nil"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(int(value))
    return f'"{value}"' if isinstance(value, str) else "empty"


def _fields(cls: type[msgspec.Struct]) -> str:
    lines = ["| at | field | type | default | meaning |", "|---|---|---|---|---|"]
    if (tag := tag_of(cls)) is not None:
        lines.append(f"| 0 | | int32 | | {tag}: this part |")
    for field in fields_of(cls):
        name = f"{field.type} or nil" if field.nullable else field.type
        lines.append(
            f"| {field.at} | `{field.name}` | {name} | {_default(field.default)} |"
            f" {field.meaning} |"
        )
    return "\n".join(lines) if len(lines) > 2 else "No fields of its own."


def messages_tables(*, between_brokers: bool) -> str:
    """The messages and parts with their fields, of clients or between brokers."""
    out = []
    parts_done: set[type] = set()
    for spec in APIS.values():
        if spec.between_brokers is not between_brokers:
            continue
        out.append(f"### {int(spec.api)} {spec.api.name}\n")
        for cls in (spec.request, spec.response):
            for one in (cls, *parts_of(cls)):
                if one in parts_done:
                    continue
                parts_done.add(one)
                words = f"{about(one)}\n\n" if about(one) else ""
                out.append(f"**{one.__name__}**\n\n{words}{_fields(one)}\n")
    for name, kinds in UNIONS.items():
        if parts_done >= set(kinds):
            listed = ", ".join(f"{tag_of(kind)} {kind.__name__}" for kind in kinds)
            out.append(f"**{name}**\n\nOne of these, by the number at place 0: {listed}.\n")
    return "\n".join(out)


def errors_table(*, between_brokers: bool) -> str:
    """The error codes of every API, of clients or between brokers."""
    lines = ["| API | codes of its entries |", "|---|---|"]
    for api, kinds in ENTRY_ERRORS.items():
        if APIS[int(api)].between_brokers is between_brokers:
            codes = ", ".join(f"{kind.code} {kind.code_name()}" for kind in _by_code(kinds))
            lines.append(f"| {api.name} | {codes or 'none'} |")
    return "\n".join(lines) + "\n"


def _by_code(kinds):  # type: ignore[no-untyped-def]
    return sorted(set(kinds), key=lambda kind: kind.code)


def apis_table() -> str:
    """The APIs, their numbers and versions."""
    lines = ["| number | API | versions | for |", "|---|---|---|---|"]
    lines += [
        f"| {int(s.api)} | {s.api.name} | {s.version_min} to {s.version_max} | {s.audience} |"
        for s in APIS.values()
    ]
    return "\n".join(lines) + "\n"


def key_vectors_table() -> str:
    """The test vectors of the key hash."""
    lines = ["| Arrow type | value | hash | partition of 10 |", "|---|---|---|---|"]
    for vector in json.loads((GOLDEN / "key-hashes.json").read_text()):
        value = json.dumps(vector["value"], ensure_ascii=False)
        lines.append(
            f"| `{vector['arrow_type'].removeprefix('pa.')}` | `{value}` | `{vector['hash']}` |"
            f" {vector['partition_of_10']} |"
        )
    return "\n".join(lines) + "\n"
