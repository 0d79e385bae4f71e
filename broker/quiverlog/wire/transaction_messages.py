"""Transactions: clients open, commit, abort and list them (20 to 24); brokers count, publish,
forward and resolve the rows that PRODUCE has staged for them (53 to 56).

A client's request is checked by its `check`: what is beyond a bound ends no connection.
"""

from __future__ import annotations

import enum
from typing import Annotated, ClassVar, Final, TypeVar

from msgspec import Meta

from quiverlog.errors import InvalidRequest
from quiverlog.limits import (
    FORWARD_ENTRIES_MAX,
    RESOLVE_STAGED_ENTRIES_MAX,
    TRANSACTION_ATTEMPT_BYTES,
    TRANSACTION_ATTEMPTS_MAX,
    TRANSACTION_EPOCH_MAX,
    TRANSACTION_INSTANCE_BYTES_MAX,
    TRANSACTION_PARTS_MAX,
    TRANSACTION_SEQUENCE_MAX,
    TRANSACTION_TARGETS_MAX,
    TRANSACTION_TIMEOUT_MS_DEFAULT,
    TRANSACTION_TIMEOUT_MS_MAX,
    TRANSACTIONAL_ID_CHARS_MAX,
)
from quiverlog.types import NO_EPOCH, NO_SEQUENCE, Durability

from .messages import (
    Api,
    BrokerEndpoint,
    DurabilityLevel,
    ErrorCode,
    Few,
    Int32,
    Int64,
    Known,
    Moment,
    NodeId,
    Part,
    PerTopic,
    Request,
    Response,
    TopicId,
    UInt31,
    UInt63,
)

__all__ = [
    "COMMIT_CONTAINERS_MAX",
    "AbortTransactionRequest",
    "AbortTransactionResponse",
    "CommitTransactionRequest",
    "CommitTransactionResponse",
    "CommittedAttempt",
    "CommittedPart",
    "CountStagedRequest",
    "CountStagedResponse",
    "CountedAttempt",
    "CountedTarget",
    "DescribeTransactionsRequest",
    "DescribeTransactionsResponse",
    "ForwardPartition",
    "ForwardRequest",
    "ForwardResponse",
    "ForwardResult",
    "ListTransactionsRequest",
    "ListTransactionsResponse",
    "OpenTransactionRequest",
    "OpenTransactionResponse",
    "PublishRequest",
    "PublishResponse",
    "PublishWait",
    "PublishedTarget",
    "ResolveStagedRequest",
    "ResolveStagedResponse",
    "ResolvedState",
    "ResolvedTransaction",
    "StagedRows",
    "StagedTransaction",
    "TransactionDescription",
    "TransactionListing",
    "TransactionOffsets",
    "TransactionState",
    "UnservedPartition",
    "check_epoch_and_sequence",
    "check_transactional_id",
]

_T = TypeVar("_T")

TransactionalId = Annotated[str, Meta(max_length=TRANSACTIONAL_ID_CHARS_MAX)]
Instance = Annotated[bytes, Meta(max_length=TRANSACTION_INSTANCE_BYTES_MAX)]
Attempt = Annotated[bytes, Meta(max_length=TRANSACTION_ATTEMPT_BYTES)]
Digest = Annotated[bytes, Meta(max_length=32)]
Outcome = Annotated[int, Meta(ge=0, le=1)]
PerAttempt = Annotated[list[_T], Meta(max_length=TRANSACTION_ATTEMPTS_MAX)]
PerTarget = Annotated[list[_T], Meta(max_length=TRANSACTION_TARGETS_MAX)]
PerForward = Annotated[list[_T], Meta(max_length=FORWARD_ENTRIES_MAX)]
PerResolved = Annotated[list[_T], Meta(max_length=RESOLVE_STAGED_ENTRIES_MAX)]
# Of a client's COMMIT, wide enough for `check` to refuse what is beyond the bounds.
ManyAttempts = Annotated[list[_T], Meta(max_length=2 * TRANSACTION_ATTEMPTS_MAX)]
ManyParts = Annotated[list[_T], Meta(max_length=2 * TRANSACTION_PARTS_MAX)]

# Two arrays of each attempt, one of each part.
COMMIT_CONTAINERS_MAX: Final = 4 + 2 * (2 * TRANSACTION_ATTEMPTS_MAX + TRANSACTION_PARTS_MAX)


class TransactionState(enum.IntEnum):
    OPEN = 0
    DECIDING = 1
    PUBLISHING = 2
    CLOSED = 3


class ResolvedState(enum.IntEnum):
    LIVE = 0
    DEAD = 1
    PUBLISHING = 2
    PUBLISHED = 3


State = Annotated[int, Meta(ge=0, le=int(max(TransactionState)))]
Resolved = Annotated[int, Meta(ge=0, le=int(max(ResolvedState)))]


def check_transactional_id(transactional_id: str) -> None:
    """Raises InvalidRequest."""
    if not 1 <= len(transactional_id) <= TRANSACTIONAL_ID_CHARS_MAX:
        raise InvalidRequest(
            f"a transactional id has 1 to {TRANSACTIONAL_ID_CHARS_MAX} characters, this one"
            f" {len(transactional_id)}."
        )


def check_epoch_and_sequence(epoch: int, sequence: int) -> None:
    """Raises InvalidRequest: one of them, or the one that follows it, is none."""
    _check_number("epoch", epoch, 0, TRANSACTION_EPOCH_MAX)
    _check_number("sequence", sequence, 0, TRANSACTION_SEQUENCE_MAX)


def _check_number(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidRequest(f"`{name}` is {value}, allowed are {low} to {high}.")


# --- of clients ---------------------------------------------------------------------------------
class OpenTransactionRequest(Request, array_like=True, gc=False):
    """The holder of a transactional id begins, or shows that it lives. An instance that is new to
    the id fences the one before it."""

    API: ClassVar[Api] = Api.OPEN_TRANSACTION
    transactional_id: str = ""
    instance: bytes = b""
    timeout_ms: Int64 = TRANSACTION_TIMEOUT_MS_DEFAULT
    single_use: bool = False

    def check(self) -> None:
        """Raises InvalidRequest."""
        check_transactional_id(self.transactional_id)
        if not 1 <= len(self.instance) <= TRANSACTION_INSTANCE_BYTES_MAX:
            raise InvalidRequest(
                f"an instance has 1 to {TRANSACTION_INSTANCE_BYTES_MAX} bytes, this one"
                f" {len(self.instance)}."
            )
        _check_number("timeout_ms", self.timeout_ms, 1, TRANSACTION_TIMEOUT_MS_MAX)


class OpenTransactionResponse(Response, array_like=True, gc=False):
    """The epoch of this instance is safe."""

    API: ClassVar[Api] = Api.OPEN_TRANSACTION
    epoch: Known = NO_EPOCH
    last_sequence: Known = NO_SEQUENCE
    last_committed_us: Moment = 0
    is_publishing: bool = False
    controller: BrokerEndpoint | None = None


class CommittedPart(Part, array_like=True, gc=False):
    """The attempt's rows in one partition of `__staged`; others may have rows in between."""

    staged_partition: Int32 = -1
    first_offset: Int64 = -1
    next_offset: Int64 = -1
    row_count: Int64 = 0


class CommittedAttempt(Part, array_like=True, gc=False):
    """One part for each partition of `__staged` that has rows of the attempt."""

    attempt: bytes = b""
    row_count: Int64 = 0
    parts: ManyParts[CommittedPart] = []


class TransactionOffsets(Part, array_like=True, gc=False):
    """Kept for groups, which will append what they commit with the rows."""

    group: str = ""


class CommitTransactionRequest(Request, array_like=True, gc=False):
    """Commits the rows of these attempts and no others; sent again, it has the same outcome."""

    API: ClassVar[Api] = Api.COMMIT_TRANSACTION
    transactional_id: str = ""
    epoch: Int64 = NO_EPOCH
    sequence: Int64 = NO_SEQUENCE
    attempts: ManyAttempts[CommittedAttempt] = []
    durability: Int32 = Durability.TOPIC_DEFAULT
    timeout_ms: Int32 = 30_000
    wait: Int32 = 1
    offsets: Few[TransactionOffsets] = []

    def check(self) -> None:
        """Raises InvalidRequest."""
        check_transactional_id(self.transactional_id)
        check_epoch_and_sequence(self.epoch, self.sequence)
        _check_number(
            "durability", self.durability, Durability.TOPIC_DEFAULT, Durability.REPLICATED_FLUSHED
        )
        _check_number("timeout_ms", self.timeout_ms, 0, 2**31 - 1)
        _check_number("wait", self.wait, 0, 1)
        # Ignored, output would be committed without the offsets that it comes from.
        if self.offsets:
            raise InvalidRequest("`offsets` is kept for groups and must be empty.")
        if len(self.attempts) > TRANSACTION_ATTEMPTS_MAX:
            raise InvalidRequest(
                f"{len(self.attempts)} attempts, allowed are {TRANSACTION_ATTEMPTS_MAX}."
            )
        part_count = sum(len(one.parts) for one in self.attempts)
        if part_count > TRANSACTION_PARTS_MAX:
            raise InvalidRequest(f"{part_count} parts, allowed are {TRANSACTION_PARTS_MAX}.")
        seen: set[bytes] = set()
        for one in self.attempts:
            _check_attempt(one)
            if one.attempt in seen:
                raise InvalidRequest(f"attempt {one.attempt.hex()} is named twice.")
            seen.add(one.attempt)


def _check_attempt(one: CommittedAttempt) -> None:
    if len(one.attempt) != TRANSACTION_ATTEMPT_BYTES:
        raise InvalidRequest(
            f"an attempt has {TRANSACTION_ATTEMPT_BYTES} bytes, {one.attempt[:64].hex()} has"
            f" {len(one.attempt)}."
        )
    name = f"attempt {one.attempt.hex()}"
    partitions = set()
    row_count = 0
    for part in one.parts:
        where = f"{name}, staged partition {part.staged_partition}"
        # One range holds all that an attempt has there: PUBLISH takes what lies between two, too.
        if part.staged_partition < 0 or part.staged_partition in partitions:
            raise InvalidRequest(f"{where}: no such partition, or a second part of it.")
        if not 0 <= part.first_offset < part.next_offset or part.row_count < 1:
            raise InvalidRequest(
                f"{where}: {part.row_count} rows from {part.first_offset} to before"
                f" {part.next_offset}."
            )
        partitions.add(part.staged_partition)
        row_count += part.row_count
    if row_count != one.row_count:
        raise InvalidRequest(f"{name}: {one.row_count} rows, its parts have {row_count}.")


class CommitTransactionResponse(Response, array_like=True, gc=False):
    """Without an error the transaction has committed, whatever happens."""

    API: ClassVar[Api] = Api.COMMIT_TRANSACTION
    outcome: Outcome = 0
    row_count: UInt63 = 0
    durability: DurabilityLevel = Durability.MEMORY
    is_published: bool = False


class AbortTransactionRequest(Request, array_like=True, gc=False):
    """Ends the epoch: nothing is committed under it from then on."""

    API: ClassVar[Api] = Api.ABORT_TRANSACTION
    transactional_id: str = ""
    epoch: Int64 = NO_EPOCH
    sequence: Int64 = NO_SEQUENCE
    force: bool = False
    forget: bool = False

    def check(self) -> None:
        """Raises InvalidRequest."""
        check_transactional_id(self.transactional_id)
        # An operator ends what is open without looking it up.
        if not (self.force or self.forget):
            # Above those that an id gets: it ends none, and asks whether the id is known.
            _check_number("epoch", self.epoch, 0, 2**63 - 1)
            _check_number("sequence", self.sequence, 0, 2**63 - 1)


class AbortTransactionResponse(Response, array_like=True, gc=False):
    """What became of the sequence is decided and safe."""

    API: ClassVar[Api] = Api.ABORT_TRANSACTION
    outcome: Outcome = 0


class ListTransactionsRequest(Request, array_like=True, gc=False):
    """Asks a broker for the ids that it coordinates, in pages."""

    API: ClassVar[Api] = Api.LIST_TRANSACTIONS
    states: Few[Int32] | None = None
    first_id: str = ""


class TransactionListing(Part, array_like=True, gc=False):
    transactional_id: TransactionalId = ""
    state: State = 0
    epoch: Known = NO_EPOCH
    instance: Instance = b""
    client_id: str = ""
    last_sequence: Known = NO_SEQUENCE
    last_committed_us: Moment = 0
    silent_ms: Known = -1


class ListTransactionsResponse(Response, array_like=True, gc=False):
    """The ids that the broker `node_id` coordinates, in order."""

    API: ClassVar[Api] = Api.LIST_TRANSACTIONS
    node_id: NodeId = -1
    transactions: PerTopic[TransactionListing] = []
    next_id: str = ""


class DescribeTransactionsRequest(Request, array_like=True, gc=False):
    """Asks a broker what it has of transactions, as coordinator and as leader of `__staged`, in
    pages."""

    API: ClassVar[Api] = Api.DESCRIBE_TRANSACTIONS
    ids: PerTopic[str] | None = None
    first_id: str = ""


class StagedRows(Part, array_like=True, gc=False):
    """Rows of an id in a partition of `__staged` that the broker leads."""

    partition: UInt31 = 0
    row_count: UInt63 = 0
    byte_count: UInt63 = 0
    oldest_ms: UInt63 = 0
    missing_count: UInt63 = 0


class PublishWait(Part, array_like=True, gc=False):
    """A partition that the rows of a decided transaction have not reached, and why."""

    name: str = ""
    topic_id: TopicId = b""
    partition: UInt31 = 0
    reason: ErrorCode = 0
    reason_text: str = ""
    since_us: Moment = 0
    row_count: UInt63 = 0


class TransactionDescription(Part, array_like=True, gc=False):
    """An id of which the broker has nothing is left out."""

    transactional_id: TransactionalId = ""
    listing: TransactionListing | None = None
    timeout_ms: UInt63 = 0
    single_use: bool = False
    staged: Few[StagedRows] = []
    waits: Few[PublishWait] = []


class UnservedPartition(Part, array_like=True, gc=False):
    """A partition of an internal topic that the broker leads and cannot serve: what it asks of it
    is refused until another broker leads, or a later version runs."""

    name: str = ""
    partition: UInt31 = 0
    why: str = ""


class DescribeTransactionsResponse(Response, array_like=True, gc=False):
    """What the broker `node_id` has of these ids, in order; and of all ids together, what is staged
    there and what waits to be published from there."""

    API: ClassVar[Api] = Api.DESCRIBE_TRANSACTIONS
    node_id: NodeId = -1
    transactions: PerTopic[TransactionDescription] = []
    next_id: str = ""
    staged_bytes: UInt63 = 0
    staged_bytes_max: UInt63 = 0
    staged_oldest_ms: UInt63 = 0
    waits: Few[PublishWait] = []
    unserved: Few[UnservedPartition] = []


# --- between brokers ----------------------------------------------------------------------------
class ForwardPartition(Part, array_like=True, gc=False):
    """Batches of one publish, which have its numbers already."""

    topic_id: TopicId = b""
    partition: Int32 = -1
    leader_epoch: Int32 = NO_EPOCH
    durability: Int32 = Durability.REPLICATED
    producer_id: Int64 = -1
    base_sequence: Int64 = -1
    batch_bytes: Int64 = 0


class ForwardRequest(Request, array_like=True, gc=False):
    """Committed rows, from a leader of `__staged` to the leader of their partitions. Body: the
    partitions' batches, one after the other, in the order of `partitions`."""

    API: ClassVar[Api] = Api.FORWARD
    broker_id: Int32 = -1
    # A leader does not check who publishes: by the numbers, the bytes are the same from any.
    timeout_ms: Int32 = 30_000
    partitions: PerForward[ForwardPartition] = []


class ForwardResult(Part, array_like=True, gc=False):
    """The rows are stored and safe. With OUT_OF_ORDER_SEQUENCE nothing is stored, and the
    publisher goes back to `expected_sequence`."""

    topic_id: TopicId = b""
    partition: Int32 = -1
    error_code: ErrorCode = 0
    error_message: str = ""
    expected_sequence: Known = NO_SEQUENCE
    base_offset: Known = -1
    end_offset: Known = -1
    durability: DurabilityLevel = Durability.MEMORY


class ForwardResponse(Response, array_like=True, gc=False):
    API: ClassVar[Api] = Api.FORWARD
    partitions: PerForward[ForwardResult] = []


class CountedAttempt(Part, array_like=True, gc=False):
    attempt: Attempt = b""
    row_count: UInt63 = 0
    first_offset: UInt63 = 0
    next_offset: UInt63 = 0


class CountStagedRequest(Request, array_like=True, gc=False):
    """The coordinator asks, before it decides, whether these attempts have their rows."""

    API: ClassVar[Api] = Api.COUNT_STAGED
    broker_id: Int32 = -1
    partition: Int32 = -1
    leader_epoch: Int32 = NO_EPOCH
    transactional_id: TransactionalId = ""
    epoch: Int64 = NO_EPOCH
    sequence: Int64 = NO_SEQUENCE
    attempts: PerAttempt[CountedAttempt] = []


class CountedTarget(Part, array_like=True, gc=False):
    topic_id: TopicId = b""
    partition: Int32 = -1
    # May be above 2^31 - 1, which the coordinator refuses: sequences of a publish end there.
    row_count: UInt63 = 0


class CountStagedResponse(Response, array_like=True, gc=False):
    """`is_whole`: all rows are there, staged under this epoch and sequence, and as safe as their
    level. Under the leader's lease only."""

    API: ClassVar[Api] = Api.COUNT_STAGED
    is_whole: bool = False
    targets: PerTarget[CountedTarget] = []
    durability: DurabilityLevel = Durability.MEMORY


class PublishRequest(Request, array_like=True, gc=False):
    """The transaction is decided: the leader of a partition of `__staged` publishes its part."""

    API: ClassVar[Api] = Api.PUBLISH
    broker_id: Int32 = -1
    partition: Int32 = -1
    leader_epoch: Int32 = NO_EPOCH
    transactional_id: TransactionalId = ""
    epoch: Int64 = NO_EPOCH
    sequence: Int64 = NO_SEQUENCE
    attempts: PerAttempt[Attempt] = []
    first_offset: Int64 = -1
    next_offset: Int64 = -1
    durability: Int32 = Durability.TOPIC_DEFAULT
    # An answer that is held back longer than its asker waits would be lost.
    max_wait_ms: Int32 = 0
    # -1: not given, by an older coordinator.
    row_count: Int64 = -1


class PublishedTarget(Part, array_like=True, gc=False):
    topic_id: TopicId = b""
    partition: Int32 = -1
    end_offset: Known = -1
    row_count: UInt31 = 0


class PublishResponse(Response, array_like=True, gc=False):
    """Without an error all rows are in their topics and safe. `durability`: the weakest."""

    API: ClassVar[Api] = Api.PUBLISH
    targets: PerTarget[PublishedTarget] = []
    durability: DurabilityLevel = Durability.MEMORY


class StagedTransaction(Part, array_like=True, gc=False):
    """`pins_front`: the room is nearly full, and what lies behind these rows cannot be given up."""

    transactional_id: TransactionalId = ""
    epoch: Int64 = NO_EPOCH
    sequence: Int64 = NO_SEQUENCE
    pins_front: bool = False


class ResolveStagedRequest(Request, array_like=True, gc=False):
    """A leader of `__staged` asks the coordinator what became of transactions with rows there."""

    API: ClassVar[Api] = Api.RESOLVE_STAGED
    broker_id: Int32 = -1
    transactions: PerResolved[StagedTransaction] = []

    def check(self) -> None:
        """Raises InvalidRequest."""
        for number, one in enumerate(self.transactions):
            try:
                check_transactional_id(one.transactional_id)
                check_epoch_and_sequence(one.epoch, one.sequence)
            except InvalidRequest as error:
                raise InvalidRequest(f"transaction {number}: {error.message}") from None


class ResolvedTransaction(Part, array_like=True, gc=False):
    """DEAD is true for ever. `digest`: of the attempts that were decided."""

    error_code: ErrorCode = 0
    error_message: str = ""
    state: Resolved = 0
    digest: Digest = b""


class ResolveStagedResponse(Response, array_like=True, gc=False):
    """One result for each transaction of the request, in its order."""

    API: ClassVar[Api] = Api.RESOLVE_STAGED
    results: PerResolved[ResolvedTransaction] = []
