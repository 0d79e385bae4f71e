"""QUORUM at the node: who may send it, whom it means, and who gets its messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from quiverlog.addresses import Address
from quiverlog.core.controller.records import BrokerRecord
from quiverlog.core.raft import messages as r
from quiverlog.errors import DuplicateNodeId, InvalidRequest, WrongCluster, WrongListener, WrongNode
from quiverlog.limits import RAFT_OBSERVERS_MAX
from quiverlog.node.config import NodeConfig
from quiverlog.node.events import ConnectionOpened, RequestReceived
from quiverlog.node.quorum_wire import pack
from quiverlog.node.whereabouts import Whereabouts
from quiverlog.types import Now
from quiverlog.wire import messages as m
from quiverlog.wire.messages import Api
from quiverlog.wire.quorum_messages import QuorumResponse
from tests.support.node import NodeDriver

CLUSTER = "the-cluster"
BETWEEN = 7
"""A connection that came to the listener between brokers."""


def driver(path: Path, **config: object) -> tuple[NodeDriver, list[r.Message]]:
    node = NodeDriver(path, cluster_id=CLUSTER, node_id=2, **config)
    arrived: list[r.Message] = []

    def take(messages: Sequence[r.Message], now: Now) -> None:
        arrived.extend(messages)

    node.node.broker.quorum_inbox._receiver = take
    node.send(ConnectionOpened(BETWEEN, "10.0.0.3:4", "internal"))
    node.call(m.HelloRequest(), connection=BETWEEN)
    return node, arrived


def vote(node_id: int) -> r.Vote:
    return r.Vote(
        source=r.ReplicaKey(1, "a"),
        target=r.ReplicaKey(node_id, "b"),
        term=3,
        last_index=2,
        last_term=1,
    )


def ask(
    node: NodeDriver,
    message: r.Message,
    *,
    cluster: str = CLUSTER,
    connection: int = 1,
    endpoint: str = "",
) -> m.Response:
    (packed,) = pack(cluster, [message], endpoint=endpoint)
    body = bytearray(b"".join(packed.body))
    number = 900_000 + len(node.responses)
    packed.request.correlation_id = number
    node.send(RequestReceived(connection, packed.request, memoryview(body)))
    (found,) = [e.response for e in node.responses if e.correlation_id == number]
    return found


def test_messages_arrive_and_are_answered_at_once(tmp_path: Path) -> None:
    node, arrived = driver(tmp_path)
    entry = r.Entry(1, 3, r.EntryKind.DATA, b"data")
    append = r.Append(
        source=r.ReplicaKey(1, "a"), target=r.ReplicaKey(2, "b"), term=3, prev_index=0,
        prev_term=0, entries=(entry,), commit=0,
    )  # fmt: skip
    for message in (vote(2), append):
        assert ask(node, message).error_code == 0
    assert arrived == [vote(2), append]


@pytest.mark.parametrize("fenced", [False, True])
def test_a_second_broker_under_a_node_id_is_told(tmp_path: Path, *, fenced: bool) -> None:
    """The second one waited for ever: answers went to the other one, and nobody said why."""
    node, arrived = driver(tmp_path)
    listeners = (("default", "10.0.0.3", 9292),)
    other = BrokerRecord(3, bytes(16), "10.0.0.3", 9292, "", listeners, directory_id="disk")
    image = node.node.broker.metadata.image
    image.replay(msgspec.structs.replace(other, fenced=fenced))

    def asked(directory: str, endpoint: str) -> m.Response:
        source = r.ReplicaKey(3, directory)
        return ask(node, msgspec.structs.replace(vote(2), source=source), endpoint=endpoint)

    answer = asked("another", "10.0.0.9:9292")
    assert answer.error_code == (0 if fenced else DuplicateNodeId.code)
    assert fenced or "10.0.0.3:9292" in answer.error_message
    assert len(arrived) == 1, "its messages are taken like all others"
    assert not asked("another", "10.0.0.3:9292").error_code, "it may have lost its disk"
    assert not asked("disk", "10.0.0.9:9292").error_code, "it has moved"


@pytest.mark.parametrize(
    ("node_id", "cluster", "error"), [(2, "other", WrongCluster), (5, CLUSTER, WrongNode)]
)
def test_others_are_refused(
    tmp_path: Path, node_id: int, cluster: str, error: type[Exception]
) -> None:
    node, arrived = driver(tmp_path)
    answer = ask(node, vote(node_id), cluster=cluster)
    assert answer.error_code == error.code  # type: ignore[attr-defined]
    assert not arrived


def apis_of(node: NodeDriver, connection: int) -> set[int]:
    hello, _ = node.call(m.HelloRequest(), connection=connection)
    return {api.api for api in hello.apis}


def test_only_the_listener_between_brokers_serves_it(tmp_path: Path) -> None:
    node, arrived = driver(tmp_path, inter_broker_listener="internal")
    assert Api.QUORUM not in apis_of(node, 1)
    assert ask(node, vote(2)).error_code == WrongListener.code
    assert not arrived
    assert Api.QUORUM in apis_of(node, BETWEEN)
    assert ask(node, vote(2), connection=BETWEEN).error_code == 0
    assert arrived
    assert not node.closed


def test_a_sender_says_where_it_is_and_only_a_voters_own_disk_is_believed(tmp_path: Path) -> None:
    node, arrived = driver(tmp_path)
    whereabouts = node.node.broker.whereabouts
    assert ask(node, vote(2), endpoint="elsewhere:7").error_code == 0
    assert whereabouts.known() == {1: Address("elsewhere", 7)}
    whereabouts.voters_changed({r.ReplicaKey(1, "a"): "old:1", r.ReplicaKey(2, "b"): ""})
    assert whereabouts.known() == {1: Address("elsewhere", 7)}, "the voter itself has said so"
    whereabouts.voters_changed({r.ReplicaKey(1, "other"): "old:1"})
    assert whereabouts.known() == {1: Address("old", 1)}
    assert ask(node, vote(2), endpoint="elsewhere:7").error_code == 0
    assert whereabouts.known() == {1: Address("old", 1)}, "another disk of a voter's node"
    assert len(arrived) == 2


def test_an_endpoint_that_is_none_is_refused(tmp_path: Path) -> None:
    node, arrived = driver(tmp_path)
    assert ask(node, vote(2), endpoint="nowhere").error_code == InvalidRequest.code
    assert not arrived


def test_of_those_who_say_where_they_are_a_bounded_number_is_remembered() -> None:
    told: list[Mapping[int, Address]] = []
    seeds = {1: Address("seed", 1), 2: Address("self", 2)}
    found = Whereabouts(NodeConfig(data_dir="d", node_id=2, controllers=seeds), told.append)
    for node_id in range(10, 10 + RAFT_OBSERVERS_MAX + 5):
        found.heard(r.ReplicaKey(node_id, "a"), f"h:{node_id}")
    assert len(found.known()) == RAFT_OBSERVERS_MAX + 1
    assert found.known()[1] == Address("seed", 1)
    assert 10 not in found.known()
    assert told[-1] == found.known()
    found.brokers_changed([BrokerRecord(1, b"", "clients", 9, "", (("default", "new", 4),))])
    assert told[-1][1] == Address("new", 4)
    found.voters_changed({r.ReplicaKey(1, "a"): "no address"})
    assert told[-1][1] == Address("new", 4)


def test_who_looks_for_the_leader_is_told_where_it_is(tmp_path: Path) -> None:
    node, _ = driver(tmp_path)
    own = node.node.broker.directory.directory_id
    observe = r.Observe(source=r.ReplicaKey(1, "a"), target=r.ReplicaKey(2, own), term=0)
    answer = ask(node, observe, endpoint="10.0.0.1:9292")
    assert isinstance(answer, QuorumResponse)
    assert (answer.leader_id, answer.leader_directory) == (2, own), "it leads itself"
    assert answer.leader_endpoint == str(node.config.endpoint)
    assert answer.directory_id == own
    other = ask(node, vote(2))
    assert isinstance(other, QuorumResponse)
    assert other.leader_id == -1, "nobody looks for one"
