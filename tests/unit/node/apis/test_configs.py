"""Configuration that is set while brokers run, over whole nodes and the real bytes."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import pytest

from quiverlog.core.controller.broker_configs import LEAST
from quiverlog.core.controller.image import Image
from quiverlog.core.controller.records import (
    BrokerConfigRecord,
    Record,
    decode_entry,
    encode_entry,
)
from quiverlog.core.raft.messages import SnapshotMeta
from quiverlog.errors import (
    ConfigNeedsRestart,
    InvalidConfig,
    NotController,
    QuiverlogError,
    UnknownBroker,
    UnknownConfig,
)
from quiverlog.limits import LEADER_BALANCE_MOVES_MAX
from quiverlog.node.runtime.admission import Phase
from quiverlog.node.runtime.config import Given
from quiverlog.node.runtime.effects import ConfigChanged, Effect
from quiverlog.node.runtime.events import ConfigReloaded, Tick
from quiverlog.storage.metadata.quorum_jobs import Snapshot
from quiverlog.wire import messages as m
from quiverlog.wire.config_messages import (
    WHOLE_CLUSTER,
    AlterConfigsRequest,
    AlterConfigsResponse,
    BrokerConfigEntry,
    ConfigChange,
    ConfigSource,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
)
from tests.support.members import Member, Members

RATE = "partition.move.bytes.per.second"
LEVEL = "log.level"
IDLE = "connections.idle.ms"
RETENTION = "topic.defaults.retention.ms"

A = TypeVar("A", bound=m.Response)


class World:
    """Three brokers; 1 is the controller, 2 was given a rate by its file."""

    def __init__(self, root: Path) -> None:
        self.members = members = Members(root)
        self.one = members.add(1)
        given = {RATE: Given("500", ConfigSource.FILE), "node.id": Given("2", ConfigSource.FLAG)}
        members.add(2, seeds=(1,), given=given, move_bytes_per_s=500)
        members.add(3, seeds=(1,))
        members.run_until(lambda: len(self.one.node.broker.metadata.image.live_brokers()) == 3)
        for member in members.by_id.values():
            member.call(m.HelloRequest())

    def ask(self, request: m.Request, answer: type[A], by: int = 1) -> A:
        member = self.members.by_id[by]
        asked = member.request(request)
        self.members.run_until(lambda: member.answer(asked) is not None)
        found = member.answer(asked)
        assert found is not None
        assert isinstance(found[0], answer)
        return found[0]

    def alter(self, *changes: tuple[str, str | None], node_id: int = WHOLE_CLUSTER) -> int:
        """Return the error code; when it is 0, all brokers have applied the change."""
        wanted = [ConfigChange(*one) for one in changes]
        answer = self.ask(
            AlterConfigsRequest(node_id=node_id, changes=wanted), AlterConfigsResponse
        )
        if not answer.error_code:
            version = answer.metadata_version
            self.members.run_until(lambda: all(one.version >= version for one in self.members.up))
        return answer.error_code

    def entry(self, by: int, key: str) -> BrokerConfigEntry:
        answer = self.ask(DescribeConfigsRequest(keys=[key]), DescribeConfigsResponse, by)
        assert (answer.error_code, answer.node_id) == (0, by)
        (one,) = answer.configs
        return one

    def values(self, key: str) -> list[tuple[str, ConfigSource]]:
        found = [self.entry(by, key) for by in self.members.by_id]
        return [(one.value, ConfigSource(one.source)) for one in found]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def rate_of(member: Member) -> int:
    return member.node.broker.replication._quota._bytes_per_s


def test_what_is_set_wins_over_what_was_given_until_it_is_unset(world: World) -> None:
    given = [("0", ConfigSource.DEFAULT), ("500", ConfigSource.FILE), ("0", ConfigSource.DEFAULT)]
    assert world.values(RATE) == given
    assert world.alter((RATE, "1000")) == 0
    assert world.values(RATE) == [("1000", ConfigSource.CLUSTER)] * 3
    assert world.alter((RATE, "7"), node_id=3) == 0
    assert world.values(RATE)[2] == ("7", ConfigSource.BROKER)
    assert [rate_of(one) for one in world.members.by_id.values()] == [1000, 1000, 7]
    entry = world.entry(3, RATE)
    assert (entry.default, entry.given, entry.in_cluster, entry.in_broker) == (
        "0",
        None,
        "1000",
        "7",
    )
    assert entry.changes_live
    assert world.alter((RATE, None)) == 0
    assert world.values(RATE) == [*given[:2], ("7", ConfigSource.BROKER)]
    assert world.alter((RATE, None), node_id=3) == 0
    assert world.values(RATE) == given
    assert [rate_of(one) for one in world.members.by_id.values()] == [0, 500, 0]


def test_the_server_gets_all_live_keys_and_only_when_one_changed(world: World) -> None:
    three = world.members.by_id[3]
    changes: list[ConfigChanged] = []
    perform = three._perform

    def listen(effects: list[Effect]) -> list[Effect]:
        changes.extend(one for one in effects if isinstance(one, ConfigChanged))
        return perform(effects)

    three._perform = listen  # type: ignore[method-assign]
    assert world.alter((LEVEL, "debug"), (IDLE, "5000")) == 0
    (changed,) = changes
    assert (changed.values[LEVEL], changed.values[IDLE]) == ("debug", "5000")
    assert "node.id" not in changed.values
    version = world.one.version
    assert world.alter((LEVEL, "debug"), (IDLE, "5000")) == 0
    assert world.one.version == version, "nothing new is decided where nothing is new"
    assert world.alter((LEVEL, "info"), node_id=2) == 0
    assert len(changes) == 1, "another broker's"


REFUSED: tuple[tuple[list[tuple[str, str | None]], int, type[QuiverlogError]], ...] = (
    ([("log.leve", "debug")], WHOLE_CLUSTER, UnknownConfig),
    ([("log.leve", None)], WHOLE_CLUSTER, UnknownConfig),
    ([("", "1")], WHOLE_CLUSTER, UnknownConfig),
    ([("node.id", "4")], WHOLE_CLUSTER, ConfigNeedsRestart),
    ([("node.id", None)], WHOLE_CLUSTER, ConfigNeedsRestart),
    ([("super.users", "eve")], WHOLE_CLUSTER, InvalidConfig),
    ([("audit.topics", "")], WHOLE_CLUSTER, InvalidConfig),
    ([("topic.defaults.retention.m", "4000")], WHOLE_CLUSTER, UnknownConfig),
    ([("topic.defaults.", "4000")], WHOLE_CLUSTER, UnknownConfig),
    ([("topic.defaults.cleanup.policy", "delete")], WHOLE_CLUSTER, UnknownConfig),
    ([(RETENTION, "4")], WHOLE_CLUSTER, InvalidConfig),
    ([(RETENTION, "long")], WHOLE_CLUSTER, InvalidConfig),
    ([("topic.defaults.durability", "replicated")], WHOLE_CLUSTER, InvalidConfig),
    ([(RETENTION, "4000")], 2, InvalidConfig),
    ([(RETENTION, None)], 2, InvalidConfig),
    ([(RATE, "-1")], WHOLE_CLUSTER, InvalidConfig),
    ([(RATE, str(2**50 + 1))], WHOLE_CLUSTER, InvalidConfig),
    ([(RATE, "")], WHOLE_CLUSTER, InvalidConfig),
    ([(RATE, "9" * 100_000)], WHOLE_CLUSTER, InvalidConfig),
    ([(LEVEL, "loud")], WHOLE_CLUSTER, InvalidConfig),
    ([(RATE, "5"), (RATE, "6")], WHOLE_CLUSTER, InvalidConfig),
    ([(RATE, "5"), (LEVEL, "loud")], WHOLE_CLUSTER, InvalidConfig),
    ([(RATE, "5")], 9, UnknownBroker),
    ([(RATE, "5")], -2, UnknownBroker),
)


def test_what_cannot_be_is_refused_whole(world: World) -> None:
    version = world.one.version
    for changes, node_id, error in REFUSED:
        assert world.alter(*changes, node_id=node_id) == error.code, (changes, node_id)
    assert world.one.version == version
    assert world.values(RATE)[0] == ("0", ConfigSource.DEFAULT)


def test_values_at_their_bounds_are_taken_and_kept_as_the_table_writes_them(world: World) -> None:
    for text, stored in (("0", "0"), (str(2**50), str(2**50)), (" 1_000 ", "1000")):
        assert world.alter((RATE, "3")) == 0
        assert world.alter((RATE, text)) == 0
        assert world.values(RATE) == [(stored, ConfigSource.CLUSTER)] * 3


def test_only_the_controller_changes_configs_and_each_broker_reports_its_own(world: World) -> None:
    refused = world.ask(
        AlterConfigsRequest(changes=[ConfigChange(RATE, "1")]), AlterConfigsResponse, 2
    )
    assert refused.error_code == NotController.code
    assert refused.controller is not None
    assert refused.controller.node_id == 1
    whole = world.ask(DescribeConfigsRequest(), DescribeConfigsResponse, 2)
    found = {one.key: one for one in whole.configs}
    assert (found["node.id"].value, found["node.id"].source) == ("2", ConfigSource.FLAG)
    assert not found["node.id"].changes_live
    unknown = world.ask(DescribeConfigsRequest(keys=["x"]), DescribeConfigsResponse, 2)
    assert unknown.error_code == UnknownConfig.code


def test_a_broker_that_is_down_follows_when_it_is_back(world: World) -> None:
    world.members.down.add(3)
    version = world.ask(
        AlterConfigsRequest(changes=[ConfigChange(RATE, "77")]), AlterConfigsResponse
    ).metadata_version
    three = world.members.by_id[3]
    assert rate_of(three) == 0
    world.members.down.clear()
    world.members.run_until(lambda: three.version >= version)
    assert rate_of(three) == 77


def test_a_start_takes_over_what_is_set(world: World) -> None:
    assert world.alter((RATE, "9"), node_id=1) == 0
    assert world.alter((LEVEL, "debug")) == 0
    world.one.restart()
    world.one.call(m.HelloRequest())
    assert rate_of(world.one) == 9
    world.members.run_until(lambda: world.entry(1, LEVEL).value == "debug")


def test_the_file_counts_again_when_it_is_read_again_unless_something_is_set(world: World) -> None:
    two = world.members.by_id[2]
    two.send(ConfigReloaded({RATE: Given("600", ConfigSource.FILE)}))
    assert rate_of(two) == 600
    assert world.entry(2, "node.id").value == "2", "what needs a restart stays as it was given"
    assert world.alter((RATE, "5")) == 0
    two.send(ConfigReloaded({RATE: Given("700", ConfigSource.FILE)}))
    assert rate_of(two) == 5
    assert world.entry(2, RATE).given == "700"
    assert world.alter((RATE, None)) == 0
    assert rate_of(two) == 700
    two.send(ConfigReloaded({}))
    assert rate_of(two) == 0


def test_a_broker_that_joins_while_it_is_decided_has_it_before_it_serves(tmp_path: Path) -> None:
    world = World(tmp_path)
    four = world.members.add(4, seeds=(1,))
    request = AlterConfigsRequest(changes=[ConfigChange(RATE, "44")])
    asked = world.one.request(request)
    world.members.run_until(lambda: four.phase is Phase.RUNNING)
    assert world.one.answer(asked) is not None
    assert rate_of(four) == 44


def test_rounds_of_leaders_follow_what_is_set(world: World) -> None:
    elections = world.one.node.broker.elections
    assert world.alter(("leader.balance.period.ms", "5000"), ("leader.balance.moves.max", "7")) == 0
    assert (elections._period_us, elections._moves_max) == (5_000_000, 7)
    assert world.alter(("leader.balance.period.ms", "0"), ("leader.balance.moves.max", None)) == 0
    assert (elections._period_us, elections._due_us) == (0, None)
    assert elections._moves_max == LEADER_BALANCE_MOVES_MAX


def test_what_another_version_has_decided_is_as_if_it_was_never_set(world: World) -> None:
    strange: list[Record] = [
        BrokerConfigRecord(-1, "a.key.of.tomorrow", "1"),
        BrokerConfigRecord(-1, "node.id", "9"),
        BrokerConfigRecord(-1, RATE, "as fast as a horse"),
        BrokerConfigRecord(2, LEVEL, "debug"),
    ]
    outcomes: list[object] = []
    world.one.node.broker.metadata.propose(
        strange, world.one.now, lambda result, error, _now: outcomes.append(error or result)
    )
    world.one.send(Tick())
    world.members.run_until(lambda: bool(outcomes))
    world.members.run_until(lambda: world.entry(2, LEVEL).value == "debug")
    assert world.values(RATE)[0] == ("0", ConfigSource.DEFAULT)
    assert world.entry(2, "node.id").value == "2"
    assert world.alter((RATE, "3")) == 0, "it can be set to something that is taken"


def test_many_alterations_leave_one_value() -> None:
    """The image, and so a snapshot, grows with the keys that are set, not with all changes."""
    image = Image({})
    for number in range(10_000):
        image.replay_entry([BrokerConfigRecord(-1, RATE, str(number))])
    records = image.snapshot_records()
    assert [r for r in records if isinstance(r, BrokerConfigRecord)] == [
        BrokerConfigRecord(-1, RATE, "9999")
    ]
    image.replay_entry([BrokerConfigRecord(-1, RATE, None), BrokerConfigRecord(7, RATE, None)])
    assert image.broker_configs == {}


def test_a_snapshot_has_the_same_configs_without_those_unset_meanwhile(world: World) -> None:
    """A broker that was away until it gets a snapshot, which lacks a key that was unset."""
    assert world.alter((RATE, "5"), (LEVEL, "debug")) == 0
    three = world.members.by_id[3]
    three.send(ConfigReloaded({RETENTION: Given("8000", ConfigSource.FILE)}))
    image = Image({})
    gone = [*world.one.node.broker.metadata.image.snapshot_records()]
    kept = [r for r in gone if not (isinstance(r, BrokerConfigRecord) and r.key == RATE)]
    assert len(kept) == len(gone) - 1
    image.replay_entry(decode_entry(encode_entry(kept)), version=three.version)
    assert image.broker_configs == {-1: {LEVEL: "debug"}}
    meta = SnapshotMeta(three.version, 1, {})
    three.node.broker.metadata.restore(Snapshot(meta, encode_entry(kept)), three.now)
    assert rate_of(three) == 0
    assert three.node.broker.live_config._values[LEVEL].text == "debug"
    assert three.node.broker.metadata.image.defaults == {"retention.ms": "8000"}


def test_no_config_shuts_brokers_or_clients_out(world: World) -> None:
    """Brokers connect to each other as clients do, and so does the operator that would undo it."""
    for key, least in LEAST.items():
        assert world.alter((key, str(least - 1))) == InvalidConfig.code
        assert world.alter((key, str(least))) == 0
