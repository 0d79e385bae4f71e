"""What a client asks the coordinator of a transactional id: open, commit, abort, describe.

The leader of partition `crc32c(id) % partitions` of `__transactions` coordinates an id. Each
question may be sent again: its outcome is that of the one that took effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, TypeVar

from msgspec.structs import replace

from quiverlog.batch.checksum import crc32c
from quiverlog.client.base.arguments import shown
from quiverlog.client.base.commands import Operation, Reply
from quiverlog.client.base.results import moment
from quiverlog.client.cluster.metadata import check
from quiverlog.client.cluster.routing import Cluster, answers_of_leaders
from quiverlog.errors import (
    CommitUnknown,
    ConnectionFailed,
    CoordinatorNotReady,
    FeatureNotFinalised,
    InvalidArgument,
    InvalidRequest,
    NotAuthorized,
    NotLeader,
    QuiverlogError,
    QuotaExceeded,
    SequenceTaken,
    SequenceTooOld,
    StagedRowsLost,
    ThrottledBroker,
    TransactionBusy,
    TransactionClosed,
    TransactionFenced,
    UnknownTopic,
    UnknownTopicId,
    UnknownTransactionalId,
)
from quiverlog.types import (
    NO_EPOCH,
    NO_SEQUENCE,
    TRANSACTIONS_TOPIC,
    Durability,
    TopicPartition,
)
from quiverlog.wire import messages as m
from quiverlog.wire.transaction_messages import (
    AbortTransactionRequest,
    AbortTransactionResponse,
    CommittedAttempt,
    CommitTransactionRequest,
    CommitTransactionResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    OpenTransactionRequest,
    OpenTransactionResponse,
)

__all__ = [
    "Committed",
    "Outcome",
    "StagedAttempt",
    "TransactionalId",
    "Wait",
    "abort_attempts",
    "abort_transaction",
    "commit_attempts",
    "commit_staged",
    "commit_transaction",
    "find_transactional_id",
    "open_transaction",
]

T = TypeVar("T", bound=m.Response)
Wait = Literal["decided", "published"]
Outcome = Literal["committed", "aborted", "unknown"]

_COMMIT_TRY_MS: Final = 10_000
"""A coordinator may hold one COMMIT back for this long; then the client asks again."""

_REFUSED: Final = (
    CoordinatorNotReady,
    FeatureNotFinalised,
    InvalidRequest,
    NotAuthorized,
    NotLeader,
    QuotaExceeded,
    SequenceTaken,
    SequenceTooOld,
    StagedRowsLost,
    ThrottledBroker,
    TransactionBusy,
    TransactionClosed,
    TransactionFenced,
    UnknownTopicId,
    UnknownTransactionalId,
)
"""Answers of a broker that prove that this COMMIT has decided nothing; after any other it may."""

_NO_SUCH_EPOCH: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Committed:
    """The result of a commit.

    Attributes:
        sequence: of the transaction, under its transactional id.
        rows: of all topics together.
        durability: the weakest level of what the rows rest on.
        is_published: all rows are in their topics; False: they will be.
    """

    sequence: int
    rows: int
    durability: Durability
    is_published: bool


@dataclass(frozen=True, slots=True)
class TransactionalId:
    """What the cluster has of a transactional id.

    Attributes:
        epoch: of its newest holder; -1: it was never opened, or is forgotten.
        last_sequence: of the last transaction that has committed; -1: none has.
        last_committed: when.
        client_id: of its newest holder.
    """

    name: str
    epoch: int
    last_sequence: int
    last_committed: datetime | None
    client_id: str


@dataclass(frozen=True, slots=True)
class StagedAttempt:
    """What one process has staged of a transaction, for the one that commits it.

    Attributes:
        epoch: under which it is staged: all that a commit names have the same.
        attempt: the rows; None: there are none.
        durability: what the attempt asked for.
    """

    transactional_id: str
    epoch: int
    sequence: int
    attempt: CommittedAttempt | None = None
    durability: Durability = Durability.TOPIC_DEFAULT

    @property
    def rows(self) -> int:
        return 0 if self.attempt is None else self.attempt.row_count


def open_transaction(
    cluster: Cluster,
    request: OpenTransactionRequest,
    *,
    epoch_min: int = 0,
    until_published: bool = False,
    timeout_s: float | None = None,
) -> Operation[OpenTransactionResponse]:
    """Open an id.

    Args:
        epoch_min: an answer with an older epoch comes from a coordinator that was replaced.
        until_published: wait until readers have the transaction before.
    """

    def attempt() -> Operation[OpenTransactionResponse]:
        try:
            opened = yield from _answer(cluster, request, OpenTransactionResponse)
        except UnknownTopic:
            # The first transaction of the cluster: the controller makes the topics.
            yield from cluster.call_controller(request)
            raise CoordinatorNotReady("the topics of transactions are being made.") from None
        if opened.epoch < epoch_min:
            raise CoordinatorNotReady(
                f"epoch {opened.epoch} of {request.transactional_id!r} has ended."
            )
        if until_published and opened.is_publishing:
            raise TransactionBusy(
                f"transaction {opened.last_sequence} of {request.transactional_id!r} has committed,"
                " and not all of its rows are published yet."
            )
        return opened

    return (yield from cluster.retrying(attempt, timeout_s=timeout_s))


def commit_transaction(
    cluster: Cluster, request: CommitTransactionRequest, *, timeout_s: float
) -> Operation[CommitTransactionResponse]:
    """Raises CommitUnknown: a try had no answer. After any other error nothing is committed."""
    is_unknown = False
    deadline_s = cluster.clock() + timeout_s
    # Less than the client waits for an answer.
    held_ms = min(_COMMIT_TRY_MS, round(cluster.settings.request_timeout_s * 500))

    def attempt() -> Operation[CommitTransactionResponse]:
        nonlocal is_unknown
        left_ms = round((deadline_s - cluster.clock()) * 1000)
        asked = replace(request, timeout_ms=max(1, min(held_ms, left_ms)))
        place = yield from _place(cluster, request.transactional_id)
        was_unknown, is_unknown = is_unknown, True
        try:
            reply = yield from _reply(cluster, place, asked, asked.timeout_ms / 1000)
        except (ConnectionFailed, QuotaExceeded):  # It was not sent.
            is_unknown = was_unknown
            raise
        try:
            check(reply.response)
        except _REFUSED:
            is_unknown = was_unknown
            raise
        assert isinstance(reply.response, CommitTransactionResponse)
        return reply.response

    try:
        return (yield from cluster.retrying(attempt, timeout_s=timeout_s))
    except QuiverlogError as error:
        if not is_unknown:
            raise
        raise CommitUnknown(
            f"transaction {request.sequence} of {request.transactional_id!r} may have committed, or"
            f" still may: {error.message}"
        ) from error


def commit_staged(
    cluster: Cluster,
    request: CommitTransactionRequest,
    *,
    timeout_s: float,
    publish_s: float,
) -> Operation[CommitTransactionResponse]:
    """Commit, and wait for the publishing if the request does, for up to `publish_s` in all."""
    assert timeout_s > 0
    begun_s = cluster.clock()
    answer: CommitTransactionResponse | None = None
    left_s = timeout_s
    while answer is None or (request.wait and not answer.is_published):
        try:
            answer = yield from commit_transaction(cluster, request, timeout_s=left_s)
        except QuiverlogError:
            if answer is None:
                raise
            break  # It has committed: no answer about its rows changes that.
        left_s = begun_s + publish_s - cluster.clock()
        if left_s <= 0:
            break
    assert answer is not None
    return answer


def commit_attempts(
    cluster: Cluster,
    attempts: Sequence[StagedAttempt],
    *,
    wait: Wait,
    timeout_s: float,
    publish_s: float,
) -> Operation[Committed]:
    """Commit what several processes have staged."""
    transactional_id, sequence = _one_transaction(attempts)
    epochs = sorted({one.epoch for one in attempts})
    if len(epochs) > 1:
        raise TransactionClosed(
            f"transaction {sequence} of {shown(transactional_id)} is staged under the epochs"
            f" {', '.join(map(str, epochs))}: the id was closed meanwhile. Nothing is committed."
        )
    request = CommitTransactionRequest(
        transactional_id=transactional_id,
        epoch=epochs[0],
        sequence=sequence,
        attempts=[one.attempt for one in attempts if one.attempt is not None],
        durability=max(one.durability for one in attempts),
        wait=0 if wait == "decided" else 1,
    )
    answer = yield from commit_staged(cluster, request, timeout_s=timeout_s, publish_s=publish_s)
    return Committed(sequence, answer.row_count, Durability(answer.durability), answer.is_published)


def abort_attempts(
    cluster: Cluster, attempts: Sequence[StagedAttempt], *, timeout_s: float
) -> Operation[bool]:
    """End the newest epoch of these attempts. Returns True if the transaction had committed."""
    transactional_id, sequence = _one_transaction(attempts)
    request = AbortTransactionRequest(
        transactional_id=transactional_id,
        epoch=max(one.epoch for one in attempts),
        sequence=sequence,
    )
    return bool((yield from abort_transaction(cluster, request, timeout_s=timeout_s)).outcome)


def _one_transaction(attempts: Sequence[StagedAttempt]) -> tuple[str, int]:
    named = {(one.transactional_id, one.sequence) for one in attempts}
    if len(named) != 1:
        raise InvalidArgument(
            f"attempts={shown(sorted(named))}: give one or more, of one transaction."
        )
    return named.pop()


def abort_transaction(
    cluster: Cluster, request: AbortTransactionRequest, *, timeout_s: float | None = None
) -> Operation[AbortTransactionResponse]:
    def attempt() -> Operation[AbortTransactionResponse]:
        return (yield from _answer(cluster, request, AbortTransactionResponse))

    return (yield from cluster.retrying(attempt, timeout_s=timeout_s))


def find_transactional_id(cluster: Cluster, name: str) -> Operation[TransactionalId]:
    """Ask without opening the id: its holder goes on."""
    unknown = TransactionalId(name, NO_EPOCH, NO_SEQUENCE, None, "")

    def attempt() -> Operation[TransactionalId]:
        try:
            found = yield from _described(cluster, name)
            if found is not None:
                return found
            # A broker leaves out what it does not coordinate. This names an epoch that no id has:
            # it ends none, and only a coordinator says that the id is unknown.
            probe = AbortTransactionRequest(transactional_id=name, epoch=_NO_SUCH_EPOCH, sequence=0)
            yield from _answer(cluster, probe, AbortTransactionResponse)
        except (UnknownTopic, UnknownTransactionalId):
            return unknown
        except TransactionFenced:
            raise CoordinatorNotReady(f"{name!r} has come to another coordinator.") from None
        raise AssertionError("an epoch that no id has cannot be aborted")

    return (yield from cluster.retrying(attempt))


def _described(cluster: Cluster, name: str) -> Operation[TransactionalId | None]:
    request = DescribeTransactionsRequest(ids=[name])
    place = yield from _place(cluster, name)
    reply = yield from _reply(cluster, place, request)
    check(reply.response)
    assert isinstance(reply.response, DescribeTransactionsResponse)
    for one in reply.response.transactions:
        listing = one.listing
        if one.transactional_id == name and listing is not None:
            has_committed = listing.last_sequence >= 0
            return TransactionalId(
                name,
                listing.epoch,
                listing.last_sequence,
                moment(listing.last_committed_us) if has_committed else None,
                listing.client_id,
            )
    return None


def _answer(
    cluster: Cluster,
    request: OpenTransactionRequest | AbortTransactionRequest,
    kind: type[T],
) -> Operation[T]:
    place = yield from _place(cluster, request.transactional_id)
    reply = yield from _reply(cluster, place, request)
    check(reply.response)
    assert isinstance(reply.response, kind)
    return reply.response


def _place(cluster: Cluster, name: str) -> Operation[TopicPartition]:
    """Return the partition that has the id, once it has a leader."""
    topic = yield from cluster.topic(TRANSACTIONS_TOPIC)
    partition = crc32c(name.encode()) % len(topic.partitions)
    cluster.leader_address(topic, partition)
    return TopicPartition(TRANSACTIONS_TOPIC, partition)


def _reply(
    cluster: Cluster, place: TopicPartition, request: m.Request, held_s: float = 0
) -> Operation[Reply]:
    topic = yield from cluster.topic(place.topic)
    call = cluster.call(cluster.leader_address(topic, place.partition), request)
    (answer,) = yield from answers_of_leaders(cluster, [(call, [place])], held_s)
    if isinstance(answer, QuiverlogError):
        raise answer
    return answer
