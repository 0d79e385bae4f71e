"""Brokers that register, heartbeat, hang and die, and a controller that is replaced now and then.

Owns the oracle: the rules of registrations, kept as plain dictionaries beside the machine that is
tested. Decisions take time and may fail; the clock jumps over deadlines, as after a loop that was
blocked.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass

from quiverlog.core.controller.image import Image
from quiverlog.core.controller.records import (
    BrokerChangeRecord,
    BrokerRecord,
    PartitionChangeRecord,
    PartitionRecord,
    Record,
    TopicRecord,
)
from quiverlog.core.controller.registrations import Heartbeat, Registrations
from quiverlog.errors import DuplicateNodeId, StaleBrokerEpoch
from quiverlog.limits import BROKER_SUSPECT_MS, BROKER_SUSPICIONS_MAX

__all__ = ["RegistrationWorld", "Violation"]

SELF = 9
SESSION_US = 2_000_000
SUSPECT_US = BROKER_SUSPECT_MS * 1000
TOPIC = b"t" * 16


class Violation(AssertionError):
    """A rule is broken."""


@dataclass
class Process:
    node_id: int
    incarnation: bytes
    directory_id: str
    clean_incarnation: bytes = b""
    host: str = "host"
    wants_to_stop: bool = False
    is_silent: bool = False


@dataclass
class Known:
    """The oracle's state of a registration."""

    incarnation: bytes
    directory_id: str
    epoch: int | None
    fenced: bool = True
    in_shutdown: bool = False
    host: str = "host"

    def keeps_out(self, process: Process) -> bool:
        """Whether another process is refused while this life has a session."""
        if self.incarnation == process.incarnation:
            return False
        has_ended = self.fenced and self.in_shutdown
        is_copy = self.host != process.host and not has_ended
        return self.directory_id != process.directory_id or is_copy


class RegistrationWorld:
    def __init__(self, rng: random.Random, brokers: int = 3) -> None:
        self.rng = rng
        self.now_us = 1_000_000
        self.version = 1
        self.lives = 0
        self.image, self.pending = Image({}), Image({})
        setup: list[Record] = [TopicRecord(TOPIC, "t", 0, 1)]
        setup += [PartitionRecord(TOPIC, n, tuple(range(brokers)), (n,), n) for n in range(brokers)]
        for image in (self.image, self.pending):
            image.replay_entry(setup, version=1)
        self.machine = Registrations(SELF, b"self", SESSION_US)
        self.machine.begin(self.image, self.now_us, {})
        self.under_way: deque[list[Record]] = deque()
        self.processes = [self.new_process(n, f"disk {n}") for n in range(brokers)]
        self.zombies: list[tuple[Process, int]] = []
        # The oracle.
        self.known: dict[int, Known] = {}
        self.contact_us: dict[int, int] = {}
        self.reported_versions: dict[int, int] = {}
        self.unsure: set[int] = set()
        self.looks_us: deque[int] = deque(maxlen=BROKER_SUSPICIONS_MAX + 1)
        self.shutdown_version: dict[int, int] = {}
        self.fenced_version: dict[int, int] = {}
        self.happened: Counter[str] = Counter()

    def new_process(self, node_id: int, disk: str, clean: bytes = b"") -> Process:
        self.lives += 1
        return Process(node_id, self.lives.to_bytes(16, "big"), disk, clean)

    def run(self, steps: int) -> None:
        acts = {
            self.beat: 8, self.commit: 8, self.wait: 6, self.look: 4, self.restart: 1,
            self.hang: 1, self.stall: 1, self.fail: 1, self.lead: 1, self.stop_one: 1,
            self.old_life_speaks: 1, self.twin: 1, self.copy: 1, self.quiet: 1, self.held: 1,
        }  # fmt: skip
        for act in self.rng.choices([*acts], [*acts.values()], k=steps):
            act()

    # --- what brokers do ------------------------------------------------------------------------
    def beat(self) -> None:
        process = self.rng.choice(self.processes)
        if not process.is_silent:
            self.speak(process)

    def speak(self, process: Process) -> None:
        broker = self.image.brokers.get(process.node_id)
        if broker is None or broker.incarnation != process.incarnation:
            self.register(process)
        else:
            version = self.rng.choice(
                (
                    self.image.version, self.image.version, broker.broker_epoch - 1,
                    max(broker.broker_epoch, self.fenced_version.get(process.node_id, 0) - 1),
                )
            )  # fmt: skip
            self.heartbeat(process, broker.broker_epoch, version)

    def register(self, process: Process) -> None:
        node_id = process.node_id
        newcomer = BrokerRecord(
            node_id, process.incarnation, process.host, 1, directory_id=process.directory_id
        )
        before = self.known.get(node_id)
        is_alive = self.now_us < self.contact_us.get(node_id, -SESSION_US) + SESSION_US
        refused = before is not None and before.keeps_out(process) and is_alive
        try:
            records = self.machine.register(
                self.pending, newcomer, process.clean_incarnation, self.now_us
            )
        except DuplicateNodeId:
            self.happened["duplicates"] += 1
            if not refused and node_id not in self.unsure:
                raise Violation(f"{node_id} is refused, and no other process is alive") from None
            if before is not None and before.directory_id == process.directory_id:
                self.happened["refused copies"] += 1
            return
        if refused and node_id not in self.unsure:
            raise Violation(f"{node_id} has replaced a live broker with another disk, or a copy")
        self.contact_us[node_id], self.reported_versions[node_id] = self.now_us, -1
        self.unsure.discard(node_id)
        is_again = before is not None and before.incarnation == process.incarnation
        if before is not None and is_again and not before.in_shutdown:
            if records:
                raise Violation("a repeated request registers again")
            return
        if not records or not isinstance(records[0], BrokerRecord) or not records[0].fenced:
            raise Violation("a newcomer is not fenced")
        self.happened["registered again" if is_again else "registrations"] += 1
        self.known[node_id] = Known(
            process.incarnation, process.directory_id, None, host=process.host
        )
        self.propose(records)

    def heartbeat(self, process: Process, epoch: int, version: int) -> None:
        node_id = process.node_id
        known = self.known.get(node_id)
        beat = Heartbeat(node_id, epoch, version, process.wants_to_stop)
        try:
            verdict = self.machine.heartbeat(self.image, self.pending, beat, self.now_us)
        except StaleBrokerEpoch:
            self.happened["stale"] += 1
            if known is not None and known.epoch == epoch:
                raise Violation(f"{node_id} is registered under {epoch}") from None
            return
        if known is None or known.epoch != epoch:
            raise Violation(f"{node_id} is not registered under {epoch}")
        self.contact_us[node_id], self.reported_versions[node_id] = self.now_us, version
        self.unsure.discard(node_id)
        held = self.image.brokers[node_id]
        if verdict.is_fenced != (held.broker_epoch != epoch or held.fenced):
            raise Violation("it gets an answer that does not hold")
        has_fencing = held.fenced and version >= self.fenced_version.get(node_id, 0)
        if known.fenced and verdict.is_caught_up and not has_fencing:
            raise Violation(f"{node_id} does not know that it was fenced, and has caught up")
        if verdict.records:
            self.check_verdict(known, beat)
            self.propose(verdict.records)
        elif (
            known.fenced and held.fenced and not known.in_shutdown and not beat.wants_to_stop
            and version == self.image.version
        ):  # fmt: skip
            raise Violation(f"{node_id} has caught up, and stays fenced")
        if verdict.may_stop:
            self.check_stop(node_id, known)

    def check_verdict(self, known: Known, beat: Heartbeat) -> None:
        if beat.wants_to_stop:
            if known.fenced:
                raise Violation("a fenced broker has nothing to hand over")
            if known.in_shutdown:
                known.fenced = True
            known.in_shutdown = True
            return
        if not known.fenced or known.in_shutdown or beat.version < beat.broker_epoch:
            raise Violation(f"{beat.node_id} is unfenced, and should not be")
        self.happened["unfenced"] += 1
        known.fenced = False

    def check_stop(self, node_id: int, known: Known) -> None:
        self.happened["stops"] += 1
        if not known.fenced:
            raise Violation("a stopping broker counts no more")
        if self.image.brokers[node_id].fenced:
            return
        since = self.shutdown_version[node_id]
        for one in self.image.brokers.values():
            if not one.fenced and self.reported_versions.get(one.node_id, -1) < since:
                raise Violation(f"{one.node_id} has not received that {node_id} stops")
        if any(one.leader_id == node_id for one in self.image.topics["t"].partitions):
            raise Violation("it stops while it leads")

    def restart(self) -> None:
        at = self.rng.randrange(len(self.processes))
        old = self.processes[at]
        disk = old.directory_id if self.rng.random() < 0.7 else f"disk {self.lives + 100}"
        clean = old.incarnation if disk == old.directory_id and self.rng.random() < 0.5 else b""
        self.bury(old)
        self.processes[at] = self.new_process(old.node_id, disk, clean)

    def bury(self, process: Process) -> None:
        broker = self.image.brokers.get(process.node_id)
        if broker is not None and broker.incarnation == process.incarnation:
            self.zombies.append((process, broker.broker_epoch))

    def old_life_speaks(self) -> None:
        if self.zombies:
            process, epoch = self.rng.choice(self.zombies)
            self.heartbeat(process, epoch, self.image.version)

    def twin(self) -> None:
        """Start a second broker with the same node id, on another disk."""
        process = self.rng.choice(self.processes)
        self.register(self.new_process(process.node_id, f"twin of {process.node_id}"))
        known = self.known.get(process.node_id)
        if known is not None and known.directory_id.startswith("twin"):
            self.bury(process)
            at = self.processes.index(process)
            self.processes[at] = self.new_process(process.node_id, known.directory_id)

    def copy(self) -> None:
        """An operator starts a copy of a broker's disk, at another address."""
        process = self.rng.choice(self.processes)
        copy = self.new_process(process.node_id, process.directory_id)
        copy.host = f"host {self.lives}"
        self.register(copy)
        known = self.known.get(process.node_id)
        if known is not None and known.incarnation == copy.incarnation:
            self.bury(process)
            self.processes[self.processes.index(process)] = copy

    def hang(self) -> None:
        process = self.rng.choice(self.processes)
        process.is_silent = not process.is_silent

    def stop_one(self) -> None:
        process = self.rng.choice(self.processes)
        process.wants_to_stop = not process.wants_to_stop

    def held(self) -> None:
        """A broker registers again although it is: a request that comes twice, unless it is held
        for stopping."""
        process = self.rng.choice(self.processes)
        broker = self.image.brokers.get(process.node_id)
        if broker is not None and broker.incarnation == process.incarnation:
            self.register(process)

    # --- what the controller does ---------------------------------------------------------------
    def wait(self) -> None:
        """The clock goes on; the controller looks as soon as it wants to."""
        until = self.now_us + self.rng.randrange(20_000, 700_000)
        while (due := self.machine.sessions.next_us()) is not None and due <= until:
            self.now_us = max(self.now_us, due)
            self.look()
            if self.machine.sessions.next_us() == due:
                raise Violation("it has looked, and wants to look again at once")
        self.now_us = until

    def quiet(self) -> None:
        """Long enough for a silent broker to be fenced, with a controller that is on time."""
        end = self.now_us + SESSION_US + 3 * SUSPECT_US
        while self.now_us < end:
            self.now_us += SUSPECT_US // 2
            self.look()
        for node_id, known in self.known.items():
            is_live = known.epoch is not None and not self.image.brokers[node_id].fenced
            if is_live and not known.fenced:
                raise Violation(f"{node_id} was silent all the time, and is not fenced")

    def stall(self) -> None:
        """The loop was blocked; what has arrived meanwhile is read after the first look."""
        self.now_us += self.rng.randrange(SESSION_US // 2, 2 * SESSION_US)
        self.look()
        for process in self.processes:
            if self.rng.random() < 0.8 and not process.is_silent:
                self.speak(process)

    def look(self) -> None:
        for node_id, known in self.known.items():
            if known.epoch is None or (not known.fenced and self.image.brokers[node_id].fenced):
                self.unsure.add(node_id)  # Its session begins when that is decided.
        while records := self.machine.silent(self.image, self.pending, self.now_us):
            self.check_fencing(records)
            self.propose(records)
        self.looks_us.append(self.now_us)

    def check_fencing(self, records: list[Record]) -> None:
        change = records[0]
        if not isinstance(change, BrokerChangeRecord) or change.fenced is not True:
            raise Violation("not the record of a fencing")
        known = self.known[change.node_id]
        if known.fenced or known.epoch != change.broker_epoch:
            raise Violation("another registration is fenced than the one that was silent")
        since = self.now_us - self.contact_us[change.node_id]
        if since < SESSION_US:
            raise Violation(f"{change.node_id} is fenced after {since} us")
        is_late = not self.looks_us or self.now_us - self.looks_us[0] > 10 * SESSION_US
        looked = [us for us in self.looks_us if SUSPECT_US <= self.now_us - us < 2 * SUSPECT_US]
        if not looked and (is_late or len(self.looks_us) <= BROKER_SUSPICIONS_MAX):
            raise Violation("it is fenced by a controller that has not listened")
        self.happened["fenced"] += 1
        known.fenced = True

    def propose(self, records: list[Record]) -> None:
        self.pending.replay_entry(records)
        self.under_way.append(records)

    def commit(self) -> None:
        """The oldest decision is decided, perhaps behind other entries."""
        if not self.under_way:
            return
        records = self.under_way.popleft()
        self.version += self.rng.choice((1, 1, 3))
        self.image.replay_entry(records, version=self.version)
        self.pending.decided(records, self.version)
        for record in records:
            if isinstance(record, BrokerRecord):
                known = self.known[record.node_id]
                if known.incarnation == record.incarnation:
                    known.epoch = self.version
            elif isinstance(record, BrokerChangeRecord) and record.in_shutdown:
                self.shutdown_version[record.node_id] = self.version
            elif isinstance(record, BrokerChangeRecord) and record.fenced:
                self.fenced_version[record.node_id] = self.version

    def fail(self) -> None:
        """The quorum is interrupted; what is under way never was."""
        self.under_way.clear()
        self.pending = Image({})
        self.pending.replay_entry(self.image.snapshot_records(), version=self.image.version)
        self.machine.end()
        self.now_us += self.rng.randrange(10_000, 2 * SESSION_US)
        self.machine.begin(self.image, self.now_us, {})
        self.happened["elections"] += 1
        self.looks_us.clear()
        self.known = {
            n: Known(b.incarnation, b.directory_id, b.broker_epoch, b.fenced, b.in_shutdown, b.host)
            for n, b in self.image.brokers.items()
        }
        self.contact_us = {n: self.now_us for n, b in self.image.brokers.items() if not b.fenced}
        self.reported_versions = {}

    def lead(self) -> None:
        """A partition gets another leader, or none."""
        leader = self.rng.choice((-2, *range(len(self.processes))))
        record = PartitionChangeRecord(TOPIC, self.rng.randrange(len(self.processes)), leader)
        self.propose([record])
