"""`python -m benchmarks [NAME ...]`: run benchmarks, print the table, write the JSON.

Owns the list of benchmarks. A benchmark that fails does not stop the others; its failure is printed
and makes the command fail. A missed budget is printed and does not: budgets are ratios on a machine
that may be shared. A gate reads the JSON.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
import traceback
from pathlib import Path

from benchmarks.harness import RESULTS, Comparison, Settings, print_table, write_results
from benchmarks.spark import stop_session

# In this order: the quiet ones first, before a JVM has warmed the machine.
BENCHMARKS = (
    "partitions",
    "latency",
    "produce",
    "fetch",
    "read",
    "csv",
    "small_produce",
    "rights",
    "tls",
    "logins",
    "idle_partitions",
    "churn",
    "cluster",
    "replication",
    "failover",
    "growth",
    "transactions",
    "client_dicts",
    "exactly_once",
    "spark_read",
    "spark_write",
    "micro_batch",
)


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--quick", action="store_true", help="an eighth of the work; no claims")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default 5)")
    parser.add_argument(
        "--staged-gib", type=float, default=0.25, help="staged for a new leader (default 0.25)"
    )
    parser.add_argument("--output", type=Path, default=None, help="where the JSON goes")
    chosen = parser.parse_args(argv)
    unknown = set(chosen.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    return chosen


def run(name: str, settings: Settings) -> list[Comparison]:
    module = importlib.import_module(f"benchmarks.bench_{name}")
    comparisons: list[Comparison] = module.run(settings)
    return comparisons


def output_of(options: argparse.Namespace) -> Path:
    """latest.json is for whole, full runs alone: a part must not replace the whole."""
    if options.output is not None:
        return Path(options.output)
    partial = options.quick or options.names
    return RESULTS / ("partial/latest.json" if partial else "latest.json")


def main(argv: list[str]) -> int:
    options = arguments(argv)
    settings = Settings(
        quick=options.quick,
        rounds=2 if options.quick else options.rounds,
        staged_bytes=int(options.staged_gib * 2**30),
    )
    comparisons: list[Comparison] = []
    failed: list[str] = []
    for name in options.names or BENCHMARKS:
        began = time.monotonic()
        print(f"benchmark {name} ...", end=" ", flush=True)
        try:
            comparisons += run(name, settings)
        except Exception:
            failed.append(name)
            traceback.print_exc()
        print(f"{time.monotonic() - began:.1f} s", flush=True)
    stop_session()
    if comparisons:
        print_table(comparisons)
        path = output_of(options)
        write_results(comparisons, path=path, settings=settings)
        print(f"written to {path}")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
