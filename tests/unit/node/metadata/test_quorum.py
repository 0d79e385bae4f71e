"""The host of the quorum: a full disk, a bug and a new leader do to decisions what they must."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from quiverlog import errors
from quiverlog.batch.schema import serialize_schema
from quiverlog.core.controller.records import ProducerIdBlockRecord, encode_entry
from quiverlog.core.raft import messages as r
from quiverlog.core.raft.membership import pack_voters
from quiverlog.node.metadata.metadata import Metadata
from quiverlog.storage.metadata.quorum_jobs import WriteJob
from quiverlog.wire import messages as m
from tests.support.node import SCHEMA, NodeDriver

OTHER = r.ReplicaKey(9, "elsewhere")


@pytest.fixture
def node(tmp_path: Path) -> NodeDriver:
    return NodeDriver(tmp_path)


def create(node: NodeDriver, name: str) -> int:
    """Return the error code of a creation."""
    new = m.NewTopic(name, serialize_schema(SCHEMA), 1)
    response, _ = node.call(m.CreateTopicsRequest(topics=[new]))
    return int(response.topics[0].error_code)


def test_a_quorum_of_one_leads_without_asking_and_sleeps(node: NodeDriver) -> None:
    quorum = node.node.broker.quorum
    assert quorum.is_leading
    assert quorum.is_alone
    assert quorum.next_us() > node.mono_us + 10**12, "an idle broker is not woken by its quorum"
    assert node.node.broker.metadata.image.version == quorum.applied_index


@pytest.mark.parametrize("error", [errors.DiskFull("full"), errors.ThrottledBroker("none left")])
def test_a_passing_failure_fails_the_decision_and_not_the_next(
    node: NodeDriver, monkeypatch: pytest.MonkeyPatch, error: errors.QuiverlogError
) -> None:
    def refuse(_: WriteJob) -> None:
        raise error

    monkeypatch.setattr(WriteJob, "run", refuse)
    assert create(node, "refused") == error.code
    monkeypatch.undo()
    node.disk_space(1 << 40)
    assert create(node, "taken") == 0
    assert list(node.node.broker.metadata.image.topics) == ["taken"]
    node.crash()
    assert list(node.node.broker.metadata.image.topics) == ["taken"]


def test_after_a_passing_failure_it_leads_again_by_itself(
    node: NodeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: WriteJob) -> None:
        raise errors.ThrottledBroker("none left")

    monkeypatch.setattr(WriteJob, "run", refuse)
    create(node, "refused")
    assert not node.node.broker.quorum.is_leading
    monkeypatch.undo()
    node.advance(1_100)
    assert node.node.broker.quorum.is_leading


def test_a_bug_in_applying_is_answered_and_the_entry_is_applied_in_the_end(
    node: NodeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 31 of docs/replication-rules.md."""

    def broken(*_: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(Metadata, "apply", broken)
    assert create(node, "unlucky") == errors.OutcomeUnknown.code
    monkeypatch.undo()
    node.advance(1_100)
    assert list(node.node.broker.metadata.image.topics) == ["unlucky"], "it was decided"
    assert create(node, "next") == 0


def test_a_failed_fsync_ends_all_decisions_until_a_restart(
    node: NodeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failed(_: WriteJob) -> None:
        raise OSError(errno.EIO, "fsync failed")

    monkeypatch.setattr(WriteJob, "run", failed)
    assert create(node, "t") == errors.OutcomeUnknown.code
    monkeypatch.undo()
    node.advance(60_000)
    assert create(node, "t") == errors.StorageFault.code
    assert not node.node.broker.quorum.is_leading
    node.crash()
    assert create(node, "t") == 0


# --- another leader -------------------------------------------------------------------------------
def with_another_voter(node: NodeDriver) -> tuple[list[r.Message], r.ReplicaKey]:
    """As if another replica had been made a voter: what is sent to it."""
    quorum = node.node.broker.quorum
    sent: list[r.Message] = []
    quorum._send = lambda messages, _now: sent.extend(messages)
    assert quorum.log is not None
    key = quorum.log.key
    raft = quorum.raft
    voters = {**raft.voters, OTHER: "there"}
    raft._leader._replication.append(  # type: ignore[union-attr]
        r.EntryKind.VOTERS, pack_voters(voters), node.mono_us
    )
    quorum.go_on(node.now)
    node._perform(node.node._effects(node.now))
    node.run_until_idle()
    return sent, key


def test_a_decision_whose_leader_is_deposed_gets_a_retriable_error_and_the_other_ones_hold(
    node: NodeDriver,
) -> None:
    create(node, "old")
    sent, key = with_another_voter(node)
    quorum = node.node.broker.quorum
    new = m.NewTopic("lost", serialize_schema(SCHEMA), 1)
    asked = node.request(m.CreateTopicsRequest(topics=[new]))
    assert node.answer(asked) is None, "a majority of two is two"
    log = quorum.raft.log
    version = node.node.broker.metadata.image.version
    # The other one has everything but the decision, and was elected.
    index = log.last_index - 1
    prev_term = log.term(index)
    assert prev_term is not None
    term = quorum.raft.term + 1
    data = encode_entry([ProducerIdBlockRecord(5_000)])
    entries = (
        r.Entry(index + 1, term, r.EntryKind.NO_OP, b""),
        r.Entry(index + 2, term, r.EntryKind.DATA, data),
    )
    append = r.Append(
        source=OTHER, target=key, term=term, prev_index=index, prev_term=prev_term,
        entries=entries, commit=index + 2,
    )  # fmt: skip
    quorum.step(append, node.now)
    node._perform(node.node._effects(node.now))
    node.run_until_idle()
    answer = node.answer(asked)
    assert answer is not None
    assert answer[0].topics[0].error_code == errors.OutcomeUnknown.code
    metadata = node.node.broker.metadata
    assert list(metadata.image.topics) == list(metadata.pending.topics) == ["old"]
    assert metadata.image.next_producer_id == 5_000
    assert metadata.image.version == index + 2 > version
    assert create(node, "more") == errors.NotController.code
    assert any(isinstance(x, r.AppendResponse) and x.accepted for x in sent)
