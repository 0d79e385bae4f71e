"""`quiverlog dev ...`: a local cluster of real brokers (`quiverlog.local`)."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from quiverlog.cli.console.failures import CommandFailed
from quiverlog.cli.console.options import Seconds, config_pairs, debug_option, format_option
from quiverlog.cli.console.output import counted, print_json, print_table
from quiverlog.local.cluster import BROKERS_MAX, LocalCluster, racks_of
from quiverlog.local.failures import LocalClusterFailed
from quiverlog.local.ports import is_free
from quiverlog.local.process import ProcessState

if TYPE_CHECKING:
    from quiverlog.client.base.results import ClusterDetail
    from quiverlog.local.broker import LocalBroker

__all__ = ["dev"]

_DIRECTORY = "quiverlog-dev"
_FIRST_PORT = 9292
_Command = TypeVar("_Command", bound=Callable[..., Any])


@click.group()
def dev() -> None:
    """A local cluster of real brokers: start it, break it, throw it away.

    The cluster is a directory (./quiverlog-dev unless --directory is given): its brokers,
    their data and their logs. It goes on when the terminal is closed, until `stop` or `down`. Needs
    Linux.
    """


_directory = click.option(
    "--directory",
    "-d",
    type=click.Path(file_okay=False, path_type=Path),
    default=_DIRECTORY,
    show_default=True,
    help="Where the cluster is.",
)


def _with_cluster(command: _Command) -> _Command:
    @_directory
    @debug_option
    @wraps(command)
    def run(directory: Path, **more: Any) -> Any:
        with _failing_command():
            found = LocalCluster.find(directory.absolute())
            if found is None:
                raise CommandFailed(
                    f"There is no cluster in {directory}: `quiverlog dev up` makes one."
                )
            return command(found, **more)

    return run  # type: ignore[return-value]


@contextlib.contextmanager
def _failing_command() -> Iterator[None]:
    try:
        yield
    except LocalClusterFailed as error:
        raise CommandFailed(str(error)) from error


def _broker_of(found: LocalCluster, node_id: int) -> LocalBroker:
    broker = found.brokers.get(node_id)
    if broker is None:
        known = ", ".join(map(str, found.brokers))
        raise CommandFailed(f"There is no broker {node_id} in this cluster; there are: {known}.")
    return broker


@dev.command()
@click.option(
    "--brokers", "-n", "count", type=click.IntRange(1, BROKERS_MAX), help="How many. [default: 3]"
)
@click.option(
    "--port",
    type=click.IntRange(1, 65_535 - 2 * BROKERS_MAX),
    help="The first broker's; each takes this one for clients and the next one for metrics. "
    f"[default: {_FIRST_PORT} where that and its neighbours are free, else free ones]",
)
@click.option(
    "--set",
    "config",
    multiple=True,
    callback=config_pairs,
    metavar="KEY=VALUE",
    help="A key of docs/config.md for all brokers; may be repeated.",
)
@click.option(
    "--tls", is_flag=True, help="Clients and brokers connect by TLS, with throw-away certificates."
)
@click.option(
    "--users", is_flag=True, help="Clients log in: the cluster has an administrator, and rules."
)
@_directory
@click.option(
    "--timeout", "timeout_s", type=Seconds(), default=60.0, show_default=True, metavar="SECONDS"
)
@format_option()
@debug_option
def up(
    count: int | None,
    port: int | None,
    config: dict[str, str],
    tls: bool,
    users: bool,
    directory: Path,
    timeout_s: float,
    output_format: str,
) -> None:
    """Start a cluster, new or as it was, and wait until it is ready.

    Brokers are in the racks a, b and c by turns. What runs already stays as it is; what was
    killed, stopped or paused comes back.
    """
    began_s = time.monotonic()
    with _failing_command():
        found = LocalCluster.find(directory.absolute())
        if found is None:
            found = _create(directory.absolute(), count or 3, port, config, tls=tls, users=users)
        elif (
            count not in (None, len(found.brokers))
            or port is not None
            or config
            or (tls and not found.has_tls)
            or (users and not found.has_users)
        ):
            raise CommandFailed(
                f"{directory} holds a cluster of {len(found.brokers)} with settings of its own: "
                "give none, or end it with `quiverlog dev down`."
            )
        with found.locked():
            found.start(timeout_s)
    _show(found, output_format)
    if output_format != "json":
        secured = f" --security-file {found.security_file}" if found.security_file else ""
        seconds = time.monotonic() - began_s
        print(f"\nready after {seconds:.1f} s: -b {found.bootstrap}{secured}")


def _create(
    directory: Path, count: int, port: int | None, config: dict[str, str], *, tls: bool, users: bool
) -> LocalCluster:
    usual = range(_FIRST_PORT, _FIRST_PORT + 2 * count)
    if port is None and all(is_free(number) for number in usual):
        port = _FIRST_PORT
    return LocalCluster.create(
        directory, racks=racks_of(count), config=config, first_port=port, tls=tls, users=users
    )


@dev.command()
@format_option()
@_with_cluster
def status(found: LocalCluster, output_format: str) -> None:
    """Show the brokers, their processes, and their state in the cluster."""
    _show(found, output_format)


def _show(found: LocalCluster, output_format: str) -> None:
    seen = _asked(found)
    rows = [
        {
            "node_id": broker.node_id,
            "rack": broker.rack,
            "process": broker.state.value,
            "in_cluster": _cluster_state(seen, broker),
            "clients": broker.listen,
            "http": broker.http_listen,
            "pid": broker.pid,
        }
        for broker in found.brokers.values()
    ]
    if output_format == "json":
        print_json(
            {
                "directory": str(found.directory),
                "cluster_id": found.cluster_id,
                "bootstrap_server": found.bootstrap,
                "security_file": str(found.security_file) if found.security_file else None,
                "reported_by": None if seen is None else seen.reported_by,
                "is_current": seen is not None and seen.is_current,
                "age_s": None if seen is None else seen.age_s,
                "brokers": rows,
            }
        )
        return
    print_table(
        ("node", "rack", "process", "in the cluster", "clients", "http", "pid"),
        [["" if cell is None else cell for cell in row.values()] for row in rows],
        right=("node", "pid"),
    )
    if seen is not None and not seen.is_current:
        from quiverlog.cli.console.cluster_health import as_known

        print(f"\nas known to {as_known(seen)}")


def _asked(found: LocalCluster) -> ClusterDetail | None:
    from quiverlog.client.client import connect
    from quiverlog.errors import QuiverlogError

    running = [one.listen for one in found.brokers.values() if one.state is ProcessState.RUNNING]
    if not running:
        return None
    try:
        with connect(
            ",".join(running), connect_timeout=2.0, request_timeout=2.0, security=found.security
        ) as client:
            return client.describe_cluster()
    except QuiverlogError:
        return None


def _cluster_state(seen: ClusterDetail | None, local: LocalBroker) -> str:
    known = () if seen is None else seen.brokers
    broker = next((one for one in known if one.node_id == local.node_id), None)
    if seen is None or broker is None:
        return "unknown"
    if not seen.is_current:
        return "unknown, no controller"
    if broker.fenced:
        return "fenced"
    if local.state is not ProcessState.RUNNING:
        return "not fenced yet"  # The controller waits for the end of its session.
    state = "stopping" if broker.in_shutdown else "ready"
    return f"{state}, controller" if seen.controller == broker.node_id else state


_node_id = click.argument("node_id", metavar="NODE", type=int)
_some_node_id = click.argument("node_id", metavar="[NODE]", type=int, required=False)


@dev.command()
@_node_id
@click.option("--wipe", is_flag=True, help="Remove its data as well: the loss of a disk.")
@_with_cluster
def kill(found: LocalCluster, node_id: int, wipe: bool) -> None:
    """SIGKILL for one broker; `start` brings it back."""
    with found.locked():
        broker = _broker_of(found, node_id)
        ended = broker.kill()
        if wipe:
            broker.wipe()
    print(f"killed broker {node_id}" if ended else f"broker {node_id} did not run")


@dev.command()
@_node_id
@_with_cluster
def pause(found: LocalCluster, node_id: int) -> None:
    """SIGSTOP for one broker: it sends nothing and closes nothing; `resume` wakes it."""
    with found.locked():
        paused = _broker_of(found, node_id).pause()
    print(f"paused broker {node_id}" if paused else f"broker {node_id} does not run")


@dev.command()
@_node_id
@_with_cluster
def resume(found: LocalCluster, node_id: int) -> None:
    """Wake a broker that was paused."""
    with found.locked():
        woken = _broker_of(found, node_id).resume()
    print(f"resumed broker {node_id}" if woken else f"broker {node_id} was not paused")


@dev.command()
@_some_node_id
@_with_cluster
def start(found: LocalCluster, node_id: int | None) -> None:
    """Start one broker, or all that do not run, and wait until it takes clients."""
    with found.locked():
        if node_id is None:
            found.start()
            print("all brokers are ready")
            return
        broker = _broker_of(found, node_id)
        found.start_broker(node_id)
        broker.wait_until_ready(timeout_s=60.0)
    print(f"broker {node_id} is ready")


@dev.command()
@_some_node_id
@_with_cluster
def stop(found: LocalCluster, node_id: int | None) -> None:
    """Stop one broker, or all of them, in order; the data stay."""
    with found.locked():
        if node_id is None:
            stopped = counted(found.stop(), "broker", "brokers")
            print(f"stopped {stopped}; their data stay in {found.directory}")
            return
        ended = _broker_of(found, node_id).stop(timeout_s=60.0)
    print(f"stopped broker {node_id}" if ended else f"broker {node_id} did not run")


@dev.command()
@click.option("--rack", help="Its label. [default: a, b and c by turns]")
@_with_cluster
def add(found: LocalCluster, rack: str | None) -> None:
    """Add a broker to the cluster, and wait until the others have its registration."""
    with found.locked():
        made = found.add(rack)
    print(f"broker {made.node_id} has joined, in rack {made.rack}: -b {found.bootstrap}")


@dev.command()
@_node_id
@_with_cluster
def remove(found: LocalCluster, node_id: int) -> None:
    """Remove a broker that was decommissioned, with its data and its log."""
    with found.locked():
        _broker_of(found, node_id)
        found.remove_broker(node_id)
    print(f"removed broker {node_id}")


@dev.command()
@_node_id
@click.option("--follow", "-f", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@click.option(
    "--lines", "-n", type=click.IntRange(0, 1_000_000), default=20, show_default=True, metavar="N"
)
@_with_cluster
def logs(found: LocalCluster, node_id: int, follow: bool, lines: int) -> None:
    """Show the end of a broker's log."""
    log = _broker_of(found, node_id).log
    tail = shutil.which("tail")
    if tail is None:
        raise CommandFailed(f"`tail` is not installed; the log is {log}")
    command = [tail, "-n", str(lines), *(["-F"] if follow else []), str(log)]
    # The process becomes `tail`, which handles Ctrl-C and a closed pipe; Python ignores SIGPIPE.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.execv(tail, command)


@dev.command()
@_with_cluster
def down(found: LocalCluster) -> None:
    """End all brokers and remove the cluster with its data and logs."""
    with found.locked():
        found.remove()
    print(f"removed {found.directory}")
