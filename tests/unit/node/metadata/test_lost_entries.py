"""A voter whose disk is put back to an earlier state: it logs that, and so does its leader."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.members import Member, Members
from tests.unit.node.metadata.test_voters import create_in, grow

EVENT = "a voter has forgotten decisions"


def lost_entries_lines(member: Member) -> list[str]:
    return [str(line.fields["why"]) for line in member.lines if line.event == EVENT]


def test_a_voter_with_an_earlier_disk_is_logged_on_both_sides(tmp_path: Path) -> None:
    members = Members(tmp_path)
    first = members.add(1)
    grow(members, 2, 3)
    data = Path(members.by_id[2].config.data_dir)
    earlier = tmp_path / "earlier" / data.relative_to(tmp_path)
    shutil.copytree(data, earlier)
    for n in range(5):
        assert create_in(members, f"t{n}") == 0
    members.run(500)
    del members.by_id[2]
    members._root = tmp_path / "earlier"
    second = members.add(2, seeds=(1, 3))
    lost = second.quorum.raft.log.last_index
    assert lost < first.quorum.raft.log.commit
    members.run(3_000)
    assert create_in(members, "later") == 0
    members.run(5_000)
    assert first.quorum.is_leading
    assert second.quorum.raft.log.last_index == lost, "it gets no decisions under this leader"
    (line,) = lost_entries_lines(second)
    assert "this broker's metadata log ends before" in line
    (line,) = lost_entries_lines(first)
    assert f"quorum remove 2 --directory-id {second.key.directory_id}" in line
    assert not lost_entries_lines(members.by_id[3])
