"""Registrations at the node: the controller's side, as other brokers see it, and a broker alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace as Namespace
from typing import Any, cast

import msgspec
import pytest

from quiverlog.addresses import Address
from quiverlog.core.raft.messages import ReplicaKey
from quiverlog.errors import (
    CorruptFrame,
    DuplicateNodeId,
    EarlierDiskState,
    InvalidRequest,
    NotController,
    QuiverlogError,
    StaleBrokerEpoch,
    WrongCluster,
    WrongListener,
)
from quiverlog.limits import FEATURE_LEVEL_MAX
from quiverlog.node.controller.registrar import Registrar
from quiverlog.node.metadata.quorum import Quorum
from quiverlog.node.runtime.events import ConnectionOpened
from quiverlog.node.runtime.peers import SECOND
from quiverlog.types import Now
from quiverlog.wire import broker_messages as b
from quiverlog.wire import cluster_messages as c
from quiverlog.wire import frames
from quiverlog.wire import messages as m
from quiverlog.wire.messages import Request
from tests.support.node import NodeDriver

CLUSTER = "the-cluster"
BETWEEN = 7
"""A connection that came to the listener between brokers."""
ANSWERED_US = 3_000_000
"""When another controller has answered last."""
ENDPOINTS = [b.RegisteredListener("default", "two.example", 9292)]


@pytest.fixture
def node(tmp_path: Path) -> NodeDriver:
    """A controller that is its quorum, where other brokers are to register."""
    listeners = {"internal": Address("127.0.0.1", 9293)}
    driver = NodeDriver(
        tmp_path, cluster_id=CLUSTER, listeners=listeners, inter_broker_listener="internal"
    )
    driver.send(ConnectionOpened(BETWEEN, "10.0.0.3:4", "internal"))
    driver.call(m.HelloRequest(), connection=BETWEEN)
    return driver


def ask(node: NodeDriver, request: Request, *, connection: int = BETWEEN) -> Any:
    response, _ = node.call(request, connection=connection)
    return response


def registering(node_id: int = 2, life: int = 1, **changes: Any) -> b.RegisterBrokerRequest:
    fields: dict[str, Any] = {
        "cluster_id": CLUSTER,
        "node_id": node_id,
        "incarnation": life.to_bytes(16, "big"),
        "directory_id": f"disk {node_id}",
        "host": "two.example",
        "port": 9292,
        "rack": "r2",
        "listeners": ENDPOINTS,
        "feature_level_max": FEATURE_LEVEL_MAX,
    }
    return b.RegisterBrokerRequest(**{**fields, **changes})


def beat(epoch: int, node_id: int = 2, **changes: Any) -> b.BrokerHeartbeatRequest:
    fields: dict[str, Any] = {
        "cluster_id": CLUSTER,
        "node_id": node_id,
        "broker_epoch": epoch,
        "metadata_version": 10**9,
    }
    return b.BrokerHeartbeatRequest(**{**fields, **changes})


def live(node: NodeDriver) -> list[int]:
    return [one.node_id for one in node.node.broker.metadata.image.live_brokers()]


def unfenced(node: NodeDriver, node_id: int = 2) -> int:
    epoch: int = ask(node, registering(node_id)).broker_epoch
    assert ask(node, beat(epoch, node_id)).is_fenced
    node.run_until_idle()
    assert not ask(node, beat(epoch, node_id)).is_fenced
    return epoch


def test_a_broker_registers_and_is_unfenced_when_it_has_the_metadata(node: NodeDriver) -> None:
    """Rule 14 of docs/replication-rules.md."""
    answer = ask(node, registering())
    image = node.node.broker.metadata.image
    assert answer.error_code == 0
    assert answer.broker_epoch == image.version == image.brokers[2].broker_epoch
    assert (image.brokers[2].rack, image.brokers[2].listeners) == (
        "r2", (("default", "two.example", 9292),)
    )  # fmt: skip
    assert live(node) == [0]
    behind = ask(node, beat(answer.broker_epoch, metadata_version=answer.broker_epoch - 1))
    assert (behind.is_caught_up, behind.is_fenced) == (False, True)
    node.run_until_idle()
    assert live(node) == [0]
    assert ask(node, beat(answer.broker_epoch)).is_caught_up
    node.run_until_idle()
    assert live(node) == [0, 2]
    (_, two) = ask(node, m.MetadataRequest(topics=[]), connection=1).brokers
    assert (two.node_id, two.host, two.port, two.rack) == (2, "two.example", 9292, "r2")


def test_a_repeated_registration_gets_the_same_epoch(node: NodeDriver) -> None:
    first = ask(node, registering())
    version = node.node.broker.metadata.image.version
    assert ask(node, registering()).broker_epoch == first.broker_epoch
    assert node.node.broker.metadata.image.version == version
    assert ask(node, registering(life=2)).broker_epoch > first.broker_epoch


def test_silence_fences_and_a_heartbeat_brings_back(node: NodeDriver) -> None:
    """Rule 14 of docs/replication-rules.md."""
    epoch = unfenced(node)
    node.advance(1_900)
    assert live(node) == [0, 2]
    node.advance(100)
    node.advance(100)
    node.run_until_idle()
    assert live(node) == [0]
    assert ask(node, beat(epoch)).is_fenced
    node.run_until_idle()
    assert live(node) == [0, 2]


def test_a_fenced_broker_comes_back_when_it_has_applied_its_fencing(node: NodeDriver) -> None:
    """Seen in a simulated cluster: a leader that had slept through its fencing reported where rows
    end,
    because its heartbeats were answered and the metadata came later."""
    epoch = unfenced(node)
    before = node.node.broker.metadata.image.version
    for _ in range(2):
        node.advance(1_100)
    node.advance(100)
    node.run_until_idle()
    assert live(node) == [0]
    for _ in range(2):
        behind = ask(node, beat(epoch, metadata_version=before))
        assert (behind.is_caught_up, behind.is_fenced) == (False, True)
        node.run_until_idle()
        assert live(node) == [0]
    fenced = node.node.broker.metadata.image.version
    assert ask(node, beat(epoch, metadata_version=fenced)).is_caught_up
    node.run_until_idle()
    assert live(node) == [0, 2]


def test_the_broker_that_answers_is_named_where_all_are_fenced(node: NodeDriver) -> None:
    """Seen with real brokers that were all killed and back: clients took no broker for nonsense."""
    image = node.node.broker.metadata.image
    for node_id, record in list(image.brokers.items()):
        image.brokers[node_id] = msgspec.structs.replace(record, fenced=True)
    answer, _ = node.call(m.MetadataRequest(topics=[]))
    config = node.node.broker.config
    assert [(one.node_id, one.host, one.port)
            for one in answer.brokers] == [
        (config.node_id, config.advertised_host, config.advertised_port)
    ]  # fmt: skip
    image.brokers.clear()
    assert node.call(m.MetadataRequest(topics=[]))[0].brokers == answer.brokers


def test_heartbeats_keep_the_session(node: NodeDriver) -> None:
    epoch = unfenced(node)
    for _ in range(20):
        node.advance(400)
        assert not ask(node, beat(epoch)).is_fenced
    assert live(node) == [0, 2]


def test_a_stop_is_allowed_when_all_brokers_have_applied_it(node: NodeDriver) -> None:
    """Rule 15 of docs/replication-rules.md."""
    two, three = unfenced(node), unfenced(node, 3)
    assert not ask(node, beat(two, wants_to_stop=True)).may_stop
    node.run_until_idle()
    known = node.node.broker.metadata.image.version
    assert node.node.broker.metadata.image.brokers[2].in_shutdown
    ask(node, beat(three, 3, metadata_version=known - 1))
    assert not ask(node, beat(two, wants_to_stop=True)).may_stop
    ask(node, beat(three, 3, metadata_version=known))
    # A stopping broker may still lead by its older metadata: no other would have its rows.
    stopping = beat(two, wants_to_stop=True, metadata_version=known - 1)
    assert not ask(node, stopping).may_stop
    node.run_until_idle()
    assert live(node) == [0, 2, 3]
    assert ask(node, beat(two, wants_to_stop=True, metadata_version=known)).may_stop
    node.run_until_idle()
    assert live(node) == [0, 3]


REFUSED: dict[str, tuple[Request, type[QuiverlogError]]] = {
    "another cluster registers": (registering(cluster_id="other"), WrongCluster),
    "another cluster's heartbeat": (
        beat(1, cluster_id="other"), WrongCluster,
    ),
    "a heartbeat of an unknown broker": (beat(5, 77), StaleBrokerEpoch),
    "a negative epoch": (beat(-1), StaleBrokerEpoch),
    "a huge epoch": (beat(2**63 - 1), StaleBrokerEpoch),
    "the controller's node id": (registering(0), DuplicateNodeId),
    "no incarnation": (registering(incarnation=b""), InvalidRequest),
    "a short incarnation": (registering(incarnation=b"x" * 15), InvalidRequest),
    "no directory": (registering(directory_id=""), InvalidRequest),
    "no host": (registering(host=""), InvalidRequest),
    "no listener": (registering(listeners=[]), InvalidRequest),
    "no default listener": (
        registering(listeners=[b.RegisteredListener("x", "h", 1)]), InvalidRequest,
    ),
    "a listener twice": (registering(listeners=ENDPOINTS * 2), InvalidRequest),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_sense_is_refused(node: NodeDriver, name: str) -> None:
    unfenced(node)
    before = dict(node.node.broker.metadata.image.brokers)
    request, error = REFUSED[name]
    assert ask(node, request).error_code == error.code
    assert node.node.broker.metadata.image.brokers == before


def test_names_have_bounds(node: NodeDriver) -> None:
    assert ask(node, registering(rack="r" * 255, host="h" * 255)).error_code == 0
    listeners = [b.RegisteredListener(f"l{n}", "h", 1) for n in range(15)]
    assert ask(node, registering(3, listeners=ENDPOINTS + listeners)).error_code == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"node_id": -1},
        {"node_id": 2**31},
        {"rack": "r" * 256},
        {"host": "h" * 256},
        {"port": 65_536},
        {"port": -1},
        {"listeners": ENDPOINTS * 17},
        {"listeners": ENDPOINTS * 10_000},
        {"incarnation": b"x" * 17},
        {"directory_id": "d" * 65},
        {"listeners": [b.RegisteredListener("n" * 32, "h", 1)]},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_is_too_large_is_no_frame_of_ours(changes: dict[str, Any]) -> None:
    data = frames.encode(registering(**changes), 1)
    with pytest.raises(CorruptFrame):
        frames.decode_request(memoryview(data)[8:])


def test_only_the_listener_between_brokers_serves_them(node: NodeDriver) -> None:
    assert ask(node, registering(), connection=1).error_code == WrongListener.code
    assert ask(node, beat(1), connection=1).error_code == WrongListener.code


def test_another_disk_under_a_live_node_id_waits_for_the_end_of_its_session(
    node: NodeDriver,
) -> None:
    epoch = unfenced(node)
    other = registering(life=9, directory_id="new disk")
    assert ask(node, other).error_code == DuplicateNodeId.code
    node.advance(2_000)
    node.advance(100)
    assert ask(node, other).error_code == 0
    assert ask(node, beat(epoch)).error_code == StaleBrokerEpoch.code


def moved(life: int) -> b.RegisterBrokerRequest:
    elsewhere = [b.RegisteredListener("default", "elsewhere", 9292)]
    return registering(life=life, host="elsewhere", listeners=elsewhere)


def test_a_second_process_on_a_copy_of_a_disk_is_refused_while_the_first_one_lives(
    node: NodeDriver,
) -> None:
    """The copy took the place, and the two replaced each other for as long as both lived."""
    epoch = unfenced(node)
    refused = ask(node, moved(9))
    assert refused.error_code == DuplicateNodeId.code
    assert "with the same data directory, at two.example:9292" in refused.error_message
    (line,) = [one for one in node.lines if one.event == SECOND]
    assert (line.fields["at"], line.fields["second_at"]) == ("two.example:9292", "elsewhere:9292")
    assert ask(node, beat(epoch)).second_at == "elsewhere:9292", "the first one gets it"
    node.advance(1_999)
    assert ask(node, moved(9)).error_code == DuplicateNodeId.code
    node.advance(1)
    assert ask(node, moved(9)).error_code == 0, "the session of the first one is over"
    assert ask(node, beat(epoch)).error_code == StaleBrokerEpoch.code


def test_a_life_that_has_ended_keeps_out_no_process_at_another_address(node: NodeDriver) -> None:
    epoch = unfenced(node)
    assert ask(node, registering(life=9)).error_code == 0, "it has the address of the one before"
    node.run_until_idle()
    epoch = node.node.broker.metadata.image.brokers[2].broker_epoch
    ask(node, beat(epoch))
    for _ in range(2):
        node.run_until_idle()
        ask(node, beat(epoch, wants_to_stop=True))
    node.run_until_idle()
    assert node.node.broker.metadata.image.brokers[2].fenced, "it has stopped, in order"
    assert ask(node, moved(10)).error_code == 0


def test_a_broker_reports_the_second_process_that_it_refused_to_the_controller(
    node: NodeDriver,
) -> None:
    """The controller does not meet a copy of its own disk: that one speaks with the others."""
    epoch = unfenced(node)
    ask(node, beat(epoch, second_node_id=0, second_at="copy:9"))
    (described, _) = node.call(c.DescribeClusterRequest())
    assert [one.second_at for one in described.brokers] == ["copy:9", ""]
    ask(node, beat(epoch, second_node_id=77, second_at="copy:9"))
    assert [one.event for one in node.lines].count(SECOND) == 1
    assert ask(node, beat(epoch, second_node_id=0, second_at="x")).error_code == InvalidRequest.code
    node.advance(10_000)
    (described, _) = node.call(c.DescribeClusterRequest())
    assert [one.second_at for one in described.brokers] == ["", ""], "it is tried no more"


def test_a_disk_that_lacks_what_its_voter_has_acknowledged_does_not_take_the_node_id(
    node: NodeDriver,
) -> None:
    """The earlier disk got no decisions, served nothing, and kept the newer one out."""
    epoch = unfenced(node)
    key = ReplicaKey(2, registering().directory_id)
    registrar = deciding(node, lost_entries={key: 7})
    late = Now(1 << 40, 1 << 40)
    with pytest.raises(EarlierDiskState, match="entry 7"):
        registrar.register(registering(life=9), print, late)
    assert not registrar.has_session(2, late), "it has no session"
    assert node.node.broker.metadata.image.brokers[2].broker_epoch == epoch


def test_a_broker_alone_sends_nothing_and_has_no_timer(tmp_path: Path) -> None:
    alone = NodeDriver(tmp_path)
    membership = alone.node.broker.membership
    alone.advance(10)
    assert membership.next_us() is None
    assert membership.registration.may_lead(alone.now)
    image = alone.node.broker.metadata.image
    assert image.brokers[0].broker_epoch >= 0
    assert live(alone) == [0]


def deciding(
    node: NodeDriver,
    *,
    led_before_us: int = 0,
    confirmed_us: int | None = 0,
    lost_entries: Mapping[ReplicaKey, int] | None = None,
) -> Registrar:
    """The controller's side, over a quorum with this state of its leader."""
    broker = node.node.broker
    raft = Namespace(
        led_before_us=led_before_us,
        majority_confirmed_us=confirmed_us,
        lost_entries=lost_entries or {},
    )
    quorum = Namespace(leading_term=9, is_leading=True, raft=raft)
    return Registrar(
        node.config,
        cast(Quorum, quorum),
        broker.metadata,
        broker.outbox,
        lambda: bytes(16),
        lambda: {2: ANSWERED_US},
        lambda: False,
        lambda: 0,
        broker.broker_addresses,
        broker.membership.reach.check_newcomer,
    )


@pytest.mark.parametrize("led_before_us", [1_000_000, 3_400_000])
def test_the_previous_controller_has_a_session_from_its_last_contact_with_the_quorum(
    node: NodeDriver, led_before_us: int
) -> None:
    """Rule 16 of docs/replication-rules.md: its session rests on the answers of a majority."""
    unfenced(node)
    assert 2 in live(node)
    registrar = deciding(node, led_before_us=led_before_us)
    registrar.tick(Now(4_000_000, 4_000_000))
    session_us = node.config.broker_session_ms * 1000
    assert registrar.next_us() == max(ANSWERED_US, led_before_us) + session_us


@pytest.mark.parametrize(
    ("confirmed_us", "said_ms"),
    [(4_000_000, 0), (3_999_500, 1), (3_250_000, 750), (0, 4_000), (1 << 62, 0)],
)
def test_a_heartbeat_answer_has_the_age_of_the_quorums_contact_with_the_controller(
    node: NodeDriver, confirmed_us: int, said_ms: int
) -> None:
    """Rule 16 of docs/replication-rules.md: rounded up, as the session counts from then."""
    epoch = unfenced(node)
    registrar = deciding(node, confirmed_us=confirmed_us)
    answer = registrar.beat(beat(epoch), Now(4_000_000, 4_000_000))
    assert answer.confirmed_ms == said_ms
    assert answer.is_caught_up


def test_an_age_too_large_for_the_answer_is_sent_as_one_that_ends_every_session(
    node: NodeDriver,
) -> None:
    epoch = unfenced(node)
    registrar = deciding(node, confirmed_us=0)
    days_us = 50 * 86_400_000_000
    answer = registrar.beat(beat(epoch), Now(days_us, days_us))
    assert answer.confirmed_ms == 2**31 - 1


def test_a_former_controller_answers_no_heartbeat(node: NodeDriver) -> None:
    epoch = unfenced(node)
    registrar = deciding(node, confirmed_us=None)
    with pytest.raises(NotController):
        registrar.beat(beat(epoch), Now(4_000_000, 4_000_000))
