"""What each level of durability survives: rows that were acknowledged, and the faults they outlive.

The table is in docs/replication.md; docs/replication-rules.md names these tests. Two nodes, both in
sync, as in test_copies.py; the writer draws a level for each batch and records each
acknowledgement. Then a process or a machine dies at a random moment, and the rows of the level are
there, each once and at the acknowledged offset.
"""

from __future__ import annotations

from collections import Counter
from typing import ClassVar, NamedTuple

import pytest

from quiverlog.batch.codec import split_batches
from quiverlog.batch.header import BatchHeader
from quiverlog.core.controller.records import ConfigRecord
from quiverlog.node.runtime.effects import Respond
from quiverlog.types import Durability
from quiverlog.wire import messages as m

from .host import Host
from .test_copies import COPY, CREATED, LEADER, RECOVER_US, TOPIC, Copying

SEEDS = 8
LEVELS = [level for level in Durability if level >= 0]


class Row(NamedTuple):
    """A batch that was acknowledged: its checksum, and where it is."""

    crc: int
    base_offset: int


class Writing(Copying):
    """A writer that draws levels, and records its acknowledgements."""

    created: ClassVar = [*CREATED, ConfigRecord(TOPIC, "durability", "memory")]

    def __init__(self, seed: int) -> None:
        self.acknowledged: dict[int, list[Row]] = {int(level): [] for level in LEVELS}
        self.waiting: list[tuple[int, int]] = []
        self.by_correlation: dict[int, tuple[int, int]] = {}
        super().__init__(seed)
        leader = self.world.hosts[LEADER]
        respond = leader._respond

        def on_respond(effect: Respond) -> None:
            self.on_response(effect)
            respond(effect)

        leader._respond = on_respond  # type: ignore[method-assign]

    def level(self, body: bytes) -> int:
        return int(self.rng.choice(LEVELS))

    def asked(self, level: int, body: bytes) -> None:
        self.waiting.append((level, BatchHeader.unpack(body, 0).crc32c))

    def ask(self, request: m.Request, body: bytes = b"") -> None:
        known = self.waiting.pop()
        # Numbers are given in pairs: that of HELLO, then that of the produce.
        self.by_correlation[self.last_number + 2] = known
        super().ask(request, body)
        self.last_number += 2

    last_number = 0

    def on_response(self, effect: Respond) -> None:
        response = effect.response
        known = self.by_correlation.pop(effect.correlation_id, None)
        if known is None or not isinstance(response, m.ProduceResponse):
            return
        if response.error_code or response.partitions[0].error_code:
            return
        level, crc = known
        self.acknowledged[level].append(Row(crc, response.partitions[0].base_offset))

    def begin(self) -> None:
        """Rows of every level are acknowledged, and more are on their way."""
        self.world.run(RECOVER_US, until=self.becomes_equal)
        self.world.run(
            RECOVER_US, until=lambda: all(len(rows) > 3 for rows in self.acknowledged.values())
        )
        self.world.run(self.rng.randrange(1, 300_000))
        assert all(len(rows) > 3 for rows in self.acknowledged.values()), self.acknowledged

    def check_has(self, node_id: int, level: Durability) -> None:
        """The node has every row that was acknowledged at this level or a stronger one."""
        known = Counter(
            Row(header.crc32c, header.base_offset)
            for header, _ in split_batches(memoryview(self.rows(node_id)))
        )
        crcs = Counter(row.crc for row in known.elements())
        for stronger in LEVELS:
            for row in self.acknowledged[int(stronger)] if stronger >= level else ():
                assert known[row] == 1, f"{stronger.label} {row} is not there"
                assert crcs[row.crc] == 1, "twice"

    def hosts(self) -> tuple[Host, Host]:
        leader, copy = self.world.hosts
        return leader, copy


def begun(seed: int) -> Writing:
    writing = Writing(seed)
    writing.begin()
    return writing


def recover(writing: Writing) -> None:
    """Everybody is back, and has the same rows."""
    writing.world.network.loss = 0.0
    writing.world.run(2_000_000)
    writing.world.run(RECOVER_US, until=writing.becomes_equal)
    assert writing.becomes_equal(), writing.world.last_words(5)
    assert writing.rows(LEADER) == writing.rows(COPY)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_memory_survives_the_death_of_the_process(seed: int) -> None:
    writing = begun(seed)
    for host in writing.hosts():
        host.kill()
    recover(writing)
    writing.check_has(LEADER, Durability.MEMORY)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_flushed_survives_a_power_failure_of_a_leader_that_comes_back(seed: int) -> None:
    writing = begun(seed)
    leader, _ = writing.hosts()
    leader.power_loss()
    recover(writing)
    flushed = writing.acknowledged[int(Durability.FLUSHED)]
    stronger = writing.acknowledged[int(Durability.REPLICATED_FLUSHED)]
    writing.acknowledged = {int(level): [] for level in LEVELS}
    writing.acknowledged[int(Durability.FLUSHED)] = [*flushed, *stronger]
    writing.check_has(LEADER, Durability.FLUSHED)


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("lost", [LEADER, COPY])
def test_replicated_survives_the_loss_of_fewer_machines_than_the_minimum(
    seed: int, lost: int
) -> None:
    """Two are the minimum here: whichever is gone for good, the other one has the rows."""
    writing = begun(seed)
    writing.hosts()[lost].power_loss()
    writing.check_has(1 - lost, Durability.REPLICATED)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_replicated_flushed_survives_a_power_failure_of_all_machines(seed: int) -> None:
    writing = begun(seed)
    for host in writing.hosts():
        host.power_loss()
    writing.world.run(1_000_000)
    for node_id in (LEADER, COPY):
        writing.check_has(node_id, Durability.REPLICATED_FLUSHED)
    recover(writing)
    writing.check_has(LEADER, Durability.REPLICATED_FLUSHED)


def test_weaker_levels_do_lose_rows_as_the_table_has_it() -> None:
    """Else these runs would prove nothing."""
    lost: Counter[str] = Counter()
    for seed in range(3 * SEEDS):
        writing = begun(seed)
        for host in writing.hosts():
            host.power_loss()
        recover(writing)
        for level in (Durability.MEMORY, Durability.REPLICATED):
            alone = {int(other): [] for other in LEVELS}
            alone[int(level)] = writing.acknowledged[int(level)]
            kept, writing.acknowledged = writing.acknowledged, alone
            try:
                writing.check_has(LEADER, level)
            except AssertionError:
                lost[level.label] += 1
            writing.acknowledged = kept
    assert lost["memory"] > 0
    assert lost["replicated"] > 0
