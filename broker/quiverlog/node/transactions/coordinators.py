"""The coordinators of this broker: what clients ask of them, and what they have published.

    COMMIT: look -> count the staged rows -> look again -> record -> answer, and publish
    what is recorded as committed is published until all its parts have answered, for ever

Invariant: an answer is sent when everything that it rests on is safe.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

import pyarrow as pa

from quiverlog.batch.checksum import crc32c
from quiverlog.batch.header import BatchHeader
from quiverlog.core.controller.internal_topics import INTERNAL_TOPICS, STAGED, TRANSACTIONS
from quiverlog.core.controller.topic_image import TopicImage
from quiverlog.core.transactions.coordinator import Coordinator, Resolving, Standings
from quiverlog.core.transactions.records import (
    Committed,
    End,
    Last,
    Part,
    Record,
    SnapshotState,
    decode_row,
    digest_of,
    encode_row,
)
from quiverlog.errors import (
    CoordinatorNotReady,
    InvalidRequest,
    QuiverlogError,
    StagedRowsLost,
    TransactionBusy,
    UnknownTopicId,
)
from quiverlog.node.partitions.replica import Replica
from quiverlog.node.runtime.events import AT_ONCE_US
from quiverlog.node.runtime.jobs import Starter, Then
from quiverlog.node.runtime.metadata_view import MetadataView
from quiverlog.node.runtime.metrics import NodeMetrics
from quiverlog.node.runtime.outbox import Outbox
from quiverlog.node.runtime.tasks import Call, Future, Outcome, Steps, Wait, gather
from quiverlog.node.transactions.hosted import Hosted, Hosting
from quiverlog.node.transactions.kinds import read_batch
from quiverlog.node.transactions.leaders import Leaders
from quiverlog.node.transactions.replay import Read
from quiverlog.types import Durability, Now
from quiverlog.wire.transaction_messages import (
    AbortTransactionRequest,
    AbortTransactionResponse,
    CommitTransactionRequest,
    CommitTransactionResponse,
    CountedAttempt,
    CountStagedRequest,
    CountStagedResponse,
    OpenTransactionRequest,
    OpenTransactionResponse,
    PublishRequest,
    PublishResponse,
    StagedTransaction,
)

__all__ = ["Coordinators", "Shown", "TransactionsKind"]

PUBLISHES_MAX: Final = 64
"""PUBLISH requests under way: rows and counts of the same link find their places."""
PUBLISH_WAIT_MS: Final = 1_000
"""A staging leader holds the first PUBLISH for this. It goes on without one: those that follow ask
whether it is done, and are answered at once, so that no target that is away keeps a place."""
PUBLISH_BACKOFF_MS_MIN: Final = 50
PUBLISH_BACKOFF_MS_MAX: Final = 2_000
COUNT_BACKOFF_MS: Final = 50
COUNTS_AT_ONCE: Final = 16  # Of one COMMIT.
SWEEP_MS: Final = 10_000  # Between two looks for ids that are to be forgotten.
_PARTS_PER_STEP: Final = 500
_STUCK_MAX: Final = 256
_SWEEP_MIN: Final = 256
"""With more moments those of answered commits are taken out: a heap has no cheap removal."""
_TARGET_ROWS_MAX: Final = 2**31 - 1

_Key = tuple[Hosted, str]
_Check = Callable[[Collection[bytes]], None]  # Raises: the client may not write to one.


class TransactionsKind:
    """`__transactions` for `Hosting`."""

    schema: pa.Schema = INTERNAL_TOPICS[TRANSACTIONS].schema
    level = int(INTERNAL_TOPICS[TRANSACTIONS].durability)
    takes_snapshots = True

    def __init__(self, coordinators: Coordinators) -> None:
        self._coordinators = coordinators

    def new_machine(self, replica: Replica, leader_epoch: int) -> Coordinator:
        return Coordinator()

    def row(self, record: Record) -> tuple[int, str, bytes]:
        return encode_row(record)

    def decode(
        self, header: BatchHeader, prefix: memoryview, read: Read
    ) -> list[tuple[int, Record]]:
        columns = read_batch(header, read(header.total_bytes), self.schema).to_pydict()
        rows = zip(columns["kind"], columns["transactional_id"], columns["value"], strict=True)
        return [(header.base_offset + i, decode_row(*row)) for i, row in enumerate(rows)]

    def capture(self, machine: Coordinator) -> Iterator[Record]:
        return machine.capture()

    def serving(self, hosted: Hosted, now: Now) -> None:
        machine = hosted.machine
        assert isinstance(machine, Coordinator)
        machine.begin(now)
        self._coordinators.begin(hosted, machine, now)

    def stopped(self, hosted: Hosted, error: QuiverlogError, now: Now) -> None:
        self._coordinators.stopped(hosted, now)


class _Publishing:
    """A transaction that is decided, until its Published is safe.

    `parts`: those that have not answered; with the pause of each. `waits`: of requests. `since_us`:
    when it was decided, by the clock of people, but for a coordinator whose clock was ahead.
    """

    __slots__ = (
        "committed", "ends", "hosted", "is_over", "level", "parts", "since_us", "tid", "waits",
        "why",
    )  # fmt: skip

    def __init__(self, hosted: Hosted, tid: str, committed: Committed, now: Now) -> None:
        self.since_us = min(committed.now_us, now.wall_us)
        self.hosted = hosted
        self.tid = tid
        self.committed = committed
        self.parts = {part.staged_partition: PUBLISH_BACKOFF_MS_MIN for part in committed.parts}
        self.ends: dict[tuple[bytes, int], int] = {}
        self.level = int(Durability.REPLICATED_FLUSHED)
        self.waits: list[Future] = []
        self.why: QuiverlogError | None = None
        self.is_over = False

    def is_first(self, partition: int) -> bool:
        return self.parts[partition] == PUBLISH_BACKOFF_MS_MIN

    def take(self, response: PublishResponse) -> None:
        for target in response.targets:
            key = target.topic_id, target.partition
            self.ends[key] = max(target.end_offset, self.ends.get(key, -1))
        self.level = min(self.level, int(response.durability))

    def give_up(self, wait: Future, now: Now) -> None:
        # A target may be away for hours, and its client asks again and again.
        if wait in self.waits:
            self.waits.remove(wait)
            wait.set(False, None, now)

    def end(self, is_published: bool, now: Now) -> None:
        assert not self.is_over, "it ends once"
        self.is_over = True
        self.answer(is_published, now)

    def answer(self, is_published: bool, now: Now) -> None:
        waits, self.waits = self.waits, []
        for wait in waits:
            wait.set(is_published, None, now)


class _Counts(NamedTuple):
    """What a COMMIT names of one staging partition."""

    part: Part
    attempts: list[CountedAttempt]


class Shown(NamedTuple):
    """An id as DESCRIBE_TRANSACTIONS shows it. `parts`: staging partitions yet to publish."""

    state: SnapshotState
    silent_ms: int
    is_deciding: bool
    parts: tuple[int, ...]
    why: QuiverlogError | None
    since_us: int


class Coordinators:
    __slots__ = (
        "_deciding", "_expiry_ms", "_hosting", "_later", "_metrics", "_number", "_outbox",
        "_publishing", "_ready", "_serving", "_sweep_at", "_sweep_us", "_under_way", "_view",
        "leaders",
    )  # fmt: skip

    def __init__(
        self,
        view: MetadataView,
        hosting: Hosting,
        leaders: Leaders,
        outbox: Outbox,
        metrics: NodeMetrics,
        expiry_ms: int,
    ) -> None:
        self._view = view
        self._hosting = hosting
        self.leaders = leaders
        hosting.kinds[TRANSACTIONS] = TransactionsKind(self)
        self._outbox = outbox
        self._metrics = metrics
        self._serving: dict[Hosted, Coordinator] = {}
        self._publishing: dict[_Key, _Publishing] = {}
        # Ids whose staged rows are being counted, and how many requests have it done.
        self._deciding: Counter[str] = Counter()
        # Parts that are to be asked now; and what is due later, by time.
        self._ready: deque[tuple[_Publishing, int]] = deque()
        self._under_way = 0
        self._later: list[tuple[int, int, Callable[[Now], None], Future | None]] = []
        self._sweep_at = _SWEEP_MIN
        self._number = 0
        self._sweep_us = 0
        self._expiry_ms = expiry_ms

    def set_expiry(self, expiry_ms: int, _now: Now) -> None:
        self._expiry_ms = expiry_ms

    # --- service -------------------------------------------------------------------------------
    def begin(self, hosted: Hosted, machine: Coordinator, now: Now) -> None:
        assert hosted not in self._serving, "the life before has stopped"
        self._serving[hosted] = machine
        for tid, committed in machine.to_publish():
            self._publish(hosted, tid, committed, now)

    def stopped(self, hosted: Hosted, now: Now) -> None:
        self._serving.pop(hosted, None)
        for key in [key for key in self._publishing if key[0] is hosted]:
            # Its successor goes on with it.
            self._publishing.pop(key).end(False, now)

    def find(self, tid: str) -> Hosted:
        """Raises CoordinatorNotReady, NotLeader."""
        topic = self._topic(TRANSACTIONS)
        return self._hosting.find(topic.topic_id, _partition_of(tid, topic))

    def leader_id(self, tid: str) -> int:
        """Return the broker that coordinates an id; negative: none does now."""
        topic = self._view.image.topics.get(TRANSACTIONS)
        return -1 if topic is None else topic.partitions[_partition_of(tid, topic)].leader_id

    def _topic(self, name: str) -> TopicImage:
        topic = self._view.image.topics.get(name)
        if topic is None:
            raise CoordinatorNotReady(f"there is no {name!r} yet: the first OPEN has it made.")
        return topic

    def _ask(self, tid: str) -> tuple[Hosted, Coordinator]:
        # Under the lease: a coordinator that was deposed would call newer epochs fenced.
        hosted = self.find(tid)
        machine = hosted.serve(under_lease=True)
        assert isinstance(machine, Coordinator)
        return hosted, machine

    # --- time ----------------------------------------------------------------------------------
    def next_us(self) -> int | None:
        if self._ready and self._under_way < PUBLISHES_MAX:
            return AT_ONCE_US
        while self._later and _is_in_vain(self._later[0]):
            heapq.heappop(self._later)
        due = [self._later[0][0]] if self._later else []
        if self._has_ids:
            due.append(self._sweep_us)
        return min(due, default=None)

    @property
    def _has_ids(self) -> bool:
        return any(machine.applied for machine in self._serving.values())

    def run(self, now: Now) -> None:
        while self._later and self._later[0][0] <= now.mono_us:
            _, _, call, _ = heapq.heappop(self._later)
            call(now)
        self._ask_ready(now)
        if self._has_ids and self._sweep_us <= now.mono_us:
            self._sweep_us = now.mono_us + SWEEP_MS * 1000
            self._forget(now)

    def _at(self, due_us: int, call: Callable[[Now], None], ends: Future | None = None) -> None:
        """`ends`: the wait that `call` ends, and without which it is not needed."""
        if len(self._later) >= self._sweep_at:
            self._later = [one for one in self._later if not _is_in_vain(one)]
            heapq.heapify(self._later)
            self._sweep_at = max(_SWEEP_MIN, 2 * len(self._later))
        self._number += 1
        heapq.heappush(self._later, (due_us, self._number, call, ends))

    def _pause(self, due_us: int) -> Starter:
        future = Future()
        self._at(due_us, lambda now: future.set(None, None, now))
        return future.wait

    def _forget(self, now: Now) -> None:
        for hosted, machine in list(self._serving.items()):
            records = machine.expired(now, self._expiry_ms)
            if records and hosted.is_serving:
                try:
                    hosted.propose(records, now, _ignore)
                    self._metrics.transactions["forgotten"] += len(records)
                except QuiverlogError as error:
                    self._outbox.log("warning", "transactional ids are kept", why=error.message)

    # --- OPEN ----------------------------------------------------------------------------------
    def open(self, call: Call, client_id: str) -> Generator[Wait, object, OpenTransactionResponse]:
        request = call.request
        assert isinstance(request, OpenTransactionRequest)
        tid = request.transactional_id
        hosted, machine = self._ask(tid)
        opening = machine.open(
            tid, request.instance, client_id, request.timeout_ms, request.single_use, call.now
        )
        is_waiting = machine.is_waiting_to_open(tid)
        recorded = _recorded(hosted, is_waiting, opening.records, call.now)
        machine.sign_of_life(tid, call.now, opens=bool(opening.records))
        yield recorded
        return OpenTransactionResponse(
            epoch=opening.epoch,
            last_sequence=opening.last_sequence,
            last_committed_us=opening.last_committed_us,
            is_publishing=opening.is_publishing,
        )

    # --- ABORT ---------------------------------------------------------------------------------
    def abort(self, call: Call) -> Generator[Wait, object, AbortTransactionResponse]:
        request = call.request
        assert isinstance(request, AbortTransactionRequest)
        tid = request.transactional_id
        hosted, machine = self._ask(tid)
        if request.forget:
            yield self._forgotten(hosted, tid, machine.forget(tid), call.now)
            return AbortTransactionResponse()
        aborting = machine.abort(tid, request.epoch, request.sequence, force=request.force)
        yield _recorded(hosted, machine.is_waiting(tid), aborting.records, call.now)
        self._metrics.transactions["aborted"] += len(aborting.records)
        return AbortTransactionResponse(outcome=int(aborting.had_committed))

    def _forgotten(self, hosted: Hosted, tid: str, records: list[Record], now: Now) -> Starter:
        future = Future()

        def then(offset: int, error: QuiverlogError | None, now: Now) -> None:
            # Here, whatever becomes of the request: the next commit of the id is published anew.
            if error is None:
                self._metrics.transactions["forgotten"] += 1
                publishing = self._publishing.pop((hosted, tid), None)
                if publishing is not None:
                    self._outbox.log(
                        "warning",
                        "a transaction is forgotten before all its rows were published",
                        transactional_id=tid,
                        sequence=publishing.committed.sequence,
                    )
                    publishing.end(False, now)
            future.set(offset, error, now)

        hosted.propose(records, now, then)
        return future.wait

    # --- COMMIT --------------------------------------------------------------------------------
    def commit(self, call: Call, check: _Check) -> Steps:
        request = call.request
        assert isinstance(request, CommitTransactionRequest)
        tid, deadline_us = request.transactional_id, call.now.mono_us + request.timeout_ms * 1000
        digest = digest_of((one.attempt, one.row_count) for one in request.attempts)
        counts = yield from self._merged(request)
        while True:
            hosted, machine = self._ask(tid)
            standing = machine.check_commit(tid, request.epoch, request.sequence, digest)
            machine.sign_of_life(tid, call.now)
            if standing.kind is Standings.COMMITTED_BEFORE:
                assert standing.last is not None
                yield _recorded(hosted, machine.is_waiting(tid), [], call.now)
                return (yield from self._answer(call, hosted, standing.last, 1, deadline_us))
            if standing.kind is Standings.BUSY:
                if call.now.mono_us >= deadline_us:
                    raise TransactionBusy(
                        f"transaction {request.sequence} of {tid!r} waits until"
                        f" {standing.last and standing.last.sequence} is published."
                    )
                if machine.is_waiting(tid):
                    yield _recorded(hosted, True, [], call.now)
                else:
                    yield self._published(hosted, tid, deadline_us, call.now)
                continue
            refused: QuiverlogError | None = None
            self._deciding[tid] += 1
            try:
                level, targets = yield from self._count(call, hosted, counts, deadline_us)
            except QuiverlogError as error:
                refused = error
            finally:
                self._deciding[tid] -= 1
                assert self._deciding[tid] >= 0
                self._deciding += Counter()  # Without zeros.
            # What was counted is of the past: look again, and decide in the same turn. Rows are
            # missing, too, where the same commit, sent twice, was decided and published.
            if self._ask(tid) != (hosted, machine):
                continue
            standing = machine.check_commit(tid, request.epoch, request.sequence, digest)
            if standing.kind is not Standings.NEW:
                continue
            if refused is not None:
                raise refused
            check(targets)
            records = machine.commit(
                tid,
                request.epoch,
                request.sequence,
                digest,
                [one.attempt for one in request.attempts],
                [one.part for one in counts],
                request.durability,
                level,
                call.now,
            )
            yield self._decided(hosted, records, call.now)
            last = machine.applied[tid].last
            assert last is not None
            return (yield from self._answer(call, hosted, last, 0, deadline_us))

    def _merged(self, request: CommitTransactionRequest) -> Generator[Wait, object, list[_Counts]]:
        """Return what the attempts have in each staging partition."""
        partition_count = len(self._topic(STAGED).partitions)
        found: dict[int, list[CountedAttempt]] = {}
        indexes: dict[int, list[int]] = {}
        done = 0
        for index, one in enumerate(request.attempts):
            for part in one.parts:
                if part.staged_partition >= partition_count:
                    raise InvalidRequest(
                        f"{STAGED} has partitions 0 to {partition_count - 1}, not"
                        f" {part.staged_partition}."
                    )
                found.setdefault(part.staged_partition, []).append(
                    CountedAttempt(one.attempt, part.row_count, part.first_offset, part.next_offset)
                )
                indexes.setdefault(part.staged_partition, []).append(index)
                done += 1
                if done % _PARTS_PER_STEP == 0:
                    yield None
        return [
            _Counts(
                Part(
                    partition,
                    min(one.first_offset for one in attempts),
                    max(one.next_offset for one in attempts),
                    sum(one.row_count for one in attempts),
                    tuple(indexes[partition]),
                ),
                attempts,
            )
            for partition, attempts in sorted(found.items())
        ]

    def _count(
        self, call: Call, hosted: Hosted, counts: Sequence[_Counts], deadline_us: int
    ) -> Generator[Wait, object, tuple[int, set[bytes]]]:
        """Have the staging leaders count; returns the weakest level of rows and decision, topics.
        Raises StagedRowsLost, UnknownTopicId, InvalidRequest; what a leader answers."""
        request = call.request
        assert isinstance(request, CommitTransactionRequest)
        levels, targets = [_decision_level(hosted)], set[bytes]()
        missing = list(counts)
        while missing:
            asked = [
                partial(self._count_one, request, one.part.staged_partition, one.attempts, call.now)
                for one in missing
            ]
            outcomes = yield gather(asked, COUNTS_AT_ONCE, call.now)
            assert isinstance(outcomes, list)
            again: list[_Counts] = []
            for one, outcome in zip(missing, outcomes, strict=True):
                assert isinstance(outcome, Outcome)
                error, response = outcome.error, outcome.result
                if error is None:
                    assert isinstance(response, CountStagedResponse)
                    self._check_counted(one.part.staged_partition, response)
                    levels.append(int(response.durability))
                    targets.update(target.topic_id for target in response.targets)
                elif not isinstance(error, QuiverlogError) or not error.retriable:
                    raise error
                elif call.now.mono_us >= deadline_us:  # NOT_LEADER would be another partition's.
                    raise CoordinatorNotReady(
                        f"{STAGED}-{one.part.staged_partition} could not be asked: {error.message}"
                    )
                else:
                    again.append(one)
            missing = again
            if missing:
                yield self._pause(call.now.mono_us + COUNT_BACKOFF_MS * 1000)
                hosted.serve()  # Raises: the next coordinator counts again.
        assert len(levels) == 1 + len(counts), "each part is counted once"
        return min(levels), targets

    def _count_one(
        self,
        request: CommitTransactionRequest,
        partition: int,
        attempts: list[CountedAttempt],
        now: Now,
        then: Then,
    ) -> None:
        count = CountStagedRequest(
            transactional_id=request.transactional_id,
            epoch=request.epoch,
            sequence=request.sequence,
            attempts=attempts,
        )
        topic_id = self._topic(STAGED).topic_id
        self.leaders.ask_leader(topic_id, partition, count, then, now)

    def _check_counted(self, partition: int, response: CountStagedResponse) -> None:
        if not response.is_whole:
            raise StagedRowsLost(f"rows that are named are not staged in {STAGED}-{partition}.")
        topics = self._view.image.topics_by_id
        for target in response.targets:
            topic = topics.get(target.topic_id)
            if topic is None:
                raise UnknownTopicId(
                    f"there is no topic with id {target.topic_id.hex()} any more, and rows of the"
                    " transaction are for it."
                )
            if target.row_count > _TARGET_ROWS_MAX:
                raise InvalidRequest(
                    f"{target.row_count} rows in {STAGED}-{partition} are for"
                    f" {topic.name}-{target.partition}, the most are {_TARGET_ROWS_MAX}."
                )

    def _decided(self, hosted: Hosted, records: list[Record], now: Now) -> Starter:
        ((tid, change),) = records
        assert isinstance(change, Committed)
        future = Future()

        def then(offset: int, error: QuiverlogError | None, now: Now) -> None:
            # Here, whatever becomes of the request: decided is decided.
            if error is None:
                self._metrics.transactions["committed"] += 1
                if hosted.is_serving:
                    self._publish(hosted, tid, change, now)
            future.set(offset, error, now)

        hosted.propose(records, now, then)
        return future.wait

    def _answer(
        self, call: Call, hosted: Hosted, last: Last, outcome: int, deadline_us: int
    ) -> Generator[Wait, object, CommitTransactionResponse]:
        request = call.request
        assert isinstance(request, CommitTransactionRequest)
        publishing = self._publishing.get((hosted, request.transactional_id))
        if publishing is not None and publishing.committed.sequence != last.sequence:
            publishing = None  # Of a later transaction, which has waited for this one.
        if publishing is None:
            is_published = self._is_published(hosted, request.transactional_id, last.sequence)
        else:
            is_published = not publishing.parts
        if not is_published and request.wait:
            is_published = bool(
                (yield self._published(hosted, request.transactional_id, deadline_us, call.now))
            )
        durability = last.durability
        if is_published and publishing is not None:
            durability = min(durability, publishing.level)
        return CommitTransactionResponse(
            outcome=outcome,
            row_count=last.row_count,
            durability=durability,
            is_published=is_published,
        )

    # --- publishing ----------------------------------------------------------------------------
    def _is_published(self, hosted: Hosted, tid: str, sequence: int) -> bool:
        """By the records: false where another broker coordinates the id by now."""
        machine = self._serving.get(hosted)
        state = None if machine is None else machine.applied.get(tid)
        if state is None:
            return False
        return state.publishing is None or state.publishing.sequence != sequence

    def _published(self, hosted: Hosted, tid: str, deadline_us: int, now: Now) -> Starter:
        """Wait until what is being published of the id is; the result is whether it is."""
        publishing = self._publishing.get((hosted, tid))
        if publishing is None:
            return self._pause(now.mono_us + PUBLISH_BACKOFF_MS_MIN * 1000)
        future = Future()
        publishing.waits.append(future)
        self._at(deadline_us, partial(publishing.give_up, future), future)
        return future.wait

    def _publish(self, hosted: Hosted, tid: str, committed: Committed, now: Now) -> None:
        assert (hosted, tid) not in self._publishing, "one transaction of an id at a time"
        publishing = self._publishing[hosted, tid] = _Publishing(hosted, tid, committed, now)
        self._ready.extend((publishing, partition) for partition in publishing.parts)
        if not publishing.parts:
            self._record(publishing, now)
        self._ask_ready(now)

    def _ask_ready(self, now: Now) -> None:
        while self._ready and self._under_way < PUBLISHES_MAX:
            publishing, partition = self._ready.popleft()
            if publishing.is_over:
                continue
            committed = publishing.committed
            part = next(one for one in committed.parts if one.staged_partition == partition)
            request = PublishRequest(
                transactional_id=publishing.tid,
                epoch=committed.epoch,
                sequence=committed.sequence,
                attempts=[committed.attempts[index] for index in part.attempts],
                first_offset=part.first_offset,
                next_offset=part.next_offset,
                # The topic's own level is the least in any case.
                durability=max(committed.durability, Durability.MEMORY),
                max_wait_ms=PUBLISH_WAIT_MS if publishing.is_first(partition) else 0,
                row_count=part.row_count,
            )
            self._under_way += 1
            then = partial(self._answered, publishing, partition)
            topic = self._view.image.topics.get(STAGED)
            topic_id = b"" if topic is None else topic.topic_id
            self.leaders.ask_leader(topic_id, partition, request, _once(then), now)

    def _answered(
        self,
        publishing: _Publishing,
        partition: int,
        response: object,
        error: BaseException | None,
        now: Now,
    ) -> None:
        self._under_way -= 1
        assert self._under_way >= 0
        if publishing.is_over or partition not in publishing.parts:
            return
        if error is not None:
            if not isinstance(error, QuiverlogError):
                self._outbox.internal_error("publishing", error)
                error = QuiverlogError()
            publishing.why = error
            pause_ms = publishing.parts[partition]
            publishing.parts[partition] = min(2 * pause_ms, PUBLISH_BACKOFF_MS_MAX)
            due_us = now.mono_us + pause_ms * 1000
            self._at(due_us, lambda _now: self._ready.append((publishing, partition)))
            return
        assert isinstance(response, PublishResponse)
        publishing.take(response)
        del publishing.parts[partition]
        if not publishing.parts:
            self._record(publishing, now)

    def _record(self, publishing: _Publishing, now: Now) -> None:
        if publishing.is_over:
            return
        assert not publishing.parts, "all parts have answered"
        hosted, tid, committed = publishing.hosted, publishing.tid, publishing.committed
        machine = hosted.machine
        assert isinstance(machine, Coordinator)
        ends = [End(*key, end) for key, end in sorted(publishing.ends.items())]
        records = machine.published(tid, committed.sequence, ends, publishing.level)
        if not records:
            # The id was forgotten meanwhile.
            self._over(publishing, now)
            return

        def then(_offset: int, error: QuiverlogError | None, now: Now) -> None:
            if error is None:
                self._over(publishing, now)
            else:
                self._record_later(publishing, error, now)

        try:
            # All rows are safe in their topics: the record only spares a successor the question.
            hosted.propose(records, now, then, at_leisure=True)
        except QuiverlogError as error:
            self._record_later(publishing, error, now)
        publishing.answer(True, now)

    def _record_later(self, publishing: _Publishing, error: QuiverlogError, now: Now) -> None:
        if not publishing.is_over:
            publishing.why = error
            due_us = now.mono_us + PUBLISH_BACKOFF_MS_MIN * 1000
            self._at(due_us, partial(self._record, publishing))

    def _over(self, publishing: _Publishing, now: Now) -> None:
        if not publishing.is_over:
            found = self._publishing.pop((publishing.hosted, publishing.tid))
            assert found is publishing
            publishing.end(True, now)

    # --- looking -------------------------------------------------------------------------------
    def coordinated(self) -> list[Coordinator]:
        return list(self._serving.values())

    def shown(self, tid: str, now: Now) -> Shown | None:
        """Return what the coordinator here has of an id; None: it is not known here."""
        try:
            hosted = self.find(tid)
        except QuiverlogError:
            return None
        machine = self._serving.get(hosted)
        state = None if machine is None else machine.applied.get(tid)
        if machine is None or state is None:
            return None
        publishing = self._publishing.get((hosted, tid))
        return Shown(
            state,
            machine.silent_us(tid, now) // 1000,
            tid in self._deciding,
            () if publishing is None else tuple(publishing.parts),
            None if publishing is None else publishing.why,
            0 if publishing is None else publishing.since_us,
        )

    def oldest_publish_us(self) -> int | None:
        """Return when the oldest transaction was decided that is not published; by the clock of
        people. Any thread may ask."""
        waiting = [one for one in list(self._publishing.values()) if one.parts]
        return min((one.since_us for one in waiting), default=None)

    def stuck(self, now: Now) -> list[Shown]:
        """Return what is published where a staging leader has refused to, the oldest ones."""
        stuck = [
            one
            for one in self._publishing.values()
            if one.why is not None and not isinstance(one.why, TransactionBusy)
        ]
        oldest = heapq.nsmallest(_STUCK_MAX, stuck, key=lambda one: one.since_us)
        found = [self.shown(one.tid, now) for one in oldest]
        return [one for one in found if one is not None]

    # --- RESOLVE_STAGED ------------------------------------------------------------------------
    def resolve(self, one: StagedTransaction, now: Now) -> tuple[Resolving, Starter]:
        """Return what became of staged rows, and the wait behind which it is true."""
        tid = one.transactional_id
        hosted = self.find(tid)
        machine = hosted.serve()
        assert isinstance(machine, Coordinator)
        resolving = machine.resolve(tid, one.epoch, one.sequence, now, pins_front=one.pins_front)
        for record in resolving.records:
            self._metrics.transactions["closed"] += 1
            self._outbox.log(
                "info", "transaction closed", transactional_id=tid, change=str(record.change)
            )
        return resolving, _recorded(hosted, machine.is_waiting(tid), resolving.records, now)


def _recorded(hosted: Hosted, is_waiting: bool, records: list[Record], now: Now) -> Starter:
    """Wait until the records are safe; without any, until all that the answer rests on is."""
    future = Future()
    if records or is_waiting:
        hosted.propose(records, now, lambda *ended: future.set(*ended))
    else:
        future.set(None, None, now)
    return future.wait


def _partition_of(tid: str, topic: TopicImage) -> int:
    return crc32c(tid.encode()) % len(topic.partitions)


def _decision_level(hosted: Hosted) -> int:
    leadership = hosted.replica.state.leadership
    if leadership is None or not leadership.is_replicated:
        return int(Durability.FLUSHED)
    return int(Durability.REPLICATED_FLUSHED)


def _is_in_vain(moment: tuple[int, int, object, Future | None]) -> bool:
    return moment[3] is not None and moment[3].is_set


def _ignore(_offset: int, _error: QuiverlogError | None, _now: Now) -> None:
    return


def _once(then: Then) -> Then:
    """A continuation that raises may be called again, with what it raised."""
    called = False

    def take(result: object, error: BaseException | None, now: Now) -> None:
        nonlocal called
        if not called:
            called = True
            then(result, error, now)

    return take
