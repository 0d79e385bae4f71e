"""`quiverlog perf produce|consume|latency`: measures a broker with one Python client on this
machine. Every run is bounded in rows or in time."""

from __future__ import annotations

import os
import queue
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from quiverlog.cli.console.failures import CommandFailed
from quiverlog.cli.console.options import (
    INT64_MAX,
    Seconds,
    bootstrap_option,
    config_option,
    debug_option,
    format_option,
    given_timeout_s,
    open_client,
    without_end,
)
from quiverlog.cli.console.output import human_count, print_fields, print_json
from quiverlog.cli.formats.new_topic import REPLICATION_FACTOR_SHOWN, check_as_it_is, summary_of
from quiverlog.limits import PARTITIONS_PER_TOPIC_MAX, REPLICATION_FACTOR_MAX

if TYPE_CHECKING:
    import pyarrow as pa

    from quiverlog.client.client import Client

__all__ = ["percentile", "perf"]

_TOPIC = "quiverlog-perf"
_FIXED_ROW_BYTES = 24
"""The columns id, at and value."""
_POLL_S = 0.5


def _common(command: Callable[..., Any]) -> Callable[..., Any]:
    for decorate in (
        debug_option,
        format_option(),
        bootstrap_option,
        click.option("--topic", "-t", default=_TOPIC, show_default=True, metavar="NAME"),
    ):
        command = decorate(command)
    return command


@click.group()
def perf() -> None:
    """Measure a broker from here; see each command for its bounds."""


def percentile(values: Sequence[float], percent: int) -> float:
    if len(values) < 2:
        return values[0] if values else 0.0
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def _duration_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--duration",
        "duration_s",
        type=Seconds(),
        default=60.0,
        show_default=True,
        metavar="SECONDS",
        help="Stop after this long, even with fewer rows.",
    )(command)


def _schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        {
            "id": pa.int64(),
            "at": pa.timestamp("us", "UTC"),
            "value": pa.float64(),
            "payload": pa.binary(),
        }
    )


def _rows(count: int, row_bytes: int) -> pa.RecordBatch:
    import pyarrow as pa

    # Random bytes: compression must not change what is measured.
    payload_bytes = max(0, row_bytes - _FIXED_ROW_BYTES)
    now_us = time.time_ns() // 1000
    noise = pa.py_buffer(os.urandom(count * payload_bytes))
    payload = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(payload_bytes), count, [None, noise]
    ).cast(pa.binary())
    ids = pa.array(range(count), pa.int64())
    moments = pa.array(range(now_us, now_us + count), pa.int64()).cast(pa.timestamp("us", "UTC"))
    return pa.record_batch([ids, moments, ids.cast(pa.float64()), payload], schema=_schema())


def _ensure_topic(
    client: Client,
    topic: str,
    *,
    durability: str | None,
    **create: Any,
) -> None:
    """Create the topic, or check that the existing one has these options; print its properties."""
    before = client.metadata([topic]).topics
    if before:
        check_as_it_is(client, topic, create)
    else:
        client.create_topic(topic, _schema(), if_not_exists=True, **create)
    info = client.metadata([topic]).topics[topic]
    if not client.schemas(topic).current.equals(_schema()):
        raise CommandFailed(
            f"Topic {topic!r} has other columns: name one that does not exist; perf creates it."
        )
    if (durability or "").startswith("replicated") and info.replicas == 1:
        raise CommandFailed(
            f"--durability {durability}: topic {topic!r} has one replica. "
            f"`quiverlog topic alter {topic} --replication-factor N` gives it more, on as many "
            "brokers; or name a topic that does not exist: perf creates it."
        )
    verb = "uses" if before else "created"
    print(f"quiverlog: {verb} {topic}: {summary_of(info)}.", file=sys.stderr)


def _delivery() -> dict[str, float]:
    given_s = given_timeout_s()
    return {} if given_s is None else {"delivery_timeout": given_s}


def _of_new_topic(command: Callable[..., Any]) -> Callable[..., Any]:
    for decorate in (
        config_option,
        click.option(
            "--replication-factor",
            "-r",
            type=click.IntRange(1, REPLICATION_FACTOR_MAX),
            show_default=REPLICATION_FACTOR_SHOWN,
            help="Replicas of the topic, if perf creates it.",
        ),
        click.option(
            "--partitions",
            type=click.IntRange(1, PARTITIONS_PER_TOPIC_MAX),
            default=1,
            show_default=True,
            help="Of the topic, if perf creates it.",
        ),
    ):
        command = decorate(command)
    return command


def _latencies(latencies_s: Sequence[float]) -> dict[str, float]:
    return {
        "p50_ms": percentile(latencies_s, 50) * 1000,
        "p99_ms": percentile(latencies_s, 99) * 1000,
        "max_ms": max(latencies_s, default=0.0) * 1000,
    }


def _print_result(result: dict[str, Any], output_format: str) -> None:
    if output_format == "json":
        print_json(result)
        return
    shown = {}
    for name, value in result.items():
        if isinstance(value, float):
            value = f"{value:,.3f}" if value < 100 else human_count(value)
        elif isinstance(value, int):
            value = human_count(value)
        shown[name] = value
    print_fields(shown)


def _rates(rows: int, byte_count: int, seconds: float) -> dict[str, Any]:
    return {
        "rows": rows,
        "bytes": byte_count,
        "seconds": seconds,
        "rows_per_s": rows / seconds if seconds else 0.0,
        "mb_per_s": byte_count / seconds / 1e6 if seconds else 0.0,
    }


class _Acknowledgements:
    """Waits for futures in a thread, to time each acknowledgement while the command sends."""

    def __init__(self) -> None:
        self.latencies_s: list[float] = []
        self.rows = 0
        self.error: BaseException | None = None
        self._sent: queue.SimpleQueue[tuple[float, Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._wait, name="perf-acks", daemon=True)
        self._thread.start()

    def add(self, future: Any) -> None:
        self._sent.put((time.perf_counter(), future))

    def _wait(self) -> None:
        try:
            while (entry := self._sent.get()) is not None:
                sent_s, future = entry
                self.rows += sum(produced.rows for produced in future.result())
                self.latencies_s.append(time.perf_counter() - sent_s)
        except BaseException as error:
            self.error = error

    def finish(self) -> None:
        self._sent.put(None)
        self._thread.join()
        if self.error is not None:
            raise self.error


@perf.command(name="produce")
@click.option("--rows", type=click.IntRange(1, INT64_MAX), default=1_000_000, show_default=True)
@_duration_option
@click.option("--row-bytes", type=click.IntRange(24, 65_536), default=100, show_default=True)
@click.option("--batch-rows", type=click.IntRange(1, 65_536), default=8_192, show_default=True)
@_of_new_topic
@click.option(
    "--durability",
    type=click.Choice(["memory", "flushed", "replicated", "replicated_flushed"]),
    help="Wait for more than the topic asks for.",
)
@click.option("--compression", type=click.Choice(["none", "lz4", "zstd"]), default="none")
@_common
def perf_produce(
    topic: str,
    rows: int,
    duration_s: float,
    row_bytes: int,
    batch_rows: int,
    durability: str | None,
    compression: str,
    bootstrap: str,
    timeout_s: float,
    output_format: str,
    **create: Any,
) -> None:
    """Append made-up rows; prints rates and the time from send to acknowledgement."""
    options: dict[str, Any] = {"compression": compression, "batch_rows": batch_rows, "linger": 0.0}
    options |= _delivery()
    if durability is not None:
        options["durability"] = durability
    with open_client(bootstrap, timeout_s=timeout_s) as client:
        _ensure_topic(client, topic, durability=durability, **create)
        batch = _rows(batch_rows, row_bytes)
        with client.producer(topic, **options) as producer:
            without_end(client)
            waiting = _Acknowledgements()
            began_s = time.perf_counter()
            sent = 0
            while sent < rows and time.perf_counter() - began_s < duration_s:
                piece = batch.slice(0, rows - sent)
                waiting.add(producer.send(piece))
                sent += piece.num_rows
            producer.flush()
            waiting.finish()
            seconds = time.perf_counter() - began_s
    byte_count = waiting.rows * batch.nbytes // batch.num_rows
    result = {"topic": topic, **_rates(waiting.rows, byte_count, seconds)}
    _print_result(result | _latencies(waiting.latencies_s), output_format)


@perf.command(name="consume")
@click.option(
    "--rows", type=click.IntRange(1, INT64_MAX), help="Stop after this many; all when not given."
)
@_duration_option
@_common
def perf_consume(
    topic: str,
    rows: int | None,
    duration_s: float,
    bootstrap: str,
    timeout_s: float,
    output_format: str,
) -> None:
    """Read a topic from its beginning; prints rates and the time between batches."""
    with open_client(bootstrap, timeout_s=timeout_s) as client:
        client.describe_topic(topic)
        began_s = time.perf_counter()
        count = byte_count = 0
        gaps_s: list[float] = []
        last_s = began_s
        with client.consumer(topic, start="earliest") as consumer:
            without_end(client)
            for batch in consumer:
                now_s = time.perf_counter()
                gaps_s.append(now_s - last_s)
                last_s = now_s
                count += batch.data.num_rows
                byte_count += batch.data.nbytes
                if now_s - began_s >= duration_s or (rows is not None and count >= rows):
                    break
        seconds = time.perf_counter() - began_s
    result = {"topic": topic, **_rates(count, byte_count, seconds), "batches": len(gaps_s)}
    _print_result(result | _latencies(gaps_s), output_format)


@perf.command(name="latency")
@click.option("--rows", type=click.IntRange(1, INT64_MAX), default=1_000, show_default=True)
@_duration_option
@_of_new_topic
@click.option(
    "--durability",
    type=click.Choice(["memory", "flushed", "replicated", "replicated_flushed"]),
    help="Wait for more than the topic asks for.",
)
@_common
def perf_latency(
    topic: str,
    rows: int,
    duration_s: float,
    durability: str | None,
    bootstrap: str,
    timeout_s: float,
    output_format: str,
    **create: Any,
) -> None:
    """Send one row at a time and wait until a consumer has it."""
    options: dict[str, Any] = {"partition": 0, "linger": 0.0, **_delivery()}
    if durability is not None:
        options["durability"] = durability
    with open_client(bootstrap, timeout_s=timeout_s) as client:
        _ensure_topic(client, topic, durability=durability, **create)
        end = client.list_offsets(topic, at={0: "latest"})[0] or 0
        with (
            client.producer(topic, **options) as producer,
            client.consumer(topic, start={0: end}, follow=True) as consumer,
        ):
            without_end(client)
            began_s = time.perf_counter()
            latencies_s: list[float] = []
            one = _rows(1, 100)
            while len(latencies_s) < rows:
                sent_s = time.perf_counter()
                if not _arrives(consumer, producer.send(one), began_s + duration_s):
                    break
                latencies_s.append(time.perf_counter() - sent_s)
            seconds = time.perf_counter() - began_s
    result = {"topic": topic, "rows": len(latencies_s), "seconds": seconds}
    _print_result(result | _latencies(latencies_s), output_format)


def _arrives(consumer: Any, sending: Any, until_s: float) -> bool:
    """Wait for the row, at most until `until_s`. Raises the error of a failed send."""
    while (left_s := until_s - time.perf_counter()) > 0:
        if consumer.poll(min(_POLL_S, left_s)) is not None:
            return True
        if sending.done():
            sending.result()
    return False
