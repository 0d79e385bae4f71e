"""Programs that use transactions in a `TransactionWorld`, and what becomes of them.

A query repeats a batch under its number after a crash, with other rows, tasks that run twice, and
zombies of earlier runs; at times it writes a batch twice in one run, which is a mistake. A program
chooses its sequences, aborts at times, and remembers the answer of each commit. A batch write has
an id of single use. All of them rest at times for longer than an id is remembered.
"""

from __future__ import annotations

from typing import Any, Final
from unittest import mock

from quiverlog.core.transactions import coordinator
from quiverlog.core.transactions.staged import Key
from quiverlog.core.transactions.staged_rows import StagedRow
from quiverlog.errors import (
    SequenceTaken,
    SequenceTooOld,
    TransactionClosed,
    TransactionFenced,
    UnknownTransactionalId,
)

from .transaction_checks import check
from .transaction_world import (
    EXPIRY_TICKS,
    LOST,
    SINGLE_USE_TICKS,
    STAGING,
    TARGETS,
    Name,
    TransactionWorld,
    Violation,
)

__all__ = ["App", "run_world"]

TOPIC: Final = b"t" * 16
_AGAIN: Final = 30
_LIFE: Final = 10
_CALM: Final = 9
"""Transactions of an application in the calm after all faults: work goes on."""


class App:
    """One transactional id, over all runs that use it."""

    def __init__(
        self,
        world: TransactionWorld,
        tid: str,
        *,
        is_query: bool = False,
        is_batch: bool = False,
        begins_at: int = 0,
    ) -> None:
        self.world = world
        self.tid = tid
        self.is_query = is_query
        self.is_batch = is_batch
        self.next = 0  # The checkpoint of a query, which is atomic.
        self.committed: set[tuple[int, tuple[bytes, ...]]] = set()
        self.aborted: set[bytes] = set()
        # Second writes of a query's batch in one run that were answered like the first.
        self.twice: dict[Key, tuple[bytes, ...]] = {}
        self.calm_count = 0
        self.run_count = 0
        # A query that looks at the last sequence first, or leaves it to the commit.
        self.skips = world.rng.random() < 0.5
        self.newest: Run | None = None
        self.stopped = False
        world.after(begins_at, self.start)

    def start(self) -> None:
        # A batch write that is run again has another id.
        if not self.stopped and not (self.is_batch and self.run_count):
            self.run_count += 1
            self.newest = Run(self, f"{self.tid}/{self.run_count}".encode())

    def ended(self, run: Run, rests: float = 0.1) -> None:
        if run is self.newest:
            self.world.after(10 + self.world.rest(rests), self.start)

    def crash(self) -> None:
        # Half of them go on beside the next.
        if self.newest is not None and self.world.rng.random() < 0.5:
            self.newest.is_dead = True
        self.start()

    @property
    def is_calm_done(self) -> bool:
        return self.is_batch or (not self.world.chaos and self.calm_count >= _CALM)


class Run:
    def __init__(self, app: App, instance: bytes) -> None:
        self.app = app
        self.world = app.world
        self.instance = instance
        self.is_dead = False
        self.turn = 0
        self.sequence = app.next
        self._begin()
        if app.is_batch:
            self._live()

    def _live(self) -> None:
        """Signs of life. Queries and programs open again soon."""
        if not self.is_dead:
            self.world.coordinators.ask("open", self.app.tid, self.instance, True, lambda *_: None)
            self.world.after(_LIFE, self._live)

    def _begin(self, wrote: Key | None = None) -> None:
        """`wrote`: what this run has written of the batch before; then it writes it again."""
        self.turn += 1
        if self.app.is_calm_done and not self.app.is_batch:
            return
        self.wrote = wrote
        self.epoch = -1
        self.attempts: dict[bytes, dict[int, Any]] = {}
        self.missing: set[Name] = set()
        self._repeat(self._open, self.turn)

    def _repeat(self, step: Any, turn: int, while_: Any = None) -> None:
        """Send again until an answer comes."""
        if self.is_dead or turn != self.turn or (while_ is not None and not while_()):
            return
        step()
        self.world.after(_AGAIN, self._repeat, step, turn, while_)

    @property
    def key(self) -> Key:
        return Key(self.app.tid, self.epoch, self.sequence)

    def die(self, rests: float = 0.1) -> None:
        if not self.is_dead:
            self.is_dead = True
            self.app.ended(self, rests)

    # --- open and stage ------------------------------------------------------------------------
    def _open(self) -> None:
        turn = self.turn
        if self.epoch < 0:
            self.world.coordinators.ask(
                "open", self.app.tid, self.instance, self.app.is_batch,
                lambda *answer: self._opened(turn, *answer),
            )  # fmt: skip

    def _opened(self, turn: int, error: Any, epoch: int, last: int) -> None:
        if self.is_dead or turn != self.turn or self.epoch >= 0:
            return
        if error is not None:
            self.die()
            return
        self.epoch = epoch
        if self.app.is_query and last >= self.sequence and self.app.skips:
            # Tasks take their rows and stage nothing.
            self._commit()
            return
        if not self.app.is_query and not self.app.is_batch:
            self.sequence = max(self.sequence, last + 1 + self.world.rng.choice((0, 0, 3)))
        self._stage_all()

    def _stage_all(self) -> None:
        rng = self.world.rng
        # Many batches for one partition go in several pieces.
        only = (rng.randrange(STAGING), rng.randrange(TARGETS)) if rng.random() < 0.2 else None
        for task in range(rng.randint(0, 3) if self.app.is_query else 1):
            tries = rng.choice((1, 1, 2)) if self.app.is_query else 1
            for number in range(tries):
                attempt = rng.randbytes(16)
                wins = number == tries - 1
                if wins:
                    self.attempts[attempt] = {}
                for batch in range(rng.randint(0, 6 if only else 3)):
                    place, target = only or (rng.randrange(STAGING), rng.randrange(TARGETS))
                    name = Name(self.key, self.instance, attempt, task, batch, place)
                    row = StagedRow(
                        self.app.tid, self.epoch, self.sequence, attempt, TOPIC,
                        target, rng.randint(1, 5), 100,
                    )  # fmt: skip
                    if wins:
                        self.missing.add(name)
                    if wins or rng.random() < 0.7:
                        self._stage(place, name, row, self.turn)
        self._commit_when_staged()

    def _stage(self, place: int, name: Name, row: StagedRow, turn: int) -> None:
        self._repeat(
            lambda: self.world.staging[place].ask(
                "stage", name, row, lambda p, o: self._staged(turn, name, row, p, o)
            ),
            turn,
            lambda: name in self.missing,
        )

    def _staged(
        self, turn: int, name: Name, row: StagedRow, place: int, offset: int | None
    ) -> None:
        if self.is_dead or turn != self.turn or name not in self.missing:
            return
        if offset is None:
            self.die()
            return
        self.missing.discard(name)
        first, end, rows = self.attempts[row.attempt].get(place, (offset, offset + 1, 0))
        self.attempts[row.attempt][place] = (
            min(first, offset), max(end, offset + 1), rows + row.row_count
        )  # fmt: skip
        self._commit_when_staged()

    def _commit_when_staged(self) -> None:
        if self.missing:
            return
        if not self.app.is_query and self.world.chaos and self.world.rng.random() < 0.15:
            self._abort()
            return
        rest = self.world.rest(0.02)
        if rest:
            self.world.after(rest, self._repeat, self._commit, self.turn)
            return
        if self.world.chaos and self.world.rng.random() < 0.02:
            # By command: while it is counted, decided, or published.
            delay = self.world.rng.randint(1, 20)
            self.world.after(delay, lambda: self.world.coordinators.present.forget(self.app.tid))
        self._commit()

    # --- end -----------------------------------------------------------------------------------
    def _commit(self) -> None:
        turn = self.turn
        named = {a: parts for a, parts in self.attempts.items() if parts}
        self._repeat(
            lambda: self.world.coordinators.ask(
                "commit", self.app.tid, self.epoch, self.sequence, named,
                lambda error: self._committed(turn, tuple(sorted(named)), error),
            ),
            turn,
        )  # fmt: skip
        if self.world.chaos and self.world.rng.random() < 0.05:
            self._abort_beside(self.epoch, self.sequence, tuple(self.attempts))

    def _committed(self, turn: int, named: tuple[bytes, ...], error: Any) -> None:
        if self.is_dead or turn != self.turn:
            return
        if error is not None:
            self._refused(error)
            return
        app, rng = self.app, self.world.rng
        if self.world.chaos and rng.random() < 0.05:
            self._abort_late()
        if self.wrote is not None:
            app.twice[self.key] = named
        if app.is_query:
            if self.world.chaos and rng.random() < 0.1:
                # Before its checkpoint has it: the batch comes again.
                if rng.random() < 0.3:
                    self.world.coordinators.present.forget(app.tid)
                    self._abort_late()
                    self.die(rests=0.5)
                else:
                    self.die()
                return
            if self.world.chaos and named and rng.random() < 0.05:
                self._begin(self.key)
                return
            if self.sequence == app.next:
                app.next += 1
                app.calm_count += not self.world.chaos
            self.sequence = app.next
        else:
            app.committed.add((self.sequence, named))
            app.calm_count += not self.world.chaos
            self.sequence += 1
        if app.is_batch:
            self.die()
        else:
            self._begin()

    def _refused(self, error: Any) -> None:
        # Staged rows that are lost: the same batch again, from its source.
        if error is LOST and self.app.is_query and self.world.chaos:
            self._begin()
            return
        ends = (TransactionFenced, TransactionClosed, SequenceTooOld, UnknownTransactionalId)
        is_second = isinstance(error, SequenceTaken) and self.wrote is not None
        if error is not LOST and not isinstance(error, ends) and not is_second:
            raise Violation(f"{self.app.tid} is refused: {error!r}")
        self.die()

    def _abort(self) -> None:
        turn = self.turn
        self._repeat(
            lambda: self.world.coordinators.ask(
                "abort", self.app.tid, self.epoch, self.sequence,
                lambda *answer: self._aborted(turn, *answer),
            ),
            turn,
        )  # fmt: skip

    def _aborted(self, turn: int, error: Any, had_committed: bool) -> None:
        if self.is_dead or turn != self.turn:
            return
        if error is None and not had_committed:
            self.app.aborted.update(self.attempts)
        self.die()

    def _abort_late(self) -> None:
        """A driver that died wakes up behind its commit; the id may be forgotten by then."""
        delay = self.world.rng.choice((20, 100, EXPIRY_TICKS))
        self.world.after(delay, self._abort_beside, self.epoch, self.sequence, tuple(self.attempts))

    def _abort_beside(self, epoch: int, sequence: int, attempts: tuple[bytes, ...]) -> None:
        """Spark's abort comes while the commit is on its way."""

        def aborted(error: Any, had_committed: bool) -> None:
            if error is None and not had_committed:
                self.app.aborted.update(attempts)

        self.world.coordinators.ask("abort", self.app.tid, epoch, sequence, aborted)


def run_world(seed: int) -> TransactionWorld:
    """Raises Violation."""
    world = TransactionWorld(seed)
    rng = world.rng
    apps = [App(world, "q0", is_query=True), App(world, "q1", is_query=True), App(world, "p0")]
    # Ids that deposed coordinators lack.
    late = {name: rng.randint(50, 900) for name in ("n0", "n1")[: rng.randint(0, 2)]}
    apps += [App(world, name, begins_at=at) for name, at in late.items()]
    batches = {name: rng.randint(0, 900) for name in ("b0", "b1")[: rng.randint(0, 2)]}
    apps += [App(world, name, is_batch=True, begins_at=at) for name, at in batches.items()]
    for _ in range(rng.randint(2, 14)):
        world.after(rng.randint(10, 900), _fault, world, apps)
    with mock.patch.object(coordinator, "SINGLE_USE_EXPIRY_MS", SINGLE_USE_TICKS * 1_000):
        world.run(1_000)
        world.chaos = False
        for leaders in world.all():
            # Some of those that went through all go on.
            if rng.random() < 0.5:
                leaders.elect()
        world.run(3_000)
        for app in apps:
            app.stopped = True
            if app.newest is not None:
                app.newest.is_dead = True
        world.run(5_000)
    check(world, apps)
    return world


def _fault(world: TransactionWorld, apps: list[App]) -> None:
    if not world.chaos:
        return
    rng = world.rng
    kind = rng.random()
    if kind < 0.22:
        world.coordinators.elect()
    elif kind < 0.44:
        rng.choice(world.staging).elect()
        if rng.random() < 0.3:
            # What the new leader goes on with is not on disks yet.
            world.after(rng.randint(3, 12), world.fail_power)
    elif kind < 0.6:
        rng.choice(world.targets).elect()
    elif kind < 0.64:
        world.fail_power()
    elif kind < 0.68:
        world.fail_power([rng.choice(world.targets)])
    elif kind < 0.75:
        world.coordinators.present.snapshot()
        world.after(rng.choice((1, 2, 4, 30)), world.coordinators.elect)
    elif kind < 0.79:
        world.coordinators.present.reap(rng.choice(apps).tid)
    elif kind < 0.82:
        world.coordinators.present.forget(rng.choice(apps).tid)
    elif kind < 0.87:
        world.coordinators.present.wall_ahead += rng.choice((30, -30, 400, -400))
    else:
        rng.choice(apps).crash()
