"""Makes the faults of a schedule happen, and ends them.

Owns the translation of kinds into signals, link faults and full disks, and what was done: a fault
that found nothing to break (its broker was down already) is counted as missed.

Not here: clients, what is right.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from quiverlog import aio
from quiverlog.client.base.results import ClusterMetadata
from quiverlog.errors import QuiverlogError
from tests.support.dying_broker import DIES_WITHIN_S, POINTS

from .brokers import Brokers
from .nemesis import NODE_IDS, Fault
from .proxy import Direction, LinkFault, Proxy

__all__ = ["RESERVE_BYTES", "Nemesis", "look_at_metadata"]

CUT: Final = LinkFault(is_cut=True)
BLACKHOLE: Final = LinkFault(held=frozenset((Direction.THERE, Direction.BACK)))
RESERVE_BYTES: Final = 4 << 20
LITTLE_ROOM_BYTES: Final = RESERVE_BYTES // 2
LOOK_S: Final = 2.0


class Nemesis:
    def __init__(self, brokers: Brokers, proxy: Proxy, topics: Iterable[str]) -> None:
        self._brokers = brokers
        self._proxy = proxy
        self._topics = tuple(topics)
        self._links: dict[tuple[str, int], list[LinkFault]] = {}
        self.done: Counter[str] = Counter()
        self.missed: Counter[str] = Counter()
        self.died: Counter[str] = Counter()

    async def perform(self, schedule: Iterable[Fault], begin_s: float) -> None:
        """Return when the last fault has ended."""
        async with asyncio.TaskGroup() as group:
            for fault in schedule:
                await asyncio.sleep(max(0.0, begin_s + fault.at_s - time.monotonic()))
                self._brokers.look()
                group.create_task(self._one(fault))

    async def heal(self) -> None:
        """Nothing is wrong any more, and all brokers run."""
        self._proxy.heal()
        self._links.clear()
        for node_id in NODE_IDS:
            self._brokers.resume(node_id)
            self._empty(node_id)
        await asyncio.gather(*(self._brokers.start(node_id) for node_id in NODE_IDS))

    # --- kinds ---------------------------------------------------------------------------------
    async def _one(self, fault: Fault) -> None:
        node_id = await self._target(fault)
        process: dict[str, Callable[[], Awaitable[bool]]] = {
            "kill": lambda: self._kill([node_id], fault.lasts_s),
            "kill two": lambda: self._kill(self._two(node_id, fault.other), fault.lasts_s),
            "kill all": lambda: self._kill(NODE_IDS, fault.lasts_s),
            "pause": lambda: self._pause(node_id, fault.lasts_s),
            "stop": lambda: self._stop(node_id, fault.lasts_s),
            "little room": lambda: self._fill(node_id, LITTLE_ROOM_BYTES, fault.lasts_s),
            "full disk": lambda: self._fill(node_id, 0, fault.lasts_s),
            "die in a transaction": lambda: self._die(fault.choice, fault.lasts_s),
        }
        if fault.kind in process:
            happened = await process[fault.kind]()
        else:
            happened = await self._break_links(_links(fault, node_id), fault.lasts_s)
        (self.done if happened else self.missed)[fault.kind] += 1

    @staticmethod
    def _two(first: int, other: int) -> list[int]:
        return [first, other if other != first else first % len(NODE_IDS) + 1]

    async def _kill(self, node_ids: Iterable[int], lasts_s: float) -> bool:
        node_ids = list(node_ids)
        killed = await asyncio.gather(*(self._brokers.kill(node_id) for node_id in node_ids))
        await asyncio.sleep(lasts_s)
        await asyncio.gather(*(self._brokers.start(node_id) for node_id in node_ids))
        return any(killed)

    async def _die(self, choice: int, lasts_s: float) -> bool:
        """Whichever broker comes to the point, within this time."""
        point = POINTS[choice % len(POINTS)]
        self._brokers.die_at(point)
        await asyncio.sleep(lasts_s)
        if self._brokers.live_on(point):
            return False
        self.died[point] += 1
        await asyncio.sleep(DIES_WITHIN_S)
        # Which one it was is not known: those that another fault keeps down are started early.
        await asyncio.gather(*(self._brokers.start(node_id) for node_id in NODE_IDS))
        return True

    async def _pause(self, node_id: int, lasts_s: float) -> bool:
        if not self._brokers.pause(node_id):
            return False
        await asyncio.sleep(lasts_s)
        self._brokers.resume(node_id)
        return True

    async def _stop(self, node_id: int, lasts_s: float) -> bool:
        stopped = await self._brokers.stop(node_id)
        await asyncio.sleep(lasts_s)
        await self._brokers.start(node_id)
        return stopped

    async def _fill(self, node_id: int, free_bytes: int, lasts_s: float) -> bool:
        """A write that found no room takes a replica offline until a restart: so one follows."""
        disk = self._brokers.disks[node_id]
        if disk.is_full:
            return False
        await asyncio.to_thread(disk.fill, free_bytes, self._pid(node_id))
        await asyncio.sleep(lasts_s)
        self._empty(node_id)
        if free_bytes == 0:
            await self._brokers.kill(node_id)
        await self._brokers.start(node_id)
        return True

    def _empty(self, node_id: int) -> None:
        disk = self._brokers.disks[node_id]
        if disk.is_full:
            disk.empty(self._pid(node_id))

    def _pid(self, node_id: int) -> int | None:
        broker = self._brokers.by_id[node_id]
        return broker.pid if broker.running else None

    # --- links ---------------------------------------------------------------------------------
    async def _break_links(self, faults: dict[tuple[str, int], LinkFault], lasts_s: float) -> bool:
        for link, fault in faults.items():
            self._links.setdefault(link, []).append(fault)
            self._proxy.set_fault(*link, fault)
        await asyncio.sleep(lasts_s)
        for link, fault in faults.items():
            under_way = self._links.get(link, [])
            if fault in under_way:
                under_way.remove(fault)
            self._proxy.set_fault(*link, under_way[-1] if under_way else LinkFault())
        return True

    # --- who -----------------------------------------------------------------------------------
    async def _target(self, fault: Fault) -> int:
        if fault.target.isdigit():
            return int(fault.target)
        metadata = await look_at_metadata(self._brokers)
        found = -1
        if metadata is not None and fault.target == "controller":
            found = metadata.controller_id
        elif metadata is not None:
            leaders = [
                partition.leader
                for name in self._topics
                if name in metadata.topics
                for partition in metadata.topics[name].partitions
            ]
            found = leaders[fault.choice % len(leaders)] if leaders else -1
        return found if found in NODE_IDS else fault.other


def _links(fault: Fault, node_id: int) -> dict[tuple[str, int], LinkFault]:
    """(connecting side, target) -> what is wrong, of a fault of the network."""
    peers = [other for other in NODE_IDS if other != node_id]
    inwards = [(f"broker-{other}", node_id) for other in peers]
    outwards = [(f"broker-{node_id}", other) for other in peers]
    clients = [("client", node_id)]
    there, back = frozenset((Direction.THERE,)), frozenset((Direction.BACK,))
    other = fault.other if fault.other != node_id else peers[0]
    one = [(f"broker-{node_id}", other)]
    if fault.kind == "receive nothing":
        into, out = LinkFault(held=there), LinkFault(held=back)
        return dict.fromkeys(inwards, into) | dict.fromkeys(outwards, out)
    if fault.kind == "send nothing":
        into, out = LinkFault(held=back), LinkFault(held=there)
        return dict.fromkeys(inwards, into) | dict.fromkeys(outwards, out)
    slow = LinkFault(delay_s=fault.amount)
    links, what = {
        "cut": (inwards + outwards + clients, CUT),
        "cut for long": ([*one, (f"broker-{other}", node_id)], CUT),
        "isolate": (inwards + outwards + clients, BLACKHOLE),
        "isolate from brokers": (inwards + outwards, BLACKHOLE),
        "isolate from clients": (clients, BLACKHOLE),
        "blackhole": (one, BLACKHOLE),
        "delay": (inwards + outwards + clients, slow),
        "throttle": (inwards + clients, LinkFault(bytes_per_s=int(fault.amount))),
    }[fault.kind]
    return dict.fromkeys(links, what)


async def look_at_metadata(brokers: Brokers) -> ClusterMetadata | None:
    """The newest that any broker answers, asked past the proxy."""

    async def ask(node_id: int) -> ClusterMetadata | None:
        broker = brokers.by_id[node_id]
        if not broker.running or node_id in brokers.paused:
            return None
        try:
            async with aio.connect(
                broker.bootstrap,
                client_id="client-watch",
                connect_timeout=LOOK_S,
                request_timeout=LOOK_S,
            ) as client:
                found: ClusterMetadata = await client.run(client.cluster.refresh(None))
                return found
        except QuiverlogError:
            return None

    found = [one for one in await asyncio.gather(*map(ask, NODE_IDS)) if one is not None]
    return max(found, key=lambda one: one.metadata_version, default=None)
