"""What a coordinator decides, rule by rule: open, commit, abort, resolve, forget, bounds."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from quiverlog.core.transactions import coordinator as module
from quiverlog.core.transactions.coordinator import (
    EPOCHS_END,
    OLD_INSTANCES_MAX,
    PINNED_MS_MAX,
    SINGLE_USE_EXPIRY_MS,
    Coordinator,
    Resolved,
    Standings,
)
from quiverlog.core.transactions.records import (
    Closed,
    Committed,
    End,
    Forgotten,
    Opened,
    Part,
    Published,
    Record,
    SnapshotState,
    digest_of,
)
from quiverlog.errors import (
    CorruptLog,
    SequenceTaken,
    SequenceTooOld,
    StagingFull,
    TransactionClosed,
    TransactionFenced,
    UnknownTransactionalId,
)
from quiverlog.limits import TRANSACTIONAL_ID_EXPIRY_MS_DEFAULT
from quiverlog.types import Durability, Now

MINUTE_US = 60_000_000
TIMEOUT_MS = 900_000
START = Now(1_000_000, 1_700_000_000_000_000)
ATTEMPT, OTHER = b"a" * 16, b"b" * 16
DIGEST, OTHER_DIGEST = digest_of([(ATTEMPT, 5)]), digest_of([(OTHER, 5)])
PARTS = (Part(2, 10, 20, 5, (0,)),)


def later(us: int) -> Now:
    return Now(START.mono_us + us, START.wall_us + us)


class Harness:
    """A coordinator whose proposals become safe when the test wants it."""

    def __init__(self) -> None:
        self.coordinator = Coordinator()
        self.coordinator.begin(START)
        self.proposed: list[Record] = []
        self.log: list[Record] = []

    def propose(self, records: Iterable[Record]) -> None:
        for record in records:
            self.coordinator.pend(record)
            self.proposed.append(record)

    def settle(self) -> None:
        for record in self.proposed:
            self.coordinator.apply(len(self.log), record)
            self.log.append(record)
        self.proposed.clear()

    def put(self, records: Iterable[Record]) -> None:
        self.propose(records)
        self.settle()

    def open(
        self, tid: str = "app", instance: bytes = b"one", *, single: bool = False, now: Now = START
    ) -> int:
        opening = self.coordinator.open(tid, instance, "client", TIMEOUT_MS, single, now)
        self.put(opening.records)
        self.coordinator.sign_of_life(tid, now, opens=bool(opening.records))
        return opening.epoch

    def commit(
        self, epoch: int, sequence: int, tid: str = "app", *, digest: bytes = DIGEST
    ) -> list[Record]:
        return self.coordinator.commit(
            tid, epoch, sequence, digest, (ATTEMPT,), PARTS, -1, Durability.REPLICATED, START
        )

    def published(self, sequence: int, tid: str = "app") -> list[Record]:
        return self.coordinator.published(
            tid, sequence, (End(b"t" * 16, 0, 5),), Durability.REPLICATED_FLUSHED
        )

    def committed(self, epoch: int, sequence: int, tid: str = "app") -> None:
        self.put(self.commit(epoch, sequence, tid))
        self.put(self.published(sequence, tid))

    def standing(self, epoch: int, sequence: int, digest: bytes = DIGEST) -> Standings:
        return self.coordinator.check_commit("app", epoch, sequence, digest).kind

    def resolve(self, epoch: int, sequence: int, now: Now = START) -> Resolved:
        resolving = self.coordinator.resolve("app", epoch, sequence, now)
        assert not resolving.records
        return resolving.standing

    def state(self, tid: str = "app") -> SnapshotState:
        return self.coordinator.applied[tid]


# --- OPEN ---------------------------------------------------------------------------------------
def test_the_first_open_begins_epoch_1_and_is_recorded() -> None:
    opening = Harness().coordinator.open("app", b"one", "client", TIMEOUT_MS, False, START)
    opened = Opened(1, b"one", "client", TIMEOUT_MS, False, START.wall_us)
    assert opening.records == [Record("app", opened)]
    assert (opening.epoch, opening.last_sequence, opening.last_committed_us) == (1, -1, 0)
    assert not opening.is_publishing


def test_the_current_instance_gets_its_epoch_back_and_nothing_is_written() -> None:
    harness = Harness()
    harness.open()
    opening = harness.coordinator.open("app", b"one", "client", TIMEOUT_MS, False, START)
    assert (opening.epoch, opening.records) == (1, [])


def test_an_unseen_instance_gets_the_next_epoch_and_the_one_before_it_is_out_for_good() -> None:
    harness = Harness()
    harness.open()
    assert harness.open(instance=b"two") == 2
    with pytest.raises(TransactionFenced, match="epoch 2"):
        harness.open(instance=b"one")
    with pytest.raises(TransactionFenced, match="epoch 1 of 'app' is not the current one, 2"):
        harness.standing(1, 0)


def test_sixteen_old_instances_are_remembered_and_the_seventeenth_is_not() -> None:
    harness = Harness()
    instances = [b"%d" % i for i in range(OLD_INSTANCES_MAX + 2)]
    for instance in instances:
        harness.open(instance=instance)
    with pytest.raises(TransactionFenced):
        harness.open(instance=instances[1])
    assert harness.open(instance=instances[0]) == len(instances) + 1
    assert len(harness.state().old_instances) == OLD_INSTANCES_MAX


def test_the_current_instance_opens_again_after_its_epoch_was_closed() -> None:
    harness = Harness()
    harness.open()
    harness.put(harness.coordinator.abort("app", 1, 0, force=False).records)
    assert harness.open() == 3


def test_another_instance_opens_after_the_epoch_was_closed_and_the_first_is_out() -> None:
    harness = Harness()
    harness.open()
    harness.put(harness.coordinator.abort("app", 1, 0, force=False).records)
    assert harness.open(instance=b"two") == 3
    with pytest.raises(TransactionFenced):
        harness.open(instance=b"one")


def test_open_tells_of_a_commit_that_is_not_safe_yet_and_waits_for_it() -> None:
    harness = Harness()
    harness.open()
    harness.propose(harness.commit(1, 7))
    opening = harness.coordinator.open("app", b"one", "client", TIMEOUT_MS, False, START)
    assert (opening.last_sequence, opening.is_publishing) == (7, True)
    assert opening.last_committed_us == START.wall_us
    assert harness.coordinator.is_waiting("app")
    assert not harness.coordinator.is_waiting("other")
    harness.settle()
    assert not harness.coordinator.is_waiting("app")


def test_what_is_pending_is_thrown_away() -> None:
    harness = Harness()
    harness.open()
    harness.propose(harness.commit(1, 7))
    harness.coordinator.drop_pending()
    assert not harness.coordinator.is_waiting("app")
    assert harness.standing(1, 7) is Standings.NEW


def test_records_become_safe_in_the_order_in_which_they_were_proposed() -> None:
    harness = Harness()
    harness.propose([Record("a", Closed(4, "x")), Record("b", Closed(4, "x"))])
    with pytest.raises(AssertionError, match="in the order"):
        harness.coordinator.apply(0, harness.proposed[1])


# --- COMMIT -------------------------------------------------------------------------------------
def test_an_id_that_was_never_opened() -> None:
    with pytest.raises(UnknownTransactionalId, match="'app'"):
        Harness().standing(1, 0)


def test_a_commit_records_what_counts() -> None:
    harness = Harness()
    harness.open()
    assert harness.standing(1, 0) is Standings.NEW
    (record,) = harness.commit(1, 0)
    assert record == Record(
        "app", Committed(1, 0, DIGEST, (ATTEMPT,), PARTS, -1, START.wall_us, 5, (), 2)
    )


def test_a_transaction_without_rows_commits() -> None:
    harness = Harness()
    harness.open()
    harness.put(harness.coordinator.commit("app", 1, 0, digest_of([]), (), (), -1, 3, START))
    assert harness.state().last_sequence == 0


def test_the_same_commit_again_had_been_committed_whatever_its_epoch_is_now() -> None:
    harness = Harness()
    harness.open()
    harness.committed(1, 7)
    assert harness.standing(1, 7) is Standings.COMMITTED_BEFORE
    harness.open(instance=b"two")
    assert harness.standing(1, 7) is Standings.COMMITTED_BEFORE, "its answer was lost"


def test_a_replay_with_other_attempts_under_a_later_epoch_had_been_committed() -> None:
    harness = Harness()
    harness.open()
    harness.committed(1, 7)
    harness.open(instance=b"two")
    standing = harness.coordinator.check_commit("app", 2, 7, OTHER_DIGEST)
    assert standing.kind is Standings.COMMITTED_BEFORE
    assert standing.last is not None
    assert (standing.last.row_count, standing.last.durability) == (5, Durability.REPLICATED)
    with pytest.raises(TransactionFenced, match="epoch 3"):
        harness.standing(3, 7, OTHER_DIGEST)


def test_other_attempts_under_the_same_epoch_and_sequence_are_refused() -> None:
    harness = Harness()
    harness.open()
    harness.committed(1, 7)
    with pytest.raises(SequenceTaken, match="transaction 7 of 'app'"):
        harness.standing(1, 7, OTHER_DIGEST)


def test_sequences_grow_and_gaps_are_allowed() -> None:
    harness = Harness()
    harness.open()
    harness.committed(1, 7)
    with pytest.raises(SequenceTooOld, match="transaction 6 of 'app': 7 has"):
        harness.standing(1, 6)
    assert harness.standing(1, 8) is Standings.NEW
    assert harness.standing(1, 100) is Standings.NEW


def test_a_sequence_that_is_too_old_is_named_before_the_epoch() -> None:
    harness = Harness()
    harness.open()
    harness.committed(1, 7)
    harness.open(instance=b"two")
    with pytest.raises(SequenceTooOld):
        harness.standing(1, 6)
    with pytest.raises(TransactionFenced):
        harness.standing(1, 8)


@pytest.mark.parametrize("epoch", [0, 2, 3])
def test_an_epoch_that_is_not_the_current_one(epoch: int) -> None:
    harness = Harness()
    harness.open()
    with pytest.raises(TransactionFenced, match=f"epoch {epoch} of 'app'"):
        harness.standing(epoch, 0)


def test_a_closed_epoch_is_named_so_until_another_instance_opens() -> None:
    harness = Harness()
    harness.open()
    harness.put(harness.coordinator.abort("app", 1, 0, force=False).records)
    with pytest.raises(TransactionClosed, match="epoch 1 of 'app' was closed: aborted"):
        harness.standing(1, 0)
    with pytest.raises(TransactionFenced):
        harness.standing(2, 0)
    harness.open()
    with pytest.raises(TransactionClosed, match="epoch 1 of 'app' was closed"):
        harness.standing(1, 0)
    harness.open(instance=b"two")
    with pytest.raises(TransactionFenced):
        harness.standing(1, 0)


def test_a_commit_waits_while_an_earlier_one_is_being_published() -> None:
    harness = Harness()
    harness.open()
    harness.propose(harness.commit(1, 0))
    assert harness.standing(1, 1) is Standings.BUSY, "pending already"
    harness.settle()
    assert harness.standing(1, 1) is Standings.BUSY
    assert harness.standing(1, 0) is Standings.COMMITTED_BEFORE
    harness.propose(harness.published(0))
    assert harness.standing(1, 1) is Standings.NEW


def test_a_new_epoch_does_not_let_a_commit_overtake() -> None:
    harness = Harness()
    harness.open()
    harness.put(harness.commit(1, 0))
    harness.open(instance=b"two")
    assert harness.standing(2, 1) is Standings.BUSY


def test_a_commit_is_looked_at_again_in_the_turn_in_which_it_is_proposed() -> None:
    harness = Harness()
    harness.open()
    assert harness.standing(1, 0) is Standings.NEW
    harness.propose(harness.coordinator.abort("app", 1, 0, force=False).records)
    with pytest.raises(TransactionClosed):
        harness.commit(1, 0)


def test_published_is_recorded_once_and_lowers_the_level_of_the_answer() -> None:
    harness = Harness()
    harness.open()
    harness.put(harness.commit(1, 0))
    assert harness.published(1) == []
    ends = (End(b"t" * 16, 0, 5),)
    records = harness.coordinator.published("app", 0, ends, Durability.FLUSHED)
    assert records == [Record("app", Published(0, ends, Durability.FLUSHED))]
    harness.propose(records)
    assert harness.published(0) == []
    harness.settle()
    state = harness.state()
    assert (state.publishing, state.ends) == (None, ends)
    assert state.last is not None
    assert state.last.durability == Durability.FLUSHED
    assert harness.coordinator.published("gone", 0, ends, 0) == []


# --- ABORT --------------------------------------------------------------------------------------
def test_an_abort_closes_the_epoch_and_says_the_same_again() -> None:
    harness = Harness()
    harness.open()
    aborting = harness.coordinator.abort("app", 1, 0, force=False)
    assert aborting.records == [Record("app", Closed(2, "aborted"))]
    assert not aborting.had_committed
    harness.put(aborting.records)
    assert harness.coordinator.abort("app", 1, 0, force=False) == ([], False)
    harness.open()
    assert harness.coordinator.abort("app", 1, 0, force=False) == ([], False)


def test_an_abort_behind_a_commit_that_is_pending_has_committed() -> None:
    harness = Harness()
    harness.open()
    harness.propose(harness.commit(1, 0))
    assert harness.coordinator.abort("app", 1, 0, force=False) == ([], True)
    assert harness.coordinator.is_waiting("app"), "the answer is as late as the decision"


def test_an_abort_of_what_a_later_epoch_replays_had_been_committed() -> None:
    harness = Harness()
    harness.open()
    harness.committed(1, 0)
    harness.open(instance=b"two")
    assert harness.coordinator.abort("app", 2, 0, force=False) == ([], True)


def test_a_late_abort_does_not_end_the_transaction_after_it() -> None:
    """Rule 23: what comes late does not touch a later transaction."""
    harness = Harness()
    harness.open()
    harness.committed(1, 0)
    harness.committed(1, 1)
    with pytest.raises(SequenceTooOld):
        harness.coordinator.abort("app", 1, 0, force=False)
    harness.put(harness.coordinator.abort("app", 1, 2, force=False).records)
    with pytest.raises(SequenceTooOld):
        harness.coordinator.abort("app", 1, 0, force=False)


@pytest.mark.parametrize("epoch", [0, 1, 3])
def test_an_abort_under_another_epoch_writes_nothing(epoch: int) -> None:
    harness = Harness()
    harness.open()
    harness.open(instance=b"two")
    with pytest.raises(TransactionFenced):
        harness.coordinator.abort("app", epoch, 0, force=False)


def test_the_epoch_of_a_closing_is_of_no_instance() -> None:
    harness = Harness()
    harness.open()
    harness.put(harness.coordinator.abort("app", 1, 0, force=False).records)
    with pytest.raises(TransactionFenced):
        harness.coordinator.abort("app", 2, 0, force=False)


def test_force_closes_the_current_epoch_whatever_it_is() -> None:
    harness = Harness()
    harness.open()
    harness.open(instance=b"two")
    aborting = harness.coordinator.abort("app", -1, -1, force=True)
    assert aborting.records == [Record("app", Closed(3, "aborted"))]
    harness.put(aborting.records)
    assert harness.coordinator.abort("app", -1, -1, force=True).records == []
    with pytest.raises(UnknownTransactionalId):
        harness.coordinator.abort("other", -1, -1, force=True)


def test_an_abort_leaves_what_is_being_published() -> None:
    harness = Harness()
    harness.open()
    harness.put(harness.commit(1, 0))
    harness.put(harness.coordinator.abort("app", 1, 1, force=False).records)
    assert [tid for tid, _ in harness.coordinator.to_publish()] == ["app"]
    harness.put(harness.published(0))
    assert list(harness.coordinator.to_publish()) == []


# --- RESOLVE_STAGED -----------------------------------------------------------------------------
def test_live_is_what_may_still_be_committed() -> None:
    harness = Harness()
    harness.open()
    assert harness.resolve(1, 0) is Resolved.LIVE
    harness.committed(1, 5)
    assert harness.resolve(1, 6) is Resolved.LIVE


def test_dead_below_the_current_epoch_and_up_to_the_last_sequence() -> None:
    harness = Harness()
    harness.open()
    harness.committed(1, 5)
    assert harness.resolve(1, 4) is Resolved.DEAD
    harness.open(instance=b"two")
    assert harness.resolve(1, 6) is Resolved.DEAD
    assert harness.resolve(2, 5) is Resolved.DEAD, "a replay; epoch 1 was chosen"
    assert harness.resolve(2, 6) is Resolved.LIVE


def test_what_was_chosen_is_publishing_and_then_published_and_names_its_digest() -> None:
    harness = Harness()
    harness.open()
    harness.put(harness.commit(1, 5))
    harness.open(instance=b"two")
    resolving = harness.coordinator.resolve("app", 1, 5, START)
    assert resolving == ([], Resolved.PUBLISHING, DIGEST)
    harness.put(harness.published(5))
    assert harness.coordinator.resolve("app", 1, 5, START) == ([], Resolved.PUBLISHED, DIGEST)


@pytest.mark.parametrize(("epoch", "above"), [(0, 1), (9, 10)])
def test_an_unknown_id_is_dead_only_behind_a_record(epoch: int, above: int) -> None:
    harness = Harness()
    resolving = harness.coordinator.resolve("app", epoch, 0, START)
    assert resolving.records == [Record("app", Closed(above, "unknown id"))]
    assert resolving.standing is Resolved.DEAD
    harness.put(resolving.records)
    assert harness.resolve(epoch, 0) is Resolved.DEAD
    with pytest.raises(UnknownTransactionalId):
        harness.standing(above - 1, 0)
    assert harness.open() == above + 1


def test_an_epoch_above_the_current_one_is_dead_only_behind_a_record() -> None:
    harness = Harness()
    harness.open()
    resolving = harness.coordinator.resolve("app", 9, 0, START)
    assert resolving == ([Record("app", Closed(10, "unknown epoch"))], Resolved.DEAD, b"")
    harness.put(resolving.records)
    assert harness.resolve(9, 0) is Resolved.DEAD
    assert harness.resolve(10, 0) is Resolved.DEAD, "no instance gets the epoch of a closing"
    assert harness.open() == 11


@pytest.mark.parametrize("is_silent", [False, True])
def test_silence_for_the_timeout_closes_the_epoch_first(is_silent: bool) -> None:
    harness = Harness()
    harness.open()
    now = later(TIMEOUT_MS * 1000 - (not is_silent))
    resolving = harness.coordinator.resolve("app", 1, 0, now)
    if not is_silent:
        assert resolving == ([], Resolved.LIVE, b"")
        return
    assert resolving.records == [Record("app", Closed(2, "no sign of life for 900 s"))]
    assert resolving.standing is Resolved.DEAD


def test_a_sign_of_life_is_of_its_moment() -> None:
    harness = Harness()
    harness.open()
    harness.coordinator.sign_of_life("app", later(MINUTE_US))
    assert harness.resolve(1, 0, later(TIMEOUT_MS * 1000 + MINUTE_US - 1)) is Resolved.LIVE
    assert harness.coordinator.silent_us("app", later(3 * MINUTE_US)) == 2 * MINUTE_US


def test_a_new_coordinator_has_seen_every_id_just_now() -> None:
    harness = Harness()
    harness.open()
    other = Coordinator()
    for offset, record in enumerate(harness.log):
        other.apply(offset, record)
    other.begin(later(100 * TIMEOUT_MS * 1000))
    assert other.resolve("app", 1, 0, later(100 * TIMEOUT_MS * 1000)).standing is Resolved.LIVE


@pytest.mark.parametrize("ms", [PINNED_MS_MAX, PINNED_MS_MAX + 1])
def test_an_undecided_epoch_that_pins_a_full_front_is_closed_after_a_minute(ms: int) -> None:
    harness = Harness()
    harness.open()
    now = later(ms * 1000)
    resolving = harness.coordinator.resolve("app", 1, 0, now, pins_front=True)
    assert harness.resolve(1, 0, now) is Resolved.LIVE, "another may be open for longer"
    closed = [Record("app", Closed(2, "the staging room is nearly full"))]
    assert resolving.records == (closed if ms > PINNED_MS_MAX else [])


def test_what_is_decided_is_never_closed_for_room() -> None:
    harness = Harness()
    harness.open()
    harness.put(harness.commit(1, 0))
    now = later(2 * PINNED_MS_MAX * 1000)
    resolving = harness.coordinator.resolve("app", 1, 0, now, pins_front=True)
    assert resolving == ([], Resolved.PUBLISHING, DIGEST)


def test_an_answer_that_rests_on_a_pending_closing_waits_for_it() -> None:
    harness = Harness()
    harness.propose(harness.coordinator.resolve("app", 3, 0, START).records)
    assert harness.coordinator.resolve("app", 3, 0, START) == ([], Resolved.DEAD, b"")
    assert harness.coordinator.is_waiting("app")


@pytest.mark.parametrize("epoch", [EPOCHS_END - 1, EPOCHS_END, EPOCHS_END + 1])
def test_epochs_that_a_client_makes_up_use_up_no_number(epoch: int) -> None:
    harness = Harness()
    resolving = harness.coordinator.resolve("app", epoch, 0, START)
    assert resolving.standing is Resolved.DEAD
    assert bool(resolving.records) == (epoch < EPOCHS_END)
    harness.put(resolving.records)
    if epoch < EPOCHS_END:
        with pytest.raises(TransactionFenced, match="used up"):
            harness.open()
    else:
        assert harness.open() == 1


# --- forgetting ---------------------------------------------------------------------------------
def test_an_id_that_is_forgotten_begins_above_every_epoch_that_it_had() -> None:
    harness = Harness()
    for instance in (b"one", b"two", b"three"):
        harness.open(instance=instance)
    harness.propose(harness.coordinator.forget("app"))
    with pytest.raises(UnknownTransactionalId):
        harness.standing(3, 0)
    opening = harness.coordinator.open("app", b"one", "client", TIMEOUT_MS, False, START)
    assert opening.epoch == 4, "also while it is pending"
    harness.settle()
    assert harness.open("other") == 4, "one number for all ids of the partition"
    assert harness.coordinator.resolve("app", 2, 0, START).records == [
        Record("app", Closed(4, "unknown id"))
    ]


def test_forgetting_survives_a_snapshot() -> None:
    harness = Harness()
    harness.open()
    harness.put(harness.coordinator.forget("app"))
    other = replayed(harness.coordinator.capture())
    assert other.open("app", b"one", "client", TIMEOUT_MS, False, START).epoch == 2


def expired(harness: Harness, now: Now, expiry_ms: int = 1_000) -> list[Record]:
    found = [harness.coordinator.expired(now, expiry_ms) for _ in range(3)]
    return [record for some in found for record in some]


@pytest.mark.parametrize("is_over", [False, True])
def test_an_id_goes_after_its_expiry(is_over: bool) -> None:
    harness = Harness()
    harness.open()
    harness.committed(1, 0)
    harness.coordinator.sign_of_life("app", later(MINUTE_US))
    now = later(MINUTE_US + 1_000_000 - (not is_over))
    assert expired(harness, now) == ([Record("app", Forgotten())] if is_over else [])


def test_an_id_that_is_being_published_stays() -> None:
    harness = Harness()
    harness.open()
    harness.put(harness.commit(1, 0))
    assert expired(harness, later(MINUTE_US)) == []
    harness.put(harness.published(0))
    assert Record("app", Forgotten()) in expired(harness, later(MINUTE_US))


def test_an_id_with_a_pending_record_stays() -> None:
    harness = Harness()
    harness.open()
    harness.propose(harness.commit(1, 0))
    assert expired(harness, later(MINUTE_US)) == []


@pytest.mark.parametrize("is_over", [False, True])
def test_an_id_of_single_use_goes_an_hour_after_its_commit(is_over: bool) -> None:
    harness = Harness()
    harness.open("batch", single=True)
    harness.open("uncommitted", single=True)
    harness.open("query")
    harness.committed(1, 0, "batch")
    harness.committed(1, 0, "query")
    now = later(SINGLE_USE_EXPIRY_MS * 1000 - (not is_over))
    found = expired(harness, now, TRANSACTIONAL_ID_EXPIRY_MS_DEFAULT)
    assert found == ([Record("batch", Forgotten())] if is_over else [])


def test_an_id_that_is_opened_while_it_is_forgotten_was_seen_then() -> None:
    harness = Harness()
    harness.open()
    now = later(MINUTE_US)
    harness.propose(harness.coordinator.forget("app"))
    harness.propose(
        harness.coordinator.open("app", b"one", "client", TIMEOUT_MS, False, now).records
    )
    harness.coordinator.sign_of_life("app", now)
    harness.settle()
    assert harness.coordinator.silent_us("app", now) == 0
    assert expired(harness, now) == []
    harness.put(harness.coordinator.forget("app"))
    assert not harness.coordinator._seen_us


def test_a_call_looks_at_a_bounded_number_of_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FORGET_LOOKS_MAX", 2)
    harness = Harness()
    for tid in "abc":
        harness.open(tid)
    found = [
        [record.transactional_id for record in harness.coordinator.expired(later(MINUTE_US), 1_000)]
        for _ in range(4)
    ]
    assert found == [[], ["a", "b"], ["c"], []]


def test_forget_by_command_takes_what_is_being_published_too() -> None:
    harness = Harness()
    harness.open()
    harness.put(harness.commit(1, 0))
    harness.put(harness.coordinator.forget("app"))
    assert list(harness.coordinator.to_publish()) == []
    with pytest.raises(UnknownTransactionalId):
        harness.coordinator.forget("app")


# --- bounds -------------------------------------------------------------------------------------
def test_ids_are_bounded_and_those_that_are_there_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDS_MAX", 3)
    harness = Harness()
    harness.open("a")
    harness.open("b")
    opening = harness.coordinator.open("c", b"one", "client", TIMEOUT_MS, False, START)
    harness.propose(opening.records)
    with pytest.raises(StagingFull, match="3 transactional ids"):
        harness.open("d")
    harness.settle()
    with pytest.raises(StagingFull):
        harness.open("d")
    assert harness.open("a", b"two") == 2
    assert harness.coordinator.resolve("d", 1, 0, START) == ([], Resolved.LIVE, b""), (
        "no room for the record that makes it dead"
    )
    harness.put(harness.coordinator.forget("a"))
    assert harness.open("d") == 3


def test_ids_of_single_use_have_a_bound_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SINGLE_USE_IDS_MAX", 2)
    harness = Harness()
    harness.open("a", single=True)
    harness.open("b", single=True)
    with pytest.raises(StagingFull, match="2 transactional ids of single use"):
        harness.open("c", single=True)
    assert harness.open("a", b"two", single=True) == 2
    harness.open("c")
    with pytest.raises(StagingFull):
        harness.open("c", b"two", single=True)
    harness.put(harness.coordinator.forget("b"))
    assert harness.open("d", single=True) == 2


def test_a_proposal_that_failed_takes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDS_MAX", 1)
    harness = Harness()
    opening = harness.coordinator.open("a", b"one", "client", TIMEOUT_MS, True, START)
    harness.propose(opening.records)
    harness.coordinator.drop_pending()
    harness.proposed.clear()
    assert harness.open("b") == 1


# --- replay and snapshots -----------------------------------------------------------------------
def replayed(records: Iterable[Record], start: int = 1_000) -> Coordinator:
    coordinator = Coordinator()
    for offset, record in enumerate(records, start):
        coordinator.apply(offset, record)
    coordinator.begin(START)
    return coordinator


def worked() -> Harness:
    harness = Harness()
    harness.open("app")
    harness.open("app", b"two")
    harness.committed(2, 3)
    harness.put(harness.commit(2, 4))
    harness.open("closed")
    harness.put(harness.coordinator.abort("closed", 1, 0, force=False).records)
    harness.open("gone")
    harness.put(harness.coordinator.forget("gone"))
    return harness


def test_a_replay_makes_the_same_states() -> None:
    harness = worked()
    other = replayed(harness.log)
    assert other.applied == harness.coordinator.applied
    assert list(other.capture()) == list(harness.coordinator.capture())


def test_rows_between_begin_and_end_are_applied_after_the_end() -> None:
    harness = worked()
    snapshot = list(harness.coordinator.capture())
    begun = len(harness.log)
    harness.put(snapshot[:2])
    harness.open("new")
    harness.put(harness.published(4))
    harness.put(snapshot[2:])
    harness.open("newer")
    assert replayed(harness.log[begun:]).applied == harness.coordinator.applied
    whole = replayed(harness.log, start=0)
    assert whole.applied == harness.coordinator.applied, "skipped in a whole log"


def test_a_snapshot_is_of_what_is_pending() -> None:
    harness = Harness()
    harness.open("kept")
    harness.open("goes")
    harness.propose(harness.coordinator.forget("goes"))
    harness.propose(
        harness.coordinator.open("new", b"one", "client", TIMEOUT_MS, False, START).records
    )
    snapshot = list(harness.coordinator.capture())
    harness.settle()
    assert replayed(snapshot).applied == harness.coordinator.applied
    assert replayed(snapshot).applied.keys() == {"kept", "new"}


def test_a_snapshot_without_its_end_is_ignored_in_a_whole_log() -> None:
    harness = worked()
    snapshot = list(harness.coordinator.capture())
    harness.put(snapshot[:-1])
    harness.open("new")
    harness.put(harness.coordinator.capture())
    assert replayed(harness.log).applied == harness.coordinator.applied


def test_a_log_that_begins_with_half_a_snapshot_is_refused() -> None:
    coordinator = Coordinator()
    for offset, record in enumerate(list(worked().coordinator.capture())[:-1], 1):
        coordinator.apply(offset, record)
    with pytest.raises(CorruptLog, match="snapshot without an end"):
        coordinator.begin(START)


def test_half_a_snapshot_of_an_empty_log_is_no_begin() -> None:
    harness = Harness()
    harness.put(list(harness.coordinator.capture())[:1])
    harness.open()
    assert replayed(harness.log, start=0).applied == harness.coordinator.applied


def test_an_empty_log_is_complete() -> None:
    coordinator = replayed([])
    assert coordinator.applied == {}
    assert replayed(coordinator.capture()).applied == {}
