"""The machines of a follower, and the leader's end of fetch sessions, one step at a time."""

from __future__ import annotations

import pytest

from quiverlog.core.replication.divergence import diverging
from quiverlog.core.replication.follower import LEGAL, Cut, Follower, Phase, Skip, Take, cut_at
from quiverlog.core.replication.peer_fetcher import PeerFetcher
from quiverlog.core.replication.sessions import FetchSessions
from quiverlog.errors import (
    InvalidFetchSession,
    LogTruncated,
    NotLeader,
    OffsetOutOfRange,
    StaleBrokerEpoch,
    ThrottledBroker,
    UnknownLeaderEpoch,
)
from quiverlog.storage.segment.epochs import LeaderEpochs
from quiverlog.types import NO_EPOCH
from quiverlog.wire.replica_messages import (
    PartitionKey,
    ReplicaFetchPartition,
    ReplicaFetchResult,
)
from tests.support.replication import ModelLog

TOPIC = b"topic"


def log_of(*epochs: int) -> ModelLog:
    """A log with a row of each of these epochs."""
    log = ModelLog()
    log.append((epoch, n) for n, epoch in enumerate(epochs))
    return log


def result(partition: int = 0, *, epoch: int = 9, **fields: int) -> ReplicaFetchResult:
    return ReplicaFetchResult(TOPIC, partition, leader_epoch=epoch, **fields)  # type: ignore[arg-type]


def asking(log: ModelLog, epoch: int = 9) -> Follower:
    follower = Follower(log)
    follower.led_by(epoch, has_leader=True)
    return follower


# --- where logs part ----------------------------------------------------------------------------
def epochs_of(end: int, *entries: tuple[int, int]) -> LeaderEpochs:
    epochs = LeaderEpochs(lambda: end)
    for epoch, start in entries:
        epochs.assign(epoch, start)
    return epochs


@pytest.mark.parametrize(
    ("last_epoch", "offset", "expected"),
    [
        (5, 30, None),
        (5, 31, (5, 30)),
        (4, 20, None),
        (4, 25, (4, 20)),
        (3, 12, (2, 10)),
        (1, 4, None),
        (1, 6, (1, 5)),
        (6, 30, (NO_EPOCH, -1)),
        (NO_EPOCH, 99, None),
    ],
)
def test_where_a_leader_reports_that_logs_part(
    last_epoch: int, offset: int, expected: tuple[int, int] | None
) -> None:
    """Rules 2 and 4: epochs 2, 4 and 5 are known here."""
    epochs = epochs_of(30, (2, 5), (4, 10), (5, 20))
    assert diverging(epochs, last_epoch, offset) == expected


@pytest.mark.parametrize(
    ("answered", "expected"),
    [
        ((4, 15), 15),
        ((4, 99), 20),
        ((3, 12), 10),
        ((1, 3), 3),
        ((5, 25), 25),
    ],
)
def test_where_a_follower_cuts(answered: tuple[int, int], expected: int) -> None:
    """Rule 3: an epoch that is not known here leaves the end of the newest older one."""
    epochs = epochs_of(30, (2, 5), (4, 10), (5, 20))
    assert cut_at(epochs, 30, *answered) == expected


# --- one partition ------------------------------------------------------------------------------
def test_a_follower_asks_until_both_logs_know_the_epoch() -> None:
    """Rule 3 of docs/replication-rules.md."""
    log = log_of(1, 1, 3, 3, 5)
    follower = asking(log)
    fetch = follower.fetch_entry(TOPIC, 0)
    assert (fetch.offset, fetch.last_epoch, fetch.leader_epoch) == (5, 5, 9)
    parted = result(error_code=LogTruncated.code, diverging_epoch=4, diverging_end_offset=5)
    assert follower.answered(parted, 0) == Cut(4)
    assert follower.is_busy
    log.cut(4)
    follower.cut()
    assert follower.fetch_entry(TOPIC, 0).last_epoch == 3
    parted = result(error_code=LogTruncated.code, diverging_epoch=2, diverging_end_offset=2)
    assert follower.answered(parted, 0) == Cut(2)
    log.cut(2)
    follower.cut()
    assert follower.phase is Phase.ASKING
    fine = result(high_watermark=2)
    assert follower.answered(fine, 0) == Take(fine)
    assert follower.phase is Phase.FETCHING


def test_only_a_leader_without_an_older_epoch_has_the_high_watermark_decide() -> None:
    """Rule 1 of docs/replication-rules.md."""
    log = log_of(1, 1, 1)
    log.high_watermark = 2
    follower = asking(log)
    assert follower.answered(result(error_code=LogTruncated.code), 0) == Cut(2)


def test_an_answer_to_another_leadership_is_nothing() -> None:
    follower = asking(log_of(1))
    follower.led_by(10, has_leader=True)
    assert follower.answered(result(epoch=9), 0) is None
    assert follower.phase is Phase.ASKING


def test_a_leader_without_the_metadata_of_its_epoch_is_asked_again() -> None:
    """One that led before has no reason to send more by itself."""
    follower = asking(log_of(1), epoch=10)
    unknown = result(epoch=9, error_code=UnknownLeaderEpoch.code)
    assert follower.answered(unknown, 0) is None
    assert follower.phase is Phase.FAILED
    assert follower.retry_us > 0


def test_rows_that_the_leader_has_given_up_are_skipped() -> None:
    follower = asking(log_of(1, 1))
    beyond = result(error_code=OffsetOutOfRange.code, log_start_offset=50)
    assert follower.answered(beyond, 0) == Skip(50)
    follower.led_by(10, has_leader=False)
    assert follower.phase is Phase.SKIPPING, "the job is under way"
    with pytest.raises(AssertionError, match="skipping to failed"):
        follower.failed(0)
    follower.cut()
    assert follower.phase is Phase.WAITING


def test_a_copy_without_rows_has_nothing_to_agree_upon() -> None:
    """The newest epoch may have ended below in the leader's list: no cut would make them agree."""
    log = log_of(0, 0, 0)
    follower = asking(log, epoch=1)
    leader = epochs_of(113, (0, 0), (1, 2))
    log.log_start_offset = 3
    fetch = follower.fetch_entry(TOPIC, 0)
    assert fetch.offset == 3
    assert diverging(leader, fetch.last_epoch, fetch.offset) is None


def test_failures_wait_longer_each_time_and_a_disk_is_final() -> None:
    follower = asking(log_of(1))
    waits = []
    for _ in range(8):
        assert follower.answered(result(error_code=NotLeader.code), 1_000) is None
        assert follower.phase is Phase.FAILED
        waits.append(follower.retry_us - 1_000)
        follower.retry()
    assert waits == sorted(waits)
    assert waits[0] == 50_000
    assert waits[-1] == 2_000_000
    follower.went_offline()
    follower.led_by(10, has_leader=True)
    assert follower.phase is Phase.OFFLINE


def test_every_phase_is_reached_by_a_legal_step() -> None:
    assert set(LEGAL) == set(Phase)
    assert {after for phases in LEGAL.values() for after in phases} == set(Phase)
    follower = asking(log_of(1))
    follower.went_offline()
    with pytest.raises(AssertionError, match="offline to asking"):
        follower._become(Phase.ASKING)


# --- all partitions of a leader -----------------------------------------------------------------
def fetcher_of(count: int, *, entries_max: int = 100) -> tuple[PeerFetcher, list[Follower]]:
    fetcher = PeerFetcher(entries_max=entries_max)
    followers = [asking(log_of(1)) for _ in range(count)]
    for number, follower in enumerate(followers):
        fetcher.add((TOPIC, number), follower, 0)
    return fetcher, followers


def named(fetcher: PeerFetcher, now_us: int = 0) -> tuple[int, int, list[int], list[int]]:
    plan = fetcher.next_fetch(now_us)
    assert plan is not None
    entries = [entry.partition for entry in plan.entries]
    return plan.session_id, plan.session_epoch, entries, [key.partition for key in plan.forgotten]


def test_a_session_names_all_once_and_then_what_is_new() -> None:
    """Rule 25."""
    fetcher, _ = fetcher_of(3)
    assert named(fetcher) == (0, 0, [0, 1, 2], [])
    assert fetcher.next_fetch(0) is None, "one at a time"
    fetcher.answered(7)
    assert named(fetcher) == (7, 1, [], [])
    fetcher.answered(7)
    fetcher.mark_news((TOPIC, 1), 0)
    assert named(fetcher) == (7, 2, [1], [])
    fetcher.refused(0)
    assert named(fetcher) == (0, 0, [0, 1, 2], [])


def test_many_partitions_are_named_in_several_requests() -> None:
    fetcher, _ = fetcher_of(5, entries_max=2)
    plans = []
    for _ in range(4):
        plan = fetcher.next_fetch(0)
        assert plan is not None
        plans.append(([entry.partition for entry in plan.entries], plan.may_wait))
        fetcher.answered(7)
    assert plans == [([0, 1], False), ([2, 3], False), ([4], True), ([], True)]


def test_a_failed_partition_is_out_of_the_session_until_its_deadline() -> None:
    fetcher, followers = fetcher_of(2)
    named(fetcher)
    fetcher.answered(7)
    assert fetcher.result(result(0, error_code=NotLeader.code), 0) is None
    assert named(fetcher) == (7, 1, [], [0])
    fetcher.answered(7)
    assert fetcher.next_us() == 0, "the other one is fetched"
    named(fetcher)
    assert fetcher.next_us() == followers[0].retry_us
    fetcher.answered(7)
    assert named(fetcher, followers[0].retry_us) == (7, 3, [0], [])


def test_a_removed_copy_leaves_the_session_and_its_answers_are_ignored() -> None:
    fetcher, _ = fetcher_of(2)
    named(fetcher)
    fetcher.remove((TOPIC, 0))
    fetcher.answered(7)
    assert fetcher.result(result(0), 0) is None
    assert named(fetcher) == (7, 1, [], [0])


def test_a_leader_that_does_not_answer_is_asked_less_and_less() -> None:
    fetcher, _ = fetcher_of(1)
    now, waits = 0, []
    for _ in range(7):
        assert fetcher.next_fetch(now) is not None
        fetcher.failed(now)
        after = fetcher.next_us()
        assert after is not None
        waits.append(after - now)
        assert fetcher.next_fetch(after - 1) is None
        now = after
    assert waits[0] == 50_000
    assert waits[-1] == 1_000_000


def test_news_end_the_wait_of_a_fetch_once_and_only_if_it_is_held() -> None:
    fetcher, _ = fetcher_of(2)
    named(fetcher)
    fetcher.mark_news((TOPIC, 0), 0)
    assert fetcher.wait_to_end() is None, "the fetch that begins a session is not held"
    fetcher.answered(7)
    assert named(fetcher) == (7, 1, [0], [])
    assert fetcher.wait_to_end() is None, "there is no news"
    fetcher.mark_news((TOPIC, 1), 0, urgent=False)
    assert fetcher.wait_to_end() is None, "no caller waits for it"
    assert fetcher.next_us() is None
    fetcher.mark_news((TOPIC, 0), 0)
    assert fetcher.next_us() == 0
    assert fetcher.wait_to_end() == 7
    fetcher.mark_news((TOPIC, 1), 0)
    assert fetcher.wait_to_end() is None, "the leader has the report"
    fetcher.answered(7)
    assert named(fetcher) == (7, 2, [1, 0], [])
    assert fetcher.wait_to_end() is None, "all was reported"


def test_a_session_that_begins_anew_has_no_wait_to_end() -> None:
    fetcher, _ = fetcher_of(1)
    named(fetcher)
    fetcher.answered(7)
    named(fetcher)
    fetcher.mark_news((TOPIC, 0), 0)
    fetcher.refused(0)
    assert fetcher.wait_to_end() is None
    assert named(fetcher) == (0, 0, [0], [])
    fetcher.mark_news((TOPIC, 0), 0)
    assert fetcher.wait_to_end() is None


def test_a_copy_has_news_when_it_differs_from_its_last_report() -> None:
    log = log_of(1, 1)
    follower = asking(log)
    assert follower.has_news
    follower.fetch_entry(TOPIC, 0)
    assert not follower.has_news
    log.flushed_offset = 1
    assert follower.has_news
    assert not follower.has_new_start
    follower.fetch_entry(TOPIC, 0)
    log.log_start_saved = 1
    assert follower.has_new_start
    assert follower.has_news


def test_the_deadline_of_an_earlier_pause_does_not_end_a_later_one() -> None:
    fetcher, (follower,) = fetcher_of(1)
    follower.rest(1_000)
    fetcher.mark_news((TOPIC, 0), 0)
    follower.led_by(10, has_leader=True)  # It asks the next leader at once, and rests longer.
    fetcher.mark_news((TOPIC, 0), 0)
    follower.rest(2_000)
    fetcher.mark_news((TOPIC, 0), 0)
    for now_us in (1_000, 1_999):
        assert fetcher.next_fetch(now_us) is None
        assert follower.rests
    assert fetcher.next_us() == 2_000
    assert named(fetcher, 2_000)[2] == [0]


def test_nothing_is_asked_of_a_leader_that_leads_nothing() -> None:
    fetcher = PeerFetcher()
    assert fetcher.next_fetch(0) is None
    assert fetcher.next_us() is None


# --- the leader's end ---------------------------------------------------------------------------
def entry(partition: int, offset: int = 0) -> ReplicaFetchPartition:
    return ReplicaFetchPartition(TOPIC, partition, 9, offset)


def test_a_request_counts_once() -> None:
    """Rule 25 of docs/replication-rules.md."""
    sessions = FetchSessions(100)
    session, ended = sessions.request(1, 10, 0, 0, 5)
    assert (session.session_id, ended) == (100, None)
    assert sessions.request(1, 10, 100, 1, 6) == (session, None)
    assert session.fetched_us == 6
    for session_id, epoch in ((100, 1), (100, 3), (99, 2)):
        with pytest.raises(InvalidFetchSession):
            sessions.request(1, 10, session_id, epoch, 7)
    with pytest.raises(InvalidFetchSession):
        sessions.request(2, 10, 100, 2, 7)
    again, ended = sessions.request(1, 10, 0, 0, 8)
    assert again is not session
    assert ended is session


def test_an_earlier_life_of_a_follower_is_refused() -> None:
    sessions = FetchSessions(100)
    sessions.request(1, 10, 0, 0, 5)
    sessions.request(1, 11, 0, 0, 5)
    with pytest.raises(StaleBrokerEpoch):
        sessions.request(1, 10, 0, 0, 5)
    with pytest.raises(InvalidFetchSession):
        sessions.request(1, 12, 101, 1, 5)


def test_sessions_are_bounded() -> None:
    sessions = FetchSessions(100, sessions_max=2)
    first, _ = sessions.request(1, 10, 0, 0, 5)
    second, _ = sessions.request(2, 10, 0, 0, 5)
    sessions.request(1, 10, first.session_id, 1, 6)
    _, ended = sessions.request(3, 10, 0, 0, 7)
    assert ended is second, "the longest silent one"
    assert len(sessions) == 2


def test_what_sessions_remember_is_bounded() -> None:
    """A request may name any partitions, so a peer could have all memory."""
    sessions = FetchSessions(100, session_entries_max=3, entries_max=5)
    first, _ = sessions.request(1, 10, 0, 0, 5)
    sessions.check_room(first, [entry(n) for n in range(3)])
    first.take([entry(n) for n in range(3)], [])
    sessions.check_room(first, [entry(n, 7) for n in range(3)])
    with pytest.raises(InvalidFetchSession, match="would have 4 partitions, allowed are 3"):
        sessions.check_room(first, [entry(0), entry(3)])
    second, _ = sessions.request(2, 10, 0, 0, 5)
    with pytest.raises(ThrottledBroker, match="would have 6 partitions, allowed are 5"):
        sessions.check_room(second, [entry(n) for n in range(3)])
    sessions.request(1, 10, 0, 0, 6)
    sessions.check_room(second, [entry(n) for n in range(3)])


def test_a_fetch_looks_at_what_has_moved_in_turns() -> None:
    session, _ = FetchSessions(100).request(1, 10, 0, 0, 5)
    session.take([entry(n) for n in range(3)], [])
    assert [session.next_news() for _ in range(4)] == [(TOPIC, 0), (TOPIC, 1), (TOPIC, 2), None]
    assert session.moved((TOPIC, 2))
    assert not session.moved((TOPIC, 0)), "there was news already"
    assert not session.moved((TOPIC, 9)), "not of this session"
    session.take([], [PartitionKey(TOPIC, 2)])
    assert [session.next_news(), session.next_news()] == [(TOPIC, 0), None]
