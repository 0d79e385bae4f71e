"""What happens to the nodes of a world from outside: deaths, damage, full disks, clocks, cuts.

Owns when and where a scenario's faults strike, and what the checker must learn of each: which
partition may have damaged rows, which loss the broker has to notice.

Not here: what clients want.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from quiverlog.storage.log import checkpoint
from tests.support.logs import foreign_snapshot

from .checker import Checker
from .faults import FaultyDisk
from .host import Host
from .world import World

__all__ = ["Injection"]

_REBUILT = (
    ".index",
    "leader-epochs",
    ".snapshot",
    "recovery-point",
    "recovery-point-copy",
)
_LOG_STARTS = ("/log-start", "/log-start-copy")
_JUMP_US = 8 * 24 * 3_600_000_000
_SEGMENT_HEADER_BYTES = 64
_MEASURED_MS = 300


class Injection:
    """Strikes one host's files, clock and connections, at random moments.

    Args:
        rng: decides everything that is left to it.
        clients: names of those that may be cut off from a node.
    """

    def __init__(
        self,
        world: World,
        checker: Checker,
        rng: random.Random,
        clients: Callable[[], Sequence[str]],
    ) -> None:
        self.world = world
        self.scenario = world.scenario
        self.checker = checker
        self.rng = rng
        self.power_losses = 0
        self._clients = clients
        # Directories of logs of which one copy of `log-start` was damaged.
        self._log_starts_damaged: set[str] = set()

    def begin(self) -> None:
        """From now on until the world is calm."""
        world, scenario = self.world, self.scenario
        world.on_died.append(self._on_died)
        self.checker.on_trimmed.append(self._on_trimmed)
        network = world.network
        network.loss, network.slow = scenario.loss, scenario.slow_network
        network.half_open, network.cut_up = scenario.half_open, scenario.cut_up
        for host in world.hosts:
            disk = host.disk
            disk.loop_may_block = not scenario.gate("loop-never-blocks")
            disk.reorder_pages = scenario.page_order
            disk.evict_rate = scenario.evictions
            disk.read_error_rate = scenario.read_errors
            disk.write_error_rate = scenario.write_errors
            disk.sync_error_rate = scenario.sync_errors
            disk.full_segment_rate = scenario.full_segments
            if scenario.full_segments:
                self._now_and_then(_MEASURED_MS, lambda h=host: self._measure(h))
            self._now_and_then(scenario.death_interval_ms, lambda h=host: self._die(h))
            self._now_and_then(scenario.full_disk_interval_ms, lambda h=host: self._fill(h))
            self._now_and_then(scenario.emfile_interval_ms, lambda h=host: self._no_descriptors(h))
            self._now_and_then(scenario.clock_jump_interval_ms, lambda h=host: self._jump(h))
            self._now_and_then(scenario.cut_interval_ms, lambda h=host: self._cut(h))

    def end(self) -> None:
        """What lasted ends. Nearly always, machines lose their power once more."""
        self.world.network.heal()
        for host in self.world.hosts:
            failed = host.disk.failures.total()
            host.disk.quiet()
            host.wall_offset_us = 0
            self._make_room(host)
            if host.node is not None and self.scenario.last_power_loss:
                self._spared(host, host.power_loss)()  # With all that this run has gathered.
            elif host.node is not None and failed:
                host.kill()  # What failed may have put something out of service until a restart.

    def _now_and_then(self, mean_ms: int, action: Callable[[], None]) -> None:
        """Do `action` at random moments, `mean_ms` apart on average, until the calm."""
        if not mean_ms:
            return

        def act() -> None:
            if not self.world.calm:
                action()
                self._now_and_then(mean_ms, action)

        self.world.at(int(self.rng.expovariate(1 / (mean_ms * 1000))) + 1, act)

    # --- deaths, and what a power failure leaves behind ----------------------------------------
    def _die(self, host: Host) -> None:
        if host.node is not None:
            self._spared(host, self.rng.choice((host.power_loss, host.kill, host.stop)))()

    def _spared(self, host: Host, death: Callable[[], None]) -> Callable[[], None]:
        return host.kill if self.scenario.kills_only and death == host.power_loss else death

    def _on_trimmed(self) -> None:
        """A reader that has learned of a loss must not see these rows again.

        On a full disk the operator who gave them up may make more room himself.
        """
        host = self.world.hosts[0]
        if host.disk.capacity is not None and self.rng.random() < 0.5:
            self.world.at(self.rng.randrange(1, 20_000), lambda: self._make_room(host))
        if not self.world.calm and self.rng.random() < self.scenario.death_after_trim:
            self.world.faults["death right after a trim"] += 1
            die = self._spared(host, self.rng.choice((host.power_loss, host.kill)))
            life = host.life

            def strike() -> None:
                if host.node is not None and host.life == life:
                    die()

            self.world.at(self.rng.randrange(1, 5_000), strike)

    def _on_died(self, host: Host, clean: bool) -> None:
        disk, scenario = host.disk, self.scenario
        if not clean or self.world.faults["full disk"]:
            # A stop may have found no room for what retention took; its mark is true all the same.
            self.checker.process_died()
        if clean and not self.world.calm and self.rng.random() < scenario.newest_gone:
            self._take_segment(host, oldest=False)  # The stop wrote down where each log ends.
        flips = not self.world.calm and scenario.entry_flips > 0
        if flips and self.rng.random() < scenario.entry_flips:
            # However it died: best after a clean stop, when no start looks at the rows.
            self._flip_header(host, indexed=True)
        if scenario.snapshots_exchanged and self.rng.random() < scenario.snapshots_exchanged:
            self._exchange_snapshots(host)
        if not disk.lost_power:
            return
        self.power_losses += 1
        self.checker.machine_died()
        if disk.pages_reordered:
            self.world.faults["pages out of order"] += 1
            for model in self.checker.partitions.values():
                model.torn = True
        if self.world.calm:
            return
        if self.rng.random() < scenario.bit_flip:
            self._flip_bit(host)
        if self.rng.random() < scenario.header_flips:
            self._flip_header(host)
        if self.rng.random() < scenario.segment_gone:
            self._take_segment(host, oldest=True)
        if self.rng.random() < scenario.log_start_damaged:
            self._damage_log_start(host)

    def _flip_bit(self, host: Host) -> None:
        """Damage a bit that was durable.

        In a segment the checker then expects errors, but no wrong row; all else must be rebuilt in
        silence.
        """
        kind = ".log" if self.rng.random() < 0.4 else self.rng.choice((*_REBUILT, ".snapshot"))
        path = host.disk.flip_somewhere(self.rng, kind)
        if path is not None:
            self._flipped(path, kind, host.disk)

    def _flip_header(self, host: Host, *, indexed: bool = False) -> None:
        """Damage a bit of a batch's header: what the batch is, and how far it reaches."""
        path = host.disk.flip_header(self.rng, indexed=indexed)
        if path is not None:
            self._flipped(path, ".log", host.disk)
            where = "that an index leads to" if indexed else "a header"
            self.world.faults[f"bit flip in {where}"] += 1

    def _flipped(self, path: str, kind: str, disk: FaultyDisk) -> None:
        self.world.faults[f"bit flip in {kind}"] += 1
        model = self.checker.directory(path.split("/")[-2])
        if model is not None:
            if kind == ".log":
                model.damaged = True
                model.hits.append(disk.rows_hit)
                if disk.cut_from is not None:
                    self.world.faults["acknowledged rows that may be cut"] += 1
                    model.may_be_cut(disk.cut_from)
            model.snapshots_lost = model.snapshots_lost or kind == ".snapshot"

    def _take_segment(self, host: Host, *, oldest: bool) -> None:
        """Remove the oldest or newest of several files of a log: that must be noticed.

        Acknowledged rows of it are lost, and their offsets are given to no others.
        """
        disk = host.disk
        paths = [p for p in disk.paths() if p.endswith(".log") and "/data/" in p]
        by_log: dict[str, list[str]] = {}
        for path in paths:
            if disk.durable_size(path) > _SEGMENT_HEADER_BYTES:
                by_log.setdefault(path.rpartition("/")[0], []).append(path)
        logs = [log for log, found in by_log.items() if len(found) > 1]
        if not logs:
            return
        log = self.rng.choice(logs)
        model = self.checker.directory(log.rpartition("/")[2])
        if model is None:
            return
        path = by_log[log][0 if oldest else -1]
        base = int(path.rpartition("/")[2].split(".")[0])
        end = int(by_log[log][1].rpartition("/")[2].split(".")[0]) if oldest else 2**62
        self.world.faults[f"{'oldest' if oldest else 'newest'} .log taken"] += 1
        model.damaged = True
        model.hits.append(None)
        start = max(model.log_start_offset, model.trimmed_to, 0 if oldest else base)
        held = any(start <= offset < end for offset in model.acknowledged)
        if held and not model.topic.retained:
            model.robbed = f"{path.rpartition('/')[2]} was taken"
            model.robbed_at = len(host.log_lines)
        disk.vanish(path)

    def _exchange_snapshots(self, host: Host) -> None:
        """Those of each log become another's, at the same offsets: the rows contradict them."""
        for path in host.disk.paths():
            if path.endswith(".snapshot") and "/data/" in path:
                data = host.disk.still.read_file(path)
                host.disk.exchange(path, foreign_snapshot(path, data))
                self.world.faults["producer snapshot of another log"] += 1

    def _damage_log_start(self, host: Host) -> None:
        """Damage the files of a log's start: one of two copies, which is no loss, or both.

        Without either, rows that were given up may be back, which must be reported.
        """
        disk = host.disk
        paths = [p for p in disk.paths() if p.endswith(_LOG_STARTS) and disk.durable_size(p)]
        logs = sorted({path.rpartition("/")[0] for path in paths})
        if not logs:
            return
        log = self.rng.choice(logs)
        model = self.checker.directory(log.rpartition("/")[2])
        if model is None:
            return
        copies = [path for path in paths if path.startswith(log + "/")]
        if self.rng.random() < 0.5 and len(copies) > 1:
            if log in self._log_starts_damaged:
                return  # The other copy may be the good one; both are the other branch's.
            self._log_starts_damaged.add(log)
            copies = [self.rng.choice(copies)]
            self.world.faults["one log-start damaged"] += 1
        else:
            self.world.faults["log-start damaged"] += 1
            model.log_start_lost()
            model.robbed_at = len(host.log_lines)
        for path in copies:
            disk.flip_bit(path, self.rng.randrange(disk.durable_size(path) * 8))
            while _is_readable(host, path):  # The bit that an earlier flip had turned.
                disk.flip_bit(path, self.rng.randrange(disk.durable_size(path) * 8))

    # --- what lasts for a while ----------------------------------------------------------------
    def _fill(self, host: Host) -> None:
        # Some room is left now and then: for a file, and not for what was to come into it.
        host.disk.set_full(self.rng.choice((0, self.rng.randrange(200), self.rng.randrange(3_000))))
        self.world.faults["full disk"] += 1
        for model in self.checker.partitions.values():
            model.snapshots_lost = True
        for listener in self.checker.on_full:
            listener()
        self.world.at(self.rng.randrange(10_000, 1_000_000), lambda: self._make_room(host))

    def _measure(self, host: Host) -> None:
        """As the server does: writes resume by themselves."""
        if host.disk.capacity is None:
            host.disk_space(1 << 40)

    def _make_room(self, host: Host) -> None:
        host.disk.set_full(None)
        host.disk_space(1 << 40)

    def _no_descriptors(self, host: Host) -> None:
        host.disk.descriptors_gone = True
        self.world.faults["no descriptors"] += 1

        def back() -> None:
            host.disk.descriptors_gone = False

        self.world.at(self.rng.randrange(1_000, 300_000), back)

    def _jump(self, host: Host) -> None:
        if not host.can_judge_clock:
            return
        host.wall_offset_us = _JUMP_US
        self.world.faults["clock jump"] += 1

        def back() -> None:
            host.wall_offset_us = 0

        self.world.at(self.rng.randrange(100_000, 12_000_000), back)

    def _cut(self, host: Host) -> None:
        self.world.network.cut(self.rng.choice(self._clients()), host.name)
        self.world.faults["cut"] += 1
        self.world.at(self.rng.randrange(1_000, 500_000), self.world.network.heal)


def _is_readable(host: Host, path: str) -> bool:
    """Is this file `log-start`, or its copy, and in order?"""
    directory, _, name = path.rpartition("/")
    return checkpoint.load_log_start(host.disk.still, directory, [name]) is not None
