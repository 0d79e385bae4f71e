"""What forbids a restart, and what is printed of a cluster that is not as it should be."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from quiverlog.cli.cluster import restart_check
from quiverlog.cli.cluster.detail import brokers_json, print_status, status_json
from quiverlog.cli.console.cluster_health import (
    VOTER_LAG_MAX,
    VOTER_SILENT_S,
    fewer_replicas,
    findings,
    is_healthy,
    may_restart,
    not_raised,
    replicas_possible,
    spare_voters,
    unfinished_raises,
    with_fewer_replicas,
)
from quiverlog.cli.console.probes import Probe, Seen
from quiverlog.client.base.results import (
    BrokerDetail,
    ClusterDetail,
    PartitionInfo,
    QuorumReplicaDetail,
    TopicInfo,
)
from quiverlog.types import Compression, Durability


def broker(node_id: int, **more: Any) -> BrokerDetail:
    fields: dict[str, Any] = {"fenced": False, "in_shutdown": False, "leaders": 1, "replicas": 3}
    return BrokerDetail(node_id, node_id, "h", 9000 + node_id, "", **{**fields, **more})


def voter(node_id: int, **more: Any) -> QuorumReplicaDetail:
    fields: dict[str, Any] = {"last_index": 9, "lag": 0, "silent_s": 0.0}
    return QuorumReplicaDetail(node_id, f"d{node_id}", "", True, **{**fields, **more})


def cluster(**changes: Any) -> ClusterDetail:
    found = ClusterDetail(
        cluster_id="c",
        reported_by=1,
        metadata_version=9,
        controller=1,
        controller_epoch=1,
        brokers=tuple(broker(n) for n in (1, 2, 3)),
        quorum=tuple(voter(n) for n in (1, 2, 3)),
        topics=1,
        partitions=3,
        under_replicated=0,
        under_min_in_sync=0,
        offline=0,
    )
    return replace(found, **changes)


def with_broker(node_id: int, **more: Any) -> ClusterDetail:
    return cluster(brokers=tuple(broker(n, **(more if n == node_id else {})) for n in (1, 2, 3)))


def with_voters(*voters: QuorumReplicaDetail) -> ClusterDetail:
    return cluster(quorum=voters)


def test_a_cluster_as_it_should_be_lets_any_of_its_brokers_go() -> None:
    found = cluster()
    assert is_healthy(found)
    assert findings(found) == []
    assert all(may_restart(Seen(found), one.node_id).may_restart for one in found.brokers)
    assert status_json(Seen(found))["is_healthy"] is True
    assert spare_voters(found) == 1


@pytest.mark.parametrize(
    ("found", "node_id", "why"),
    [
        (
            replace(with_broker(3, fenced=True), quorum=(voter(1), voter(2), voter(4))),
            1,
            "broker 3 is fenced",
        ),
        (with_broker(2, in_shutdown=True), 1, "broker 2 is stopping"),
        (with_broker(2, out_of_sync=4), 1, "copies are out of sync: 4 on broker 2"),
        (with_broker(2, moving=5), 2, "5 of its partitions are moving"),
        (cluster(offline=1), 1, "1 partition has no leader"),
        (cluster(controller=None), 1, "there is no controller"),
        (cluster(reported_by=2), 3, "broker 1, the controller, does not answer"),
        (
            with_voters(voter(1), voter(2), voter(3, silent_s=VOTER_SILENT_S)),
            2,
            "the quorum has no voter to spare: without it 1 of 3 answer, 2 are needed",
        ),
        (
            with_voters(voter(1), voter(2), voter(3, lag=VOTER_LAG_MAX + 1)),
            2,
            "the quorum has no voter to spare: without it 1 of 3 answer, 2 are needed",
        ),
        (
            with_voters(voter(1), voter(2)),
            2,
            "the quorum has no voter to spare: without it 1 of 2 answer, 2 are needed",
        ),
        (with_voters(voter(1)), 1, "it is the only voter: nothing is decided until it is back"),
        (
            cluster(brokers=(broker(1),), quorum=(voter(2), voter(3), voter(4))),
            1,
            "no other broker is live: clients wait until it is back",
        ),
    ],
)
def test_one_thing_that_speaks_against_a_restart(
    found: ClusterDetail, node_id: int, why: str
) -> None:
    verdict = may_restart(Seen(found), node_id)
    assert verdict.reasons == (why,)
    assert not verdict.may_restart


@pytest.mark.parametrize(
    ("found", "node_id"),
    [
        # It is the one that is out of sync, or moves elsewhere: its restart costs no more.
        (with_broker(2, out_of_sync=4), 2),
        (with_broker(2, moving=5), 1),
        # It serves no client: its restart is what helps.
        (with_broker(2, fenced=True, out_of_sync=4, moving=1), 2),
        (with_voters(voter(1), voter(2), voter(3, silent_s=9.0)), 3),
        (with_voters(voter(1), voter(2), voter(3, silent_s=VOTER_SILENT_S / 2)), 2),
        (with_voters(voter(1), voter(2), voter(3, lag=VOTER_LAG_MAX)), 2),
        # It has no vote.
        (with_voters(voter(1), voter(2)), 3),
    ],
)
def test_what_does_not_speak_against_a_restart(found: ClusterDetail, node_id: int) -> None:
    assert may_restart(Seen(found), node_id).reasons == ()


def test_a_voter_that_has_just_stopped_does_not_count_though_it_has_just_answered() -> None:
    found = with_broker(2, fenced=True)
    assert may_restart(Seen(found), 1).reasons == (
        "the quorum has no voter to spare: without it 1 of 3 answer, 2 are needed",
        "broker 2 is fenced",
    )
    assert spare_voters(found) == 0


def seen_without(found: ClusterDetail, *silent: int) -> Seen:
    """The cluster by broker 1's answer; `silent` have not answered."""
    return Seen(
        found,
        [
            Probe(f"h:{9000 + n}", None, "refused")
            if n in silent
            else Probe(f"h:{9000 + n}", replace(found, reported_by=n))
            for n in (1, 2, 3)
        ],
    )


def test_a_broker_that_does_not_answer_is_not_counted_on() -> None:
    """Though the controller takes it for live, until its session is over."""
    silent = "broker 3 does not answer this machine (refused)"
    no_spare = "the quorum has no voter to spare: without it 1 of 3 answer, 2 are needed"
    assert may_restart(seen_without(cluster(), 3), 1).reasons == (no_spare, silent)
    five = with_voters(*(voter(n) for n in (1, 2, 3, 4, 5)))
    assert may_restart(seen_without(five, 3), 1).reasons == (silent,)
    assert may_restart(seen_without(five), 1).reasons == ()
    # Its own restart is what helps.
    assert may_restart(seen_without(cluster(), 3), 3).reasons == ()
    # Once, in the controller's words.
    assert may_restart(seen_without(with_broker(3, fenced=True), 3), 1).reasons == (
        no_spare,
        "broker 3 is fenced",
    )


@pytest.mark.parametrize("wait", [[], ["--wait", "30"]])
def test_restart_check_asks_each_broker(monkeypatch: pytest.MonkeyPatch, wait: list[str]) -> None:
    """Waiting ends when all of them answer, not when the controller has nothing against it."""

    class Client:
        cluster = SimpleNamespace(deadline_s=0.0, patience_s=0.0)

        def describe_cluster(self) -> ClusterDetail:
            return cluster()

    answers = iter([seen_without(cluster(), 3), seen_without(cluster())])
    monkeypatch.setattr(restart_check, "seen_or_failure", lambda *_: seen_without(cluster(), 3))
    monkeypatch.setattr(restart_check, "probe_brokers", lambda _: next(answers).probes)
    monkeypatch.setattr(restart_check, "open_client", lambda *_, **__: nullcontext(Client()))
    done = CliRunner().invoke(restart_check.restart_check, ["--broker", "1", *wait])
    assert done.exit_code == (0 if wait else 1)
    assert "broker 3 does not answer this machine (refused)" in done.output
    assert len(list(answers)) == (0 if wait else 2)


def test_copies_without_a_spare_are_noted_and_do_not_forbid_a_restart() -> None:
    verdict = may_restart(Seen(with_broker(2, needed=2)), 2)
    assert verdict.may_restart
    assert "2 of its partitions have no copy to spare" in verdict.notes[0]


@pytest.mark.parametrize(
    ("found", "printed"),
    [
        (with_broker(2, fenced=True), "Fenced: 2."),
        (with_broker(2, out_of_sync=1_200), "1,200 on broker 2"),
        (cluster(offline=1, under_min_in_sync=1), "Partitions without a leader"),
        (cluster(under_min_in_sync=1), "below min.insync.replicas"),
        (cluster(controller=None), "There is no controller: 2 of the 3 voters"),
        (with_voters(voter(1), voter(2), voter(3, silent_s=4.0)), "lag behind: 3."),
    ],
)
def test_each_reason_for_an_unhealthy_cluster_is_reported(
    found: ClusterDetail, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not is_healthy(found)
    print_status(Seen(found))
    shown = capsys.readouterr().out
    assert printed in shown
    assert "healthy      no" in shown


def test_warnings_leave_a_cluster_healthy_and_come_last() -> None:
    found = with_voters(voter(1), voter(2))
    assert is_healthy(found)
    assert [one.is_warning for one in findings(found)] == [True]
    worse = replace(found, offline=1)
    assert [one.is_warning for one in findings(worse)] == [False, True]


def test_a_voter_without_figures_does_not_count_as_down() -> None:
    unknown = voter(3, lag=None, silent_s=None)
    assert spare_voters(cluster(quorum=(voter(1), voter(2), unknown))) == 1


@pytest.mark.parametrize(
    "found",
    [
        cluster(reported_by=2),
        cluster(reported_by=2, controller=None),
        cluster(is_behind=True),
        cluster(reported_by=2, is_behind=True, age_s=12.25),
    ],
    ids=["another broker answers", "no controller", "the controller is cut off", "cut off"],
)
def test_figures_that_are_not_the_controllers_are_shown_as_old(
    found: ClusterDetail, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = Seen(found, [Probe("h:9001", found), Probe("h:9002", None, "refused")])
    assert not is_healthy(found)
    assert spare_voters(found) == 0
    printed = status_json(seen)
    assert (printed["live"], printed["voters_to_spare"], printed["is_current"]) == (
        None,
        None,
        False,
    )
    assert printed["answering"] == [found.reported_by]
    print_status(seen)
    shown = capsys.readouterr().out
    for text in ("live", "all in sync", "may be lost", "Nothing to do"):
        assert text not in shown, text
    assert "1 of 3 answer this machine" in shown
    assert "h:9002 (refused)" in shown
    assert ("12.2 s old" if found.age_s else "of unknown age") in shown
    assert {one["state"] for one in brokers_json(seen)} == {"unknown, was live"}
    assert not may_restart(Seen(found), 3).may_restart


def test_an_address_that_was_given_and_is_no_broker_is_a_warning_and_a_live_one_a_problem() -> None:
    found = cluster()
    fine = [Probe(f"h:{9000 + n}", replace(found, reported_by=n)) for n in (1, 2, 3)]
    assert is_healthy(found, fine)
    assert findings(found, fine) == []
    assert is_healthy(found, [*fine, Probe("old:9292", None, "refused")])
    assert not is_healthy(found, [*fine[:2], Probe("h:9003", None, "refused")])


@pytest.mark.parametrize(("fenced", "is_advised"), [(False, True), (True, False)])
def test_copies_of_a_broker_that_runs_and_does_not_catch_up(fenced: bool, is_advised: bool) -> None:
    texts = [one.text for one in findings(with_broker(2, out_of_sync=4, fenced=fenced))]
    advice = "Broker 2 runs: if its copies do not catch up within a minute, look at its disk"
    assert any(advice in text and "restart it" in text for text in texts) == is_advised


def test_a_broker_whose_fsync_has_failed_comes_with_plain_advice() -> None:
    """The advice was conditional: no answer named the broker whose disk had failed."""
    found = with_broker(2, out_of_sync=4, faulted=1)
    assert not is_healthy(found)
    texts = [one.text for one in findings(found)]
    advice = (
        "Broker 2: 1 partition takes no writes, because a write or fsync has failed there. Look at"
        " its disk, then restart broker 2: it trusts no file before it has read it again."
    )
    assert advice in texts
    assert not any("if its copies do not catch up" in text for text in texts)
    (_, second, _) = brokers_json(Seen(found))
    assert (second["state"], second["faulted"]) == ("live, writes failed", 1)
    texts = [one.text for one in findings(with_broker(2, faulted=1_000))]
    assert texts[0].startswith("Broker 2: 1,000 partitions take no writes")


def test_brokers_are_listed_with_what_they_are() -> None:
    found = with_broker(3, in_shutdown=True)
    first, _, third = brokers_json(Seen(found))
    assert (first["is_controller"], first["is_voter"], first["state"]) == (True, True, "live")
    assert (third["is_controller"], third["state"]) == (False, "stopping")


@pytest.mark.parametrize(("offline", "is_disk_named"), [(0, True), (1, False)])
def test_copies_without_a_leader_are_no_sign_of_a_broken_disk(
    offline: int, is_disk_named: bool
) -> None:
    """Without a leader no replica is in sync, whatever its disk does."""
    found = replace(with_broker(3, out_of_sync=2), offline=offline, under_replicated=2)
    printed = [one.text for one in findings(found)]
    assert any("Copies out of sync: 2 on broker 3" in text for text in printed)
    assert any("look at its disk" in text for text in printed) == is_disk_named
    assert any("Partitions without a leader" in text for text in printed) == bool(offline)


def topic(name: str, replicas: int) -> TopicInfo:
    one = PartitionInfo(0, 1, 1, replicas=tuple(range(1, replicas + 1)))
    return TopicInfo(name, b"", 1, (), Durability.REPLICATED, 1, Compression.NONE, (one,))


@pytest.mark.parametrize("down", [{"fenced": True}, {"in_shutdown": True}])
def test_a_broker_that_is_down_is_counted_for_the_replicas_that_topics_are_to_have(
    down: dict[str, bool], capsys: pytest.CaptureFixture[str]
) -> None:
    """A topic of one replica was to get two, and one of two was not named, while one was down."""
    found = with_broker(3, **down)
    few = with_fewer_replicas(found, [topic("two", 2), topic("one", 1), topic("three", 3)])
    assert [one.name for one in few] == ["one", "two"]
    assert replicas_possible(found) == 3
    text, then = fewer_replicas(found, few)
    assert "fewer replicas than the 3 that this cluster has brokers for: one (1), two (2)" in text
    assert "quiverlog topic alter" not in then
    assert "2 of the 3 brokers that hold partitions are live" in then
    assert "until 3 of them are live" in then
    print_status(Seen(found, few=few))
    assert "--replication-factor" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "gone", [{"takes_partitions": False}, {"decommissioning": True}], ids=["controller", "leaving"]
)
def test_a_broker_that_takes_no_partitions_is_not_counted_for_replicas(
    gone: dict[str, bool], capsys: pytest.CaptureFixture[str]
) -> None:
    found = with_broker(3, **gone)
    few = with_fewer_replicas(found, [topic("one", 1), topic("two", 2)])
    assert [one.name for one in few] == ["one"]
    raising = "quiverlog topic alter one --replication-factor 2"
    assert fewer_replicas(found, few)[1] == f"To raise the first: {raising}"
    print_status(Seen(found, few=few))
    assert f"To raise the first: {raising}" in capsys.readouterr().out


def test_with_as_many_live_as_are_needed_the_command_is_advised() -> None:
    brokers = (*(broker(n) for n in (1, 2, 3)), broker(4, fenced=True))
    found = cluster(brokers=brokers)
    _, then = fewer_replicas(found, with_fewer_replicas(found, [topic("two", 2)]))
    assert then == "To raise the first: quiverlog topic alter two --replication-factor 3"


def internal(name: str, replicas: int, in_sync: int) -> TopicInfo:
    numbers = tuple(range(replicas))
    partitions = (
        PartitionInfo(0, 0, 0, (0, 1, 2), (0, 1, 2)),
        PartitionInfo(1, 0, 0, numbers, numbers[:in_sync]),
    )
    return replace(topic(name, replicas), partitions=partitions, is_internal=True)


@pytest.mark.parametrize(
    ("replicas", "in_sync", "is_named"), [(1, 1, True), (3, 2, True), (3, 3, False)]
)
def test_a_raise_of_internal_topics_that_is_not_done_is_a_warning(
    replicas: int, in_sync: int, is_named: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    found = cluster(brokers=tuple(broker(n, out_of_sync=0) for n in (1, 2, 3)))
    topics = [topic("one", 1), internal("__staged", replicas, in_sync), internal("__z", 3, 3)]
    few = unfinished_raises(found, topics)
    assert [one.name for one in few] == ["__staged"] * is_named
    assert [one.name for one in with_fewer_replicas(found, topics)] == ["one"]
    seen = Seen(found, not_raised=few)
    print_status(seen)
    shown = capsys.readouterr().out
    assert (f"than the 3 that this cluster has brokers for: __staged ({in_sync})" in shown) == (
        is_named
    )
    assert status_json(seen)["is_healthy"] is True
    if few:
        assert "quiverlog partition list --moving" in not_raised(found, few)[1]


@pytest.mark.parametrize(
    "missing", [{"fenced": True}, {"in_shutdown": True}, {"out_of_sync": 1}], ids=str
)
def test_no_raise_is_missed_where_copies_are_missing_for_another_reason(
    missing: dict[str, Any],
) -> None:
    assert not unfinished_raises(with_broker(3, **missing), [internal("__staged", 1, 1)])


def test_a_broker_that_does_not_answer_counts_neither_as_live_nor_as_a_vote(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In the session after a kill the controller still counts it: 3 live, 1 may be lost."""
    found = cluster(brokers=tuple(broker(n, out_of_sync=0) for n in (1, 2, 3)))
    probes = [Probe("h:9001", found), Probe("h:9002", replace(found, reported_by=2))]
    seen = Seen(found, [*probes, Probe("h:9003", None, "refused")], [topic("two", 2)])
    print_status(seen)
    shown = capsys.readouterr().out
    for claim in ("3 of 3 live", "1 may be lost", "all in sync", "--replication-factor"):
        assert claim not in shown, claim
    assert "2 of 3 live" in shown
    assert "0 may be lost" in shown
    assert "3 copies on brokers that do not answer this machine" in shown
    printed = status_json(seen)
    assert (printed["live"], printed["voters_to_spare"], printed["is_healthy"]) == (2, 0, False)


def test_a_broker_that_answers_at_another_address_than_its_own_is_live(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = cluster()
    probes = [Probe(f"h:900{n}", replace(found, reported_by=n)) for n in (1, 2)]
    other = Probe("other:1", replace(found, reported_by=3))
    seen = Seen(found, [*probes, other, Probe("h:9003", None, "refused")])
    print_status(seen)
    assert "3 of 3 live" in capsys.readouterr().out
    assert status_json(seen)["voters_to_spare"] == 1
