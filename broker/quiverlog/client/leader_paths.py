"""Evening out who leads: only the order of the replicas changes, so nothing is copied.

Owns the search. A broker that leads much hands a partition to another of its replicas, which may
hand one on, until somebody who leads two fewer is reached: the shortest such path. When there is
none, no order of the replicas is more even (as with paths that augment a flow).

Must not know: where replicas should lie.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise

from .replica_layout import Layout

__all__ = ["even_leaders"]


def even_leaders(layout: Layout) -> None:
    """Change the order of replicas until brokers differ by one in what they lead, or cannot."""
    takers = frozenset(layout.takers)
    # Partitions that the first could hand to the second.
    gifts: dict[int, dict[int, dict[int, None]]] = {n: {} for n in takers}
    for at, replicas in enumerate(layout.replicas):
        _note(gifts, at, replicas)
    counts = layout.leader_counts
    for _ in range(len(layout.partitions)):
        path = next(
            (
                path
                for donor in sorted(takers, key=lambda n: (-counts[n], n))
                if (path := _path(gifts, counts, donor)) is not None
            ),
            None,
        )
        if path is None:
            return
        for giver, heir in pairwise(path):
            at = next(iter(gifts[giver][heir]))
            replicas = layout.replicas[at]
            _forget(gifts, at, replicas)
            after = (heir, *(n for n in replicas if n != heir))
            layout.change(at, after)
            _note(gifts, at, after)


_Gifts = dict[int, dict[int, dict[int, None]]]


def _path(gifts: _Gifts, counts: dict[int, int], donor: int) -> list[int] | None:
    """The shortest way from here to one that leads two fewer at least; of these the emptiest."""
    came_from: dict[int, int] = {donor: donor}
    level = deque([donor])
    while level:
        reached: list[int] = []
        for _ in range(len(level)):
            giver = level.popleft()
            for heir in sorted(gifts[giver]):
                if heir not in came_from and gifts[giver][heir]:
                    came_from[heir] = giver
                    reached.append(heir)
        emptiest = min(reached, key=lambda n: (counts[n], n), default=donor)
        if counts[donor] - counts[emptiest] >= 2:
            path = [emptiest]
            while path[-1] != donor:
                path.append(came_from[path[-1]])
            return path[::-1]
        level.extend(reached)
    return None


def _note(gifts: _Gifts, at: int, replicas: tuple[int, ...]) -> None:
    if replicas[0] in gifts:
        for heir in replicas[1:]:
            if heir in gifts:
                gifts[replicas[0]].setdefault(heir, {})[at] = None


def _forget(gifts: _Gifts, at: int, replicas: tuple[int, ...]) -> None:
    if replicas[0] in gifts:
        for heir in replicas[1:]:
            if heir in gifts:
                gifts[replicas[0]][heir].pop(at, None)
