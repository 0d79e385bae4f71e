"""Snapshots: what one covers, and how a follower gets one."""

from __future__ import annotations

from quiverlog.core.raft import messages as m
from quiverlog.core.raft.messages import Entry, EntryKind, SnapshotMeta
from quiverlog.core.raft.snapshots import SnapshotRead
from tests.support.raft import (
    Replica,
    accepted,
    alive,
    append,
    entries,
    heartbeat,
    key,
    leader,
    refused,
    sent,
    voters,
)

SNAPSHOT = SnapshotMeta(9, 2, voters(0, 1))
DATA = bytes(range(150))


def chunk(
    offset: int, end: int, *, source: int = 1, term: int = 3, snapshot: SnapshotMeta = SNAPSHOT
) -> m.SnapshotChunk:
    return m.SnapshotChunk(
        source=key(source),
        target=key(0),
        term=term,
        snapshot=snapshot,
        offset=offset,
        data=DATA[offset:end],
        done=end == len(DATA),
    )


def answers(replica: Replica) -> list[tuple[int, bool]]:
    found = replica.take(m.SnapshotChunkResponse)
    return [(a.offset, a.installed) for a in found if isinstance(a, m.SnapshotChunkResponse)]


def answer(offset: int, *, installed: bool = False, term: int = 2) -> m.SnapshotChunkResponse:
    return m.SnapshotChunkResponse(
        source=key(1),
        target=key(0),
        term=term,
        snapshot_index=9,
        offset=offset,
        installed=installed,
    )


def compacted_leader() -> Replica:
    """Leads term 2 with a snapshot of 9 and nothing before it; follower 1 has nothing."""
    snapshot = SnapshotMeta(9, 1, voters(0, 1, 2))
    replica = Replica(0, snapshot=snapshot, stored=entries(10, [1]), term=1).win()
    replica.take()
    nothing = refused(10, 0, 0, term=2)
    return replica.step(nothing)


def give(replica: Replica) -> m.SnapshotChunk:
    """The host reads what it was asked for; the chunk that is sent."""
    read = replica.reads.pop()
    data = DATA[read.offset : read.offset + read.bytes_max]
    done = read.offset + len(data) == len(DATA)
    replica.raft.chunk_read(read, data, done, replica.now_us)
    replica.pump()
    (found,) = replica.take(m.SnapshotChunk)
    assert isinstance(found, m.SnapshotChunk)
    return found


# --- taking ----------------------------------------------------------------------------------
def test_a_snapshot_holds_what_was_applied_and_no_more() -> None:
    """Rule 29 of docs/replication-rules.md."""
    replica = leader().step(accepted(1, 1)).propose(b"x", b"y").settle()
    assert replica.raft.log.last_index == 3
    assert replica.raft.snapshot_point().index == 1


def test_after_a_snapshot_the_log_goes_on_behind_it() -> None:
    replica = leader().step(accepted(1, 1), accepted(2, 1)).propose(b"x").settle()
    replica.store.compact(replica.raft.snapshot_point())
    replica.raft.snapshot_taken()
    replica.pump()
    replica.take()
    assert replica.raft.log.first_index == 2
    (more,) = sent(replica.step(alive(1)), 1)
    assert (more.prev_index, more.prev_term) == (2, 1)
    assert replica.step(accepted(1, 2)).committed == 2


# --- sending ---------------------------------------------------------------------------------
def test_a_follower_that_the_log_does_not_reach_gets_the_snapshot_in_chunks() -> None:
    replica = compacted_leader()
    assert replica.reads == [SnapshotRead(key(1), replica.store.snapshot, 0, 64)]
    assert sent(replica, 1) == []
    found = [give(replica)]
    for _ in range(2):
        assert replica.reads == [], "one chunk at a time"
        replica.step(answer(found[-1].offset + 64))
        found.append(give(replica))
    assert [(c.offset, len(c.data), c.done) for c in found] == [
        (0, 64, False),
        (64, 64, False),
        (128, 22, True),
    ]
    replica.step(answer(150, installed=True))
    (behind,) = sent(replica, 1)
    assert (behind.prev_index, behind.prev_term, len(behind.entries)) == (9, 1, 2)


def test_a_chunk_without_an_answer_is_read_again_after_a_while() -> None:
    replica = compacted_leader()
    give(replica)
    for _ in range(9):
        replica.wait(100).step(alive(1, term=2), alive(2, term=2))
        assert replica.reads == []
    replica.wait(100).step(alive(1, term=2), alive(2, term=2))
    assert [read.offset for read in replica.reads] == [0]


def test_a_follower_that_began_again_is_followed() -> None:
    replica = compacted_leader()
    give(replica)
    replica.step(answer(64))
    give(replica)
    replica.step(answer(0))
    assert [read.offset for read in replica.reads] == [0]


def test_when_the_file_is_gone_the_newest_snapshot_is_sent() -> None:
    replica = compacted_leader()
    read = replica.reads.pop()
    newer = SnapshotMeta(10, 1, voters(0, 1, 2))
    replica.step(accepted(2, 11, term=2))
    replica.store.compact(newer)
    replica.raft.snapshot_taken()
    replica.raft.chunk_read(read, None, False, replica.now_us)
    replica.pump()
    assert [(read.snapshot, read.offset) for read in replica.reads] == [(newer, 0)]


# --- receiving -------------------------------------------------------------------------------
def test_a_chunk_is_answered_when_it_is_durable() -> None:
    """Rule 29 of docs/replication-rules.md."""
    replica = Replica(0, term=3).step(chunk(0, 64))
    assert answers(replica) == []
    assert answers(replica.persist()) == [(64, False)]
    assert replica.restored == []


def test_the_last_chunk_makes_the_snapshot_the_log() -> None:
    replica = Replica(0, term=3, stored=entries(1, [1, 1]))
    replica.step(chunk(0, 64)).persist().step(chunk(64, 128)).persist().step(chunk(128, 150))
    replica.take()
    assert replica.restored == []
    assert answers(replica.persist()) == [(150, True)]
    assert replica.restored == [SNAPSHOT]
    assert replica.raft.voters == SNAPSHOT.voters
    assert (replica.committed, replica.raft.log.last_index) == (9, 9)
    replica.step(append(9, 2, [Entry(10, 3, EntryKind.DATA, b"x")], term=3, commit=10)).settle()
    assert [entry.index for entry in replica.applied] == [10]


def test_a_chunk_out_of_order_is_answered_with_the_one_that_is_wanted() -> None:
    replica = Replica(0, term=3).step(chunk(64, 128))
    assert replica.write is None
    assert answers(replica) == [(0, False)]
    replica.step(chunk(0, 64)).persist().step(chunk(0, 64))
    assert answers(replica) == [(64, False), (64, False)]


def test_chunks_of_another_leader_begin_anew() -> None:
    """Two replicas may have written different bytes for the same index."""
    replica = Replica(0, term=3).step(chunk(0, 64)).settle()
    replica.take()
    replica.step(chunk(64, 128, source=2, term=4)).settle()
    assert answers(replica) == [(0, False)]


def test_a_snapshot_that_the_log_has_reached_is_not_installed() -> None:
    """Paper, figure 13: what lies behind it may be acknowledged."""
    replica = Replica(0, term=3, stored=entries(1, [1] * 8 + [2, 2]))
    replica.step(chunk(0, 64))
    assert replica.write is None
    assert answers(replica) == [(0, True)]
    assert (replica.committed, replica.raft.log.last_index) == (9, 10)


def test_nothing_is_appended_while_a_snapshot_takes_the_place_of_the_log() -> None:
    replica = Replica(0, term=3).step(chunk(0, 150 - 1)).settle()
    replica.step(chunk(149, 150)).take()
    replica.step(append(0, 0, entries(1, [3]), term=3, commit=1))
    assert (replica.take(), replica.raft.log.last_index) == ([], 0)
    replica.settle()
    assert replica.raft.log.last_index == 9


def test_a_chunk_of_an_older_leader_that_is_not_being_written_is_dropped() -> None:
    replica = Replica(0, term=3).step(append(0, 0, entries(1, [3]), term=3))
    replica.step(chunk(0, 64)).step(heartbeat(term=4, source=2))
    replica.take()
    replica.step(chunk(0, 64, source=2, term=4))
    assert answers(replica.settle()) == [(64, False)]
