"""examples/tour.ipynb: each cell runs, in their order, and gives what is stored."""

from __future__ import annotations

import pytest

from scripts import notebooks
from tests.support.broker import BrokerProcess

pytestmark = pytest.mark.process


def test_every_cell_gives_what_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    with BrokerProcess() as broker:
        monkeypatch.setenv("QUIVERLOG_BOOTSTRAP_SERVER", broker.bootstrap)
        outputs, shown = notebooks.run("tour.ipynb")
    assert notebooks.comparable(outputs) == notebooks.comparable(notebooks.stored("tour.ipynb"))
    assert "3 rows" in repr(next(a for a in shown if type(a).__name__ == "Reading"))
    minutes = next(a for a in shown if type(a).__name__ == "Series")
    assert minutes.to_dict() == {"Lima": 45, "Oslo": 19}
    frame = next(a for a in shown if type(a).__name__ == "DataFrame")
    assert frame.columns == ["city"]
    assert next(a for a in shown if isinstance(a, list)) == [("Lima", 21.0), ("Oslo", 80.5)]
