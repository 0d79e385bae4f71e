"""QUORUM at the node: its senders, its target, and which replica gets its messages."""

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
from quiverlog.node.metadata.quorum_wire import pack
from quiverlog.node.runtime.config import NodeConfig
from quiverlog.node.runtime.events import ConnectionOpened, RequestReceived
from quiverlog.node.runtime.peers import SECOND, BrokerAddresses
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
def test_a_second_broker_under_a_node_id_logs_the_refusal(tmp_path: Path, *, fenced: bool) -> None:
    """The second one waited for ever: answers went to the other one, and no log had a reason."""
    node, arrived = driver(tmp_path)
    listeners = (("default", "10.0.0.3", 9292),)
    other = BrokerRecord(3, bytes(16), "10.0.0.3", 9292, "", listeners, directory_id="disk")
    broker = node.node.broker
    broker.metadata.image.replay(msgspec.structs.replace(other, fenced=fenced))
    broker.broker_addresses.brokers_changed(broker.metadata.image.brokers.values())

    def asked(directory: str, endpoint: str) -> m.Response:
        source = r.ReplicaKey(3, directory)
        return ask(node, msgspec.structs.replace(vote(2), source=source), endpoint=endpoint)

    answer = asked("another", "10.0.0.9:9292")
    assert answer.error_code == (0 if fenced else DuplicateNodeId.code)
    assert fenced or "10.0.0.3:9292" in answer.error_message
    assert len(arrived) == 1, "its messages are taken like all others"
    assert broker.broker_addresses.known()[3] == Address("10.0.0.9" if fenced else "10.0.0.3", 9292)
    node.advance(2_000)
    assert not asked("another", "10.0.0.3:9292").error_code, "it may have lost its disk"
    assert broker.broker_addresses.known()[3] == Address("10.0.0.3", 9292)


def test_a_second_process_on_a_copy_of_a_disk_neither_votes_nor_is_sent_anything(
    tmp_path: Path,
) -> None:
    """Messages went to the address that had spoken last, so to each of the two in turn."""
    node, arrived = driver(tmp_path)
    broker = node.node.broker
    own = r.ReplicaKey(1, "a")

    def speaks(endpoint: str) -> m.Response:
        return ask(node, msgspec.structs.replace(vote(2), source=own), endpoint=endpoint)

    for _ in range(3):
        assert not speaks("first:1").error_code
        node.advance(1_999)
        refused = speaks("copy:2")
        assert refused.error_code == DuplicateNodeId.code
        assert "node 1 runs at first:1, with the same data directory" in refused.error_message
        assert broker.broker_addresses.known() == {1: Address("first", 1)}
    assert len(arrived) == 3
    (line,) = [one for one in node.lines if one.event == SECOND]
    assert (line.fields["at"], line.fields["second_at"]) == ("first:1", "copy:2")
    node.advance(1)
    assert not speaks("copy:2").error_code, "the first one was silent for a session"
    assert speaks("first:1").error_code == DuplicateNodeId.code, "and is the second one now"
    assert broker.broker_addresses.known() == {1: Address("copy", 2)}


SESSION_US = 2_000_000
FIRST, COPY, NEW = Address("first", 1), Address("copy", 2), Address("new", 3)


def at(us: int) -> Now:
    return Now(us, us)


def one_registered(*, fenced: bool = False, moved: bool = False) -> BrokerAddresses:
    """Node 1 on disk "a" is registered at FIRST."""
    config = NodeConfig(
        data_dir="d", node_id=2, controllers={}, moved_controllers={1: NEW} if moved else {}
    )
    found = BrokerAddresses(config, lambda _: None, lambda *_, **__: None)
    listeners = (("default", *FIRST),)
    record = BrokerRecord(1, bytes(16), *FIRST, "", listeners, directory_id="a", fenced=fenced)
    found.brokers_changed([record])
    return found


def test_where_a_controller_fences_the_silent_a_live_registration_is_the_first() -> None:
    found, own = one_registered(), r.ReplicaKey(1, "a")
    assert found.record_sender(own, str(COPY), at(0), is_led=True) == FIRST
    assert found.second_at(1, at(0)) == str(COPY)
    assert found.record_sender(own, str(COPY), at(SESSION_US - 1), is_led=False) == FIRST
    assert found.record_sender(own, str(COPY), at(SESSION_US), is_led=False) is None, (
        "no controller fences it"
    )
    assert found.known() == {1: COPY}
    assert found.record_sender(own, str(FIRST), at(SESSION_US + 1), is_led=True) is None, (
        "it is its place"
    )
    assert found.record_sender(own, str(COPY), at(SESSION_US + 2), is_led=True) == FIRST
    assert found.known() == {1: FIRST}
    assert one_registered(fenced=True).record_sender(own, str(COPY), at(0), is_led=True) is None
    assert one_registered(moved=True).record_sender(own, str(NEW), at(0), is_led=True) is None


def test_the_address_of_a_silent_replica_yields_to_the_registration_after_a_session() -> None:
    """Of two processes the one whose message came first while there was no leader would be asked
    for rows for ever: no follower sends another one anything."""
    found, own, leader = one_registered(), r.ReplicaKey(1, "a"), r.ReplicaKey(3, "c")
    found.record_sender(own, str(COPY), at(0), is_led=False)
    found.record_sender(leader, "leader:9", at(SESSION_US - 1), is_led=True)
    assert found.known()[1] == COPY
    found.record_sender(leader, "leader:9", at(SESSION_US), is_led=True)
    assert found.known()[1] == FIRST


def test_replicas_that_have_all_moved_find_each_other() -> None:
    """In the metadata of the leader that they elect, each lives where it was before."""
    found, own = one_registered(), r.ReplicaKey(1, "a")
    for us in range(0, 3 * SESSION_US, 100_000):
        assert found.record_sender(own, str(NEW), at(us), is_led=us > 0) is None
        assert found.known() == {1: NEW}


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


def test_a_sender_names_its_address_and_only_a_voters_own_disk_is_believed(tmp_path: Path) -> None:
    node, arrived = driver(tmp_path)
    broker_addresses = node.node.broker.broker_addresses
    assert ask(node, vote(2), endpoint="elsewhere:7").error_code == 0
    assert broker_addresses.known() == {1: Address("elsewhere", 7)}
    broker_addresses.voters_changed({r.ReplicaKey(1, "a"): "old:1", r.ReplicaKey(2, "b"): ""})
    assert broker_addresses.known() == {1: Address("elsewhere", 7)}, "the voter itself sent it"
    broker_addresses.voters_changed({r.ReplicaKey(1, "other"): "old:1"})
    assert broker_addresses.known() == {1: Address("old", 1)}
    assert ask(node, vote(2), endpoint="elsewhere:7").error_code == 0
    assert broker_addresses.known() == {1: Address("old", 1)}, "another disk of a voter's node"
    assert len(arrived) == 2


def test_an_endpoint_that_is_none_is_refused(tmp_path: Path) -> None:
    node, arrived = driver(tmp_path)
    assert ask(node, vote(2), endpoint="nowhere").error_code == InvalidRequest.code
    assert not arrived


def test_a_bounded_number_of_sent_addresses_is_remembered() -> None:
    published: list[Mapping[int, Address]] = []
    seeds = {1: Address("seed", 1), 2: Address("self", 2)}
    config = NodeConfig(data_dir="d", node_id=2, controllers=seeds)
    found = BrokerAddresses(config, published.append, lambda *_, **__: None)
    for node_id in range(10, 10 + RAFT_OBSERVERS_MAX + 5):
        found.record_sender(r.ReplicaKey(node_id, "a"), f"h:{node_id}", at(0), is_led=False)
    assert len(found.known()) == RAFT_OBSERVERS_MAX + 1
    assert found.known()[1] == Address("seed", 1)
    assert 10 not in found.known()
    assert published[-1] == found.known()
    found.brokers_changed([BrokerRecord(1, b"", "clients", 9, "", (("default", "new", 4),))])
    assert published[-1][1] == Address("new", 4)
    found.voters_changed({r.ReplicaKey(1, "a"): "no address"})
    assert published[-1][1] == Address("new", 4)


def test_a_replica_that_looks_for_the_leader_gets_its_address(tmp_path: Path) -> None:
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
    assert other.leader_id == -1, "no replica looks for one"
