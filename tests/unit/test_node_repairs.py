"""A disk rots under a replica: it leaves, is set aside, and is copied again; no row is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.damaged_copies import DamagedCopies

BATCHES = 6


@pytest.fixture
def copies(tmp_path: Path) -> DamagedCopies:
    found = DamagedCopies(tmp_path)
    found.write(BATCHES)
    found.flush()
    return found


def repaired(copies: DamagedCopies) -> bool:
    members = copies.members.by_id.values()
    return (
        set(copies.partition.in_sync_replicas) == {1, 2, 3}
        and not any(one.node.broker.repairs.is_needed for one in members)
        and any(copies.aside(one) for one in members)
    )


def check(copies: DamagedCopies) -> None:
    """All is as if nothing had happened."""
    copies.write()
    copies.flush()
    members = list(copies.members.by_id.values())
    assert copies.read_all() == copies.written
    assert len({copies.stored(one) for one in members}) == 1, "the same bytes everywhere"
    for one in members:
        assert one.metrics.partitions_damaged == 0
        assert one.metrics.internal_errors == 0


@pytest.mark.parametrize("scans", [True, False])
@pytest.mark.parametrize("node_id", [1, 2])
def test_damage_that_a_start_or_a_read_finds_is_mended(
    copies: DamagedCopies, node_id: int, scans: bool
) -> None:
    """Rule 13 of docs/replication.md: of whoever led, and of a copy; by a start, or when read."""
    member = copies.members.by_id[node_id]
    copies.flip(member, 2)
    damaged = copies.stored(member)
    copies.restart(member, scans=scans)
    if not scans:
        copies.all_in_sync()
        copies.lead(node_id)
        assert copies.read_all() == copies.written
        assert copies.partition.leader_id != node_id
    copies.members.run_until(lambda: repaired(copies), 20_000)
    (aside,) = copies.aside(member)
    assert aside == f"t-0.{copies.topic.hex()[:8]}.1.damaged"
    kept = b"".join(
        path.read_bytes()[64:] for path in sorted(copies.directory(member, aside).glob("*.log"))
    )
    assert kept == damaged, "not one byte was changed"
    assert member.metrics.replicas_made_anew == 1
    check(copies)
