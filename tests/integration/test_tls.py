"""Real brokers by TLS: clients, the command line, strangers, certificates renewed under load."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

import quiverlog
import quiverlog.aio
import quiverlog.testing
from quiverlog.errors import ConnectionFailed, NotAuthenticated, TlsFailed, TlsRequired
from quiverlog.local.authority import Authority
from quiverlog.local.cluster import LocalCluster
from quiverlog.local.tls_files import BROKERS_CA
from quiverlog.tls import certificates_in
from quiverlog.wire.broker_messages import BrokerHeartbeatRequest
from tests.support.broker import BrokerProcess
from tests.support.cluster_load import ClusterLoad
from tests.support.rawclient import RawClient
from tests.support.rotation import LOCAL_HOSTS, new_authority, reload, rotate_one, shown
from tests.support.tls import write_files
from tests.support.until import slack, until

pytestmark = pytest.mark.process

SCHEMA = pa.schema([("x", pa.int64())])
ROTATIONS = 3
ROTATIONS_LONG = 40
ROTATION_S = 2.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with quiverlog.testing.cluster(3, tls=True) as made:
        yield made


def test_rows_go_through_both_clients_and_the_command_line(cluster: LocalCluster) -> None:
    with cluster.client() as client:
        client.create_topic("t", schema=SCHEMA, partitions=3)
        with client.producer("t", durability="replicated") as producer:
            producer.send([{"x": n} for n in range(100)])

    async def read() -> int:
        async with quiverlog.aio.connect(cluster.bootstrap, security=cluster.security) as client:
            reading = await client.read("t")
            return (await reading.to_arrow()).num_rows

    assert asyncio.run(read()) == 100
    command = [sys.executable, "-m", "quiverlog", "topic", "list", "-b", cluster.bootstrap]
    command += ["--security-file", str(cluster.tls.security_file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "\nt " in done.stdout


def test_doctor_says_when_certificates_end(cluster: LocalCluster) -> None:
    cluster.tls.issue_broker(3, LOCAL_HOSTS, days=3)
    reload(cluster, 3)
    serial = certificates_in(str(cluster.tls.certificate("broker-3")))[0].serial
    until(lambda: shown(cluster.brokers[3].listen, cluster.tls.brokers_ca) == serial)
    command = [sys.executable, "-m", "quiverlog", "doctor", "--no-spark", "--format", "json"]
    command += ["-b", cluster.bootstrap, "--security-file", str(cluster.tls.security_file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    findings = [one for one in json.loads(done.stdout)["findings"] if one["check"] == "TLS"]
    by_address = {
        node_id: [one["status"] for one in findings if broker.listen in one["detail"]]
        for node_id, broker in cluster.brokers.items()
    }
    assert by_address == {1: ["ok"], 2: ["ok"], 3: ["warning"]}
    (warning,) = [one for one in findings if one["status"] == "warning"]
    assert warning["detail"].endswith("in 2 days")
    assert any("the authority in" in one["detail"] for one in findings)


def test_what_does_not_fit_is_one_line_with_the_cause(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    with pytest.raises(TlsRequired, match="takes TLS only"):
        quiverlog.connect(cluster.bootstrap, security=quiverlog.Security(tls=False))
    other = write_files(tmp_path, "other")
    with pytest.raises(TlsFailed, match="its certificate is refused"):
        quiverlog.connect(cluster.bootstrap, security=quiverlog.Security(ca_file=other.ca))
    ca = str(cluster.tls.brokers_ca)
    named = quiverlog.Security(ca_file=ca, server_name="other.example")
    with pytest.raises(TlsFailed, match="Hostname mismatch"):
        quiverlog.connect(cluster.bootstrap, security=named)
    # The listener takes certificates of brokers alone, and a wrong one is refused.
    own = quiverlog.Security(ca_file=ca, cert_file=other.cert, key_file=other.key)
    with pytest.raises(ConnectionFailed, match=r"refuses (our|the) certificate"):
        quiverlog.connect(cluster.bootstrap, security=own, request_timeout=1.0)
    old = ssl.create_default_context(cafile=ca)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    host, _, port = cluster.brokers[1].listen.rpartition(":")
    refused = pytest.raises((ssl.SSLError, ConnectionError))
    with socket.create_connection((host, int(port))) as plain, refused:
        old.wrap_socket(plain, server_hostname=host)


def test_a_certificate_that_names_no_broker_speaks_as_none(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    ca = cluster.tls.certificate(BROKERS_CA)
    authority = Authority.load(ca.read_bytes(), cluster.tls.key(BROKERS_CA).read_bytes())
    others = {"bare": None, "third": (cluster.cluster_id, 3), "foreign": ("other", 2)}
    strangers = [
        write_files(tmp_path, name, authority=authority, broker=broker)
        for name, broker in others.items()
    ]
    host, _, port = cluster.brokers[1].listen.rpartition(":")
    for files in [None, *strangers]:
        context = ssl.create_default_context(cafile=str(ca))
        if files is not None:
            context.load_cert_chain(files.cert, files.key)
        request = BrokerHeartbeatRequest(cluster_id=cluster.cluster_id, node_id=2, broker_epoch=1)
        wanted = pytest.raises(NotAuthenticated, match="certificate")
        with RawClient((host, int(port)), tls=context) as client, wanted:
            client.ask(request)


def rotate(cluster: LocalCluster, rotations: int, every_s: float) -> None:
    """Renew one certificate after the other under load; in between a broken one, and a new CA."""
    with ClusterLoad(
        cluster.bootstrap, f"rotated-{rotations}", security=cluster.security, partitions=3
    ) as load:
        until(lambda: load.rows > 10)
        for number in range(rotations):
            rotate_one(cluster, number % 3 + 1, number // 3 + 1)
            if number % 3 == 2:
                new_authority(cluster)
            rows, next_s = load.rows, time.monotonic() + every_s
            until(partial(has_moved_on, load, rows, next_s))
    outcome = load.done()
    assert outcome.wrong() == []
    assert outcome.sent.total() > 20


def has_moved_on(load: ClusterLoad, rows: int, next_s: float) -> bool:
    return load.rows > rows and time.monotonic() >= next_s


def test_certificates_and_their_authority_are_replaced_under_load(cluster: LocalCluster) -> None:
    rotate(cluster, ROTATIONS, 0.1)
    # Brokers that start now accept each other by the new authority alone.
    cluster.brokers[2].stop(30)
    cluster.start()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_certificates_are_replaced_again_and_again(cluster: LocalCluster) -> None:
    rotate(cluster, ROTATIONS_LONG, ROTATION_S)


def rss_bytes(broker: BrokerProcess) -> int:
    return int(psutil.Process(broker.pid).memory_info().rss)


@pytest.mark.long
def test_two_thousand_silent_clients_hold_up_no_other_and_cost_little(tmp_path: Path) -> None:
    files = write_files(tmp_path, "broker")
    security = quiverlog.Security(ca_file=files.ca)
    limits = {"connections.max.per.address": 3_000, "connections.max": 3_000}
    with (
        BrokerProcess(config=files.settings("default") | limits) as broker,
        contextlib.ExitStack() as open_sockets,
    ):
        before_bytes = rss_bytes(broker)
        for _ in range(2_000):
            open_sockets.enter_context(socket.create_connection(broker.address))
        began_s = time.monotonic()
        with quiverlog.connect(broker.bootstrap, security=security) as client:
            client.list_topics()
        assert time.monotonic() - began_s < 1 * slack()
        assert rss_bytes(broker) - before_bytes < 50 << 20
