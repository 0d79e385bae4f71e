"""The frame around the small binary files of storage: magic, version, length, checksum.

```
 0  8s  magic           names the kind of file
 8  u16 version
10  u16 reserved (0)
12  u32 payload_size
16  u32 crc32c          over bytes 0..16 and the payload
20  ... payload
```

Damaged files are refused with CorruptLog, other versions with UnsupportedFormat.
"""

from __future__ import annotations

import struct
from typing import Final

from quiverlog.batch.checksum import crc32c
from quiverlog.errors import CorruptLog, UnsupportedFormat

__all__ = ["check_version", "pack_file", "unpack_file"]

_HEAD: Final = struct.Struct("<8sHHI")
_CRC: Final = struct.Struct("<I")
_WHOLE_HEAD: Final = struct.Struct("<8sHHII")
_PAYLOAD_AT: Final = _HEAD.size + _CRC.size
assert _WHOLE_HEAD.size == _PAYLOAD_AT


def pack_file(magic: bytes, version: int, payload: bytes) -> bytes:
    assert len(magic) == 8
    assert version >= 1, "what reads it refuses others"
    head = _HEAD.pack(magic, version, 0, len(payload))
    return head + _CRC.pack(crc32c(payload, crc32c(head))) + payload


def unpack_file(path: str, data: bytes, magic: bytes, version: int) -> bytes:
    if len(data) < _PAYLOAD_AT or data[:8] != magic:
        raise CorruptLog(f"{path} is not a {magic.decode()} file.", file=path)
    _, found, _, size, crc = _WHOLE_HEAD.unpack_from(data)
    payload = data[_PAYLOAD_AT:]
    # Before the version: a flipped bit in it is damage, not another version.
    if len(payload) != size or crc32c(payload, crc32c(data[: _HEAD.size])) != crc:
        raise CorruptLog(f"{path}: the checksum does not match its {len(data)} bytes.", file=path)
    if found != version:
        check_version(path, found, version)
    return payload


def check_version(path: str, found: int, readable: int) -> None:
    if found != readable:
        raise UnsupportedFormat(
            f"{path} has format version {found}; this quiverlog reads version {readable}."
        )
