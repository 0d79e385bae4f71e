"""`quiverlog cluster ...`: the cluster as a whole.

Owns how they are asked for and shown; every rule about them is the brokers'.
"""

from __future__ import annotations

import time

import click

from quiverlog.cli.decommission import decommission, unregister
from quiverlog.cli.failures import ExitCode
from quiverlog.cli.features import features, upgrade
from quiverlog.cli.options import bootstrap_option, debug_option, format_option, open_client
from quiverlog.cli.output import print_json
from quiverlog.cli.quorum import voters
from quiverlog.cli.rebalance import rebalance_cluster
from quiverlog.cli.restart_check import restart_check

__all__ = ["cluster"]


@click.group()
def cluster() -> None:
    """Look at the cluster as a whole."""


@cluster.command()
@bootstrap_option
@format_option()
@debug_option
def describe(bootstrap: str, timeout_s: float, output_format: str) -> None:
    """Show brokers, quorum, and how many partitions are not as they should be.

    Any broker answers; how far the voters' logs have come is known to the controller alone.
    """
    from quiverlog.cli.cluster_detail import cluster_json, print_cluster
    from quiverlog.cli.probes import seen_or_failure

    seen = seen_or_failure(bootstrap, timeout_s)
    if output_format == "json":
        print_json(cluster_json(seen))
    else:
        print_cluster(seen)


@cluster.command()
@bootstrap_option
@format_option()
@debug_option
def status(bootstrap: str, timeout_s: float, output_format: str) -> None:
    """Show whether the cluster is healthy and what to do next; exit code 1 if it is not."""
    from quiverlog.cli.cluster_detail import print_status, status_json
    from quiverlog.cli.cluster_health import is_healthy, with_fewer_replicas
    from quiverlog.cli.probes import seen_or_failure

    began_s = time.monotonic()
    seen = seen_or_failure(bootstrap, timeout_s)
    if seen.found.is_current:
        with open_client(
            bootstrap,
            timeout_s=timeout_s,
            request_timeout_s=timeout_s,
            skipped=seen.silent,
            began_s=began_s,
        ) as client:
            seen.few.extend(with_fewer_replicas(seen.found, client.metadata().topics.values()))
    if output_format == "json":
        print_json(status_json(seen))
    else:
        print_status(seen)
    if not is_healthy(seen.found, seen.probes):
        raise click.exceptions.Exit(ExitCode.FAILED)


@cluster.command()
@bootstrap_option
@format_option()
@debug_option
def brokers(bootstrap: str, timeout_s: float, output_format: str) -> None:
    """List the brokers: where, in which state, and how many partitions each leads and holds."""
    from quiverlog.cli.cluster_detail import brokers_json, knowledge_json, print_brokers
    from quiverlog.cli.cluster_health import as_known
    from quiverlog.cli.probes import seen_or_failure

    seen = seen_or_failure(bootstrap, timeout_s)
    if output_format == "json":
        print_json({**knowledge_json(seen), "brokers": brokers_json(seen)})
        return
    if not seen.found.is_current:
        print(f"As known to {as_known(seen.found)}.")
    print_brokers(seen)


cluster.add_command(restart_check)
cluster.add_command(features)
cluster.add_command(upgrade)
cluster.add_command(voters)


cluster.add_command(rebalance_cluster)
cluster.add_command(decommission)
cluster.add_command(unregister)
