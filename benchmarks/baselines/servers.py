"""Bare servers: what any server on this loop must do, and nothing else.

Run as a process of its own, as the broker is: `python -m benchmarks.baselines.servers MODE ...`.
Understands only the framing (`u32 size | u32 header_size | header | body`), prints its port when
ready and ends with its standard input. All on uvloop with a BufferedProtocol. Modes:

  receive DIRECTORY REPLY     appends each frame's body to a file with one os.write; answers
                              REPLY bytes
  send FILE SLICE REPLY       answers each frame with REPLY bytes and the next SLICE bytes of FILE,
                              a view of its mmap
  echo REPLY                  answers each frame with its own first REPLY bytes, padded if too few
  relay DIRECTORY REPLY PORT...   as `receive`, and sends each frame on to the servers at these
                              ports, which answer REPLY bytes, too; answers when all of them have
  flush DIRECTORY REPLY       writes each frame to a file and answers when fdatasync is through,
                              which runs in a thread, never on the loop

REPLY is the size of the broker's own answer to the same request, so that both sides move the same
bytes in both directions.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import socket
import struct
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import cast

import uvloop

_SIZE = struct.Struct("<I")
BUFFER_BYTES = 8 * 1024 * 1024
LARGE_BYTES = 64 * 1024
PROBE_BYTES = 4 * 1024


class Answerer:
    """One connection's work. `reply` is a frame of zeros, as long as the broker's answer."""

    def __init__(self, reply_bytes: int) -> None:
        self.reply = _SIZE.pack(reply_bytes - 4) + bytes(reply_bytes - 4)

    def answer(self, transport: asyncio.Transport, frame: memoryview) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """The connection is gone."""


class Echo(Answerer):
    def answer(self, transport: asyncio.Transport, frame: memoryview) -> None:
        echoed = bytes(frame[4 : len(self.reply)])
        transport.write(self.reply[:4] + echoed.ljust(len(self.reply) - 4, b"\0"))


class Receive(Answerer):
    """Writes into a nameless file of its own, which is gone when the connection is."""

    def __init__(self, directory: str, reply_bytes: int) -> None:
        super().__init__(reply_bytes)
        self._file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115
        self._fd = self._file.fileno()

    def answer(self, transport: asyncio.Transport, frame: memoryview) -> None:
        os.write(self._fd, frame[8 + _SIZE.unpack_from(frame, 4)[0] :])
        transport.write(self.reply)

    def close(self) -> None:
        self._file.close()


class Relay(Receive):
    """Copies are made side by side, and a frame is answered when the slowest has it."""

    def __init__(self, directory: str, reply_bytes: int, ports: list[int]) -> None:
        super().__init__(directory, reply_bytes)
        self._reply_bytes = reply_bytes
        self._waiting: list[asyncio.Transport] = []
        self._answered = [0] * len(ports)
        self._replied = 0
        self._copies: list[Copy] = []
        loop = asyncio.get_running_loop()
        for number, port in enumerate(ports):
            sock = socket.create_connection(("127.0.0.1", port))
            copy = Copy(partial(self._came, number))
            self._copies.append(copy)
            connecting = loop.create_connection(partial(_same, copy), sock=sock)
            copy.connecting = loop.create_task(connecting)

    def answer(self, transport: asyncio.Transport, frame: memoryview) -> None:
        os.write(self._fd, frame[8 + _SIZE.unpack_from(frame, 4)[0] :])
        sent = bytes(frame)  # One copy, which all of them send.
        for copy in self._copies:
            copy.send(sent)
        self._waiting.append(transport)

    def _came(self, number: int, reply_bytes: int) -> None:
        self._answered[number] += reply_bytes
        whole = min(self._answered) // self._reply_bytes
        while self._replied < whole:
            self._replied += 1
            self._waiting.pop(0).write(self.reply)

    def close(self) -> None:
        for copy in self._copies:
            copy.close()
        super().close()


def _same(copy: Copy) -> Copy:
    return copy


class Copy(asyncio.Protocol):
    """The way to one copy."""

    def __init__(self, came: Callable[[int], None]) -> None:
        self._came = came
        self._early: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self.connecting: asyncio.Task[object] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.writelines(self._early)

    def data_received(self, data: bytes) -> None:
        self._came(len(data))

    def send(self, frame: bytes) -> None:
        if self._transport is None:
            self._early.append(frame)
        else:
            self._transport.write(frame)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class Flush(Receive):
    def __init__(self, directory: str, reply_bytes: int) -> None:
        super().__init__(directory, reply_bytes)
        self._pool = ThreadPoolExecutor(1)

    def answer(self, transport: asyncio.Transport, frame: memoryview) -> None:
        os.write(self._fd, frame)
        synced = asyncio.get_running_loop().run_in_executor(self._pool, os.fdatasync, self._fd)
        synced.add_done_callback(lambda _: transport.write(self.reply))

    def close(self) -> None:
        self._pool.shutdown(wait=True)
        super().close()


class Send(Answerer):
    def __init__(self, path: str, slice_bytes: int, reply_bytes: int) -> None:
        super().__init__(reply_bytes)
        with Path(path).open("rb") as file:
            self._view = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
        self._size = slice_bytes
        self._position = 0
        self.reply = _SIZE.pack(reply_bytes - 4 + slice_bytes) + self.reply[4:]

    def answer(self, transport: asyncio.Transport, frame: memoryview) -> None:
        end = self._position + self._size
        transport.writelines([self.reply, self._view[self._position : end]])
        self._position = end if end + self._size <= len(self._view) else 0


class Framed(asyncio.BufferedProtocol):
    """Receives into one buffer and hands every whole frame, prefix included, to the answerer.

    Large frames are received to their end and no further, so that next to nothing is ever moved
    to the buffer's front; small ones come as many at once as there are.
    """

    def __init__(self, make_answerer: Callable[[], Answerer]) -> None:
        self._answerer = make_answerer()
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._filled = 0
        self._until = BUFFER_BYTES
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own class, not a child

    def connection_lost(self, exc: Exception | None) -> None:
        self._answerer.close()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer[self._filled : self._until]

    def buffer_updated(self, nbytes: int) -> None:
        filled = self._filled + nbytes
        buffer, answer, transport = self._buffer, self._answerer.answer, self._transport
        at = size = 0
        while filled - at >= 4:
            size = 4 + _SIZE.unpack_from(buffer, at)[0]
            end = at + size
            if end > filled:
                break
            answer(transport, buffer[at:end])
            at = end
        if at:
            buffer[: filled - at] = buffer[at:filled]
        self._filled = filled - at
        if size < LARGE_BYTES:
            self._until = BUFFER_BYTES
        else:
            self._until = PROBE_BYTES if self._filled < 4 else size


def answerer(mode: str, *options: str) -> Callable[[], Answerer]:
    """What makes the answerer of a new connection."""
    if mode == "echo":
        return lambda: Echo(int(options[0]))
    if mode == "send":
        return lambda: Send(options[0], int(options[1]), int(options[2]))
    if mode == "relay":
        return lambda: Relay(options[0], int(options[1]), [int(port) for port in options[2:]])
    kind = {"receive": Receive, "flush": Flush}[mode]
    return lambda: kind(options[0], int(options[1]))


async def serve(mode: str, *options: str) -> None:
    loop = asyncio.get_running_loop()
    make_answerer = answerer(mode, *options)
    server = await loop.create_server(lambda: Framed(make_answerer), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    stopped = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), stopped.set)
    await stopped.wait()
    server.close()


if __name__ == "__main__":
    uvloop.run(serve(*sys.argv[1:]))
