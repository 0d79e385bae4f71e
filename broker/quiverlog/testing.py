"""Clusters for test suites: real brokers, started for a test and gone after it.

    import pytest, quiverlog.testing

    @pytest.fixture(scope="session")
    def brokers():
        with quiverlog.testing.cluster(3) as brokers:
            yield brokers

    def test_rows_survive_their_leader(brokers):
        with brokers.client() as client: ...
        brokers.brokers[2].kill()

Needs the extra `broker`. It works without pytest.
"""

from __future__ import annotations

import atexit
import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from quiverlog.local.cluster import BROKERS_MAX, LocalCluster, racks_of
from quiverlog.local.failures import LocalClusterFailed

__all__ = ["LocalClusterFailed", "cluster"]


@contextlib.contextmanager
def cluster(
    brokers: int = 1,
    *,
    racks: Sequence[str] | None = None,
    config: Mapping[str, str] | None = None,
    timeout_s: float = 60.0,
    tls: bool = False,
    users: bool = False,
) -> Iterator[LocalCluster]:
    """Start a cluster on free ports of 127.0.0.1, in a temporary directory; remove it at the end.

    Args:
        brokers: how many, from 1 to 9.
        racks: a label for each; `a`, `b`, `c` by turns unless given.
        config: settings for all brokers, by the keys of docs/config.md.
        timeout_s: seconds until it must be ready.
        tls: clients and brokers connect by TLS; `security` of the cluster is for clients. Needs the
            extra `security`.
        users: clients log in; `security` of the cluster is that of its administrator.

    Yields:
        The ready cluster: `bootstrap` for clients, `client()`, and `brokers[1]` and so on to
            `kill()`, `pause()`, `resume()` and `stop()`; `start()` restarts all that do not run.

    Raises:
        ValueError: another number of brokers, or not as many racks.
        LocalClusterFailed: a broker ended, or is not ready in time; the text has the last line of
            its log.
    """
    if not 1 <= brokers <= BROKERS_MAX:
        raise ValueError(f"brokers must be from 1 to {BROKERS_MAX}, not {brokers}")
    labels = racks_of(brokers) if racks is None else list(racks)
    if len(labels) != brokers:
        raise ValueError(f"{len(labels)} racks for {brokers} brokers")
    with tempfile.TemporaryDirectory(prefix="quiverlog-testing-") as folder:
        made = LocalCluster.create(
            Path(folder) / "cluster", racks=labels, config=config, tls=tls, users=users
        )
        # A test run that ends without unwinding its fixtures leaves no broker behind.
        atexit.register(made.remove)
        try:
            made.start(timeout_s)
            yield made
        finally:
            atexit.unregister(made.remove)
            made.remove()
