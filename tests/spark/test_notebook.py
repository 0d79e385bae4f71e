"""examples/spark.ipynb: each cell runs, in their order, and gives what is stored."""

from __future__ import annotations

from typing import Any

import pytest

from scripts import notebooks
from tests.support.broker import BrokerProcess

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.long]


def test_every_cell_gives_what_is_stored(
    spark: Any, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The notebook's session is that of the tests: it stops none."""
    monkeypatch.setenv("QUIVERLOG_BOOTSTRAP_SERVER", broker.bootstrap)
    outputs, shown = notebooks.run("spark.ipynb")
    assert notebooks.comparable(outputs) == notebooks.comparable(notebooks.stored("spark.ipynb"))
    sums, long_rides = (frame.to_dict("list") for frame in shown)
    assert sums == {"city": ["Lima", "Oslo"], "sum(minutes)": [45, 19]}
    assert long_rides == {"city": ["Lima", "Oslo"], "rides": [1, 1], "minutes": [45, 12]}
