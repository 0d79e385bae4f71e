"""A small machine for hosted partitions: it keeps the numbers of its records, in order.

Records are the rows of `tests.support.node.SCHEMA`: a number from 0 on, or of a snapshot: BEGIN,
a number of the state as `-10 - number`, END. Not here: what a test asserts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from unittest import mock

from quiverlog.batch.header import BatchHeader
from quiverlog.core.controller.records import Record
from quiverlog.errors import CorruptLog, QuiverlogError
from quiverlog.node.node import Node
from quiverlog.node.partitions.replica import Replica
from quiverlog.node.runtime.effects import Effect, StartJob
from quiverlog.node.runtime.events import Tick
from quiverlog.node.transactions.hosted import Hosted
from quiverlog.node.transactions.kinds import read_batch
from quiverlog.node.transactions.replay import Read
from quiverlog.types import Durability, Now

from . import node as nodes
from .node import SCHEMA, NodeDriver

__all__ = ["BEGIN", "END", "Counter", "CounterDriver", "CounterKind", "Outcomes"]

BEGIN: Final = -1
END: Final = -2


class Counter:
    """`numbers`: applied; `pending`: proposed and not yet safe; `offsets`: of all that came."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.pending: list[int] = []
        self.offsets: list[int] = []
        self.is_live = False
        self._held: list[int] | None = None

    def pend(self, record: int) -> None:
        assert self.is_live
        self.pending.append(record)

    def drop_pending(self) -> None:
        self.pending.clear()

    def apply(self, offset: int, record: int) -> None:
        assert not self.offsets or offset > self.offsets[-1]
        if self.is_live:
            assert self.pending.pop(0) == record
        elif record == BEGIN and not self.offsets:
            self._held = []
        elif record == END and self._held is not None:
            self.numbers += self._held
            self._held = None
        elif self._held is not None:
            if record >= 0:
                self._held.append(record)
            else:
                self.numbers.append(-10 - record)
        self.offsets.append(offset)
        if record >= 0 and self._held is None:
            self.numbers.append(record)

    def begin(self) -> None:
        if self._held is not None:
            raise CorruptLog("a snapshot at the log start has no end.")
        self.is_live = True


class CounterKind:
    """`machines`: all that were made. `serves`, `stops`: calls."""

    schema = SCHEMA
    takes_snapshots = False

    def __init__(self, level: int = Durability.REPLICATED_FLUSHED) -> None:
        self.level = level
        self.machines: list[Counter] = []
        self.serves: list[Hosted] = []
        self.stops: list[QuiverlogError] = []

    def new_machine(self, replica: Replica, leader_epoch: int) -> Counter:
        assert replica.state.leader_epoch == leader_epoch
        self.machines.append(Counter())
        return self.machines[-1]

    def row(self, record: int) -> tuple[Any, ...]:
        return (record,)

    def bytes_needed(self, header: BatchHeader) -> int:
        return header.total_bytes

    def decode(self, header: BatchHeader, prefix: memoryview, read: Read) -> list[tuple[int, int]]:
        return self.rows(header, read(self.bytes_needed(header)))

    def rows(self, header: BatchHeader, view: memoryview) -> list[tuple[int, int]]:
        numbers = read_batch(header, view, SCHEMA).column(0).to_pylist()
        return list(enumerate(numbers, header.base_offset))

    def capture(self, machine: Counter) -> Iterator[int]:
        numbers = [*machine.numbers, *machine.pending]

        def records() -> Iterator[int]:
            yield BEGIN
            for number in numbers:
                yield -10 - number
            yield END

        return records()

    def serving(self, hosted: Hosted, now: Now) -> None:
        machine = hosted.machine
        assert isinstance(machine, Counter)
        machine.begin()
        self.serves.append(hosted)

    def stopped(self, hosted: Hosted, error: QuiverlogError, now: Now) -> None:
        self.stops.append(error)


class Outcomes:
    """Of proposals, in the order in which they came: (their numbers, offset or error)."""

    def __init__(self, node: NodeDriver) -> None:
        self._node = node
        self.all: list[tuple[tuple[int, ...], int | QuiverlogError]] = []

    def propose(self, hosted: Hosted, *numbers: int, **options: Any) -> None:
        """`options`: of `Hosted.propose`."""

        def then(offset: int, error: QuiverlogError | None, now: Now) -> None:
            self.all.append((numbers, offset if error is None else error))

        hosted.propose(numbers, self._node.now, then, **options)

    def of(self, *numbers: int) -> Any:
        """The only outcome of these numbers: an offset, or the error's kind; None: none yet."""
        found = [outcome for proposed, outcome in self.all if proposed == numbers]
        assert len(found) <= 1
        return next((type(o) if isinstance(o, QuiverlogError) else o for o in found), None)


def _is_replay(effect: Effect) -> bool:
    return isinstance(effect, StartJob) and effect.job.kind == "replay"


class CounterDriver(NodeDriver):
    """A node that hosts the partitions of the topic "t"; `replays`: jobs that wait for the test."""

    def __init__(self, root: Path, kind: CounterKind, **config: Any) -> None:
        self.kind = kind
        self.holds_replays = False
        self.replays: list[StartJob] = []
        super().__init__(root, **config)

    def start(self) -> None:
        def make(*args: Any, **options: Any) -> Node:
            node = Node(*args, **options)
            node.broker.transactions.kinds["t"] = self.kind
            return node

        self.replays.clear()
        with mock.patch.object(nodes, "Node", make):
            super().start()

    def _perform(self, effects: list[Effect]) -> list[Effect]:
        held = {id(one) for one in effects if self.holds_replays and _is_replay(one)}
        self.replays += [one for one in effects if id(one) in held and isinstance(one, StartJob)]
        super()._perform([one for one in effects if id(one) not in held])
        return effects

    def replay(self, error: BaseException | None = None) -> None:
        """Perform one held job (or let it fail)."""
        self._run(self.replays.pop(0), error)
        self.run_until_idle()

    def settle(self) -> None:
        """Until nothing is left to do but at a later moment."""
        self.send(Tick())
        while self.syncs:
            self.flush()

    def decide(self, *records: Record) -> None:
        outcomes: list[BaseException | None] = []
        self.node.broker.propose(
            list(records), self.now, lambda _result, error, _now: outcomes.append(error)
        )
        self.send(Tick())
        assert outcomes == [None]

    def hosted(self, topic: bytes, partition: int = 0) -> Hosted:
        found: Hosted = self.node.broker.transactions.find(topic, partition)
        return found

    def machine(self, topic: bytes, partition: int = 0) -> Counter:
        """Raises as `Hosted.serve`."""
        machine = self.hosted(topic, partition).serve()
        assert isinstance(machine, Counter)
        return machine
