"""Coordinator, staging partitions and targets of transactions, as their cores run in brokers.

Owns the shells' part in a few lines (what is proposed, and when answers leave), power failures, and
messages that are lost, doubled, late. The machines are the shipped ones.
`transaction_programs.py` uses this world.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from quiverlog.batch.header import BatchHeader
from quiverlog.core.partition.publishes import Publishes
from quiverlog.core.transactions.coordinator import Coordinator, Resolved, Standings
from quiverlog.core.transactions.records import Committed, Part, Record, digest_of
from quiverlog.core.transactions.records import End as CommittedEnd
from quiverlog.core.transactions.staged import AttemptRange, Done, Key, Known, New, Staged
from quiverlog.core.transactions.staged_rows import DoneRow, End, PublishRow, StagedRow
from quiverlog.errors import OutOfOrderSequence, QuiverlogError, UnknownTransactionalId
from quiverlog.node.transactions.queues import Item, Piece, Publish, Queues
from quiverlog.types import Durability, Now, PublishId

from .transaction_logs import Leader, Leaders, Log

__all__ = ["Coordinating", "Name", "Staging", "Target", "TransactionWorld", "Violation"]

TARGETS: Final = 3
STAGING: Final = 2
TICK_US: Final = 1_000_000
"""One step of the world's time."""
LATE: Final = 40
STEPS_MAX: Final = 120_000
TIMEOUT_MS: Final = 120_000
SINGLE_USE_TICKS: Final = 150
"""An hour, for the core: ids of single use go so long after their commit."""
EXPIRY_TICKS: Final = 300
_SWEEP_TICKS: Final = 15
_CLUSTER: Final = 7


class Violation(AssertionError):
    """A promise is broken."""


class Name(NamedTuple):
    """Of a staged batch. `place`: its partition of `__staged`."""

    key: Key
    instance: bytes
    attempt: bytes
    task: int
    batch: int
    place: int


class TransactionWorld:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 0
        self.chaos = True
        self._queue: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0
        self._steps = 0
        # Batches that a failure of all machines has taken; and those of decided transactions,
        # which were not as safe as that asks for.
        self.gone: set[Name] = set()
        self.whole: set[tuple[int, Log]] = set()
        self.excused: set[Name] = set()
        # What was ever staged.
        self.staged: dict[Name, StagedRow] = {}
        # Records that an operator has asked for.
        self.commanded: list[Record] = []
        self.coordinators = Leaders(self, Log(), Coordinating)
        self.staging = [
            Leaders(self, Log(), lambda w, log, i=i: Staging(w, log, i)) for i in range(STAGING)
        ]
        self.targets = [
            Leaders(self, Log(), lambda w, log, i=i: Target(w, log, i)) for i in range(TARGETS)
        ]

    def all(self) -> list[Leaders]:
        return [self.coordinators, *self.staging, *self.targets]

    @property
    def moment(self) -> Now:
        return Now(self.now * TICK_US, self.now * TICK_US)

    def after(self, delay: int, what: Callable[..., None], *args: Any) -> None:
        self._number += 1
        heapq.heappush(self._queue, (self.now + delay, self._number, what, args))

    def rest(self, likelihood: float) -> int:
        """How long a program rests: mostly not at all, at times until its id is forgotten."""
        if not self.chaos or self.rng.random() >= likelihood:
            return 0
        return self.rng.randint(EXPIRY_TICKS + 20, EXPIRY_TICKS + 150)

    def send(self, what: Callable[..., None], *args: Any) -> None:
        """Deliver a message: once, or, in chaos, never, twice, late."""
        count = self.rng.choice((0, 1, 1, 1, 1, 1, 1, 2)) if self.chaos else 1
        for _ in range(count):
            delay = self.rng.choice((1, 2, 3, 5, LATE)) if self.chaos else 1
            self.after(delay, what, *args)

    def run(self, until: int) -> None:
        while self._queue and self._queue[0][0] <= until:
            at, _, what, args = heapq.heappop(self._queue)
            assert at >= self.now
            self.now = at
            self._steps += 1
            if self._steps > STEPS_MAX:
                raise Violation("it does not come to rest")
            what(*args)
        self.now = until

    def fail_power(self, parts: Sequence[Leaders] = ()) -> None:
        """All replicas of these partitions (none named: of all) lose power: what is not flushed may
        be gone."""
        parts = parts or self.all()
        changes = [one.content.change for one in self.coordinators.log.rows]
        decided = {a for one in changes if isinstance(one, Committed) for a in one.attempts}
        self.whole |= self._whole()
        for leaders in parts:
            log = leaders.log
            kept = self.rng.randint(log.flushed, len(log.rows))
            for content in (entry.content for entry in log.rows[kept:]):
                name = content.name if isinstance(content, _Stored | _Row) else None
                if name is None:
                    continue
                # Staged rows are missed before the decision, published ones until all are there.
                if isinstance(content, _Stored) and (content.header.producer_id, log) in self.whole:
                    self.excused.add(name)
                elif isinstance(content, _Row):
                    self.gone.add(name)
                    self.excused.update({name} if name.attempt in decided else ())
            del log.rows[kept:]
        # A deposed leader that was cut off may be alive with what the others have lost.
        survives = self.rng.random() < 0.3
        for leaders in parts:
            deposed = leaders.known[:-1] if survives else []
            leaders.elect(keep_tail=False)
            leaders.known[:-1] = deposed

    def _whole(self) -> set[tuple[int, Log]]:
        """Which publishes a target has wholly: it may have acknowledged them."""
        counts: Counter[tuple[int, int]] = Counter()
        for number, leaders in enumerate(self.targets):
            for entry in leaders.log.rows:
                header = entry.content.header
                counts[header.producer_id, number] += header.row_count
        return {
            (content.producer_id, self.targets[target.partition].log)
            for leaders in self.staging
            for content in (one.content for one in leaders.log.rows)
            if isinstance(content, PublishRow)
            for target in content.targets
            if counts[content.producer_id, target.partition] == target.row_count
        }

    def aim(self, staging: Staging) -> None:
        """Elect another leader while a publish row is on its way, and fail the power after it."""
        leaders = self.staging[staging.number]
        if self.chaos and leaders.present is staging:
            leaders.elect()
            self.after(self.rng.randint(4, 12), self.fail_power)


# --- the coordinator ----------------------------------------------------------------------------
class Coordinating(Leader):
    def __init__(self, world: TransactionWorld, log: Log) -> None:
        super().__init__(world, log)
        self._booted = world.rng.randrange(1_000_000)
        self.wall_ahead = world.rng.choice((0, 0, 0, 30, -400, 400))
        self.core = Coordinator()
        self.is_serving = False
        self._asked: dict[Any, _Asking] = {}
        self._driven: dict[str, int] = {}
        for offset in range(log.start, len(self.rows)):
            self.core.apply(offset, self.rows[offset].content)
        world.after(2, self._serve)

    @property
    def moment(self) -> Now:
        """By this machine's clocks: one that only grows, and one that people set."""
        now = self.world.now
        return Now((now + self._booted) * TICK_US, (now + self.wall_ahead) * TICK_US)

    def _serve(self) -> None:
        if not self.is_leader:
            return
        # The barrier: what it has replayed is on the disks of a majority.
        self.log.flushed = len(self.rows)
        self.core.begin(self.moment)
        self.is_serving = True
        for tid, _ in self.core.to_publish():
            self._drive(tid)
        self._sweep()

    @property
    def is_answering(self) -> bool:
        """Under the lease: a deposed coordinator lacks ids of its successor."""
        return self.is_serving and self.is_leader

    def _propose(self, records: Iterable[Record], then: Callable[[], None] | None) -> None:
        """`then` is called when all are safe and applied; never, where that is not known."""
        records = list(records)
        for number, record in enumerate(records):
            self.core.pend(record)
            is_last = number == len(records) - 1
            self.append(
                record,
                lambda offset, record=record, is_last=is_last: self._safe(
                    offset, record, then if is_last else None
                ),
                flushed=True,
            )

    def _safe(self, offset: int | None, record: Record, then: Callable[[], None] | None) -> None:
        if offset is None:
            self.is_serving = False
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

    # --- questions -----------------------------------------------------------------------------
    def open(self, tid: str, instance: bytes, single_use: bool, reply: Any) -> None:
        if not self.is_answering:
            return
        try:
            opening = self.core.open(tid, instance, "c", TIMEOUT_MS, single_use, self.moment)
        except QuiverlogError as error:
            refused: Any = error
            self._when_safe(lambda: self.world.send(reply, refused, -1, -1))
            return
        self.core.sign_of_life(tid, self.moment, opens=bool(opening.records))
        answer = (None, opening.epoch, opening.last_sequence)
        if opening.records:
            self._propose(opening.records, lambda: self.world.send(reply, *answer))
        elif self.core.is_waiting_to_open(tid):
            self._when_safe(lambda: self.world.send(reply, *answer))
        else:
            self.world.send(reply, *answer)

    def commit(
        self, tid: str, epoch: int, sequence: int, attempts: dict[bytes, dict[int, Any]], reply: Any
    ) -> None:
        """`attempts`: staged partition -> (first offset, next offset, rows), by attempt."""
        if not self.is_answering:
            return
        asking = _Asking(tid, epoch, sequence, attempts, reply)
        if not self._may_commit(asking):
            return
        asking.left = {number for parts in attempts.values() for number in parts}
        for number in list(asking.left):
            ranges = [
                AttemptRange(attempt, rows, first, end)
                for attempt, parts in attempts.items()
                for at, (first, end, rows) in parts.items()
                if at == number
            ]
            key = Key(tid, epoch, sequence)
            staging = self.world.staging[number]
            staging.ask("count", key, ranges, lambda n, ok, a=asking: self._counted(a, n, ok))
        if not asking.left:
            self._decide(asking)

    def _may_commit(self, asking: _Asking) -> bool:
        """Answer where it is decided already, or refused."""
        tid, reply = asking.tid, asking.reply
        try:
            standing = self.core.check_commit(tid, asking.epoch, asking.sequence, asking.digest)
        except QuiverlogError as error:
            refused: Any = error
            self._when_safe(lambda: self.world.send(reply, refused))
            return False
        self.core.sign_of_life(tid, self.moment)
        if standing.kind is Standings.COMMITTED_BEFORE:
            self._when_safe(lambda: self.world.send(reply, None))
        return standing.kind is Standings.NEW

    def _counted(self, asking: _Asking, number: int, is_whole: bool) -> None:
        if not self.is_answering or number not in asking.left:
            return
        if not is_whole:
            asking.left = {-1}
            # Rows are gone, too, where the same commit has been decided meanwhile, and published.
            if self._may_commit(asking):
                self.world.send(asking.reply, LOST)
            return
        asking.left.discard(number)
        if not asking.left:
            self._decide(asking)

    def _decide(self, asking: _Asking) -> None:
        # The answers are about the past: all is looked at again.
        if not self._may_commit(asking):
            return
        names = list(asking.attempts)
        parts: dict[int, list[Any]] = defaultdict(lambda: [1 << 60, 0, 0, []])
        for index, attempt in enumerate(names):
            for number, (first, end, rows) in asking.attempts[attempt].items():
                part = parts[number]
                part[0], part[1] = min(part[0], first), max(part[1], end)
                part[2] += rows
                part[3].append(index)
        records = self.core.commit(
            asking.tid,
            asking.epoch,
            asking.sequence,
            asking.digest,
            names,
            [Part(number, *part[:3], tuple(part[3])) for number, part in sorted(parts.items())],
            Durability.REPLICATED,
            Durability.REPLICATED,
            self.moment,
        )

        def decided() -> None:
            self.world.send(asking.reply, None)
            self._drive(asking.tid)

        self._propose(records, decided)

    # --- publishing ----------------------------------------------------------------------------
    def _drive(self, tid: str) -> None:
        state = self.core.applied.get(tid)
        if not self.is_serving or state is None or state.publishing is None:
            return
        decided = state.publishing
        done: set[int] = set()
        ends: list[CommittedEnd] = []

        def published(number: int, some: Iterable[End]) -> None:
            now = self.core.applied.get(tid)
            if number in done or not self.is_serving or now is None:
                return
            if now.publishing is not decided:
                return  # It was forgotten. The next life of the id may have this sequence, too.
            done.add(number)
            ends.extend(CommittedEnd(one.topic_id, one.partition, one.end_offset) for one in some)
            if len(done) == len(decided.parts):
                self._propose(self.core.published(tid, decided.sequence, ends, 2), None)

        def again() -> None:
            now = self.core.applied.get(tid)
            if self.is_serving and now is not None and now.publishing is decided:
                for part in decided.parts:
                    if part.staged_partition not in done:
                        self.world.staging[part.staged_partition].ask(
                            "publish",
                            Key(tid, decided.epoch, decided.sequence),
                            [decided.attempts[i] for i in part.attempts],
                            part.first_offset,
                            part.next_offset,
                            published,
                        )
                self.world.after(15, again)

        again()
        if not decided.parts:
            self._propose(self.core.published(tid, decided.sequence, [], 2), None)

    def abort(self, tid: str, epoch: int, sequence: int, reply: Any) -> None:
        if not self.is_answering:
            return
        try:
            aborting = self.core.abort(tid, epoch, sequence, force=False)
        except QuiverlogError as error:
            refused: Any = error
            self._when_safe(lambda: self.world.send(reply, refused, False))
            return
        answer = (None, aborting.had_committed)
        if aborting.records:
            self._propose(aborting.records, lambda: self.world.send(reply, *answer))
        else:
            self._when_safe(lambda: self.world.send(reply, *answer))

    def resolve(self, key: Key, pins_front: bool, reply: Any) -> None:
        if not self.is_serving:
            return
        found = self.core.resolve(*key, self.moment, pins_front=pins_front)
        if found.records:
            self._propose(found.records, lambda: self.world.send(reply, found.standing))
        else:
            # "Dead" may rest on a Closed that is proposed, by a coordinator that is deposed.
            self._when_safe(lambda: self.world.send(reply, found.standing))

    # --- by themselves -------------------------------------------------------------------------
    def reap(self, tid: str) -> None:
        """As an operator: close whatever epoch is open."""
        if self.is_serving:
            with suppress(UnknownTransactionalId):
                self._propose(self.core.abort(tid, 0, 0, force=True).records, None)

    def snapshot(self) -> None:
        if not self.is_serving:
            return
        at = self.end

        def trim() -> None:
            if self.is_leader:
                self.log.start = max(self.log.start, at)

        self._propose(self.core.capture(), trim)

    def _sweep(self) -> None:
        if self.is_serving:
            self._propose(self.core.expired(self.moment, EXPIRY_TICKS * 1000), None)
            self.world.after(_SWEEP_TICKS, self._sweep)

    def forget(self, tid: str) -> None:
        """By command, whatever the id is used for now."""
        if not self.is_answering:
            return
        with suppress(UnknownTransactionalId):
            records = self.core.forget(tid)
            self.world.commanded += records
            self._propose(records, None)


LOST: Final = QuiverlogError("staged rows are missing")


@dataclass(eq=False)
class _Asking:
    tid: str
    epoch: int
    sequence: int
    attempts: dict[bytes, dict[int, Any]]
    reply: Any
    left: set[int] = field(default_factory=set)

    @property
    def digest(self) -> bytes:
        rows = {a: sum(p[2] for p in parts.values()) for a, parts in self.attempts.items()}
        return digest_of(rows.items())


# --- staging ------------------------------------------------------------------------------------
class Staging(Leader):
    def __init__(self, world: TransactionWorld, log: Log, number: int) -> None:
        super().__init__(world, log)
        self.number = number
        epoch = self.epoch
        self.core = Staged(lambda count: PublishId(number, epoch, count).pack())
        self.queues = Queues()
        self.is_serving = False
        self._waiters: dict[Key, list[Any]] = defaultdict(list)
        for offset in range(log.start, len(self.rows)):
            content = self.rows[offset].content
            self.core.apply(offset, content.row if isinstance(content, _Row) else content)
        world.after(2, self._serve)

    def _serve(self) -> None:
        if not self.is_leader:
            return
        # Rows of publishes that an earlier leader had proposed are flushed before their forward.
        self.log.flushed = len(self.rows)
        self.core.begin(self.world.moment.mono_us)
        self.is_serving = True
        for row in self.core.unfinished():
            self._forward(row)
        self.world.after(20, self._ask)

    # --- clients -------------------------------------------------------------------------------
    def stage(self, name: Name, row: StagedRow, reply: Any) -> None:
        """`name`: of the batch; an idempotent producer sends it again."""
        if not self.is_serving:
            return
        content = _Row(name, row)
        for offset, entry in enumerate([*self.rows, *self.tail]):
            if entry.content == content:
                if offset < len(self.rows):
                    self.world.send(reply, self.number, offset)
                return
        if name in self.world.gone:
            self.world.send(reply, self.number, None)  # OUT_OF_ORDER_SEQUENCE: the attempt fails.
            return
        self.world.staged[name] = row

        def safe(offset: int | None) -> None:
            if offset is None:
                self.is_serving = False
            else:
                self.world.send(reply, self.number, offset)

        offset = self.append(content, safe)
        self.core.stage(offset, row, self.world.moment.mono_us)

    # --- coordinators --------------------------------------------------------------------------
    def count(self, key: Key, ranges: list[AttemptRange], reply: Any) -> None:
        if not self.is_serving or not self.is_leader:
            return
        counted = self.core.count(key, ranges, len(self.rows))
        self.world.send(reply, self.number, counted.is_whole)

    def publish(self, key: Key, attempts: list[bytes], first: int, end: int, reply: Any) -> None:
        if not self.is_serving:
            return
        answer = self.core.publish(
            key, attempts, first, end, Durability.REPLICATED, -1, self.log.start
        )
        match answer:
            case Done(row):
                if self.is_leader:
                    self.world.send(reply, self.number, () if row is None else row.ends)
            case Known():
                self._waiters[key].append(reply)
            case New(row, _missing):
                self._waiters[key].append(reply)
                self.core.pend(row)
                if self.world.rng.random() < 0.03:
                    self.world.after(1, self.world.aim, self)
                self.append(row, lambda offset: self._publish_safe(offset, row), flushed=True)

    def _publish_safe(self, offset: int | None, row: PublishRow) -> None:
        if offset is None:
            self.is_serving = False
            return
        self.core.apply(offset, row)
        self._forward(row)

    def _forward(self, row: PublishRow) -> None:
        targets = {
            (one.topic_id, one.partition): [Item(*item) for item in one.rows()]
            for one in row.targets
        }
        if not targets:
            self._finish(row, ())
            return
        publish = Publish(
            row.producer_id,
            row.durability,
            targets,
            lambda done: self._finish(
                row,
                [
                    End(topic, partition, done.ends.get((topic, partition), -1), 0)
                    for topic, partition in done.targets
                ],
            ),
        )
        self.queues.add(self, publish, self.world.moment.mono_us)
        self._pump()

    def _pump(self) -> None:
        while piece := self.queues.take(self.world.moment.mono_us):
            end = min(piece.end, piece.first + self.world.rng.randint(1, 3))
            sent = piece.items[piece.first : end]
            begin = piece.sequence
            self.queues.loaded(piece, len(sent), len(sent))
            rows = [
                (_header(piece.publish.producer_id, item), self.rows[item.offset].content.name)
                for item in sent
            ]
            answered: list[bool] = []
            target = self.world.targets[piece.key[1]]
            target.ask("forward", rows, begin, partial(self._forwarded, piece, answered))
            self.world.after(25, self._late, piece, answered)
        while self.queues.finished:
            done = self.queues.finished.pop(0)
            done.then(done)
        at = self.queues.next_us()
        if at:
            self.world.after(max(1, at // TICK_US - self.world.now + 1), self._pump)

    def _late(self, piece: Piece, answered: list[bool]) -> None:
        if not answered:
            self._forwarded(piece, answered, LOST, None)

    def _forwarded(
        self,
        piece: Piece,
        answered: list[bool],
        error: QuiverlogError | None,
        end_offset: int | None,
    ) -> None:
        if answered:
            return
        answered.append(True)
        now_us = self.world.moment.mono_us
        if isinstance(error, OutOfOrderSequence):
            self.queues.go_back(piece, error.details["next_sequence"], error, now_us)
        elif error is not None:
            self.queues.failed(piece, error, now_us)
        else:
            assert end_offset is not None
            level = int(Durability.REPLICATED)
            self.queues.acknowledged(piece, end_offset, level, now_us)
            is_last = piece.first + piece.item_count == len(piece.items)
            if self.world.chaos and not is_last and self.world.rng.random() < 0.05:
                self.world.fail_power([self.world.targets[piece.key[1]]])
        self._pump()

    def _finish(self, row: PublishRow, ends: Iterable[End]) -> None:
        if not self.is_serving:
            return
        done = DoneRow(row.transactional_id, row.epoch, row.sequence, tuple(ends), 2)
        key = Key(row.transactional_id, row.epoch, row.sequence)
        self.core.pend(done)

        def safe(offset: int | None) -> None:
            if offset is None:
                self.is_serving = False
                return
            self.core.apply(offset, done)
            self._trim()

        self.append(done, safe)
        for reply in self._waiters.pop(key, []):
            self.world.send(reply, self.number, done.ends)

    # --- giving up -----------------------------------------------------------------------------
    def _ask(self) -> None:
        if not self.is_serving or not self.is_leader:
            return
        front = self.core.front()
        pins = self.world.chaos and self.world.rng.random() < 0.1
        asked = self.core.to_ask(self.world.moment.mono_us, 100)
        if front is not None and (pins or self.world.rng.random() < 0.3):
            asked.append(front)
        for key in asked:
            self.world.coordinators.ask(
                "resolve", key, pins and key == front, lambda s, k=key: self._resolved(k, s)
            )
        self.world.after(8 if self.world.chaos else 20, self._ask)

    def _resolved(self, key: Key, standing: Resolved) -> None:
        if self.is_serving and standing in (Resolved.DEAD, Resolved.PUBLISHED):
            self.core.give_up(key)
            self._trim()

    def _trim(self) -> None:
        # A deposed leader trims its own copy only. What is not safe stays.
        if self.is_leader:
            self.log.start = max(self.log.start, min(self.core.trim_offset(), len(self.rows)))
            # A log that is recovered ends at its start at the least.
            self.log.flushed = max(self.log.flushed, self.log.start)


class _Row(NamedTuple):
    """A row of kind 0 in a log of `__staged`, with the name of its batch."""

    name: Name
    row: StagedRow


class _Stored(NamedTuple):
    """A batch in a target's log."""

    header: BatchHeader
    name: Name


def _header(producer_id: int, item: Item) -> BatchHeader:
    return BatchHeader(
        0, 0, 0, 0, 1, 0, _CLUSTER, producer_id, item.base_sequence, item.row_count, 1, 0, 0, 0
    )


class Target(Leader):
    def __init__(self, world: TransactionWorld, log: Log, number: int) -> None:
        super().__init__(world, log)
        self.number = number
        self.core = Publishes(_CLUSTER)
        self._row_end = 0
        for entry in self.rows:
            self.core.record(entry.content.header, self._row_end)
            self._row_end += entry.content.header.row_count

    def forward(self, rows: list[tuple[BatchHeader, Name]], begin: int, reply: Any) -> None:
        if self.is_broken:
            return
        try:
            stored = self.core.stored([header for header, _ in rows], begin)
        except OutOfOrderSequence as error:
            self.world.send(reply, error, None)
            return
        new = rows[stored.batch_count :]
        for header, name in new:
            self.core.admit(header, self._row_end)
            self.append(_Stored(header, name), None)
            self._row_end += header.row_count
        self.core.commit_admitted()
        end = self._row_end

        def safe(offset: int | None) -> None:
            if offset is not None:
                self.world.send(reply, None, end)

        if not self.tail:
            safe(0)  # True for ever, also where another leads by now.
            return
        last = self.tail[-1]

        def both(offset: int | None) -> None:
            if last.then is not None:
                last.then(offset)
            safe(offset)

        self.tail[-1] = last._replace(then=both)
