"""The checks of a batch's Arrow metadata before its rows are touched; decodes nothing.

Compares the metadata with header and schema: buffers lie inside the body without overlap, and the
decompressed bytes that they declare and the values that take no bytes are bounded: a list of two
billion nulls is a message of 256 bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

import pyarrow as pa

from quiverlog.errors import CorruptBatch
from quiverlog.limits import BATCH_DECODED_BYTES_MAX, KIB, SCHEMAS_PER_TOPIC_MAX

from .header import FLAG_CODEC_MASK, FLAG_CODEC_SHIFT, BatchHeader
from .held_values import can_be_wrong
from .ipc_metadata import IpcMetadata, IpcShape, read_ipc_metadata

__all__ = ["Plan", "check_structure", "has_required_inside", "plan_of"]

_LENGTH_MAX: Final = 2**31 - 1
_LENGTH_PREFIX: Final = struct.Struct("<q")
_PLANS_MAX: Final = 4 * SCHEMAS_PER_TOPIC_MAX
_PASSED_MAX: Final = 1_024
_PASSED_BYTES_MAX: Final = 4 * KIB


class Plan(NamedTuple):
    schema: pa.Schema
    node_count: int
    buffer_count: int
    columns: tuple[int, ...]
    weightless: tuple[int, ...]
    """Nodes of nulls by type, and of structs of these."""
    required: tuple[tuple[int, str], ...]
    """(node index, name) of the NOT NULL columns."""
    layout: pa.Schema
    """The same buffers without their types: strings as binary, decimals as 16 bytes."""
    has_maps: bool
    has_required_inside: bool
    """Inside of columns; the keys of maps are not counted."""
    questionable: frozenset[str]
    """The columns where some bits are no value of their type."""
    shape: IpcShape | None
    """From this library's encoder; None where it is not constant."""
    bit_widths: tuple[int, ...] | None
    """None unless all columns are integers, floats, booleans or timestamps."""
    head_bytes: int
    """Length of the metadata where accepted metadata is cached; else 0."""


_plans: dict[int, Plan] = {}
"""By the schema object's id, which no other gets while the plan keeps the schema alive."""

_passed: dict[tuple[int, bytes], tuple[Plan, IpcMetadata]] = {}
"""Accepted metadata, by schema and bytes, from which everything but `_goes_with` follows.

Only where the bytes depend on the number of rows alone: small batches of plain numbers have the
same ones again and again.
"""


def plan_of(schema: pa.Schema) -> Plan:
    plan = _plans.get(id(schema))
    if plan is None:
        # Clearing all is simple, and costs one computation per schema in use.
        if len(_plans) >= _PLANS_MAX:
            _plans.clear()
        plan = _plans[id(schema)] = _make_plan(schema)
    return plan


def _make_plan(schema: pa.Schema) -> Plan:
    nodes = buffers = 0
    columns, required = [], []
    weightless: list[int] = []
    for field in schema:
        columns.append(nodes)
        weightless.extend(_weightless_nodes(field.type, nodes))
        if not field.nullable:
            required.append((nodes, field.name))
        field_nodes, field_buffers = _counts(field.type)
        nodes += field_nodes
        buffers += field_buffers
    assert nodes >= len(schema), "a column has one node at least"
    layout = pa.schema([field.with_type(_layout_type(field.type)) for field in schema])
    shape = _make_shape(schema, nodes, buffers)
    types = [data_type for field in schema for data_type in _inner_types(field.type)]
    bit_widths = _bit_widths(schema)
    return Plan(
        schema,
        nodes,
        buffers,
        tuple(columns),
        tuple(weightless),
        tuple(required),
        layout,
        has_maps=any(map(pa.types.is_map, types)),
        has_required_inside=any(has_required_inside(field.type) for field in schema),
        questionable=frozenset(field.name for field in schema if can_be_wrong(field.type)),
        shape=shape,
        bit_widths=bit_widths,
        head_bytes=_head_bytes(shape) if bit_widths is not None else 0,
    )


def _inner_types(data_type: pa.DataType) -> Iterator[pa.DataType]:
    yield data_type
    for number in range(data_type.num_fields):
        yield from _inner_types(data_type.field(number).type)


def _weightless_nodes(data_type: pa.DataType, at: int) -> Iterator[int]:
    if _is_weightless(data_type):
        yield at
    for number in range(data_type.num_fields):
        child = data_type.field(number).type
        yield from _weightless_nodes(child, at + 1)
        at += _counts(child)[0]


def _is_weightless(data_type: pa.DataType) -> bool:
    if pa.types.is_struct(data_type):
        return all(_is_weightless(field.type) for field in data_type)
    return bool(pa.types.is_null(data_type))


def has_required_inside(data_type: pa.DataType) -> bool:
    return any(map(_has_required, _inner_types(data_type)))


def _has_required(data_type: pa.DataType) -> bool:
    if pa.types.is_map(data_type):
        return not data_type.item_field.nullable
    fields = (data_type.field(number) for number in range(data_type.num_fields))
    return any(not field.nullable for field in fields)


def _make_shape(schema: pa.Schema, nodes: int, buffers: int) -> IpcShape | None:
    try:
        # One row of nulls has every node and buffer that rows have.
        columns = [pa.nulls(1, field.type) for field in schema]
        sample = memoryview(pa.RecordBatch.from_arrays(columns, schema=schema).serialize())
        shape = IpcShape(sample)
    except (pa.ArrowException, ValueError):
        return None
    metadata = shape.read(sample)
    assert metadata is not None
    assert len(metadata.nodes) == 2 * nodes, "we count nodes as the encoder does"
    assert len(metadata.buffers) == 2 * buffers, "and buffers"
    return shape


def _head_bytes(shape: IpcShape | None) -> int:
    return shape.body_at if shape is not None and shape.body_at <= _PASSED_BYTES_MAX else 0


def _bit_widths(schema: pa.Schema) -> tuple[int, ...] | None:
    types = pa.types
    for field in schema:
        any_bits = (
            # Any bits of these are a value; a decimal, for one, has bits that are none.
            types.is_integer(field.type)
            or types.is_floating(field.type)
            or types.is_boolean(field.type)
            or types.is_timestamp(field.type)
        )
        if not any_bits:
            return None
    return tuple(field.type.bit_width for field in schema)


def _surely_readable(metadata: IpcMetadata, plan: Plan) -> bool:
    """Return whether accepted metadata proves that Arrow can read the rows.

    No value is null, and every column has bytes for all rows, any bits of which are values. False
    proves nothing.
    """
    widths = plan.bit_widths
    # `nodes` holds pairs: every second number is a null count.
    if widths is None or not metadata.as_sample or any(metadata.nodes[1::2]):
        return False
    row_count = metadata.row_count
    # Each column has two buffers; the first, for nulls, is not read.
    sizes = metadata.buffers[3::4]
    assert len(sizes) == len(widths)
    short = [s for s, width in zip(sizes, widths, strict=True) if s * 8 < row_count * width]
    return not short


def _counts(data_type: pa.DataType) -> tuple[int, int]:
    types = pa.types
    if types.is_null(data_type):
        return 1, 0
    if types.is_string(data_type) or types.is_binary(data_type):
        return 1, 3
    nodes, buffers = 1, 1 if types.is_struct(data_type) else 2
    for index in range(data_type.num_fields):
        child_nodes, child_buffers = _counts(data_type.field(index).type)
        nodes += child_nodes
        buffers += child_buffers
    return nodes, buffers


def _layout_type(data_type: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_string(data_type):
        return pa.binary()
    if types.is_decimal128(data_type):
        return pa.binary(16)
    if types.is_map(data_type):
        entries = pa.struct([data_type.key_field, data_type.item_field])
        return pa.list_(pa.field("entries", _layout_type(entries)))
    if types.is_list(data_type):
        element = data_type.value_field
        return pa.list_(element.with_type(_layout_type(element.type)))
    if types.is_struct(data_type):
        return pa.struct([field.with_type(_layout_type(field.type)) for field in data_type])
    return data_type


def check_structure(message: memoryview, header: BatchHeader, schema: pa.Schema) -> IpcMetadata:
    plan = plan_of(schema)
    key = None
    if plan.head_bytes:
        key = (id(schema), bytes(message[: plan.head_bytes]))
        passed = _passed.get(key)
        # After `_plans` was cleared the id may be another schema's.
        if passed is not None and passed[0] is plan and _goes_with(passed[1], header, message):
            return passed[1]
    metadata = _checked(message, header, plan)
    if key is not None and metadata.as_sample:
        if len(_passed) >= _PASSED_MAX:
            _passed.clear()
        _passed[key] = plan, metadata
    return metadata


def _goes_with(metadata: IpcMetadata, header: BatchHeader, message: memoryview) -> bool:
    """Return whether accepted metadata is good in this batch, too. False proves nothing."""
    return (
        metadata.row_count == header.row_count
        and not header.flags & FLAG_CODEC_MASK
        and metadata.body_at + metadata.body_bytes <= len(message)
    )


def _checked(message: memoryview, header: BatchHeader, plan: Plan) -> IpcMetadata:
    metadata = plan.shape.read(message) if plan.shape is not None else None
    if metadata is None:
        metadata = read_ipc_metadata(message)
    codec = (header.flags & FLAG_CODEC_MASK) >> FLAG_CODEC_SHIFT
    if metadata.compression != codec:
        raise CorruptBatch(f"the flags name codec {codec}, the rows have {metadata.compression}.")
    if metadata.row_count != header.row_count:
        raise CorruptBatch(
            f"the header counts {header.row_count} rows, the Arrow message {metadata.row_count}."
        )
    _check_nodes(metadata.nodes, plan, header.row_count)
    if len(metadata.buffers) != 2 * plan.buffer_count:
        raise CorruptBatch(
            f"the rows have {len(metadata.buffers) // 2} buffers, schema {header.schema_id} has "
            f"{plan.buffer_count}."
        )
    _check_buffers(metadata)
    if codec:
        return metadata._replace(decoded_bytes=_decoded_bytes(message, metadata))
    if _surely_readable(metadata, plan):
        return metadata._replace(surely_readable=True)
    return metadata


def _check_nodes(nodes: tuple[int, ...], plan: Plan, row_count: int) -> None:
    if len(nodes) != 2 * plan.node_count:
        raise CorruptBatch(f"the rows have {len(nodes) // 2} fields, not {plan.node_count}.")
    lengths, null_counts = nodes[::2], nodes[1::2]
    for index in plan.columns:
        if lengths[index] != row_count:
            raise CorruptBatch(f"a column has {lengths[index]} values in {row_count} rows.")
    if min(null_counts) < 0 or max(lengths) > _LENGTH_MAX or min(lengths) < 0:
        raise CorruptBatch("a field has an impossible length or null count.")
    free = sum(lengths[index] for index in plan.weightless)
    if free > BATCH_DECODED_BYTES_MAX:
        raise CorruptBatch(
            f"{free} values take no bytes, allowed are {BATCH_DECODED_BYTES_MAX}: to readers each "
            "may cost as much as any other."
        )
    for index, name in plan.required:
        if null_counts[index]:
            raise CorruptBatch(f"column {name!r} has nulls and may not be null.")


def _check_buffers(metadata: IpcMetadata) -> None:
    buffers = metadata.buffers
    end = 0
    for offset, length in zip(buffers[::2], buffers[1::2], strict=True):
        # Overlapping buffers would let a small message decode to many times its size.
        if offset < end or length < 0 or offset & 7:
            raise CorruptBatch(f"a buffer of {length} bytes at {offset} overlaps or is misaligned.")
        end = offset + length
    if end > metadata.body_bytes:
        raise CorruptBatch(f"a buffer ends at {end}, the body has {metadata.body_bytes} bytes.")


def _decoded_bytes(message: memoryview, metadata: IpcMetadata) -> int:
    total = 0
    buffers = metadata.buffers
    for offset, length in zip(buffers[::2], buffers[1::2], strict=True):
        # An empty buffer has no length prefix.
        if length == 0:
            continue
        if length < _LENGTH_PREFIX.size:
            raise CorruptBatch(f"a compressed buffer of {length} bytes has no length.")
        # Arrow allocates what is declared here.
        (decoded,) = _LENGTH_PREFIX.unpack_from(message, metadata.body_at + offset)
        if decoded < -1:
            raise CorruptBatch(f"a compressed buffer claims {decoded} bytes.")
        # -1 marks a buffer that was stored without compression.
        total += length if decoded == -1 else decoded
    if total > BATCH_DECODED_BYTES_MAX:
        raise CorruptBatch(
            f"the rows claim {total} bytes decompressed, allowed are {BATCH_DECODED_BYTES_MAX}."
        )
    return total
