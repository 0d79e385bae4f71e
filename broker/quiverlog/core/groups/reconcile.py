"""What one member of a group has, and how it comes to what it is to have.

    JOINING ──target──▶ STABLE ◀──────────────┐
                          │ │ given to others │ the last partition is free
                          │ ▼                 │
                          │ UNREVOKED ──▶ UNRELEASED (waits for others)
                          └──▶ LEFT, FENCED

A partition is given to a member only when no other has it, neither assigned nor being revoked. A
member takes the target's epoch when all that it must revoke is revoked; it waits for no other.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from quiverlog.errors import FencedMemberEpoch

from .records import Current, Held, Share, TopicPartition

__all__ = [
    "MemberState",
    "Standing",
    "advance",
    "check_epoch",
    "pack",
    "packed_shares",
    "state_of",
    "unpack",
    "unpacked_shares",
]

Epochs = dict[TopicPartition, int]
"""The group's epoch in which the member was given each partition."""


class MemberState(enum.Enum):
    JOINING = "joining"
    """Waits for the first target that has it."""
    STABLE = "stable"
    """Has what its epoch gives it; behind a new target until its next heartbeat."""
    UNREVOKED = "unrevoked"
    """Is asked to give up partitions."""
    UNRELEASED = "unreleased"
    """Waits for partitions that other members still have."""
    LEFT = "left"
    FENCED = "fenced"


class Standing(NamedTuple):
    """`previous_epoch`: the one that the member sends while it has not read the newest answer.
    `beat`: the newest heartbeat whose answer has offered partitions."""

    epoch: int
    previous_epoch: int
    beat: int
    assigned: Epochs
    revoking: Epochs

    def has(self, partition: TopicPartition) -> bool:
        return partition in self.assigned or partition in self.revoking


def check_epoch(standing: Standing, epoch: int, owned: Collection[TopicPartition] | None) -> bool:
    """Return whether it is a repetition: the member has the epoch before, the newest answer was
    lost. Raises FencedMemberEpoch."""
    if epoch == standing.epoch:
        return False
    if epoch == standing.previous_epoch and all(map(standing.has, owned or ())):
        return True
    raise FencedMemberEpoch(
        f"member epoch {epoch} is not the current one, {standing.epoch}, and no repetition of"
        f" {standing.previous_epoch}."
    )


def advance(
    member_id: bytes,
    standing: Standing,
    target: Collection[TopicPartition],
    target_epoch: int,
    holders: Mapping[TopicPartition, bytes],
    *,
    beat: int,
    owned: Collection[TopicPartition] | None,
) -> Standing | None:
    """Return what the member has after its heartbeat, None where that changes nothing.

    Args:
        holders: the member that has each partition, assigned or being revoked.
        owned: what it has, where it has just reported that. No answer to this heartbeat, or to a
            later one, has offered it more: what is not in it is given up.
    """
    assigned, revoking = standing.assigned, standing.revoking
    if revoking and (owned is None or any(one in owned for one in revoking)):
        return None
    leaving = {one: epoch for one, epoch in assigned.items() if one not in target}
    if leaving:
        kept = {one: epoch for one, epoch in assigned.items() if one not in leaving}
        assigned = kept
        leaving = {one: epoch for one, epoch in leaving.items() if owned is None or one in owned}
    if leaving:
        return standing._replace(beat=beat, assigned=assigned, revoking=leaving)
    given = {
        one: target_epoch
        for one in target
        # What it has just given up may come back to it.
        if one not in assigned and holders.get(one, member_id) == member_id
    }
    after = {**assigned, **given}
    if target_epoch == standing.epoch and not revoking and after == standing.assigned:
        return None
    # The member has this epoch: a repetition does not come here.
    is_raised = target_epoch != standing.epoch
    previous = standing.epoch if is_raised else standing.previous_epoch
    return Standing(target_epoch, previous, beat, after, {})


def state_of(
    standing: Standing, target: Collection[TopicPartition] | None, target_epoch: int
) -> MemberState:
    if standing.revoking:
        return MemberState.UNREVOKED
    if standing.epoch == 0 or target is None:
        return MemberState.JOINING
    if standing.epoch == target_epoch and len(standing.assigned) < len(target):
        return MemberState.UNRELEASED
    return MemberState.STABLE


# --- rows ------------------------------------------------------------------------------------
def pack(standing: Standing) -> Current:
    return Current(
        standing.epoch,
        standing.previous_epoch,
        standing.beat,
        _held(standing.assigned),
        _held(standing.revoking),
    )


def unpack(row: Current) -> Standing:
    assigned, revoking = _epochs(row.assigned), _epochs(row.revoking)
    return Standing(row.epoch, row.previous_epoch, row.beat, assigned, revoking)


def packed_shares(partitions: Iterable[TopicPartition]) -> tuple[Share, ...]:
    """Return the partitions by topic, in order."""
    topics: dict[bytes, list[int]] = {}
    for topic_id, number in sorted(partitions):
        topics.setdefault(topic_id, []).append(number)
    return tuple(Share(topic_id, tuple(numbers)) for topic_id, numbers in topics.items())


def unpacked_shares(shares: Iterable[Share]) -> frozenset[TopicPartition]:
    return frozenset((one.topic_id, number) for one in shares for number in one.partitions)


def _held(epochs: Epochs) -> tuple[Held, ...]:
    return tuple(
        Held(topic_id, numbers, tuple(epochs[topic_id, number] for number in numbers))
        for topic_id, numbers in ((one.topic_id, one.partitions) for one in packed_shares(epochs))
    )


def _epochs(held: Iterable[Held]) -> Epochs:
    return {
        (one.topic_id, number): epoch
        for one in held
        for number, epoch in zip(one.partitions, one.epochs, strict=True)
    }
