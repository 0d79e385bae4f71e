"""Evening out a lopsided cluster: which replicas and leaders move so that all brokers have as much.

Owns the order of the goals. A later one never spoils an earlier one:

    1. replicas of a partition lie in as many racks, and on as many hosts, as brokers allow
    2. brokers differ by one in the number of their replicas
    3. they differ by a tenth of the mean in the bytes that these have
    4. they differ by one in the number of partitions that they lead, by preference

"Differ by" holds as far as the goals before allow. Each step makes the measure of its goal smaller
(pairs, sums of squares) and none before it larger, so the steps end; their number is bounded all
the same. Who is not alive, or leaves, keeps what it holds: `move_plan.evacuate` is for that. What
is even stays: a plan for what a plan has brought about is empty.

Must not know: requests, clocks, how fast things move.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from .leader_paths import even_leaders
from .replica_layout import Crowding, Layout, Move, PlanBroker, PlanPartition

__all__ = ["rebalance"]

_ROUNDS_MAX: Final = 8
_LOOKS_MAX: Final = 2_000_000
"""Replicas looked at in one plan: some seconds. What is found by then is the plan."""
_CHOICES: Final = 16
"""Of so many replicas that may move the one moves whose topic gains most."""
_BIG_ONES: Final = 32
_TOLERATED: Final = 10
"""Bytes are even within the mean over this."""


def rebalance(
    brokers: Iterable[PlanBroker],
    partitions: Sequence[PlanPartition],
    *,
    copies_max: int | None = None,
) -> list[Move]:
    """What moves so that all brokers that take partitions have as much; nothing if they have.

    Args:
        brokers: all that are registered, alive or not.
        partitions: all of the cluster, with sizes where they are known.
        copies_max: so many replicas are copied at the most, the most useful ones first.
    """
    layout = Layout(brokers, partitions)
    if len(layout.takers) < 2:
        return []
    plan = _Plan(layout, copies_max)
    for _ in range(_ROUNDS_MAX):
        before = plan.steps
        plan.spread()
        plan.even_replicas()
        plan.even_bytes()
        if plan.steps == before:
            break
    even_leaders(layout)
    return layout.moves()


class _Plan:
    """The goals 1 to 3 on one layout."""

    def __init__(self, layout: Layout, copies_max: int | None) -> None:
        self._layout = layout
        self._takers = layout.takers
        self._copies_left = len(layout.partitions) * len(self._takers)
        if copies_max is not None:
            self._copies_left = copies_max
        self._looks_left = _LOOKS_MAX
        self._ideals: dict[int, Crowding] = {}
        self.steps = 0
        # What a broker holds, smallest first: whoever looks for a size finds it.
        self._held: dict[int, list[tuple[int, int]]] = {n: [] for n in self._takers}
        for at, replicas in enumerate(layout.replicas):
            for node_id in replicas:
                if node_id in self._held:
                    self._held[node_id].append((layout.partitions[at].size_bytes, at))
        for held in self._held.values():
            held.sort()

    # --- 1: racks and hosts ----------------------------------------------------------------------
    def spread(self) -> None:
        """Partitions whose replicas lie closer together than they must."""
        layout = self._layout
        for at, replicas in enumerate(layout.replicas):
            crowding = layout.crowding(replicas)
            while crowding > self._ideal(len(replicas)) and self._looks_left > 0:
                found = self._further_apart(at)
                if found is None:
                    break
                self._move(at, *found)
                now = layout.crowding(layout.replicas[at])
                assert now < crowding
                crowding = now

    def _ideal(self, count: int) -> Crowding:
        """The fewest pairs that so many replicas can make."""
        if count not in self._ideals:
            chosen: list[int] = []
            for _ in range(min(count, len(self._takers))):
                rest = [n for n in self._takers if n not in chosen]
                chosen.append(min(rest, key=lambda n: self._layout.nearness(n, chosen)))
            self._ideals[count] = self._layout.crowding(chosen)
        return self._ideals[count]

    def _further_apart(self, at: int) -> tuple[int, int] | None:
        """Who gives the partition to whom, so that fewer pairs are left; the best of all."""
        layout, replicas = self._layout, self._layout.replicas[at]
        best: tuple[tuple[int, ...], tuple[int, int]] | None = None
        for donor in replicas:
            if donor not in self._held:
                continue
            before = layout.nearness(donor, replicas)
            others = [n for n in replicas if n != donor]
            for taker in self._takers:
                self._looks_left -= 1
                if taker in replicas or not self._may_copy(at, donor, taker):
                    continue
                after = layout.nearness(taker, others)
                if after >= before:
                    continue
                gain = (after[0] - before[0], after[1] - before[1])
                counts = layout.replica_counts
                value = (*gain, counts[taker] - counts[donor], layout.byte_counts[taker])
                if best is None or value < best[0]:
                    best = (value, (donor, taker))
        return None if best is None else best[1]

    # --- 2: numbers of replicas ------------------------------------------------------------------
    def even_replicas(self) -> None:
        """One replica after the other, from the fullest broker that can give to the emptiest that
        can take from it."""
        stuck: set[tuple[int, int]] = set()
        while self._looks_left > 0 and self._copies_left > 0:
            pair = self._next_pair(stuck)
            if pair is None:
                return
            at = self._replica_to_move(*pair)
            if at is None:
                stuck.add(pair)
            else:
                self._move(at, *pair)

    def _next_pair(self, stuck: set[tuple[int, int]]) -> tuple[int, int] | None:
        counts = self._layout.replica_counts
        order = sorted(self._takers, key=lambda n: (counts[n], n))
        for donor in reversed(order):
            for taker in order:
                if counts[donor] - counts[taker] < 2:
                    break
                if (donor, taker) not in stuck:
                    return donor, taker
        return None

    def _replica_to_move(self, donor: int, taker: int) -> int | None:
        """One whose size brings the two closer together in bytes as well, and whose topic has most
        more partitions here than there."""
        layout = self._layout
        surplus = layout.byte_counts[donor] - layout.byte_counts[taker]
        topics = layout.topic_counts
        best: tuple[tuple[int, int], int] | None = None
        choices = 0
        for size, at in self._nearest(donor, max(0, surplus // 2)):
            self._looks_left -= 1
            if not self._may_move(at, donor, taker):
                continue
            topic = layout.partitions[at].topic
            value = (abs(surplus - 2 * size), topics[taker, topic] - topics[donor, topic])
            if best is None or value < best[0]:
                best = (value, at)
            choices += 1
            if choices == _CHOICES:
                break
        return None if best is None else best[1]

    def _nearest(self, node_id: int, size: int) -> Iterator[tuple[int, int]]:
        """What a broker holds, by how close it is to a size."""
        held = self._held[node_id]
        above = bisect.bisect_left(held, (size, -1))
        below = above - 1
        while below >= 0 or above < len(held):
            if below < 0 or (above < len(held) and held[above][0] - size <= size - held[below][0]):
                yield held[above]
                above += 1
            else:
                yield held[below]
                below -= 1

    # --- 3: bytes --------------------------------------------------------------------------------
    def even_bytes(self) -> None:
        """Large partitions against small ones, until all brokers are close to the mean."""
        layout = self._layout
        mean = sum(layout.byte_counts[n] for n in self._takers) // len(self._takers)
        tolerated = mean // _TOLERATED
        stuck: set[tuple[int, int]] = set()
        while tolerated and self._looks_left > 0 and self._copies_left > 0:
            order = sorted(self._takers, key=lambda n: (layout.byte_counts[n], n))
            pair = next(
                (
                    (donor, taker)
                    for donor in reversed(order)
                    for taker in order
                    if layout.byte_counts[donor] - layout.byte_counts[taker] > tolerated
                    and (donor, taker) not in stuck
                ),
                None,
            )
            if pair is None:
                return
            if not self._shift(*pair, tolerated):
                stuck.add(pair)

    def _shift(self, donor: int, taker: int, tolerated: int) -> bool:
        """Bring two brokers closer together in bytes; False where nothing brings them far enough.

        By one replica, where the donor has one more than the taker; else by two that change places.
        """
        layout = self._layout
        surplus = layout.byte_counts[donor] - layout.byte_counts[taker]
        least = max(1, tolerated // 2)
        if layout.replica_counts[donor] - layout.replica_counts[taker] == 1:
            for size, at in self._nearest(donor, surplus // 2):
                self._looks_left -= 1
                if not least <= size <= surplus - least:
                    break
                if self._may_move(at, donor, taker):
                    self._move(at, donor, taker)
                    return True
        for size, at in list(reversed(self._held[donor]))[:_BIG_ONES]:
            if not self._may_move(at, donor, taker):
                continue
            for small, other in self._nearest(taker, max(0, size - surplus // 2)):
                self._looks_left -= 1
                if not least <= size - small <= surplus - least:
                    break
                if self._copies_left >= 2 and self._may_move(other, taker, donor):
                    self._move(at, donor, taker)
                    self._move(other, taker, donor)
                    return True
        return False

    # --- all of them -----------------------------------------------------------------------------
    def _may_move(self, at: int, donor: int, taker: int) -> bool:
        """The partition can go there, and its replicas lie no closer together then."""
        layout, replicas = self._layout, self._layout.replicas[at]
        if taker in replicas or not self._may_copy(at, donor, taker):
            return False
        others = [n for n in replicas if n != donor]
        return layout.nearness(taker, others) <= layout.nearness(donor, others)

    def _may_copy(self, at: int, donor: int, taker: int) -> bool:
        copies = self._copies_of(at, donor, taker)
        return copies <= self._copies_left and self._layout.has_room(taker, at)

    def _copies_of(self, at: int, donor: int, taker: int) -> int:
        """So many copies more does the plan need; fewer than none where one goes back."""
        original = self._layout.partitions[at].replicas
        return (taker not in original) - (donor not in original)

    def _move(self, at: int, donor: int, taker: int) -> None:
        layout, replicas = self._layout, self._layout.replicas[at]
        entry = (layout.partitions[at].size_bytes, at)
        del self._held[donor][bisect.bisect_left(self._held[donor], entry)]
        bisect.insort(self._held[taker], entry)
        self._copies_left -= self._copies_of(at, donor, taker)
        layout.change(at, tuple(taker if n == donor else n for n in replicas))
        self.steps += 1
        assert self._copies_left >= 0
