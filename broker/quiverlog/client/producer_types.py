"""The values that the producer's three machines pass to one another and to their host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from quiverlog.batch.codec import Encoded
from quiverlog.errors import InvalidArgument
from quiverlog.types import NO_EPOCH, NO_PRODUCER_ID, Compression, Durability
from quiverlog.wire import messages as m

from .delivery import Delivery, RowsDelivery

__all__ = [
    "CompressionChoice",
    "DurabilityChoice",
    "EncodedBatch",
    "Identity",
    "ProduceCall",
    "ProducerOptions",
    "Receiver",
    "Work",
]

CompressionChoice: TypeAlias = Compression | Literal["none", "lz4", "zstd"]
DurabilityChoice: TypeAlias = (
    Durability | Literal["memory", "flushed", "replicated", "replicated_flushed"]
)
"""As programs may write them; type checkers find a name that is none of these."""
Receiver: TypeAlias = Delivery | RowsDelivery
"""Who is told what becomes of a piece of a batch."""


class Identity(NamedTuple):
    """Producer id and epoch, by which a broker recognises a producer."""

    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """How a producer batches and how long it tries. Times in microseconds."""

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
    """A closed batch: its bytes, its numbers, and what is known of its fate."""

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
    """Who was sent it last, `sent_us` when."""
    sent_us: int = 0
    maybe_stored: bool = False
    """An attempt ended without telling whether the broker had stored it."""
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
    """What the host has to do now.

    `wake_at_us`: when to poll again if nothing happens before. `silent`: leaders that owe an answer
    for long, `deposed`: those of them that lead no more: nothing of them is waited for.
    """

    calls: list[ProduceCall]
    needs_metadata: bool
    needs_identity: bool
    wake_at_us: int | None
    silent: frozenset[int] = frozenset()
    deposed: frozenset[int] = frozenset()
