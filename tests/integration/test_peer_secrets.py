"""Real brokers with a secret, and programs that speak as a broker without having it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import quiverlog
import quiverlog.testing
from quiverlog.core.raft import messages as r
from quiverlog.errors import (
    AuthenticationFailed,
    BrokerNotReached,
    FrameTooLarge,
    NotAuthenticated,
    QuiverlogError,
    error_from_code,
)
from quiverlog.limits import FEATURE_LEVEL_MAX, UNPROVED_FRAME_BYTES_MAX
from quiverlog.local.cluster import LocalCluster
from quiverlog.local.secret_file import make_secret
from quiverlog.node.metadata.quorum_wire import pack
from quiverlog.wire import messages as m
from quiverlog.wire.broker_messages import (
    BrokerHeartbeatRequest,
    RegisterBrokerRequest,
    RegisteredListener,
)
from quiverlog.wire.cluster_messages import DescribeClusterRequest, DescribeClusterResponse
from quiverlog.wire.connection import BROKER_SOFTWARE
from quiverlog.wire.frames import encode
from quiverlog.wire.peer_proof import ProofRefused
from quiverlog.wire.registry import SENDERS
from quiverlog.wire.replica_messages import ReplicaFetchPartition, ReplicaFetchRequest
from tests.support.broker import BrokerProcess
from tests.support.cluster_load import ClusterLoad
from tests.support.proofs import prove
from tests.support.rawclient import SCHEMA, RawClient, make_batch
from tests.support.until import until

pytestmark = pytest.mark.process

BROKERS = (1, 2, 3)
TIMEOUT_MS = 2_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with quiverlog.testing.cluster(3) as made:
        yield made


def address(cluster: LocalCluster, node_id: int) -> tuple[str, int]:
    host, _, port = cluster.brokers[node_id].listen.rpartition(":")
    return host, int(port)


def describe(cluster: LocalCluster) -> DescribeClusterResponse:
    with RawClient(address(cluster, 1)) as client:
        found = client.ask(DescribeClusterRequest())
    assert isinstance(found, DescribeClusterResponse)
    return found


def refused(cluster: LocalCluster, node_id: int, request: m.Request, body: bytes = b"") -> bool:
    """Whether the broker refuses a request from a connection without a proof, and ends it."""
    with RawClient(address(cluster, node_id)) as client:
        try:
            client.ask(request, body)
        except NotAuthenticated:
            return client.next_frame() is None
        except QuiverlogError:
            return False
    return False


@pytest.mark.parametrize("kind", SENDERS, ids=lambda kind: kind.API.name)
def test_a_program_without_the_secret_speaks_as_no_broker(
    cluster: LocalCluster, kind: type[m.Request]
) -> None:
    for node_id in BROKERS:
        request = kind()
        setattr(request, SENDERS[kind], node_id % 3 + 1)
        assert refused(cluster, node_id, request)


def test_a_forged_vote_deposes_no_controller(cluster: LocalCluster) -> None:
    before = describe(cluster)
    directories = {one.node_id: one.directory_id for one in before.quorum}
    controller = before.controller_id
    other = next(one for one in BROKERS if one != controller)
    vote = r.Vote(
        source=r.ReplicaKey(other, directories[other]),
        target=r.ReplicaKey(controller, directories[controller]),
        term=before.controller_epoch + 1_000,
        last_index=10**6,
        last_term=before.controller_epoch + 999,
    )
    (packed,) = pack(cluster.cluster_id, [vote])
    assert refused(cluster, controller, packed.request)
    with cluster.client() as client:  # A decision, so that an election would have begun.
        client.create_topic("after-a-vote", schema=pa.schema({"x": pa.int64()}))
    after = describe(cluster)
    assert (after.controller_id, after.controller_epoch) == (controller, before.controller_epoch)


def registering(node_id: int, directory_id: str, host: str, port: int) -> RegisterBrokerRequest:
    return RegisterBrokerRequest(
        node_id=node_id,
        incarnation=os.urandom(16),
        directory_id=directory_id,
        host=host,
        port=port,
        listeners=[RegisteredListener("default", host, port)],
        wants_vote=True,
        feature_level_max=FEATURE_LEVEL_MAX,
    )


def test_a_registration_in_a_brokers_name_fences_nobody(cluster: LocalCluster) -> None:
    before = describe(cluster)
    victim = next(one for one in before.quorum if one.node_id != before.controller_id)
    request = registering(victim.node_id, victim.directory_id, "10.66.66.66", 666)
    request.cluster_id = cluster.cluster_id
    assert refused(cluster, before.controller_id, request)
    assert describe(cluster).brokers == before.brokers


def test_a_broker_that_does_not_exist_is_given_nothing(cluster: LocalCluster) -> None:
    controller = describe(cluster).controller_id
    request = registering(77, "e" * 32, "127.0.0.1", 9)
    request.cluster_id = cluster.cluster_id
    assert refused(cluster, controller, request)
    beat = BrokerHeartbeatRequest(cluster_id=cluster.cluster_id, node_id=77, broker_epoch=1)
    assert refused(cluster, controller, beat)
    assert [one.node_id for one in describe(cluster).brokers] == list(BROKERS)


def test_no_broker_connects_to_an_address_that_a_stranger_names(cluster: LocalCluster) -> None:
    found = describe(cluster)
    leader = next(one for one in found.quorum if one.node_id == found.controller_id)
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        endpoint = f"127.0.0.1:{stranger.getsockname()[1]}"
        observe = r.Observe(
            source=r.ReplicaKey(88, "f" * 32),
            target=r.ReplicaKey(leader.node_id, leader.directory_id),
            term=found.controller_epoch,
        )
        (packed,) = pack(cluster.cluster_id, [observe], endpoint=endpoint)
        assert refused(cluster, leader.node_id, packed.request)
        with cluster.client() as client:  # A leader sends each decision to all that observe.
            client.create_topic("after-an-observer", schema=pa.schema({"x": pa.int64()}))
        assert select.select([stranger], [], [], 0) == ([], [], [])


@pytest.mark.parametrize("is_known", [True, False], ids=["named before", "never named"])
def test_no_address_counts_where_no_broker_answers(cluster: LocalCluster, is_known: bool) -> None:
    """Also of a program that has the secret."""
    found = describe(cluster)
    leader = next(one for one in found.quorum if one.node_id == found.controller_id)
    request = registering(77, "e" * 32, "127.0.0.1", 9)
    request.cluster_id = cluster.cluster_id
    observe = r.Observe(
        source=r.ReplicaKey(77, "e" * 32),
        target=r.ReplicaKey(leader.node_id, leader.directory_id),
        term=found.controller_epoch,
    )
    (packed,) = pack(cluster.cluster_id, [observe], endpoint="127.0.0.1:9")
    with RawClient(address(cluster, leader.node_id)) as client:
        prove(client, 77, cluster.secret_file.read_bytes().strip())
        if is_known:
            client.ask(packed.request)
        with pytest.raises(BrokerNotReached, match=r"node 77 was not reached at 127\.0\.0\.1:9"):
            client.ask(request)
    assert [one.node_id for one in describe(cluster).brokers] == list(BROKERS)


class Forger:
    """Claims in the name of followers that they have every row of a partition."""

    def __init__(self, cluster: LocalCluster, leader: int, followers: list[int]) -> None:
        self._address = address(cluster, leader)
        self._epochs = {one.node_id: one.broker_epoch for one in describe(cluster).brokers}
        self._followers = followers

    def claim(self, topic_id: bytes, leader_epoch: int, offset: int) -> list[int]:
        """Return the error codes of one fetch for each follower."""
        codes = []
        for follower in self._followers:
            entry = ReplicaFetchPartition(
                topic_id, 0, leader_epoch, offset, leader_epoch, offset, 0, saved_epoch=leader_epoch
            )
            request = ReplicaFetchRequest(
                replica_id=follower, broker_epoch=self._epochs[follower], partitions=[entry]
            )
            with RawClient(self._address) as client:
                client.send(request)
                _, response, _ = client.receive()
                codes.append(response.error_code)
        return codes


def test_forged_copies_acknowledge_no_row(cluster: LocalCluster) -> None:
    with cluster.client() as client:
        client.create_topic(
            "copied", SCHEMA, replication_factor=3, config={"min.insync.replicas": "2"}
        )
        partition = client.describe_topic("copied").partitions[0]
        leader = partition.leader
    followers = [one for one in BROKERS if one != leader]
    with RawClient(address(cluster, leader)) as raw:
        topic = raw.ask(m.MetadataRequest(topics=["copied"])).topics[0]
        raw.produce(topic.topic_id, make_batch(0), durability=2)
        forger = Forger(cluster, leader, followers)
        codes: set[int] = set()
        is_over = threading.Event()

        def forge() -> None:
            while not is_over.is_set():
                codes.update(forger.claim(topic.topic_id, topic.partitions[0].leader_epoch, 20))

        for follower in followers:
            cluster.brokers[follower].pause()
        forging = threading.Thread(target=forge)
        forging.start()
        try:
            batch = make_batch(10)
            entry = m.ProducePartition(topic_id=topic.topic_id, partition=0, batch_bytes=len(batch))
            number = raw.send(
                m.ProduceRequest(durability=2, timeout_ms=TIMEOUT_MS, partitions=[entry]), batch
            )
            answered, response, _ = raw.receive()
        finally:
            is_over.set()
            forging.join()
            for follower in followers:
                cluster.brokers[follower].resume()
        assert answered == number
        assert isinstance(response, m.ProduceResponse)
        assert response.error_code or response.partitions[0].error_code, "it was acknowledged"
        assert codes == {NotAuthenticated.code}
    until(lambda: not any(one.is_fenced for one in describe(cluster).brokers), "all are back")


# --- brokers with files of their own -------------------------------------------------------------
class Secrets:
    """Three brokers, each with its copy of the file."""

    def __init__(self, stack: contextlib.ExitStack, folder: Path, *lines: str) -> None:
        self.folder = folder
        self.brokers: dict[int, BrokerProcess] = {}
        for node_id in BROKERS:
            config: dict[str, object] = {"node.id": node_id, "cluster.id": "secretive"}
            if lines:
                self.write(node_id, *lines)
                config["cluster.secret.file"] = str(self.file(node_id))
            if self.brokers:
                seeds = [f"{n}@{one.bootstrap}" for n, one in self.brokers.items()]
                config["controller.quorum.bootstrap.servers"] = ",".join(seeds)
            self.brokers[node_id] = stack.enter_context(BrokerProcess(config=config))
        until(self.is_whole, "three brokers that vote")

    def file(self, node_id: int) -> Path:
        return self.folder / f"secret-{node_id}"

    def write(self, node_id: int, *lines: str) -> None:
        new = self.file(node_id).with_suffix(".new")
        new.write_text("".join(f"{line}\n" for line in lines))
        new.chmod(0o600)
        new.replace(self.file(node_id))

    def give(self, node_id: int, *lines: str) -> None:
        """Replace the secrets of a broker that runs."""
        broker = self.brokers[node_id]
        before = broker.log_text.count("secrets have changed")
        self.write(node_id, *lines)
        broker.signal(1)  # SIGHUP
        until(lambda: broker.log_text.count("secrets have changed") > before, "they are read")

    def restart(self, node_id: int, **config: object) -> None:
        until(self.is_whole, "it may be restarted")
        broker = self.brokers[node_id]
        assert broker.stop() == 0, broker.log_text
        broker.config |= {key.replace("_", "."): value for key, value in config.items()}
        broker.start()
        until(self.is_whole, "it is back")

    @property
    def bootstrap(self) -> str:
        return ",".join(one.bootstrap for one in self.brokers.values())

    def is_whole(self) -> bool:
        try:
            with quiverlog.connect(self.bootstrap, request_timeout=5.0) as client:
                found = client.describe_cluster()
        except QuiverlogError:
            return False
        live = [one for one in found.brokers if not one.fenced]
        return len(live) == len(found.voters) == len(BROKERS) and not found.under_replicated

    def proves(self, node_id: int, secret: str) -> bool:
        """Whether a program with this secret is taken for another broker."""
        with RawClient(self.brokers[node_id].address) as client:
            try:
                return prove(client, node_id % 3 + 1, secret.encode()) != ""
            except (ProofRefused, AuthenticationFailed):
                return False

    def takes_strangers(self, node_id: int) -> bool:
        beat = BrokerHeartbeatRequest(cluster_id="secretive", node_id=node_id % 3 + 1)
        client = RawClient(self.brokers[node_id].address)
        with client, pytest.raises(QuiverlogError) as refusal:
            client.ask(beat)
        return not isinstance(refusal.value, NotAuthenticated)


def goes_on(load: ClusterLoad) -> None:
    written, read = load.rows, load.rows_read
    until(lambda: load.rows > written and load.rows_read > read, "rows go on")


def test_a_secret_is_replaced_under_load(tmp_path: Path) -> None:
    old, new = make_secret(), make_secret()
    with contextlib.ExitStack() as stack:
        cluster = Secrets(stack, tmp_path, old)
        with ClusterLoad(cluster.bootstrap, "t", partitions=6, replication_factor=3) as load:
            for lines in ((new, old), (new,)):
                for node_id in BROKERS:
                    cluster.give(node_id, *lines)
                    goes_on(load)
            until(cluster.is_whole, "all are in sync")
            assert [cluster.proves(one, old) for one in BROKERS] == [False] * 3
            assert [cluster.proves(one, new) for one in BROKERS] == [True] * 3
            cluster.restart(2)
            goes_on(load)
        assert load.done().wrong() == []
        for broker in cluster.brokers.values():
            assert "internal error" not in broker.log_text
            assert not any(secret in broker.log_text for secret in (old, new))


def doctor(cluster: Secrets) -> list[str]:
    """What it shows of secrets."""
    command = [sys.executable, "-m", "quiverlog", "doctor", "--no-spark", "--format", "json"]
    done = subprocess.run(
        [*command, "-b", cluster.bootstrap], capture_output=True, text=True, timeout=90, check=False
    )
    found = json.loads(done.stdout)["findings"]
    return [one["detail"] for one in found if one["check"] == "secret"]


def warnings(cluster: Secrets) -> list[int]:
    """How often each broker has warned at a start."""
    event = "other brokers are taken without proof"
    return [one.log_text.count(event) for one in cluster.brokers.values()]


@pytest.mark.long
def test_a_running_cluster_gets_its_first_secret(tmp_path: Path) -> None:
    secret = make_secret()
    with contextlib.ExitStack() as stack:
        cluster = Secrets(stack, tmp_path)
        assert "broker(s) 1, 2, 3 have no secret" in doctor(cluster)[0]
        assert warnings(cluster) == [1, 1, 1]
        with ClusterLoad(cluster.bootstrap, "t", partitions=6, replication_factor=3) as load:
            for node_id in BROKERS:
                cluster.write(node_id, secret)
                cluster.restart(
                    node_id,
                    cluster_secret_file=str(cluster.file(node_id)),
                    # A directory that was made without a secret asks for none by itself.
                    cluster_secret_required="auto" if node_id == 3 else "false",
                )
                goes_on(load)
            assert [cluster.takes_strangers(one) for one in BROKERS] == [True] * 3
            assert "broker(s) 1, 2, 3 require no proof" in doctor(cluster)[0]
            assert warnings(cluster) == [2, 2, 2]
            for node_id in BROKERS:
                cluster.restart(node_id, cluster_secret_required="true")
                goes_on(load)
            cluster.restart(3, cluster_secret_required="auto")
            assert [cluster.takes_strangers(one) for one in BROKERS] == [False] * 3
        assert doctor(cluster) == []
        assert warnings(cluster) == [2, 2, 2]
        assert load.done().wrong() == []
        for broker in cluster.brokers.values():
            assert "internal error" not in broker.log_text
            assert secret not in broker.log_text


# --- a listener of their own ---------------------------------------------------------------------
@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Broker 1, which meets others at a listener of their own."""
    file = tmp_path_factory.mktemp("apart") / "secret"
    file.write_text(make_secret())
    file.chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = {
        "node.id": 1,
        "cluster.id": "secretive",
        "inter.broker.listener": "internal",
        "listeners.internal.bind": f"127.0.0.1:{port}",
        "cluster.secret.file": str(file),
    }
    with BrokerProcess(config=config) as broker:
        yield broker


def between(broker: BrokerProcess) -> tuple[str, int]:
    host, _, port = str(broker.config["listeners.internal.bind"]).rpartition(":")
    return host, int(port)


def secret_of(broker: BrokerProcess) -> bytes:
    return Path(str(broker.config["cluster.secret.file"])).read_bytes().strip()


def test_a_listener_between_brokers_serves_no_client(apart: BrokerProcess) -> None:
    with RawClient(between(apart)) as client:
        with pytest.raises(NotAuthenticated):
            client.ask(m.MetadataRequest())
        assert client.next_frame() is None
    with RawClient(apart.address) as client:
        assert client.ask(m.MetadataRequest()).cluster_id == "secretive"
    with RawClient(between(apart)) as client:
        assert prove(client, 2, secret_of(apart)) == "broker:2"
        assert client.ask(m.MetadataRequest()).cluster_id == "secretive"


def padded(frame_bytes: int) -> bytes:
    """A HELLO in a frame of this size."""
    head = encode(m.HelloRequest(), 1, 0)
    body_bytes = frame_bytes - len(head)
    return encode(m.HelloRequest(), 1, body_bytes) + bytes(body_bytes)


@pytest.mark.parametrize("more_bytes", [-1, 0, 1])
def test_frames_are_small_before_the_proof(apart: BrokerProcess, more_bytes: int) -> None:
    with RawClient(between(apart), hello=False) as client:
        client.send_bytes(padded(UNPROVED_FRAME_BYTES_MAX + more_bytes))
        if more_bytes > 0:
            refusal = client.expect_refusal()
            with pytest.raises(FrameTooLarge):
                raise error_from_code(refusal.error_code, refusal.error_message)
        else:
            assert client.next_frame() is not None


@pytest.mark.parametrize("software", [BROKER_SOFTWARE, "a client"])
def test_frames_of_brokers_are_small_where_clients_connect_too(
    cluster: LocalCluster, software: str
) -> None:
    with RawClient(address(cluster, 1), hello=False) as client:
        client.ask(m.HelloRequest(software=software))
        client.send_bytes(padded(UNPROVED_FRAME_BYTES_MAX + 1))
        if software == BROKER_SOFTWARE:
            assert client.expect_refusal().error_code == FrameTooLarge.code
        else:
            assert client.next_frame() is not None


def test_frames_may_be_large_after_the_proof(apart: BrokerProcess) -> None:
    with RawClient(between(apart)) as client:
        prove(client, 2, secret_of(apart))
        client.ask(m.HelloRequest(), bytes(4 * UNPROVED_FRAME_BYTES_MAX))


def test_a_connection_that_never_proves_is_ended(apart: BrokerProcess) -> None:
    with RawClient(between(apart)) as idle, RawClient(between(apart)) as proved:
        prove(proved, 2, secret_of(apart))
        assert idle.next_frame() is None, "ended by the broker"
        assert proved.ask(m.MetadataRequest()).cluster_id == "secretive"


# --- brokers that are refused --------------------------------------------------------------------
def test_a_broker_with_another_secret_does_not_join(apart: BrokerProcess, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(make_secret())
    file.chmod(0o600)
    host, port = between(apart)
    config = {
        "node.id": 2,
        "cluster.id": "secretive",
        "controller.quorum.bootstrap.servers": f"1@{host}:{port}",
        "cluster.secret.file": str(file),
    }
    second = BrokerProcess(config=config)
    second.launch()
    try:
        until(lambda: "AUTHENTICATION_FAILED" in second.log_text, "the reason is logged")
        assert "it has not proved that it has the cluster's secret" in second.log_text
        assert "Give both the same `cluster.secret.file`" in second.log_text
        until(lambda: "a proof was refused" in apart.log_text, "the other one logs it, too")
        assert "address=127.0.0.1" in apart.log_text
    finally:
        second.kill()
    with RawClient(apart.address) as client:
        assert [one.node_id for one in client.ask(DescribeClusterRequest()).brokers] == [1]


@pytest.mark.parametrize(
    ("mode", "text", "why"),
    [
        (0o644, "s" * 32, "every user of this machine may use it (mode 0644)"),
        (0o604, "s" * 32, "mode 0604"),
        (0o600, "s" * 31, "line 1 has 31 bytes"),
        (0o600, "", "no line is a secret"),
    ],
    ids=["open to all", "open to others", "short", "empty"],
)
def test_a_broker_does_not_start_with_a_bad_file(
    tmp_path: Path, mode: int, text: str, why: str
) -> None:
    file = tmp_path / "secret"
    file.write_text(text)
    file.chmod(mode)
    broker = BrokerProcess(config={"cluster.secret.file": str(file)})
    broker.launch()
    try:
        assert broker.wait() == 2
        assert why in broker.log_text
        assert "sss" not in broker.log_text
    finally:
        broker.kill()
