"""Partitions of which no disk ever had a row, when the power fails: they are led all the same."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from quiverlog.core.controller.records import NO_LEADER
from quiverlog.errors import NotLeader
from tests.support.damaged_copies import DamagedCopies


@pytest.fixture
def copies(tmp_path: Path) -> DamagedCopies:
    return DamagedCopies(tmp_path)


def lose(copies: DamagedCopies, *node_ids: int) -> None:
    """All lose their power at once, before the directories of these were on their disks."""
    members = copies.members
    for node_id in node_ids:
        shutil.rmtree(copies.directory(members.by_id[node_id]))
    copies.restart_together([members.by_id[node_id] for node_id in (1, 2, 3)])


def goes_on(copies: DamagedCopies) -> None:
    """The partition is led, takes rows, and all have them."""
    copies.members.run_until(lambda: copies.partition.leader_id != NO_LEADER, 30_000)
    copies.all_in_sync()
    copies.write()
    assert copies.read_all() == copies.written
    assert not copies.partition.begins_anew, "others are relied on now"


@pytest.mark.parametrize("unclean", ["false", "true"])
@pytest.mark.parametrize("node_ids", [(1, 2, 3), (2, 3), (1,)])
def test_it_is_led_when_the_power_took_its_directories(
    copies: DamagedCopies, node_ids: tuple[int, ...], unclean: str
) -> None:
    copies.alter("unclean.leader.election.enable", unclean)
    lose(copies, *node_ids)
    goes_on(copies)


def test_it_is_led_when_they_go_one_after_the_other(copies: DamagedCopies) -> None:
    """The one that came back first is noted as lost: one disk fewer than a row lies on."""
    members = copies.members
    last = members.by_id[3]
    members.down.add(3)
    for node_id in (2, 1):
        shutil.rmtree(copies.directory(members.by_id[node_id]))
        copies.restart(members.by_id[node_id])
        members.run(3_000)
    shutil.rmtree(copies.directory(last))
    members.down.discard(3)
    copies.restart(last)
    members.run(5_000)
    goes_on(copies)


def test_a_directory_with_rows_that_is_lost_is_waited_for(copies: DamagedCopies) -> None:
    """A row lies on two disks at least: with both gone no replica begins by itself."""
    copies.write()
    copies.flush()
    members = copies.members
    members.by_id[3].stop()
    members.down.add(3)
    members.run(3_000)
    lost = [members.by_id[node_id] for node_id in (1, 2)]
    for member in lost:
        shutil.rmtree(copies.directory(member))
    copies.restart_together(lost)
    members.run(10_000)
    assert copies.partition.leader_id == NO_LEADER
    members.down.discard(3)
    copies.restart(members.by_id[3])
    members.run(5_000)
    assert copies.partition.leader_id == NO_LEADER, "two disks are gone, which is one too many"
    codes = [copies.read(member) for member in members.by_id.values()]
    assert codes == [NotLeader.code] * 3, "what a copy lacks is no answer for clients"
    copies.elect_uncleanly()
    copies.all_in_sync()
    assert copies.read_all() == copies.written, "the third one had them"
