"""The demo's output: delays as a table and as a picture, and the speed of each leg."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

__all__ = [
    "Leg",
    "by_carrier",
    "by_day",
    "draw",
    "late_in_the_week",
    "print_carriers",
    "print_legs",
    "worst_day",
]


@dataclass(frozen=True, slots=True)
class Leg:
    name: str
    rows_in: int
    rows_out: int
    seconds: float

    @property
    def rows_per_s(self) -> float:
        return self.rows_in / self.seconds if self.seconds else 0.0


_SUMMED = [
    "flights",
    "cancelled",
    "departed",
    "departed_late",
    "departure_delay_total_min",
    "in_rain",
]


def by_carrier(delays: pa.Table) -> pa.Table:
    """Sum up the year per airline, the largest first."""
    groups = delays.group_by(["carrier", "airline"]).aggregate([(name, "sum") for name in _SUMMED])
    groups = groups.rename_columns(["carrier", "airline", *_SUMMED])
    return _with_rates(groups).sort_by([("flights", "descending"), ("carrier", "ascending")])


def by_day(delays: pa.Table) -> pa.Table:
    groups = delays.group_by(["day"]).aggregate([(name, "sum") for name in _SUMMED])
    return _with_rates(groups.rename_columns(["day", *_SUMMED])).sort_by("day")


def late_in_the_week(days: pa.Table) -> list[float | None]:
    """Return, for each day, the percentage of late departures in the seven days around it."""
    departed, late = days["departed"].to_pylist(), days["departed_late"].to_pylist()
    found: list[float | None] = []
    # Of the rows, not a mean of percentages: days differ in flights.
    for at in range(len(days)):
        week = slice(max(0, at - 3), at + 4)
        total = sum(departed[week])
        found.append(100 * sum(late[week]) / total if total else None)
    return found


def worst_day(days: pa.Table) -> tuple[date, float] | None:
    """Return (day with the largest percentage of late departures, percentage); None: no
    departures."""
    known = days.filter(pc.is_valid(days["late_percent"]))
    if not len(known):
        return None
    row = known.sort_by([("late_percent", "descending"), ("day", "ascending")]).slice(0, 1)
    return row["day"][0].as_py(), row["late_percent"][0].as_py()


def _with_rates(groups: pa.Table) -> pa.Table:
    departed = groups["departed"].cast(pa.float64())
    departed = pc.if_else(pc.equal(departed, 0.0), None, departed)
    late = pc.multiply(pc.divide(groups["departed_late"].cast(pa.float64()), departed), 100.0)
    mean = pc.divide(groups["departure_delay_total_min"].cast(pa.float64()), departed)
    return groups.append_column("late_percent", late).append_column("mean_min", mean)


def print_carriers(delays: pa.Table, console: Any) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title="Departures from New York, 2013", box=SIMPLE_HEAD, title_justify="left")
    for name in ("CARRIER", "AIRLINE"):
        table.add_column(name)
    for name in ("FLIGHTS", "CANCELLED", "15+ MIN LATE", "MEAN DELAY", "IN RAIN"):
        table.add_column(name, justify="right")
    for row in by_carrier(delays).to_pylist():
        table.add_row(
            row["carrier"],
            row["airline"],
            f"{row['flights']:,}",
            f"{row['cancelled']:,}",
            "" if row["late_percent"] is None else f"{row['late_percent']:.1f} %",
            "" if row["mean_min"] is None else f"{row['mean_min']:.1f} min",
            f"{row['in_rain']:,}",
        )
    console.print(table)


def print_legs(legs: Sequence[Leg], console: Any) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title="The way of the rows", box=SIMPLE_HEAD, title_justify="left")
    table.add_column("LEG")
    for name in ("ROWS IN", "ROWS OUT", "SECONDS", "ROWS/S"):
        table.add_column(name, justify="right")
    for leg in legs:
        table.add_row(
            leg.name,
            f"{leg.rows_in:,}",
            f"{leg.rows_out:,}",
            f"{leg.seconds:.2f}",
            f"{leg.rows_per_s:,.0f}",
        )
    console.print(table)


def _mark_worst(axes: Any, days: pa.Table) -> None:
    """Label the worst day at the top of its bar, below the legend."""
    worst = worst_day(days)
    if worst is None:
        axes.set_ylim(bottom=0)
        return
    day, percent = worst
    axes.bar([day], [percent], width=1.0, color="#cc3311")
    first, last = days["day"][0].as_py(), days["day"][-1].as_py()
    is_late_in_year = (day - first) * 2 > last - first
    axes.annotate(
        f"worst day: {day.day} {day:%B}, {percent:.0f} %",
        (day, percent),
        xytext=(-8 if is_late_in_year else 8, 4),
        textcoords="offset points",
        ha="right" if is_late_in_year else "left",
        color="#cc3311",
    )
    axes.set_ylim(0, max(1.0, percent) * 1.2)


def draw(delays: pa.Table, path: Path) -> None:
    """Write a picture of delays through the year, and per airline."""
    # Without pyplot, which would choose a backend with windows.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.dates import DateFormatter, MonthLocator
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5), layout="constrained")
    FigureCanvasAgg(figure)
    through_year, per_airline = figure.subplots(1, 2, width_ratios=[3, 2])
    days = by_day(delays)
    late = [float("nan") if value is None else value for value in days["late_percent"].to_pylist()]
    dates = days["day"].to_pylist()
    through_year.bar(dates, late, width=1.0, color="#a6c3e0", label="each day")
    week = [float("nan") if value is None else value for value in late_in_the_week(days)]
    through_year.plot(dates, week, color="#1f4e79", linewidth=2, label="mean of seven days")
    _mark_worst(through_year, days)
    through_year.legend(loc="upper left", frameon=False, ncols=2)
    through_year.set_title("Departures at least 15 minutes late, per day")
    through_year.set_ylabel("percent of departures")
    through_year.margins(x=0)
    through_year.xaxis.set_major_locator(MonthLocator())  # type: ignore[no-untyped-call]
    through_year.xaxis.set_major_formatter(DateFormatter("%b"))  # type: ignore[no-untyped-call]
    carriers = by_carrier(delays).sort_by("mean_min")
    per_airline.barh(
        carriers["airline"].to_pylist(),
        [value or 0.0 for value in carriers["mean_min"].to_pylist()],
        color="#ee6677",
    )
    per_airline.set_title("Mean departure delay")
    per_airline.set_xlabel("minutes")
    for axes in (through_year, per_airline):
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle("Flights from New York, 2013, by way of quiverlog and Spark")
    figure.savefig(path, dpi=110, format="png")
