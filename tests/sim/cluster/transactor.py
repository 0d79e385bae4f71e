"""Programs that use the shipped client's transactions: applications, queries, batch writes.

Owns how they use them. `TransactingLife`: sends to 1 to 3 topics, then commits, aborts, raises, or
dies in between. `QueryLife`: a batch under its number, which its checkpoint names; tasks that run
twice, of which one wins; a new run repeats the batch with other rows. `BatchLife`: the same once,
under an id of single use. Ids are forgotten behind commits, which are then repeated or aborted.
"""

from __future__ import annotations

import contextlib

import pyarrow as pa

from quiverlog.client.transactions.async_transaction import (
    AsyncAttempt,
    AsyncStager,
    AsyncTransaction,
)
from quiverlog.client.transactions.questions import StagedAttempt, Wait
from quiverlog.core.transactions import coordinator
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
    UnknownTransactionalId,
)
from quiverlog.types import Durability
from tests.sim.checker import TopicModel, Violation
from tests.sim.rows import schema_of

from .ledger import Attempt, Bid
from .lives import Life, Lives

__all__ = ["BatchLife", "QueryLife", "TransactingLife"]

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
_WAITS: tuple[Wait, ...] = ("decided", "published")
_LATE_S = (0.0, 1.0, 12.0)
"""In the last an id of single use is forgotten, or one that gives no sign of life."""

_Staged = tuple[Attempt, StagedAttempt]


class _Staging(Life):
    @property
    def forgets(self) -> bool:
        return self.lives.cluster.scenario.clients.forgets

    async def send(self, transaction: AsyncTransaction | AsyncAttempt, attempt: Attempt) -> bool:
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

    async def send_some(
        self, transaction: AsyncTransaction | AsyncAttempt, attempt: Attempt
    ) -> None:
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
        if isinstance(error, UnknownTransactionalId):
            # Forgotten while it was used: by its command, or for want of a sign of life.
            if not self.forgets and not self.ledger.expiry_us:
                raise Violation(f"{self.name}: nothing has had its id forgotten: {error!r}")
            self.world.events["a program found its id forgotten"] += 1
            await self.nap(0.1)
            return True
        if isinstance(error, (*_AGAIN, *_GONE)) or error.retriable:
            await self.nap(0.1)
            return True
        return await super().goes_on(error)

    async def forget(self, tid: str) -> None:
        """An operator has the id forgotten, now and then."""
        if not self.forgets or self.lives.stopped or self.rng.random() >= 0.15:
            return
        self.ledger.forget(tid)
        with contextlib.suppress(UnknownTransactionalId):  # Asked twice, or forgotten already.
            await self.client().forget_transaction(tid)
        self.ledger.forgot(tid)
        self.world.events["an id was forgotten by command"] += 1


class TransactingLife(_Staging):
    def __init__(self, lives: Lives, number: int) -> None:
        self._unknown: Bid | None = None
        super().__init__(lives, number)

    async def transact(self) -> None:
        tid = self.lives.tid
        before, aborted = self.ledger.newest(tid), self.ledger.aborted_epoch(tid)
        asked_us = self.world.mono_us
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
        self.ledger.opened(
            tid, transaction.sequence - 1, before, holder.epoch, aborted, asked_us=asked_us
        )
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
        await self.forget(tid)

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


class _StagingTasks(_Staging):
    """Tasks stage through stagers, and a driver commits what they have finished."""

    def stager(self, tid: str, instance: bytes, *, single_use: bool = False) -> AsyncStager:
        return self.client().stager(
            tid,
            instance=instance,
            single_use=single_use,
            batch_rows=64,
            linger=0.0,
            timeout=self.timeout_s,
            transaction_timeout=_TIMEOUT_MS / 1000 * self._scale,
        )

    async def run_task(self, stager: AsyncStager, sequence: int) -> _Staged:
        """Run it once or twice; the last one wins."""
        while True:
            task = await stager.attempt(sequence)
            tid = stager.transactional_id
            attempt = self.ledger.begin(tid, sequence, stager.epoch, self.name)
            try:
                if self.rng.random() < 0.9:
                    await self.send_some(task, attempt)
                won = attempt, await task.finish()
            finally:
                await task.give_up()
            if self.rng.random() < 0.7:
                return won

    async def commit(self, won: list[_Staged], *, may_be_another: bool = False) -> Bid:
        attempts = [attempt for attempt, _ in won]
        bid = self.ledger.ask(attempts, attempts[0], Durability.TOPIC_DEFAULT)
        bid.may_be_another = may_be_another
        if not self.lives.stopped and self.rng.random() < 0.1:
            self.loop.create_task(self._guarded(self.abort(bid, won)))
        await self.ask(bid, won)
        return bid

    async def ask(self, bid: Bid, won: list[_Staged]) -> None:
        """Send the COMMIT, or send it again."""
        try:
            done = await self.client().commit_staged(
                [named for _, named in won],
                wait=self.rng.choice(_WAITS),
                timeout=self.timeout_s,
                publish_timeout=self.timeout_s,
            )
        except CommitUnknown:
            if bid.state == "asked":
                self.ledger.ended(bid, "unknown")
                self.world.events["commit of unknown outcome"] += 1
            raise
        except QuiverlogError:
            if bid.state == "asked":
                self.ledger.ended(bid, "refused")
            raise
        # Perhaps that it had been, by the same attempts or under an older epoch.
        if bid.state == "aborted":
            raise Violation(f"{bid.attempts[0]} was aborted, and has committed")
        if not bid.may_be_another and done.rows != len(bid.values):
            raise Violation(f"{bid.attempts[0]}: {done.rows} rows, {len(bid.values)} were sent")
        self.ledger.committed(bid, done.durability, is_published=done.is_published)

    async def abort(self, bid: Bid, won: list[_Staged]) -> None:
        """A driver's abort comes while its commit is on its way, or behind it."""
        try:
            had_committed = await self.client().abort_staged(
                [named for _, named in won], timeout=self.timeout_s
            )
        except QuiverlogError as error:
            self.checker.error(error.code)
            return
        if had_committed:
            return
        if bid.state == "committed":
            raise Violation(f"{bid.attempts[0]} has committed, and was aborted")
        self.ledger.aborted(bid.tid, bid.epoch)
        self.ledger.ended(bid, "aborted")

    async def ask_late(self, bid: Bid, won: list[_Staged]) -> bool:
        """Ask again when the id may be forgotten. Returns whether it was."""
        is_forgotten = False
        try:
            await self.ask(bid, won)
            self.world.events["a late commit was answered"] += 1
        except UnknownTransactionalId:
            is_forgotten = True
            self.world.events["a late commit of a forgotten id"] += 1
        except QuiverlogError as error:
            self.checker.error(error.code)
        await self.abort(bid, won)
        return is_forgotten


class QueryLife(_StagingTasks):
    """A run of a query. It has one instance, and one epoch."""

    def __init__(self, lives: Lives, number: int) -> None:
        self._instance = f"run-{number}".encode()
        self._batch = lives.checkpoint
        self._skips = lives.rng.random() < 0.5
        super().__init__(lives, number)

    async def transact(self) -> None:
        tid = self.lives.tid
        before, aborted = self.ledger.newest(tid), self.ledger.aborted_epoch(tid)
        asked_us = self.world.mono_us
        stager = self.stager(tid, self._instance)
        try:
            first = await stager.attempt(self._batch)
            last, epoch = stager.last_sequence, stager.epoch
            self.ledger.opened(tid, last, before, epoch, aborted, asked_us=asked_us)
            self.ledger.holds(tid, self._instance, epoch)
            await first.give_up()
            if last >= self._batch and self._skips:
                self.world.events["a query skips a batch that has committed"] += 1
                self._checkpoint()
                return
            won = [await self.run_task(stager, self._batch) for _ in range(self.rng.randint(1, 3))]
        finally:
            await stager.close()
        await self.rest()
        try:
            bid = await self.commit(won, may_be_another=last >= self._batch)
        except CommitUnknown:
            return  # The same batch again, with other rows; under this epoch it is refused.
        except SequenceTaken:
            self._checkpoint()
            return
        self.committed()
        self._checkpoint()
        await self.forget(tid)
        if self.forgets and not self.lives.stopped and self.rng.random() < 0.3:
            await self.nap(self.rng.choice(_LATE_S))
            await self.ask_late(bid, won)

    def _checkpoint(self) -> None:
        """The query has the batch: the next one comes, in this run and in those after it."""
        if self._batch == self.lives.checkpoint:
            self.lives.checkpoint += 1
        self._batch = self.lives.checkpoint


class BatchLife(_StagingTasks):
    """Batch writes, each under an id of its own that is used once."""

    def __init__(self, lives: Lives, number: int) -> None:
        self._count = 0
        super().__init__(lives, number)

    async def transact(self) -> None:
        self._count += 1
        tid = f"{self.name}-{self._count}"
        stager = self.stager(tid, b"batch", single_use=True)
        try:
            won = [await self.run_task(stager, 0) for _ in range(self.rng.randint(1, 3))]
        finally:
            await stager.close()
        await self.rest()
        asked_us = self.world.mono_us
        try:
            bid = await self.commit(won)
        except CommitUnknown:
            return
        self.committed()
        self.world.events["a batch was written under an id of single use"] += 1
        await self.forget(tid)
        await self.nap(self.rng.choice(_LATE_S))
        is_forgotten = await self.ask_late(bid, won)
        kept_us = coordinator.SINGLE_USE_EXPIRY_MS * 1000
        is_early = is_forgotten and self.world.mono_us - asked_us < kept_us
        if is_early and not self.ledger.may_be_forgotten(tid, asked_us, self.world.mono_us):
            raise Violation(f"{tid} is forgotten within {kept_us / 1e6:.0f} s of its commit")
