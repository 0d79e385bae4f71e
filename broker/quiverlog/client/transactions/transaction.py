"""The blocking client's transactions.

Generated from `transactions/async_transaction.py` by scripts/generate_client.py; do not edit.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import warnings
import weakref
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from msgspec.structs import replace

from quiverlog.client.base.arguments import INT32, checked, number, shown
from quiverlog.client.base.commands import Operation
from quiverlog.client.base.misuse import blocking_only
from quiverlog.client.base.results import TopicInfo
from quiverlog.client.cluster.answers import about
from quiverlog.client.cluster.routing import Cluster
from quiverlog.client.cluster.topic_identity import topic_with_id
from quiverlog.client.producer.base import INTERRUPTED_FLUSH_S, UnsentRows, now, open_core
from quiverlog.client.producer.types import Delivery, ProducerOptions
from quiverlog.client.rows.convert import Converter
from quiverlog.errors import (
    BufferExhausted,
    ClientClosed,
    CommitUnknown,
    ForkedClient,
    InternalTopic,
    InvalidArgument,
    QuiverlogError,
    RequestTimedOut,
    SequenceTaken,
    SequenceTooOld,
    TransactionClosed,
    TransactionFenced,
    UnknownTransactionalId,
)
from quiverlog.limits import TRANSACTION_ATTEMPT_BYTES, TRANSACTION_SEQUENCE_MAX
from quiverlog.types import NO_SEQUENCE, STAGED_TOPIC, Compression, Durability
from quiverlog.wire.transaction_messages import (
    AbortTransactionRequest,
    CommittedAttempt,
    CommitTransactionRequest,
    OpenTransactionRequest,
    OpenTransactionResponse,
)

from .questions import (
    Committed,
    Outcome,
    StagedAttempt,
    Wait,
    abort_transaction,
    commit_staged,
    commit_transaction,
    open_transaction,
)
from .staging import StagingCore, Target, staging_options

if TYPE_CHECKING:
    from quiverlog.client.producer.hosts import HostedCore, ProducerHost

__all__ = ["Attempt", "Holder", "StagedFuture", "Stager", "Transaction"]

_INSTANCE_BYTES: Final = 16
_SIGNS_PER_TIMEOUT: Final = 3
_TOPIC_AGE_MAX_S: Final = 1.0
"""A transaction takes metadata of its topics that are so old: many a second share a question."""
_ENDED: Final = (SequenceTooOld, TransactionClosed, TransactionFenced, UnknownTransactionalId)
"""Answers to an abort of what has ended already."""


class Holder:
    """A transactional id as this client holds it, from its first transaction on."""

    def __init__(
        self,
        cluster: Cluster,
        run: Callable[[Operation[Any]], Any],
        host: ProducerHost,
        name: str,
        timeout_ms: int,
        *,
        instance: bytes | None = None,
        single_use: bool = False,
    ) -> None:
        self.name = name
        self.cluster = cluster
        self.run = run
        self.epoch = -1
        self.last_sequence = NO_SEQUENCE
        # A commit without an answer, and an abort: the next transaction asks what became of it.
        self.unanswered: CommitTransactionRequest | None = None
        # Kept until a transaction has it.
        self.previous: Outcome | None = None
        self.unaborted: AbortTransactionRequest | None = None
        self._host = host
        self._timeout_ms = timeout_ms
        self._instance = instance or os.urandom(_INSTANCE_BYTES)
        self._single_use = single_use
        # Of the question, not its answer: the coordinator counts from between the two.
        self._opened_s = -math.inf
        self._epoch_min = 0
        self._staging: tuple[StagingCore, HostedCore] | None = None
        self._lock = threading.Lock()
        self._is_taken = False
        self._taker: weakref.ref[Transaction] | None = None
        self._pid = os.getpid()

    # --- one transaction at a time ---------------------------------------------------------------
    def take(self) -> None:
        """Raises InvalidArgument: a transaction of this client has it."""
        with self._lock:
            is_dropped = self._taker is not None and self._taker() is None
            if self._is_taken and not is_dropped:
                raise InvalidArgument(
                    f"a transaction of {shown(self.name)} is open: commit or abort it first."
                )
            if self._is_taken:
                self.unaborted = self.unaborted or self._abort_request(self.last_sequence + 1)
            self._is_taken, self._taker = True, None

    def give(self, transaction: Transaction) -> None:
        # A transaction that its program has dropped is not open.
        self._taker = weakref.ref(transaction)
        self.previous = None

    def release(self) -> None:
        self._is_taken, self._taker = False, None

    # --- beginning -------------------------------------------------------------------------------
    def begin(
        self,
        complete: Callable[[Compression], ProducerOptions],
        timeout_s: float,
        *,
        until_published: bool,
    ) -> None:
        """Become, or stay, the holder; find out what became of a commit without an answer.

        Raises TransactionFenced: another client holds the id; CommitUnknown; TransactionBusy.
        """
        if self.unanswered is not None:
            self.previous = self._resolve(self.unanswered, timeout_s)
            self.unanswered = None
        if self.unaborted is not None:
            self.leave()
            with contextlib.suppress(*_ENDED):
                self.abort(self.unaborted, timeout_s)
        opened = self.run(
            open_transaction(
                self.cluster,
                self._request(),
                epoch_min=self._epoch_min,
                until_published=until_published,
                timeout_s=timeout_s,
            )
        )
        if opened.epoch != self.epoch or self._is_lost:
            self.leave()
        self._learn(opened)
        if self._staging is None:
            self._open_staging(complete)

    @property
    def _is_lost(self) -> bool:
        return self._staging is not None and self._staging[0].lost is not None

    def resume(self, complete: Callable[[Compression], ProducerOptions], timeout_s: float) -> None:
        """Begin, without a question where the epoch cannot have ended for want of a sign of life.

        Raises TransactionFenced.
        """
        assert self.unanswered is None, "others commit what is staged here"
        silent_s = self.cluster.clock() - self._opened_s
        if self._staging is None or self._is_lost or silent_s >= self._life_us / 1_000_000:
            asked_s = self.cluster.clock()
            self.begin(complete, timeout_s, until_published=False)
            self._opened_s = asked_s
        self._show_life()

    def _learn(self, opened: OpenTransactionResponse) -> None:
        self.epoch = self._epoch_min = opened.epoch
        # A coordinator that was replaced may answer an older sequence.
        self.last_sequence = max(self.last_sequence, opened.last_sequence)

    def _request(self) -> OpenTransactionRequest:
        return OpenTransactionRequest(
            transactional_id=self.name,
            instance=self._instance,
            timeout_ms=self._timeout_ms,
            single_use=self._single_use,
        )

    def _open_staging(self, complete: Callable[[Compression], ProducerOptions]) -> None:
        def options(_: Compression) -> ProducerOptions:
            return staging_options(complete(Compression.NONE))

        core = self.run(open_core(self.cluster, STAGED_TOPIC, options, StagingCore))
        self._staging = core, self._host.host(core)
        self._show_life()

    @property
    def _life_us(self) -> int:
        return self._timeout_ms * 1000 // _SIGNS_PER_TIMEOUT

    def _show_life(self) -> None:
        core, hosted = self.staging
        cluster, request, holder = self.cluster, self._request(), weakref.ref(self)

        def sign_of_life() -> Operation[int] | None:
            # The thread must not keep the transactions of a client that its program has dropped.
            return None if holder() is None else _epoch(cluster, request)

        with hosted.lock:
            core.ask(sign_of_life, self._life_us, partial(_find_targets, cluster), now())
        hosted.wake()

    @property
    def staging(self) -> tuple[StagingCore, HostedCore]:
        assert self._staging is not None, "a transaction is begun on an open id"
        return self._staging

    @property
    def has_rows(self) -> bool:
        return self._staging is not None and self._staging[0].buffered_bytes > 0

    def leave(self) -> None:
        """End the machine with the rows that wait: they count for nothing."""
        staging, self._staging = self._staging, None
        if staging is None or os.getpid() != self._pid:
            return  # The rows and the lock of a forked process are the parent's.
        core, hosted = staging
        try:
            hosted.stop()
        finally:
            with hosted.lock:
                core.lose(ClientClosed(f"the transaction of {shown(self.name)} has ended."))
                hosted.notify()

    # --- ending ----------------------------------------------------------------------------------
    def committed(self, sequence: int) -> None:
        self.unanswered = None
        self.last_sequence = max(self.last_sequence, sequence)

    def _abort_request(self, sequence: int) -> AbortTransactionRequest:
        return AbortTransactionRequest(
            transactional_id=self.name, epoch=self.epoch, sequence=sequence
        )

    def end_epoch(self, sequence: int, timeout_s: float) -> bool:
        """Abort a transaction. Returns True if it had committed."""
        self.unaborted = self._abort_request(sequence)
        self.leave()
        try:
            return self.abort(self.unaborted, timeout_s)
        except _ENDED:
            return False

    def abort(self, request: AbortTransactionRequest, timeout_s: float) -> bool:
        try:
            answer = self.run(abort_transaction(self.cluster, request, timeout_s=timeout_s))
        except _ENDED:
            self.unaborted = None
            raise
        self.unaborted = None
        if answer.outcome:  # Its epoch has not ended.
            self.committed(request.sequence)
        else:
            self._epoch_min = max(self._epoch_min, request.epoch + 1)
        return bool(answer.outcome)

    def _resolve(self, request: CommitTransactionRequest, timeout_s: float) -> Outcome:
        """Return what became of a commit without an answer."""
        why = f"What became of transaction {request.sequence} is not known."
        try:
            decided = replace(request, wait=0)
            self.run(commit_transaction(self.cluster, decided, timeout_s=timeout_s))
            self.committed(request.sequence)
            return "committed"
        except TransactionFenced as error:
            # Another client holds the id, and is not fenced for the sake of what is past.
            error.add_note(why)
            raise
        except SequenceTooOld:
            self._instance = os.urandom(_INSTANCE_BYTES)
            return "unknown"  # Another client has held the id in between.
        except UnknownTransactionalId:
            return "unknown"  # Forgotten: its epoch is over in any case.
        except SequenceTaken:
            return "aborted"  # By other attempts of its epoch.
        except QuiverlogError as error:
            if error.retriable or isinstance(error, CommitUnknown):
                raise
        # Not committed yet. It may be, until its epoch has ended. No OPEN ends it: the id may be
        # forgotten before, with what has committed meanwhile, and the OPEN makes it anew.
        self.leave()
        ending = AbortTransactionRequest(
            transactional_id=self.name, epoch=request.epoch, sequence=request.sequence
        )
        try:
            return "committed" if self.abort(ending, timeout_s) else "aborted"
        except TransactionFenced as error:
            error.add_note(why)
            raise
        except (SequenceTooOld, UnknownTransactionalId):
            return "unknown"  # Forgotten since the question before.


def _epoch(cluster: Cluster, request: OpenTransactionRequest) -> Operation[int]:
    return (yield from open_transaction(cluster, request)).epoch


def _find_targets(cluster: Cluster, topics: list[TopicInfo]) -> Operation[int]:
    def attempt(topic: TopicInfo) -> Operation[TopicInfo]:
        return (yield from topic_with_id(cluster, topic.name, topic.topic_id, from_controller=True))

    for topic in topics:
        yield from cluster.retrying(partial(attempt, topic))
    return 0


class StagedFuture(Delivery):
    """The outcome of one `send` in a transaction: its rows are staged. They have no offsets yet."""

    __slots__ = ("_hosted",)

    def __init__(self, hosted: HostedCore) -> None:
        super().__init__()
        # It does not keep the transaction: one that its program has dropped is over.
        self._hosted = hosted

    def done(self) -> bool:
        """Return True if all rows are staged, or some have failed."""
        return self.is_done

    @checked()
    def result(self, timeout: float | None = None) -> int:
        """Wait until the rows are staged, and return their number.

        Args:
            timeout: seconds; None waits until the rows are staged or have failed.

        Raises:
            RequestTimedOut: `timeout` has passed; the transaction still tries to stage the rows.
            QuiverlogError: why they are not staged; the transaction cannot commit.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        return sum(piece.rows for piece in self.produced)

    @checked()
    def exception(self, timeout: float | None = None) -> QuiverlogError | None:
        """Wait, and return the error instead of raising it."""
        if not self._hosted.wait_for(lambda: self.is_done, timeout):
            raise RequestTimedOut(f"The rows are not staged within {timeout:g} s.")
        self.reported = True
        return self.error


class StagedRows:
    """Rows of a transaction that this process stages: all of it, or one attempt among several."""

    def __init__(
        self,
        holder: Holder,
        options: Callable[[Compression], ProducerOptions],
        sequence: int,
        *,
        timeout_s: float,
    ) -> None:
        self.sequence = sequence
        self._holder = holder
        self._options = options
        self._timeout_s = timeout_s
        # The process that commits may have looked at the topic just now, and altered it before.
        self._topic_age_max_s = 0.0
        self._ended = ""
        self._failure: QuiverlogError | None = None
        self._sends = 0
        # The program has the error that ends it.
        self._is_told = False
        self._pid = os.getpid()
        self._core, self._hosted = holder.staging
        complete = options(Compression.NONE)
        self._durability = complete.durability
        self._buffer_bytes = complete.buffer_bytes
        with self._hosted.lock:
            self._core.begin(
                holder.name, holder.epoch, sequence, os.urandom(TRANSACTION_ATTEMPT_BYTES), complete
            )

    def __repr__(self) -> str:
        state = self._ended or "open"
        return f"<{type(self).__name__} {self.sequence} of {shown(self._holder.name)}: {state}>"

    @property
    def transactional_id(self) -> str:
        """The id that it was opened with."""
        return self._holder.name

    def send(self, topic: str, data: Any, *, partition: int | None = None) -> StagedFuture:
        """Stage rows of a topic, in the background.

        Args:
            topic: its name.
            data: as `Producer.send`.
            partition: default: chosen by the key columns, without a key by turns.

        Returns:
            A future: its `result` waits until the rows are staged. They have no offsets before the
            commit.

        Raises:
            SchemaMismatch, UnknownTopic, UnknownPartition, InternalTopic: nothing was taken.
            BufferExhausted: there was no room for `timeout` seconds.
            TransactionFenced, TransactionClosed: another client, or the cluster, has ended it.
            InvalidArgument: it has ended.
        """
        self._check_usable()
        if partition is not None:
            INT32("partition", partition)
        target = self._core.target(topic) or self._open(topic)
        if partition is not None:
            target.rows.check_partition(partition)
        future = StagedFuture(self._hosted)
        if isinstance(data, dict):
            self._add(target, partition, data, future)
            return future
        batches = target.converter.batches(data)
        with self._hosted.lock:
            self._check_usable()
            self._sends += 1
        try:
            for batch in batches:
                for where, rows in self._core.split_for(target, batch, partition):
                    self._add(target, where, rows, future)
        except BaseException as error:
            # Some of the rows are staged: they must not be committed without the others.
            self._failure = self._failure or InvalidArgument(
                f"a send to {topic!r} was not taken as a whole: {type(error).__name__}: {error}"
            )
            raise
        finally:
            with self._hosted.lock:
                self._sends -= 1
                future.mark_complete()
                self._hosted.notify()
        return future

    def _add(self, target: Target, partition: int | None, rows: Any, delivery: Delivery) -> None:
        with self._hosted.lock:
            self._wait_for_room()
            wake = self._core.add_to(target, partition, rows, delivery, self._hosted.now())
        if wake:
            self._hosted.wake()

    def _wait_for_room(self) -> None:
        """Wait for room. The caller holds the lock, and so keeps the room."""
        core, bytes_max = self._core, self._buffer_bytes
        if core.buffered_bytes >= bytes_max:
            self._hosted.wake()
            has_room = self._hosted.wait_for(
                lambda: bool(self._ended) or core.buffered_bytes < bytes_max, self._timeout_s
            )
            if not has_room:
                raise BufferExhausted(
                    f"{core.buffered_bytes} bytes wait to be staged, and there was no room for more"
                    f" in {self._timeout_s:g} s."
                )
        self._check_usable()

    def _open(self, name: str) -> Target:
        def attempt() -> Operation[tuple[TopicInfo, Any, int]]:
            cluster = self._holder.cluster
            topic = yield from cluster.topic(name, age_max_s=self._topic_age_max_s)
            if topic.is_internal:
                raise InternalTopic(f"{name!r} is an internal topic: no transaction writes it.")
            history = yield from cluster.history(topic.topic_id, name, needed_id=topic.schema_id)
            return topic, history.current, history.current_id

        found = about(name, self._holder.cluster.retrying(attempt))
        topic, schema, schema_id = self._holder.run(found)
        converter = Converter(schema, name)
        with self._hosted.lock:
            self._check_usable()
            return self._core.target(name) or self._core.add_target(
                topic, converter, schema_id, self._options(topic.compression)
            )

    def _stage(self) -> list[CommittedAttempt]:
        """Wait until all rows are staged; returns what a commit names of them."""
        core, hosted = self._core, self._hosted
        with hosted.lock:
            if core.lost is not None:
                raise core.lost
            core.close_batches(hosted.now())
        hosted.wake()
        is_done = hosted.wait_for(
            lambda: not self._sends and (not core.buffered_bytes or bool(core.failures)),
            self._timeout_s,
        )
        with hosted.lock:
            failures = (one.error for one in core.failures if one.error is not None)
            failure = core.lost or next(failures, None) or self._failure
            attempts = core.attempts()
        if failure is not None:
            raise failure
        if not is_done:
            raise RequestTimedOut(
                f"{core.buffered_bytes} bytes were not staged within {self._timeout_s:g} s."
            )
        return attempts

    def _check_usable(self) -> None:
        self._check_open()
        if self._core.lost is not None:
            self._is_told = True
            raise self._core.lost

    def _check_open(self) -> None:
        """Where it is lost, ending it raises why, and lets the next one begin."""
        if os.getpid() != self._pid:
            raise ForkedClient("This transaction was opened before the process forked.")
        if self._ended:
            raise InvalidArgument(
                f"transaction {self.sequence} of {shown(self._holder.name)} is {self._ended}: open"
                " another one."
            )


@blocking_only
class Transaction(StagedRows):
    """Rows for several topics that are published all or not at all.

    Leaving the `with` block commits, leaving it by an exception aborts. For one thread at a time;
    `send` may be used by several.
    """

    def __init__(
        self,
        holder: Holder,
        options: Callable[[Compression], ProducerOptions],
        *,
        timeout_s: float,
        wait: Wait,
    ) -> None:
        super().__init__(holder, options, holder.last_sequence + 1, timeout_s=timeout_s)
        self.previous = holder.previous
        """What became of the transaction before, whose commit had raised CommitUnknown."""
        self.result: Committed | None = None
        self._topic_age_max_s = _TOPIC_AGE_MAX_S
        self._wait = wait
        holder.give(self)

    def __del__(self) -> None:
        if not self._ended and not self._is_told and os.getpid() == self._pid:
            warnings.warn(
                f"Transaction {self.sequence} of {shown(self._holder.name)} was dropped without a"
                " commit: its rows are not published. End with `with`, `commit` or `abort`.",
                UnsentRows,
                stacklevel=2,
            )

    def commit(self) -> Committed:
        """Stage what waits, commit, and wait until the rows are published (`wait`).

        Raises:
            QuiverlogError: why rows were not staged, or the commit was refused: nothing of the
                transaction is ever published.
            CommitUnknown: no answer came within `timeout`. The next transaction of this client
                and id finds out, and has it as `previous`.
        """
        with self._hosted.lock:
            self._check_open()
            # No send may add rows that the commit does not name.
            self._ended = "being committed"
        try:
            request = self._request(self._stage())
        except BaseException as error:
            self._abort_after(error)
            raise
        self._holder.unanswered = request
        try:
            answer = self._holder.run(
                commit_staged(
                    self._holder.cluster,
                    request,
                    timeout_s=self._timeout_s,
                    publish_s=self._timeout_s,
                )
            )
        except BaseException as error:
            if isinstance(error, CommitUnknown) or not isinstance(error, QuiverlogError):
                # No answer, or interrupted: the request may have been sent.
                self._end("of unknown outcome")
                self._holder.leave()
                raise
            self._holder.unanswered = None
            had_committed = self._abort_after(error)
            if had_committed and not isinstance(error, SequenceTaken):
                # Served twice: the refusal is not all of it.
                self._holder.unanswered = request
                raise CommitUnknown(f"{error.message} But it may have committed.") from error
            raise
        self._holder.committed(self.sequence)
        self.result = Committed(
            self.sequence, answer.row_count, Durability(answer.durability), answer.is_published
        )
        self._end("committed")
        return self.result

    def _request(self, attempts: list[CommittedAttempt]) -> CommitTransactionRequest:
        return CommitTransactionRequest(
            transactional_id=self._holder.name,
            epoch=self._holder.epoch,
            sequence=self.sequence,
            attempts=attempts,
            durability=self._durability,
            wait=0 if self._wait == "decided" else 1,
        )

    def abort(self) -> None:
        """End it: nothing of it is ever published. A second call does nothing.

        Raises:
            QuiverlogError: the coordinator could not be asked. Nothing is published all the same.
        """
        if self._ended or os.getpid() != self._pid:
            return
        with self._hosted.lock:
            self._ended = "being aborted"
        try:
            self._holder.end_epoch(self.sequence, self._timeout_s)
        finally:
            self._end("aborted")

    def _abort_after(self, error: BaseException) -> bool:
        """Abort without hiding the error. Returns True if it had committed."""
        seconds = self._timeout_s if isinstance(error, Exception) else INTERRUPTED_FLUSH_S
        try:
            return self._holder.end_epoch(self.sequence, seconds)
        except QuiverlogError as second:
            error.add_note(f"and its transaction could not be aborted: {second}")
            return False
        finally:
            self._end("aborted")

    def _end(self, how: str) -> None:
        self._ended = how
        self._holder.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._ended or (os.getpid() != self._pid and error is not None):
            return
        if error is None:
            self.commit()
            return
        self._ended = "being aborted"
        self._abort_after(error)


class Attempt(StagedRows):
    """One attempt at a part of a transaction; made by `Stager.attempt`.

    Its rows count if a commit names what `finish` returns. For one thread at a time; `send` may be
    used by several.
    """

    def finish(self) -> StagedAttempt:
        """Wait until all rows are staged.

        Returns:
            What `commit_staged` names: small, and made to be sent to the process that commits.

        Raises:
            QuiverlogError: why they are not: nothing of the attempt can be committed.
        """
        with self._hosted.lock:
            self._check_open()
            # No send may add rows that the report does not name.
            self._ended = "being finished"
        try:
            attempts = self._stage()
        except BaseException:
            self._end("given up")
            raise
        # The commit follows, unless attempts of others are open, which show life.
        with self._hosted.lock:
            self._core.rest()
        self._ended = "finished"
        assert len(attempts) <= 1, "one attempt, with all of its parts"
        holder = self._holder
        return StagedAttempt(
            holder.name,
            holder.epoch,
            self.sequence,
            attempts[0] if attempts else None,
            Durability(self._durability),
        )

    def give_up(self) -> None:
        """End it: its rows count for nothing. Does nothing after `finish`."""
        if not self._ended and os.getpid() == self._pid:
            self._end("given up")

    def _end(self, how: str) -> None:
        self._ended = how
        # The epoch goes on: attempts of other processes count.
        self._holder.leave()


class Stager:
    """A transactional id, in one of the processes that stage rows of its transactions.

    All of them name one `instance`; made by `Client.stager`. For one task at a time.
    """

    def __init__(
        self,
        holder: Holder,
        options: Callable[[Compression], ProducerOptions],
        *,
        timeout_s: float,
    ) -> None:
        self._holder = holder
        self._options = options
        self._timeout_s = timeout_s
        self._attempt: weakref.ref[Attempt] | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {shown(self.transactional_id)}, epoch {self.epoch}>"

    @property
    def transactional_id(self) -> str:
        """The id that it was opened with."""
        return self._holder.name

    @property
    def epoch(self) -> int:
        """Grows with the holders of the id, and when it is closed; -1 before the first attempt."""
        return self._holder.epoch

    @property
    def last_sequence(self) -> int:
        """Of the last transaction that had committed when the id was opened; -1: none had."""
        return self._holder.last_sequence

    @checked(sequence=number(0, TRANSACTION_SEQUENCE_MAX))
    def attempt(self, sequence: int) -> Attempt:
        """Begin to stage rows of transaction `sequence`; opens the id if that is due.

        Raises:
            TransactionFenced: another instance has opened the id since this one did.
            InvalidArgument: the attempt before has not ended.
        """
        before = None if self._attempt is None else self._attempt()
        if before is not None and not before._ended:
            raise InvalidArgument(
                f"an attempt of {shown(self.transactional_id)} is open: finish it or give it up"
                " first."
            )
        if self._attempt is not None and before is None and self._holder.has_rows:
            self.close()  # An attempt that was dropped left them.
        self._holder.resume(self._options, self._timeout_s)
        assert self.epoch >= 0
        attempt = Attempt(self._holder, self._options, sequence, timeout_s=self._timeout_s)
        self._attempt = weakref.ref(attempt)
        return attempt

    def close(self) -> None:
        """End the connections' part of it. The id stays as it is; attempts may begin again."""
        self._holder.leave()
