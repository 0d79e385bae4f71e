"""`python -m tests.chaos`: real brokers under faults from a seed.

Owns the command line, and the name spaces in which a run happens where the machine permits: mounts
and processes of a run that is killed go with it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import uvloop

from .failover import failover
from .nemesis import draw
from .rotation import rotation
from .run import run
from .steady import steady

INSIDE = "QUIVERLOG_TEST_CHAOS_INSIDE"


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="of the schedule (default: fresh)")
    parser.add_argument(
        "--minutes", type=float, help="of faults (default 1, of --rotate 30: one round a minute)"
    )
    parser.add_argument("--kills", type=int, default=0, help="instead: kill the leader so often")
    parser.add_argument("--steady", action="store_true", help="instead: full load, no fault")
    parser.add_argument("--rotate", action="store_true", help="instead: certificates, passwords")
    parser.add_argument("--sink", action="store_true", help="instead: Spark's sink, exactly once")
    parser.add_argument("--case", default="", help="of --sink: only those with this in their name")
    parser.add_argument("--mode", default="exactly_once", help="of --case: at_least_once fails")
    parser.add_argument("--schedule", action="store_true", help="print the faults, run nothing")
    parser.add_argument("--runs", type=int, default=1, help="with seeds that follow one another")
    parser.add_argument("--no-mounts", action="store_true", help="full disks by RLIMIT_FSIZE")
    parser.add_argument("--logs", type=Path, default=None, help="keep the brokers' logs here")
    options = parser.parse_args(argv)
    if options.minutes is None:
        options.minutes = 30.0 if options.rotate else 1.0
    return options


def enter_name_spaces(argv: list[str]) -> None:
    """Begin again where this process may mount and its children end with it, if that is allowed."""
    unshare = shutil.which("unshare")
    if os.environ.get(INSIDE) or unshare is None:
        return
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    command = [unshare, *user, "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        return
    os.environ[INSIDE] = "1"
    os.execv(unshare, [*command, sys.executable, "-m", "tests.chaos", *argv])


def main(argv: list[str]) -> int:
    options = arguments(argv)
    first = secrets.randbelow(1 << 31) if options.seed is None else options.seed
    duration_s = options.minutes * 60
    if options.schedule:
        for fault in draw(first, duration_s):
            print(fault)
        return 0
    enter_name_spaces(argv)
    begin_s = time.monotonic()

    def on_step(text: str) -> None:
        print(f"  {time.monotonic() - begin_s:6.1f} s  {text}", flush=True)

    if options.kills:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            found = runner.run(failover(options.kills, options.kills // 3, on_step))
        print(found.text())
        return 1 if found.problems else 0
    if options.steady:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            quiet = runner.run(steady(duration_s, on_step))
        print(quiet.text())
        return 1 if quiet.problems else 0
    if options.rotate:
        rotated = rotation(duration_s, on_step)
        print(rotated.text())
        return 1 if rotated.problems else 0
    if options.sink:
        return _sink(first, duration_s, options, on_step)
    failures = 0
    for seed in range(first, first + options.runs):
        print(f"python -m tests.chaos --seed {seed} --minutes {options.minutes:g}", flush=True)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            report = runner.run(
                run(seed, duration_s, on_step, options.logs, may_mount=not options.no_mounts)
            )
        print(report.text(), flush=True)
        failures += bool(report.verdict.problems)
    return 1 if failures else 0


def _sink(
    seed: int, duration_s: float, options: argparse.Namespace, on_step: Callable[[str], None]
) -> int:
    """Each point once, then `duration_s` of kills; with `--case` only what it names."""
    from .sink import STATEFUL, points, stateful  # PySpark comes with it

    problems = [] if options.case == STATEFUL else points(on_step, options.case, options.mode)
    if options.case in ("", STATEFUL):
        print(
            f"python -m tests.chaos --sink --seed {seed} --minutes {duration_s / 60:g}", flush=True
        )
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            found = runner.run(stateful(seed, duration_s, on_step))
        print(found.text())
        problems += found.problems
    print("FAILED" if problems else "every row once")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
