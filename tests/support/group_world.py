"""A coordinator of groups as its core runs in a broker, topics, and decisions about transactions.

Owns the shell's part in a few lines (what is proposed, when answers leave, answers that are held
back), elections, and messages that are lost, doubled, late. The core is the shipped one.
`group_programs.py` uses this world: members, and what they believe.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

from quiverlog.core.groups.coordinator import Coordinator
from quiverlog.core.groups.group import Answer, Heartbeat
from quiverlog.core.groups.records import Entry, Kind, Offset, Record, TopicPartition
from quiverlog.errors import QuiverlogError
from quiverlog.types import Now

from .transaction_logs import Leader, Leaders, Log

__all__ = ["TICK_US", "Coordinating", "Decisions", "GroupWorld", "Violation"]

TICK_US: Final = 100_000
"""One step of the world's time."""
LATE: Final = 40
HELD_TICKS: Final = 5
"""Less than programs wait before their next heartbeat."""
STEPS_MAX: Final = 200_000
ROWS: Final = 400
"""Of each partition in the end."""
_RETENTION_MS: Final = 3_600_000
_PREPARE_TICKS: Final = 30


class Violation(AssertionError):
    """A promise is broken."""


class GroupWorld:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 0
        self.chaos = True
        self._queue: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0
        self._topic_count = 0
        self._names: dict[str, tuple[bytes, int]] = {}
        self._ids: dict[bytes, int] = {}
        for name in ("a", "b", "c"):
            self.make_topic(name, self.rng.randint(1, 4))
        self.coordinators = Leaders(self, Log(), Coordinating)
        self.decisions = Decisions(self)
        self.programs: list[Any] = []
        # What is promised: a commit that was answered; rows that some member has read.
        self.acknowledged: dict[tuple[str, TopicPartition], int] = {}
        self.read: dict[tuple[str, TopicPartition], int] = {}
        # Of transactions: up to where there is output.
        self.output: dict[tuple[str, TopicPartition], int] = {}

    def all(self) -> Sequence[Leaders]:
        return [self.coordinators]

    def after(self, delay: int, what: Callable[..., None], *args: Any) -> None:
        self._number += 1
        heapq.heappush(self._queue, (self.now + delay, self._number, what, args))

    def send(self, what: Callable[..., None], *args: Any) -> None:
        """Deliver a message: once, or, in chaos, never, twice, late."""
        count = self.rng.choice((0, 1, 1, 1, 1, 1, 1, 2)) if self.chaos else 1
        for _ in range(count):
            delay = self.rng.choice((1, 1, 2, 3, 5, LATE)) if self.chaos else 1
            self.after(delay, what, *args)

    def run(self, until: int) -> None:
        while self._queue and self._queue[0][0] <= until:
            at, number, what, args = heapq.heappop(self._queue)
            assert at >= self.now
            self.now = at
            if number > STEPS_MAX:
                raise Violation("it does not come to rest")
            what(*args)
        self.now = until

    # --- topics --------------------------------------------------------------------------------
    def find(self, name: str) -> tuple[bytes, int] | None:
        return self._names.get(name)

    def partitions(self, topic_id: bytes) -> int:
        return self._ids.get(topic_id, 0)

    def make_topic(self, name: str, partitions: int) -> None:
        """Make it, anew where there is one, or give it more partitions."""
        before = self._names.get(name)
        if before is not None and before[1] >= partitions:
            del self._ids[before[0]]
            before = None
        if before is None:
            self._topic_count += 1
            before = self._topic_count.to_bytes(16, "big"), 0
        self._names[name] = before[0], partitions
        self._ids[before[0]] = partitions

    def change_topic(self) -> None:
        name = self.rng.choice("abc")
        self.make_topic(name, self.rng.randint(1, 4))
        for one in self.coordinators.known:
            one.topics_changed(name)

    # --- what is promised ----------------------------------------------------------------------
    def take(self, taker: Any, partition: TopicPartition) -> None:
        """One member of a group at a time believes to have a partition."""
        for one in self.programs:
            is_other = one is not taker and one.group == taker.group
            if is_other and partition in one.owned and one.is_valid():
                raise Violation(f"{one.number} and {taker.number} of {one.group}: {partition}")

    def check_offsets(self) -> None:
        """Committed offsets of a partition never go back."""
        newest: dict[tuple[str, bytes], int] = {}
        for entry in self.coordinators.log.rows:
            record = entry.content
            if record.kind is Kind.OFFSET and not record.is_state and record.value is not None:
                assert isinstance(record.value, Offset)
                key = record.group, record.key
                if record.value.offset < newest.get(key, 0):
                    raise Violation(f"{key}: {record.value.offset} after {newest[key]}")
                newest[key] = record.value.offset


class Coordinating(Leader):
    def __init__(self, world: GroupWorld, log: Log) -> None:
        super().__init__(world, log)
        self.world: GroupWorld = world
        self._booted = world.rng.randrange(1_000, 1_000_000)
        self._parks = world.rng.random() < 0.5
        self.core = Coordinator()
        self.is_serving = False
        self.fences: list[Any] = []
        # (group, member) -> the reply that is held back.
        self._held: dict[tuple[str, bytes], tuple[int, Any]] = {}
        self._is_snapshotting = False
        # Appends of which nothing was stored, as on a full disk: it goes on serving.
        self._refusals = 0
        for offset in range(log.start, len(self.rows)):
            self.core.apply(offset, self.rows[offset].content)
        world.after(2, self._serve)

    @property
    def moment(self) -> Now:
        now = self.world.now
        return Now((now + self._booted) * TICK_US, now * TICK_US)

    def _serve(self) -> None:
        if not self.is_leader:
            return
        self.core.begin(self.moment)
        self.is_serving = True
        self._propose(self.core.topics_changed(None, self.world, self.moment))
        self._tick()

    @property
    def is_answering(self) -> bool:
        return self.is_serving and self.is_leader

    def _tick(self) -> None:
        if not self.is_answering:
            return
        if self.world.chaos and self.world.rng.random() < 0.02:
            self._refuse()
        due_us = self.core.next_us()
        while due_us is not None and due_us <= self.moment.mono_us:
            ticked = self.core.tick(self.world, self.moment)
            self.fences += ticked.fences
            self._propose(ticked.records)
            due_us = self.core.next_us()
        for key in self.core.take_woken():
            if key in self._held:
                self._wake(*key)
        for key, (until, _) in list(self._held.items()):
            if until <= self.world.now:
                self._wake(*key, is_over=True)
        if self.world.now % 10 == 0:
            for one in self.core.unsettled(self.moment):
                self._resolve(one)
        if self.world.now % 50 == 0:
            self._propose(self.core.sweep(self.world, self.moment, _RETENTION_MS))
        self.world.after(1, self._tick)

    def _refuse(self) -> None:
        """Nothing of what is proposed is stored."""
        self._refusals += 1
        self._is_snapshotting = False
        tail, self.tail = self.tail, []
        for entry in tail:
            if entry.then is not None:
                entry.then(None)
        # What changed while it could not be recorded.
        self._propose(self.core.topics_changed(None, self.world, self.moment))

    def topics_changed(self, name: str) -> None:
        if self.is_answering:
            self._propose(self.core.topics_changed([name], self.world, self.moment))

    def snapshot(self) -> None:
        """The log begins with it when its end is safe."""
        if self.is_answering and not self._is_snapshotting:
            self._is_snapshotting = True
            self._snapshot_piece(self.core.capture(), self.end, self._refusals)

    def _snapshot_piece(self, records: Iterator[Record], begin: int, refusals: int) -> None:
        if not self.is_answering or refusals != self._refusals:
            return
        for record in islice(records, self.world.rng.choice((1, 1, 4))):
            is_end = record.kind is Kind.SNAPSHOT_END
            self._is_snapshotting = not is_end
            self.append(record, partial(self._trim, begin) if is_end else None)
        if self._is_snapshotting:
            self.world.after(1, self._snapshot_piece, records, begin, refusals)

    def _trim(self, begin: int, offset: int | None) -> None:
        if offset is not None:
            self.log.start = max(self.log.start, begin)

    def _propose(self, records: Iterable[Record], then: Callable[[], None] | None = None) -> None:
        """`then` is called when all are safe and applied; never, where that is not known."""
        records = list(records)
        for number, record in enumerate(records):
            self.core.pend(record)
            last = then if number == len(records) - 1 else None
            self.append(record, partial(self._safe, record, last))

    def _safe(self, record: Record, then: Callable[[], None] | None, offset: int | None) -> None:
        if offset is None:
            self.is_serving = not self.is_broken
            self.core.drop_pending()
            return
        self.core.apply(offset, record)
        if then is not None:
            then()

    def _when_safe(self, then: Callable[[], None]) -> None:
        """Answer behind all that is proposed."""
        if not self.tail:
            then()
            return
        last = self.tail[-1]

        def both(offset: int | None) -> None:
            if last.then is not None:
                last.then(offset)
            if offset is not None:
                then()

        self.tail[-1] = last._replace(then=both)

    def _answer(self, records: list[Record], reply: Any, *answer: Any) -> None:
        self._propose(records)
        self._when_safe(lambda: self.world.send(reply, *answer))

    # --- questions -----------------------------------------------------------------------------
    def heartbeat(self, beat: Heartbeat, reply: Any) -> None:
        if not self.is_answering:
            return
        try:
            answer = self.core.heartbeat(beat, self.world, self.moment)
        except QuiverlogError as error:
            self._answer([], reply, None, error)
            return
        assert not answer.note, answer.note
        # Of the member's earlier one: it does not wait for its answer any more.
        self._held.pop((beat.group, beat.member_id), None)
        self._beaten(beat.group, beat.member_id, answer, reply)

    def _beaten(self, group: str, member_id: bytes, answer: Answer, reply: Any) -> None:
        if answer.may_wait and self._parks and not answer.records:
            until = self.world.now + self.world.rng.randint(1, HELD_TICKS)
            self._held[group, member_id] = until, reply
            return
        self._answer(answer.records, reply, answer, None)

    def _wake(self, group: str, member_id: bytes, *, is_over: bool = False) -> None:
        until, reply = self._held.pop((group, member_id))
        answer = self.core.wake(group, member_id, self.moment)
        if answer is None:
            return
        if answer.may_wait and not answer.records and not is_over:
            self._held[group, member_id] = until, reply
        else:
            self._answer(answer.records, reply, answer, None)

    def commit(
        self, group: str, member_id: bytes, epoch: int, entries: list[Entry], reply: Any
    ) -> None:
        if not self.is_answering:
            return
        try:
            done = self.core.commit(group, member_id, epoch, entries, self.world, self.moment)
        except QuiverlogError as error:
            self._answer([], reply, [error] * len(entries))
            return
        self._answer(done.records, reply, done.errors)

    def fetch(self, group: str, partitions: list[TopicPartition], reply: Any) -> None:
        if self.is_answering:
            self._answer([], reply, self.core.fetch(group, partitions, self.world))

    def prepare(self, group: str, args: tuple[Any, ...], reply: Any) -> None:
        if not self.is_answering:
            return
        try:
            done = self.core.prepare(group, *args, self.world, self.moment)
        except QuiverlogError as error:
            self._answer([], reply, error)
            return
        self._answer(done.records, reply, None)

    def settle(
        self, group: str, args: tuple[str, int, int, bytes], attempt: int | None, reply: Any
    ) -> None:
        if self.is_answering:
            records = self.core.settle(group, *args, self.moment, attempt=attempt)
            self._answer(records, reply)

    def _resolve(self, one: Any) -> None:
        """RESOLVE_STAGED; the answer is at hand here."""
        pending = one.pending
        key = one.transactional_id, pending.epoch, pending.sequence
        found = self.world.decisions.resolve(*key)
        if found is not None:
            self._propose(self.core.settle(one.group, *key, found, self.moment))


class Decisions:
    """The coordinator of transactions: one that may forget what it is about, no more."""

    def __init__(self, world: GroupWorld) -> None:
        self._world = world
        self._epochs: dict[str, int] = {}
        self._decided: dict[tuple[str, int, int], bytes] = {}
        self._last: dict[str, int] = {}
        self._attempt = 0
        self._newest: dict[str, int] = {}

    def open(self, tid: str) -> tuple[int, int]:
        """Return a new epoch, and the next sequence."""
        self._epochs[tid] = epoch = self._epochs.get(tid, 0) + 1
        return epoch, self._last.get(tid, -1) + 1

    def resolve(self, tid: str, epoch: int, sequence: int) -> bytes | None:
        """Return the digest that was decided, nothing where none is ever, None while it may be."""
        decided = self._decided.get((tid, epoch, sequence))
        if decided is not None:
            return decided
        is_over = epoch < self._epochs[tid] or sequence <= self._last.get(tid, -1)
        return b"" if is_over else None

    def commit(
        self, key: tuple[str, int, int], digest: bytes, who: tuple[str, bytes, int],
        entries: list[tuple[TopicPartition, int, int]], reply: Any,
    ) -> None:  # fmt: skip
        """`entries`: the rows of each partition that the output is made of."""
        tid, epoch, _ = key
        if epoch != self._epochs[tid]:
            return
        if key in self._decided:
            self._world.send(reply, self._decided[key] == digest)
            return
        self._attempt += 1
        self._newest[tid] = attempt = self._attempt
        group, member_id, member_epoch = who
        if not entries:
            # Nothing of it concerns the group: what an earlier try has prepared is not decided.
            self._prepared(key, digest, attempt, group, entries, reply, None)
            return
        offsets = [Entry(*one, end, end % 7, "") for one, _, end in entries]
        args = (*key, digest, attempt, member_id, member_epoch, offsets)
        done = partial(self._prepared, key, digest, attempt, group, entries, reply)
        self._world.coordinators.ask("prepare", group, args, done)
        self._world.after(_PREPARE_TICKS, self._failed, key, attempt, group, reply)

    def _is_newest(self, key: tuple[str, int, int], attempt: int) -> bool:
        tid, epoch, _ = key
        is_open = epoch == self._epochs[tid] and key not in self._decided
        return is_open and self._newest[tid] == attempt

    def _prepared(
        self, key: tuple[str, int, int], digest: bytes, attempt: int, group: str,
        entries: list[tuple[TopicPartition, int, int]], reply: Any, error: QuiverlogError | None,
    ) -> None:  # fmt: skip
        if not self._is_newest(key, attempt):
            return
        # COUNT_STAGED may refuse, too.
        if error is not None or (self._world.chaos and self._world.rng.random() < 0.2):
            self._failed(key, attempt, group, reply)
            return
        for partition, first, end in entries:
            place = group, partition
            if self._world.output.get(place, 0) != first:
                raise Violation(f"{place}: {first} after {self._world.output.get(place, 0)}")
            self._world.output[place] = end
        self._decided[key] = digest
        self._last[key[0]] = key[2]
        self._world.send(reply, True)
        if entries and (not self._world.chaos or self._world.rng.random() < 0.7):
            self._settle(key, digest, None, group, set())

    def _failed(self, key: tuple[str, int, int], attempt: int, group: str, reply: Any) -> None:
        if not self._is_newest(key, attempt):
            return
        self._newest[key[0]] = -1
        self._world.send(reply, False)
        # It may die before it has them settled.
        if self._world.rng.random() < 0.5:
            self._settle(key, b"", attempt, group, set())

    def _settle(
        self, key: tuple[str, int, int], digest: bytes, attempt: int | None, group: str,
        done: set[bool],
    ) -> None:  # fmt: skip
        if done:
            return
        args = (*key, digest)
        self._world.coordinators.ask("settle", group, args, attempt, lambda: done.add(True))
        self._world.after(20, self._settle, key, digest, attempt, group, done)
