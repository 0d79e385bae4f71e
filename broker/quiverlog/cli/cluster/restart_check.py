"""`quiverlog cluster restart-check`: whether a broker may be restarted now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from quiverlog.cli.console.cluster_health import RestartVerdict, may_restart
from quiverlog.cli.console.failures import CommandFailed, ExitCode
from quiverlog.cli.console.options import (
    INT32_MAX,
    Seconds,
    bootstrap_option,
    debug_option,
    format_option,
    open_client,
    without_end,
)
from quiverlog.cli.console.output import print_json
from quiverlog.cli.console.probes import Seen, probe_brokers, seen_or_failure
from quiverlog.cli.console.waiting import Patience, polls, shown_waiting

if TYPE_CHECKING:
    from quiverlog.client.base.results import ClusterDetail
    from quiverlog.client.client import Client

__all__ = ["restart_check"]

_WAIT_S: Final = 600.0


@click.command("restart-check")
@click.option(
    "--broker",
    "node_id",
    type=click.IntRange(0, INT32_MAX),
    metavar="NODE",
    help="The broker to restart. [default: any of them]",
)
@click.option(
    "--wait",
    "wait_s",
    type=Seconds(min=0.0),
    is_flag=False,
    flag_value=_WAIT_S,
    metavar="[SECONDS]",
    help=f"Wait until it may be, at most this long. [{_WAIT_S:g} if no number is given]",
)
@bootstrap_option
@format_option()
@debug_option
def restart_check(
    node_id: int | None, wait_s: float | None, bootstrap: str, timeout_s: float, output_format: str
) -> None:
    """Check whether a broker may be restarted now; exit code 0 if so, 1 if not.

    No request fails by it when every other broker is live, answers this machine and has all its
    copies in sync, none of its partitions is moving, and the quorum has a voter to spare.
    """
    seen = seen_or_failure(bootstrap, timeout_s)
    verdicts = _verdicts(seen, node_id)
    if wait_s and not all(one.may_restart for one in verdicts):
        with open_client(
            bootstrap, timeout_s=timeout_s, request_timeout_s=timeout_s, skipped=seen.silent
        ) as client:
            verdicts = _wait(client, seen.found, node_id, wait_s)
    if output_format == "json":
        print_json(_json(verdicts))
    else:
        _show(verdicts)
    if not all(one.may_restart for one in verdicts):
        raise click.exceptions.Exit(ExitCode.FAILED)


def _verdicts(seen: Seen, node_id: int | None) -> list[RestartVerdict]:
    known = [one.node_id for one in seen.found.brokers]
    if node_id is None:
        return [may_restart(seen, one) for one in known]
    if node_id not in known:
        names = ", ".join(map(str, known))
        raise CommandFailed(f"There is no broker {node_id} in this cluster; there are: {names}.")
    return [may_restart(seen, node_id)]


def _wait(
    client: Client, found: ClusterDetail, node_id: int | None, wait_s: float
) -> list[RestartVerdict]:
    most = 1
    without_end(client)
    patience = Patience(wait_s)
    with shown_waiting("waiting") as waiting:
        for is_last in polls(wait_s):
            found = patience.ask(client.describe_cluster) or found
            verdicts = _verdicts(Seen(found), node_id)
            if all(one.may_restart for one in verdicts):
                # The controller counts a dead broker as live until its session ends.
                verdicts = _verdicts(Seen(found, probe_brokers(found)), node_id)
            reasons = dict.fromkeys(reason for one in verdicts for reason in one.reasons)
            if not reasons or is_last:
                break
            left = sum(one.out_of_sync for one in found.brokers) + found.moving
            most = max(most, left)
            waiting.show(most - left, most, "; ".join(reasons) + patience.note)
    return verdicts


def _json(verdicts: list[RestartVerdict]) -> dict[str, object]:
    return {
        "may_restart": all(one.may_restart for one in verdicts),
        "brokers": [
            {
                "node_id": one.node_id,
                "may_restart": one.may_restart,
                "reasons": list(one.reasons),
                "notes": list(one.notes),
            }
            for one in verdicts
        ],
    }


def _show(verdicts: list[RestartVerdict]) -> None:
    for one in verdicts:
        if one.may_restart:
            print(f"Broker {one.node_id} may be restarted now.")
        else:
            print(f"Broker {one.node_id} must not be restarted now:")
        for reason in one.reasons:
            print(f"- {reason}")
        for note in one.notes:
            print(f"- note: {note}")
