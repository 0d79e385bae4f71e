"""Coordinators on one node: OPEN, COMMIT, ABORT and RESOLVE_STAGED, and what they have published.

The leaders of `__staged` are played by the test.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quiverlog.core.controller.internal_topics import STAGED
from quiverlog.core.transactions.coordinator import Resolved
from quiverlog.errors import (
    CoordinatorNotReady,
    FencedLeaderEpoch,
    InvalidRequest,
    NotLeader,
    OutcomeUnknown,
    SequenceTaken,
    SequenceTooOld,
    StagedRowsLost,
    TransactionBusy,
    TransactionClosed,
    TransactionFenced,
    UnknownTopicId,
    UnknownTransactionalId,
)
from quiverlog.limits import (
    TRANSACTION_ATTEMPTS_MAX,
    TRANSACTIONAL_ID_EXPIRY_MS_DEFAULT,
)
from quiverlog.node.apis import transactions as handlers
from quiverlog.node.cluster_gauges import TransactionGauges, transaction_gauges
from quiverlog.node.runtime.events import Shutdown, Tick
from quiverlog.node.transactions import coordinators as module
from quiverlog.node.transactions import hosted as hosting
from quiverlog.node.transactions.coordinators import PUBLISH_BACKOFF_MS_MAX, SWEEP_MS
from quiverlog.types import Durability
from quiverlog.wire import messages as m
from quiverlog.wire.config_messages import AlterConfigsRequest, ConfigChange
from quiverlog.wire.transaction_messages import (
    AbortTransactionRequest,
    CommittedAttempt,
    CommittedPart,
    CountedTarget,
    CountStagedResponse,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
    OpenTransactionRequest,
    ResolveStagedRequest,
    StagedTransaction,
    TransactionState,
)
from tests.support.node import NodeDriver
from tests.support.transactions import ATTEMPT, OTHER, TransactionDriver, attempt

OPEN = OpenTransactionRequest(transactional_id="app", instance=b"one")


@pytest.fixture
def node(tmp_path: Path) -> TransactionDriver:
    return TransactionDriver(tmp_path)


def refused(response: Any, kind: type[Exception]) -> str:
    assert response is not None, "not answered"
    assert response.error_code == kind.code, response  # type: ignore[attr-defined]
    return str(response.error_message)


# --- OPEN ---------------------------------------------------------------------------------------
def test_the_first_open_has_the_internal_topics_made(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path)
    coordinators = node.node.broker.coordinators
    assert coordinators.next_us() is None, "a broker without transactions pays nothing"
    response, _ = node.call(OPEN)
    refused(response, CoordinatorNotReady)
    names = {topic.name for topic in node.call(m.MetadataRequest())[0].topics}
    assert names == {"__transactions", "__staged"}


def test_commit_does_not_make_topics(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path)
    request = TransactionDriver.commit_request(node, 1, 0)  # type: ignore[arg-type]
    refused(node.call(request)[0], CoordinatorNotReady)


def test_open_answers_when_its_epoch_is_safe(node: TransactionDriver) -> None:
    correlation = node.request(OPEN)
    assert node.answer(correlation) is None
    node.flush()
    response = node.response(correlation)
    assert (response.error_code, response.epoch, response.last_sequence) == (0, 1, -1)
    assert node.open().epoch == 1
    assert not node.syncs, "nothing was written"
    assert node.open(b"two").epoch == 2
    refused(node.open(b"one"), TransactionFenced)


def test_an_answer_without_a_record_waits_for_what_it_rests_on(node: TransactionDriver) -> None:
    first, second = node.request(OPEN), node.request(OPEN)
    assert node.answer(second) is None
    node.flush()
    assert node.response(first).epoch == node.response(second).epoch == 1


@pytest.mark.parametrize("tid", ["", "x" * 513])
def test_a_bad_id_is_refused(node: TransactionDriver, tid: str) -> None:
    refused(node.open(tid=tid), InvalidRequest)


# --- COMMIT -------------------------------------------------------------------------------------
def test_a_commit_is_counted_decided_and_published(node: TransactionDriver) -> None:
    epoch = node.open().epoch
    correlation = node.commit(epoch, 7, attempt(rows=5), attempt(OTHER, rows=3, partition=1))
    assert node.machine().applied["app"].last is None
    first, second = node.count(), node.count()
    assert (first.partition, first.epoch, first.sequence) == (0, epoch, 7)
    assert [(a.attempt, a.row_count, a.first_offset, a.next_offset) for a in first.attempts] == [
        (ATTEMPT, 5, 0, 10)
    ]
    assert [(a.attempt, a.row_count) for a in second.attempts] == [(OTHER, 3)]
    assert node.machine().applied["app"].last_sequence == 7
    assert node.response(correlation) is None
    asked = node.published(end_offset=5), node.published(end_offset=8)
    assert [one.attempts for one in asked] == [[ATTEMPT], [OTHER]]
    assert {one.max_wait_ms for one in asked} == {module.PUBLISH_WAIT_MS}, "the first"
    response = node.response(correlation)
    assert (response.error_code, response.outcome, response.row_count) == (0, 0, 8)
    assert (response.durability, response.is_published) == (Durability.FLUSHED, True)
    node.record_ends()
    state = node.machine().applied["app"]
    assert state.publishing is None
    assert [(end.topic_id, end.partition, end.end_offset) for end in state.ends] == [
        (node.target, 0, 8)
    ]


def test_attempts_of_one_staging_partition_are_counted_together(node: TransactionDriver) -> None:
    epoch = node.open().epoch
    one = CommittedAttempt(ATTEMPT, 5, [CommittedPart(0, 4, 9, 2), CommittedPart(1, 0, 3, 3)])
    other = CommittedAttempt(OTHER, 6, [CommittedPart(0, 2, 12, 6)])
    node.commit(epoch, 0, one, other)
    assert [a.row_count for a in node.count().attempts] == [2, 6]
    assert [a.row_count for a in node.count().attempts] == [3]
    publishing = node.machine().applied["app"].publishing
    assert publishing is not None
    found = [
        (p.staged_partition, p.first_offset, p.next_offset, p.row_count, p.attempts)
        for p in publishing.parts
    ]
    assert found == [(0, 2, 12, 8, (0, 1)), (1, 0, 3, 3, (0,))]
    assert [one.attempts for one, _ in node.publishes] == [[ATTEMPT, OTHER], [ATTEMPT]]


def test_decided_is_answered_when_it_is_safe_and_not_before(node: TransactionDriver) -> None:
    """Rule 22: the answer rests on a decision that no power failure takes back."""
    epoch = node.open().epoch
    correlation = node.commit(epoch, 0, wait=0)
    request, then = node.counts.pop(0)
    then(counted(node, request), None, node.now)
    node.send(Tick())
    assert node.response(correlation) is None
    assert not node.publishes, "published only when it is safe"
    node.flush()
    response = node.response(correlation)
    assert (response.error_code, response.outcome, response.is_published) == (0, 0, False)
    assert len(node.publishes) == 1


def counted(node: TransactionDriver, request: Any) -> Any:
    return CountStagedResponse(
        is_whole=True, targets=[CountedTarget(node.target, 0, 5)], durability=Durability.FLUSHED
    )


def test_a_transaction_without_rows_is_published_at_once(node: TransactionDriver) -> None:
    response = node.response(node.commit(node.open().epoch, 0, CommittedAttempt(ATTEMPT, 0, [])))
    assert (response.outcome, response.row_count, response.is_published) == (0, 0, True)
    assert not node.counts
    assert not node.publishes


def test_the_answer_names_the_weakest_level(node: TransactionDriver) -> None:
    epoch = node.open().epoch
    correlation = node.commit(epoch, 0)
    node.count(durability=Durability.REPLICATED)
    node.published(durability=Durability.MEMORY)
    assert node.response(correlation).durability == Durability.MEMORY
    again = node.response(node.commit(epoch, 0))
    assert again.durability == Durability.MEMORY


def test_rows_that_are_not_there_are_lost_and_nothing_is_decided(node: TransactionDriver) -> None:
    epoch = node.open().epoch
    correlation = node.commit(epoch, 0)
    node.count(is_whole=False)
    assert "__staged-0" in refused(node.response(correlation), StagedRowsLost)
    assert node.machine().applied["app"].last is None


def test_what_was_counted_is_looked_at_again(node: TransactionDriver) -> None:
    """Rule 22: the decision rests on what is true in its own turn."""
    epoch = node.open().epoch
    correlation = node.commit(epoch, 0)
    assert node.abort(epoch, 0).outcome == 0
    node.count()
    refused(node.response(correlation), TransactionClosed)
    assert node.machine().applied["app"].last is None


def test_two_commits_of_one_sequence_are_decided_once(node: TransactionDriver) -> None:
    epoch = node.open().epoch
    first = node.commit(epoch, 0, wait=0)
    second = node.commit(epoch, 0, wait=0)
    third = node.commit(epoch, 0, attempt(OTHER), wait=0)
    while node.counts:
        node.count()
    assert [node.response(one).outcome for one in (first, second)] == [0, 1]
    refused(node.response(third), SequenceTaken)
    assert len(node.publishes) == 1


def test_the_same_commit_again_waits_until_it_is_published(node: TransactionDriver) -> None:
    epoch = node.open().epoch
    node.commit(epoch, 0, wait=0)
    node.count()
    decided = node.response(node.commit(epoch, 0, wait=0))
    assert (decided.outcome, decided.is_published) == (1, False)
    waits = node.commit(epoch, 0, wait=1)
    assert node.response(waits) is None
    node.published()
    assert (node.response(waits).outcome, node.response(waits).is_published) == (1, True)
    assert node.response(node.commit(epoch, 0, wait=0)).is_published


@pytest.mark.parametrize("is_late", [False, True])
def test_a_commit_that_is_not_published_in_time_is_no_error(
    node: TransactionDriver, is_late: bool
) -> None:
    epoch = node.open().epoch
    correlation = node.commit(epoch, 0, timeout_ms=1_000)
    node.count()
    node.advance(1_000 if is_late else 999)
    response = node.response(correlation)
    if not is_late:
        assert response is None
        return
    assert (response.error_code, response.outcome, response.is_published) == (0, 0, False)


def test_nothing_is_kept_of_a_commit_that_waits_no_longer(node: TransactionDriver) -> None:
    epoch = node.open().epoch
    correlation = node.commit(epoch, 0, timeout_ms=1_000)
    node.count()
    (publishing,) = node.node.broker.coordinators._publishing.values()
    assert len(publishing.waits) == 1
    node.advance(1_000)
    assert not node.response(correlation).is_published
    assert not publishing.waits


def test_the_next_transaction_waits_until_the_one_before_is_published(
    node: TransactionDriver,
) -> None:
    epoch = node.open().epoch
    node.commit(epoch, 0, wait=0)
    node.count()
    following = node.commit(epoch, 1, attempt(OTHER), wait=0)
    node.advance(500)
    assert not node.counts
    node.published()
    node.count()
    assert node.response(following).outcome == 0
    assert node.machine().applied["app"].last_sequence == 1


def test_it_waits_for_its_timeout_at_most(node: TransactionDriver) -> None:
    epoch = node.open().epoch
    node.commit(epoch, 0, wait=0)
    node.count()
    following = node.commit(epoch, 1, attempt(OTHER), timeout_ms=1_000)
    node.advance(999)
    assert node.response(following) is None
    node.advance(2)
    assert "until 0 is published" in refused(node.response(following), TransactionBusy)


def test_a_leader_that_moved_is_asked_again(node: TransactionDriver) -> None:
    epoch = node.open().epoch
    correlation = node.commit(epoch, 0, wait=0)
    for error in (NotLeader("x"), FencedLeaderEpoch("x"), CoordinatorNotReady("x")):
        _, then = node.counts.pop()
        node.end(then, None, error)
        assert not node.counts
        node.advance(module.COUNT_BACKOFF_MS)
    node.count()
    assert node.response(correlation).outcome == 0


def test_counting_ends_with_the_timeout(node: TransactionDriver) -> None:
    epoch = node.open().epoch
    correlation = node.commit(epoch, 0, timeout_ms=module.COUNT_BACKOFF_MS)
    for _ in range(2):
        assert node.response(correlation) is None
        _, then = node.counts.pop()
        node.end(then, None, NotLeader("somewhere else"))
        node.advance(module.COUNT_BACKOFF_MS)
    text = refused(node.response(correlation), CoordinatorNotReady)
    assert text == "__staged-0 could not be asked: somewhere else"


def test_what_a_leader_refuses_is_the_answer(node: TransactionDriver) -> None:
    epoch = node.open().epoch
    correlation = node.commit(epoch, 0)
    _, then = node.counts.pop()
    node.end(then, None, StagedRowsLost("there"))
    assert refused(node.response(correlation), StagedRowsLost) == "there"


def test_a_target_that_is_deleted_is_found_before_the_decision(node: TransactionDriver) -> None:
    epoch = node.open().epoch
    correlation = node.commit(epoch, 0)
    node.count(targets=[CountedTarget(b"gone" * 4, 0, 5)])
    refused(node.response(correlation), UnknownTopicId)
    assert node.machine().applied["app"].last is None


@pytest.mark.parametrize("rows", [2**31 - 1, 2**31])
def test_rows_of_one_staging_partition_for_one_target_are_bounded(
    node: TransactionDriver, rows: int
) -> None:
    epoch = node.open().epoch
    correlation = node.commit(epoch, 0, wait=0)
    node.count(targets=[CountedTarget(node.target, 0, rows)])
    response = node.response(correlation)
    if rows < 2**31:
        assert response.error_code == 0
    else:
        assert "2147483648 rows in __staged-0 are for target-0" in refused(response, InvalidRequest)


def test_a_staged_partition_that_does_not_exist(node: TransactionDriver) -> None:
    epoch = node.open().epoch
    count = len(node.node.broker.view.image.topics[STAGED].partitions)
    refused(node.response(node.commit(epoch, 0, attempt(partition=count))), InvalidRequest)
    assert node.response(node.commit(epoch, 0, attempt(partition=count - 1))) is None
    assert len(node.counts) == 1


@pytest.mark.parametrize("count", [TRANSACTION_ATTEMPTS_MAX, TRANSACTION_ATTEMPTS_MAX + 1])
def test_attempts_are_bounded(node: TransactionDriver, count: int) -> None:
    epoch = node.open().epoch
    many = [attempt(number.to_bytes(16, "big")) for number in range(count)]
    response = node.response(node.commit(epoch, 0, *many))
    if count > TRANSACTION_ATTEMPTS_MAX:
        refused(response, InvalidRequest)
    else:
        assert len(node.count().attempts) == count


@pytest.mark.parametrize("options", [{"wait": 7}, {"wait": -1}, {"durability": 4}])
def test_a_bad_option(node: TransactionDriver, options: dict[str, int]) -> None:
    epoch = node.open().epoch
    refused(node.response(node.commit(epoch, 0, **options)), InvalidRequest)


def test_an_unknown_id(node: TransactionDriver) -> None:
    refused(node.response(node.commit(1, 0)), UnknownTransactionalId)
    refused(node.abort(1, 0), UnknownTransactionalId)


# --- publishing ---------------------------------------------------------------------------------
def test_a_publish_is_tried_for_ever_from_50_ms_to_2_s(node: TransactionDriver) -> None:
    epoch = node.open().epoch
    correlation = node.commit(epoch, 0, wait=1, timeout_ms=600_000)
    node.count()
    pauses = []
    for _ in range(9):
        request, then = node.publishes.pop()
        assert request.max_wait_ms == (0 if pauses else module.PUBLISH_WAIT_MS)
        node.end(then, None, NotLeader("x"))
        pause = 0
        while not node.publishes:
            node.advance(1)
            pause += 1
        pauses.append(pause)
    assert pauses == [50, 100, 200, 400, 800, 1_600, 2_000, 2_000, PUBLISH_BACKOFF_MS_MAX]
    node.published()
    assert node.response(correlation).is_published


def test_a_bug_in_publishing_is_tried_again(node: TransactionDriver) -> None:
    epoch = node.open().epoch
    node.commit(epoch, 0, wait=0)
    node.count()
    _, then = node.publishes.pop()
    then(None, RuntimeError("a bug"), node.now)
    node.advance(50)
    assert len(node.publishes) == 1


def test_publishes_under_way_are_bounded(
    node: TransactionDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PUBLISHES_MAX", 1)
    epoch = node.open().epoch
    correlation = node.commit(epoch, 0, attempt(), attempt(OTHER, partition=1))
    node.count()
    node.count()
    assert [one.partition for one, _ in node.publishes] == [0]
    node.published()
    assert [one.partition for one, _ in node.publishes] == [1]
    node.published()
    assert node.response(correlation).is_published


def test_a_new_coordinator_goes_on_with_what_is_decided(node: TransactionDriver) -> None:
    epoch = node.open().epoch
    node.commit(epoch, 0, wait=0)
    node.count()
    node.crash()
    node.settle()
    correlation = node.commit(epoch, 0)
    assert node.response(correlation) is None
    assert node.published().sequence == 0
    assert (node.response(correlation).outcome, node.response(correlation).is_published) == (
        1,
        True,
    )
    node.record_ends()
    node.crash()
    node.settle()
    assert not node.publishes
    assert node.open().last_sequence == 0


def test_a_decision_whose_append_is_lost_has_an_unknown_outcome(node: TransactionDriver) -> None:
    epoch = node.open().epoch
    correlation = node.commit(epoch, 0)
    request, then = node.counts.pop(0)
    then(counted(node, request), None, node.now)
    node.send(Tick())
    node.flush(OSError(5, "the disk failed"))
    refused(node.response(correlation), OutcomeUnknown)
    assert not node.publishes


def test_a_stopping_broker_answers_what_waits(node: TransactionDriver) -> None:
    epoch = node.open().epoch
    node.commit(epoch, 0, wait=0)
    node.count()
    published = node.commit(epoch, 0)
    following = node.commit(epoch, 1, attempt(OTHER))
    node.send(Shutdown())
    while node.syncs:
        node.flush()
    assert node.shut_down, "no request keeps it"
    response = node.response(published)
    assert (response.outcome, response.is_published) == (1, False)
    assert node.response(following).error_code


def test_a_stopping_broker_counts_no_more(node: TransactionDriver) -> None:
    epoch = node.open().epoch
    counting = node.commit(epoch, 0)
    _, then = node.counts.pop()
    node.end(then, None, NotLeader("x"))
    node.send(Shutdown())
    node.advance(module.COUNT_BACKOFF_MS)
    while node.syncs:
        node.flush()
    assert node.shut_down
    assert not node.counts
    assert node.response(counting).error_code


# --- ABORT --------------------------------------------------------------------------------------
def test_an_abort_is_answered_when_it_is_safe(node: TransactionDriver) -> None:
    epoch = node.open().epoch
    request = AbortTransactionRequest(transactional_id="app", epoch=epoch, sequence=0)
    correlation = node.request(request)
    assert node.response(correlation) is None
    node.flush()
    assert (node.response(correlation).error_code, node.response(correlation).outcome) == (0, 0)
    assert node.abort(epoch, 0).outcome == 0
    refused(node.response(node.commit(epoch, 0)), TransactionClosed)
    assert node.open().epoch == epoch + 2


def test_an_abort_of_what_has_committed(node: TransactionDriver) -> None:
    epoch = node.open().epoch
    node.commit(epoch, 0, wait=0)
    node.count()
    assert node.abort(epoch, 0).outcome == 1
    assert node.open().epoch == epoch, "the epoch goes on"


def test_a_late_abort_is_refused(node: TransactionDriver) -> None:
    epoch = node.open().epoch
    node.commit(epoch, 1, wait=0)
    node.count()
    assert "1 has committed since" in refused(node.abort(epoch, 0), SequenceTooOld)


def test_force_closes_whatever_is_open(node: TransactionDriver) -> None:
    epoch = node.open().epoch
    assert node.abort(-1, -1, force=True).error_code == 0
    refused(node.response(node.commit(epoch, 0)), TransactionClosed)


# --- RESOLVE_STAGED -----------------------------------------------------------------------------
def resolve(node: TransactionDriver, *staged: StagedTransaction) -> list[Any]:
    correlation = node.steps(ResolveStagedRequest(broker_id=0, transactions=list(staged)))
    node.settle()
    return list(node.response(correlation).results)


def test_resolve_answers_one_by_one(node: TransactionDriver) -> None:
    epoch = node.open().epoch
    node.commit(epoch, 3, wait=0)
    node.count()
    found = resolve(
        node,
        StagedTransaction("app", epoch, 2),
        StagedTransaction("app", epoch, 3),
        StagedTransaction("app", epoch, 4),
        StagedTransaction("never opened", 5, 0),
    )
    assert [one.state for one in found] == [
        Resolved.DEAD,
        Resolved.PUBLISHING,
        Resolved.LIVE,
        Resolved.DEAD,
    ]
    assert [one.error_code for one in found] == [0] * 4
    assert found[1].digest
    node.published()
    assert resolve(node, StagedTransaction("app", epoch, 3))[0].state == Resolved.PUBLISHED
    assert node.open(tid="never opened").epoch == 7


def test_dead_is_answered_behind_its_record(node: TransactionDriver) -> None:
    request = ResolveStagedRequest(broker_id=0, transactions=[StagedTransaction("unknown", 5, 0)])
    correlation = node.steps(request)
    assert node.response(correlation) is None
    node.flush()
    assert node.response(correlation).results[0].state == Resolved.DEAD


def test_where_the_record_fails_nothing_is_dead(node: TransactionDriver) -> None:
    request = ResolveStagedRequest(broker_id=0, transactions=[StagedTransaction("unknown", 5, 0)])
    correlation = node.steps(request)
    node.flush(OSError(5, "the disk failed"))
    (result,) = node.response(correlation).results
    assert (result.state, result.error_code) == (Resolved.LIVE, OutcomeUnknown.code)


def test_a_silent_id_is_closed_when_a_staging_leader_asks(node: TransactionDriver) -> None:
    epoch = node.open(timeout_ms=1_000).epoch
    node.set_clock(node.mono_us + 999_000)
    assert resolve(node, StagedTransaction("app", epoch, 0))[0].state == Resolved.LIVE
    node.open()
    node.set_clock(node.mono_us + 999_000)
    assert resolve(node, StagedTransaction("app", epoch, 0))[0].state == Resolved.LIVE
    node.set_clock(node.mono_us + 1_000)
    assert resolve(node, StagedTransaction("app", epoch, 0))[0].state == Resolved.DEAD
    refused(node.response(node.commit(epoch, 0)), TransactionClosed)


# --- forgetting ---------------------------------------------------------------------------------
@pytest.mark.parametrize("is_set", [False, True])
def test_ids_are_forgotten_after_a_long_silence(node: TransactionDriver, is_set: bool) -> None:
    expiry_ms = TRANSACTIONAL_ID_EXPIRY_MS_DEFAULT
    if is_set:
        expiry_ms = 90_000_000
        change = ConfigChange("transactional.id.expiry.ms", str(expiry_ms))
        assert not node.done(AlterConfigsRequest(changes=[change])).error_code
    epoch = node.open().epoch
    node.set_clock(node.mono_us + expiry_ms * 1000 - 2 * SWEEP_MS * 1000)
    node.open(tid="first", instance=b"x")
    node.advance(SWEEP_MS)
    assert "app" in node.machine().applied
    node.advance(2 * SWEEP_MS)
    node.settle()
    assert "app" not in node.machine().applied
    assert node.open().epoch == epoch + 1


def test_a_commit_is_a_sign_of_life_and_one_that_is_refused_is_none(
    node: TransactionDriver,
) -> None:
    epoch = node.open().epoch
    node.set_clock(node.mono_us + 60_000_000)
    node.commit(epoch - 1, 0)
    assert node.machine().silent_us("app", node.now) >= 60_000_000
    node.commit(epoch, 0)
    assert node.machine().silent_us("app", node.now) < 1_000_000


def test_a_snapshot_takes_the_place_of_the_records_before_it(
    node: TransactionDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosting, "SNAPSHOT_LOG_BYTES_MIN", 20_000)
    replica = node.node.broker.coordinators.find("app").replica
    opened = 0
    while replica.log.log_start_offset == 0:
        opened += 1
        assert opened < 100, "a record has some 600 bytes"
        epoch = node.open(str(opened).encode() * 16).epoch
    assert epoch == opened > 10
    assert replica.log.log_end_offset - replica.log.log_start_offset == 3, "BEGIN, a state, END"
    before = dict(node.machine().applied)
    node.crash()
    node.settle()
    assert node.machine().applied == before
    assert node.open(str(opened).encode() * 16).epoch == epoch


def test_nothing_is_timed_where_no_id_is_known(node: TransactionDriver) -> None:
    broker = node.node.broker
    assert len(broker.coordinators.coordinated()) == 16
    assert broker.coordinators.next_us() is None
    node.open()
    assert broker.coordinators.next_us() is not None
    node.set_clock(node.mono_us + TRANSACTIONAL_ID_EXPIRY_MS_DEFAULT * 1000)
    node.advance(2 * SWEEP_MS)
    node.settle()
    assert not any(one.applied for one in broker.coordinators.coordinated())
    assert broker.coordinators.next_us() is None


def forget(tid: str = "app") -> AbortTransactionRequest:
    return AbortTransactionRequest(transactional_id=tid, forget=True)


def test_an_id_is_forgotten_by_command(node: TransactionDriver) -> None:
    refused(node.done(forget()), UnknownTransactionalId)
    epoch = node.open().epoch
    correlation = node.request(forget())
    assert node.answer(correlation) is None, "not safe yet"
    node.settle()
    assert node.response(correlation).error_code == 0
    refused(node.done(forget()), UnknownTransactionalId)
    assert node.open().epoch == epoch + 1


def test_forgetting_gives_up_what_cannot_be_published(node: TransactionDriver) -> None:
    epoch = node.open().epoch
    waits = node.commit(epoch, 7)
    node.count()
    _, late = node.publishes.pop()
    assert node.done(forget()).error_code == 0
    response = node.response(waits)
    assert (response.error_code, response.is_published) == (0, False)
    # Nothing of it stands before what the id commits next.
    epoch = node.open().epoch
    second = node.commit(epoch, 0)
    node.count()
    node.end(late, None, NotLeader("elsewhere"))
    node.advance(10 * PUBLISH_BACKOFF_MS_MAX)
    assert [request.epoch for request, _ in node.publishes] == [epoch]
    node.published()
    assert node.response(second).is_published
    node.record_ends()
    assert node.machine().applied["app"].publishing is None


# --- LIST, DESCRIBE -----------------------------------------------------------------------------
def listed(node: TransactionDriver, *states: TransactionState) -> dict[str, int]:
    wanted = [int(one) for one in states] or None
    response, _ = node.call(ListTransactionsRequest(states=wanted))
    assert (response.error_code, response.node_id, response.next_id) == (0, 0, "")
    return {one.transactional_id: one.state for one in response.transactions}


def test_the_states_of_ids(node: TransactionDriver) -> None:
    epoch = node.open().epoch
    node.open(tid="other")
    node.open(tid="closed")
    node.done(AbortTransactionRequest(transactional_id="closed", force=True))
    others = {
        "closed": TransactionState.CLOSED,
        "other": TransactionState.OPEN,
    }
    assert listed(node) == {"app": TransactionState.OPEN, **others}
    node.commit(epoch, 7, wait=0)
    assert listed(node) == {"app": TransactionState.DECIDING, **others}
    node.count()
    assert listed(node) == {"app": TransactionState.PUBLISHING, **others}
    assert listed(node, TransactionState.PUBLISHING) == {"app": TransactionState.PUBLISHING}
    assert list(listed(node, TransactionState.OPEN)) == ["other"]
    node.published()
    assert listed(node) == {"app": TransactionState.OPEN, **others}


def test_a_state_that_does_not_exist(node: TransactionDriver) -> None:
    refused(node.call(ListTransactionsRequest(states=[0, 4]))[0], InvalidRequest)


def test_a_listing_has_what_the_coordinator_has(node: TransactionDriver) -> None:
    epoch = node.open().epoch
    node.commit(epoch, 7)
    node.count()
    node.published()
    node.set_clock(node.mono_us + 3_000_000)
    (one,) = node.call(ListTransactionsRequest(first_id="a"))[0].transactions[:1]
    assert (one.transactional_id, one.epoch, one.instance) == ("app", epoch, b"one")
    assert (one.client_id, one.last_sequence, one.silent_ms) == ("test-1", 7, 3_000)
    assert one.last_committed_us == node.wall_us - 3_000_000


def test_lists_come_in_pages(node: TransactionDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "_PAGE_IDS", 2)
    monkeypatch.setattr(handlers, "_LOOKS_PER_STEP", 1)
    for tid in "edcba":
        node.open(tid=tid)
    pages, first = [], ""
    while True:
        response = node.done(ListTransactionsRequest(first_id=first))
        pages.append([one.transactional_id for one in response.transactions])
        if not response.next_id:
            break
        first = response.next_id
    assert pages == [["a", "b"], ["c", "d"], ["e"]]


def test_describe_names_what_a_publish_waits_for(node: TransactionDriver) -> None:
    epoch = node.open().epoch
    node.commit(epoch, 7, attempt(), attempt(OTHER, partition=1), wait=0)
    node.count()
    node.count()
    node.published()
    _, then = node.publishes.pop()
    node.end(then, None, NotLeader("elsewhere"))
    response = node.done(DescribeTransactionsRequest(ids=["app", "unknown"]))
    (one,) = response.transactions
    assert (one.transactional_id, one.timeout_ms, one.single_use) == ("app", 900_000, False)
    assert one.listing.state == TransactionState.PUBLISHING
    (wait,) = one.waits
    assert (wait.name, wait.partition, wait.row_count) == (STAGED, 1, 5)
    assert (wait.reason, wait.reason_text) == (NotLeader.code, "elsewhere")
    assert wait.since_us == node.wall_us
    assert response.waits == one.waits
    everything = node.done(DescribeTransactionsRequest())
    assert [one.transactional_id for one in everything.transactions] == ["app"]


# --- counters and gauges ------------------------------------------------------------------------
def gauge(node: TransactionDriver) -> TransactionGauges:
    return transaction_gauges(node.node, node.now)


def test_outcomes_are_counted(node: TransactionDriver) -> None:
    counts = node.metrics.transactions
    epoch = node.open().epoch
    node.commit(epoch, 0, wait=0)
    node.count()
    assert counts == {"aborted": 0, "closed": 0, "committed": 1, "forgotten": 0}
    node.published()
    node.abort(epoch, 1)
    node.abort(epoch, 1)
    assert counts["aborted"] == 1
    assert node.metrics.transactions_fenced == 0
    epoch = node.open(b"two").epoch
    refused(node.open(b"one"), TransactionFenced)
    refused(node.response(node.commit(epoch - 1, 1)), TransactionFenced)
    refused(node.abort(epoch - 2, 1), TransactionFenced)
    assert node.metrics.transactions_fenced == 3
    resolve(node, StagedTransaction("unknown", 1, 0))
    assert counts["closed"] == 1
    node.done(forget())
    assert counts == {"aborted": 1, "closed": 1, "committed": 1, "forgotten": 1}


def test_open_ids_and_the_oldest_publish_are_shown(node: TransactionDriver) -> None:
    assert gauge(node) == TransactionGauges()
    epoch = node.open().epoch
    node.open(tid="other")
    assert gauge(node).transactions_open == 2
    node.open(b"two", tid="other")
    node.done(AbortTransactionRequest(transactional_id="other", force=True))
    assert gauge(node).transactions_open == 1
    node.commit(epoch, 0, wait=0)
    node.count()
    node.set_clock(node.mono_us + 90_000_000)
    assert gauge(node).publish_oldest_seconds == 90.0
    node.published()
    assert gauge(node).publish_oldest_seconds == 0.0
    node.crash()
    node.settle()
    assert gauge(node).transactions_open == 1
    node.done(forget())
    assert gauge(node).transactions_open == 0
