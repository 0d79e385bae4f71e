"""A transaction coordinator against the log of all its records: elections, appends that fail,
snapshots, and deposed coordinators that go on answering.

The right answers follow from the log alone, by the fold in `check`. Then the same with bugs planted
in the coordinator: each must be noticed, or the model proves nothing.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from tests.sim.mutations import Mutation, planted

TIMEOUT_MS = 1_000
STEPS = 150
SEEDS_PER_BUG = 300
LEVEL = Durability.REPLICATED
COORDINATOR = "core.transactions.coordinator"
T = TypeVar("T")
Transaction = tuple[str, int, int]

BUGS: dict[str, Mutation] = {
    "no new epoch at open": Mutation(
        f"{COORDINATOR}:Coordinator.open", "epoch = 1 + (self", "epoch = 0 + (self"
    ),
    "a replaced instance may open again": Mutation(
        f"{COORDINATOR}:_check_unseen", "in state.old_instances", "in ()"
    ),
    "commit of an old epoch taken": Mutation(
        f"{COORDINATOR}:_check_epoch",
        "epoch == state.epoch and state.closed is None",
        "epoch <= state.epoch",
    ),
    "the last sequence is forgotten by the snapshot": Mutation(
        f"{COORDINATOR}:_snapshot",
        "yield Record(tid, state)",
        "yield Record(tid, replace(state, last=None))",
    ),
    "a commit does not wait for the publish before": Mutation(
        f"{COORDINATOR}:Coordinator.check_commit", "state.publishing is not None", "False"
    ),
    "an unknown id is called dead without a record": Mutation(
        f"{COORDINATOR}:Coordinator.resolve",
        'Resolving([Record(tid, Closed(above, "unknown id"))], Resolved.DEAD)',
        "Resolving([], Resolved.DEAD)",
    ),
    "silence is called dead without a record": Mutation(
        f"{COORDINATOR}:Coordinator.resolve",
        "Resolving([_closing(tid, state, reason)], Resolved.DEAD)",
        "Resolving([], Resolved.DEAD)",
    ),
    "what is live is called dead": Mutation(
        f"{COORDINATOR}:Coordinator.resolve",
        "Resolving([], Resolved.LIVE)\n    return Resolving([_closing",
        "Resolving([], Resolved.DEAD)\n    return Resolving([_closing",
    ),
    "what was chosen is called dead": Mutation(
        f"{COORDINATOR}:Coordinator.resolve",
        "(epoch, sequence) == (last.epoch, last.sequence)",
        "False",
    ),
    "an abort closes nothing": Mutation(
        f"{COORDINATOR}:Coordinator.abort",
        "return Aborting([_closing(tid, state)], had_committed)",
        "return Aborting([], had_committed)",
    ),
    "a forgotten id begins at epoch 1": Mutation(
        f"{COORDINATOR}:Coordinator.open",
        "self._pended_forgotten_epoch if state is None",
        "0 if state is None",
    ),
    "the snapshot lacks the epochs of forgotten ids": Mutation(
        f"{COORDINATOR}:Coordinator.capture",
        "_snapshot(self._pended_forgotten_epoch",
        "_snapshot(0",
    ),
    "a snapshot without what is pending": Mutation(
        f"{COORDINATOR}:Coordinator.capture", ", **self._overlay", ""
    ),
    "a snapshot without its end is believed": Mutation(
        f"{COORDINATOR}:Coordinator._replay_snapshot", "if offset == 0:", "if offset < 0:"
    ),
    "rows between begin and end are applied at once": Mutation(
        f"{COORDINATOR}:Coordinator.apply",
        "self._deferred.append(record)",
        "self._apply_one(record)",
    ),
    "what failed stays pending": Mutation(
        f"{COORDINATOR}:Coordinator.drop_pending", "self._overlay.clear()", "pass"
    ),
}


class World:
    """One coordinator that leads, and some that have led and go on as if they did.

    `waiting`: answers that rest on what is proposed: made when that is safe, else thrown away.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.happened: Counter[str] = Counter()
        self.log: list[Record] = []
        self.log_starts = [0]
        self.now = Now(0, 0)
        self.proposed: list[Record] = []
        self.waiting: list[Transaction] = []
        self.dead: set[Transaction] = set()
        self.snapshot: list[Record] = []
        self.snapshot_at = -1
        self.is_slow = False
        self.deposed: list[Coordinator] = []
        self.coordinator = Coordinator()
        self.coordinator.begin(self.now)

    # --- records -------------------------------------------------------------------------------
    def propose(self, records: list[Record]) -> None:
        for record in records:
            self.coordinator.pend(record)
            self.proposed.append(record)
        if not self.is_slow:
            self.settle()

    def settle(self) -> None:
        for record in self.proposed:
            self.coordinator.apply(len(self.log), record)
            self.happened[type(record.change).__name__] += 1
            if isinstance(record.change, SnapshotBegin):
                self.snapshot_at = len(self.log)
            self.log.append(record)
            if isinstance(record.change, SnapshotEnd):
                self.log_starts.append(self.snapshot_at)
        self.proposed.clear()
        self.dead.update(self.waiting)
        self.waiting.clear()

    def replayed(self, start: int) -> Coordinator:
        coordinator = Coordinator()
        for offset in range(start, len(self.log)):
            coordinator.apply(offset, self.log[offset])
        coordinator.begin(self.now)
        return coordinator

    # --- what happens --------------------------------------------------------------------------
    def step(self) -> None:
        tid = self.random.choice("ab")
        weights = {
            self.open: 3, self.commit: 6, self.published: 3, self.abort: 2, self.resolve: 3,
            self.ask_a_deposed_one: 3, self.forget: 0.5, self.time_goes_on: 1, self.disks: 1,
            self.snapshot_goes_on: 2, self.elect: 1,
        }  # fmt: skip
        (chosen,) = self.random.choices([*weights], [*weights.values()])
        chosen(tid)
        self.check_all()

    def near(self, tid: str) -> tuple[int, int]:
        """An epoch and a sequence around the current ones: what lies far away is refused."""
        state = self.coordinator.applied.get(tid)
        epoch = sequence = 0
        if state is not None:
            epoch = state.epoch if state.closed is None else state.epoch - 1
            sequence = state.last_sequence + (state.publishing is None)
        by = (0, 0, 0, 1, -1)
        epoch, sequence = epoch + self.random.choice(by), sequence + self.random.choice(by)
        return max(0, epoch), max(0, sequence)

    def answer(self, ask: Callable[[], T]) -> T | None:
        try:
            return ask()
        except QuiverlogError as error:
            self.happened[type(error).__name__] += 1
            return None

    def open(self, tid: str) -> None:
        instance = self.random.choice((b"1", b"2", b"3"))
        opening = self.answer(
            lambda: self.coordinator.open(tid, instance, "client", TIMEOUT_MS, False, self.now)
        )
        if opening is not None:
            self.coordinator.sign_of_life(tid, self.now, opens=bool(opening.records))
            self.propose(opening.records)

    def commit(self, tid: str) -> None:
        epoch, sequence = self.near(tid)
        attempt = self.random.choice((b"x" * 16, b"y" * 16))
        digest = digest_of([(attempt, 1)])
        standing = self.answer(lambda: self.coordinator.check_commit(tid, epoch, sequence, digest))
        if standing is None or standing.kind is not Standings.NEW:
            return
        parts = (Part(0, 0, 1, 1, (0,)),)
        self.propose(
            self.coordinator.commit(
                tid, epoch, sequence, digest, (attempt,), parts, -1, LEVEL, self.now
            )
        )

    def published(self, tid: str) -> None:
        state = self.coordinator.applied.get(tid)
        if state is not None and state.publishing is not None:
            sequence = state.publishing.sequence
            self.propose(self.coordinator.published(tid, sequence, (), LEVEL))

    def abort(self, tid: str) -> None:
        epoch, sequence = self.near(tid)
        force = self.random.random() < 0.2
        aborting = self.answer(lambda: self.coordinator.abort(tid, epoch, sequence, force=force))
        if aborting is not None:
            if not aborting.had_committed and not force:
                self.waiting.append((tid, epoch, sequence))
            self.propose(aborting.records)

    def resolve(self, tid: str) -> None:
        epoch, sequence = self.near(tid)
        pins = self.random.random() < 0.5
        resolving = self.coordinator.resolve(tid, epoch, sequence, self.now, pins_front=pins)
        if resolving.standing is Resolved.DEAD:
            self.waiting.append((tid, epoch, sequence))
        elif resolving.standing is Resolved.PUBLISHED and not self.proposed:
            assert (tid, epoch, sequence) not in self.check()
        self.happened[resolving.standing.name] += 1
        self.propose(resolving.records)

    def ask_a_deposed_one(self, tid: str) -> None:
        if self.deposed:
            epoch, sequence = self.near(tid)
            one = self.random.choice(self.deposed)
            resolving = one.resolve(tid, epoch, sequence, self.now)
            # A record of it never becomes safe, and what rests on one is not answered.
            if resolving.standing is Resolved.DEAD and not resolving.records:
                self.happened["dead by a deposed one"] += 1
                self.dead.add((tid, epoch, sequence))

    def forget(self, tid: str) -> None:
        # As the expiry does: nothing of it is being published.
        state = self.coordinator.applied.get(tid)
        waits = self.coordinator.is_waiting(tid)
        if state is not None and state.publishing is None and not waits:
            self.propose(self.coordinator.forget(tid))

    def time_goes_on(self, _tid: str) -> None:
        us = 1000 * self.random.choice((1, TIMEOUT_MS, 70_000))
        self.now = Now(self.now.mono_us + us, self.now.wall_us + us)

    def disks(self, _tid: str) -> None:
        self.is_slow = not self.is_slow
        self.settle()

    def snapshot_goes_on(self, _tid: str) -> None:
        if not self.snapshot:
            self.snapshot = list(self.coordinator.capture())
        count = self.random.randint(1, 3)
        self.propose(self.snapshot[:count])
        del self.snapshot[:count]

    def elect(self, _tid: str) -> None:
        """What was proposed is lost; the next coordinator reads from any start that the log has
        had, or this one goes on behind an append that failed."""
        self.coordinator.drop_pending()
        self.proposed.clear()
        self.waiting.clear()
        self.snapshot.clear()
        if self.random.random() < 0.3:
            return
        self.deposed = [self.coordinator, *self.deposed][:4]
        self.coordinator = self.replayed(self.random.choice(self.log_starts[-3:]))

    # --- what must hold ------------------------------------------------------------------------
    def check_all(self) -> None:
        assert not self.check() & self.dead, "a transaction that was called dead is published"
        for start in self.log_starts[-2:]:
            assert self.replayed(start).applied == self.coordinator.applied, "of one log"

    def check(self) -> set[Transaction]:
        """Folds the log; returns what is being published."""
        epoch: dict[str, int | None] = {}
        above: dict[str, int] = {}
        last: dict[str, int] = {}
        publishing: dict[str, Transaction] = {}
        holder: dict[str, bytes] = {}
        replaced: dict[str, set[bytes]] = {}
        for tid, change in self.log:
            match change:
                case Opened() | Closed():
                    assert change.epoch > above.get(tid, 0), "epochs grow, for ever"
                    above[tid] = change.epoch
                    epoch[tid] = None
                    if isinstance(change, Opened):
                        epoch[tid] = change.epoch
                        assert change.instance not in replaced.get(tid, ()), "out for good"
                        if (before := holder.get(tid, change.instance)) != change.instance:
                            replaced.setdefault(tid, set()).add(before)
                        holder[tid] = change.instance
                case Committed():
                    assert change.epoch == epoch[tid], "of the current epoch"
                    assert change.sequence > last.get(tid, -1), "sequences grow"
                    assert tid not in publishing, "one after the other"
                    last[tid] = change.sequence
                    publishing[tid] = (tid, change.epoch, change.sequence)
                case Published():
                    assert publishing.pop(tid)[2] == change.sequence
                case Forgotten():
                    for held in (epoch, last, holder, replaced):
                        held.pop(tid, None)
        return set(publishing.values())


def run(seed: int) -> World:
    world = World(seed)
    for _ in range(STEPS):
        world.step()
    return world


@given(st.integers(0, 2**32))
def test_what_a_coordinator_answers_follows_from_its_log(seed: int) -> None:
    run(seed)


def test_everything_happens() -> None:
    happened: Counter[str] = Counter()
    for seed in range(40):
        happened += run(seed).happened
    expected = {
        "Opened", "Committed", "Published", "Closed", "Forgotten", "SnapshotBegin",
        "SnapshotState", "SnapshotEnd", "SequenceTaken", "SequenceTooOld", "TransactionClosed",
        "TransactionFenced", "UnknownTransactionalId", "LIVE", "DEAD", "PUBLISHING", "PUBLISHED",
        "dead by a deposed one",
    }  # fmt: skip
    assert set(happened) == expected
    assert min(happened.values()) > 5, happened


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_noticed(name: str) -> None:
    with planted((BUGS[name],)):
        for seed in range(SEEDS_PER_BUG):
            try:
                run(seed)
            except (AssertionError, QuiverlogError):
                return
    pytest.fail(f"{name}: not noticed by {SEEDS_PER_BUG} seeds")
