"""A program that uses the shipped client's transactions, and the tasks and driver of a query.

Owns how they use them. `TransactingLife`: sends to 1 to 3 topics, then commits, aborts, raises, or
dies in between. `QueryLife`: a batch under its number, which its checkpoint names; tasks that run
twice, of which one wins; a new run repeats the batch with other rows.
"""

from __future__ import annotations

import pyarrow as pa

from quiverlog.client.producer.base import producer_options
from quiverlog.client.transactions.async_transaction import AsyncHolder, AsyncTransaction
from quiverlog.client.transactions.questions import (
    abort_transaction,
    commit_transaction,
    open_transaction,
)
from quiverlog.errors import (
    CommitUnknown,
    DeliveryTimedOut,
    QuiverlogError,
    SequenceTaken,
    SequenceTooOld,
    StagedRowsLost,
    TransactionClosed,
    TransactionFenced,
    UnknownTopic,
    UnknownTopicId,
)
from quiverlog.types import Durability
from quiverlog.wire.transaction_messages import (
    AbortTransactionRequest,
    CommittedAttempt,
    CommitTransactionRequest,
    OpenTransactionRequest,
)
from tests.sim.checker import TopicModel, Violation
from tests.sim.rows import schema_of

from .ledger import Attempt, Bid
from .lives import Life, Lives

__all__ = ["QueryLife", "TransactingLife"]

_GONE = (UnknownTopic, UnknownTopicId)
_AGAIN = (CommitUnknown, DeliveryTimedOut, StagedRowsLost, TransactionClosed)
"""The transaction is lost, not the id: the next one may do."""
_TIMEOUT_MS = 6_000
_RESTS = 0.1
_RESTS_IN_CALM = 0.3
"""Few lives are long enough for a long rest, but the last ones."""
_REST_S = (0.5, 4.0, 8.0)
"""In the second the coordinator is asked about what is staged; in the third it ends the epoch of a
query, which gives no sign of life then."""
_LEVELS = (None, None, None, Durability.REPLICATED_FLUSHED)


class _Staging(Life):
    async def send(self, transaction: AsyncTransaction, attempt: Attempt) -> bool:
        """Stage some rows. False: its topic is gone."""
        topic: TopicModel = self.rng.choice(self.targets())
        keys = [key for key in self.checker.partitions if key[0] == topic.topic_id]
        key = self.rng.choice(keys)
        target = transaction._core.target(topic.name)
        if target is None:
            found = await transaction._open(topic.name)
            if found.topic.topic_id != topic.topic_id:
                return False  # The name is another topic's by now.
        values = self.ledger.values(attempt, key, self.rng.randint(1, 8))
        padding = [self.rng.randbytes(self.rng.randrange(100))] * len(values)
        data = pa.record_batch([pa.array(values), pa.array(padding)], schema=schema_of(1))
        future = await transaction.send(topic.name, data, partition=key[1])
        if self.rng.random() < 0.3:
            await future.result()
        return True

    async def send_some(self, transaction: AsyncTransaction, attempt: Attempt) -> None:
        for _ in range(self.rng.randint(1, 5)):
            await self.send(transaction, attempt)
            if self.rng.random() < 0.3:
                await self.nap(self.rng.random() * 0.05)

    async def rest(self) -> None:
        """Commit late, now and then: brokers look after what is staged meanwhile, or lose it."""
        if self.rng.random() < (_RESTS_IN_CALM if self.lives.stopped else _RESTS):
            self.world.events["a transactional program rests before its commit"] += 1
            await self.nap(self.rng.choice(_REST_S))

    async def goes_on(self, error: QuiverlogError) -> bool:
        if isinstance(error, StagedRowsLost) and not self.ledger.all_power_us:
            raise Violation(f"{self.name}: no fault may have taken what was staged: {error!r}")
        if isinstance(error, (TransactionFenced, SequenceTooOld)):
            self.world.events["a transactional program was fenced"] += 1
            return False
        if isinstance(error, (*_AGAIN, *_GONE)) or error.retriable:
            await self.nap(0.1)
            return True
        return await super().goes_on(error)


class TransactingLife(_Staging):
    def __init__(self, lives: Lives, number: int) -> None:
        self._unknown: Bid | None = None
        super().__init__(lives, number)

    async def transact(self) -> None:
        tid = self.lives.tid
        before, aborted = self.ledger.newest(tid), self.ledger.aborted_epoch(tid)
        level = self.rng.choice(_LEVELS)
        transaction = await self.client().transaction(
            tid,
            wait=self.rng.choice(("published", "decided")),
            timeout=self.timeout_s,
            transaction_timeout=_TIMEOUT_MS / 1000 * self._scale,
            durability=None if level is None else "replicated_flushed",
        )
        transaction._is_told = True  # No warning: a program that dies leaves it open.
        self._resolve(transaction)
        holder = transaction._holder
        self.ledger.opened(tid, transaction.sequence - 1, before, holder.epoch, aborted)
        self.ledger.holds(tid, holder._instance, holder.epoch)
        attempt = self.ledger.begin(tid, transaction.sequence, holder.epoch, self.name)
        try:
            await self.send_some(transaction, attempt)
        except BaseException:
            await transaction.abort()
            raise
        if self.rng.random() < 0.15:
            await transaction.abort()
            self.ledger.aborted(tid, attempt.epoch)
            self.world.events["transaction aborted"] += 1
            return
        await self.rest()
        await self._commit(transaction, attempt, level)

    async def leave(self) -> None:
        """Stage rows, and be silent for ever."""
        transaction = await self.client().transaction(
            self.lives.tid,
            timeout=self.timeout_s,
            transaction_timeout=_TIMEOUT_MS / 1000 * self._scale,
        )
        transaction._is_told = True  # No warning: a program that dies leaves it open.
        self._resolve(transaction)
        epoch = transaction._holder.epoch
        attempt = self.ledger.begin(self.lives.tid, transaction.sequence, epoch, self.name)
        await self.send_some(transaction, attempt)
        await self.nap(0.2)
        self.world.events["a transaction was left open"] += 1

    async def _commit(
        self, transaction: AsyncTransaction, attempt: Attempt, level: Durability | None
    ) -> None:
        asked = Durability.TOPIC_DEFAULT if level is None else level
        bid = self.ledger.ask([attempt], attempt, asked)
        try:
            done = await transaction.commit()
        except CommitUnknown:
            self.ledger.ended(bid, "unknown")
            self._unknown = bid
            self.world.events["commit of unknown outcome"] += 1
            raise
        except QuiverlogError:
            self.ledger.ended(bid, "refused")
            raise
        if done.rows != len(attempt.rows):
            raise Violation(f"{attempt}: {done.rows} rows, {len(attempt.rows)} were sent")
        self.ledger.committed(bid, done.durability, is_published=done.is_published)
        self.committed()

    def _resolve(self, transaction: AsyncTransaction) -> None:
        """What became of the last commit."""
        bid, self._unknown = self._unknown, None
        if (bid is None) != (transaction.previous is None):
            raise Violation(f"{self.name}: {bid} became {transaction.previous}")
        if bid is None:
            return
        self.world.events[f"what was unknown is {transaction.previous}"] += 1
        if transaction.previous == "committed":
            self.ledger.committed(bid, Durability.REPLICATED, is_published=False)
        elif transaction.previous == "aborted":
            self.ledger.ended(bid, "aborted")


class QueryLife(_Staging):
    """A run of a query. It has one instance, and one epoch."""

    def __init__(self, lives: Lives, number: int) -> None:
        self._instance = f"run-{number}".encode()
        self._batch = lives.checkpoint
        self._skips = lives.rng.random() < 0.5
        super().__init__(lives, number)

    async def transact(self) -> None:
        client, tid = self.client(), self.lives.tid
        before, aborted = self.ledger.newest(tid), self.ledger.aborted_epoch(tid)
        request = OpenTransactionRequest(
            transactional_id=tid,
            instance=self._instance,
            timeout_ms=int(_TIMEOUT_MS * self._scale),
        )
        opened = await client.run(
            open_transaction(client.cluster, request, timeout_s=self.timeout_s)
        )
        self.ledger.opened(tid, opened.last_sequence, before, opened.epoch, aborted)
        self.ledger.holds(tid, self._instance, opened.epoch)
        if opened.last_sequence >= self._batch and self._skips:
            self.world.events["a query skips a batch that has committed"] += 1
            self._checkpoint()
            return
        winners: list[tuple[Attempt, CommittedAttempt]] = []
        for _ in range(self.rng.randint(0, 3)):
            won = await self._run_task(opened.epoch)
            winners += [] if won is None else [won]
        await self.rest()
        await self._commit(opened.epoch, opened.last_sequence, winners)

    async def _run_task(self, epoch: int) -> tuple[Attempt, CommittedAttempt] | None:
        """Run it once or twice; the last one wins."""
        won = None
        for _ in range(self.rng.choice((1, 1, 2))):
            attempt = self.ledger.begin(self.lives.tid, self._batch, epoch, self.name)
            named = await self._stage(attempt)
            won = None if named is None else (attempt, named)
        return won

    async def _stage(self, attempt: Attempt) -> CommittedAttempt | None:
        client = self.client()
        complete = producer_options(
            client.cluster, batch_rows=64, batch_bytes=65_536, linger=0.0, compression=None,
            durability=None, buffer_bytes=1 << 24, delivery_timeout=self.timeout_s,
            idempotent=True, partition=None,
        )  # fmt: skip
        holder = AsyncHolder(
            client.cluster, client.run, client._open_host(), attempt.tid,
            int(_TIMEOUT_MS * self._scale),
        )  # fmt: skip
        holder._instance, holder.epoch = self._instance, attempt.epoch
        holder.last_sequence = attempt.sequence - 1
        await holder._open_staging(complete)
        task = AsyncTransaction(holder, complete, timeout_s=self.timeout_s, wait="decided")
        task._is_told = True
        try:
            await self.send_some(task, attempt)
            attempts = await task._stage()
        finally:
            task._ended = "over"
            await holder.leave()
        return attempts[0] if attempts else None

    async def _commit(
        self, epoch: int, last: int, winners: list[tuple[Attempt, CommittedAttempt]]
    ) -> None:
        client, tid = self.client(), self.lives.tid
        first = self.ledger.begin(tid, self._batch, epoch, self.name)
        attempts = [attempt for attempt, _ in winners]
        bid = self.ledger.ask(attempts or [first], first, Durability.TOPIC_DEFAULT)
        bid.may_be_another = last >= self._batch
        request = CommitTransactionRequest(
            transactional_id=tid,
            epoch=epoch,
            sequence=self._batch,
            attempts=[named for _, named in winners],
            durability=Durability.TOPIC_DEFAULT,
            wait=self.rng.choice((0, 1)),
        )
        if not self.lives.stopped and self.rng.random() < 0.1:
            self.loop.create_task(self._guarded(self._abort(bid)))
        try:
            answer = await client.run(
                commit_transaction(client.cluster, request, timeout_s=self.timeout_s)
            )
        except CommitUnknown:
            self.ledger.ended(bid, "unknown")
            self.world.events["commit of unknown outcome"] += 1
            return  # The same batch again, with other rows; under this epoch it is refused.
        except SequenceTaken:
            self.ledger.ended(bid, "refused")
            self._checkpoint()
            return
        except QuiverlogError:
            self.ledger.ended(bid, "refused")
            raise
        # Outcome 1: had been committed, by the same attempts or under an older epoch.
        if bid.state == "aborted":
            raise Violation(f"{first} was aborted, and has committed")
        self.ledger.committed(bid, Durability(answer.durability), is_published=answer.is_published)
        self.committed()
        self._checkpoint()

    async def _abort(self, bid: Bid) -> None:
        """The driver's abort comes while its commit is on its way."""
        client = self.client()
        request = AbortTransactionRequest(
            transactional_id=bid.tid, epoch=bid.epoch, sequence=bid.sequence
        )
        try:
            answer = await client.run(
                abort_transaction(client.cluster, request, timeout_s=self.timeout_s)
            )
        except QuiverlogError as error:
            self.checker.error(error.code)
            return
        if answer.outcome:
            return
        if bid.state == "committed":
            raise Violation(f"{bid.attempts[0]} has committed, and was aborted")
        self.ledger.aborted(bid.tid, bid.epoch)
        self.ledger.ended(bid, "aborted")

    def _checkpoint(self) -> None:
        """The query has the batch: the next one comes, in this run and in those after it."""
        if self._batch == self.lives.checkpoint:
            self.lives.checkpoint += 1
        self._batch = self.lives.checkpoint
