"""Runs the notebooks of examples/ and stores what their cells answer.

    python -m scripts.notebooks tour.ipynb spark.ipynb

A broker has to run (QUIVERLOG_BOOTSTRAP_SERVER). Cells run as a kernel would run them, in one
namespace, without Jupyter: what a cell prints and its last value are its outputs. Tests run them
too, and compare what comes with what is stored.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

__all__ = ["comparable", "run", "stored"]

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
DIFFERS = (
    (re.compile(r"\b[0-9a-f]{32}\b"), "ID"),
    (re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "ID"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.0-9+:Z]*"), "TIME"),
)
"""What is another from run to run."""


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def load(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((EXAMPLES / name).read_text())
    assert found["nbformat"] == 4
    return found


def run(name: str) -> tuple[list[list[dict[str, Any]]], list[Any]]:
    """Run all cells; return the outputs of each, and the values of those that have one."""
    names: dict[str, Any] = {"__name__": "__main__"}
    outputs, values = [], []
    for count, cell in enumerate(code_cells(load(name)), 1):
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        printed, value = io.StringIO(), None
        with contextlib.redirect_stdout(printed):
            exec(compile(tree, name, "exec"), names)  # noqa: S102  # it is our own
            if last is not None:
                value = eval(compile(ast.Expression(last.value), name, "eval"), names)  # noqa: S307
        shown = _shown(value, count)  # At once: a reading shows the rows of this moment.
        outputs.append([*_stream(printed.getvalue()), *shown])
        values += [value] if shown else []
    return outputs, values


def stored(name: str) -> list[list[dict[str, Any]]]:
    return [cell["outputs"] for cell in code_cells(load(name))]


def comparable(outputs: list[list[dict[str, Any]]]) -> str:
    text = json.dumps(outputs, indent=1, sort_keys=True)
    for pattern, word in DIFFERS:
        text = pattern.sub(word, text)
    return text


def _stream(printed: str) -> list[dict[str, Any]]:
    if not printed:
        return []
    return [{"name": "stdout", "output_type": "stream", "text": printed.splitlines(True)}]


def _shown(value: Any, count: int) -> list[dict[str, Any]]:
    if value is None:
        return []
    data = {"text/plain": repr(value).splitlines(True)}
    html = getattr(value, "_repr_html_", lambda: None)()
    if html is not None:
        data["text/html"] = html.splitlines(True)
    result = {"output_type": "execute_result", "execution_count": count, "metadata": {}}
    return [{**result, "data": data}]


def main(notebook_names: list[str]) -> None:
    for name in notebook_names:
        notebook = load(name)
        outputs, _ = run(name)
        for count, (cell, found) in enumerate(zip(code_cells(notebook), outputs, strict=True), 1):
            cell["outputs"], cell["execution_count"] = found, count
        text = json.dumps(notebook, indent=1, ensure_ascii=False)
        (EXAMPLES / name).write_text(text + "\n")
        print(f"examples/{name}: outputs stored")


if __name__ == "__main__":
    main(sys.argv[1:])
