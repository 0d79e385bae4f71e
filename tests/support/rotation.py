"""What rotates in a running cluster: certificates, their authority, a user's password.

Each step returns when it counts: new connections are shown the new certificate, or log in by the
new password. A broken key comes before each new certificate, and must change nothing.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import ssl
from functools import partial
from pathlib import Path

import quiverlog
from quiverlog.local.authority import Authority
from quiverlog.local.cluster import LocalCluster
from quiverlog.local.secret_file import write_private
from quiverlog.local.tls_files import BROKERS_CA
from quiverlog.tls import certificates_in
from tests.support.until import until

__all__ = ["LOCAL_HOSTS", "ended", "new_authority", "new_password", "reload", "rotate_one", "shown"]

LOCAL_HOSTS = ("127.0.0.1", "localhost")
DAYS = 30


def shown(address: str, ca: Path) -> int:
    """The number of the certificate that a new connection is shown."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cafile=str(ca))
    with (
        socket.create_connection((host, int(port)), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname=host) as tls,
    ):
        found = tls.getpeercert()
        assert found is not None
        return int(str(found["serialNumber"]), 16)


def is_shown(address: str, ca: Path, serial: int) -> bool:
    return shown(address, ca) == serial


def reload(cluster: LocalCluster, node_id: int) -> None:
    mark = cluster.brokers[node_id]._mark()
    assert mark is not None
    os.kill(mark.pid, signal.SIGHUP)


def renew(cluster: LocalCluster, node_id: int) -> int:
    name = cluster.tls.issue_broker(node_id, LOCAL_HOSTS, days=DAYS)
    reload(cluster, node_id)
    return certificates_in(str(cluster.tls.certificate(name)))[0].serial


def rotate_one(cluster: LocalCluster, node_id: int, broken: int) -> None:
    """Show that a broken key, the `broken`th of this broker, changes nothing; then renew it."""
    ca = cluster.tls.certificate(BROKERS_CA)
    address, log = cluster.brokers[node_id].listen, cluster.brokers[node_id].log
    before = shown(address, ca)
    key = cluster.tls.key(f"broker-{node_id}")
    whole = key.read_bytes()
    key.write_bytes(b"broken")
    reload(cluster, node_id)
    until(lambda: log.read_text().count("changed TLS files are not used") >= broken)
    assert shown(address, ca) == before
    key.write_bytes(whole)
    renewed = renew(cluster, node_id)
    until(lambda: shown(address, ca) == renewed)


def ended(cluster: LocalCluster) -> int:
    """Connections that have ended with their authority, and links to other brokers."""
    why = "the authority of its certificate was taken out"
    return sum(broker.log.read_text().count(why) for broker in cluster.brokers.values())


def new_authority(cluster: LocalCluster) -> None:
    """Replace the brokers' authority: first both count everywhere, then the new one signs; last the
    old one is taken out, which ends connections."""
    folder, before = cluster.tls, ended(cluster)
    old = folder.certificate(BROKERS_CA).read_bytes()
    new = Authority.make("another")
    folder.certificate(BROKERS_CA).write_bytes(new.certificate + old)
    folder.key(BROKERS_CA).write_bytes(new.key)
    for node_id in cluster.brokers:
        reload(cluster, node_id)
    for node_id in cluster.brokers:
        serial, address = renew(cluster, node_id), cluster.brokers[node_id].listen
        until(partial(is_shown, address, folder.brokers_ca, serial))
    folder.certificate(BROKERS_CA).write_bytes(new.certificate)
    for node_id in cluster.brokers:
        reload(cluster, node_id)
    until(lambda: ended(cluster) > before)


def new_password(cluster: LocalCluster, user: str, file: Path) -> None:
    """Replace a user's password while programs read `file` at each connection."""
    password = secrets.token_urlsafe(24)
    with cluster.client() as client:
        client.change_password(user, password, keep_old=True)
        write_private(file, f"{password}\n", replaces=True)
        client.drop_old_password(user)
    ca_file = cluster.security.ca_file
    own = quiverlog.Security(tls=bool(ca_file), ca_file=ca_file, user=user, password=password)
    with quiverlog.connect(cluster.bootstrap, security=own) as client:
        assert client.who_am_i().principal == f"user:{user}"
