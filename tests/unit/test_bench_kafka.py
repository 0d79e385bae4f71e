"""What can be wrong with the comparison with Kafka without a Kafka."""

from __future__ import annotations

import hashlib
import json
import re
import signal
import threading
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kafka import fetch, report
from benchmarks.kafka.__main__ import PARTS, arguments, bounded, output_of
from benchmarks.kafka.measure import Plan, in_turns


def test_each_jar_is_pinned_and_named_once() -> None:
    sections = fetch.table()
    assert set(sections) == {"broker", "spark"}
    for jars in sections.values():
        assert all(re.fullmatch(r"[0-9a-f]{64}", jar.sha256) for jar in jars)
        assert len({jar.artifact for jar in jars}) == len(jars)
    of_kafka = [jar for jar in sections["broker"] if jar.group == "org.apache.kafka"]
    assert len(of_kafka) > 10
    assert {jar.version for jar in of_kafka} == {fetch.version_of("broker", "kafka_2.13")}
    (connector,) = [jar for jar in sections["spark"] if jar.artifact.startswith("spark-sql-kafka")]
    assert connector.path == (
        "org/apache/spark/spark-sql-kafka-0-10_2.13/4.2.0/spark-sql-kafka-0-10_2.13-4.2.0.jar"
    )


def test_a_jar_with_other_bytes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = tmp_path / "maven" / "a" / "b" / "one" / "1" / "one-1.jar"
    stored.parent.mkdir(parents=True)
    stored.write_bytes(b"bytes")
    right = fetch.Jar("a.b", "one", "1", hashlib.sha256(b"bytes").hexdigest())
    monkeypatch.setenv("MAVEN_MIRROR", (tmp_path / "maven").as_uri() + "/")
    to = tmp_path / "one.jar"
    fetch.download(right, to)
    assert to.read_bytes() == b"bytes"
    stored.write_bytes(b"other")
    with pytest.raises(RuntimeError, match="has the SHA-256"):
        fetch.download(right, to)
    assert not to.exists()


def test_sides_take_turns_and_begin_in_another_order_each_round(
    capsys: pytest.CaptureFixture[str],
) -> None:
    called: list[str] = []

    def side(name: str) -> float:
        called.append(name)
        return float(len(called))

    figures = in_turns(2, {name: lambda name=name: side(name) for name in "abc"})  # type: ignore[misc]
    assert called == [*"cab", *"abc", *"bca"]
    assert figures == {"a": [4.0, 9.0], "b": [5.0, 7.0], "c": [6.0, 8.0]}
    assert "round 2 of 2" in capsys.readouterr().out


def test_a_quick_plan_is_an_eighth() -> None:
    assert Plan(quick=True).scaled(800) == 100
    assert Plan(quick=True).scaled(4, at_least=1) == 1
    assert Plan().scaled(800) == 800


def test_a_part_and_a_quick_run_leave_the_whole_results() -> None:
    part = next(iter(PARTS))
    assert output_of(arguments([])) == report.RESULTS
    assert output_of(arguments([part])) != report.RESULTS
    assert output_of(arguments(["--quick"])) != report.RESULTS
    assert output_of(arguments([part, "--merge"])) == report.RESULTS
    for refused in (["--quick", "--merge"], ["no-such-part"]):
        with pytest.raises(SystemExit):
            arguments(refused)


def test_a_part_that_takes_too_long_is_interrupted() -> None:
    with pytest.raises(TimeoutError, match="more than 0 s"), bounded(0.01):
        threading.Event().wait(30)
    with bounded(30.0):
        pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def results() -> dict[str, Any]:
    def row(what: str, bigger: bool, **figures: list[float]) -> dict[str, Any]:
        return {"what": what, "unit": "u", "bigger_is_better": bigger, "figures": figures}

    part = {"measured_at": "2026-01-02T03:04:05+00:00", "commit": "abc", "load": 0.5}
    rows = [
        row("rate", True, quiverlog=[30.0, 20.0, 25.0], default=[10.0], tuned=[12.5]),
        row("time <1>", False, quiverlog=[4.0], default=[2.0], tuned=[8.0]),
        row("same", False, quiverlog=[2.0], default=[2.04]),
    ]
    return {
        "quick": False,
        "machine": {"cpus": 2, "cpu": "X", "system": "Linux", "kernel": "6.1-a"},
        "versions": {"Apache Kafka": "4"},
        "parts": {"p": part | {"rows": rows}, "q": part | {"rows": [], "failed": "Error: e"}},
    }


def test_the_better_settings_of_kafka_are_quoted(tmp_path: Path) -> None:
    rate, time, same = map(report.quoted, results()["parts"]["p"]["rows"])
    assert (rate.settings, rate.ratio, rate.verdict) == ("tuned", 2.0, "2")
    assert rate.ours_spread == 0.4
    assert (time.settings, time.ratio) == ("default", 0.5)
    assert time.verdict == "0.50 (**Kafka**)"
    assert same.verdict == "1.02 (even)"


def test_the_table_and_the_picture_render(tmp_path: Path) -> None:
    path = tmp_path / "kafka.json"
    assert report.table(path=path) == "Not measured yet: `make bench-kafka`.\n"
    path.write_text(json.dumps(results()))
    text = report.table(path=path)
    assert "| rate | u | 25 (±20%) | 12.5 (±0%) | tuned | 2 |" in text
    assert "Not measured, because it failed: q." in text
    assert "Apache Kafka 4; 2 cores of X, Linux 6.1" in text
    assert "pictures/kafka.svg" in text
    assert "pictures/kafka.svg" not in report.table(("rate",), path)
    assert "time <1>" not in report.table(("rate",), path)
    picture = ET.fromstring(report.picture(path))
    names = [one.text for one in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert {"rate", "time <1>", "same", "2×", "0.50×"} <= set(names)


def test_the_rows_of_the_readme_were_measured() -> None:
    found = report.read_results()
    measured = {row.what for row in report.rows_of(found)}
    assert not found or set(report.SHORT) <= measured
