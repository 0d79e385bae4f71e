"""What programs were promised of their transactions, and what readers may see of them.

Owns these rules, beside those of every row: no row is read before its commit is asked for, or of
what was aborted, refused, or did not win; all of a transaction are there at the end, or none, and
all if it was answered; one commit counts under a sequence; rows of an id lie in the order of its
sequences; a new holder's last sequence is none below an answered one. An id that may have been
forgotten begins anew: sequences, instances and order then, epochs never; what was being published
when it was forgotten by command may be torn.

A failure of all machines excuses rows below `replicated_flushed`: staged ones until they are
published, published ones where their topic is kept at less.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from quiverlog.types import Durability
from tests.sim.checker import Key, Violation

if TYPE_CHECKING:
    from .promises import ClusterChecker

__all__ = ["Attempt", "Bid", "Ledger"]

_FIRST_NUMBER: Final = 1 << 24
"""Above all numbers of producers."""
_REPLACED_MAX: Final = 16
_LATE_US: Final = 15_000_000
"""A command that was answered may be served once more within this."""


@dataclass(slots=True, eq=False)
class Attempt:
    """Rows that are staged together: of a transaction, or of one try of a task of a query."""

    tid: str
    sequence: int
    epoch: int
    program: str
    begun_us: int
    rows: dict[int, Key] = field(default_factory=dict)
    bid: Bid | None = None
    """The commit that names it; None: none was ever asked for."""

    def __str__(self) -> str:
        state = "no commit was asked for" if self.bid is None else self.bid.state
        return f"{self.tid} {self.sequence} (epoch {self.epoch}, {self.program}: {state})"


@dataclass(slots=True, eq=False)
class Bid:
    """A COMMIT: the attempts that it names."""

    tid: str
    sequence: int
    epoch: int
    attempts: list[Attempt]
    durability: Durability
    """That was asked for."""
    asked_us: int
    state: str = "asked"
    """Then committed, refused, aborted or unknown."""
    answered: Durability | None = None
    published_us: int | None = None
    may_be_another: bool = False
    """The answer may be about an earlier commit under the sequence."""

    @property
    def may_count(self) -> bool:
        return self.state in ("asked", "committed", "unknown")

    @property
    def values(self) -> dict[int, Key]:
        return {value: key for one in self.attempts for value, key in one.rows.items()}


class Ledger:
    def __init__(self, checker: ClusterChecker) -> None:
        self._checker = checker
        self._attempts: dict[int, Attempt] = {}
        self._bids: dict[tuple[str, int], list[Bid]] = defaultdict(list)
        # A commit that was answered, and when it was asked for.
        self._newest: dict[str, tuple[int, int]] = {}
        self._holders: dict[str, tuple[int, bytes, tuple[bytes, ...], int]] = {}
        self._aborted: dict[str, int] = {}
        self._next_number = _FIRST_NUMBER
        self._seen: dict[int, Key] = {}
        self.all_power_us: list[int] = []
        """When all machines lost their power."""
        self.expiry_us = 0
        """Brokers of this run forget an id after this silence."""
        # When an id may have been forgotten: from, to, and whether by command.
        self._forgotten: dict[str, list[tuple[int, int, bool]]] = defaultdict(list)
        self._shown_us: dict[str, int] = {}

    # --- what programs do ----------------------------------------------------------------------
    def begin(self, tid: str, sequence: int, epoch: int, program: str) -> Attempt:
        return Attempt(tid, sequence, epoch, program, self._checker.now_us())

    def values(self, attempt: Attempt, key: Key, count: int) -> list[int]:
        """The rows of one send."""
        number, self._next_number = self._next_number, self._next_number + 1
        values = [(number << 32) + index for index in range(count)]
        self._attempts[number] = attempt
        attempt.rows.update(dict.fromkeys(values, key))
        self._checker.sent(key, values)
        return values

    def ask(self, attempts: list[Attempt], first: Attempt, durability: Durability) -> Bid:
        """A commit is about to be asked for."""
        now_us = self._checker.now_us()
        bid = Bid(first.tid, first.sequence, first.epoch, attempts, durability, now_us)
        for one in attempts:
            one.bid = bid
        self._bids[first.tid, first.sequence].append(bid)
        return bid

    def committed(self, bid: Bid, answered: Durability, *, is_published: bool) -> None:
        bid.state = "committed"
        bid.answered = answered
        if is_published:
            bid.published_us = self._checker.now_us()
        self._newest[bid.tid] = max(
            self._newest.get(bid.tid, (-1, 0)), (bid.sequence, bid.asked_us)
        )

    def ended(self, bid: Bid, state: str) -> None:
        """A commit was refused or aborted, or has no answer."""
        bid.state = state
        if bid.may_count:
            return
        seen = [value for value in bid.values if value in self._seen]
        if seen:
            raise Violation(f"{bid.attempts[0]}: {len(seen)} rows were read before")

    def newest(self, tid: str) -> int:
        """The highest sequence whose commit has been answered."""
        return self._newest.get(tid, (-1, 0))[0]

    def aborted(self, tid: str, epoch: int) -> None:
        """An ABORT was answered, which ends the epoch."""
        self._aborted[tid] = max(epoch, self._aborted.get(tid, -1))

    def aborted_epoch(self, tid: str) -> int:
        """The highest epoch that an answered ABORT has ended."""
        return self._aborted.get(tid, -1)

    def opened(
        self,
        tid: str,
        last_sequence: int,
        before: int,
        epoch: int,
        aborted_epoch: int,
        *,
        asked_us: int,
    ) -> None:
        """`before`: what was the newest when OPEN was sent; `aborted_epoch` then, too."""
        now_us = self._checker.now_us()
        shown_us = self._shown_us.get(tid, asked_us)
        if self.expiry_us and now_us - shown_us >= self.expiry_us:
            self._forgotten[tid].append((shown_us + self.expiry_us, now_us, False))
        self._shown_us[tid] = max(asked_us, shown_us)
        # Another OPEN, sent later and answered sooner, may have shown that the id was forgotten.
        before = min(before, self.newest(tid))
        if last_sequence < before:
            asked_before_us = self._newest[tid][1]
            if not self.may_be_forgotten(tid, asked_before_us, now_us):
                raise Violation(
                    f"{tid}: the last sequence is {last_sequence}, {before} had been answered"
                )
            # A client counts on from an answer that it had before; brokers may have forgotten that:
            # the sequence is no younger than the commit that is gone.
            self._newest[tid] = (last_sequence, asked_before_us)
        if epoch <= aborted_epoch:
            raise Violation(f"{tid}: OPEN gave epoch {epoch}, and ABORT had ended {aborted_epoch}")

    def holds(self, tid: str, instance: bytes, epoch: int) -> None:
        """An instance was answered that it holds the id under this epoch."""
        now_us = self._checker.now_us()
        newest, holder, replaced, since_us = self._holders.get(tid, (-1, b"", (), now_us))
        if epoch == newest and instance != holder:
            raise Violation(f"{tid}: {holder!r} and {instance!r} have epoch {epoch}")
        if epoch <= newest:
            return
        if self.may_be_forgotten(tid, since_us, now_us):
            replaced = ()
        elif instance in replaced[-_REPLACED_MAX:]:
            raise Violation(f"{tid}: {instance!r} was replaced, and holds it again")
        if instance != holder:
            replaced = (*replaced, holder)
        self._holders[tid] = (epoch, instance, replaced, now_us)

    # --- forgetting ----------------------------------------------------------------------------
    def forget(self, tid: str) -> None:
        """A command is about to be sent. What becomes of it is not known before its answer."""
        self._forgotten[tid].append((self._checker.now_us(), 1 << 62, True))

    def forgot(self, tid: str) -> None:
        """The last one was answered."""
        from_us, _, _ = self._forgotten[tid].pop()
        self._forgotten[tid].append((from_us, self._checker.now_us() + _LATE_US, True))

    def may_be_forgotten(self, tid: str, from_us: int, to_us: int) -> bool:
        """May this id have been forgotten between two moments? By expiry as far as OPENs show."""
        if any(begin <= to_us and end >= from_us for begin, end, _ in self._forgotten[tid]):
            return True
        silent_us = to_us - self._shown_us.get(tid, to_us)
        return bool(self.expiry_us) and silent_us >= self.expiry_us

    def _is_given_up(self, bid: Bid) -> bool:
        """May it have been forgotten by command before all of it was published?"""
        return any(
            is_command
            and end >= bid.asked_us
            and (bid.published_us is None or bid.published_us >= begin)
            for begin, end, is_command in self._forgotten[bid.tid]
        )

    # --- what readers see ----------------------------------------------------------------------
    def read(self, key: Key, values: list[int]) -> None:
        attempts = self._attempts
        if not attempts or self._checker.all_are_down():
            return
        for value in values:
            attempt = attempts.get(value >> 32)
            if attempt is None:
                continue
            self._seen[value] = key
            if attempt.bid is None or not attempt.bid.may_count:
                raise Violation(
                    f"{self._checker.partitions[key].name}: a row of {attempt} was read"
                )

    # --- the end -------------------------------------------------------------------------------
    def check(self) -> int:
        """When all logs were read. Returns how many transactions were found whole."""
        present: dict[int, tuple[Key, int]] = {}
        for key, model in self._checker.partitions.items():
            for offset in model.read_last:
                value = model.seen.get(offset, -1)
                if value >> 32 in self._attempts:
                    present[value] = (key, offset)
        whole = sum(self._check_sequence(bids, present) for bids in self._bids.values())
        self._check_order(present)
        return whole

    def _check_sequence(self, bids: list[Bid], present: dict[int, tuple[Key, int]]) -> int:
        lives: list[list[Bid]] = []
        for bid in bids:
            before = lives[-1][-1] if lives else None
            if before and not self.may_be_forgotten(bid.tid, before.asked_us, bid.asked_us):
                lives[-1].append(bid)
            else:
                lives.append([bid])
        return sum(self._check_life(life, bids, present) for life in lives)

    def _check_life(
        self, life: list[Bid], bids: list[Bid], present: dict[int, tuple[Key, int]]
    ) -> int:
        """Commits under one sequence in one life of an id; `bids`: of all lives."""
        counted = [bid for bid in life if any(value in present for value in bid.values)]
        if len(counted) > 1:
            names = ", ".join(f"{bid.attempts[0]}" for bid in counted)
            raise Violation(f"{names}: both were published")
        for bid in counted:
            self._check_whole(bid, present, "is torn")
        certain = [bid for bid in life if bid.state == "committed" and not bid.may_be_another]
        if len(certain) > 1:
            raise Violation(f"{certain[0].tid} {certain[0].sequence} was committed twice")
        for bid in certain:
            self._check_whole(bid, present, "was answered, and lacks rows")
            if counted and counted != certain:
                raise Violation(
                    f"{bid.tid} {bid.sequence}: epoch {bid.epoch} was answered, epoch"
                    f" {counted[0].epoch} was published"
                )
        if not certain and any(bid.state == "committed" for bid in life):
            # One of those that may have been meant is there, or had no rows.
            meant = [bid for bid in bids if bid.may_count]
            if not any(self._is_whole(bid, present) for bid in meant):
                raise Violation(f"{bids[0].tid} {bids[0].sequence} was answered, and is not there")
        return len(counted)

    def _is_whole(self, bid: Bid, present: dict[int, tuple[Key, int]]) -> bool:
        return all(
            value in present or self._may_lack(bid, key) for value, key in bid.values.items()
        )

    def _check_whole(self, bid: Bid, present: dict[int, tuple[Key, int]], what: str) -> None:
        if self._is_whole(bid, present):
            return
        lacks = [(v, k) for v, k in bid.values.items() if v not in present]
        names = sorted({self._checker.partitions[key].name for _, key in lacks})
        raise Violation(
            f"{bid.tid} {bid.sequence} (epoch {bid.epoch}, {bid.state}) {what}: {len(lacks)} of"
            f" {len(bid.values)} rows, of {names}, first {lacks[0][0]}"
        )

    def _may_lack(self, bid: Bid, key: Key) -> bool:
        """May rows of it have gone from this partition, or never have come?"""
        model = self._checker.partitions[key]
        topic = model.topic
        if topic.doomed or topic.retained or model.trimmed_to or key in self._checker.unclean:
            return True
        if self._is_given_up(bid):
            return True
        if model.damaged or (getattr(topic, "is_frail", False) and key in self._checker.lost_us):
            return True
        is_flushed = topic.durabilities == {"replicated_flushed"}
        is_flushed |= bid.durability == Durability.REPLICATED_FLUSHED
        for at_us in self.all_power_us:
            if at_us < bid.asked_us:
                continue  # What was lost by then, the commit has not counted.
            was_published = bid.published_us is not None and bid.published_us < at_us
            if was_published and is_flushed:
                continue
            if bid.answered == Durability.REPLICATED_FLUSHED and is_flushed:
                continue
            return True
        return False

    def _check_order(self, present: dict[int, tuple[Key, int]]) -> None:
        newest: dict[tuple[str, Key], tuple[int, Attempt]] = {}
        for value, (key, offset) in sorted(present.items(), key=lambda one: one[1]):
            attempt = self._attempts[value >> 32]
            before = newest.get((attempt.tid, key))
            is_behind = before is not None and attempt.sequence < before[0]
            # What all machines lose together may come again, behind newer rows.
            is_behind &= not any(at_us >= attempt.begun_us for at_us in self.all_power_us)
            if is_behind and not self._are_of_two_lives(attempt, before and before[1]):
                raise Violation(
                    f"{self._checker.partitions[key].name}: {attempt} lies at {offset}, behind rows"
                    f" of {before and before[1]}"
                )
            newest[attempt.tid, key] = (attempt.sequence, attempt)

    def _are_of_two_lives(self, one: Attempt, other: Attempt | None) -> bool:
        assert other is not None
        from_us, to_us = sorted((one.begun_us, other.begun_us))
        return self.may_be_forgotten(one.tid, from_us, to_us)
