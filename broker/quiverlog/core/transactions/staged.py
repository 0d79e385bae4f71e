"""The index of one partition of `__staged`: what lies staged, what is published, what may go.

A leader feeds it in log order: rows of kind 0 at their append, the others once they are safe.

Invariants:
- Staged rows go when their transaction is published, when its coordinator has answered that it
  never will be, or when a later one of their id is published here; and no others.
- What a publish row names stays until its row of kind 2 is safe.
- A number of a publish is above all that this leader and the leaders before it have given.
- Counts stay within the bounds below: columns of numbers hold them, in at most 64 MiB.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from quiverlog.core.transactions.staged_rows import (
    SHARE,
    DoneRow,
    PublishRow,
    PublishTarget,
    StagedRow,
    above_share,
)
from quiverlog.errors import StagingFull
from quiverlog.limits import MIB

__all__ = [
    "ASK_AFTER_US",
    "NEARLY_FULL_PERCENT",
    "STAGED_ATTEMPTS_MAX",
    "STAGED_BATCHES_MAX",
    "STAGED_ENDS_MAX",
    "STAGED_ID_BYTES_MAX",
    "AttemptRange",
    "Counted",
    "Done",
    "Key",
    "Known",
    "New",
    "Published",
    "Staged",
    "StagedOf",
]

STAGED_ATTEMPTS_MAX: Final = 100_000
STAGED_BATCHES_MAX: Final = 250_000
STAGED_ID_BYTES_MAX: Final = 4 * MIB
"""UTF-8 of all transactional ids with rows in the partition: 41 bytes for each attempt."""
STAGED_ENDS_MAX: Final = 65_536
"""Ends of publishes that are remembered, for a coordinator that asks again. The oldest go first."""
ASK_AFTER_US: Final = 60_000_000
"""The coordinator is asked about an attempt that was silent for this, and again after it."""
NEARLY_FULL_PERCENT: Final = 80
"""Of a bound: above, undecided rows at the front go."""
_TARGET_ROWS_MAX: Final = 2**31 - 1

_KEY: Final = struct.Struct(">iqq")
"""Holder, epoch and sequence; or transaction and the two halves of an attempt. As bytes, whose hash
no client foresees: the numbers are theirs."""
_ATTEMPT: Final = struct.Struct(">qq")


class Key(NamedTuple):
    """Names one transaction, and no other, whenever and wherever it is used."""

    transactional_id: str
    epoch: int
    sequence: int


class AttemptRange(NamedTuple):
    """An attempt's rows in this partition: all of them lie from `first_offset` to before
    `next_offset`."""

    attempt: bytes
    row_count: int
    first_offset: int
    next_offset: int


class Counted(NamedTuple):
    """`targets`: rows by (topic id, partition); meaningful where `is_whole`."""

    is_whole: bool
    targets: dict[tuple[bytes, int], int]


class Done(NamedTuple):
    """Published, as `row` records, or is to record; None: that is not remembered."""

    row: DoneRow | None


class Known(NamedTuple):
    """The publish row is in the log, or on its way."""


class New(NamedTuple):
    """`row` is to be proposed; when it is safe, and never before, its rows are forwarded.
    `missing_count`: rows that were counted for the decision, and that a fault has taken since."""

    row: PublishRow
    missing_count: int


Published = Done | Known | New


class StagedOf(NamedTuple):
    """What an id has staged here."""

    transactional_id: str
    batch_count: int
    row_count: int
    byte_count: int
    oldest_us: int


# --- columns ------------------------------------------------------------------------------------
class _Table:
    """Columns of equal length. Slot 0 stands for none; one that is given back is used again."""

    __slots__ = ("_columns", "_free", "count")

    def __init__(self, *columns: array[int]) -> None:
        self._columns = columns
        self._free = array("i")
        self.count = 0
        for column in columns:
            assert not column
            column.append(0)

    def take(self) -> int:
        self.count += 1
        if self._free:
            return self._free.pop()
        for column in self._columns:
            column.append(0)
        return len(self._columns[0]) - 1

    def give_back(self, *slots: int) -> None:
        self.count -= len(slots)
        assert self.count >= 0
        self._free.extend(slots)
        if not self.count:
            # The memory of a burst is not kept.
            del self._free[:]
            for column in self._columns:
                assert not column[0]
                del column[1:]


class _Ring:
    """An order of slots that any of them may leave; slot 0 closes it."""

    __slots__ = ("_following", "_previous")

    def __init__(self, previous: array[int], following: array[int]) -> None:
        self._previous = previous
        self._following = following

    @property
    def first(self) -> int:
        return self._following[0]

    def append(self, slot: int) -> None:
        last = self._previous[0]
        self._following[last] = self._previous[0] = slot
        self._previous[slot] = last
        self._following[slot] = 0

    def remove(self, slot: int) -> None:
        previous, following = self._previous[slot], self._following[slot]
        self._following[previous] = following
        self._previous[following] = previous


class _Batches(_Table):
    """A batch that is staged: a row of kind 0. `following`: the next one of its attempt."""

    __slots__ = ("byte_count", "following", "offset", "row_count", "target")

    def __init__(self) -> None:
        self.offset = array("q")
        self.target, self.following = array("i"), array("i")
        self.row_count, self.byte_count = array("i"), array("i")
        super().__init__(self.offset, self.target, self.following, self.row_count, self.byte_count)


class _Attempts(_Table):
    """An attempt of a transaction, named by two halves. `quiet_us`: since then neither a row nor
    a question."""

    __slots__ = ("first", "following", "high", "last", "low", "quiet", "quiet_us", "transaction")

    def __init__(self) -> None:
        self.transaction, self.following = array("i"), array("i")
        self.first, self.last = array("i"), array("i")
        self.high, self.low = array("q"), array("q")
        self.quiet_us = array("q")
        earlier, later = array("i"), array("i")
        # The longest silent one is the first.
        self.quiet = _Ring(earlier, later)
        super().__init__(
            self.transaction, self.following, self.first, self.last, self.high, self.low,
            self.quiet_us, earlier, later,
        )  # fmt: skip


class _Transactions(_Table):
    """Rows under one (id, epoch, sequence). `bytes_before`: staged before its first row."""

    __slots__ = (
        "attempt", "begun_us", "bytes_before", "epoch", "first_offset", "holder", "order",
        "others_after", "others_before", "sequence",
    )  # fmt: skip

    def __init__(self) -> None:
        self.holder, self.attempt = array("i"), array("i")
        self.epoch, self.sequence = array("q"), array("q")
        self.first_offset, self.bytes_before, self.begun_us = array("q"), array("q"), array("q")
        # A ring of those of one id, without a slot 0.
        self.others_before, self.others_after = array("i"), array("i")
        earlier, later = array("i"), array("i")
        self.order = _Ring(earlier, later)
        super().__init__(
            self.holder, self.attempt, self.epoch, self.sequence, self.first_offset,
            self.bytes_before, self.begun_us, self.others_before, self.others_after, earlier, later,
        )  # fmt: skip


class _Holders(_Table):
    """A transactional id with rows here, and all that it has."""

    __slots__ = ("attempt_count", "batch_count", "byte_count", "name", "transaction")

    def __init__(self) -> None:
        self.transaction = array("i")
        self.attempt_count, self.batch_count = array("i"), array("i")
        self.byte_count = array("q")
        self.name: list[bytes] = [b""]
        super().__init__(self.transaction, self.attempt_count, self.batch_count, self.byte_count)


class _Targets(_Table):
    """A partition that staged rows are for, and how many batches."""

    __slots__ = ("batch_count", "name")

    def __init__(self) -> None:
        self.batch_count = array("i")
        self.name: dict[int, tuple[bytes, int]] = {}
        super().__init__(self.batch_count)


class Staged:
    """`make_id` gives the producer id of the n-th publish of this leader; `first_publish`: of what
    it has given before, under the same leader epoch."""

    __slots__ = (
        "_attempt_slots", "_attempts", "_batches", "_done", "_end_count", "_ending",
        "_holder_slots", "_holders", "_id_bytes", "_make_id", "_pending", "_publishes",
        "_staged_bytes", "_target_slots", "_targets", "_transaction_slots", "_transactions",
        "next_offset", "next_publish",
    )  # fmt: skip

    def __init__(self, make_id: Callable[[int], int], first_publish: int = 0) -> None:
        self._make_id = make_id
        self.next_publish = first_publish
        self.next_offset = 0
        """Behind the newest row that was fed."""
        self._batches = _Batches()
        self._attempts = _Attempts()
        self._transactions = _Transactions()
        self._holders = _Holders()
        self._targets = _Targets()
        self._attempt_slots: dict[bytes, int] = {}
        self._transaction_slots: dict[bytes, int] = {}
        self._holder_slots: dict[bytes, int] = {}
        self._target_slots: dict[tuple[bytes, int], int] = {}
        self._id_bytes = 0
        # Of all rows that were ever fed.
        self._staged_bytes = 0
        # Publishes that are proposed: the offset that their row has at least. Ends of such.
        self._pending: dict[Key, int] = {}
        self._ending: dict[Key, DoneRow] = {}
        # Those whose row is safe, in log order, with its offset; and those that are done.
        self._publishes: dict[Key, tuple[int, PublishRow]] = {}
        self._done: dict[Key, DoneRow] = {}
        self._end_count = 0

    # --- rows of kind 0 ------------------------------------------------------------------------
    def check_room(self, rows: Iterable[StagedRow]) -> None:
        """Raise StagingFull or TransactionTooLarge where the rows of one append are too many."""
        batches: dict[str, int] = {}
        attempts: dict[str, set[tuple[int, int, bytes]]] = {}
        newest: dict[str, StagedRow] = {}
        for row in rows:
            newest[row.transactional_id] = row
            batches[row.transactional_id] = batches.get(row.transactional_id, 0) + 1
            if self._attempt_slot(row) == 0:
                new = attempts.setdefault(row.transactional_id, set())
                new.add((row.epoch, row.sequence, row.attempt))
        id_bytes = self._id_bytes
        for transactional_id, batch_count in batches.items():
            name = transactional_id.encode()
            holder = self._holder_slots.get(name, 0)
            id_bytes += 0 if holder else len(name)
            new_count = len(attempts.get(transactional_id, ()))
            for bound, unit, held, added in (
                (STAGED_BATCHES_MAX, "batches", self._holders.batch_count[holder], batch_count),
                (STAGED_ATTEMPTS_MAX, "attempts", self._holders.attempt_count[holder], new_count),
            ):
                if added and held + added > bound // SHARE:
                    raise above_share(
                        f"{transactional_id[:64]!r} would have {held + added} {unit} staged in one"
                        f" partition of `__staged`, the most for one id are {bound // SHARE}",
                        "write with `deliveryMode=at_least_once`.",
                        added <= bound // SHARE and self.has_others(newest[transactional_id]),
                    )
        for bound, what, held, added in (
            (STAGED_BATCHES_MAX, "batches", self._batches.count, sum(batches.values())),
            (STAGED_ATTEMPTS_MAX, "attempts", self._attempts.count,
             sum(map(len, attempts.values()))),
            (STAGED_ID_BYTES_MAX, "bytes of transactional ids", id_bytes, 0),
        ):  # fmt: skip
            if held + added > bound:
                raise StagingFull(
                    f"a partition of `__staged` would have {held + added} {what}, the most are"
                    f" {bound}."
                )

    def stage(self, offset: int, row: StagedRow, now_us: int) -> None:
        """Record a row of kind 0 that was appended."""
        self._passed(offset)
        batches, attempts = self._batches, self._attempts
        holder = self._holder(row.transactional_id.encode())
        transaction = self._transaction(holder, row, offset, now_us)
        attempt = self._attempt(transaction, holder, row.attempt)
        batch = batches.take()
        batches.offset[batch] = offset
        batches.following[batch] = 0
        batches.row_count[batch] = row.row_count
        batches.byte_count[batch] = row.byte_count
        batches.target[batch] = self._target((row.topic_id, row.partition))
        if attempts.first[attempt]:
            batches.following[attempts.last[attempt]] = batch
            attempts.quiet.remove(attempt)
        else:
            attempts.first[attempt] = batch
        attempts.last[attempt] = batch
        attempts.quiet_us[attempt] = now_us
        attempts.quiet.append(attempt)
        self._holders.batch_count[holder] += 1
        self._holders.byte_count[holder] += row.byte_count
        self._staged_bytes += row.byte_count

    def _holder(self, name: bytes) -> int:
        holder = self._holder_slots.get(name)
        if holder is None:
            holders = self._holders
            holder = self._holder_slots[name] = holders.take()
            if holder == len(holders.name):
                holders.name.append(name)
            else:
                holders.name[holder] = name
            for column in (holders.transaction, holders.attempt_count, holders.batch_count):
                column[holder] = 0
            holders.byte_count[holder] = 0
            self._id_bytes += len(name)
        return holder

    def _transaction(self, holder: int, row: StagedRow, offset: int, now_us: int) -> int:
        key = _KEY.pack(holder, row.epoch, row.sequence)
        one = self._transaction_slots.get(key)
        if one is not None:
            return one
        table = self._transactions
        one = self._transaction_slots[key] = table.take()
        table.holder[one] = holder
        table.epoch[one], table.sequence[one] = row.epoch, row.sequence
        table.attempt[one] = 0
        table.first_offset[one] = offset
        table.bytes_before[one] = self._staged_bytes
        table.begun_us[one] = now_us
        table.order.append(one)
        after = self._holders.transaction[holder] or one
        before = table.others_before[after] if after != one else one
        table.others_after[one], table.others_before[one] = after, before
        table.others_after[before] = table.others_before[after] = one
        self._holders.transaction[holder] = after
        return one

    def _attempt(self, transaction: int, holder: int, name: bytes) -> int:
        high, low = _ATTEMPT.unpack(name)
        key = _KEY.pack(transaction, high, low)
        attempt = self._attempt_slots.get(key)
        if attempt is None:
            attempts = self._attempts
            attempt = self._attempt_slots[key] = attempts.take()
            attempts.transaction[attempt] = transaction
            attempts.high[attempt], attempts.low[attempt] = high, low
            attempts.first[attempt] = attempts.last[attempt] = 0
            attempts.following[attempt] = self._transactions.attempt[transaction]
            self._transactions.attempt[transaction] = attempt
            self._holders.attempt_count[holder] += 1
        return attempt

    def _target(self, name: tuple[bytes, int]) -> int:
        target = self._target_slots.get(name)
        if target is None:
            target = self._target_slots[name] = self._targets.take()
            self._targets.name[target] = name
            self._targets.batch_count[target] = 0
        self._targets.batch_count[target] += 1
        return target

    # --- before the decision -------------------------------------------------------------------
    def count(self, key: Key, attempts: Iterable[AttemptRange], safe_offset: int) -> Counted:
        """Whether all rows of these attempts lie here, under exactly this epoch and sequence, in
        the ranges that are named, and below `safe_offset`."""
        transaction = self._transaction_slot(key)
        batches = self._batches
        counts: dict[int, int] = {}
        is_whole = True
        # What a later row would change is not whole: the decision comes after this answer.
        for one in attempts:
            row_count = 0
            batch = self._attempts.first[self._named(transaction, one.attempt)]
            while batch:
                # A row elsewhere would be published with the others, and is not counted.
                is_whole &= one.first_offset <= batches.offset[batch] < one.next_offset
                count, target = batches.row_count[batch], batches.target[batch]
                row_count += count
                counts[target] = counts.get(target, 0) + count
                batch = batches.following[batch]
            is_whole &= row_count == one.row_count and one.next_offset <= safe_offset
        names = self._targets.name
        return Counted(is_whole, {names[target]: count for target, count in counts.items()})

    # --- publishing ----------------------------------------------------------------------------
    def publish(
        self,
        key: Key,
        attempts: Iterable[bytes],
        first_offset: int,
        next_offset: int,
        durability: int,
        row_count: int,
        log_start: int,
    ) -> Published:
        """Decide on the part of a committed transaction that lies here.

        Args:
            row_count: of the part; -1: not known.
        """
        done = self._done.get(key) or self._ending.get(key)
        if done is not None:
            return Done(done)
        if key in self._publishes or key in self._pending:
            return Known()
        if log_start >= next_offset:
            # Nothing below the log start is undecided or unpublished.
            return Done(None)
        # The log of a leader under its lease may end before them: what power failures of all
        # replicas took never comes back, and the others are not to wait for it.
        targets = self._plan(key, attempts, first_offset, next_offset)
        found = sum(sum(one.row_counts) for one in targets)
        row = PublishRow(*key, self._make_id(self.next_publish), durability, targets)
        return New(row, max(0, row_count - found))

    def _plan(
        self, key: Key, attempts: Iterable[bytes], first_offset: int, next_offset: int
    ) -> tuple[PublishTarget, ...]:
        transaction = self._transaction_slot(key)
        batches = self._batches
        found: list[int] = []
        offset_of, target_of, following = batches.offset, batches.target, batches.following
        for name in attempts:
            batch = self._attempts.first[self._named(transaction, name)]
            while batch:
                if first_offset <= offset_of[batch] < next_offset:
                    found.append(batch)
                batch = following[batch]
        # Read once from front to end, and stored as its clients have sent them.
        found.sort(key=offset_of.__getitem__)
        plan: dict[int, PublishTarget] = {}
        for batch in found:
            made = plan.get(target_of[batch])
            if made is None:
                name_of = self._targets.name[target_of[batch]]
                made = plan[target_of[batch]] = PublishTarget(*name_of, array("q"), array("i"))
            made.offsets.append(offset_of[batch])
            made.row_counts.append(batches.row_count[batch])
        assert all(one.row_count <= _TARGET_ROWS_MAX for one in plan.values())
        return tuple(plan.values())

    def unfinished(self) -> Iterator[PublishRow]:
        """Publishes without a row of kind 2, in the order of their rows."""
        return (row for _, row in self._publishes.values())

    # --- records -------------------------------------------------------------------------------
    def pend(self, row: PublishRow | DoneRow) -> None:
        """Record that a row was proposed: a publish that is asked for again is under way."""
        if isinstance(row, DoneRow):
            assert key_of(row) in self._publishes
            self._ending[key_of(row)] = row
        else:
            key = key_of(row)
            assert key not in self._pending
            # A number that is used twice is taken for rows that the target has.
            assert row.producer_id == self._make_id(self.next_publish)
            self._pending[key] = self.next_offset
            self.next_publish += 1

    def drop_pending(self) -> None:
        self._pending.clear()
        self._ending.clear()

    def apply(self, offset: int, row: StagedRow | PublishRow | DoneRow) -> None:
        """Record a row of kind 1 or 2 that is safe, or any that is found in a replay."""
        if isinstance(row, StagedRow):
            self.stage(offset, row, 0)
            return
        self._passed(offset)
        key = key_of(row)
        if isinstance(row, PublishRow):
            self._pending.pop(key, None)
            # A second one would publish the rows again, under a number that no target has seen.
            assert key not in self._publishes
            self._publishes[key] = (offset, row)
            return
        self._publishes.pop(key, None)
        self._ending.pop(key, None)
        self._remember(key, row)
        self._give_up_to(key)

    def _remember(self, key: Key, row: DoneRow) -> None:
        self._done[key] = row
        # A publish without rows takes memory, too.
        self._end_count += 1 + len(row.ends)
        while self._end_count > STAGED_ENDS_MAX and len(self._done) > 1:
            oldest = self._done.pop(next(iter(self._done)))
            self._end_count -= 1 + len(oldest.ends)

    def begin(self, now_us: int) -> None:
        """Begin to serve, after a replay: all that is staged counts as staged now."""
        assert not self._pending
        for column in (self._attempts.quiet_us, self._transactions.begun_us):
            column[1:] = array("q", [now_us]) * (len(column) - 1)

    def _passed(self, offset: int) -> None:
        # A row that became safe may lie before others that were fed at their append.
        self.next_offset = max(self.next_offset, offset + 1)

    # --- giving up -----------------------------------------------------------------------------
    def give_up(self, key: Key) -> int:
        """Drop a transaction's rows: the coordinator has answered that it is dead, or published.
        Returns the number of batches."""
        held = self._batches.count
        transaction = self._transaction_slot(key)
        # An answer that was late: the decision came after the question.
        if transaction and not self._is_decided(key):
            self._drop(transaction)
        return held - self._batches.count

    def _give_up_to(self, key: Key) -> None:
        """Drop the rows of an id up to a transaction that is published here, its own ones too."""
        holder = self._holder_slots.get(key.transactional_id.encode(), 0)
        table = self._transactions
        first = one = self._holders.transaction[holder]
        found: list[int] = []
        while one:
            if (table.epoch[one], table.sequence[one]) <= (key.epoch, key.sequence):
                found.append(one)
            one = table.others_after[one]
            if one == first:
                break
        for one in found:
            # One that is decided was not lost, whatever came after it.
            if not self._is_decided(self._key(one)):
                self._drop(one)

    def _drop(self, transaction: int) -> None:
        table, holders = self._transactions, self._holders
        holder = table.holder[transaction]
        attempt = table.attempt[transaction]
        while attempt:
            self._drop_batches(attempt, holder)
            key = _KEY.pack(transaction, self._attempts.high[attempt], self._attempts.low[attempt])
            del self._attempt_slots[key]
            following = self._attempts.following[attempt]
            self._attempts.quiet.remove(attempt)
            self._attempts.give_back(attempt)
            holders.attempt_count[holder] -= 1
            attempt = following
        table.order.remove(transaction)
        key = _KEY.pack(holder, table.epoch[transaction], table.sequence[transaction])
        del self._transaction_slots[key]
        after, before = table.others_after[transaction], table.others_before[transaction]
        table.others_after[before], table.others_before[after] = after, before
        holders.transaction[holder] = after
        if after == transaction:
            assert not holders.batch_count[holder]
            assert not holders.byte_count[holder]
            name, holders.name[holder] = holders.name[holder], b""
            del self._holder_slots[name]
            self._id_bytes -= len(name)
            holders.give_back(holder)
        table.give_back(transaction)

    def _drop_batches(self, attempt: int, holder: int) -> None:
        batches = self._batches
        target_of, byte_count_of, following = batches.target, batches.byte_count, batches.following
        batch = self._attempts.first[attempt]
        slots: list[int] = []
        counts: dict[int, int] = {}
        byte_count = 0
        while batch:
            slots.append(batch)
            target = target_of[batch]
            counts[target] = counts.get(target, 0) + 1
            byte_count += byte_count_of[batch]
            batch = following[batch]
        batches.give_back(*slots)
        self._holders.batch_count[holder] -= len(slots)
        self._holders.byte_count[holder] -= byte_count
        for target, count in counts.items():
            self._targets.batch_count[target] -= count
            if not self._targets.batch_count[target]:
                del self._target_slots[self._targets.name.pop(target)]
                self._targets.give_back(target)

    def trim_offset(self) -> int:
        """Up to where the log start may move: nothing below is staged, or named by a publish."""
        offset = self.next_offset
        first = self._transactions.order.first
        if first:
            offset = min(offset, self._transactions.first_offset[first])
        # A publish whose rows a fault has taken pins its own row.
        for published, _ in self._publishes.values():
            offset = min(offset, published)
            break
        return min([offset, *self._pending.values()])

    # --- asking --------------------------------------------------------------------------------
    def to_ask(self, now_us: int, count_max: int) -> list[Key]:
        """Undecided transactions with an attempt that was silent for ASK_AFTER_US, at most
        `count_max`. They are asked about again after as long."""
        found: dict[int, Key] = {}
        attempts = self._attempts
        while attempt := attempts.quiet.first:
            if attempts.quiet_us[attempt] + ASK_AFTER_US > now_us:
                break
            transaction = attempts.transaction[attempt]
            if transaction not in found:
                if len(found) >= count_max:
                    break
                key = self._key(transaction)
                if not self._is_decided(key):
                    found[transaction] = key
            attempts.quiet.remove(attempt)
            attempts.quiet_us[attempt] = now_us
            attempts.quiet.append(attempt)
        return list(found.values())

    def front(self) -> Key | None:
        """The transaction that keeps the log start where it is, unless it is decided."""
        first = self._transactions.order.first
        if not first:
            return None
        key = self._key(first)
        return None if self._is_decided(key) else key

    # --- looking -------------------------------------------------------------------------------
    @property
    def batch_count(self) -> int:
        return self._batches.count

    @property
    def attempt_count(self) -> int:
        return self._attempts.count

    @property
    def bytes_held(self) -> int:
        """All that was staged from the first row that stays on: a log goes from the front."""
        first = self._transactions.order.first
        return self._staged_bytes - self._transactions.bytes_before[first] if first else 0

    @property
    def is_nearly_full(self) -> bool:
        return any(
            100 * held > NEARLY_FULL_PERCENT * bound
            for held, bound in (
                (self._batches.count, STAGED_BATCHES_MAX),
                (self._attempts.count, STAGED_ATTEMPTS_MAX),
                (self._id_bytes, STAGED_ID_BYTES_MAX),
            )
        )

    @property
    def oldest_us(self) -> int | None:
        first = self._transactions.order.first
        return self._transactions.begun_us[first] if first else None

    def bytes_of(self, transactional_id: str) -> int:
        holder = self._holder_slots.get(transactional_id.encode())
        return self._holders.byte_count[holder] if holder else 0

    def has_others(self, row: StagedRow) -> bool:
        """Rows of another transaction of its id are here: they go, and leave room."""
        holder = self._holder_slots.get(row.transactional_id.encode())
        if holder is None:
            return False
        first = self._holders.transaction[holder]
        if self._transactions.others_after[first] != first:
            return True
        return first != self._transaction_slot(key_of(row))

    def ids(self) -> list[str]:
        return [name.decode() for name in self._holder_slots]

    def staged_of(self, transactional_id: str) -> StagedOf | None:
        """Return what an id has here. Its rows are counted one by one: only DESCRIBE asks."""
        holder = self._holder_slots.get(transactional_id.encode())
        if holder is None:
            return None
        table, attempts, batches = self._transactions, self._attempts, self._batches
        first = one = self._holders.transaction[holder]
        row_count, oldest_us = 0, table.begun_us[first]
        while True:
            oldest_us = min(oldest_us, table.begun_us[one])
            attempt = table.attempt[one]
            while attempt:
                batch = attempts.first[attempt]
                while batch:
                    row_count += batches.row_count[batch]
                    batch = batches.following[batch]
                attempt = attempts.following[attempt]
            one = table.others_after[one]
            if one == first:
                break
        return StagedOf(
            transactional_id,
            self._holders.batch_count[holder],
            row_count,
            self._holders.byte_count[holder],
            oldest_us,
        )

    # --- slots ---------------------------------------------------------------------------------
    def _transaction_slot(self, key: Key) -> int:
        holder = self._holder_slots.get(key.transactional_id.encode())
        if holder is None:
            return 0
        return self._transaction_slots.get(_KEY.pack(holder, key.epoch, key.sequence), 0)

    def _named(self, transaction: int, attempt: bytes) -> int:
        if not transaction:
            return 0
        return self._attempt_slots.get(_KEY.pack(transaction, *_ATTEMPT.unpack(attempt)), 0)

    def _attempt_slot(self, row: StagedRow) -> int:
        key = Key(row.transactional_id, row.epoch, row.sequence)
        return self._named(self._transaction_slot(key), row.attempt)

    def _key(self, transaction: int) -> Key:
        table = self._transactions
        name = self._holders.name[table.holder[transaction]]
        return Key(name.decode(), table.epoch[transaction], table.sequence[transaction])

    def _is_decided(self, key: Key) -> bool:
        return key in self._publishes or key in self._pending


def key_of(row: StagedRow | PublishRow | DoneRow) -> Key:
    return Key(row.transactional_id, row.epoch, row.sequence)
