"""In-sync replicas by rules 8 and 9, and the rows that count by rules 5 and 6."""

from __future__ import annotations

from quiverlog.core.partition.agreement import Agreement
from quiverlog.core.partition.in_sync import InSync
from quiverlog.core.partition.leadership import Leadership
from quiverlog.core.partition.progress import NEVER_FETCHED_EPOCH, FollowerReport, FollowerSession
from quiverlog.errors import IneligibleReplica

LAG_US = 1_000


class Registered:
    """Broker epochs, of those that are fit."""

    def __init__(self) -> None:
        self.epochs = {0: 10, 1: 11, 2: 12}

    def fit_epoch(self, broker_id: int) -> int | None:
        return self.epochs.get(broker_id)


BROKERS = Registered()


def leadership(in_sync: tuple[int, ...] = (0, 1, 2), *, start: int = 100) -> Leadership:
    return Leadership(
        0,
        5,
        Agreement(5, start),
        (0, 1, 2),
        InSync(5, 1, in_sync),
        min_in_sync=2,
        lag_max_us=LAG_US,
        now_us=0,
    )


def fetched(
    leader: Leadership,
    broker: int,
    at: int,
    end: int,
    now_us: int,
    *,
    epoch: int | None = None,
    session: FollowerSession | None = None,
    flushed: int = 0,
) -> None:
    report = FollowerReport(broker, 10 + broker if epoch is None else epoch, at, flushed, 0)
    leader.fetched(report, session, end, BROKERS, now_us)


def proposed(
    leader: Leadership, end: int, now_us: int, *, high_watermark: int = 0
) -> set[int] | None:
    found = leader.propose(end, high_watermark, BROKERS, now_us)
    return None if found is None else set(found.members)


# --- lag ----------------------------------------------------------------------------------------
def test_a_follower_that_never_fetches_is_out_of_sync_a_lag_time_after_the_election() -> None:
    """Not at once: its reports went to another leader. (Rule 9.)"""
    leader = leadership()
    assert proposed(leader, 100, LAG_US) is None
    assert leader.deadline_us(100) == LAG_US + 1
    assert proposed(leader, 100, LAG_US + 1) == {0}


def test_a_follower_that_is_always_one_fetch_behind_is_in_sync() -> None:
    """Rule 9: it has what was the end at its fetch before."""
    leader = leadership()
    for number in range(20):
        now = number * 600
        for broker in (1, 2):
            fetched(leader, broker, 100 + 10 * number, 110 + 10 * number, now)
        assert proposed(leader, 120 + 10 * number, now + 300) is None


def test_a_follower_that_falls_behind_leaves() -> None:
    leader = leadership()
    for number in range(4):
        now = number * 600
        fetched(leader, 1, 100 + 10 * number, 110 + 10 * number, now)
        fetched(leader, 2, 100 + number, 110 + 10 * number, now)
    assert leader.deadline_us(150) == LAG_US + 1
    assert proposed(leader, 150, 1_900) == {0, 1}


def test_no_follower_is_looked_at_again_where_all_have_all_rows() -> None:
    leader = leadership()
    fetched(leader, 1, 100, 100, 5)
    fetched(leader, 2, 100, 100, 5)
    assert leader.deadline_us(100) is None
    assert proposed(leader, 100, 1_000_000) is None, "an idle partition stays as it is"


def test_any_fetch_of_its_session_counts_for_a_follower_of_an_idle_partition() -> None:
    """The follower does not mention the partition, and has all rows while its session fetches."""
    leader = leadership()
    session = [FollowerSession(0), FollowerSession(0)]
    fetched(leader, 1, 100, 100, 5, session=session[0])
    fetched(leader, 2, 100, 100, 5, session=session[1])
    session[0].fetched_us = 50_000
    leader.grows(100)
    assert leader.deadline_us(110) == LAG_US + 6, "the other's last fetch was at 5"
    assert proposed(leader, 110, 50_100) == {0, 1}


def test_fetches_of_a_session_do_not_count_for_a_partition_taken_out_of_it() -> None:
    leader = leadership((0, 1))
    session = FollowerSession(0)
    fetched(leader, 1, 100, 100, 5, session=session)
    leader.session_ended(1)
    session.fetched_us = 50_000
    leader.grows(100)
    assert proposed(leader, 110, 50_100) == {0}


# --- joining ------------------------------------------------------------------------------------
def test_a_follower_with_all_rows_joins() -> None:
    leader = leadership((0, 1))
    fetched(leader, 2, 100, 100, 5)
    assert proposed(leader, 100, 5, high_watermark=100) == {0, 1, 2}
    assert proposed(leader, 100, 5) is None, "one proposal at a time"


def test_a_follower_that_lacks_rows_of_earlier_leaders_does_not_join() -> None:
    """Rule 8: also where it has all below this leader's high watermark."""
    leader = leadership((0, 1))
    fetched(leader, 2, 99, 100, 5)
    assert proposed(leader, 100, 5, high_watermark=50) is None
    fetched(leader, 2, 100, 120, 6)
    assert proposed(leader, 120, 6, high_watermark=110) is None, "readers have seen more"
    fetched(leader, 2, 110, 120, 7)
    assert proposed(leader, 120, 7, high_watermark=110) == {0, 1, 2}


def test_a_restarted_or_fenced_follower_does_not_join() -> None:
    """Rule 8 of docs/replication-rules.md."""
    leader = leadership((0, 1))
    fetched(leader, 2, 100, 100, 5, epoch=7)
    assert proposed(leader, 100, 5) is None, "an earlier life of it asks"
    fetched(leader, 2, 100, 100, 6, epoch=13)
    assert proposed(leader, 100, 6) is None, "the metadata do not know this life yet"
    fenced = Registered()
    del fenced.epochs[2]
    leader = leadership((0, 1))
    fetched(leader, 2, 100, 100, 5)
    assert leader.propose(100, 100, fenced, 5) is None


def test_one_whose_log_was_replaced_joins_with_what_was_promised_on_its_disk() -> None:
    """From then on its log counts where logs are asked for: so there is what others have lost."""
    leader = leadership(in_sync=(0, 1))
    leader.replaced = frozenset((2,))
    fetched(leader, 2, 100, 100, 10, flushed=99)
    assert leader.flush_needed(2) == 100, "rows of leaders before may have been promised"
    assert leader.flush_needed(1) == 0, "a replica with its log joins as ever"
    assert proposed(leader, 100, 20) is None
    fetched(leader, 2, 100, 100, 30, flushed=100)
    assert proposed(leader, 100, 40) == {0, 1, 2}


def test_what_is_promised_while_it_copies_needs_not_be_flushed_to_join() -> None:
    """Else it would never come up with a busy leader. A disk that is lost changes the metadata."""
    leader = leadership(in_sync=(0, 1))
    leader.replaced = frozenset((2,))
    fetched(leader, 1, 150, 150, 5, flushed=150)
    assert leader.flushed_offset(150) == 150
    fetched(leader, 2, 150, 150, 10, flushed=100)
    assert proposed(leader, 150, 20) == {0, 1, 2}
    leader.refused(IneligibleReplica.code)
    leader.on_in_sync_set(2, (0, 1), 30)
    assert leader.flush_needed(2) == 150
    assert proposed(leader, 150, 40) is None
    fetched(leader, 2, 150, 150, 50, flushed=150)
    assert proposed(leader, 150, 60) == {0, 1, 2}


def test_a_new_life_has_caught_up_with_nothing() -> None:
    """With an empty disk it would be credited with what the old one had."""
    leader = leadership((0, 1, 2))
    fetched(leader, 1, 0, 500, 0)
    fetched(leader, 1, 100, 500, 900)
    fetched(leader, 1, 0, 500, 1_000, epoch=20)
    fetched(leader, 2, 500, 500, 2_000)
    assert proposed(leader, 500, 2_000) == {0, 2}


def test_rows_wait_for_a_follower_about_to_join() -> None:
    """Rule 5: it would else be a step behind the high watermark for ever."""
    leader = leadership((0, 1))
    fetched(leader, 1, 120, 120, 5)
    assert leader.replicated_offset(120) == 120
    fetched(leader, 2, 100, 120, 5)
    assert leader.replicated_offset(120) == 120, "it has never had all rows"
    fetched(leader, 2, 120, 120, 6)
    fetched(leader, 1, 140, 140, 7)
    assert leader.replicated_offset(140) == 120
    assert leader.deadline_us(140) == 6 + LAG_US + 1
    leader.look_at_joining(140, BROKERS, 7 + LAG_US)
    assert leader.replicated_offset(140) == 140, "it is silent"


def test_rows_wait_for_a_follower_that_may_have_joined() -> None:
    leader = leadership((0, 1))
    fetched(leader, 1, 100, 100, 5)
    fetched(leader, 2, 100, 100, 5)
    assert proposed(leader, 100, 5) == {0, 1, 2}
    fetched(leader, 1, 200, 200, 9_000)
    assert leader.replicated_offset(200) == 100, "however long it is silent"
    leader.refused(IneligibleReplica.code)
    assert leader.replicated_offset(200) == 200


def test_too_few_in_sync_hold_rows_back_by_what_is_committed() -> None:
    """A member that may have joined does not make up the number."""
    leader = leadership((0,))
    assert leader.is_under_min
    fetched(leader, 1, 100, 100, 5)
    assert proposed(leader, 100, 5) == {0, 1}
    assert leader.replicated_offset(100) == 0
    assert leader.on_in_sync_set(2, (0, 1), 5)
    assert leader.replicated_offset(100) == 100


def test_a_follower_that_joins_has_the_lag_time_to_catch_up() -> None:
    """The follower has all that is replicated, and would leave with the next look."""
    leader = leadership((0, 1))
    fetched(leader, 1, 200, 200, 50_000)
    fetched(leader, 2, 110, 200, 50_000)
    assert proposed(leader, 200, 50_000, high_watermark=105) == {0, 1, 2}
    assert leader.on_in_sync_set(2, (0, 1, 2), 50_001)
    assert proposed(leader, 200, 50_001 + LAG_US) is None
    assert proposed(leader, 200, 50_002 + LAG_US) == {0, 1}


# --- moving -------------------------------------------------------------------------------------
def flushed(leader: Leadership, broker: int, at: int, end: int) -> None:
    leader.fetched(FollowerReport(broker, 10 + broker, end, at, 0), None, end, BROKERS, 1)


def moving() -> Leadership:
    """From 0 and 1 to 2 and 3, which are in sync; 0 leads and has flushed all, as 1 has."""
    BROKERS.epochs[3] = 13
    members = InSync(5, 1, (0, 1, 2, 3))
    leader = Leadership(
        0, 5, Agreement(5, 100), (2, 3, 0, 1), members, min_in_sync=2, lag_max_us=LAG_US, now_us=0
    )
    flushed(leader, 1, 200, 200)
    assert leader.flushed_offset(200) == 200, "so much was promised"
    leader.move((2, 3), (0, 1))
    return leader


def ends(leader: Leadership) -> bool:
    proposal = leader.propose(200, 200, BROKERS, 2, flushed_offset=200)
    assert proposal is None or set(proposal.members) == {0, 1, 2, 3}
    return proposal is not None


def test_a_move_waits_for_the_disks_of_those_that_stay() -> None:
    """Rule 18 of docs/replication-rules.md."""
    leader = moving()
    assert not ends(leader)
    flushed(leader, 2, 200, 200)
    flushed(leader, 3, 199, 200)
    assert not ends(leader)
    assert leader.flushed_offset(200) == 199, "nothing more is promised for the disks that leave"
    flushed(leader, 3, 200, 200)
    assert ends(leader)


def test_replicas_that_stay_get_the_offset_that_a_move_wants_on_their_disks() -> None:
    leader = moving()
    assert not ends(leader)
    wanted = {broker: leader.flush_wanted(broker) for broker in leader.followers}
    assert {broker for broker, offset in wanted.items() if offset} == {2, 3}
    for broker in (2, 3):
        flushed(leader, broker, wanted[broker], 200)
    assert ends(leader), "no more is wanted than it takes"
    leader.move((), ())
    assert not any(leader.flush_wanted(broker) for broker in leader.followers)


def test_a_move_waits_until_the_leaving_replicas_have_fetched_under_this_leader() -> None:
    """Rule 18: the earlier leader would answer with its own end, although rows go on elsewhere."""
    members = InSync(5, 1, (0, 1, 2, 3))
    BROKERS.epochs[3] = 13
    leader = Leadership(
        0, 5, Agreement(5, 100), (0, 1, 2, 3), members, min_in_sync=2, lag_max_us=LAG_US, now_us=0
    )
    leader.move((0, 1), (2, 3))
    for broker in (1, 2):
        flushed(leader, broker, 200, 200)
    assert not ends(leader), "3 has not asked under this epoch"
    flushed(leader, 3, 0, 200)
    assert ends(leader)


def test_only_a_proposal_of_the_in_sync_replicas_ends_a_move() -> None:
    """A member that leaves meanwhile is no sign that the others have flushed."""
    leader = moving()
    for broker in (2, 3):
        flushed(leader, broker, 0, 200)
    left = leader.propose(300, 200, BROKERS, LAG_US * 3, flushed_offset=200)
    assert left is not None
    assert left.members == (0,)
    assert not left.ends_move
    leader.refused(IneligibleReplica.code)
    for broker in (2, 3):
        flushed(leader, broker, 200, 200)
    ended = leader.propose(200, 200, BROKERS, 2, flushed_offset=200)
    assert ended is not None
    assert ended.ends_move


def test_a_move_waits_for_rows_of_the_leaders_before() -> None:
    """What these have promised is not known, only that it lies below the epoch's start."""
    leader = moving()
    leader._promised_offset = leader.epoch_start_offset
    flushed(leader, 2, 100, 200)
    flushed(leader, 3, 99, 200)
    assert not ends(leader)
    flushed(leader, 3, 100, 200)
    assert ends(leader)


def test_a_move_waits_for_all_that_are_added() -> None:
    leader = moving()
    for broker in (2, 3):
        flushed(leader, broker, 200, 200)
    leader.move((2, 3, 4), (0, 1))
    assert not ends(leader)
    leader.move((), ())
    assert not ends(leader), "it does not move"


def test_a_proposal_that_is_repeated_speaks_of_the_same_lives() -> None:
    """A follower that was started anew has perhaps lost rows of which its earlier life was asked
    for: it would have been in sync without them. Refused, it is looked at as it is now.
    """
    leader = leadership((0, 1))
    fetched(leader, 1, 100, 100, 5)
    fetched(leader, 2, 100, 100, 5)
    first = leader.propose(100, 100, BROKERS, 6)
    assert first is not None
    assert first.broker_epochs == (NEVER_FETCHED_EPOCH, 11, 12)
    leader.in_sync.unanswered()
    fetched(leader, 2, 40, 100, 7, epoch=22)
    assert leader.propose_again() == first
    leader.refused(IneligibleReplica.code)
    again = leader.propose(100, 100, BROKERS, 8)
    assert again is not None, "it is open whether the first one holds"
    assert again.members == (0, 1)
