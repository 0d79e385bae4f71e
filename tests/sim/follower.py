"""A client that waits: long polls that must end when there is something to tell, and not before.

Owns the rule "awake": once a row at or after the asked offset is acknowledged, a parked fetch or
list-offsets request is answered within a moment, long before its own deadline.
"""

from __future__ import annotations

from quiverlog.types import LATEST
from quiverlog.wire import messages as m

from .actors import Actor, Key
from .checker import Checker, Violation
from .world import World

__all__ = ["Follower"]

_WAIT_MS = 20_000
_AWAKE_US = 2_000_000
"""More than any latency and any flush, far less than the wait."""


class Follower(Actor):
    """Waits at the end of one partition, with a fetch and a list-offsets request by turns."""

    def __init__(self, world: World, checker: Checker, number: int, keys: list[Key]) -> None:
        self.keys = keys
        self._waits: tuple[int, Key, int] | None = None
        """(correlation id, key, offset) of the long poll under way."""
        super().__init__(world, checker, f"follower-{number}")
        checker.on_acked.append(self._acked)

    def act(self) -> None:
        key = self.rng.choice(self.keys)
        self.ask(m.ListOffsetsRequest(partitions=[m.ListOffsetsPartition(*key, at=LATEST)]))

    def lost(self) -> None:
        self._waits = None

    def answered(self, request: m.Request, response: m.Response, body: bytes) -> None:
        waited, self._waits = self._waits, None
        if isinstance(response, m.ListOffsetsResponse) and waited is None:
            got = response.partitions[0] if response.partitions else None
            if got is not None and not got.error_code and got.offset >= 0:
                self._wait((got.topic_id, got.partition), got.offset)
                return
        self.later(self.rng.randrange(1_000, 100_000))

    def _wait(self, key: Key, offset: int) -> None:
        if self.rng.random() < 0.5:
            entry = m.FetchPartition(*key, offset=offset, bytes_max=1_000)
            asked = self.ask(m.FetchRequest(max_wait_ms=_WAIT_MS, min_bytes=1, partitions=[entry]))
        else:
            known = m.ListOffsetsPartition(*key, at=LATEST, known_offset=offset)
            asked = self.ask(m.ListOffsetsRequest(max_wait_ms=_WAIT_MS, partitions=[known]))
        self._waits = (asked, key, offset)

    def _acked(self, key: Key, end_offset: int) -> None:
        """Rows up to `end_offset` are visible: does our long poll hear of it?"""
        waits, connection = self._waits, self.connection
        if waits is None or waits[1] != key or end_offset <= waits[2]:
            return

        def look() -> None:
            if self._waits == waits and self.connection == connection:
                raise Violation(f"a long poll at {waits[2]} slept on when {end_offset} was there")

        self.world.at(_AWAKE_US, look)
