"""Checking what a produce brings: on the loop where that is quick, else by a job (docs/adr/0012).

A request with many batches, or whose rows cost more than `ROWS_COST_INLINE_MAX`, waits for a job.
Later produces of its connection queue behind it, to be stored in their order; all others pass.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import pyarrow as pa

from quiverlog.batch.codec import split_batches
from quiverlog.batch.header import BatchHeader, peek
from quiverlog.batch.validate import ROWS_COST_INLINE_MAX, CheckedBatch, check_batch, check_rows
from quiverlog.core.controller.configs import TopicConfig
from quiverlog.core.controller.topic_image import TopicImage
from quiverlog.errors import (
    BatchTooLarge,
    CorruptBatch,
    ThrottledBroker,
)
from quiverlog.limits import (
    BATCH_DECODED_BYTES_MAX,
    BATCH_ROWS_MAX,
    MIB,
    PRODUCE_BATCHES_MAX,
    PRODUCE_CHECK_BYTES_MAX,
    PRODUCE_CHECKS_MAX,
    PRODUCE_DECODED_BYTES_MAX,
    PRODUCE_ROWS_MAX,
)
from quiverlog.node.partitions.staged_checks import STAGED_SCHEMAS, InnerChecks
from quiverlog.types import Now
from quiverlog.wire import messages as m

__all__ = ["CheckJob", "EntryCheck", "HeldProduce", "HeldProduces", "check_quick"]

_BATCHES_INLINE_MAX: Final = 256
"""Of more, only the headers are read on the loop: a check costs some ten microseconds each."""
_STAGED_BATCHES_INLINE_MAX: Final = 16
_STAGED_BYTES_INLINE_MAX: Final = 2 * MIB
"""A second CRC of these takes less than the copy of the body that a job needs."""
_BEYOND: Final = "the request holds more than is checked at once: send this entry again."


class EntryCheck:
    """`error`: why the entry is refused, or a bug of ours. `batches`: of good entries. `inner`: of
    what is staged for a transaction, the batches in its rows."""

    __slots__ = (
        "_ahead_ms", "_behind_ms", "_full", "_limit", "_schemas", "batches", "error", "inner",
        "view",
    )  # fmt: skip

    def __init__(self, view: memoryview) -> None:
        self.view = view
        self.batches: list[CheckedBatch] = []
        self.error: Exception | None = None
        self.inner: InnerChecks | None = None
        self._schemas: Mapping[int, pa.Schema] = {}
        self._limit = 0
        self._full = False
        self._behind_ms = self._ahead_ms = -1

    def rules(self, schemas: Mapping[int, pa.Schema], config: TopicConfig) -> None:
        self._schemas = schemas
        self._limit, self._full = config.batch_bytes_max, config.validate_full
        self._behind_ms, self._ahead_ms = config.behind_ms_max, config.ahead_ms_max

    def staged_rules(self, topics: Mapping[bytes, TopicImage], config: TopicConfig) -> None:
        self.rules(STAGED_SCHEMAS, config)
        self.inner = InnerChecks(topics)

    def structure(self, now_wall_us: int) -> None:
        """Check everything but the rows. Raises as `check_batch`, and as `InnerChecks`."""
        self._outer_structure(now_wall_us)
        if self.inner is not None:
            self.inner.structure(self.batches, now_wall_us)

    def _outer_structure(self, now_wall_us: int) -> None:
        view = self.view
        if peek(view)[2] == len(view):
            self.one_batch(now_wall_us)
            return
        self.batches = [self._check(one, now_wall_us) for _, one in split_batches(view)]
        if not self.batches:
            raise CorruptBatch("the entry holds no batch.")
        decoded = self.decoded_bytes
        if decoded > BATCH_DECODED_BYTES_MAX:
            raise BatchTooLarge(
                f"an entry claims to hold {decoded} bytes, allowed are {BATCH_DECODED_BYTES_MAX}."
            )

    def one_batch(self, now_wall_us: int) -> CheckedBatch:
        """`structure` of an entry of one batch, as nearly all are."""
        batch = self._check(self.view, now_wall_us)
        self.batches = [batch]
        return batch

    def _check(self, view: memoryview, now_wall_us: int) -> CheckedBatch:
        return check_batch(
            view,
            schemas=self._schemas,
            bytes_max=self._limit,
            full=self._full,
            now_wall_us=now_wall_us,
            behind_ms_max=self._behind_ms,
            ahead_ms_max=self._ahead_ms,
        )

    @property
    def decoded_bytes(self) -> int:
        if self.inner is not None:
            return self.inner.decoded_bytes
        return sum(batch.metadata.decoded_bytes for batch in self.batches)

    @property
    def rows_cost(self) -> int:
        if self.inner is not None:
            return self.inner.rows_cost
        return sum(batch.rows_cost for batch in self.batches)

    def rows(self) -> None:
        """Raises CorruptBatch."""
        if self.inner is not None:  # Its own rows were read for those of the batches in them.
            self.inner.check_rows()
            return
        for batch in self.batches:
            check_rows(batch, full=self._full)

    def take(self, checked: EntryCheck) -> None:
        assert len(checked.view) == len(self.view)
        self.batches, self.error = checked.batches, checked.error
        self.inner = checked.inner

    def refuse(self, error: Exception) -> None:
        self.error = error
        self.batches = []

    @property
    def headers(self) -> list[tuple[BatchHeader, memoryview]]:
        batches = self.batches
        if len(batches) == 1:
            return [(batches[0].header, self.view)]
        found: list[tuple[BatchHeader, memoryview]] = []
        at = 0
        for batch in batches:
            end = at + batch.header.total_bytes
            found.append((batch.header, self.view[at:end]))
            at = end
        assert at == len(self.view), "the batches are all that the entry has"
        return found


# --- what a request may hold ------------------------------------------------------------------
def _weigh(checks: Sequence[EntryCheck]) -> tuple[int, int]:
    """Refuse what is too much by the headers alone. Returns the numbers of batches and rows."""
    batches = rows = 0
    for check in checks:
        if check.error is not None:
            continue
        entry_batches, entry_rows = _count(check.view)
        if check.inner is not None:  # A batch in each row; their rows are counted with them.
            entry_batches, entry_rows = entry_rows, 0
        if entry_batches > PRODUCE_BATCHES_MAX:
            check.refuse(BatchTooLarge(f"an entry has more than {PRODUCE_BATCHES_MAX} batches."))
        elif entry_rows > BATCH_ROWS_MAX and entry_batches > 1:
            text = f"an entry has {entry_rows} rows or more, allowed are {BATCH_ROWS_MAX}."
            check.refuse(BatchTooLarge(text))
        elif batches + entry_batches > PRODUCE_BATCHES_MAX or rows + entry_rows > PRODUCE_ROWS_MAX:
            check.refuse(ThrottledBroker(_BEYOND))
        else:
            batches += entry_batches
            rows += entry_rows
    assert batches <= PRODUCE_BATCHES_MAX
    assert rows <= PRODUCE_ROWS_MAX
    return batches, rows


def _count(view: memoryview) -> tuple[int, int]:
    """Batches and rows by unchecked headers, as far as needed to refuse."""
    batches = rows = 0
    try:
        for header, _ in split_batches(view):
            batches += 1
            rows += header.row_count
            if batches > PRODUCE_BATCHES_MAX or rows > BATCH_ROWS_MAX:
                break
    except CorruptBatch:
        batches += 1  # The check finds what is wrong.
    return batches, rows


def _check_structures(checks: Sequence[EntryCheck], rows: int, now_wall_us: int) -> int:
    """Check all but the rows. Returns what these will cost. `rows`: all but those inside others."""
    cost = decoded = 0
    for check in checks:
        if check.error is not None:
            continue
        try:
            check.structure(now_wall_us)
            entry_decoded = check.decoded_bytes
            if decoded + entry_decoded > PRODUCE_DECODED_BYTES_MAX:
                raise ThrottledBroker(_BEYOND)
            inner_rows = 0 if check.inner is None else check.inner.row_count
            if rows + inner_rows > PRODUCE_ROWS_MAX:
                raise ThrottledBroker(_BEYOND)
            decoded += entry_decoded
            rows += inner_rows
            cost += check.rows_cost
        except Exception as error:
            check.refuse(error)
    assert decoded <= PRODUCE_DECODED_BYTES_MAX
    return cost


def _check_rows(checks: Sequence[EntryCheck]) -> None:
    for check in checks:
        try:
            check.rows()
        except Exception as error:
            check.refuse(error)


def check_quick(checks: Sequence[EntryCheck], now_wall_us: int) -> bool:
    """Check all entries; False where that takes long and a CheckJob must do it."""
    if (
        len(checks) == 1
        and (first := checks[0]).error is None
        and first.inner is None
        and peek(first.view)[2] == len(first.view)
    ):
        try:  # One entry of one batch: there is nothing to add up.
            if first.one_batch(now_wall_us).rows_cost > ROWS_COST_INLINE_MAX:
                return False
            first.rows()
        except Exception as error:
            first.refuse(error)
        return True
    # Bounds of the request first, by headers and buffers: no row is read of one that is refused.
    batches, rows = _weigh(checks)
    if batches > _BATCHES_INLINE_MAX or _staged_is_much(checks, batches):
        return False
    if _check_structures(checks, rows, now_wall_us) > ROWS_COST_INLINE_MAX:
        return False
    _check_rows(checks)
    return True


def _staged_is_much(checks: Sequence[EntryCheck], batches: int) -> bool:
    # Each row is decoded and its batch checked, some 20 us, and each byte has a second CRC.
    staged_bytes = sum(len(check.view) for check in checks if check.inner is not None)
    return staged_bytes > _STAGED_BYTES_INLINE_MAX or (
        staged_bytes > 0 and batches > _STAGED_BATCHES_INLINE_MAX
    )


class CheckJob:
    """The bytes must not change meanwhile."""

    __slots__ = ("_checks", "_now_wall_us", "key", "kind")

    def __init__(self, connection_id: int, checks: Sequence[EntryCheck], now_wall_us: int) -> None:
        self.key = f"produces of connection {connection_id}"
        self.kind = "check rows"
        self._checks = checks
        self._now_wall_us = now_wall_us

    def run(self) -> Sequence[EntryCheck]:
        _, rows = _weigh(self._checks)
        _check_structures(self._checks, rows, self._now_wall_us)
        _check_rows(self._checks)
        return self._checks


# --- those that wait --------------------------------------------------------------------------
class HeldProduce:
    """`begin`: what to do at its turn; None: check and store it."""

    __slots__ = ("begin", "body", "checked", "connection_id", "request")

    def __init__(self, connection_id: int, request: m.ProduceRequest, body: memoryview) -> None:
        self.connection_id = connection_id
        self.request = request
        self.body = body
        self.checked = False
        self.begin: Callable[[Now], None] | None = None


class HeldProduces:
    """In line by connection; the first of a line has a job under way."""

    __slots__ = ("_held_bytes", "_lines", "byte_count", "count")

    def __init__(self) -> None:
        self._lines: dict[int, deque[HeldProduce]] = {}
        self._held_bytes: dict[int, int] = {}
        self.byte_count = 0
        self.count = 0

    def has_line(self, connection_id: int) -> bool:
        return connection_id in self._lines

    def hold(self, connection_id: int, request: m.ProduceRequest, body: memoryview) -> HeldProduce:
        """Raises ThrottledBroker: too many produces wait, or too many bytes."""
        line = self._lines.get(connection_id, ())
        # A connection may hold no more than is left for the others.
        free = PRODUCE_CHECKS_MAX - self.count
        free_bytes = PRODUCE_CHECK_BYTES_MAX - self.byte_count
        mine_bytes = self._held_bytes.get(connection_id, 0)
        if len(line) >= free or len(body) > free_bytes or mine_bytes > free_bytes:
            raise ThrottledBroker("too many produces wait for a check of their rows.")
        # A copy: the body is valid only during the call that brings it.
        held = HeldProduce(connection_id, request, memoryview(bytearray(body)))
        self._lines.setdefault(connection_id, deque()).append(held)
        self._held_bytes[connection_id] = mine_bytes + len(body)
        self.count += 1
        self.byte_count += len(body)
        assert self.count <= PRODUCE_CHECKS_MAX
        assert self.byte_count <= PRODUCE_CHECK_BYTES_MAX
        return held

    def release(self, held: HeldProduce) -> HeldProduce | None:
        """Returns the next of its line. A second call does nothing."""
        connection_id = held.connection_id
        line = self._lines.get(connection_id)
        if not line or line[0] is not held:
            return None
        line.popleft()
        self.count -= 1
        self.byte_count -= len(held.body)
        self._held_bytes[connection_id] -= len(held.body)
        assert self.count >= 0
        assert self.byte_count >= 0
        assert self.count or not self.byte_count, "nothing that waits takes no bytes"
        if line:
            return line[0]
        del self._lines[connection_id]
        held_bytes = self._held_bytes.pop(connection_id)
        assert held_bytes == 0, "a connection without held produces holds no bytes"
        return None
