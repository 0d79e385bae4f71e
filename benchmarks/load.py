"""A load generator thin enough not to be what is measured.

Owns one plain blocking socket and the framing. The same code drives the broker and the bare
servers, with the same frames; it looks at sizes alone while the clock runs, and whoever uses it
checks the rows afterwards.
"""

from __future__ import annotations

import socket
import struct
import time
from collections import deque
from collections.abc import Iterable, Sequence

_SIZE = struct.Struct("<I")

Buffer = bytes | bytearray | memoryview
Frame = Sequence[Buffer]
RECEIVE_BYTES = 4 * 1024 * 1024

__all__ = ["Load"]


class Load:
    """One connection. `exchange` and `pipeline` count whole reply frames."""

    def __init__(self, address: tuple[str, int], greeting: bytes = b"") -> None:
        self._socket = socket.create_connection(address, timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._filled = 0
        self.greeted = self.exchange([greeting]) if greeting else b""

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, frame: Frame) -> None:
        sent = self._socket.sendmsg(frame)
        whole = sum(map(len, frame))
        if sent < whole:
            self._socket.sendall(b"".join(frame)[sent:] if len(frame) > 1 else frame[0][sent:])

    def receive(self) -> memoryview:
        """One reply frame, valid until the next call."""
        while True:
            if self._filled >= 4:
                end = 4 + _SIZE.unpack_from(self._buffer)[0]
                if self._filled >= end:
                    break
            self._fill()
        reply = bytes(self._buffer[:end]) if self._filled > end else None
        if reply is None:
            self._filled = 0
            return self._buffer[:end]
        self._buffer[: self._filled - end] = self._buffer[end : self._filled]
        self._filled -= end
        return memoryview(reply)

    def exchange(self, frame: Frame) -> bytes:
        self.send(frame)
        return bytes(self.receive())

    def pipeline(self, frames: Iterable[Frame], *, depth: int) -> float:
        """Send every frame, at most `depth` of them unanswered; seconds until the last reply."""
        began = time.perf_counter()
        in_flight = 0
        for frame in frames:
            if in_flight == depth:
                self.skip(1)
                in_flight -= 1
            self.send(frame)
            in_flight += 1
        self.skip(in_flight)
        return time.perf_counter() - began

    def bursts(self, bursts: Sequence[tuple[bytes, int]], *, ahead: int) -> float:
        """Send joined frames (bytes, how many frames), `ahead` bursts unanswered; seconds.

        One system call for many small frames: the sender must not be what is measured.
        """
        began = time.perf_counter()
        waiting: deque[int] = deque()
        for joined, count in bursts:
            if len(waiting) == ahead:
                self.skip(waiting.popleft())
            self._socket.sendall(joined)
            waiting.append(count)
        self.skip(sum(waiting))
        return time.perf_counter() - began

    def skip(self, count: int) -> None:
        """Receive and drop `count` whole reply frames, however they are cut by the network."""
        buffer, unpack = self._buffer, _SIZE.unpack_from
        at, filled = 0, self._filled
        while count:
            if filled - at >= 4:
                end = at + 4 + unpack(buffer, at)[0]
                if end <= filled:
                    at = end
                    count -= 1
                    continue
                if end - at > len(buffer):
                    raise ValueError(f"a reply of {end - at} bytes is larger than expected")
            if at:
                buffer[: filled - at] = buffer[at:filled]
                filled -= at
                at = 0
            self._filled = filled
            self._fill()
            filled = self._filled
        buffer[: filled - at] = buffer[at:filled]
        self._filled = filled - at

    def _fill(self) -> None:
        received = self._socket.recv_into(self._buffer[self._filled :])
        if not received:
            raise ConnectionError("the server closed the connection")
        self._filled += received
