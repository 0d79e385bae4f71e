"""Starting the moves of a plan, and waiting for them.

A plan that some broker would refuse moves nothing. The brokers move: an interrupted command leaves
the moves running, with their throttle, which ends with each of them.
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
"""In one request: the partitions of a request are logged together."""


def check_plan(client: Client, moves: Sequence[Move], throttle: int) -> None:
    """Have the controller check the plan. Raises its refusal."""
    for part in _requests(moves):
        _ask(client, part, throttle, validate_only=True)


def start_plan(client: Client, moves: Sequence[Move], throttle: int) -> None:
    """Raises CommandFailed: a request was refused after others had been taken."""
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
    """Return the requests: moves of one topic go together."""
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
    """Elect the preferred leaders in sync now; the brokers would do so in time."""
    for part in _requests(moves):
        # A topic that was deleted at this moment has no leaders.
        with contextlib.suppress(UnknownTopic, UnknownPartition):
            client.elect_leaders(part[0].topic, [one.partition for one in part])


def wait_for(client: Client, copies: Mapping[Key, Sequence[int]], wait_s: float) -> list[Key]:
    """Show progress until nothing moves or the time is over; return what still moves.

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
    """Return bytes copied, and bytes to copy in all, by the present sizes."""
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
