"""Everybody who uses a cluster in a run, from the first request to the last row that is read.

Owns who there is, when they end, and the last reading of every log, after which all that was
promised is looked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quiverlog.errors import OffsetOutOfRange
from quiverlog.types import EARLIEST, LATEST
from quiverlog.wire import messages as m
from tests.sim.checker import Key, Violation
from tests.sim.decoding import rows_of

from .administrator import Administrator
from .adversaries import Deposed, Impostor, OddReader, Repeater, Thief
from .clients import ClusterProducer, ClusterReader, ClusterSetup
from .lives import Life, Lives
from .logins import LoginClient
from .mover import Mover, Resizer
from .operators import Operator
from .programs import ConsumingProgram, ProducingProgram
from .promises import ClusterChecker
from .proofs import Unproved
from .rules import NAMES, RulesKeeper, Spy
from .settings_keeper import SettingsKeeper
from .successor import Successor
from .transactor import BatchLife, QueryLife, TransactingLife
from .user_keeper import UserKeeper
from .watchers import Watcher

if TYPE_CHECKING:
    from .cluster import Cluster

__all__ = ["Workload"]

_READ_STEPS_MAX = 5_000
_REPEATERS = 300


class Workload:
    def __init__(self, cluster: Cluster, checker: ClusterChecker) -> None:
        self.cluster = cluster
        self.checker = checker
        self.producers: list[ClusterProducer] = []
        self.readers: list[ClusterReader | Watcher | Spy] = []
        self.operators: list[Operator] = []
        self.impostors: list[Impostor] = []
        self.strangers: list[Unproved | LoginClient] = []
        self.administrators: list[
            Administrator | Mover | SettingsKeeper | UserKeeper | RulesKeeper
        ] = []
        self.senders: list[ProducingProgram] = []
        self.consumers: list[ConsumingProgram] = []
        self.transactions: list[Lives] = []

    def begin(self) -> None:
        """All come to work."""
        scenario, checker, plan = self.cluster.scenario, self.checker, self.cluster.scenario.clients
        world: Any = self.cluster.leisure
        keys = checker.live()
        for number in range(scenario.producers):
            key = keys[number % len(keys)]
            self.producers.append(ClusterProducer(world, checker, number, key))
        for number in range(scenario.readers):
            key = keys[number % len(keys)]
            self.readers.append(ClusterReader(world, checker, number, key))
        # No simple client has their numbers: the numbers are in the rows.
        for number in range(plan.repeaters):
            key = keys[number % len(keys)]
            self.producers.append(Repeater(world, checker, _REPEATERS + number, key))
        for number in range(plan.strangers):
            key = keys[number % len(keys)]
            self.readers.append(OddReader(world, checker, _REPEATERS + number, key))
            self.impostors.append(Impostor(world, checker, f"impostor-{number}", key))
        for number in range(plan.deposed):
            name = f"deposed-{number}"
            self.impostors.append(Deposed(self.cluster, checker, name, keys[number % len(keys)]))
        for number in range(plan.thieves):
            name = f"thief-{number}"
            self.impostors.append(Thief(self.cluster, checker, name, keys[number % len(keys)]))
        for number in range(2 if scenario.proofs else 0):
            name = f"unproved-{number}"
            self.strangers.append(Unproved(self.cluster, checker, name, keys[number % len(keys)]))
        for number in range(scenario.nodes if scenario.watched else 0):
            self.readers.append(Watcher(world, checker, number))
        for number in range(scenario.operators):
            one = Operator(world, checker, number, checker.histories)
            one.versions = self.cluster.invariants.versions_us
            self.operators.append(one)
        for number in range(plan.administrators):
            self.administrators.append(Administrator(self.cluster, checker, number))
        for number in range(plan.movers):
            self.administrators.append(Mover(self.cluster, checker, number))
        for number in range(plan.resizers):
            self.administrators.append(Resizer(self.cluster, checker, number))
        for number in range(plan.keepers):
            self.administrators.append(SettingsKeeper(self.cluster, checker, number))
        for number in range(plan.user_keepers):
            self.administrators.append(UserKeeper(self.cluster, checker, number))
        for number in range(2 * plan.user_keepers):
            key = keys[number % len(keys)]
            self.strangers.append(LoginClient(self.cluster, checker, number, key))
        if scenario.rules:
            self.administrators.append(RulesKeeper(self.cluster, checker, 0))
            for number, who in enumerate(NAMES * scenario.nodes):
                key = keys[number % len(keys)]
                self.readers.append(Spy(world, checker, number % scenario.nodes, who, key))
        for number in range(plan.producers):
            self.senders.append(ProducingProgram(self.cluster, checker, number))
        for number in range(plan.successors):
            self.senders.append(Successor(self.cluster, checker, number))
        for number in range(plan.consumers):
            self.consumers.append(ConsumingProgram(self.cluster, checker, number))
        ids: list[tuple[str, type[Life]]] = []
        ids += [(f"app-{number}", TransactingLife) for number in range(plan.transactors)]
        ids += [(f"spark/query-{number}", QueryLife) for number in range(plan.queries)]
        ids += [(f"batch-{number}", BatchLife) for number in range(plan.batches)]
        checker.ledger.expiry_us = int(plan.id_expiry_ms * scenario.tempo.scale * 1000)
        for tid, kind in ids:
            self.transactions.append(Lives(self.cluster, checker, tid, kind))

    def stop(self) -> None:
        """No client begins anything new."""
        for one in (
            *self.producers, *self.senders, *self.administrators, *self.transactions,
        ):  # fmt: skip
            one.stopped = True
        for operator in self.operators:
            operator.wind_up()

    def operators_are_done(self) -> bool:
        """Are the operators' topics gone?"""
        return all(operator.idle for operator in self.operators)

    def is_idle(self) -> bool:
        """Has everything that was sent an outcome?"""
        return all(
            one.idle for one in (*self.producers, *self.senders, *self.transactions)
        ) and all(one.is_idle for one in self.administrators)

    def consumers_are_done(self) -> bool:
        """Were the shipped consumers given everything that there is?"""
        ends = {key: self.cluster.invariants.committed_end(key) for key in self.checker.live()}
        return not any(one.behind(key, end) for one in self.consumers for key, end in ends.items())

    def end(self) -> None:
        """All go home."""
        for reader in (*self.readers, *self.impostors, *self.strangers, *self.operators):
            reader.retired = True
        for client in (*self.senders, *self.consumers, *self.transactions):
            client.stop()
        for lives in self.transactions:
            if lives.complaints():
                raise Violation(f"{lives.tid}: {lives.complaints()[0]}")
        for client in (*self.senders, *self.consumers, *self.administrators):
            if client.loop.complaints:
                raise Violation(f"{client.name}: {client.loop.complaints[0]}")

    # --- the end -------------------------------------------------------------------------------
    def check(self) -> None:
        """Read everything, and look for what was promised."""
        for key in self.checker.live():
            self._check_log(key)
        for consumer in self.consumers:
            consumer.check_copies()
        for administrator in self.administrators:
            administrator.check()
        whole = self.checker.ledger.check()
        self.cluster.world.events["transactions found whole"] += whole
        if self.cluster.scenario.judged:
            self.checker.histories.check_names()

    def _check_log(self, key: Key) -> None:
        model = self.checker.partitions[key]
        if key in self.checker.unclean:
            # What was seen before may have been of leaders that are none any more.
            model.seen.clear()
            model.offset_of.clear()
        setup = ClusterSetup(self.cluster, self.checker, key)
        start, end = setup.offset(key, EARLIEST), setup.offset(key, LATEST)
        self.checker.log_start(key, start, self.cluster.world.wall_us, model.log_start_offset)
        self.checker.log_end(key, end)
        self._read_all(setup, key, start, end)
        # Retention went on while we read: only what is still kept must have been read.
        start = setup.offset(key, EARLIEST)
        self.checker.log_start(key, start, self.cluster.world.wall_us, model.log_start_offset)
        self.checker.finish(key, start, end)
        if self.cluster.scenario.judged:
            self.checker.histories.check_log(key, model.name, model.offset_of)
        setup.retired = True

    def _read_all(self, setup: ClusterSetup, key: Key, offset: int, end: int) -> None:
        model = self.checker.partitions[key]
        for _ in range(_READ_STEPS_MAX):
            if offset >= end:
                return
            part = m.FetchPartition(*key, offset=offset, bytes_max=1_000_000)
            response, body = setup.call(m.FetchRequest(bytes_max=1_000_000, partitions=[part]))
            assert isinstance(response, m.FetchResponse)
            code = response.error_code or response.partitions[0].error_code
            if code == OffsetOutOfRange.code:
                offset = max(offset, setup.offset(key, EARLIEST))
            if code:
                continue
            after, found = rows_of(model, offset, body)
            for base_offset, values in found:
                self.checker.read(key, base_offset, values)
                model.read_last.update(range(base_offset, base_offset + len(values)))
            if after == offset:
                raise Violation(f"{model.name}: nothing at {offset}, the log ends at {end}")
            offset = after
        raise Violation(f"{model.name} could not be read to its end")
