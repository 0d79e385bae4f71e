"""Replicas that have lost what they held count for nothing until it is on their disk again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.damaged_copies import DamagedCopies
from tests.support.members import Member

BATCHES = 6


@pytest.fixture
def copies(tmp_path: Path) -> DamagedCopies:
    found = DamagedCopies(tmp_path)
    found.write(BATCHES)
    return found


def lose_directory(copies: DamagedCopies, member: Member) -> None:
    shutil.rmtree(copies.directory(member))
    copies.restart(member)


def rot(copies: DamagedCopies, member: Member) -> None:
    copies.flush()
    copies.flip(member, 2)
    copies.restart(member, scans=True)


@pytest.mark.parametrize("lose", [lose_directory, rot])
@pytest.mark.parametrize("node_id", [2, 3])
def test_a_log_that_is_lost_is_noted_until_its_rows_are_on_the_disk_again(
    copies: DamagedCopies, node_id: int, lose: object
) -> None:
    """The topic is `replicated`: a copy flushes every 30 s, and at once what it needs to join."""
    members = copies.members
    member = members.by_id[node_id]
    noted: list[tuple[int, ...]] = []
    begun: list[tuple[int, ...]] = []
    assert callable(lose)
    lose(copies, member)

    def is_back() -> bool:
        partition = copies.partition
        noted.append(partition.replaced_disks)
        replica = member.node.broker.assignment.find(copies.key)
        if replica is not None and not replica.damage:
            begun.append(partition.replaced_disks)
        return set(partition.in_sync_replicas) == {1, 2, 3}

    began_us = member.now.mono_us
    members.run_until(is_back, 20_000)
    assert member.now.mono_us - began_us < 15_000_000, "it does not wait for the next flush"
    assert (node_id,) in noted
    assert begun[0] == (node_id,), "an empty log counts for nothing from its beginning on"
    assert copies.partition.replaced_disks == ()
    assert copies.replica(member).log.flushed_offset >= len(copies.written)
    copies.write()
    assert copies.read_all() == copies.written


def test_a_restart_in_order_or_not_flushes_nothing_to_join(copies: DamagedCopies) -> None:
    """What is on its disk counts as it did before; rows that it copies since are as any others."""
    third = copies.members.by_id[3]
    copies.restart(third)
    assert copies.partition.replaced_disks == ()
    copies.write()
    copies.all_in_sync()
    replica = copies.replica(third)
    copies.members.run_until(lambda: replica.log.log_end_offset == len(copies.written))
    assert replica.log.flushed_offset < len(copies.written)
