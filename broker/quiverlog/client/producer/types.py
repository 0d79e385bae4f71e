"""The values that the producer's machines pass to each other, and the outcome of one `send`.

A send may be cut into pieces in several batches of several partitions. Its `Delivery` is done when
each piece is acknowledged, or when the first has failed for good.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from quiverlog.batch.codec import Encoded
from quiverlog.client.base.results import Produced
from quiverlog.errors import InvalidArgument, QuiverlogError
from quiverlog.types import NO_EPOCH, NO_PRODUCER_ID, Compression, Durability
from quiverlog.wire import messages as m

__all__ = [
    "CompressionChoice",
    "Delivery",
    "DurabilityChoice",
    "EncodedBatch",
    "Identity",
    "ProduceCall",
    "ProducerOptions",
    "Receiver",
    "RowsDelivery",
    "Work",
]


class Delivery:
    """Collects the acknowledgements of one send: the part of a future without thread and loop."""

    __slots__ = ("_open_pieces", "_produced", "error", "is_complete", "reported")

    def __init__(self) -> None:
        self._open_pieces = 0
        self._produced: list[Produced] = []
        self.is_complete = False
        """No further piece will be added."""
        self.error: QuiverlogError | None = None
        self.reported = False
        """The caller has received the error; flush does not raise it again."""

    @property
    def is_done(self) -> bool:
        """True if all pieces are acknowledged, or one has failed."""
        return self.error is not None or (self.is_complete and not self._open_pieces)

    @property
    def produced(self) -> list[Produced]:
        """The acknowledged rows, by partition and offset, neighbours joined."""
        joined: list[Produced] = []
        for piece in sorted(self._produced):
            last = joined[-1] if joined else None
            if (
                last is not None
                and last.partition == piece.partition
                and last.next_offset == piece.base_offset
                and last.durability == piece.durability
            ):
                joined[-1] = last._replace(
                    rows=last.rows + piece.rows, duplicate=last.duplicate or piece.duplicate
                )
            else:
                joined.append(piece)
        return joined

    # --- for the producer's core ----------------------------------------------------------------
    def add_piece(self) -> None:
        """Count a piece that was put into a batch."""
        self._open_pieces += 1

    def __repr__(self) -> str:
        name = type(self).__name__
        if self.error is not None:
            return f"<{name}: failed: {self.error}>"
        if not self.is_done:
            return f"<{name}: not acknowledged>"
        return f"<{name}: {sum(piece.rows for piece in self._produced):,} rows acknowledged>"

    def mark_complete(self) -> bool:
        """Record that all pieces have been added; return True if that makes it done."""
        self.is_complete = True
        return self.is_done

    def acknowledge(self, produced: Produced) -> None:
        """Record that a piece is stored."""
        assert self._open_pieces > 0
        self._open_pieces -= 1
        self._produced.append(produced)

    def fail(self, error: QuiverlogError) -> None:
        """Record that a piece failed for good; the first error stays."""
        self._open_pieces = max(0, self._open_pieces - 1)
        if self.error is None:
            self.error = error

    def halves(self, row_count: int) -> tuple[Delivery, Delivery]:
        """Return receivers for the two halves of a piece that was too large for a batch."""
        self.add_piece()
        return self, self

    def failed(self) -> Sequence[Delivery]:
        """Return the sends that fail with this piece."""
        return (self,)


class RowsDelivery:
    """The receiver of a run of rows that were sent one by one: each has its own delivery."""

    __slots__ = ("_deliveries",)

    def __init__(self, deliveries: Sequence[Delivery]) -> None:
        self._deliveries = deliveries

    def add_piece(self) -> None:
        """Count nothing: each row was counted when it was sent."""

    def acknowledge(self, produced: Produced) -> None:
        """Record that all rows are stored, one after the other."""
        assert produced.rows == len(self._deliveries)
        for i, delivery in enumerate(self._deliveries):
            delivery.acknowledge(produced._replace(base_offset=produced.base_offset + i, rows=1))

    def fail(self, error: QuiverlogError) -> None:
        """Fail each row with this error."""
        for delivery in self._deliveries:
            delivery.fail(error)

    def halves(self, row_count: int) -> tuple[RowsDelivery, RowsDelivery]:
        """Return receivers for the first `row_count` rows and for the rest."""
        return RowsDelivery(self._deliveries[:row_count]), RowsDelivery(
            self._deliveries[row_count:]
        )

    def failed(self) -> Sequence[Delivery]:
        """Return the sends that fail with these rows."""
        return self._deliveries


CompressionChoice: TypeAlias = Compression | Literal["none", "lz4", "zstd"]
DurabilityChoice: TypeAlias = (
    Durability | Literal["memory", "flushed", "replicated", "replicated_flushed"]
)
"""The forms of the arguments; type checkers find a name that is none of these."""
Receiver: TypeAlias = Delivery | RowsDelivery
"""Receives the outcome of a piece of a batch."""


class Identity(NamedTuple):
    """Producer id and epoch, by which a broker recognises a producer."""

    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """The bounds of a producer's batches and retries. Times in microseconds."""

    batch_rows: int
    batch_bytes: int
    linger_us: int
    compression: Compression
    durability: Durability
    buffer_bytes: int
    delivery_timeout_us: int
    request_timeout_us: int
    idempotent: bool = True
    partition: int | None = None

    def __post_init__(self) -> None:
        for name in ("batch_rows", "batch_bytes", "buffer_bytes", "delivery_timeout_us"):
            if getattr(self, name) <= 0:
                raise InvalidArgument(f"{name.removesuffix('_us')} must be above 0.")
        if self.linger_us < 0:
            raise InvalidArgument("linger must not be negative.")


@dataclass(slots=True, eq=False)
class EncodedBatch:
    """A closed batch: its bytes, its numbers and the state of its tries."""

    encoded: Encoded
    row_count: int
    identity: Identity
    sequence: int
    deadline_us: int
    pieces: list[tuple[Receiver, int]]
    index: int = -1
    """Counts the batches of a partition, in the order in which they were closed."""
    attempts: int = 0
    leader: int = -1
    """The node id that it was last sent to, at `sent_us`."""
    sent_us: int = 0
    maybe_stored: bool = False
    """A try ended without an answer on whether the broker had stored it."""
    last_failure: str = ""
    last_reason: str = ""
    """The kind of the last failure."""
    is_done: bool = False


class ProduceCall(NamedTuple):
    """A request for one leader and the batches in it, one per partition."""

    leader: int
    request: m.ProduceRequest
    body: list[Encoded]
    batches: dict[int, EncodedBatch]
    timeout_us: int


class Work(NamedTuple):
    """The host's next steps.

    `wake_at_us`: when to poll again at the latest. `silent`: leaders that have not answered for
    long. `deposed`: those that lead no more, so that the host stops waiting for them.
    """

    calls: list[ProduceCall]
    needs_metadata: bool
    needs_identity: bool
    wake_at_us: int | None
    silent: frozenset[int] = frozenset()
    deposed: frozenset[int] = frozenset()
