"""A transaction coordinator against the log of all its records: elections, appends that fail,
snapshots, and deposed coordinators that go on answering.

The right answers follow from the log alone, by the folds in `check`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from quiverlog.core.transactions.coordinator import Coordinator, Resolved, Standings
from quiverlog.core.transactions.records import (
    Closed,
    Committed,
    Forgotten,
    Opened,
    Part,
    Published,
    Record,
    SnapshotBegin,
    SnapshotEnd,
    digest_of,
)
from quiverlog.errors import QuiverlogError
from quiverlog.types import Durability, Now

TIMEOUT_MS = 1_000
T = TypeVar("T")

ids = st.sampled_from(["a", "b"])
instances = st.sampled_from([b"1", b"2", b"3"])
# Around the current ones: what lies far away is refused.
steps = st.sampled_from([0, 0, 0, 1, -1])
attempts = st.sampled_from([b"x" * 16, b"y" * 16])
Transaction = tuple[str, int, int]


def answer(ask: Callable[[], T]) -> T | None:
    try:
        return ask()
    except QuiverlogError:
        return None


class CoordinatorAgainstLog(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.log: list[Record] = []
        self.now = Now(0, 0)
        self.proposed: list[Record] = []
        self.deposed: list[Coordinator] = []
        self.coordinator = Coordinator()
        self.coordinator.begin(self.now)
        # Answers that rest on what is proposed: made when it is safe, thrown away otherwise.
        self.waiting: list[Transaction] = []
        self.dead: set[Transaction] = set()
        self.snapshot: list[Record] = []
        self.snapshot_at = -1
        self.log_starts = [0]
        self.is_slow = False

    def propose(self, records: list[Record]) -> None:
        for record in records:
            self.coordinator.pend(record)
            self.proposed.append(record)
        if not self.is_slow:
            self.settle()

    def near(self, tid: str, epoch: int, sequence: int) -> tuple[int, int]:
        state = self.coordinator.applied.get(tid)
        if state is None:
            return max(0, epoch), max(0, sequence)
        # Behind a commit the next one is as likely as the same.
        base = state.last_sequence + (state.publishing is None)
        held = state.epoch if state.closed is None else state.epoch - 1
        return max(0, held + epoch), max(0, base + sequence)

    # --- what happens --------------------------------------------------------------------------
    @rule(tid=ids, instance=instances)
    def open(self, tid: str, instance: bytes) -> None:
        opening = answer(
            lambda: self.coordinator.open(tid, instance, "client", TIMEOUT_MS, False, self.now)
        )
        if opening is not None:
            self.propose(opening.records)
            self.coordinator.sign_of_life(tid, self.now)

    @rule(tid=ids, epoch=steps, sequence=steps, attempt=attempts)
    def commit(self, tid: str, epoch: int, sequence: int, attempt: bytes) -> None:
        epoch, sequence = self.near(tid, epoch, sequence)
        digest = digest_of([(attempt, 1)])
        standing = answer(lambda: self.coordinator.check_commit(tid, epoch, sequence, digest))
        if standing is None or standing.kind is not Standings.NEW:
            return
        parts = (Part(0, 0, 1, 1, (0,)),)
        level = Durability.REPLICATED
        self.propose(
            self.coordinator.commit(
                tid, epoch, sequence, digest, (attempt,), parts, -1, level, self.now
            )
        )

    @rule(tid=ids)
    def published(self, tid: str) -> None:
        state = self.coordinator.applied.get(tid)
        if state is not None and state.publishing is not None:
            level = Durability.REPLICATED
            self.propose(self.coordinator.published(tid, state.publishing.sequence, (), level))

    @rule(tid=ids, epoch=steps, sequence=steps, force=st.booleans())
    def abort(self, tid: str, epoch: int, sequence: int, force: bool) -> None:
        epoch, sequence = self.near(tid, epoch, sequence)
        aborting = answer(lambda: self.coordinator.abort(tid, epoch, sequence, force=force))
        if aborting is not None:
            if not aborting.had_committed and not force:
                self.waiting.append((tid, epoch, sequence))
            self.propose(aborting.records)

    @rule(tid=ids, epoch=steps, sequence=steps, pins=st.booleans())
    def resolve(self, tid: str, epoch: int, sequence: int, pins: bool) -> None:
        epoch, sequence = self.near(tid, epoch, sequence)
        resolving = self.coordinator.resolve(tid, epoch, sequence, self.now, pins_front=pins)
        if resolving.standing is Resolved.DEAD:
            self.waiting.append((tid, epoch, sequence))
        elif resolving.standing is Resolved.PUBLISHED and not self.proposed:
            assert (tid, epoch, sequence) not in self.check()
        self.propose(resolving.records)

    @rule(tid=ids, epoch=steps, sequence=steps, index=st.integers(0, 3))
    def ask_a_deposed_one(self, tid: str, epoch: int, sequence: int, index: int) -> None:
        epoch, sequence = self.near(tid, epoch, sequence)
        if index < len(self.deposed):
            resolving = self.deposed[index].resolve(tid, epoch, sequence, self.now)
            if resolving.standing is Resolved.DEAD and not resolving.records:
                self.say_dead((tid, epoch, sequence))

    @rule(tid=ids)
    def forget(self, tid: str) -> None:
        # As the expiry does: nothing of it is being published.
        state = self.coordinator.applied.get(tid)
        waits = self.coordinator.is_waiting(tid)
        if state is not None and state.publishing is None and not waits:
            self.propose(self.coordinator.forget(tid))

    @rule(ms=st.sampled_from([1, TIMEOUT_MS, 70_000]))
    def time_goes_on(self, ms: int) -> None:
        self.now = Now(self.now.mono_us + ms * 1000, self.now.wall_us + ms * 1000)

    @rule(is_slow=st.booleans())
    def disks(self, is_slow: bool) -> None:
        self.is_slow = is_slow
        self.settle()

    def settle(self) -> None:
        for record in self.proposed:
            self.coordinator.apply(len(self.log), record)
            if isinstance(record.change, SnapshotBegin):
                self.snapshot_at = len(self.log)
            self.log.append(record)
            if isinstance(record.change, SnapshotEnd):
                self.log_starts.append(self.snapshot_at)
        self.proposed.clear()
        for transaction in self.waiting:
            self.say_dead(transaction)
        self.waiting.clear()

    @rule(count=st.integers(1, 3))
    def snapshot_goes_on(self, count: int) -> None:
        if not self.snapshot:
            self.snapshot = list(self.coordinator.capture())
        self.propose(self.snapshot[:count])
        del self.snapshot[:count]

    @rule(start=st.integers(0, 5), deposed=st.booleans())
    def elect(self, start: int, deposed: bool) -> None:
        """What was proposed is lost; the next coordinator reads from any start that the log has
        had."""
        self.coordinator.drop_pending()
        self.proposed.clear()
        self.waiting.clear()
        self.snapshot.clear()
        if deposed:
            self.deposed = [self.coordinator, *self.deposed][:4]
        self.coordinator = self.replayed(self.log_starts[-1 - start % len(self.log_starts)])

    def replayed(self, start: int) -> Coordinator:
        coordinator = Coordinator()
        for offset in range(start, len(self.log)):
            coordinator.apply(offset, self.log[offset])
        coordinator.begin(self.now)
        return coordinator

    # --- what must hold ------------------------------------------------------------------------
    def say_dead(self, transaction: Transaction) -> None:
        self.dead.add(transaction)
        assert transaction not in self.check(), f"{transaction} is being published"

    def check(self) -> set[Transaction]:
        """Folds the log; returns what is being published."""
        epoch: dict[str, int | None] = {}
        above: dict[str, int] = {}
        last: dict[str, int] = {}
        publishing: dict[str, Transaction] = {}
        for tid, change in self.log:
            match change:
                case Opened() | Closed():
                    assert change.epoch > above.get(tid, 0), "epochs grow, for ever"
                    above[tid] = change.epoch
                    epoch[tid] = change.epoch if isinstance(change, Opened) else None
                case Committed():
                    assert change.epoch == epoch[tid], "of the current epoch"
                    assert change.sequence > last.get(tid, -1), "sequences grow"
                    assert tid not in publishing, "one after the other"
                    last[tid] = change.sequence
                    publishing[tid] = (tid, change.epoch, change.sequence)
                case Published():
                    assert publishing.pop(tid)[2] == change.sequence
                case Forgotten():
                    epoch.pop(tid)
                    last.pop(tid, None)
        return set(publishing.values())

    @invariant()
    def nothing_that_is_dead_is_being_published(self) -> None:
        assert not self.check() & self.dead

    @invariant()
    def every_start_of_the_log_gives_the_same_states(self) -> None:
        for start in self.log_starts[-2:]:
            assert self.replayed(start).applied == self.coordinator.applied


CoordinatorAgainstLog.TestCase.settings = settings(
    max_examples=100, stateful_step_count=50, deadline=None
)
TestCoordinatorAgainstLog = CoordinatorAgainstLog.TestCase
