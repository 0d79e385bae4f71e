"""The demo's own arithmetic, checked by hand on small tables and once on the whole year."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from quiverlog_demo.expected import (
    Totals,
    aggregate,
    differences,
    totals_of_delays,
    totals_of_flights,
)
from quiverlog_demo.flights import (
    AIRLINES,
    DELAYS,
    FLIGHTS,
    WEATHER,
    closing_flight,
    load_tables,
)
from quiverlog_demo.query import rows_committed

HOUR = datetime(2013, 3, 5, 15, tzinfo=UTC)


def flight(**changes: object) -> dict[str, object]:
    base = dict.fromkeys(FLIGHTS.schema.names)
    base |= {"year": 2013, "month": 3, "day": 5, "carrier": "AA", "origin": "JFK"}
    base |= {"time_hour": HOUR, "dep_time": 900, "dep_delay": 0, "arr_delay": 0}
    return base | changes


def flights_of(*rows: dict[str, object]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=FLIGHTS.schema)


def weather_of(**report: object) -> pa.Table:
    row = {"origin": "JFK", "time_hour": HOUR, "precip": 0.0, "wind_speed": 10.0} | report
    return pa.Table.from_pylist([row], schema=WEATHER.schema)


AIRLINE_TABLE = pa.Table.from_pylist(
    [{"carrier": "AA", "name": "American"}, {"carrier": "UA", "name": "United"}],
    schema=AIRLINES.schema,
)


def groups(flights: pa.Table, weather: pa.Table | None = None) -> list[dict[str, object]]:
    result = aggregate(flights, weather_of() if weather is None else weather, AIRLINE_TABLE)
    assert result.schema == DELAYS.schema
    return result.to_pylist()


def test_a_cancelled_flight_counts_but_is_not_a_delay_of_zero():
    (group,) = groups(
        flights_of(
            flight(dep_delay=30, arr_delay=20),
            flight(dep_time=None, dep_delay=None, arr_delay=None),
        )
    )
    assert (group["flights"], group["cancelled"], group["departed"], group["arrived"]) == (
        2,
        1,
        1,
        1,
    )
    assert group["departure_delay_mean_min"] == 30.0


def test_a_day_with_cancelled_flights_only_has_no_mean():
    (group,) = groups(flights_of(flight(dep_time=None, dep_delay=None, arr_delay=None)))
    assert group["departure_delay_mean_min"] is None
    assert group["departure_delay_total_min"] == 0
    assert group["arrival_delay_total_min"] == 0


def test_late_begins_at_fifteen_minutes():
    (group,) = groups(flights_of(*(flight(dep_delay=minutes) for minutes in (-3, 14, 15, 16))))
    assert group["departed_late"] == 2
    assert group["departure_delay_total_min"] == 42


def test_rain_is_counted_and_a_missing_report_is_not_dry_weather():
    wet = groups(flights_of(flight()), weather_of(precip=0.1))
    dry = groups(flights_of(flight()), weather_of(precip=0.0))
    unknown = groups(flights_of(flight(origin="LGA")))
    assert [g[0]["in_rain"] for g in (wet, dry, unknown)] == [1, 0, 0]
    assert [g[0]["weather_unknown"] for g in (wet, dry, unknown)] == [0, 0, 1]
    assert unknown[0]["wind_max_mph"] is None


def test_groups_are_carrier_and_local_day():
    result = groups(flights_of(flight(), flight(day=6), flight(carrier="UA"), flight(carrier="UA")))
    assert [(g["carrier"], g["day"], g["flights"]) for g in result] == [
        ("AA", date(2013, 3, 5), 1),
        ("AA", date(2013, 3, 6), 1),
        ("UA", date(2013, 3, 5), 2),
    ]


def test_the_closing_flight_is_a_valid_row_that_no_airline_flies():
    flights = flights_of(flight())
    closing = closing_flight(flights)
    closing.validate(full=True)
    assert closing.schema == FLIGHTS.schema
    assert closing["time_hour"][0].as_py() == HOUR.replace(year=2014)
    both = pa.concat_tables([flights, pa.Table.from_batches([closing])])
    assert groups(both) == groups(flights)


@pytest.fixture(scope="module")
def year() -> dict[str, pa.Table]:
    return load_tables()


def test_the_year_is_whole_and_in_order(year: dict[str, pa.Table]):
    sizes = {name: table.num_rows for name, table in year.items()}
    assert sizes == {"flights": 336_776, "weather": 26_115, "airlines": 16, "airports": 1_458}
    moments = year["flights"]["time_hour"].cast(pa.int64()).to_numpy()
    assert (moments[1:] >= moments[:-1]).all()


def test_totals_of_the_year_do_not_depend_on_the_grouping(year: dict[str, pa.Table]):
    delays = aggregate(year["flights"], year["weather"], year["airlines"])
    assert totals_of_delays(delays) == totals_of_flights(year["flights"])
    assert totals_of_flights(year["flights"]) == Totals(
        flights=336_776,
        cancelled=8_255,
        departed_late=72_914,
        departure_delay_total_min=4_152_200,
        arrival_delay_total_min=2_257_174,
    )


def test_days_of_windows_from_five_utc_are_the_calendar_days(year: dict[str, pa.Table]):
    """What the Spark query rests on: its windows of 24 hours begin at 05:00 UTC."""
    flights = year["flights"]
    seconds = flights["time_hour"].cast(pa.int64()).to_numpy() // 1_000_000
    windows = (seconds - 5 * 3600) // 86_400
    calendar = [
        date(2013, month, day).toordinal() - date(1970, 1, 1).toordinal()
        for month, day in zip(flights["month"].to_pylist(), flights["day"].to_pylist(), strict=True)
    ]
    assert windows.tolist() == calendar


def test_equal_results_in_another_order_show_no_difference():
    expected = aggregate(
        flights_of(flight(), flight(day=6), flight(carrier="UA")), weather_of(), AIRLINE_TABLE
    )
    assert differences(expected.take([2, 0, 1]), expected) == []


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda t: t.slice(0, 1), "AA 2013-03-06: missing"),
        (lambda t: pa.concat_tables([t, t.slice(0, 1)]), "1 groups came more than once"),
        (
            lambda t: t.set_column(3, "flights", pa.array([1, 7])),
            "AA 2013-03-06: flights is 7, should be 1",
        ),
    ],
)
def test_every_difference_is_named(change, line):
    expected = aggregate(flights_of(flight(), flight(day=6)), weather_of(), AIRLINE_TABLE)
    assert line in differences(change(expected), expected)


def test_a_group_too_many_is_named():
    expected = aggregate(flights_of(flight()), weather_of(), AIRLINE_TABLE)
    more = aggregate(flights_of(flight(), flight(day=6)), weather_of(), AIRLINE_TABLE)
    assert differences(more, expected) == ["AA 2013-03-06: should not be there"]


def test_a_run_goes_on_behind_what_runs_before_it_have_committed(tmp_path: Path) -> None:
    assert rows_committed(tmp_path) == 0
    for directory in ("offsets", "commits"):
        (tmp_path / directory).mkdir()
    for batch, read in enumerate((3, 70, 900)):
        partitions = {"0": [read, 0], "1": [read + 1, 0]}
        offset = {"v": 1, "topics": {"flights": {"id": "a", "partitions": partitions}}}
        lines = ["v1", '{"batchWatermarkMs":0}', json.dumps(offset)]
        (tmp_path / "offsets" / str(batch)).write_text("\n".join(lines))
    for name in ("0", "1", ".1.crc"):
        (tmp_path / "commits" / name).touch()
    assert rows_committed(tmp_path) == 141
