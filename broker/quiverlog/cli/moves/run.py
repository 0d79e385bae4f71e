"""Starting the moves of a plan, and waiting for them.

The brokers carry them out: after an interrupted command they go on, each with its throttle.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from quiverlog.cli.console.failures import CommandFailed
from quiverlog.cli.console.options import without_end
from quiverlog.cli.console.output import human_bytes
from quiverlog.cli.console.waiting import Patience, Waiting, polls, shown_waiting
from quiverlog.client.admin.cluster import list_moves, reassign_partitions
from quiverlog.errors import QuiverlogError, UnknownPartition, UnknownTopic

if TYPE_CHECKING:
    from quiverlog.client.admin.replica_sizes import ReplicaSizes
    from quiverlog.client.client import Client
    from quiverlog.core.placement.moves import Move

__all__ = ["check_plan", "elect_preferred", "start_plan", "wait_for"]

Key = tuple[str, int]
_PARTITIONS_MAX: Final = 1_000
"""Bound on one request, whose partitions are logged together."""


def check_plan(client: Client, moves: Sequence[Move], throttle: int) -> None:
    """Raise the controller's refusal, if there is one, before anything moves."""
    for part in _requests(moves):
        _ask(client, part, throttle, validate_only=True)


def start_plan(client: Client, moves: Sequence[Move], throttle: int) -> None:
    """Raises CommandFailed: a request was refused after others had begun."""
    begun = 0
    for part in _requests(moves):
        try:
            _ask(client, part, throttle)
        except QuiverlogError as error:
            if not begun:
                raise
            raise CommandFailed(
                f"{begun} of {len(moves)} partitions move, then: {error} Plan again for the others."
            ) from error
        begun += len(part)


def _requests(moves: Sequence[Move]) -> list[list[Move]]:
    """Return the moves of each request: it can have one topic."""
    by_topic: dict[str, list[Move]] = {}
    for one in moves:
        by_topic.setdefault(one.topic, []).append(one)
    return [
        found[at : at + _PARTITIONS_MAX]
        for found in by_topic.values()
        for at in range(0, len(found), _PARTITIONS_MAX)
    ]


def _ask(
    client: Client, moves: Sequence[Move], throttle: int, *, validate_only: bool = False
) -> None:
    client.run(
        reassign_partitions(
            client.cluster,
            moves[0].topic,
            {one.partition: one.after for one in moves},
            throttle=throttle,
            # A plan with the present numbers of replicas does not change them.
            change_count=any(len(one.after) != len(one.before) for one in moves),
            validate_only=validate_only,
        )
    )


def elect_preferred(client: Client, moves: Sequence[Move]) -> None:
    """Elect the preferred leaders now; the brokers would do so later."""
    for part in _requests(moves):
        # The topic may have been deleted meanwhile.
        with contextlib.suppress(UnknownTopic, UnknownPartition):
            client.elect_leaders(part[0].topic, [one.partition for one in part])


def wait_for(client: Client, copies: Mapping[Key, Sequence[int]], wait_s: float) -> list[Key]:
    """Show progress until nothing moves or `wait_s` is over; return the partitions that still move.

    Args:
        copies: partition -> brokers that copy it.
    """
    without_end(client)
    with shown_waiting("moving") as shown:
        return _wait(client, copies, wait_s, shown)


def _wait(
    client: Client, copies: Mapping[Key, Sequence[int]], wait_s: float, shown: Waiting
) -> list[Key]:
    topics = sorted({topic for topic, _ in copies})
    takers = {node_id for ids in copies.values() for node_id in ids}
    left = list(copies)
    sizes: ReplicaSizes | None = None
    patience = Patience()
    for is_last in polls(wait_s):
        found = patience.ask(lambda: client.run(list_moves(client.cluster)))
        if found is not None:
            left = [one for one in copies if one[1] in found.get(one[0], {})]
        if left and takers:
            sizes = patience.ask(lambda: client.describe_replicas(topics)) or sizes
        done, total = _copied(copies, set(left), sizes)
        shown.show(
            done or len(copies) - len(left),
            total or len(copies),
            f"{human_bytes(done)} of {human_bytes(total)}, "
            f"{len(copies) - len(left):,} of {len(copies):,} partitions{patience.note}",
        )
        if not left or is_last:
            break
    return left


def _copied(
    copies: Mapping[Key, Sequence[int]], left: set[Key], sizes: ReplicaSizes | None
) -> tuple[int, int]:
    done = total = 0
    for key, takers in copies.items():
        size = sizes.largest(*key) if sizes is not None else 0
        total += size * len(takers)
        for node_id in takers:
            if key not in left:
                done += size
            elif sizes is not None:
                done += min(size, sizes.at(*key, node_id) or 0)
    return done, total
