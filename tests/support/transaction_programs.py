"""Programs that use transactions in a `TransactionWorld`, and what they were promised.

A query repeats a batch under its number after a crash, with other rows, tasks that run twice, and
zombies of earlier runs. A program chooses its sequences, aborts at times, and remembers the answer
of each commit.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

from quiverlog.core.transactions.coordinator import OLD_INSTANCES_MAX
from quiverlog.core.transactions.records import Committed, Opened
from quiverlog.core.transactions.staged_rows import StagedRow
from quiverlog.errors import SequenceTooOld, TransactionClosed, TransactionFenced

from .transaction_world import LOST, STAGING, TARGETS, TransactionWorld, Violation

__all__ = ["App", "check", "run_world"]

TOPIC: Final = b"t" * 16
_AGAIN: Final = 30
_CALM: Final = 9
"""Transactions of an application in the calm after all faults: work goes on."""


class App:
    """One transactional id, over all runs that use it."""

    def __init__(
        self, world: TransactionWorld, tid: str, *, is_query: bool, begins_at: int = 0
    ) -> None:
        self.world = world
        self.tid = tid
        self.is_query = is_query
        self.next = 0  # The checkpoint of a query, which is atomic.
        self.committed: dict[int, tuple[bytes, ...]] = {}
        self.aborted: set[bytes] = set()
        self.calm_count = 0
        self.run_count = 0
        # A query that looks at the last sequence first, or leaves it to the commit.
        self.skips = world.rng.random() < 0.5
        self.newest: Run | None = None
        self.stopped = False
        world.after(begins_at, self.start)

    def start(self) -> None:
        if not self.stopped:
            self.run_count += 1
            self.newest = Run(self, f"{self.tid}/{self.run_count}".encode())

    def ended(self, run: Run) -> None:
        if run is self.newest:
            self.world.after(10, self.start)

    def crash(self) -> None:
        # Half of them go on beside the next.
        if self.newest is not None and self.world.rng.random() < 0.5:
            self.newest.is_dead = True
        self.start()

    @property
    def is_calm_done(self) -> bool:
        return not self.world.chaos and self.calm_count >= _CALM


class Run:
    def __init__(self, app: App, instance: bytes) -> None:
        self.app = app
        self.world = app.world
        self.instance = instance
        self.is_dead = False
        self.turn = 0
        self.sequence = app.next
        self._begin()

    def _begin(self) -> None:
        if self.app.is_calm_done:
            return
        self.turn += 1
        self.epoch = -1
        self.attempts: dict[bytes, dict[int, Any]] = {}
        self.missing: set[Any] = set()
        self._repeat(self._open, self.turn)

    def _repeat(self, step: Any, turn: int, while_: Any = None) -> None:
        """Send again until an answer comes."""
        if self.is_dead or turn != self.turn or (while_ is not None and not while_()):
            return
        step()
        self.world.after(_AGAIN, self._repeat, step, turn, while_)

    def die(self) -> None:
        if not self.is_dead:
            self.is_dead = True
            self.app.ended(self)

    # --- open and stage ------------------------------------------------------------------------
    def _open(self) -> None:
        turn = self.turn
        if self.epoch < 0:
            self.world.coordinators.ask(
                "open", self.app.tid, self.instance, False,
                lambda *answer: self._opened(turn, *answer),
            )  # fmt: skip

    def _opened(self, turn: int, error: Any, epoch: int, last: int) -> None:
        if self.is_dead or turn != self.turn or self.epoch >= 0:
            return
        if error is not None:
            self.die()
            return
        self.epoch = epoch
        if not self.app.is_query:
            self.sequence = max(self.sequence, last + 1 + self.world.rng.choice((0, 0, 3)))
        elif last >= self.sequence and self.app.skips:
            self._commit()
            return
        self._stage_all()

    def _stage_all(self) -> None:
        rng = self.world.rng
        for task in range(rng.randint(0, 3) if self.app.is_query else 1):
            tries = rng.choice((1, 1, 2)) if self.app.is_query else 1
            for number in range(tries):
                attempt = rng.randbytes(16)
                wins = number == tries - 1
                if wins:
                    self.attempts[attempt] = {}
                for batch in range(rng.randint(0, 3)):
                    place = rng.randrange(STAGING)
                    name = (self.app.tid, self.sequence, attempt, task, batch, place)
                    row = StagedRow(
                        self.app.tid, self.epoch, self.sequence, attempt, TOPIC,
                        rng.randrange(TARGETS), rng.randint(1, 5), 100,
                    )  # fmt: skip
                    if wins:
                        self.missing.add(name)
                    if wins or rng.random() < 0.7:
                        self._stage(place, name, row, self.turn)
        self._commit_when_staged()

    def _stage(self, place: int, name: Any, row: StagedRow, turn: int) -> None:
        self._repeat(
            lambda: self.world.staging[place].ask(
                "stage", name, row, lambda p, o: self._staged(turn, name, row, p, o)
            ),
            turn,
            lambda: name in self.missing,
        )

    def _staged(self, turn: int, name: Any, row: StagedRow, place: int, offset: int | None) -> None:
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
        else:
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
            self._abort_beside()

    def _committed(self, turn: int, named: tuple[bytes, ...], error: Any) -> None:
        if self.is_dead or turn != self.turn:
            return
        if error is not None:
            self._refused(error)
            return
        app = self.app
        if app.is_query:
            if self.world.chaos and self.world.rng.random() < 0.1:
                self.die()  # Before its checkpoint has it: the batch comes again.
                return
            if self.sequence == app.next:
                app.next += 1
                app.calm_count += not self.world.chaos
            self.sequence = app.next
        else:
            app.committed[self.sequence] = named
            app.calm_count += not self.world.chaos
            self.sequence += 1
        self._begin()

    def _refused(self, error: Any) -> None:
        # Staged rows that are lost: the same batch again, from its source.
        if error is LOST and self.app.is_query and self.world.chaos:
            self._begin()
            return
        ends = (TransactionFenced, TransactionClosed, SequenceTooOld)
        if error is not LOST and not isinstance(error, ends):
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

    def _abort_beside(self) -> None:
        """Spark's abort comes while the commit is on its way."""
        attempts = tuple(self.attempts)

        def aborted(error: Any, had_committed: bool) -> None:
            if error is None and not had_committed:
                self.app.aborted.update(attempts)

        self.world.coordinators.ask("abort", self.app.tid, self.epoch, self.sequence, aborted)


def run_world(seed: int) -> TransactionWorld:
    """Raises Violation."""
    world = TransactionWorld(seed)
    rng = world.rng
    apps = [App(world, "q0", is_query=True), App(world, "q1", is_query=True)]
    apps.append(App(world, "p0", is_query=False))
    # Ids that deposed coordinators lack.
    for number in range(rng.randint(0, 2)):
        late = App(world, f"n{number}", is_query=False, begins_at=rng.randint(50, 900))
        apps.append(late)
    for _ in range(rng.randint(2, 14)):
        world.after(rng.randint(10, 900), _fault, world, apps)
    world.run(1_000)
    world.chaos = False
    for leaders in world.all():
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
        world.after(rng.randint(5, 30), world.coordinators.elect)
    elif kind < 0.82:
        world.coordinators.present.reap(rng.choice(apps).tid)
    else:
        rng.choice(apps).crash()


def check(world: TransactionWorld, apps: list[App]) -> None:
    decided: dict[tuple[str, int], Committed] = {}
    for entry in world.coordinators.log.rows:
        record = entry.content
        if isinstance(record.change, Committed):
            key = (record.transactional_id, record.change.sequence)
            if key in decided:
                raise Violation(f"{key} is decided twice")
            decided[key] = record.change
    _check_instances(world)
    for leaders in world.targets:
        seen = set()
        newest: dict[str, int] = defaultdict(lambda: -1)
        for entry in leaders.log.rows:
            name = entry.content.name
            if name in seen:
                raise Violation(f"{name} is stored twice")
            seen.add(name)
            tid, sequence = name[:2]
            # What a power failure took from a target may come again later than newer rows.
            if sequence < newest[tid] and name not in world.excused:
                raise Violation(f"{tid}: rows of {sequence} lie behind those of {newest[tid]}")
            newest[tid] = sequence
    _check_rows(world, decided)
    for app in apps:
        _check_app(app, decided)
    for leaders in world.staging:
        staging = leaders.present
        staged = staging.core
        if staged.batch_count or list(staged.unfinished()):
            raise Violation(f"staging {staging.number} keeps {staged.batch_count} batches for ever")


def _check_instances(world: TransactionWorld) -> None:
    replaced: dict[str, list[bytes]] = defaultdict(list)
    newest: dict[str, bytes] = {}
    for entry in world.coordinators.log.rows:
        tid, change = entry.content
        if isinstance(change, Opened) and newest.get(tid) != change.instance:
            if change.instance in replaced[tid][-OLD_INSTANCES_MAX:]:
                raise Violation(f"{tid}: {change.instance!r} was replaced, and holds it again")
            replaced[tid] += [newest[tid]] if tid in newest else []
            newest[tid] = change.instance


def _check_rows(world: TransactionWorld, decided: dict[tuple[str, int], Committed]) -> None:
    stored: dict[tuple[str, int], set[Any]] = defaultdict(set)
    for leaders in world.targets:
        for entry in leaders.log.rows:
            stored[entry.content.name[:2]].add(entry.content.name)
    chosen: dict[tuple[str, int], set[Any]] = defaultdict(set)
    for name, row in world.staged.items():
        found = decided.get(name[:2])
        if found is not None and row.attempt in found.attempts and row.epoch == found.epoch:
            chosen[name[:2]].add(name)
    for key in stored.keys() | chosen.keys():
        missing = chosen[key] - stored[key] - world.excused
        extra = stored[key] - chosen[key]
        if missing or extra:
            raise Violation(f"{key}: {len(missing)} batches are missing, {len(extra)} are no part")


def _check_app(app: App, decided: dict[tuple[str, int], Committed]) -> None:
    for sequence, named in app.committed.items():
        found = decided.get((app.tid, sequence))
        if found is None or tuple(sorted(found.attempts)) != named:
            raise Violation(f"{app.tid}: {sequence} was answered, and is not what was decided")
    for sequence in range(app.next):
        if (app.tid, sequence) not in decided:
            raise Violation(f"{app.tid}: {sequence} was answered, and is not decided")
    for (tid, sequence), found in decided.items():
        if tid == app.tid and app.aborted.intersection(found.attempts):
            raise Violation(f"{tid}: {sequence} was aborted, and is decided")
    if app.calm_count < _CALM:
        raise Violation(f"{app.tid} does not get on when all is well: {app.calm_count}")
