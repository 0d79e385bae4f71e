"""Computing the target of a group, in steps of about a millisecond.

It is of what the group was at the first step. What happens meanwhile makes the next epoch, whose
target follows.
"""

from __future__ import annotations

from collections.abc import Collection, Generator
from typing import Final

from .assignors import ASSIGNORS, UNIFORM
from .group import Group
from .reconcile import packed_shares
from .records import Kind, Member, Record, Share, Target, TopicPartition
from .topics import Topics

__all__ = ["Assigning"]

_MEMBERS_PER_STEP: Final = 50


class Assigning:
    """A target that is being computed, of what the group was when it began."""

    __slots__ = ("_epoch", "_group", "_steps")

    def __init__(self, group: Group, topics: Topics) -> None:
        assert group.header is not None
        self._group = group
        self._epoch = group.epoch
        self._steps = self._run(group.header.assignor, dict(group.members), topics)

    def step(self) -> list[Record] | None:
        """Compute for about a millisecond; return the records of the target when it is there."""
        try:
            next(self._steps)
        except StopIteration as done:
            return self._records(done.value)
        return None

    def _run(
        self, name: str, members: dict[bytes, Member], topics: Topics
    ) -> Generator[None, None, dict[bytes, tuple[Share, ...]]]:
        # Names of instances stay while ids of members change.
        ordered = sorted(members, key=lambda one: (members[one].instance_id, one))
        found: dict[str, tuple[bytes, int] | None] = {}
        subscriptions: dict[bytes, list[bytes]] = {}
        before: dict[bytes, Collection[TopicPartition]] = {}
        for done, member_id in enumerate(ordered):
            names = members[member_id].topics
            # One image for all members: a topic that comes meanwhile brings another epoch.
            found |= {one: topics.find(one) for one in names if one not in found}
            subscriptions[member_id] = [one[0] for name in names if (one := found[name])]
            before[member_id] = self._group.target_of(member_id) or ()
            if done % _MEMBERS_PER_STEP == 0:
                yield
        partitions = {one[0]: one[1] for one in found.values() if one is not None}
        # A row of a later broker may name another one.
        assignor = ASSIGNORS.get(name, ASSIGNORS[UNIFORM])
        targets = yield from assignor(subscriptions, partitions, before)
        shares = {}
        for done, (member_id, target) in enumerate(targets.items()):
            shares[member_id] = packed_shares(target)
            if done % _MEMBERS_PER_STEP == 0:
                yield
        return shares

    def _records(self, targets: dict[bytes, tuple[Share, ...]]) -> list[Record]:
        group, records = self._group, []
        for member_id, shares in targets.items():
            # It may have left meanwhile: then the next target is due, and gives its partitions to
            # others.
            if member_id not in group.members:
                continue
            before = group.targets.get(member_id)
            if before is None or before.shares != shares:
                target = Target(self._epoch, shares)
                records.append(Record(Kind.TARGET, group.name, member_id, target))
        gone = sorted(group.targets.keys() - group.members.keys())
        records += [Record(Kind.TARGET, group.name, member_id) for member_id in gone]
        # Its epoch last: what is stored in part is no target yet.
        records.append(Record(Kind.TARGET, group.name, b"", Target(self._epoch)))
        return records
