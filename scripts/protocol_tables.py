"""The tables of docs/protocol.md, made from the messages themselves."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

import msgspec

from quiverlog.wire.messages import Message, Part, Response
from quiverlog.wire.registry import APIS

__all__ = ["MEANINGS", "apis_table", "key_vectors_table", "messages_tables", "structs"]

GOLDEN = Path(__file__).resolve().parents[1] / "tests" / "golden"

MEANINGS: Final[dict[str, str]] = {
    "api": "number of the API",
    "apis": "the APIs that the broker speaks, with their versions",
    "at": "-1 the end, -2 the first row kept, else microseconds since 1970",
    "base_offset": "offset of the entry's first row",
    "batch_bytes": "bytes of the body that belong to this entry",
    "batch_bytes_max": "the topic's `max.message.bytes`: largest batch taken",
    "before_offset": "rows before it are deleted; -1: the high watermark",
    "brokers": "where the brokers are reached",
    "byte_count": "stored bytes of the batches touched up to `end_offset`",
    "bytes_max": "bound on the bytes of batches, see above",
    "client_id": "free text for logs and metrics, at most 249 characters",
    "cluster_id": "identity of the cluster",
    "compression": "codec the topic advises: 0 none, 1 LZ4 frame, 2 Zstandard",
    "configs": "configuration entries, see docs/config.md",
    "controller_id": "node id of the active controller",
    "created_us": "when it was made, microseconds since 1970",
    "damage_end_offset": "first offset after the damage that may be read again; -1: not known",
    "damage_start_offset": "first offset that cannot be read; -1: no damage, or not known",
    "delete_configs": "keys that go back to their defaults",
    "diverging_end_offset": "where `diverging_epoch` ended in the leader's log; -1: no divergence",
    "diverging_epoch": "newest leader epoch that both logs may share; -1: no divergence",
    "duplicate": "the batches were stored by an earlier try of the same request",
    "durability": "-1 topic default (requests only), 0 memory, 1 flushed, 2 replicated",
    "end_offset": "offset of the first row that is not wanted, or no longer covered",
    "epoch": "the leader epoch in question",
    "error_code": "0, or the number of an error",
    "error_message": "what happened, for people",
    "first_name": "first name of the page that is asked for; nil: no pages",
    "first_schema_id": "first schema of the page that is asked for; 0: no pages",
    "flushed_offset": "rows below it are on disk",
    "frame_bytes_max": "largest frame the broker takes, in bytes",
    "high_watermark": "offset of the first row that may not be read yet",
    "host": "host name or address",
    "in_sync_replicas": "node ids of the replicas that are up to date",
    "is_internal": "belongs to quiverlog itself",
    "isolation_level": "0 read uncommitted, 1 read committed",
    "key": "configuration key",
    "key_columns": "columns whose values decide a row's partition, in order; empty: no key",
    "known_offset": "the offset that the asker has already",
    "last_epoch": "leader epoch of the row before `offset`; -1: not known, no check",
    "last_stable_offset": "first row of a transaction that is not decided",
    "leader_epoch": "count of the partition's leaders; in requests -1: no check",
    "leader_id": "node id of the leader",
    "log_end_offset": "offset that the next row will take",
    "log_start_offset": "first row that is kept",
    "max_wait_ms": "how long the broker may hold the answer back",
    "metadata_version": "grows with every change of any topic",
    "min_bytes": "answer as soon as so many bytes are there",
    "name": "name of the topic",
    "names": "names of topics; nil: all",
    "next_name": "`first_name` of the next page; empty: there is none",
    "next_schema_id": "`first_schema_id` of the next page; 0: there is none",
    "node_id": "number of the broker",
    "offset": "a row's offset, see above",
    "partition": "number of the partition, from 0",
    "partitions": "one entry per partition; in administration a count, -1 the default",
    "port": "TCP port",
    "preferred_replica": "node id of a nearer replica to fetch from; -1: none",
    "producer_epoch": "counts the holders of a producer id",
    "producer_id": "identity of an idempotent producer; -1: none",
    "rack": "where it stands; empty: unknown",
    "replica_id": "node id of a follower; -1: a consumer",
    "replicas": "node ids of all replicas",
    "replication_factor": "copies of each partition; -1 the default",
    "roles": "`broker`, `controller`",
    "row_count": "rows stored",
    "schema": "Arrow IPC schema message",
    "schema_id": "number of a schema of the topic, from 1",
    "schemas": "schemas of the topic, oldest first",
    "segments": "files of the log",
    "set_configs": "keys to set and their values",
    "size_bytes": "bytes of the log",
    "software": "name of the client library",
    "software_version": "its version",
    "source": "`topic` or `default`",
    "start_offset": "first offset asked about; -2: first row kept",
    "timeout_ms": "how long the broker may take",
    "timestamp_us": "timestamp of the row found, microseconds since 1970",
    "topic_id": "16 bytes that name this topic and no later one of the same name",
    "topic_ids": "topics by id, besides those by name",
    "topics": "one entry per topic; in a METADATA request names, nil: all",
    "transactional_id": "kept for transactions; must be empty",
    "validate_only": "check everything, change nothing",
    "value": "its value as text",
    "version_max": "newest version spoken",
    "version_min": "oldest version spoken",
}


def structs() -> list[type[msgspec.Struct]]:
    """Every message and part, messages in the order of their numbers."""
    found: list[type[msgspec.Struct]] = []
    for spec in APIS.values():
        for cls in (spec.request, spec.response):
            found += [cls, *(part for part in _parts(cls) if part not in found)]
    return found


def _parts(cls: type[msgspec.Struct]) -> list[type[msgspec.Struct]]:
    parts: list[type[msgspec.Struct]] = []
    for hint in get_type_hints(cls).values():
        for inner in (hint, *get_args(hint)):
            if isinstance(inner, type) and issubclass(inner, Part):
                parts += [inner, *_parts(inner)]
    return parts


def _type_name(hint: Any) -> str:
    if get_origin(hint) is Annotated:
        base, bounds = get_args(hint)
        if base is int:
            return "int32" if bounds.le < 2**31 else "int64"
        return _type_name(base)
    if get_origin(hint) is list:
        return f"array of {_type_name(get_args(hint)[0])}"
    if get_origin(hint) is dict:
        return "map of str to str"
    if type(None) in get_args(hint):
        return f"{_type_name(get_args(hint)[0])} or nil"
    return {int: "int", str: "str", bytes: "bin", bool: "bool"}.get(hint, hint.__name__)


def _default(value: object) -> str:
    if value is None:
        return "nil"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(int(value))
    return f'"{value}"' if isinstance(value, str) else "empty"


def _fields(cls: type[msgspec.Struct]) -> str:
    skipped = len(Message.__struct_fields__) if issubclass(cls, Message) else 0
    lines = ["| at | field | type | default | meaning |", "|---|---|---|---|---|"]
    for at, field in enumerate(msgspec.structs.fields(cls)):
        if at < skipped:
            continue
        default = "empty"
        if field.default is not msgspec.NODEFAULT:
            default = _default(field.default)
        name = field.name
        lines.append(
            f"| {at} | `{name}` | {_type_name(field.type)} | {default} | {MEANINGS[name]} |"
        )
    return "\n".join(lines) if len(lines) > 2 else "No fields of its own."


def messages_tables() -> str:
    """Every message and part with its fields."""
    out = []
    parts_done: set[type] = set()
    for spec in APIS.values():
        out.append(f"### {int(spec.api)} {spec.api.name}\n")
        for cls in (spec.request, spec.response):
            for one in (cls, *_parts(cls)):
                if one in parts_done:
                    continue
                parts_done.add(one)
                text = inspect.getdoc(one) if "__doc__" in vars(one) else ""
                inherited = getattr(Response, "__doc__", "")
                words = "" if not text or text == inherited else " ".join(text.split()) + "\n\n"
                out.append(f"**{one.__name__}**\n\n{words}{_fields(one)}\n")
    return "\n".join(out)


def apis_table() -> str:
    """The APIs, their numbers and versions."""
    lines = ["| number | API | versions |", "|---|---|---|"]
    lines += [
        f"| {int(s.api)} | {s.api.name} | {s.version_min} to {s.version_max} |"
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
