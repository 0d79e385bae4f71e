"""Three broker processes, behind the proxy and each with a disk of its own where that is wanted.

Owns their start as one cluster, their deaths, and the watch over them: a broker that ends by
itself, that does not come up, or that logs an error of its own is a finding. What blocks runs in
threads, so that proxy and clients go on meanwhile.

Not here: why a broker is killed, what clients do.
"""

from __future__ import annotations

import asyncio
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from quiverlog import aio
from quiverlog.client.admin.cluster import change_voters
from quiverlog.errors import QuiverlogError
from quiverlog.wire.voters_messages import ChangeVotersRequest, VoterChange
from tests.support.broker import COMMAND, BrokerFailed, BrokerProcess
from tests.support.places import directory_on_disk
from tests.support.ports import free_port

from .disks import Disk, can_mount
from .nemesis import NODE_IDS
from .proxy import Proxy

__all__ = ["Brokers"]

CLUSTER_ID = "chaos"
START_S = 60.0
DYING = Path(__file__).parents[1] / "support" / "dying_broker.py"
FINDINGS = re.compile(r"internal error|Traceback|AssertionError|event=\"?panic", re.IGNORECASE)
EXCERPT_LINES = 40


class Brokers:
    """`async with` starts them and takes everything away at the end.

    Args:
        proxy: None: they are connected to directly.
        disk_bytes: 0: they share the disk of the machine.
        config: beyond what each needs anyway.
        is_dying: they run in `dying_broker.py`, and may be asked to die in a transaction.
        may_mount: False: as where this process may not.
    """

    def __init__(
        self,
        proxy: Proxy | None = None,
        disk_bytes: int = 0,
        config: Mapping[str, object] | None = None,
        *,
        is_dying: bool = False,
        may_mount: bool = True,
    ) -> None:
        self.proxy = proxy
        self.by_id: dict[int, BrokerProcess] = {}
        self.disks: dict[int, Disk] = {}
        self.fronts: dict[int, str] = {}
        self._addresses: dict[int, tuple[str, int]] = {}
        self.problems: list[str] = []
        self.paused: set[int] = set()
        self.starts: Counter[int] = Counter()
        self._disk_bytes = disk_bytes
        self._config = dict(config or {})
        self._may_mount = may_mount
        self._workspace = directory_on_disk("quiverlog-chaos-")
        self._points = Path(self._workspace.name) / "points"
        self._points.mkdir()
        self._is_dying = is_dying
        self._busy = {node_id: asyncio.Lock() for node_id in NODE_IDS}

    @property
    def bootstrap(self) -> str:
        """For clients: all fronts."""
        return ",".join(self.fronts.values())

    @property
    def direct(self) -> str:
        """Where the brokers themselves listen, for what only watches."""
        return ",".join(broker.bootstrap for broker in self.by_id.values())

    @property
    def disk_kind(self) -> str:
        """How disks become full."""
        return self.disks[NODE_IDS[0]].kind

    async def __aenter__(self) -> Brokers:
        try:
            await self._begin()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for node_id, broker in self.by_id.items():
            if broker.running and node_id in self.paused:
                broker.signal(signal.SIGCONT)
            broker.kill()
            await asyncio.to_thread(broker.__exit__, None, None, None)
        for disk in self.disks.values():
            await asyncio.to_thread(disk.unmount)
        self._workspace.cleanup()

    # --- lives ---------------------------------------------------------------------------------
    async def kill(self, node_id: int) -> bool:
        """SIGKILL; False when it does not run."""
        async with self._busy[node_id]:
            broker = self.by_id[node_id]
            if not broker.running:
                return False
            self.paused.discard(node_id)
            await asyncio.to_thread(broker.kill)
            return True

    def die_at(self, point: str) -> None:
        """Have the first broker die that comes there in a transaction."""
        (self._points / point).touch()

    def live_on(self, point: str) -> bool:
        """Take the wish back; False: a broker has died, or is about to."""
        try:
            (self._points / point).unlink()
        except FileNotFoundError:
            return False
        return True

    async def stop(self, node_id: int) -> bool:
        """SIGTERM, and wait for the end."""
        async with self._busy[node_id]:
            broker = self.by_id[node_id]
            if not broker.running or node_id in self.paused:
                return False
            try:
                code = await asyncio.to_thread(broker.stop, START_S)
            except BrokerFailed as error:
                self._found(node_id, f"did not stop: {str(error)[-3000:]}")
                return True
            if code and not self._has_died(code) and not self._may_be_unclean(node_id):
                self._found(node_id, f"ended with exit code {code} after the stop signal")
            return True

    def _has_died(self, code: int) -> bool:
        """As it was asked to."""
        return self._is_dying and code == -signal.SIGKILL

    def _may_be_unclean(self, node_id: int) -> bool:
        """A full disk, or a partition that is offline, costs the mark of a clean stop."""
        text = self.by_id[node_id].log_text
        return (
            self.disks[node_id].is_full or "partition offline" in text[text.rfind("waiting for") :]
        )

    def pause(self, node_id: int) -> bool:
        """SIGSTOP."""
        broker = self.by_id[node_id]
        if not broker.running or node_id in self.paused or self._busy[node_id].locked():
            return False
        self.paused.add(node_id)
        broker.signal(signal.SIGSTOP)
        return True

    def resume(self, node_id: int) -> None:
        """SIGCONT, if it is the same process that was stopped."""
        if node_id in self.paused and self.by_id[node_id].running:
            self.by_id[node_id].signal(signal.SIGCONT)
        self.paused.discard(node_id)

    async def start(self, node_id: int) -> None:
        """Unless it runs; on a full disk it may fail."""
        async with self._busy[node_id]:
            broker = self.by_id[node_id]
            if broker.running:
                return
            self._look_for_end(node_id)
            self.starts[node_id] += 1
            try:
                await asyncio.to_thread(broker.start)
            except BrokerFailed as error:
                has_died = self._is_dying and f"exit code {-signal.SIGKILL:d}" in str(error)
                if not has_died and not self.disks[node_id].is_full:
                    self._found(node_id, f"did not start: {str(error)[-3000:]}")

    def look(self) -> None:
        """Raise if a broker has ended by itself. Called now and then while no fault kills one."""
        for node_id in NODE_IDS:
            if not self._busy[node_id].locked():
                self._look_for_end(node_id)

    def _look_for_end(self, node_id: int) -> None:
        broker = self.by_id[node_id]
        if broker.has_ended:
            code = broker.wait()
            if not self._has_died(code) and not self.disks[node_id].is_full:
                self._found(node_id, f"ended by itself with exit code {code}")

    # --- the end -------------------------------------------------------------------------------
    async def stop_all(self) -> None:
        """Side by side, so that no one takes what the others lead for its own."""
        await asyncio.gather(*(self.stop(node_id) for node_id in NODE_IDS))

    def look_at_logs(self) -> None:
        """What the brokers wrote that none should ever write."""
        for node_id, broker in self.by_id.items():
            text = broker.log_text
            found = FINDINGS.search(text)
            if found:
                lines = text[max(0, found.start() - 300) :].splitlines()[:EXCERPT_LINES]
                self._found(node_id, "logged:\n" + "\n".join(lines))

    def keep_logs(self, directory: Path) -> None:
        """Of all their lives."""
        directory.mkdir(parents=True, exist_ok=True)
        for node_id, broker in self.by_id.items():
            (directory / f"broker-{node_id}.log").write_text(broker.log_text)

    def _found(self, node_id: int, what: str) -> None:
        self.problems.append(f"broker {node_id} {what}")

    # --- the beginning -------------------------------------------------------------------------
    async def _begin(self) -> None:
        workspace = Path(self._workspace.name)
        wants_mount = self._disk_bytes > 0 and self._may_mount
        is_mounted = wants_mount and await asyncio.to_thread(can_mount, workspace)
        for node_id in NODE_IDS:
            host, port = self._addresses[node_id] = "127.0.0.1", free_port()
            self.fronts[node_id] = f"{host}:{port}"
            if self.proxy is not None:
                self.fronts[node_id] = await self.proxy.open_front(node_id)
                # A broker that joins is asked by the others before it is ready.
                self.proxy.set_target(node_id, (host, port))
            disk = Disk(workspace / f"disk-{node_id}", self._disk_bytes, is_mounted=is_mounted)
            await asyncio.to_thread(disk.mount)
            self.disks[node_id] = disk
        first, *others = NODE_IDS
        await self._launch(first, {})
        overrides = {"controller.quorum.bootstrap.servers": f"{first}@{self.fronts[first]}"}
        for node_id in others:
            await self._launch(node_id, overrides)
        async with aio.connect(self.bootstrap, client_id="client-founder") as client:
            for node_id in others:
                await self._make_voter(client, node_id)
        seeds = ",".join(f"{node_id}@{front}" for node_id, front in self.fronts.items())
        for broker in self.by_id.values():
            broker.config["controller.quorum.bootstrap.servers"] = seeds

    async def _launch(self, node_id: int, overrides: dict[str, str]) -> None:
        config = {
            "node.id": node_id,
            "cluster.id": CLUSTER_ID,
            "rack": f"rack-{node_id}",
            "advertise": self.fronts[node_id],
            **self._config,
            **overrides,
        }
        disk = self.disks[node_id]
        host, port = self._addresses[node_id]
        command = (sys.executable, str(DYING), str(self._points), "broker")
        broker = BrokerProcess(
            disk.data_dir,
            config,
            f"{host}:{port}",
            start_timeout=START_S,
            command=command if self._is_dying else COMMAND,
        )
        self.by_id[node_id] = broker
        await asyncio.to_thread(broker.start)

    async def _make_voter(self, client: aio.AsyncClient, node_id: int) -> None:
        """Unless it has become one by itself."""
        deadline_s = time.monotonic() + START_S
        while True:
            try:
                found = await client.run(change_voters(client.cluster, ChangeVotersRequest()))
                if any(one.node_id == node_id and one.is_voter for one in found.replicas):
                    return
                request = ChangeVotersRequest(change=int(VoterChange.ADD), node_id=node_id)
                await client.run(change_voters(client.cluster, request))
            except QuiverlogError:
                if time.monotonic() > deadline_s:
                    raise
                await asyncio.sleep(0.1)
