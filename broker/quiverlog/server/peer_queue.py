"""What waits to be sent to another broker, within bounds, and how long a failed connection rests.

Owns what gives way where there is too much: of requests that nobody waits for the oldest, because
the newest knows best; of the others the one that comes too late. Pure: no clock, no sockets.

Must not know: what a request means, connections.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from typing import Final

from quiverlog.limits import (
    PEER_BACKOFF_MS_MAX,
    PEER_BACKOFF_MS_MIN,
    PEER_QUEUE_BYTES_MAX,
    PEER_QUEUE_REQUESTS_MAX,
)
from quiverlog.node.runtime.effects import NO_TOKEN, SendToPeer

__all__ = ["Backoff", "PeerQueue", "body_bytes"]

_REQUEST_BYTES: Final = 512
"""More than a request takes without its body."""


def body_bytes(body: Sequence[bytes | memoryview]) -> int:
    """Length of a body in parts."""
    return sum(memoryview(part).nbytes for part in body)


class PeerQueue:
    """See the module docstring."""

    __slots__ = ("_dropped", "_waiting", "byte_count")

    def __init__(self) -> None:
        self._waiting: deque[tuple[SendToPeer, int]] = deque()
        self.byte_count = 0
        self._dropped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, effect: SendToPeer) -> bool:
        """False: there is no room, and somebody waits for the answer."""
        cost = _REQUEST_BYTES + body_bytes(effect.body)
        while self._waiting and self._is_over(cost):
            if not self._drop_oldest():
                break
        if self._waiting and self._is_over(cost):
            if effect.token != NO_TOKEN:
                return False
            self._dropped += 1
            return True
        self._waiting.append((effect, cost))
        self.byte_count += cost
        return True

    def take(self) -> SendToPeer:
        """The next one to be sent."""
        effect, cost = self._waiting.popleft()
        self.byte_count -= cost
        assert self.byte_count >= 0
        return effect

    def clear(self) -> tuple[int, ...]:
        """Nothing of it will be sent: the tokens that somebody waits for."""
        tokens = tuple(e.token for e, _ in self._waiting if e.token != NO_TOKEN)
        self._dropped += len(self._waiting) - len(tokens)
        self._waiting.clear()
        self.byte_count = 0
        return tokens

    def take_dropped(self) -> int:
        """How many gave way that nobody waited for, since this was asked last."""
        dropped, self._dropped = self._dropped, 0
        return dropped

    def _is_over(self, cost: int) -> bool:
        return (
            len(self._waiting) >= PEER_QUEUE_REQUESTS_MAX
            or self.byte_count + cost > PEER_QUEUE_BYTES_MAX
        )

    def _drop_oldest(self) -> bool:
        for at, (effect, cost) in enumerate(self._waiting):
            if effect.token == NO_TOKEN:
                del self._waiting[at]
                self.byte_count -= cost
                self._dropped += 1
                return True
        return False


class Backoff:
    """How long to wait after a failure: twice as long after each, less a part by chance, so that
    brokers that failed together do not come back together."""

    __slots__ = ("_failures", "_random")

    def __init__(self, rng: random.Random) -> None:
        self._random = rng
        self._failures = 0

    def failed(self) -> float:
        """One more failure: seconds until the next try."""
        delay_ms = min(PEER_BACKOFF_MS_MAX, PEER_BACKOFF_MS_MIN << min(self._failures, 16))
        self._failures += 1
        return delay_ms / 1000 * self._random.uniform(0.5, 1.0)

    def succeeded(self) -> None:
        """A request was answered: the next failure is the first."""
        self._failures = 0
