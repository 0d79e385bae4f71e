"""The demo's verdict: it must be able to fail."""

from __future__ import annotations

import importlib.util
import io
import json
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from rich.console import Console

from quiverlog.cli.console.failures import CommandFailed, ExitCode
from quiverlog_demo import expected, report
from quiverlog_demo.flights import load_tables
from quiverlog_demo.report import Leg
from quiverlog_demo.run import DemoOptions, _check_requirements, _SparkLeg, _verdict

FLIGHTS = 2_000


@pytest.fixture(scope="module")
def tables() -> dict[str, pa.Table]:
    return load_tables(flights_max=FLIGHTS)


@pytest.fixture(scope="module")
def good(tables) -> pa.Table:
    return expected.aggregate(tables["flights"], tables["weather"], tables["airlines"])


@pytest.fixture
def options(tmp_path: Path) -> DemoOptions:
    return DemoOptions(
        keep=False,
        brokers=1,
        plot=tmp_path / "delays.png",
        flights_max=FLIGHTS,
        rows_per_batch=1,
        timeout_s=1.0,
        as_json=False,
    )


def judge(tables, delays, options, *, rows_late=0, acknowledged=FLIGHTS) -> tuple[int, str]:
    done = {"rows_in": FLIGHTS + 1, "rows_late": rows_late, "batches": 3, "busy_seconds": 2.0}
    done |= {"first_seconds": 1.0, "warm_rows_per_s": 1000.0}
    events = {"done": done, "spark": {"version": "4.3.0", "seconds": 5.0}}
    legs = [
        Leg("flights -> broker", FLIGHTS, acknowledged, 1.0),
        Leg("broker -> Spark -> broker", FLIGHTS, delays.num_rows, 2.0),
        Leg("delays -> client", delays.num_rows, delays.num_rows, 0.1),
    ]
    text = io.StringIO()
    console = Console(file=text, width=200, highlight=False)
    code = _verdict(tables, delays, _SparkLeg(legs[1], events, None), legs, options, console)
    return code, text.getvalue()


def test_equal_results_pass_and_are_drawn(tables, good, options):
    code, text = judge(tables, good, options)
    assert code == ExitCode.OK
    assert "equal pyarrow's: 2,000 flights" in text
    assert "United Air Lines" in text
    assert options.plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (lambda t: t.slice(1), "missing"),
        (lambda t: pa.concat_tables([t, t.slice(0, 1)]), "more than once"),
        (lambda t: t.set_column(3, "flights", pa.compute.add(t["flights"], 1)), "flights is"),
        (
            lambda t: t.set_column(8, t.field(8), pa.compute.add(t.column(8), 1e-9)),
            "departure_delay_mean_min is",
        ),
    ],
)
def test_any_difference_fails(tables, good, options, spoil, expected):
    code, text = judge(tables, spoil(good), options)
    assert code == ExitCode.DIFFERENT
    assert "DIFFERENT  " in text
    assert expected in text


def test_rows_that_spark_dropped_or_no_broker_acknowledged_fail(tables, good, options):
    code, text = judge(tables, good, options, rows_late=3)
    assert code == ExitCode.DIFFERENT
    assert "dropped 3 rows" in text
    code, text = judge(tables, good, options, acknowledged=FLIGHTS - 1)
    assert code == ExitCode.DIFFERENT
    assert "1999 of 2000 flights were acknowledged" in text


def test_json_has_the_same_verdict(tables, good, options, capsys):
    assert judge(tables, good.slice(1), replace(options, as_json=True))[0] == ExitCode.DIFFERENT
    result = json.loads(capsys.readouterr().out)
    assert result["ok"] is False
    assert "missing" in result["differences"][0]
    assert result["legs"][0]["rows_per_s"] == FLIGHTS / 1.0


def test_carriers_and_days_add_up(tables, good):
    carriers, days = report.by_carrier(good), report.by_day(good)
    for table in (carriers, days):
        assert pa.compute.sum(table["flights"]).as_py() == FLIGHTS
    assert carriers["flights"].to_pylist() == sorted(carriers["flights"].to_pylist(), reverse=True)
    first = carriers.slice(0, 1).to_pylist()[0]
    assert first["late_percent"] == first["departed_late"] / first["departed"] * 100


def days_of(late: list[int], departed: int = 10) -> pa.Table:
    first = date(2013, 1, 1)
    rows = [
        {
            "day": first + timedelta(days=n),
            "departed": departed,
            "departed_late": value,
            "late_percent": 100 * value / departed if departed else None,
        }
        for n, value in enumerate(late)
    ]
    return pa.Table.from_pylist(rows)


def test_the_mean_of_seven_days_lies_in_their_middle() -> None:
    found = report.late_in_the_week(days_of([0, 0, 0, 7, 0, 0, 0, 7]))
    assert found[:5] == [100 * 7 / 40, 100 * 7 / 50, 100 * 7 / 60, 100 * 7 / 70, 100 * 14 / 70]
    assert report.late_in_the_week(days_of([0, 0], departed=0)) == [None, None]


def test_the_worst_day_is_the_first_of_the_largest() -> None:
    assert report.worst_day(days_of([1, 6, 2, 6])) == (date(2013, 1, 2), 60.0)
    assert report.worst_day(days_of([0], departed=0)) is None


def test_the_picture_marks_the_worst_day(tmp_path: Path, good: pa.Table) -> None:
    report.draw(good, tmp_path / "delays.png")
    assert (tmp_path / "delays.png").read_bytes().startswith(b"\x89PNG")
    report.draw(good.slice(0, 0), tmp_path / "empty.png")


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        (["uvloop"], "uvloop is missing: "),
        (["uvloop", "matplotlib"], "uvloop and matplotlib are missing: "),
        (["uvloop", "pyspark", "matplotlib"], "uvloop, pyspark and matplotlib are missing: "),
    ],
)
def test_the_demo_names_all_missing_packages_before_it_starts_a_broker(
    monkeypatch: pytest.MonkeyPatch, missing: list[str], expected: str
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in missing else find(name)
    )
    with pytest.raises(CommandFailed) as caught:
        _check_requirements()
    text = str(caught.value)
    assert text.startswith(expected)
    assert text.count("pip install ") == 1
    assert all(f"{name}>=" in text for name in missing)
