"""A load generator thin enough not to be what is measured.

Owns one plain blocking socket and the framing. The same code drives the broker and the bare
servers, with the same frames; it looks at sizes alone while the clock runs, and its caller checks
the rows afterwards.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Iterable, Sequence

_SIZE = struct.Struct("<I")
_TIMEVAL = struct.Struct("@ll")

Buffer = bytes | bytearray | memoryview
Frame = Sequence[Buffer]
RECEIVE_BYTES = 4 * 1024 * 1024
SILENCE_SECONDS_MAX = 60

__all__ = ["Frame", "Load"]


class Load:
    """One connection. `greeting` is exchanged first; its answer is kept in `greeted`.

    Args:
        tls: of a listener with TLS.
    """

    def __init__(
        self, address: tuple[str, int], greeting: bytes = b"", tls: ssl.SSLContext | None = None
    ) -> None:
        self._socket = socket.create_connection(address)
        self._is_tls = tls is not None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Timeouts of the kernel, not Python's: those make every send a partial one.
        patience = _TIMEVAL.pack(SILENCE_SECONDS_MAX, 0)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, patience)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, patience)
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname=address[0])
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._at = 0  # bytes [_at, _filled) of the buffer are received and not yet looked at
        self._filled = 0
        self.greeted = self.exchange([greeting]) if greeting else b""

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, frame: Frame) -> None:
        if self._is_tls:  # A TLS socket has no `sendmsg`.
            for part in frame:
                self._socket.sendall(part)
            return
        sent = self._socket.sendmsg(frame)
        if sent < sum(map(len, frame)):
            self._socket.sendall(b"".join(frame)[sent:])

    def receive(self) -> memoryview:
        """One whole reply frame; the view is valid until the next call."""
        while self._filled - self._at < 4:
            self._receive_more()
        size = 4 + _SIZE.unpack_from(self._buffer, self._at)[0]
        if size > RECEIVE_BYTES:
            raise ValueError(f"a reply of {size} bytes is larger than expected")
        while self._filled - self._at < size:
            self._receive_more()
        self._at += size
        return self._buffer[self._at - size : self._at]

    def exchange(self, frame: Frame) -> bytes:
        self.send(frame)
        return bytes(self.receive())

    def pipeline(self, frames: Iterable[Frame], *, depth: int) -> float:
        """Send each frame by itself, at most `depth` unanswered; seconds until the last reply."""
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

    def bursts(self, bursts: Iterable[tuple[bytes, int]], *, ahead: int) -> float:
        """Send joined frames (bytes, how many frames), `ahead` bursts unanswered; seconds.

        One system call for many small frames: shows the server's cost where the sender's own
        system calls would hide it.
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
        """Receive and drop `count` whole reply frames, however the network cuts them."""
        buffer, unpack = self._buffer, _SIZE.unpack_from
        at, filled = self._at, self._filled
        while count:
            if filled - at < 4:
                self._at, self._filled = at, filled
                self._receive_more()
                at, filled = self._at, self._filled
                continue
            at += 4 + unpack(buffer, at)[0]
            count -= 1
            while at > filled:  # the frame goes on in bytes still to come
                at -= filled
                filled = self._received(buffer)
        self._at, self._filled = at, filled

    def _receive_more(self) -> None:
        """Add to the bytes not yet looked at, moving them to the front if there is no room."""
        if self._at == self._filled:
            self._at = self._filled = 0
        elif self._filled == RECEIVE_BYTES or self._at > RECEIVE_BYTES // 2:
            rest = bytes(self._buffer[self._at : self._filled])
            self._buffer[: len(rest)] = rest
            self._at, self._filled = 0, len(rest)
        self._filled += self._received(self._buffer[self._filled :])

    def _received(self, into: memoryview) -> int:
        received = self._socket.recv_into(into)
        if not received:
            raise ConnectionError("the server closed the connection")
        return received
