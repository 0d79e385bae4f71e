"""The output of plans of moves and of running moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from quiverlog.cli.console.output import counted, human_bytes, join, print_table

if TYPE_CHECKING:
    from quiverlog.cli.moves.placement import Placement
    from quiverlog.client.base.results import PartitionMove
    from quiverlog.core.placement.moves import Move

__all__ = ["moves_json", "plan_json", "print_moves", "print_plan"]

_SHOWN_MAX = 40


def plan_json(placement: Placement, moves: Sequence[Move], throttle: int) -> dict[str, Any]:
    return {
        "moves": [
            {
                "topic": one.topic,
                "partition": one.partition,
                "before": list(one.before),
                "after": list(one.after),
                "added": list(one.added),
                "removed": list(one.removed),
                "moves_leader": one.moves_leader,
                "copied_bytes": one.copied_bytes,
            }
            for one in moves
        ],
        "brokers": _by_broker(placement, moves),
        "copied_bytes": sum(one.copied_bytes for one in moves),
        "throttle_bytes_per_s": throttle or None,
    }


def _by_broker(placement: Placement, moves: Sequence[Move]) -> list[dict[str, Any]]:
    old, new = placement.layout(), placement.layout(moves)
    return [
        {
            "node_id": one.node_id,
            "rack": one.rack,
            "replicas": [old.replica_counts[one.node_id], new.replica_counts[one.node_id]],
            "leaders": [old.leader_counts[one.node_id], new.leader_counts[one.node_id]],
            "bytes": [old.byte_counts[one.node_id], new.byte_counts[one.node_id]],
        }
        for one in sorted(placement.brokers)
    ]


def print_plan(placement: Placement, moves: Sequence[Move], throttle: int) -> None:
    print_table(
        ["TOPIC", "PARTITION", "FROM", "TO", "COPIES", "LEADER"],
        [
            (
                one.topic,
                one.partition,
                join(one.before),
                join(one.after),
                human_bytes(one.copied_bytes) if one.added else "-",
                f"{one.before[0]} -> {one.after[0]}" if one.moves_leader else "-",
            )
            for one in moves[:_SHOWN_MAX]
        ],
        right=["PARTITION", "COPIES"],
    )
    if len(moves) > _SHOWN_MAX:
        print(f"... and {len(moves) - _SHOWN_MAX:,} more; --format json shows them all.")
    print()
    print_table(
        ["BROKER", "RACK", "REPLICAS", "LEADERS", "SIZE"],
        [
            (
                one["node_id"],
                one["rack"],
                _change(*one["replicas"]),
                _change(*one["leaders"]),
                _change(*(human_bytes(size) for size in one["bytes"])),
            )
            for one in _by_broker(placement, moves)
        ],
        right=["BROKER"],
    )
    print(f"\n{_summary(moves, throttle)}")
    if placement.silent:
        print(f"Sizes are not known where brokers did not answer: {join(placement.silent)}.")


def _change(before: object, after: object) -> str:
    return str(before) if before == after else f"{before} -> {after}"


def _summary(moves: Sequence[Move], throttle: int) -> str:
    copies = sum(len(one.added) for one in moves)
    copied = sum(one.copied_bytes for one in moves)
    leaders = sum(one.moves_leader for one in moves)
    text = (
        f"{counted(len(moves), 'partition moves', 'partitions move')}: "
        f"{counted(copies, 'replica is', 'replicas are')} copied, {human_bytes(copied)}; "
        f"{counted(leaders, 'gets', 'get')} another preferred leader."
    )
    if throttle and copied:
        incoming: dict[int, int] = {}
        for one in moves:
            for node_id in one.added:
                incoming[node_id] = incoming.get(node_id, 0) + one.size_bytes
        least_s = max(incoming.values()) / throttle
        text += f" At {human_bytes(throttle)}/s for each broker: {least_s:,.0f} s at the least."
    return text


def moves_json(moving: Mapping[tuple[str, int], PartitionMove]) -> list[dict[str, Any]]:
    return [
        {
            "topic": topic,
            "partition": number,
            "replicas": list(one.replicas),
            "in_sync_replicas": list(one.in_sync_replicas),
            "adding_replicas": list(one.adding),
            "removing_replicas": list(one.removing),
            "throttle_bytes_per_s": one.throttle or None,
        }
        for (topic, number), one in sorted(moving.items())
    ]


def print_moves(moving: Mapping[tuple[str, int], PartitionMove]) -> None:
    print_table(
        ["TOPIC", "PARTITION", "REPLICAS", "IN SYNC", "ADDING", "REMOVING", "THROTTLE"],
        [
            (
                topic,
                number,
                *(
                    join(ids) or "-"
                    for ids in (one.replicas, one.in_sync_replicas, one.adding, one.removing)
                ),
                f"{human_bytes(one.throttle)}/s" if one.throttle else "-",
            )
            for (topic, number), one in sorted(moving.items())
        ],
        right=["PARTITION"],
    )
