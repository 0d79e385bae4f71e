"""`msgpack`, which shares no code with msgspec, reads and writes every frame."""

from __future__ import annotations

import struct
from types import UnionType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgpack
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiverlog.wire import frames
from quiverlog.wire import messages as m
from quiverlog.wire.registry import APIS

CLASSES = [cls for spec in APIS.values() for cls in (spec.request, spec.response)]


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Any value that a field of this type may have."""
    if get_origin(hint) is Annotated:
        base, bounds = get_args(hint)
        if base is int:
            return st.integers(bounds.ge, bounds.le)
        if base is bytes:
            return st.binary(max_size=bounds.max_length)
        if base is str:
            return st.text(max_size=min(20, bounds.max_length))
        return values_of(base)
    if get_origin(hint) is list:
        return st.lists(values_of(get_args(hint)[0]), max_size=3)
    if get_origin(hint) is dict:
        return st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3)
    if get_origin(hint) is UnionType and type(None) not in get_args(hint):
        return st.one_of(*map(values_of, get_args(hint)))
    if type(None) in get_args(hint):
        return st.none() | values_of(get_args(hint)[0])
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return messages_of(hint)
    return {str: st.text(max_size=20), bytes: st.binary(max_size=20), bool: st.booleans()}[hint]


def messages_of(cls: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    hints = get_type_hints(cls, include_extras=True)
    preamble = set(m.Message.__struct_fields__) if issubclass(cls, m.Message) else set()
    names = [name for name in cls.__struct_fields__ if name not in preamble]
    return st.builds(cls, **{name: values_of(hints[name]) for name in names})


def decode(header: bytes, cls: type[m.Message]) -> m.Message:
    if issubclass(cls, m.Request):
        return frames.decode_request(header)
    return frames.decode_response(header, int(cls.API))  # type: ignore[attr-defined]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
@settings(max_examples=10, deadline=None)
@given(data=st.data(), correlation_id=st.integers(1, 2**31 - 1))
def test_every_message_in_both_directions(
    cls: type[m.Message], data: st.DataObject, correlation_id: int
) -> None:
    message = data.draw(messages_of(cls))
    frame = frames.encode(message, correlation_id)
    size, header_size = struct.unpack_from("<II", frame)
    assert (size, header_size) == (len(frame) - 4, len(frame) - 8)
    read = msgpack.unpackb(frame[8:], strict_map_key=True)
    assert read[:3] == [int(cls.API), 1, correlation_id]  # type: ignore[attr-defined]
    assert len(read) == len(cls.__struct_fields__)
    written = msgpack.packb(read, use_bin_type=True)
    assert decode(written, cls) == message
    wide = b"".join((b"\xdd", len(read).to_bytes(4, "big"), *map(in_widest_form, read)))
    assert decode(wide, cls) == message, "the width of a number or length carries no meaning"


def in_widest_form(value: Any) -> bytes:
    """Valid msgpack that no encoder would choose."""
    if isinstance(value, bool) or value is None:
        return bytes(msgpack.packb(value))
    if isinstance(value, int):
        return b"\xd3" + value.to_bytes(8, "big", signed=True)
    if isinstance(value, str):
        data = value.encode()
        return b"\xdb" + len(data).to_bytes(4, "big") + data
    if isinstance(value, bytes):
        return b"\xc6" + len(value).to_bytes(4, "big") + value
    if isinstance(value, dict):
        pairs = (in_widest_form(part) for pair in value.items() for part in pair)
        return b"\xdf" + len(value).to_bytes(4, "big") + b"".join(pairs)
    return b"\xdd" + len(value).to_bytes(4, "big") + b"".join(map(in_widest_form, value))


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_fields_may_be_missing_at_the_end(cls: type[m.Message]) -> None:
    full = [int(cls.API), 1, 9]  # type: ignore[attr-defined]
    message = decode(msgpack.packb(full), cls)
    wanted = cls(*full)
    assert message == wanted
