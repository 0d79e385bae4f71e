"""A disk rots under a replica: it leaves, is set aside, and is copied again; no row is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiverlog.errors import CorruptLog, NotController, NotLeader
from quiverlog.node.runtime.jobs import Then
from quiverlog.types import Durability
from quiverlog.wire.replica_messages import AlterPartitionRequest
from tests.support.damaged_copies import DamagedCopies, failing_reads

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


@pytest.mark.parametrize(
    ("node_id", "scans"),
    [
        (1, True),
        (2, False),
        pytest.param(1, False, marks=pytest.mark.long),
        pytest.param(2, True, marks=pytest.mark.long),
    ],
)
def test_damage_that_a_start_or_a_read_finds_is_mended(
    copies: DamagedCopies, node_id: int, scans: bool
) -> None:
    """Rule 13 of docs/replication-rules.md: on the leader and on a copy, by start or read."""
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


def test_a_leader_that_is_alone_goes_on_and_hands_over_when_others_are_back(
    copies: DamagedCopies,
) -> None:
    """What is whole is read, new rows are taken; replicas without damage take over."""
    members = copies.members
    copies.lead(1)
    first = members.by_id[1]
    copies.flip(first, 2)
    copies.restart(first)
    copies.all_in_sync()
    copies.lead(1)
    members.run_until(lambda: copies.replica(first).state.high_watermark == len(copies.written))
    members.down |= {2, 3}
    members.run_until(lambda: copies.partition.in_sync_replicas == (1,), 20_000)
    assert copies.read(first, 0) == copies.written[:100]
    assert copies.read(first, 100) == CorruptLog.code
    assert copies.read(first, 150) == copies.written[150:], "rows behind the damage are read"
    members.run(3_000)
    assert first.metrics.partitions_damaged == 1
    assert not copies.replica(first).fault
    copies.alter("durability", "memory")
    copies.write(1, Durability.MEMORY)
    members.down.clear()
    members.run_until(lambda: repaired(copies), 30_000)
    assert copies.partition.leader_id != 1
    check(copies)


def test_a_reader_of_damaged_rows_is_sent_on_while_others_have_them(copies: DamagedCopies) -> None:
    """CORRUPT_LOG would end it, and these rows are whole elsewhere."""
    first = copies.members.by_id[2]
    copies.flip(first, 2)
    copies.restart(first)
    copies.all_in_sync()
    copies.lead(2)
    assert copies.read(first, 0) == copies.written[:100]
    # For as long as it has no metadata of the next leader.
    first.node.broker.offline_replicas._ask = lambda *_asked: None
    for _ in range(2):
        assert copies.read(first, 100) == NotLeader.code
        assert copies.read(first, 0) == copies.written[:100], "what is whole is read"
    assert first.metrics.partitions_damaged == 1


def test_where_all_are_damaged_the_rows_are_named_and_given_up(copies: DamagedCopies) -> None:
    members = copies.members
    for node_id in (1, 2, 3):
        copies.flip(members.by_id[node_id], 2)
    # At once: the first of them would be set aside while another leads, and count for nothing.
    copies.restart_together(members.by_id.values(), scans=True)
    members.run(15_000)
    leader = copies.leader
    assert copies.partition.in_sync_replicas == (leader.config.node_id,)
    # Alone it shows nothing of which it has no proof that they are replicated, unless an operator
    # asks for it.
    copies.alter("min.insync.replicas", "1")
    members.run_until(lambda: copies.replica(leader).state.high_watermark == len(copies.written))
    assert copies.read(leader, 100) == CorruptLog.code
    waiting = [
        line.fields["why"]
        for one in members.by_id.values()
        for line in one.lines
        if line.event == "copies wait: rows of the leader are damaged"
    ]
    assert waiting
    assert all("rows 100 to 150, are damaged" in str(why) for why in waiting)
    assert len(waiting) < 10, "logged once, not with every try"
    copies.give_up(150)
    copies.all_in_sync()
    copies.written[:150] = []
    copies.start = 150
    check(copies)


@pytest.mark.parametrize("node_id", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_file_that_the_disk_does_not_give_is_an_error_of_its_partition(
    copies: DamagedCopies, node_id: int
) -> None:
    """A bad sector at each call that reads for it: mended, or as if there had been none."""
    member = copies.members.by_id[node_id]
    for nth in range(60):
        copies.restart(member)
        copies.all_in_sync()
        copies.lead(node_id)
        member.disk.evict()
        with failing_reads(copies.directory(member), nth) as failed:
            assert copies.read_all() == copies.written
        copies.members.run(500)
        copies.all_in_sync()
        assert copies.read_all() == copies.written
        assert member.metrics.internal_errors == 0
        if not failed:
            break
    else:
        raise AssertionError("there is no end of reading")
    assert nth > 2
    assert copies.aside(member), "some of these calls were for rows"
    check(copies)


def test_a_broker_that_finds_damage_at_its_start_is_not_elected(copies: DamagedCopies) -> None:
    """Fenced until the controller has the replicas that must not count."""
    members = copies.members
    second = members.by_id[2]
    copies.flip(second, 1)
    for path in copies.directory(second).glob("recovery-point*"):
        path.unlink()
    second.crash()
    offline_replicas = second.node.broker.offline_replicas
    ask = offline_replicas._ask
    asked: list[tuple[AlterPartitionRequest, Then]] = []
    offline_replicas._ask = lambda request, then, now: asked.append((request, then))
    members.run_until(lambda: bool(asked))
    members.run(3_000)
    controller = members.by_id[1].node.broker
    assert second.started
    assert controller.metadata.image.brokers[2].fenced
    offline_replicas._ask = ask
    asked[0][1](None, NotController("moved"), second.now)
    members.run_until(lambda: not controller.metadata.image.brokers[2].fenced)
    members.run_until(lambda: repaired(copies), 30_000)
    check(copies)


def test_bytes_that_go_bad_under_a_running_leader_are_found_by_its_followers(
    copies: DamagedCopies,
) -> None:
    """The leader has written them itself, and verifies nothing: the follower that gets them
    reports it."""
    members = copies.members
    copies.lead(2)
    second, first = members.by_id[2], members.by_id[1]
    copies.flip(second, 3)
    copies.flip(first, 1)
    copies.restart(first, scans=True)
    members.run_until(lambda: repaired(copies) and copies.aside(second) != [], 60_000)
    assert copies.aside(first)
    assert any(line.event == "copy refused" for line in first.lines)
    check(copies)
