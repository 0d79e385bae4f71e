"""The values between the producer's machines, and the outcome of one `send`.

A send may be cut into pieces in several batches. Its `Delivery` is done when each piece is
acknowledged, or when the first has failed for good.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from quiverlog.batch.codec import Encoded
from quiverlog.client.base.commands import Operation
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
    """The acknowledgements of one send: a future without thread and loop."""

    __slots__ = ("_open_pieces", "_produced", "error", "is_complete", "reported")

    def __init__(self) -> None:
        self._open_pieces = 0
        self._produced: list[Produced] = []
        self.is_complete = False
        self.error: QuiverlogError | None = None
        # The caller has received the error; flush does not raise it again.
        self.reported = False

    @property
    def is_done(self) -> bool:
        return self.error is not None or (self.is_complete and not self._open_pieces)

    @property
    def produced(self) -> list[Produced]:
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

    def add_piece(self) -> None:
        self._open_pieces += 1

    def __repr__(self) -> str:
        name = type(self).__name__
        if self.error is not None:
            return f"<{name}: failed: {self.error}>"
        if not self.is_done:
            return f"<{name}: not acknowledged>"
        return f"<{name}: {sum(piece.rows for piece in self._produced):,} rows acknowledged>"

    def mark_complete(self) -> bool:
        self.is_complete = True
        return self.is_done

    def acknowledge(self, produced: Produced) -> None:
        assert self._open_pieces > 0
        self._open_pieces -= 1
        self._produced.append(produced)

    def fail(self, error: QuiverlogError) -> None:
        self._open_pieces = max(0, self._open_pieces - 1)
        if self.error is None:
            self.error = error

    def halves(self, row_count: int) -> tuple[Delivery, Delivery]:
        """Return receivers for the halves of a piece that was too large for a batch."""
        self.add_piece()
        return self, self

    def failed(self) -> Sequence[Delivery]:
        return (self,)


class RowsDelivery:
    """The receiver of rows sent one by one, each with its own delivery."""

    __slots__ = ("_deliveries",)

    def __init__(self, deliveries: Sequence[Delivery]) -> None:
        self._deliveries = deliveries

    def add_piece(self) -> None:
        """Do nothing: each row was counted when it was sent."""

    def acknowledge(self, produced: Produced) -> None:
        assert produced.rows == len(self._deliveries)
        for i, delivery in enumerate(self._deliveries):
            delivery.acknowledge(produced._replace(base_offset=produced.base_offset + i, rows=1))

    def fail(self, error: QuiverlogError) -> None:
        for delivery in self._deliveries:
            delivery.fail(error)

    def halves(self, row_count: int) -> tuple[RowsDelivery, RowsDelivery]:
        return RowsDelivery(self._deliveries[:row_count]), RowsDelivery(
            self._deliveries[row_count:]
        )

    def failed(self) -> Sequence[Delivery]:
        return self._deliveries


CompressionChoice: TypeAlias = Compression | Literal["none", "lz4", "zstd"]
DurabilityChoice: TypeAlias = (
    Durability | Literal["memory", "flushed", "replicated", "replicated_flushed"]
)
Receiver: TypeAlias = Delivery | RowsDelivery


class Identity(NamedTuple):
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """Times in microseconds."""

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
    encoded: Encoded
    row_count: int
    identity: Identity
    sequence: int
    deadline_us: int
    pieces: list[tuple[Receiver, int]]
    index: int = -1
    attempts: int = 0
    # The node id that it was last sent to, at `sent_us`.
    leader: int = -1
    sent_us: int = 0
    # A try ended without an answer on whether it is stored.
    maybe_stored: bool = False
    last_failure: str = ""
    last_reason: str = ""
    is_done: bool = False


class ProduceCall(NamedTuple):
    """A request for one leader, at most one batch per partition."""

    leader: int
    request: m.ProduceRequest
    body: list[Encoded]
    batches: dict[int, EncodedBatch]
    timeout_us: int


class Work(NamedTuple):
    """The host's next steps.

    `silent`: leaders without an answer for long. `deposed`: those that lead no more; the host stops
    waiting for them. `question`: of the core's own; the outcome goes to its `on_answer`.
    """

    calls: list[ProduceCall]
    needs_metadata: bool
    needs_identity: bool
    wake_at_us: int | None
    silent: frozenset[int] = frozenset()
    deposed: frozenset[int] = frozenset()
    question: Operation[int] | None = None
