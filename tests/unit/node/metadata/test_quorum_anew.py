"""A Raft that begins anew over its log: the machine misses nothing, and no timer spins."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from quiverlog.core.raft import messages as r
from quiverlog.core.raft.membership import pack_voters
from quiverlog.core.raft.outbox import Write
from quiverlog.core.raft.raft import Raft
from quiverlog.node.metadata.quorum import Quorum
from quiverlog.node.runtime.effects import Job
from quiverlog.node.runtime.jobs import Then, Urgency
from quiverlog.storage.metadata.quorum_jobs import Snapshot
from quiverlog.types import Now
from tests.sim.disk import SimDisk
from tests.support.quorum_logs import KEY, OTHER, VOTERS, entry, incoming, open_log

SECOND_US = 1_000_000
SNAPSHOT = r.SnapshotMeta(20, 5, VOTERS)


class Machine:
    """`state`: what was applied since its snapshot. `bug`: raised once."""

    def __init__(self) -> None:
        self.state: list[bytes] = []
        self.bug: Exception | None = None
        self.interruptions = 0

    def _perhaps(self) -> None:
        bug, self.bug = self.bug, None
        if bug is not None:
            raise bug

    def apply(self, entry: r.Entry, now: Now) -> None:
        self._perhaps()
        self.state.append(entry.data)

    def restore(self, snapshot: Snapshot, now: Now) -> None:
        self._perhaps()
        self.state = [snapshot.records]

    def leads(self, now: Now) -> None:
        """Nothing is proposed."""

    def interrupted(self, error: BaseException, now: Now) -> None:
        self.interruptions += 1

    @property
    def may_be_captured(self) -> bool:
        return False

    def capture(self) -> Callable[[], bytes]:
        raise AssertionError

    def captured(self, now: Now) -> None:
        raise AssertionError


class World:
    """A replica whose jobs are done when the test does them."""

    def __init__(self, voters: r.Voters) -> None:
        disk = SimDisk()
        log = open_log(disk, "m")
        first = r.Entry(1, 1, r.EntryKind.VOTERS, pack_voters(voters))
        job = log.begin_write(Write(1, r.HardState(1, None), (first,), None))
        log.complete_write(job, job.run())
        self.machine = Machine()
        self.lines: list[str] = []
        self.sent: list[r.Message] = []
        self.jobs: list[tuple[Job, Then]] = []
        self.now = Now(SECOND_US, SECOND_US)
        self.quorum = Quorum(self, self, self._report, send=self._send)
        self.quorum.start(log, self.machine, self.now)
        self.quorum._starting = False
        self.quorum.go_on(self.now)

    def _report(self, _level: str, event: str, _reason: str) -> None:
        self.lines.append(event)

    def _send(self, messages: Sequence[r.Message], _now: Now) -> None:
        self.sent += messages

    def randrange(self, stop: int, /) -> int:
        return stop - 1

    def start(self, job: Job, then: Then, urgency: Urgency = Urgency.FLUSH) -> None:
        self.jobs.append((job, then))

    def work(self, error: BaseException | None = None) -> None:
        """All jobs, or the first one failing."""
        while self.jobs:
            job, then = self.jobs.pop(0)
            if error is not None:
                then(None, error, self.now)
                return
            then(job.run(), None, self.now)

    def wait(self, us: int) -> None:
        self.now = Now(self.now.mono_us + us, self.now.wall_us + us)
        self.quorum.tick(self.now)

    def append(self, **fields: Any) -> None:
        append = r.Append(
            **{
                "source": OTHER,
                "target": KEY,
                "term": 6,
                "prev_index": 20,
                "prev_term": 5,
                **fields,
            }
        )
        self.quorum.step(append, self.now)

    def receive_snapshot(self) -> None:
        """Up to the job that puts it in place."""
        data = incoming()
        chunk = r.SnapshotChunk(
            source=OTHER, target=KEY, term=6, snapshot=SNAPSHOT, offset=0, data=data, done=True
        )
        self.quorum.step(chunk, self.now)

    def check_follows(self) -> None:
        """What comes after the snapshot is applied to its state."""
        self.append(entries=(entry(21, 6),), commit=21)
        self.work()
        assert self.machine.state == [b"of another", b"21 of term 6"]
        assert self.quorum.applied_index == 21


@pytest.fixture
def world() -> World:
    return World(VOTERS)


def test_a_snapshot_that_could_not_be_taken_over_is_taken_over_by_the_next_raft(
    world: World,
) -> None:
    """The entries behind it were applied to the state of before."""
    world.machine.bug = ValueError("a record of a newer broker")
    world.receive_snapshot()
    world.work()
    assert world.lines == ["the quorum met a bug"]
    assert world.machine.state == [b""]
    world.wait(SECOND_US)
    world.check_follows()


def test_a_snapshot_that_was_written_for_a_raft_that_is_gone_is_taken_over(world: World) -> None:
    world.receive_snapshot()
    world.quorum._stop(ValueError("a bug"), world.now, out_of_service=False)
    world.wait(SECOND_US)
    assert world.machine.state == [b""], "the write is not back"
    world.work()
    world.wait(SECOND_US)
    world.check_follows()


def test_a_message_that_breaks_a_raft_ends_it_and_the_next_one_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World({KEY: ""})
    world.work()
    assert world.quorum.is_leading
    term = world.quorum.raft.term
    broken = world.quorum.raft

    def bug(*_: object) -> None:
        raise AssertionError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(Raft, "step", bug)
        world.quorum.step(r.HeartbeatResponse(source=OTHER, target=KEY, term=term), world.now)
    assert world.lines == ["the quorum met a bug"]
    assert world.machine.interruptions == 1
    assert not world.quorum.is_leading
    world.wait(SECOND_US)
    world.work()
    assert world.quorum.raft is not broken
    assert world.quorum.is_leading
    assert world.quorum.raft.term == term + 1


def test_a_failed_write_is_final_also_when_its_raft_is_gone(world: World) -> None:
    """A new Raft began every second, and could write nothing."""
    world.append(entries=(), commit=0, term=7)
    assert world.jobs, "the term is written"
    world.quorum._stop(ValueError("a bug"), world.now, out_of_service=False)
    world.work(OSError(errno.EIO, "the disk is broken"))
    for _ in range(5):
        world.wait(SECOND_US)
    assert world.quorum.log is not None
    assert world.quorum.log.fault
    assert world.lines == []
    assert world.quorum.next_us() > world.now.mono_us + 10**12


def test_no_timer_fires_again_and_again_while_a_write_hangs(world: World) -> None:
    world.append(entries=(), commit=0, term=7)
    world.quorum._stop(ValueError("a bug"), world.now, out_of_service=False)
    for _ in itertools.repeat(None, 3):
        world.wait(SECOND_US)
        assert world.quorum.next_us() > world.now.mono_us
    world.work()
    world.wait(SECOND_US)
    assert world.quorum.raft.term == 7
    assert not world.quorum.raft.is_failed


# --- what no replica can have sent ----------------------------------------------------------------
def message(kind: type[Any], **fields: Any) -> r.Message:
    found: r.Message = kind(**{"source": OTHER, "target": KEY, **fields})
    return found


def appended(term: int, prev_term: int, *terms: int) -> r.Message:
    added = tuple(entry(2 + n, each) for n, each in enumerate(terms))
    return message(r.Append, term=term, prev_index=1, prev_term=prev_term, commit=0, entries=added)


VOTE = {"last_index": 9, "last_term": 2}
CHUNK = {"offset": 0, "data": b"x", "done": False}
STRANGERS = [
    message(r.Vote, term=7, **VOTE),
    message(r.Heartbeat, term=7, commit=0),
    appended(7, 1, 7),
    message(r.SnapshotChunk, term=7, snapshot=SNAPSHOT, **CHUNK),
    message(r.TimeoutNow, term=2),
    message(r.HeartbeatResponse, term=1 << 62),
    message(r.VoteResponse, source=KEY, term=2, granted=True),
    message(r.AppendResponse, term=2, accepted=True, index=99),
]


@pytest.mark.parametrize("message", STRANGERS, ids=lambda m: type(m).__name__)
def test_no_message_takes_the_log_from_an_only_voter(message: r.Message) -> None:
    """Any client of the listener could put other voters into the log, for good."""
    world = World({KEY: ""})
    world.work()
    before = (world.quorum.raft.term, world.quorum.raft.log.last)
    world.quorum.step(message, world.now)
    world.work()
    assert world.lines == ["message refused"]
    assert world.quorum.is_leading
    assert (world.quorum.raft.term, world.quorum.raft.log.last) == before


@pytest.mark.parametrize(
    "message",
    [
        message(r.Vote, term=2, last_index=9, last_term=3),
        message(r.PreVote, term=2, last_index=9, last_term=3),
        appended(2, 1, 2, 1),
        appended(2, 1, 3),
        appended(2, 3),
        message(r.SnapshotChunk, term=4, snapshot=SNAPSHOT, **CHUNK),
        message(r.Heartbeat, source=r.ReplicaKey(5, "disk"), term=1, commit=0),
    ],
)
def test_what_contradicts_itself_or_the_leader_is_refused(world: World, message: r.Message) -> None:
    world.append(entries=(), commit=0, term=1, prev_index=1, prev_term=1)
    world.work()
    assert world.quorum.raft.leader == OTHER
    before = (world.quorum.raft.term, world.quorum.raft.log.last)
    world.quorum.step(message, world.now)
    assert world.lines == ["message refused"]
    assert (world.quorum.raft.term, world.quorum.raft.log.last) == before
