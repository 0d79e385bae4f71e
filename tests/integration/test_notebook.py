"""examples/tour.ipynb: each cell runs, in their order, on a fresh broker.

The cells are run as a kernel would, in one namespace; what a cell's last line gives is its answer.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker import BrokerProcess

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "tour.ipynb"
pytestmark = pytest.mark.process


def cells() -> list[str]:
    notebook = json.loads(NOTEBOOK.read_text())
    assert notebook["nbformat"] == 4
    assert not any(cell.get("outputs") for cell in notebook["cells"]), "clear the outputs"
    return ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]


def answer_of(cell: str, names: dict[str, Any]) -> Any:
    tree = ast.parse(cell)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, NOTEBOOK.name, "exec"), names)  # noqa: S102  # it is our own
    if last is None:
        return None
    return eval(compile(ast.Expression(last.value), NOTEBOOK.name, "eval"), names)  # noqa: S307


def test_every_cell_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = {}
    with BrokerProcess() as broker:
        monkeypatch.setenv("QUIVERLOG_BOOTSTRAP_SERVER", broker.bootstrap)
        answers = [answer_of(cell, names) for cell in cells()]
    shown = [answer for answer in answers if answer is not None]
    assert "3 rows" in repr(next(a for a in shown if type(a).__name__ == "Reading"))
    minutes = next(a for a in shown if type(a).__name__ == "Series")
    assert minutes.to_dict() == {"Lima": 45, "Oslo": 19}
    frame = next(a for a in shown if type(a).__name__ == "DataFrame")
    assert frame.columns == ["city"]
    assert next(a for a in shown if isinstance(a, list)) == [("Lima", 21.0), ("Oslo", 80.5)]
