"""The demo's result computed by pyarrow alone, and the comparison with Spark's.

It differs from the Spark query on purpose: the day comes from the calendar columns, not from
event-time windows, and the totals from the flights, not from the groups.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from quiverlog_demo.flights import DELAYS

__all__ = ["Totals", "aggregate", "differences", "totals_of_delays", "totals_of_flights"]

LATE_MIN = 15
"""A departure is late from this many minutes on (the threshold of US statistics)."""

_ORDER = [("carrier", "ascending"), ("day", "ascending")]


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over all flights, the same for every grouping."""

    flights: int
    cancelled: int
    departed_late: int
    departure_delay_total_min: int
    arrival_delay_total_min: int


def aggregate(flights: pa.Table, weather: pa.Table, airlines: pa.Table) -> pa.Table:
    """Return delays per carrier and day, with the columns of the topic `delays`."""
    rows = _with_measures(_joined(flights, weather, airlines))
    groups = rows.group_by(["carrier", "airline", "day"]).aggregate(
        [
            ([], "count_all"),
            ("cancelled", "sum"),
            ("dep_delay", "count"),  # Of a cancelled flight it is null: no delay of zero.
            ("late", "sum"),
            ("dep_delay", "sum"),
            ("arr_delay", "count"),
            ("arr_delay", "sum"),
            ("rain", "sum"),
            ("unknown", "sum"),
            ("wind_speed", "max"),
        ]
    )
    departed, delay = groups["dep_delay_count"], groups["dep_delay_sum"]
    mean = pc.divide(delay.cast(pa.float64()), pc.if_else(pc.equal(departed, 0), None, departed))
    columns = {
        "carrier": groups["carrier"],
        "airline": groups["airline"],
        "day": groups["day"],
        "flights": groups["count_all"],
        "cancelled": groups["cancelled_sum"],
        "departed": departed,
        "departed_late": groups["late_sum"],
        "departure_delay_total_min": pc.fill_null(delay, 0),
        "departure_delay_mean_min": mean,
        "arrived": groups["arr_delay_count"],
        "arrival_delay_total_min": pc.fill_null(groups["arr_delay_sum"], 0),
        "in_rain": groups["rain_sum"],
        "weather_unknown": groups["unknown_sum"],
        "wind_max_mph": groups["wind_speed_max"],
    }
    return pa.table(columns).cast(DELAYS.schema).sort_by(_ORDER)


def _joined(flights: pa.Table, weather: pa.Table, airlines: pa.Table) -> pa.Table:
    reports = weather.select(["origin", "time_hour", "precip", "wind_speed"]).append_column(
        "reported", pa.repeat(True, weather.num_rows)
    )
    wanted = ["carrier", "origin", "time_hour", "year", "month", "day", "dep_time", "dep_delay"]
    # Outer: a flight whose hour has no report counts as `weather_unknown`, not as dry.
    with_weather = flights.select([*wanted, "arr_delay"]).join(
        reports, ["origin", "time_hour"], join_type="left outer"
    )
    names = airlines.rename_columns({"name": "airline"})
    return with_weather.join(names, "carrier", join_type="inner")


def _with_measures(rows: pa.Table) -> pa.Table:
    """Replace the rows' columns by those that are summed."""
    day = pc.strptime(
        pc.binary_join_element_wise(
            *(rows[part].cast(pa.string()) for part in ("year", "month", "day")), "-"
        ),
        format="%Y-%m-%d",
        unit="s",
    ).cast(pa.date32())

    def counted(condition: pa.ChunkedArray) -> pa.ChunkedArray:
        return pc.fill_null(condition, False).cast(pa.int64())

    return pa.table(
        {
            "carrier": rows["carrier"],
            "airline": rows["airline"],
            "day": day,
            "cancelled": counted(pc.is_null(rows["dep_time"])),
            "late": counted(pc.greater_equal(rows["dep_delay"], LATE_MIN)),
            "dep_delay": rows["dep_delay"].cast(pa.int64()),
            "arr_delay": rows["arr_delay"].cast(pa.int64()),
            "rain": counted(pc.greater(rows["precip"], 0.0)),
            "unknown": counted(pc.is_null(rows["reported"])),
            "wind_speed": rows["wind_speed"],
        }
    )


def totals_of_flights(flights: pa.Table) -> Totals:
    return Totals(
        flights=flights.num_rows,
        cancelled=flights["dep_time"].null_count,
        departed_late=_total(pc.greater_equal(flights["dep_delay"], LATE_MIN)),
        departure_delay_total_min=_total(flights["dep_delay"]),
        arrival_delay_total_min=_total(flights["arr_delay"]),
    )


def totals_of_delays(delays: pa.Table) -> Totals:
    return Totals(**{name: _total(delays[name]) for name in Totals.__dataclass_fields__})


def _total(values: pa.ChunkedArray) -> int:
    return int(pc.sum(values).as_py() or 0)


def differences(got: pa.Table, expected: pa.Table, *, lines_max: int = 10) -> list[str]:
    """Return the differences of two results, one readable line each.

    Args:
        got: in any order.
        expected: from `aggregate`.
    """
    got = got.select(expected.schema.names).cast(expected.schema).sort_by(_ORDER).combine_chunks()
    if got.equals(expected.combine_chunks()):
        return []
    ours, theirs = _by_group(got), _by_group(expected)
    lines = []
    if got.num_rows != len(ours):
        lines.append(f"{got.num_rows - len(ours)} groups came more than once")
    for key in sorted(ours.keys() | theirs.keys()):
        where = f"{key[0]} {key[1]}"
        if key not in ours:
            lines.append(f"{where}: missing")
        elif key not in theirs:
            lines.append(f"{where}: should not be there")
        else:
            lines.extend(
                f"{where}: {name} is {ours[key][name]}, should be {value}"
                for name, value in theirs[key].items()
                if ours[key][name] != value
            )
    return lines[:lines_max]


def _by_group(table: pa.Table) -> dict[tuple[str, str], dict[str, object]]:
    return {(row["carrier"], str(row["day"])): row for row in table.to_pylist()}
