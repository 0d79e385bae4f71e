"""A large request goes to the transport in pieces, in order, and never more than one too many."""

from __future__ import annotations

import asyncio
from typing import Any

from quiverlog.client.piecewise import PIECE_BYTES, PiecewiseWriter


class Transport(asyncio.WriteTransport):
    """Takes `room` bytes at once; what is beyond it holds, as asyncio's transports do."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.writer: PiecewiseWriter | None = None
        self.room = room
        self.taken = bytearray()
        self.held = b""
        self.held_most = 0
        self.high: int | None = None
        self.is_broken = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high

    def is_closing(self) -> bool:
        return self.is_broken

    def write(self, data: Any) -> None:
        assert not self.held, "who was told to wait does not write"
        count = min(self.room, len(data))
        self.taken += data[:count]
        self.room -= count
        self.held = bytes(data[count:])
        self.held_most = max(self.held_most, len(self.held))
        if self.held:
            assert self.writer is not None
            self.writer.pause()

    def drain(self, room: int) -> None:
        """The socket takes so much more."""
        count = min(room, len(self.held))
        self.taken += self.held[:count]
        self.held = self.held[count:]
        self.room = room - count
        if not self.held:
            assert self.writer is not None
            self.writer.resume()


def opened(room: int) -> tuple[Transport, PiecewiseWriter]:
    transport = Transport(room)
    transport.writer = PiecewiseWriter(transport)
    return transport, transport.writer


def test_in_order_and_in_small_pieces() -> None:
    transport, writer = opened(room=100_000)
    assert transport.high == 0, "told as soon as anything is held"
    large = bytearray(range(256)) * (10 * PIECE_BYTES // 256 + 3)
    writer.write([b"head", large, b""])
    writer.write([b"next"])
    rounds = 0
    while len(transport.taken) < len(large) + 8:
        transport.drain(300_000)
        rounds += 1
        assert rounds < 100
    assert transport.taken == b"head" + large + b"next"
    assert 0 < transport.held_most <= PIECE_BYTES


def test_nothing_is_written_after_the_end() -> None:
    transport, writer = opened(room=10)
    writer.write([b"x" * 20, b"y" * 20])
    writer.drop()
    transport.drain(1_000)
    assert transport.taken == b"x" * 20
    transport.is_broken = True
    writer.write([b"z"])
    assert transport.taken == b"x" * 20
