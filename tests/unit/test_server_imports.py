"""The server's modules import each other without a circle, annotations' imports included."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "broker" / "quiverlog" / "server"
PREFIX = "quiverlog.server."


def imported(path: Path) -> set[str]:
    """Modules of the server that this one imports, under `TYPE_CHECKING` and in functions too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module == PREFIX.rstrip("."):
                names |= {alias.name for alias in node.names}
            elif node.module.startswith(PREFIX):
                names.add(node.module.removeprefix(PREFIX))
        elif isinstance(node, ast.Import):
            names |= {
                alias.name.removeprefix(PREFIX)
                for alias in node.names
                if alias.name.startswith(PREFIX)
            }
    return names


def test_no_circle() -> None:
    modules = {path.stem: imported(path) for path in sorted(FOLDER.glob("*.py"))}
    assert len(modules) > 15
    order = list(TopologicalSorter(modules).static_order())  # raises CycleError with the circle
    assert order.index("connections") < order.index("protocol") < order.index("broker_server")


def test_a_broker_imports_nothing_that_it_does_not_need() -> None:
    """pandas takes 40 MB and a third of a second of every start; it came with a rule about keys."""
    script = "import sys, quiverlog.server.run; print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = {name.partition(".")[0] for name in run.stdout.split()}
    assert "quiverlog" in loaded
    assert loaded.isdisjoint({"pandas", "pyspark", "sympy", "scipy"})
    client = {name for name in run.stdout.split() if name.startswith("quiverlog.client")}
    assert client == set()
