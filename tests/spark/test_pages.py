"""The guides' blocks that need Spark: each page is one script, with a session as in `pyspark`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.pages import ADDRESS, ROOT, run_python

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(400)]
PAGES = ROOT / "docs"
TOPICS = {
    "carriers": "carrier string, name string",
    "enriched": "carrier string, dep_delay double, name string",
    "flights": "carrier string, dep_delay double",
    "late": "carrier string, dep_delay double",
    "orders": "customer string, cents long",
    "totals": "carrier string, `count` long, batch int, customer string, cents long",
    "trips": "city string not null, minutes int",
}
FLIGHTS = [{"carrier": "UA", "dep_delay": 2.0}, {"carrier": "AA", "dep_delay": 95.5}]
ROWS = {
    "carriers": [{"carrier": "AA", "name": "American"}],
    "flights": FLIGHTS,
    "orders": [{"customer": "Ada", "cents": 950}],
    "trips": [{"city": "Oslo", "minutes": 19}],
}


@pytest.fixture
def topics(client: Any) -> Iterator[None]:
    for name, columns in TOPICS.items():
        client.create_topic(name, columns)
    for name, rows in ROWS.items():
        with client.producer(name) as producer:
            producer.send(rows)
    yield
    for name in TOPICS:
        client.delete_topic(name)


@pytest.mark.usefixtures("topics")
def test_the_pages_run(
    spark: Any, broker: Any, client: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The queries of a block end before the next: each takes two cores when it begins."""
    sources: list[str] = []

    def finish() -> None:
        for query in spark.streams.active:
            query.processAllAvailable()
            sources.extend(source["description"] for source in query.lastProgress["sources"])
            query.stop()

    def run(page: str) -> dict[str, Any]:
        changes = {ADDRESS: broker.bootstrap, "checkpoints/": f"{tmp_path}/"}
        return run_python(ROOT / "docs" / page, changes, finish, spark=spark)

    def rows(topic: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = client.read(topic).to_arrow().to_pylist()
        return found

    try:
        names = run("spark.md")
        spark.streams.removeListener(names["listener"])
        assert [row.asDict() for row in names["past"].collect()] == FLIGHTS
        assert rows("late") == FLIGHTS[1:]
        assert rows("enriched") == [FLIGHTS[1] | {"name": "American"}]
        counts = {(row["carrier"], row["count"], row["batch"]) for row in rows("totals")}
        assert counts == {("UA", 1, 0), ("AA", 1, 0)}
        run("exactly-once.md")
        assert [row["cents"] for row in rows("totals") if row["customer"] == "Ada"] == [950]
        names = run("getting-started.md")
        assert "[{'city': 'Pune', 'minutes': 30}]" in capsys.readouterr().out
        assert sum(one["numInputRows"] for one in names["query"].recentProgress) == 2
    finally:
        for query in spark.streams.active:
            query.stop()
    # As spark-cluster.md has it: Spark gives a Python source no name.
    assert sources
    assert all("PythonMicroBatchStream" in one and "@" in one for one in sources), sources
