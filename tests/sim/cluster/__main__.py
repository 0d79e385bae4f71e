"""`python -m tests.sim.cluster --seed N` replays one run of a cluster; `--seeds N` runs many."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tests.model import test_groups_model, test_transactions_model
from tests.sim.bug import Bug
from tests.sim.bugs import Caught, hunt, print_table, write_table
from tests.sim.checker import Violation
from tests.sim.stats import report

from .client_plan import ClientPlan
from .planted import BUGS, UNPROVEN
from .run import simulate
from .soak import soak
from .transaction_bugs import TRANSACTION_BUGS

__all__ = ["main"]


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim --cluster", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this one run")
    parser.add_argument("--seeds", type=int, default=20, help="how many runs (from --first)")
    parser.add_argument("--first", type=int, default=0, help="first seed of many")
    parser.add_argument("--duration-ms", type=int, default=20_000, help="simulated work per run")
    parser.add_argument(
        "--transactions", action="store_true", help="only seeds that draw programs with them"
    )
    parser.add_argument("--stats", action="store_true", help="count what happened in all runs")
    parser.add_argument("--open", action="append", default=[], help="open a gate (gates.py)")
    parser.add_argument("--bugs", action="store_true", help="plant each bug and show its seed")
    parser.add_argument("--table", type=Path, help="write what was found into this page, too")
    parser.add_argument("--bug", help="plant the bugs with this text in their name")
    parser.add_argument("--hours", type=float, help="run fresh seeds for this many simulated hours")
    parser.add_argument("--cluster", action="store_true", help="for `python -m tests.sim`")
    options = parser.parse_args()
    if options.hours is not None:
        return 1 if soak(options.hours, first=options.first or None) else 0
    if options.bugs or options.bug is not None:
        return 1 if _hunt(options) else 0
    first = options.first if options.seed is None else options.seed
    count = options.seeds if options.seed is None else 1
    failed = count_left_out = 0
    simulated_s = took_s = 0.0
    counts: Counter[str] = Counter()
    for seed in range(first, first + count):
        is_chosen = options.seed is not None
        if options.transactions and not is_chosen and not ClientPlan.draw(seed).has_transactions:
            count_left_out += 1
            continue
        began = time.process_time()
        try:
            result = simulate(seed, duration_ms=options.duration_ms, opened=frozenset(options.open))
        except Violation as violation:
            failed += 1
            print(f"FAILED {violation}", flush=True)
            if options.seed is not None:
                traceback.print_exception(violation)
            continue
        took = time.process_time() - began
        simulated_s += result.simulated_s
        took_s += took
        counts.update(result.faults)
        counts.update(result.events)
        print(
            f"seed {seed:5d}: {result.rows_acknowledged:6d} rows acknowledged,"
            f" {result.rows_seen:6d} read, {result.lives:3d} lives,"
            f" {result.elections:3d} elections,"
            f" {result.compared:6d} batches compared, healed in {result.healed_s:4.1f} s,"
            f" {result.simulated_s:5.1f} s in {took:4.1f} s, trace {result.trace[:12]}",
            flush=True,
        )
    if options.stats:
        print(report(counts))
    count -= count_left_out
    pace = simulated_s / took_s if took_s else 0.0
    print(
        f"{count - failed} of {count} runs kept every promise, {simulated_s / 3600:.2f} simulated"
        f" hours, {pace:.0f} simulated seconds per second"
    )
    return 1 if failed else 0


def _hunt(options: argparse.Namespace) -> int:
    """Returns how many bugs were missed that are listed as caught."""

    def chosen(bugs: Iterable[Bug]) -> list[Bug]:
        return [bug for bug in bugs if (options.bug or "") in bug.name]

    seeds = range(options.first, options.first + options.seeds)
    parts = {"Transactions in a cluster": chosen(TRANSACTION_BUGS)}
    if not options.transactions:
        parts["A cluster"] = [bug for bug in chosen(BUGS) if bug not in TRANSACTION_BUGS]
    missed = 0
    for part, bugs in parts.items():
        hunted = (hunt(b, seeds=seeds, duration_ms=6_000, run=simulate) for b in bugs)
        missed += _show(list(hunted), options.table, len(seeds), part)
        missed -= sum(bug.name in UNPROVEN for bug in bugs)
    models = {"Transactions": test_transactions_model, "Groups": test_groups_model}
    for part, model in models.items():
        names = [name for name in model.BUGS if (options.bug or "") in name]
        found = [model.hunt_in_model(name) for name in names]
        missed += _show(found, options.table, model.SEEDS_PER_BUG, f"{part} in a model")
    return missed


def _show(found: list[Caught], table: Path | None, seeds: int, part: str) -> int:
    missed = print_table(found)
    if table is not None:
        write_table(found, table, seeds=seeds, part=part)
    return missed


if __name__ == "__main__":
    sys.exit(main())
