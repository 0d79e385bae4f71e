"""At the end the whole of a disk on which bits were flipped is read, and is as everybody else's.

Owns that reading: of each partition that the machine is to hold, all rows, from this machine, until
it has been copied again where that was needed; and the comparison with the leader's, batch by
batch: the same ones, with the same bytes. A row that does not come for as long as the cluster may
take (patience.py) will never come: the more of a log is to be copied again, the longer it takes.

Not here: which bits were flipped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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

__all__ = ["batches_of", "compare", "is_to_hold", "scrub"]


def scrub(cluster: Cluster, checker: ClusterChecker, host: ClusterHost) -> None:
    """Read everything that this machine holds, from it and from the leader."""
    for key in checker.live():
        if not is_to_hold(cluster, key, host.node_id):
            continue
        where = ClusterSetup(cluster, checker, key)
        start, end = where.offset(key, EARLIEST), where.offset(key, LATEST)
        here = _Pinned(cluster, checker, key, host)
        copied, led = (batches_of(one, checker, key, start, end) for one in (here, where))
        # Retention went on while it was read, and takes from copies what it took from leaders.
        start = where.offset(key, EARLIEST)
        compare(f"{checker.partitions[key].name}: {host.name}", copied, led, start)
        cluster.world.events["batches of a bad disk read again"] += len(copied)
        here.retired = where.retired = True
    made = sum("damaged replica set aside" in line for line in host.log_lines)
    cluster.world.events["damaged replica set aside"] += made


def is_to_hold(cluster: Cluster, key: Key, node_id: int) -> bool:
    """Is it to hold the partition? Whether it does now is no matter: it may be copied again."""
    images = [host.node.broker.metadata.image for host in cluster.living if host.node is not None]
    topic = max(images, key=lambda image: image.version).topics_by_id.get(key[0])
    return topic is not None and node_id in topic.partitions[key[1]].replicas


def compare(where: str, copied: dict[int, bytes], led: dict[int, bytes], start: int) -> None:
    """Both have the same batches, by their base offsets, of those that begin at `start` or later.

    Raises Violation.
    """
    for offset in sorted(copied.keys() | led.keys()):
        if offset < start:
            continue
        if offset not in copied:
            raise Violation(f"{where} gives no batch at {offset}, the leader has one")
        if offset not in led:
            raise Violation(f"{where} gives a batch at {offset} that the leader has not")
        if copied[offset] != led[offset]:
            raise Violation(f"{where} has other bytes at {offset} than the leader")


def batches_of(
    asker: ClusterSetup, checker: ClusterChecker, key: Key, offset: int, end: int
) -> dict[int, bytes]:
    """All batches from `offset` to `end` by their base offsets, as the asked broker serves them.

    Raises Violation: a row does not come, or is not what was promised.
    """
    found: dict[int, bytes] = {}
    while offset < end:
        offset, body = _read(asker, checker.partitions[key].name, key, offset, end)
        # Compared with what was acknowledged, and with all that was read there.
        after, rows = rows_of(checker.partitions[key], offset, body)
        for base_offset, values in rows:
            checker.read(key, base_offset, values)
        found |= {h.base_offset: bytes(view) for h, view in split_batches(memoryview(body))}
        offset = after
    return found


def _read(asker: ClusterSetup, name: str, key: Key, offset: int, end: int) -> tuple[int, bytes]:
    """The next rows, and where they are; none where the log begins at `end` or later by now."""
    last: object = None
    for _ in asker.tries():
        part = m.FetchPartition(*key, offset=offset, bytes_max=1_000_000, from_follower=True)
        response, body = asker.call(m.FetchRequest(bytes_max=1_000_000, partitions=[part]))
        assert isinstance(response, m.FetchResponse)
        if response.error_code:
            last = response
            continue
        last = result = response.partitions[0]
        if body and not result.error_code:
            return offset, body
        offset = max(offset, result.log_start_offset)
        if offset >= end:
            return offset, b""
    raise Violation(f"{name}: {offset} is not read there: {last}")


class _Pinned(ClusterSetup):
    """Asks this machine and no other."""

    def __init__(
        self, cluster: Cluster, checker: ClusterChecker, key: Key, host: ClusterHost
    ) -> None:
        self._pinned = host
        super().__init__(cluster, checker, key)

    @property
    def host(self) -> Host:
        return self._pinned
