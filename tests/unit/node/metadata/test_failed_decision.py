"""A decision that fails is taken back: at the price of its own topics, not of all."""

from __future__ import annotations

import errno
from pathlib import Path
from unittest import mock

import msgspec
import pytest

from quiverlog import errors
from quiverlog.batch.schema import serialize_schema
from quiverlog.core.controller.image import Image
from quiverlog.core.controller.records import Record
from quiverlog.core.controller.topic_image import TopicImage
from quiverlog.storage.metadata.metadata_log import AppendJob
from quiverlog.wire import messages as m
from quiverlog.wire.election_messages import ElectLeadersRequest
from quiverlog.wire.reassignment_messages import ReassignPartitionsRequest
from tests.support.node import SCHEMA, NodeDriver

TOPICS = 60


@pytest.fixture
def node(tmp_path: Path) -> NodeDriver:
    return NodeDriver(tmp_path)


def state_of(image: Image) -> list[str]:
    """Return all records of an image, in an order of its own."""
    return sorted(map(repr, image.snapshot_records()))


def test_taking_back_a_decision_touches_its_own_topics_alone(node: NodeDriver) -> None:
    for number in range(TOPICS):
        node.create(f"other-{number}", partitions=2, retention_ms="60000")
    made: list[str] = []
    replay, build = Image.replay, TopicImage.__init__

    def count_replay(self: Image, record: Record) -> None:
        made.append(type(record).__name__)
        replay(self, record)

    def count_topic(self: TopicImage, *arguments: object) -> None:
        made.append("topic")
        build(self, *arguments)  # type: ignore[arg-type]

    new = m.NewTopic("t", serialize_schema(SCHEMA), 3)
    with (
        mock.patch.object(AppendJob, "run", side_effect=errors.DiskFull("planted")),
        mock.patch.object(Image, "replay", count_replay),
        mock.patch.object(TopicImage, "__init__", count_topic),
    ):
        answer, _ = node.call(m.CreateTopicsRequest(topics=[new]))
    assert answer.topics[0].error_code == errors.DiskFull.code
    assert len(made) < 20, "its five records, and not those of sixty others"
    metadata = node.node.broker.metadata
    assert state_of(metadata.pending) == state_of(metadata.image)
    assert "t" not in metadata.pending.topics


def test_what_failed_is_taken_back_and_what_is_under_way_stays(node: NodeDriver) -> None:
    """One topic is removed and one altered: after the failure both are what they were."""
    keeps = node.create("keeps", retention_ms="60000")
    node.create("goes")
    metadata = node.node.broker.metadata
    before = state_of(metadata.image)
    node.hold_jobs = True
    node.request(m.DeleteTopicsRequest(names=["goes"]))
    node.request(m.AlterTopicRequest(name="keeps", set_configs={"retention.ms": "1"}))
    assert state_of(metadata.pending) != before
    assert metadata.image.topics_by_id[keeps].configs == {"retention.ms": "60000"}
    with mock.patch.object(AppendJob, "run", side_effect=errors.DiskFull("planted")):
        node.hold_jobs = False
        node.run_until_idle()
    assert state_of(metadata.image) == before
    assert state_of(metadata.pending) == before
    assert metadata.pending.topics_by_id[keeps] is not metadata.image.topics_by_id[keeps]


NEW = m.NewTopic("t", serialize_schema(SCHEMA), 3)
REFUSED = {
    "create": m.CreateTopicsRequest(topics=[NEW]),
    "delete": m.DeleteTopicsRequest(names=["t"]),
    "alter": m.AlterTopicRequest(name="t", partitions=4),
    "elect": ElectLeadersRequest(name="t", unclean=False),
    "reassign": ReassignPartitionsRequest(name="t"),
}


def code_of(node: NodeDriver, correlation: int) -> int | None:
    found = node.answer(correlation)
    if found is None:
        return None
    (result,) = getattr(found[0], "topics", None) or [found[0]]
    return int(result.error_code)


@pytest.mark.parametrize(("what", "asked"), REFUSED.items())
@pytest.mark.parametrize("fails", [False, True])
def test_a_refusal_waits_for_the_decision_that_it_rests_on(
    node: NodeDriver, what: str, asked: m.Request, fails: bool
) -> None:
    """The topic is being created, or its end decided, and neither may come true.

    A client that got TOPIC_EXISTS, or UNKNOWN_TOPIC, took it for a fact.
    """
    is_there = what != "create"
    if is_there:
        node.create("t", partitions=3)
    node.hold_jobs = True
    first: m.Request = m.DeleteTopicsRequest(names=["t"])
    if not is_there:
        first = m.CreateTopicsRequest(topics=[NEW])
    before = node.request(first)
    while node.node.next_deadline_us() == 0:
        node.step()
    second = node.request(msgspec.structs.replace(asked), connection=2)
    while node.node.next_deadline_us() == 0:
        node.step()
    assert code_of(node, second) is None, "nothing is decided"
    error = errors.StorageFault("planted") if fails else None
    append = AppendJob.run
    failing: list[BaseException | None] = [error]

    def run(job: AppendJob) -> object:
        planted = failing.pop() if failing else None
        if planted is not None:
            raise planted
        return append(job)

    with mock.patch.object(AppendJob, "run", run):
        node.hold_jobs = False
        node.run_until_idle()
    assert bool(code_of(node, before)) is fails
    expected = errors.UnknownTopic.code if is_there else errors.TopicExists.code
    found = code_of(node, second)
    assert found is not None
    assert (found == expected) is not fails


def test_no_change_is_an_answer_of_what_is_decided(node: NodeDriver) -> None:
    """The same alteration twice: the second would answer before the first is on the disk."""
    node.create("t")
    node.hold_jobs = True
    asked = [
        node.request(
            m.AlterTopicRequest(name="t", set_configs={"retention.ms": "60000"}),
            connection=connection,
        )
        for connection in (1, 2)
    ]
    while node.node.next_deadline_us() == 0:
        node.step()
    assert [code_of(node, one) for one in asked] == [None, None]
    node.hold_jobs = False
    node.run_until_idle()
    assert [code_of(node, one) for one in asked] == [0, 0]


@pytest.mark.parametrize("written", [True, False])
def test_a_deletion_whose_fsync_fails_is_of_unknown_outcome(
    node: NodeDriver, *, written: bool
) -> None:
    """STORAGE_FAULT was the answer, and the topic was gone after the next start."""
    node.create("t")
    append = AppendJob.run

    def run(job: AppendJob) -> object:
        if written:
            append(job)
        raise OSError(errno.EIO, "fsync failed")

    with mock.patch.object(AppendJob, "run", run):
        answer, _ = node.call(m.DeleteTopicsRequest(names=["t"]))
    (result,) = answer.topics
    assert result.error_code == errors.OutcomeUnknown.code
    assert "fsync failed" in result.error_message
    refused, _ = node.call(m.DeleteTopicsRequest(names=["t"]))
    assert refused.topics[0].error_code == errors.StorageFault.code, "never proposed"
    node.crash()
    assert ("t" in node.node.broker.metadata.image.topics) is not written


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.DiskFull("planted"), errors.DiskFull.code),
        (errors.ThrottledBroker("planted"), errors.ThrottledBroker.code),
        (errors.StorageFault("planted"), errors.OutcomeUnknown.code),
        (OSError(errno.EIO, "planted"), errors.OutcomeUnknown.code),
    ],
)
def test_what_a_lone_replica_did_not_write_never_holds(
    node: NodeDriver, error: Exception, code: int
) -> None:
    node.create("t")
    with mock.patch.object(AppendJob, "run", side_effect=error):
        answer, _ = node.call(m.DeleteTopicsRequest(names=["t"]))
    assert answer.topics[0].error_code == code
