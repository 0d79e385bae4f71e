"""A running cluster gets TLS, or logins, and loses them again: broker by broker, under load.

None of the programs at work sees an error, and no row is lost or doubled.
"""

from __future__ import annotations

from functools import partial

import pytest

import quiverlog
import quiverlog.testing
from quiverlog import Security
from quiverlog.client.admin.rules import AccessRule
from quiverlog.errors import LoginMissing, TlsRequired
from quiverlog.local.cluster import LocalCluster
from quiverlog.local.tls_files import TlsFolder
from tests.support.cluster_load import ClusterLoad
from tests.support.until import until

pytestmark = [pytest.mark.process, pytest.mark.long, pytest.mark.timeout(900)]

PLAIN = Security(tls=False)
PASSWORD = "of-the-programs"
PROGRAMS = Security(tls=False, user="programs", password=PASSWORD)
TLS_REQUIRED = "listeners.default.tls.required"
ASKED = "listeners.default.authentication"
DAYS = 30


def roll(cluster: LocalCluster, *loads: ClusterLoad) -> None:
    """Restart the brokers one after the other; programs go on in between."""
    until(lambda: all(load.rows > 10 and load.rows_read for load in loads))
    for node_id in cluster.brokers:
        assert cluster.brokers[node_id].stop(60)
        cluster.start()
        rows = [load.rows for load in loads]
        until(partial(have_moved_on, loads, rows))


def have_moved_on(loads: tuple[ClusterLoad, ...], rows: list[int]) -> bool:
    return all(load.rows > before for load, before in zip(loads, rows, strict=True))


def load_of(cluster: LocalCluster, topic: str, security: Security) -> ClusterLoad:
    return ClusterLoad(cluster.bootstrap, topic, security=security, partitions=3)


def test_tls_comes_and_goes() -> None:
    with quiverlog.testing.cluster(3) as cluster:
        with load_of(cluster, "before", PLAIN) as load:
            TlsFolder.make(cluster.tls.path, cluster.cluster_id, days=DAYS)
            cluster.config[TLS_REQUIRED] = "false"
            roll(cluster, load)
        assert load.done().wrong() == []
        with load_of(cluster, "by-tls", cluster.security) as load:
            del cluster.config[TLS_REQUIRED]
            roll(cluster, load)
            with pytest.raises(TlsRequired):
                quiverlog.connect(cluster.bootstrap, security=PLAIN)
            cluster.config[TLS_REQUIRED] = "false"
            roll(cluster, load)
        assert load.done().wrong() == []
        with load_of(cluster, "after", PLAIN) as load:
            for path in cluster.tls.path.iterdir():
                path.unlink()
            cluster.tls.path.rmdir()
            del cluster.config[TLS_REQUIRED]
            roll(cluster, load)
        assert load.done().wrong() == []
        logs = "".join(broker.log.read_text() for broker in cluster.brokers.values())
        assert "NOT_AUTHENTICATED" not in logs


def test_logins_come_and_go() -> None:
    """`none`, `wanted`, `required`, and back; both kinds of programs work at `wanted`."""
    with quiverlog.testing.cluster(3) as cluster:
        cluster._make_admin()  # From now on the cluster's own client tries to log in.
        with quiverlog.connect(cluster.bootstrap, security=PLAIN) as client:
            password = (cluster.directory / "admin.password").read_text().strip()
            client.create_user("admin", password, is_admin=True)
            client.create_user("programs", PASSWORD)
            client.add_rules(
                [
                    AccessRule(principal, True, operation, "topic", is_prefix=True)
                    for principal in ("anonymous", "user:programs")
                    for operation in ("create", "read", "write")
                ]
            )
        with load_of(cluster, "before", PLAIN) as anonymous:
            cluster.config[ASKED] = "wanted"
            roll(cluster, anonymous)
        assert anonymous.done().wrong() == []
        with load_of(cluster, "logged-in", PROGRAMS) as load:
            cluster.config[ASKED] = "required"
            roll(cluster, load)
            with pytest.raises(LoginMissing):
                quiverlog.connect(cluster.bootstrap, security=PLAIN)
            cluster.config[ASKED] = "wanted"
            roll(cluster, load)
            with load_of(cluster, "after", PLAIN) as anonymous:
                cluster.config[ASKED] = "none"
                roll(cluster, load, anonymous)
        assert load.done().wrong() == []
        assert anonymous.done().wrong() == []
