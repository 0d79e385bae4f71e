"""At the end the whole of a disk on which bits were flipped is read, and is as everybody else's.

Owns that reading: of each partition that the machine holds, all rows, from this machine, until it
has been copied again where that was needed. No answer may hold other bytes than the leader's.

Must not know: which bits were flipped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from quiverlog.batch.codec import split_batches
from quiverlog.types import EARLIEST, LATEST
from quiverlog.wire import messages as m
from tests.sim.checker import Key, Violation
from tests.sim.decoding import rows_of
from tests.sim.host import Host

from .clients import ClusterSetup
from .promises import ClusterChecker

if TYPE_CHECKING:
    from .cluster import Cluster
    from .host import ClusterHost

__all__ = ["scrub"]

_TRIES_MAX: Final = 400


def scrub(cluster: Cluster, checker: ClusterChecker, host: ClusterHost) -> None:
    """Read everything that this machine holds, from it and from who leads."""
    for key in checker.live():
        if host.node is None or host.node.broker.assignment.find(key) is None:
            continue
        where = ClusterSetup(cluster.world, checker, key)
        start, end = where.offset(key, EARLIEST), where.offset(key, LATEST)
        here = _Pinned(cluster, checker, key, host)
        copied, led = (_batches(one, checker, key, start, end) for one in (here, where))
        name = checker.partitions[key].name
        for offset in copied.keys() & led.keys():
            if copied[offset] != led[offset]:
                raise Violation(f"{name}: {host.name} has other bytes at {offset} than the leader")
        cluster.world.events["batches of a bad disk read again"] += len(copied)
        here.retired = where.retired = True
    made = sum("damaged replica set aside" in line for line in host.log_lines)
    cluster.world.events["damaged replica set aside"] += made


def _batches(
    asker: ClusterSetup, checker: ClusterChecker, key: Key, offset: int, end: int
) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    tries = 0
    while offset < end:
        part = m.FetchPartition(*key, offset=offset, bytes_max=1_000_000, from_follower=True)
        response, body = asker.call(m.FetchRequest(bytes_max=1_000_000, partitions=[part]))
        assert isinstance(response, m.FetchResponse)
        result = None if response.error_code else response.partitions[0]
        if result is not None and not result.error_code and body:
            # Compared with what was acknowledged, and with what anybody has read there.
            after, rows = rows_of(checker.partitions[key], offset, body)
            for base_offset, values in rows:
                checker.read(key, base_offset, values)
            found |= {h.base_offset: bytes(view) for h, view in split_batches(memoryview(body))}
            offset = max(after, offset)
            continue
        tries += 1
        offset = max(offset, result.log_start_offset if result is not None else offset)
        if tries > _TRIES_MAX:
            what = response if result is None else result
            raise Violation(f"{checker.partitions[key].name}: {offset} is not read there: {what}")
    return found


class _Pinned(ClusterSetup):
    """Asks this machine and no other."""

    def __init__(
        self, cluster: Cluster, checker: ClusterChecker, key: Key, host: ClusterHost
    ) -> None:
        self._pinned = host
        super().__init__(cluster.world, checker, key)

    @property
    def host(self) -> Host:
        return self._pinned
