"""README.md's stream of Spark, run on the topics that README.md makes before it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.broker import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()
pytestmark = pytest.mark.spark


def test_the_stream_of_the_readme_runs(
    spark: SparkSession, broker: BrokerProcess, client: Any, tmp_path: Path
) -> None:
    block = next(
        text
        for text in re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
        if "readStream" in text
    )
    for topic in ("flights", "late"):
        client.create_topic(topic, "carrier string, delay double")
    with client.producer("flights") as producer:
        producer.send([{"carrier": "UA", "delay": 2.0}, {"carrier": "AA", "delay": -5.5}])
    program = block.replace("127.0.0.1:9292", broker.bootstrap)
    program = program.replace("checkpoints/late", str(tmp_path / "checkpoint"))
    names: dict[str, Any] = {"spark": spark}
    exec(compile(program, "README.md", "exec"), names)  # noqa: S102  # it is our own page
    try:
        names["query"].processAllAvailable()
    finally:
        names["query"].stop()
        client.delete_topic("flights")
    assert client.read("late").to_arrow().to_pylist() == [{"carrier": "UA", "delay": 2.0}]
    client.delete_topic("late")
