"""How a speed is measured and written down.

Owns the order of rounds, the statistics and the two outputs (JSON and table). The rules:

- Ours and the baseline take turns inside one run (A B, B A, A B, ...), so that a machine that
  slows down or has a noisy neighbour slows both.
- A figure is the median of its rounds; its spread is (largest - smallest) / median.
- `ratio` is turned so that bigger is better: ours/baseline for speeds, baseline/ours for times
  and sizes. A budget is met when `ratio >= budget`.

It must not depend on what is measured.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).resolve().parent / "results"

__all__ = ["RESULTS", "Comparison", "Settings", "interleave", "print_table", "write_results"]


@dataclass(frozen=True, slots=True)
class Settings:
    """How long to measure. `quick` is for trying a benchmark out, never for a claim."""

    quick: bool = False
    rounds: int = 5
    staged_bytes: int = 256 * 1024 * 1024
    """That a new leader of staged rows finds."""

    def scaled(self, count: int, *, at_least: int = 1) -> int:
        """`count` for a real run, an eighth of it for a quick one."""
        return max(at_least, count // 8) if self.quick else count


@dataclass(frozen=True, slots=True)
class Comparison:
    """One budget: what we measured, what the bare baseline did, and how the two compare.

    `ours` and `baseline` hold one figure per round. `bigger_is_better` is their direction. Where
    the budget is an absolute bound, `baseline` holds that bound. A comparison without a budget is
    shown and kept in details.json, and promises nothing.
    """

    name: str
    unit: str
    ours: Sequence[float]
    baseline: Sequence[float]
    budget: float | None
    goal: float | None = None
    bigger_is_better: bool = True
    note: str = ""

    def __post_init__(self) -> None:
        assert self.ours, f"{self.name}: nothing was measured"
        assert self.baseline, f"{self.name}: no baseline was measured"

    @property
    def value(self) -> float:
        return statistics.median(self.ours)

    @property
    def baseline_value(self) -> float:
        return statistics.median(self.baseline)

    @property
    def ratio(self) -> float:
        over, under = self.value, self.baseline_value
        if not self.bigger_is_better:
            over, under = under, over
        return over / under if under else float("inf")

    @property
    def is_met(self) -> bool:
        return self.budget is None or self.ratio >= self.budget

    def as_result(self) -> dict[str, object]:
        return {
            "name": self.name,
            "value": _rounded(self.value),
            "baseline": _rounded(self.baseline_value),
            "ratio": round(self.ratio, 4),
            "budget": self.budget,
            "unit": self.unit,
        }


@dataclass(slots=True)
class Rounds:
    """What `interleave` hands back: one figure per round for each side."""

    ours: list[float] = field(default_factory=list)
    baseline: list[float] = field(default_factory=list)


def interleave(
    rounds: int,
    ours: Callable[[], float],
    baseline: Callable[[], float],
    *,
    warmups: int = 1,
) -> Rounds:
    """Run both sides in turn, the first one alternating. Warm-up rounds are thrown away."""
    measured = Rounds()
    for number in range(-warmups, rounds):
        sides = [(ours, measured.ours), (baseline, measured.baseline)]
        if number % 2:
            sides.reverse()
        for measure, figures in sides:
            figure = measure()
            if number >= 0:
                figures.append(figure)
    return measured


def write_results(comparisons: Sequence[Comparison], *, path: Path, settings: Settings) -> None:
    """Write the budgets to `path`, and every round with the machine's facts beside it: a run of a
    part under a name of its own (`part.json`) leaves the details of the whole (`latest.json`)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with_budget = [c.as_result() for c in comparisons if c.budget is not None]
    path.write_text(json.dumps(with_budget, indent=2) + "\n")
    details = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "quick": settings.quick,
        "machine": machine(),
        "comparisons": [
            asdict(c) | {"ratio": round(c.ratio, 4), "met": c.is_met} for c in comparisons
        ],
    }
    name = "details.json" if path.stem == "latest" else f"{path.stem}-details.json"
    path.with_name(name).write_text(json.dumps(details, indent=2) + "\n")


def commit() -> str:
    """The commit that was measured; "?" outside of a clone."""
    git = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(git, cwd=Path(__file__).parent, capture_output=True, text=True)
    return done.stdout.strip() or "?"


def machine() -> dict[str, object]:
    """The machine, which bounds how figures compare."""
    return {
        "cpus": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "cpu": _cpu_model(),
        "system": platform.system(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def print_table(comparisons: Sequence[Comparison], console: Console | None = None) -> None:
    """Show the comparisons as people read them."""
    table = Table(title="quiverlog against bare baselines (medians, interleaved rounds)")
    table.add_column("what")
    for title in ("quiverlog", "baseline", "ratio", "budget", "goal", "spread"):
        table.add_column(title, justify="right")
    table.add_column("unit")
    table.add_column("")
    for c in comparisons:
        table.add_row(
            c.name,
            _figure(c.value),
            _figure(c.baseline_value),
            f"{c.ratio:.2f}",
            "" if c.budget is None else f"{c.budget:.2f}",
            "" if c.goal is None else f"{c.goal:.2f}",
            f"{_spread(c.ours):.0%} / {_spread(c.baseline):.0%}",
            c.unit,
            _verdict(c),
        )
    (console or Console(width=150)).print(table)
    for c in comparisons:
        if c.note:
            print(f"  {c.name}: {c.note}")


def _verdict(c: Comparison) -> str:
    if c.budget is None:
        return "for information"
    if not c.is_met:
        return "[bold red]missed[/]"
    return "[bold green]goal[/]" if c.goal is not None and c.ratio >= c.goal else "[green]met[/]"


def _spread(figures: Sequence[float]) -> float:
    middle = statistics.median(figures)
    return (max(figures) - min(figures)) / middle if middle else 0.0


def _rounded(figure: float) -> float:
    return float(f"{figure:.5g}")


def _figure(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 1_000 else f"{figure:.4g}"


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
