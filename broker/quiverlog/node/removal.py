"""The files of deleted partitions, taken away a few at a time.

Owns the queue of replicas that no topic has any more, and its pace: thousands of directories, or a
few huge ones, must not keep everybody else's requests waiting. What a stop leaves is removed by
the next start, which finds that no topic owns it.

Must not know: why a replica is gone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

from quiverlog.errors import QuiverlogError, ThrottledBroker
from quiverlog.limits import MIB
from quiverlog.node.replica import Replica
from quiverlog.types import Now

if TYPE_CHECKING:
    from quiverlog.node.broker import Broker

__all__ = ["Removal"]

_SLICE: Final = 16
"""Partitions removed in one go: one flush of the directory serves them all."""
_SLICE_BYTES: Final = 256 * MIB
"""Freeing the blocks of a large file takes its time too."""
_PAUSE_US: Final = 5_000


class Removal:
    """See the module docstring. `flushing`: names of those that wait for a running flush first."""

    __slots__ = ("_broker", "_queue", "_rest_until_us", "flushing", "next_us")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._queue: dict[str, Replica] = {}
        self._rest_until_us = 0
        self.flushing: set[str] = set()
        self.next_us: int | None = None

    def add(self, replicas: Sequence[Replica], now: Now) -> None:
        """Remove these soon; a few at once after a rest. No flush may hold their files."""
        self._queue.update((str(replica.name), replica) for replica in replicas)
        if self._queue:
            self.next_us = self._rest_until_us
            self.run(now)

    def run(self, now: Now) -> None:
        """Remove the next few if it is time."""
        if self.next_us is not None and now.mono_us >= self.next_us:
            self._remove_slice(now)

    def make_way(self, names: Collection[str]) -> None:
        """These names are wanted for new partitions.

        Raises:
            ThrottledBroker: too much of them is still to be removed.
        """
        mine = [name for name in names if name in self._queue]
        if len(mine) > _SLICE or not self.flushing.isdisjoint(names):
            raise ThrottledBroker("the deleted topic of this name still has files: try again.")
        self._remove([self._queue.pop(name) for name in mine])

    def close(self) -> None:
        """Let go of the files; the next start removes them."""
        queue, self._queue, self.next_us = self._queue, {}, None
        for replica in queue.values():
            self._close_log(replica)

    def _remove_slice(self, now: Now) -> None:
        found: list[Replica] = []
        byte_count = 0
        for replica in self._queue.values():
            byte_count += replica.log.size_bytes
            if len(found) == _SLICE or (found and byte_count > _SLICE_BYTES):
                break
            found.append(replica)
        for replica in found:
            del self._queue[str(replica.name)]
        self._remove(found)
        self._rest_until_us = now.mono_us + _PAUSE_US
        self.next_us = self._rest_until_us if self._queue else None

    def _remove(self, replicas: Sequence[Replica]) -> None:
        for replica in replicas:
            self._close_log(replica)
        broker = self._broker
        try:
            broker.directory.remove_partitions(
                {str(replica.name): replica.topic.topic_id for replica in replicas}
            )
        except (OSError, QuiverlogError) as error:
            # The next start finds that no topic owns the directories.
            broker.log("warning", "directories not removed", why=str(error))

    def _close_log(self, replica: Replica) -> None:
        try:
            replica.log.close(clean=False)
        except (OSError, QuiverlogError) as error:
            self._broker.log(
                "warning", "deleted log not closed", partition=str(replica.name), why=str(error)
            )
