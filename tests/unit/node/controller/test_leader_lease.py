"""A leader that does not reach the controller steps down by itself, before another one leads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quiverlog import errors
from quiverlog.batch.schema import serialize_schema
from quiverlog.core.controller.records import PartitionChangeRecord
from quiverlog.errors import NotEnoughReplicasAfterAppend, NotLeader
from quiverlog.node.runtime.events import Tick
from quiverlog.types import EARLIEST, LATEST, Durability
from quiverlog.wire import messages as m
from quiverlog.wire.cluster_messages import DescribeClusterRequest
from quiverlog.wire.messages import Api
from quiverlog.wire.registry import APIS
from scripts.protocol_model import parts_of
from tests.support.members import Member, Members
from tests.support.node import SCHEMA, batch_of, rows_of

REPLICATED = Durability.REPLICATED
CUT = frozenset((1, 2))


class World:
    """Broker 1 is the controller; 2 leads `wide`, with a copy on 1, and `lone`, alone."""

    def __init__(self, root: Path) -> None:
        self.members = members = Members(root)
        self.one = members.add(1)
        self.two = members.add(2, seeds=(1,))
        image = self.one.node.broker.metadata.image
        members.run_until(lambda: self.two.started and len(image.live_brokers()) == 2)
        for member in (self.one, self.two):
            member.call(m.HelloRequest())
        self.wide = self._create("wide", (2, 1))
        self.lone = self._create("lone", (2,))
        members.run_until(lambda: len(self.two.node.broker.replicas) == 2)
        members.run(200)

    def _create(self, name: str, replicas: tuple[int, ...]) -> bytes:
        new = m.NewTopic(name, serialize_schema(SCHEMA), 1, len(replicas))
        asked = self.one.request(m.CreateTopicsRequest(topics=[new]))
        self.members.run_until(lambda: self.one.answer(asked) is not None)
        answer = self.one.answer(asked)
        assert answer is not None
        assert answer[0].topics[0].error_code == 0, answer[0].topics[0].error_message
        topic_id = bytes(answer[0].topics[0].topic_id)
        held = self.one.node.broker.metadata.image.topics_by_id[topic_id].partitions[0]
        outcomes: list[BaseException | None] = []
        change = PartitionChangeRecord(
            topic_id, 0, leader_id=replicas[0], leader_epoch=held.leader_epoch + 1,
            replicas=replicas, in_sync_replicas=replicas,
        )  # fmt: skip
        self.one.node.broker.propose(
            [change], self.one.now, lambda _result, error, _now: outcomes.append(error)
        )
        self.one.send(Tick())
        self.members.run_until(lambda: bool(outcomes))
        assert outcomes == [None]
        return topic_id

    def write(self, topic_id: bytes, value: int, level: int = -1) -> int:
        return self.two.produce(topic_id, batch_of([value]), durability=level)

    def code(self, asked: int) -> int | None:
        """Of the only entry; None: no answer yet."""
        answer = self.two.answer(asked)
        return None if answer is None else int(answer[0].partitions[0].error_code)

    def settled(self, asked: int) -> int | None:
        self.members.run_until(lambda: self.code(asked) is not None)
        return self.code(asked)

    def step_down(self) -> int:
        """Part the two, and wait for the end of the leader's session."""
        self.members.cut.add(CUT)
        return self.members.run_until(lambda: self.two.node.broker.leader_lease.is_over)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def warnings(member: Member) -> int:
    return sum(line.event.startswith("stepping down") for line in member.lines)


def test_a_leader_out_of_reach_appends_nothing_and_reports_no_end(world: World) -> None:
    """Rule 16 of docs/replication-rules.md."""
    assert world.settled(world.write(world.wide, 1, REPLICATED)) == 0
    assert world.step_down() <= 2_000
    image = world.one.node.broker.metadata.image
    assert image.topics_by_id[world.wide].partitions[0].leader_id == 2, "no other broker leads yet"
    for level in (Durability.MEMORY, Durability.FLUSHED, REPLICATED):
        assert world.code(world.write(world.wide, 2, level)) == NotLeader.code
    assert world.two.broker_end(world.wide) == 1
    for at in (LATEST, EARLIEST, 0):
        assert world.two.offset_of(world.wide, at).error_code == NotLeader.code
    assert world.two.fetched(world.wide, 1)[0].error_code == NotLeader.code
    result, body = world.two.fetched(world.wide, 0)
    assert (result.error_code, rows_of(body)) == (0, [(0, 1)]), "what was shown stays shown"
    assert warnings(world.two) == 1


def test_a_leader_that_is_about_to_stop_reports_no_end(world: World) -> None:
    """Another one may lead, and have served more, before it has that in its metadata.
    Seen in a simulated cluster (80003000, 94000005)."""
    assert world.settled(world.write(world.wide, 1, REPLICATED)) == 0
    assert world.settled(world.write(world.lone, 1)) == 0
    assert world.two.offset_of(world.wide, LATEST).offset == 1
    world.members.cut.add(CUT)
    two = world.two.node.broker
    assert two.membership.registration.leave(world.two.now)
    assert not two.leader_lease.is_over, "its session goes on"
    assert world.two.offset_of(world.wide, LATEST).error_code == NotLeader.code
    assert world.two.fetched(world.wide, 1)[0].error_code == NotLeader.code
    result, body = world.two.fetched(world.wide, 0)
    assert (result.error_code, rows_of(body)) == (0, [(0, 1)]), "what was shown stays shown"
    assert world.two.offset_of(world.lone, LATEST).offset == 1, "no other broker may lead it"


def test_a_leader_that_is_about_to_stop_misses_no_sequence(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one may have taken the rows before. Seen in a simulated cluster (96001034)."""
    two = world.two.node.broker
    asked = world.one.request(m.InitProducerIdRequest())
    world.members.run_until(lambda: world.one.answer(asked) is not None)
    answer = world.one.answer(asked)
    assert answer is not None
    assert answer[0].error_code == 0
    writer = answer[0].producer_id
    world.members.run_until(lambda: two.producer_ids.may_be_assigned(writer))
    monkeypatch.setattr(world.two, "give_out", lambda *_: None)  # The controller has, above.

    def numbered(topic_id: bytes, sequence: int) -> int:
        batch = batch_of([1], producer=(writer, 0, sequence))
        return world.two.produce(topic_id, batch)

    for topic_id in (world.wide, world.lone):
        assert world.settled(numbered(topic_id, 0)) == 0
        assert world.settled(numbered(topic_id, 5)) == errors.OutOfOrderSequence.code
    world.members.cut.add(CUT)
    assert two.membership.registration.leave(world.two.now)
    assert world.settled(numbered(world.wide, 5)) == NotLeader.code
    assert world.settled(numbered(world.wide, 0)) == 0, "a repetition is one under every leader"
    assert world.settled(numbered(world.lone, 5)) == errors.OutOfOrderSequence.code


_OF_A_LEADER: dict[Api, m.Request] = {
    Api.PRODUCE: m.ProduceRequest(),
    Api.DELETE_RECORDS: m.DeleteRecordsRequest(),
    Api.LIST_OFFSETS: m.ListOffsetsRequest(),
    Api.EPOCH_END_OFFSETS: m.EpochEndOffsetsRequest(),
    Api.DESCRIBE_RANGES: m.DescribeRangesRequest(),
    Api.FETCH: m.FetchRequest(),
}
"""Requests whose entries are about the rows of partitions."""
_OF_COORDINATORS = {
    *(Api.GROUP_HEARTBEAT, Api.COMMIT_OFFSETS, Api.FETCH_OFFSETS, Api.ALTER_GROUP_OFFSETS),
    Api.REPORT_PROGRESS,
}
"""Requests whose entries are about offsets in `__groups`: its leader answers under its lease."""


def test_the_list_of_what_leaders_are_asked_is_whole() -> None:
    named = set()
    for spec in APIS.values():
        parts = [part for part in parts_of(spec.request) if "topic_id" in part.__struct_fields__]
        if parts and not spec.between_brokers:
            named.add(spec.api)
    assert named - _OF_COORDINATORS == set(_OF_A_LEADER)


@pytest.mark.parametrize(
    ("request_type", "entry"),
    [
        (m.DeleteRecordsRequest, m.DeleteRecordsPartition(b"", 0, 1)),
        (m.DeleteRecordsRequest, m.DeleteRecordsPartition(b"", 0, -1)),
        (m.EpochEndOffsetsRequest, m.EpochEndOffsetsPartition(b"", 0, -1, 0)),
        (m.DescribeRangesRequest, m.RangePartition(b"", 0, 0, 1)),
        (m.DescribeRangesRequest, m.RangePartition(b"", 0, EARLIEST, -1)),
        (m.ListOffsetsRequest, m.ListOffsetsPartition(b"", 0, -1, LATEST)),
    ],
)
def test_ranges_are_not_reported_and_no_rows_are_deleted(
    world: World, request_type: Any, entry: Any
) -> None:
    """Rule 16 of docs/replication-rules.md."""
    assert world.settled(world.write(world.wide, 1, REPLICATED)) == 0
    assert world.settled(world.write(world.lone, 1)) == 0
    world.step_down()
    for topic_id, code in ((world.wide, NotLeader.code), (world.lone, 0)):
        entry.topic_id = topic_id
        asked = world.two.request(request_type(partitions=[entry]))
        assert world.settled(asked) == code
    started = world.two.node.broker.replicas[world.wide, 0].state.log_start_offset
    assert started == 0, "nothing is given up"


def test_a_description_has_no_offsets_of_it(world: World) -> None:
    assert world.settled(world.write(world.wide, 1, REPLICATED)) == 0
    assert world.settled(world.write(world.lone, 1)) == 0
    for is_over, ends in ((False, [1, 1]), (True, [-1, 1])):
        if is_over:
            world.step_down()
        asked = world.two.request(m.DescribeTopicsRequest(names=["wide", "lone"]))
        world.members.run_until(lambda: world.two.answer(asked) is not None)  # noqa: B023
        answer = world.two.answer(asked)
        assert answer is not None
        found = {topic.name: topic.partitions[0].log_end_offset for topic in answer[0].topics}
        assert [found["wide"], found["lone"]] == ends


def test_a_produce_that_waits_for_copies_gets_an_unknown_outcome(world: World) -> None:
    world.members.cut.add(CUT)
    asked = world.write(world.wide, 1, REPLICATED)
    reader = world.two.request(world.two.fetch_request(world.wide, 0, max_wait_ms=60_000))
    assert world.code(asked) is None
    world.step_down()
    assert world.code(asked) == NotEnoughReplicasAfterAppend.code
    assert errors.NotEnoughReplicasAfterAppend.retriable
    assert world.two.broker_end(world.wide) == 1, "the row is stored, and may be replicated yet"
    assert world.settled(reader) == NotLeader.code


def test_a_partition_of_one_replica_goes_on(world: World) -> None:
    world.step_down()
    assert world.settled(world.write(world.lone, 1)) == 0
    assert world.two.offset_of(world.lone, LATEST).offset == 1
    assert world.two.fetched(world.lone, 1)[0].error_code == 0


def test_a_broker_that_reaches_the_controller_again_leads_again(world: World) -> None:
    world.step_down()
    world.members.cut.clear()
    two = world.two.node.broker
    world.members.run_until(lambda: not two.leader_lease.is_over)
    world.members.run(1_000)
    leader = world.one.node.broker.metadata.image.topics_by_id[world.wide].partitions[0].leader_id
    at = world.members.by_id[leader]
    asked = at.produce(world.wide, batch_of([1]), durability=REPLICATED)
    world.members.run_until(lambda: at.answer(asked) is not None)
    answer = at.answer(asked)
    assert answer is not None
    assert answer[0].partitions[0].error_code == 0


def test_a_broker_alone_never_steps_down(tmp_path: Path) -> None:
    members = Members(tmp_path)
    alone = members.add(1)
    assert not alone.node.broker.leader_lease.is_over
    members.run(5_000)
    assert not alone.node.broker.leader_lease.is_over
    assert warnings(alone) == 0


def test_a_controller_that_stood_still_does_not_speak_as_a_leader(world: World) -> None:
    """Rule 16: the others may have elected both another controller and another leader."""
    members, one, two = world.members, world.one, world.two
    led = world._create("led", (1, 2))
    members.run(1_000)
    one.quorum.raft.add_voter(two.key, "host-2:9292", one.mono_us, own_endpoint="host-1:9292")
    one.send(Tick())
    members.run(1_000)
    assert len(one.quorum.raft.voters) == 2
    assert one.offset_of(led, LATEST).error_code == 0
    one.set_clock(one.mono_us + 6_000_000)
    assert one.quorum.is_leading, "its timers have not run yet"
    assert one.offset_of(led, LATEST).error_code == NotLeader.code
    members.deliver()  # What came meanwhile, and was sent long ago.
    assert one.offset_of(led, LATEST).error_code == NotLeader.code
    one.send(Tick())
    assert not one.quorum.is_leading
    assert one.offset_of(led, LATEST).error_code == NotLeader.code


def test_metadata_of_a_broker_that_is_cut_off_are_marked_as_behind(world: World) -> None:
    ages_ms = []
    for is_over in (False, True):
        if is_over:
            world.step_down()
        answer, _ = world.two.call(m.MetadataRequest(topics=[]))
        assert answer.is_behind == is_over
        described, _ = world.two.call(DescribeClusterRequest())
        assert described.is_behind == is_over
        ages_ms.append(described.heard_ms)
    assert 0 <= ages_ms[0] < ages_ms[1], "it grows without contact"
    alone, _ = world.one.call(m.MetadataRequest(topics=[]))
    assert not alone.is_behind
    described, _ = world.one.call(DescribeClusterRequest())
    assert (described.is_behind, described.heard_ms) == (False, 0)
