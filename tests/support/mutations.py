"""What a broken or hostile broker makes of a right answer.

Owns the ways in which a real response is changed: fields, lists, types, correlation ids, error
codes, rows. One seed decides everything, so that a failure is repeated by its seed alone. Not here:
what a client makes of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec

from quiverlog.batch.codec import split_batches, write_crc
from quiverlog.batch.header import BatchHeader
from quiverlog.wire import frames
from quiverlog.wire import messages as m

__all__ = ["Mutator"]

INTEGERS = (-1, 0, 1, 2, 5, -7, 255, 2**31 - 1, 2**31, 2**62, 2**63 - 1, -(2**63), 2**64 - 1)
CODES = (-5, 1, 2, 21, 22, 30, 31, 34, 35, 36, 50, 52, 57, 58, 60, 62, 777, 1003, 2**31)
STRANGE: tuple[Any, ...] = (None, -1, 2**64 - 1, 1.5, "x", b"x", [], [None], {}, True)


class Mutator:
    """Changes answers of one kind; `log` records the changes."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.log: list[str] = []
        self._earlier: tuple[m.Response, bytes] | None = None

    def __call__(
        self, request: Any, response: Any, body: bytes
    ) -> tuple[m.Response, bytes] | bytes | None:
        """For `scripted_broker.Answer`."""
        ways: list[Callable[[Any, bytes], Any]] = [
            self._fields,
            self._fields,
            self._lists,
            self._codes,
            self._types,
            self._correlation,
            self._repeat,
        ]
        if isinstance(response, m.FetchResponse):
            ways += [self._rows, self._rows, self._headers, self._headers, self._nothing]
        way = self.rng.choice(ways)
        self.log.append(way.__name__)
        return way(response, body)  # type: ignore[no-any-return]

    # --- values ---------------------------------------------------------------------------------
    def _structs(self, value: Any) -> list[Any]:
        """All structs inside a message, itself included."""
        found = [value]
        for name in value.__struct_fields__:
            inner = getattr(value, name)
            if isinstance(inner, list):
                for each in inner:
                    if isinstance(each, msgspec.Struct):
                        found.extend(self._structs(each))
        return found

    def _fields(self, response: Any, body: bytes) -> tuple[m.Response, bytes]:
        struct = self.rng.choice(self._structs(response))
        names = [n for n in struct.__struct_fields__ if n not in ("api", "version")]
        name = self.rng.choice(names)
        value = getattr(struct, name)
        if isinstance(value, bool):
            setattr(struct, name, not value)
        elif isinstance(value, int):
            near = [value + 1, value - 1, -value, value * 2]
            setattr(struct, name, self.rng.choice([*INTEGERS, *near]))
        elif isinstance(value, str):
            # No name that a resolver would have to ask for: that takes its own time.
            strange = ["127.0.0.2"] if name == "host" else ["other", value + "x"]
            setattr(struct, name, self.rng.choice(["", "\0", "x" * 5_000, *strange]))
        elif isinstance(value, bytes):
            broken = bytearray(value or b"\0")
            broken[self.rng.randrange(len(broken))] ^= 1 << self.rng.randrange(8)
            setattr(struct, name, self.rng.choice([b"", b"x", value[:-1], bytes(broken)]))
        elif isinstance(value, list):
            setattr(struct, name, [])
        self.log.append(f"{type(struct).__name__}.{name}")
        return response, body

    def _lists(self, response: Any, body: bytes) -> tuple[m.Response, bytes]:
        lists = [
            getattr(struct, name)
            for struct in self._structs(response)
            for name in struct.__struct_fields__
            if isinstance(getattr(struct, name), list)
        ]
        full = [each for each in lists if each]
        if not full:
            return response, body
        chosen = self.rng.choice(full)
        at = self.rng.randrange(len(chosen))
        way = self.rng.choice(["drop", "double", "clear", "reverse", "foreign"])
        self.log.append(way)
        if way == "drop":
            del chosen[at]
        elif way == "clear":
            chosen.clear()
        elif way == "reverse":
            chosen.reverse()
        else:
            extra = chosen[at]
            if way == "foreign" and isinstance(extra, msgspec.Struct):
                extra = msgspec.msgpack.decode(msgspec.msgpack.encode(extra), type=type(extra))
                if hasattr(extra, "partition"):
                    extra.partition += 7
            chosen.append(extra)
        return response, body

    def _codes(self, response: Any, body: bytes) -> tuple[m.Response, bytes]:
        structs = [s for s in self._structs(response) if hasattr(s, "error_code")]
        self.rng.choice(structs).error_code = self.rng.choice(CODES)
        return response, body

    # --- the frame ------------------------------------------------------------------------------
    def _types(self, response: Any, body: bytes) -> bytes:
        """Somewhere in the header lies a value of another type."""
        response.api = int(response.API)
        response.version = response.VERSION
        plain = msgspec.msgpack.decode(msgspec.msgpack.encode(response))
        places: list[tuple[list[Any], int]] = []

        def walk(values: list[Any]) -> None:
            for index, value in enumerate(values):
                places.append((values, index))
                if isinstance(value, list):
                    walk(value)

        walk(plain)
        values, index = self.rng.choice(places[3:] or places)
        values[index] = self.rng.choice(STRANGE)
        header = msgspec.msgpack.encode(plain)
        size = 4 + len(header) + len(body)
        return size.to_bytes(4, "little") + len(header).to_bytes(4, "little") + header + body

    def _correlation(self, response: Any, body: bytes) -> bytes:
        wrong = response.correlation_id + self.rng.choice([1, -1, 1000])
        right = frames.encode(response, self.rng.choice([wrong, 0, -1, 2**40]), len(body))
        return right + body

    def _repeat(self, response: Any, body: bytes) -> tuple[m.Response, bytes]:
        """The answer to an earlier question."""
        if self._earlier is None:
            self._earlier = response, body
        return self._earlier

    # --- rows -----------------------------------------------------------------------------------
    def _rows(self, response: Any, body: bytes) -> tuple[m.Response, bytes]:
        """Other bytes of the same length: flipped, cut into other batches, out of order."""
        batches = [bytes(view) for _, view in split_batches(memoryview(body))]
        broken = bytearray(body)
        way = self.rng.choice(["flip", "reorder", "shift", "double", "last"])
        self.log.append(way)
        if way == "flip" and broken:
            broken[self.rng.randrange(len(broken))] ^= 1 << self.rng.randrange(8)
        elif way == "reorder":
            self.rng.shuffle(batches)
            broken = bytearray(b"".join(batches))
        elif way == "shift" and broken:
            broken = broken[1:] + b"\0"
        elif way in ("double", "last") and batches:
            part = next(p for p in response.partitions if p.batch_bytes)
            kept = batches[-1:] if way == "last" else [*batches, batches[-1]]
            broken = bytearray(b"".join(kept))
            for each in response.partitions:
                each.batch_bytes = 0
            part.batch_bytes = len(broken)
        return response, bytes(broken)

    def _headers(self, response: Any, body: bytes) -> tuple[m.Response, bytes]:
        """A batch whose header disagrees with its rows or with the answer; its CRC is good."""
        if not body:
            return response, body
        broken = bytearray(body)
        starts = []
        at = 0
        for header, _ in split_batches(memoryview(body)):
            starts.append(at)
            at += header.total_bytes
        at = self.rng.choice(starts)
        header = BatchHeader.unpack(broken, at)
        total = header.total_bytes
        name = self.rng.choice(
            [n for n in BatchHeader._fields if n not in ("crc32c", "size", "reserved")]
        )
        self.log.append(name)
        limit = {"magic": 2**8, "flags": 2**8, "producer_epoch": 2**15}.get(name, 2**31)
        value = getattr(header, name)
        new = self.rng.choice([value + 1, value + 1000, 0, 1, limit - 1, value ^ 4]) % limit
        header._replace(**{name: new}).pack_into(broken, at)
        write_crc(memoryview(broken)[at : at + total])
        return response, bytes(broken)

    def _nothing(self, response: Any, body: bytes) -> tuple[m.Response, bytes]:
        """An early answer without rows."""
        for part in response.partitions:
            part.batch_bytes = 0
        return response, b""
