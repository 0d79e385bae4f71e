"""One run: three brokers, their clients, faults for the asked time, healing, and the verdict.

Owns the order of these, the bounds of healing, and what is printed.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from quiverlog import aio
from quiverlog.core.controller.internal_topics import STAGED
from quiverlog.errors import QuiverlogError
from tests.sim.cluster.linear import NEVER

from . import replicas
from .brokers import Brokers
from .checker import Verdict, check
from .faults import RESERVE_BYTES, Nemesis, look_at_metadata
from .history import History, Outcome
from .nemesis import NODE_IDS, Fault, draw
from .proxy import Proxy
from .workload import SCHEMA, TOPICS, Workload

__all__ = ["Report", "run"]

SERVES_WITHIN_S: Final = 60.0
"""After healing: each partition takes rows, topics are created, all replicas are in sync. Generous:
the machine may be busy with something else; what it took is printed."""
GIVEN_UP_WITHIN_S: Final = 60.0
"""After the last client: of its last transaction the coordinator waits for a sign of life."""
ENDS_WITHIN_S: Final = 90.0
"""Sends under way have their delivery timeout."""
DISK_BYTES_MIN: Final = 64 << 20
DISK_BYTES_PER_S: Final = 400_000
BROKER_CONFIG: Final = {
    "disk.reserve.bytes": RESERVE_BYTES,
    # Preferred leaders are elected often, so that it happens within a short run.
    "leader.balance.period.ms": 5_000,
}


@dataclass(slots=True, eq=False)
class Report:
    """What a run did, and what was wrong."""

    seed: int
    duration_s: float
    schedule: list[Fault]
    history: History
    verdict: Verdict
    done: dict[str, int] = field(default_factory=dict)
    missed: dict[str, int] = field(default_factory=dict)
    disk_kind: str = ""
    served_after_s: float = 0.0
    in_sync_after_s: float = 0.0
    given_up_after_s: float = 0.0
    died: dict[str, int] = field(default_factory=dict)
    silences_s: dict[str, float] = field(default_factory=dict)

    def text(self) -> str:
        """For people."""
        sends = self.history.sends
        counts = {one: sum(send.outcome is one for send in sends) for one in Outcome}
        changes = [one for of_name in self.history.changes.values() for one in of_name]
        given_up = self.verdict.given_up
        lines = [
            f"seed {self.seed}, {self.duration_s:g} s of faults, full disks by {self.disk_kind}",
            f"faults: {_counted(self.done)}; without an effect: {_counted(self.missed) or 'none'}",
            f"sends: {', '.join(f'{n} {one.value}' for one, n in counts.items())};"
            f" rows acknowledged {self.history.acknowledged_rows()},"
            f" rows handed to readers {self.verdict.rows_read}",
            f"transactions: {self._transactions()}; brokers died in them at"
            f" {_counted(self.died) or 'no point'}",
            f"topics changed: {len(changes)} operations on {len(self.history.changes)} names,"
            f" {sum(one.returned_us == NEVER for one in changes)} of unknown outcome"
            f" ({_counted(self.history.unknown)})",
            f"leaders elected: {sum(self.history.elected.values())}",
            "longest time without an acknowledged row, s: "
            + ", ".join(f"{topic} {took:.1f}" for topic, took in self.silences_s.items()),
            f"after healing: served in {self.served_after_s:.1f} s, all in sync in"
            f" {self.in_sync_after_s:.1f} s, all that was staged given up in"
            f" {self.given_up_after_s:.1f} s",
            f"acknowledged rows gone, as their level allows: {_counted(given_up) or 'none'}",
        ]
        lines += [f"PROBLEM {problem}" for problem in self.verdict.problems]
        lines.append("every promise was kept" if not self.verdict.problems else "FAILED")
        return "\n".join(lines)

    def _transactions(self) -> str:
        outcomes = {
            (send.producer, send.transaction): send.outcome.value
            for send in self.history.sends
            if send.transaction >= 0
        }
        return _counted(Counter(outcomes.values())) or "none"


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))


async def run(
    seed: int,
    duration_s: float,
    on_step: Callable[[str], None],
    logs: Path | None = None,
    *,
    may_mount: bool = True,
) -> Report:
    """Run one seed and return its report.

    Args:
        on_step: called with each step of the run.
        logs: a directory for the brokers' logs; made when it is missing.
        may_mount: False: disks become full by a bound on the size of files.
    """
    schedule = draw(seed, duration_s)
    proxy = Proxy()
    disk_bytes = max(DISK_BYTES_MIN, int(duration_s * DISK_BYTES_PER_S))
    try:
        async with Brokers(
            proxy, disk_bytes, BROKER_CONFIG, is_dying=True, may_mount=may_mount
        ) as brokers:
            try:
                return await _run(seed, duration_s, schedule, brokers, proxy, on_step)
            finally:
                if logs is not None:
                    brokers.keep_logs(logs)
    finally:
        await proxy.close()


async def _run(
    seed: int,
    duration_s: float,
    schedule: list[Fault],
    brokers: Brokers,
    proxy: Proxy,
    on_step: Callable[[str], None],
) -> Report:
    workload = Workload(brokers.bootstrap, seed)
    history = workload.history
    await workload.create_topics(SERVES_WITHIN_S)
    first_epochs = await _epochs(brokers)
    nemesis = Nemesis(brokers, proxy, [topic.name for topic in TOPICS])
    begin_s = time.monotonic()
    workload.start()
    on_step(f"{len(schedule)} faults in {duration_s:g} s")
    await nemesis.perform(schedule, begin_s)
    await asyncio.sleep(max(0.0, begin_s + duration_s - time.monotonic()))
    await nemesis.heal()
    healed_s = time.monotonic()
    on_step("healed")
    report = Report(seed, duration_s, schedule, history, Verdict())
    report.served_after_s = await _serves_again(brokers, workload, healed_s)
    await workload.stop_writing(ENDS_WITHIN_S)
    report.in_sync_after_s = await _all_in_sync(brokers, history, healed_s)
    report.given_up_after_s = await _all_given_up(brokers, history, healed_s)
    report.silences_s = {
        topic.name: history.longest_silence_s(topic.name, begin_s, healed_s) for topic in TOPICS
    }
    on_step("reading")
    await workload.stop_reading(ENDS_WITHIN_S)
    for key, epoch in (await _epochs(brokers)).items():
        history.elected[key] = epoch - first_epochs.get(key, epoch)
    brokers.look()
    await brokers.stop_all()
    brokers.look_at_logs()
    on_step("checking")
    report.verdict = check(history)
    report.verdict.problems += brokers.problems + _compare_replicas(brokers)
    report.done, report.missed = dict(nemesis.done), dict(nemesis.missed)
    report.died = dict(nemesis.died)
    report.disk_kind = brokers.disk_kind
    return report


async def _epochs(brokers: Brokers) -> dict[tuple[str, int], int]:
    metadata = await look_at_metadata(brokers)
    assert metadata is not None, "no broker answers with its metadata"
    return {
        (topic.name, partition.partition): partition.leader_epoch
        for topic in TOPICS
        for partition in metadata.topics[topic.name].partitions
    }


async def _serves_again(brokers: Brokers, workload: Workload, healed_s: float) -> float:
    """Each partition has acknowledged rows that were sent after healing, and a topic is made."""
    history = workload.history
    missing = {(topic.name, p) for topic in TOPICS for p in range(topic.partitions)}
    looked = len(history.sends)
    while looked and history.sends[looked - 1].called_s >= healed_s:
        looked -= 1
    while missing and time.monotonic() < healed_s + SERVES_WITHIN_S:
        missing -= {send.key for send in history.sends[looked:] if send.outcome is Outcome.OK}
        await asyncio.sleep(0.05)
    if missing:
        history.errors.append(f"bound: {sorted(missing)} take no rows {SERVES_WITHIN_S:g} s later")
    try:
        async with aio.connect(brokers.bootstrap, client_id="client-last-admin") as client:
            await client.create_topic("served-again", SCHEMA, replication_factor=len(NODE_IDS))
    except QuiverlogError as error:
        history.errors.append(f"bound: no topic can be created after healing: {error}")
    return time.monotonic() - healed_s


async def _all_in_sync(brokers: Brokers, history: History, healed_s: float) -> float:
    deadline_s = time.monotonic() + SERVES_WITHIN_S
    behind: list[str] = ["nothing is known"]
    while behind and time.monotonic() < deadline_s:
        await asyncio.sleep(0.1)
        metadata = await look_at_metadata(brokers)
        if metadata is not None:
            behind = [
                f"{topic.name}-{p.partition}: {p.in_sync_replicas} of {p.replicas}"
                for topic in metadata.topics.values()
                for p in topic.partitions
                if set(p.in_sync_replicas) != set(p.replicas)
            ]
    if behind:
        history.errors.append(f"bound: not in sync {SERVES_WITHIN_S:g} s later: {behind[:5]}")
    return time.monotonic() - healed_s


async def _all_given_up(brokers: Brokers, history: History, healed_s: float) -> float:
    """No transaction is open: each log start of `__staged` reaches the end, and nothing waits."""
    deadline_s = time.monotonic() + GIVEN_UP_WITHIN_S
    left: dict[int, object] = {0: None}
    while left and time.monotonic() < deadline_s:
        await asyncio.sleep(0.2)
        try:
            async with aio.connect(brokers.bootstrap, client_id="client-last-look") as client:
                starts = await client.list_offsets(STAGED, "earliest")
                ends = await client.list_offsets(STAGED, "latest")
            left = {one: (starts[one], end) for one, end in ends.items() if starts[one] != end}
        except QuiverlogError as error:
            if time.monotonic() >= deadline_s:
                history.errors.append(f"bound: {STAGED} cannot be asked for: {error}")
    if left:
        history.errors.append(
            f"bound: rows by partition of {STAGED} are left {GIVEN_UP_WITHIN_S:g} s later: {left}"
        )
    return time.monotonic() - healed_s


def _compare_replicas(brokers: Brokers) -> list[str]:
    problems = []
    for topic in TOPICS:
        for partition in range(topic.partitions):
            name = f"{topic.name}-{partition}"
            directories: dict[int, Path] = {}
            for node_id, disk in brokers.disks.items():
                directory = disk.data_dir / "data" / name
                if directory.is_dir():
                    directories[node_id] = directory
            if len(directories) < topic.replicas:
                problems.append(f"replicas: {name} is on {sorted(directories)} alone")
            else:
                problems += replicas.compare(name, directories)
    return problems
