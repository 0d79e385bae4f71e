"""The figures of `make bench-kafka` as text: a table and a picture for the documents.

Owns the form of `benchmarks/results/kafka.json`. Imported while documents are made, so it needs
the standard library alone. Of Kafka's two sets of settings the better one is quoted.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[1] / "results" / "kafka.json"
OURS = "quiverlog"
EVEN = 0.05
"""Two figures that differ by less than this share are called even."""
SHORT = (
    "Spark streaming read, Kafka's rows as JSON",
    "Spark streaming read, Kafka's rows as Avro",
    "Spark batch write, Kafka's rows as Avro",
    "one row, topic to Spark to topic: p50",
    "to three copies, large batches",
    "leader killed, until the next acknowledged row",
)
"""The rows that the README shows."""

__all__ = ["RESULTS", "Quoted", "picture", "quoted", "read_results", "table"]


@dataclass(frozen=True, slots=True)
class Quoted:
    """A row as it is shown: medians, and how many times better quiverlog's is."""

    what: str
    unit: str
    ours: float
    ours_spread: float
    theirs: float
    theirs_spread: float
    settings: str
    ratio: float

    @property
    def verdict(self) -> str:
        """The ratio, and Kafka's name where it is better."""
        if abs(self.ratio - 1) < EVEN:
            return f"{self.ratio:.2f} (even)"
        return f"{_short(self.ratio)}" if self.ratio > 1 else f"{self.ratio:.2f} (**Kafka**)"


def read_results(path: Path = RESULTS) -> dict[str, Any]:
    """What was measured; nothing where the file is missing."""
    if not path.exists():
        return {}
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def quoted(row: dict[str, Any]) -> Quoted:
    """Kafka's better settings beside quiverlog."""
    best = max if row["bigger_is_better"] else min
    medians = {name: statistics.median(figures) for name, figures in row["figures"].items()}
    ours = medians.pop(OURS)
    settings = best(medians, key=lambda name: medians[name])
    theirs = medians[settings]
    ratio = ours / theirs if row["bigger_is_better"] else theirs / ours
    spreads = {name: _spread(figures) for name, figures in row["figures"].items()}
    return Quoted(
        row["what"], row["unit"], ours, spreads[OURS], theirs, spreads[settings], settings, ratio
    )


def rows_of(results: dict[str, Any], names: Sequence[str] = ()) -> list[Quoted]:
    """All rows, or those that are named, in the order of the parts."""
    found = [quoted(row) for part in results.get("parts", {}).values() for row in part["rows"]]
    return [row for row in found if not names or row.what in names]


def table(names: Sequence[str] = (), path: Path = RESULTS) -> str:
    """The rows as a table, with the machine below it."""
    results = read_results(path)
    if not rows_of(results):
        return "Not measured yet: `make bench-kafka`.\n"
    lines = [
        "| what | unit | quiverlog | Kafka | its settings | times better |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.what} | {row.unit} | {_figure(row.ours)} (±{row.ours_spread / 2:.0%})"
        f" | {_figure(row.theirs)} (±{row.theirs_spread / 2:.0%})"
        f" | {row.settings} | {row.verdict} |"
        for row in rows_of(results, names)
    ]
    failed = [name for name, part in results["parts"].items() if part.get("failed")]
    if failed:
        lines += ["", f"Not measured, because it failed: {', '.join(failed)}."]
    shown = "" if names else "\n![quiverlog beside Kafka](pictures/kafka.svg)\n"
    return "\n".join(lines) + f"\n\n{_measured(results)}\n{shown}"


def _measured(results: dict[str, Any]) -> str:
    """When, of which versions and on which machine."""
    machine, versions = results["machine"], results["versions"]
    parts = results["parts"].values()
    dates = sorted({part["measured_at"][:10] for part in parts})
    commits = sorted({part["commit"] for part in parts})
    loads = [part["load"] for part in parts]
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    return (
        f"Measured on {' and '.join(dates)}, commit {', '.join(commits)}: {named};"
        f" {machine['cpus']} cores of {machine['cpu']}, {machine['system']}"
        f" {machine['kernel'].partition('-')[0]}, load {min(loads):.1f} to {max(loads):.1f}"
        f" when a part began{', a quick run that proves nothing' if results['quick'] else ''}."
    )


def _spread(figures: Sequence[float]) -> float:
    middle = statistics.median(figures)
    return (max(figures) - min(figures)) / middle if middle else 0.0


def _figure(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:.3g} M"
    return f"{value:,.0f}" if value >= 1_000 else f"{value:.3g}"


def _short(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.2g}" if ratio >= 2 else f"{ratio:.2f}"


# --- picture --------------------------------------------------------------------------------------
WIDTH, LEFT, RIGHT, LINE, TOP = 1000, 500, 60, 24, 46
COLOURS = {True: "#2a7f62", False: "#b5542b"}


def picture(path: Path = RESULTS) -> str:
    """Bars of the ratios, on a logarithmic scale, as SVG: to the right quiverlog is better."""
    rows = rows_of(read_results(path))
    logs = [math.log10(row.ratio) for row in rows]
    low, high = min([-0.31, *logs]), max([0.31, *logs])
    scale = (WIDTH - LEFT - RIGHT) / (high - low)
    height = TOP + LINE * len(rows) + 14

    def x(value: float) -> float:
        return LEFT + (value - low) * scale

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-size="13"'
        ' font-family="sans-serif" role="img">',
        "<title>How many times better than Kafka, logarithmic</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        *_grid(x, low, high, height),
    ]
    for number, (row, value) in enumerate(zip(rows, logs, strict=True)):
        y = TOP + LINE * number
        start, end = sorted((x(0), x(value)))
        colour = COLOURS[value >= 0]
        parts += [
            f'<text x="{LEFT - 12}" y="{y + 15}" text-anchor="end">{_escaped(row.what)}</text>',
            f'<rect x="{start:.1f}" y="{y + 3}" width="{max(end - start, 1):.1f}" height="16"'
            f' fill="{colour}"/>',
            f'<text x="{end + 5:.1f}" y="{y + 15}" fill="{colour}">{_times(row.ratio)}</text>',
        ]
    return "\n".join([*parts, "</svg>\n"])


def _grid(x: Any, low: float, high: float, height: int) -> list[str]:
    """Lines at 1, 2, 5, 10 and so on."""
    parts = [
        f'<text x="{x(0) - 8:.1f}" y="16" text-anchor="end">Kafka is better</text>',
        f'<text x="{x(0) + 8:.1f}" y="16">quiverlog is better</text>',
    ]
    for power in range(math.floor(low), math.ceil(high) + 1):
        for step in (1, 2, 5):
            value = power + math.log10(step)
            if low <= value <= high:
                width = 1.5 if not value else 0.5
                parts += [
                    f'<line x1="{x(value):.1f}" x2="{x(value):.1f}" y1="{TOP - 8}"'
                    f' y2="{height - 8}" stroke="#888888" stroke-width="{width}"/>',
                    f'<text x="{x(value):.1f}" y="{TOP - 12}" text-anchor="middle"'
                    f' fill="#666666">{10**value:g}</text>',
                ]
    return parts


def _times(ratio: float) -> str:
    return f"{_short(ratio)}×" if ratio >= 1 else f"{ratio:.2f}×"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("`", "")
