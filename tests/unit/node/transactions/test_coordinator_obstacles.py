"""Coordinators that may have been deposed, requests sent twice, and what delays a publish."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from quiverlog.core.transactions import records
from quiverlog.errors import InvalidRequest, NotLeader, ThrottledBroker, UnsupportedFormat
from quiverlog.limits import GIB
from quiverlog.node.assignment.lookup import Lookup
from quiverlog.node.cluster_gauges import transaction_gauges
from quiverlog.node.runtime.events import Tick
from quiverlog.node.transactions import coordinators as module
from quiverlog.node.transactions import hosted as hosting
from quiverlog.types import Durability
from quiverlog.wire.transaction_messages import (
    CountedTarget,
    DescribeTransactionsRequest,
    OpenTransactionRequest,
    PublishResponse,
    ResolveStagedRequest,
    StagedTransaction,
)
from tests.support.transactions import OTHER, TransactionDriver, attempt


@pytest.fixture
def node(tmp_path: Path) -> TransactionDriver:
    return TransactionDriver(tmp_path)


def test_clients_are_answered_under_the_lease_only(
    node: TransactionDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator that was deposed would call the epoch of its successor fenced."""
    epoch = node.open().epoch

    def refuse(*_args: object) -> None:
        raise NotLeader("another broker may lead by now")

    monkeypatch.setattr(Lookup, "leader_for_offsets", refuse)
    assert node.open().error_code == NotLeader.code
    assert node.response(node.commit(epoch, 0)).error_code == NotLeader.code
    assert node.abort(epoch, 0).error_code == NotLeader.code
    assert not node.counts


def test_a_full_disk_delays_the_record_of_a_publish(tmp_path: Path) -> None:
    node = TransactionDriver(tmp_path, disk_reserve_bytes=1)
    epoch = node.open().epoch
    node.commit(epoch, 0, wait=0)
    node.count()
    node.disk_space(0)
    node.published()
    assert node.machine().applied["app"].publishing is not None
    node.disk_space(GIB)
    node.advance(module.PUBLISH_BACKOFF_MS_MIN)
    node.record_ends()
    assert node.machine().applied["app"].publishing is None


def test_a_commit_that_waits_is_answered_before_its_publish_is_recorded(
    node: TransactionDriver,
) -> None:
    epoch = node.open().epoch
    correlation = node.commit(epoch, 0)
    node.count()
    _, then = node.publishes.pop()
    then(PublishResponse(durability=Durability.FLUSHED), None, node.now)
    node.send(Tick())
    assert node.response(correlation).is_published
    assert node.machine().applied["app"].publishing is not None
    opened = node.request(OpenTransactionRequest(transactional_id="app", instance=b"one"))
    assert not node.syncs
    assert node.response(opened).is_publishing is False, "which is true before it is recorded"
    following = node.commit(epoch, 1, attempt(OTHER), wait=0)
    stored = node.node.broker.coordinators.find("app").replica.counters
    batches, rows = stored.batches_in, stored.rows_in
    node.count()
    assert node.response(following).outcome == 0
    assert (stored.batches_in, stored.rows_in) == (batches + 1, rows + 2), "they share an append"


@pytest.mark.parametrize(("asked", "level"), [(-1, 0), (0, 0), (3, 3)])
def test_a_publish_has_the_level_that_the_commit_asked_for(
    node: TransactionDriver, asked: int, level: int
) -> None:
    epoch = node.open().epoch
    node.commit(epoch, 0, wait=0, durability=asked)
    node.count()
    assert [one.durability for one, _ in node.publishes] == [level]


def test_a_decision_without_a_publish_here_is_not_called_published(node: TransactionDriver) -> None:
    """As where the leadership ends in the turn in which the decision becomes safe."""
    epoch = node.open().epoch
    with mock.patch.object(module.Coordinators, "_publish"):
        correlation = node.commit(epoch, 0, wait=0)
        node.count()
        response = node.response(correlation)
    assert (response.error_code, response.outcome, response.is_published) == (0, 0, False)


@pytest.mark.parametrize("is_gone", [True, False], ids=["rows", "topic"])
def test_a_commit_sent_twice_whose_rows_are_published_by_the_first(
    node: TransactionDriver, is_gone: bool
) -> None:
    """The rows of the second are missing because they have been published and given up."""
    epoch = node.open().epoch
    first = node.commit(epoch, 0)
    second = node.commit(epoch, 0)
    late = node.counts.pop()
    node.count()
    node.published()
    assert node.response(first).outcome == 0
    node.counts.append(late)
    if is_gone:
        node.count(is_whole=False)
    else:
        node.count(targets=[CountedTarget(b"gone" * 4, 0, 5)])
    assert (node.response(second).error_code, node.response(second).outcome) == (0, 1)


@pytest.mark.parametrize("bad", [("", 0, 0), ("x", -1, 0), ("x", 0, -1), ("x", 2**62, 0)])
def test_a_bad_question_closes_nothing(node: TransactionDriver, bad: tuple[str, int, int]) -> None:
    """Not the id of a good one beside it either."""
    questions = [StagedTransaction("unknown", 5, 0), StagedTransaction(*bad)]
    request = ResolveStagedRequest(broker_id=0, transactions=questions)
    response = node.response(node.steps(request))
    assert response.error_code == InvalidRequest.code
    assert not node.syncs
    assert node.open(tid="unknown").epoch == 1


# --- moments -------------------------------------------------------------------------------------
def moments(node: TransactionDriver) -> int:
    return len(node.node.broker.coordinators._later)


def test_a_commit_that_is_answered_leaves_no_moment(node: TransactionDriver) -> None:
    """The deadline of its wait may be weeks away."""
    epoch = node.open().epoch
    correlation = node.commit(epoch, 0, timeout_ms=2**31 - 1)
    node.count()
    assert node.node.broker.coordinators.next_us() is not None
    assert moments(node) == 1
    node.published()
    assert node.response(correlation).is_published
    node.settle()
    assert moments(node) == 0


def test_moments_of_answered_commits_do_not_pile_up_behind_one_that_waits(
    node: TransactionDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SWEEP_MIN", 4)
    node.node.broker.coordinators._sweep_at = 4
    waiting = node.commit(node.open().epoch, 0, timeout_ms=30_000)
    node.count()
    others = [node.commit(1, 0, timeout_ms=60_000 + n) for n in range(3)]
    assert moments(node) == 4, "the bound: all of them wait"
    (publishing,) = node.node.broker.coordinators._publishing.values()
    for _ in others:
        publishing.give_up(publishing.waits[-1], node.now)
    node.commit(1, 0, timeout_ms=60_000)
    assert moments(node) == 2, "one above: those that wait"
    node.published()
    assert node.response(waiting).is_published


def test_of_an_open_that_cannot_be_recorded_nothing_is_kept(
    node: TransactionDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each may have an id of its own: what is kept would grow for as long as none is recorded."""
    monkeypatch.setattr(hosting, "PENDING_RECORDS_MAX", 0)
    assert node.open().error_code == ThrottledBroker.code
    assert not any(node.machine()._moments())


# --- rows that cannot be used --------------------------------------------------------------------
def test_an_unreadable_record_is_what_the_partition_is_refused_with(
    node: TransactionDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with COORDINATOR_NOT_READY, upon which a client asks again for ever."""
    other = node.node.broker.coordinators.find("first").replica.name.partition
    hosted = node.node.broker.coordinators.find("app")
    assert hosted.replica.name.partition != other
    node.open()
    monkeypatch.setitem(records._KINDS, records.Opened, 99)
    node.open(b"two")
    node.crash()
    node.settle()
    name = str(hosted.replica.name)
    for response in (node.open(b"three"), node.abort(1, 0), node.response(node.commit(1, 0))):
        assert response.error_code == UnsupportedFormat.code
        assert response.error_message.startswith(f"{name} is not served: rows 1 to 1 are as they")
        assert "the unknown kind 99" in response.error_message
    (question,) = node.response(
        node.steps(ResolveStagedRequest(transactions=[StagedTransaction("app", 1, 0)]))
    ).results
    assert question.error_code == UnsupportedFormat.code
    (line,) = [one for one in node.lines if one.level == "error"]
    assert (line.fields["partition"], "rows 1 to 1" in line.fields["why"]) == (name, True)
    described, _ = node.call(DescribeTransactionsRequest())
    (unserved,) = described.unserved
    assert (unserved.name, unserved.partition) == ("__transactions", hosted.replica.name.partition)
    assert "kind 99" in unserved.why
    assert node.open(tid="first", instance=b"x").error_code == 0, "other partitions go on"


# --- clocks --------------------------------------------------------------------------------------
@pytest.mark.parametrize(("ahead_s", "shown_s"), [(0, 90), (86_400, 90), (-86_400, 86_490)])
def test_a_publish_waits_since_then_whatever_the_clock_was_that_decided_it(
    node: TransactionDriver, ahead_s: int, shown_s: int
) -> None:
    """Warnings begin after a minute, also behind a coordinator whose clock was a day ahead."""
    node.wall_us += ahead_s * 1_000_000
    node.commit(node.open().epoch, 0, wait=0)
    node.count()
    node.wall_us -= ahead_s * 1_000_000
    node.crash()
    node.settle()
    node.set_clock(node.mono_us + 90_000_000)
    assert transaction_gauges(node.node, node.now).publish_oldest_seconds == shown_s
    _, then = node.publishes.pop()
    node.end(then, None, NotLeader("elsewhere"))
    (wait,) = node.done(DescribeTransactionsRequest()).waits
    assert node.wall_us - wait.since_us == shown_s * 1_000_000
