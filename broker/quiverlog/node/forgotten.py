"""What is said of a voter that lacks decisions which it has acknowledged: loudly, and once.

Owns the words. Such a disk is in an earlier state (a restored backup, a snapshot of its volume): it
may have forgotten votes, too, and nobody can mend that but by emptying it (docs/cluster.md).

Must not know: how that is found out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from quiverlog.core.raft.messages import ReplicaKey

__all__ = ["tell_forgotten"]

_EVENT = "a voter has forgotten decisions"


def tell_forgotten(
    report: Callable[[str, str, str], None],
    own: ReplicaKey,
    forgotten: Mapping[ReplicaKey, int],
    told: frozenset[ReplicaKey],
) -> frozenset[ReplicaKey]:
    """Say it of those of whom it was not said yet; returns of whom it was."""
    for key, index in forgotten.items():
        if key not in told:
            report("error", _EVENT, _words(own, key, index))
    assert forgotten, "somebody lacks something"
    return told | forgotten.keys()


def _words(own: ReplicaKey, key: ReplicaKey, index: int) -> str:
    assert index > 0
    who = "this broker's" if key == own else f"broker {key.node_id}'s"
    return (
        f"{who} metadata log ends before entry {index}, which it has acknowledged: its disk is in"
        " an earlier state, as that of a restored backup. It gets no decisions under this leader,"
        f" and its votes cannot be relied on. Stop broker {key.node_id}, empty its data directory,"
        f" `quiverlog quorum remove {key.node_id} --directory-id {key.directory_id}`, and"
        " start it again."
    )
