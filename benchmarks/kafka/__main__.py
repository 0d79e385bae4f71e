"""quiverlog beside Apache Kafka, in turns on this machine; `make bench-kafka`.

Takes some 20 minutes on two cores with nothing else running, and ends after --minutes on a slower
machine; about 55 MB are fetched the first time. A part that fails, or takes more than 10 minutes,
is reported, and the next one begins. A whole run writes benchmarks/results/kafka.json after each
part; a run of some parts writes there with --merge alone.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.harness import commit, machine
from benchmarks.kafka import report
from benchmarks.kafka.clients import disk, python_client, start
from benchmarks.kafka.copies import failover, replicated
from benchmarks.kafka.fetch import PYTHON_CLIENT, add_python_client, fetch, version_of
from benchmarks.kafka.measure import Plan, Row
from benchmarks.kafka.through_spark import one_row, read, write
from benchmarks.spark import stop_session

PARTS: dict[str, Callable[[Plan], list[Row]]] = {
    "read": read,
    "write": write,
    "one_row": one_row,
    "disk": disk,
    "python_client": python_client,
    "start": start,
    "replicated": replicated,
    "failover": failover,
}
PART_SECONDS_MAX = 600.0
PARTIAL = report.RESULTS.parent / "partial" / "kafka.json"


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kafka", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="an eighth of the work; no claims")
    parser.add_argument("--rounds", type=int, default=3, choices=range(1, 11), metavar="1..10")
    parser.add_argument("--minutes", type=float, default=30.0, help="the most that it takes (30)")
    parser.add_argument(
        "--merge", action="store_true", help="put these parts into benchmarks/results/kafka.json"
    )
    chosen = parser.parse_args(argv)
    unknown = set(chosen.parts) - set(PARTS)
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    if chosen.merge and chosen.quick:
        parser.error("a quick run proves nothing: leave --quick or --merge out")
    return chosen


def output_of(options: argparse.Namespace) -> Path:
    """A quick run, or a run of a part without --merge, must not replace the whole."""
    whole = not options.parts and not options.quick
    return report.RESULTS if whole or options.merge else PARTIAL


@contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the block when it takes longer."""

    def late(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"it took more than {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run_part(name: str, plan: Plan, seconds: float) -> dict[str, Any]:
    """The part's rows, or why there are none."""
    began = time.monotonic()
    found: dict[str, Any] = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "load": machine()["load_average"][0],  # type: ignore[index]
        "rows": [],
    }
    try:
        with bounded(seconds):
            found["rows"] = [asdict(row) for row in PARTS[name](plan)]
    except Exception as error:
        traceback.print_exc()
        stop_session()  # what a part that failed has left running must not slow the next
        found["failed"] = f"{type(error).__name__}: {str(error)[:200]}"
    found["seconds"] = round(time.monotonic() - began, 1)
    return found


def versions() -> dict[str, str]:
    """Of all that takes part."""
    java = subprocess.run(["java", "-version"], capture_output=True, text=True).stderr
    return {
        "Apache Kafka": version_of("broker", "kafka_2.13"),
        "its Spark connector": version_of("spark", "spark-sql-kafka-0-10_2.13"),
        "PySpark": version("pyspark"),
        "Java": java.split('"')[1] if '"' in java else "?",
        "Python": sys.version.split()[0],
        PYTHON_CLIENT.partition("==")[0]: PYTHON_CLIENT.partition("==")[2],
    }


def show(results: dict[str, Any]) -> None:
    """Print the rows as people read them."""
    for row in report.rows_of(results):
        print(
            f"{row.what:<78} {row.ours:>12,.4g} {row.theirs:>12,.4g} {row.unit:<7}"
            f" {row.settings:<8} {row.ratio:>6.2f}"
        )


def main(argv: Sequence[str]) -> int:
    options = arguments(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that brokers are ended
    if shutil.which("java") is None:
        print("Kafka needs Java 17 or newer: run `make bench-kafka`", file=sys.stderr)
        return 1
    plan = Plan(quick=options.quick, rounds=1 if options.quick else options.rounds)
    print("Apache Kafka, its connector and a Python client of it", flush=True)
    fetch("broker")
    fetch("spark")
    add_python_client()
    path = output_of(options)
    results = report.read_results(path) if options.merge else {}
    results |= {"quick": options.quick, "machine": machine(), "versions": versions()}
    parts = results.setdefault("parts", {})
    left = list(options.parts or PARTS)
    deadline = time.monotonic() + options.minutes * 60
    failed = []
    while left and time.monotonic() < deadline:
        name = left.pop(0)
        print(f"{name} ...", flush=True)
        left_seconds = max(1.0, deadline - time.monotonic())
        parts[name] = run_part(name, plan, min(PART_SECONDS_MAX, left_seconds))
        if "failed" in parts[name]:
            failed.append(name)
        print(f"{name}: {parts[name]['seconds']:.0f} s", flush=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(results, indent=1) + "\n")
    stop_session()
    show(results)
    print(f"written to {path}")
    if left:
        print(f"not begun within {options.minutes:g} minutes: {', '.join(left)}", file=sys.stderr)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed or left else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
