"""The server's modules import each other without a circle, annotations' imports included."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[3] / "broker" / "quiverlog" / "server"
PREFIX = "quiverlog.server."
AS_A_BROKER = (
    "from quiverlog.cli.tools.broker import _as_a_broker_imports\n"
    "with _as_a_broker_imports():\n    from quiverlog.server.process.run import run_broker"
)


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
    modules = {
        ".".join(path.relative_to(FOLDER).with_suffix("").parts): imported(path)
        for path in sorted(FOLDER.rglob("*.py"))
        if path.name != "__init__.py"
    }
    assert len(modules) > 15
    order = list(TopologicalSorter(modules).static_order())  # raises CycleError with the circle
    assert order.index("net.connections") < order.index("net.connection")
    assert order.index("net.connection") < order.index("process.broker_server")


def loaded_by(script: str) -> set[str]:
    """The modules that a process has after these lines."""
    run = subprocess.run(
        [sys.executable, "-c", f"{script}\nimport sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return set(run.stdout.split())


def test_a_broker_imports_nothing_that_it_does_not_need() -> None:
    """pandas takes 40 MB and a third of a second of every start; it came with a rule about keys.

    The others are imported when needed: at the first scrape, for example.
    """
    names = loaded_by(AS_A_BROKER)
    loaded = {name.partition(".")[0] for name in names}
    assert {"quiverlog", "pyarrow"} <= loaded
    assert loaded.isdisjoint({"pandas", "pyspark", "sympy", "scipy"})
    assert loaded.isdisjoint({"numpy", "prometheus_client", "aiohttp", "rich"})
    assert "pyarrow.compute" not in names
    assert not [name for name in names if name.startswith("quiverlog.client")]


def test_numpy_is_hidden_from_the_broker_alone() -> None:
    names = loaded_by(f"{AS_A_BROKER}\nimport numpy; assert numpy.zeros(3).sum() == 0")
    assert "numpy" in names
    assert "numpy" in loaded_by(
        f"import pyarrow, numpy\n{AS_A_BROKER}\nassert pyarrow.array([1]).to_numpy().sum() == 1"
    )


def test_produce_imports_nothing_that_it_does_not_need() -> None:
    """Importing is most of what the command takes for a small file."""
    names = loaded_by(
        "from quiverlog.cli.rows.produce import _import_reader_and_client, produce\n"
        "_import_reader_and_client(); import quiverlog.client.producer.producer"
    )
    assert {"pyarrow.csv", "quiverlog.client.producer.producer"} <= names
    assert names.isdisjoint({"numpy", "rich", "pyarrow.compute", "importlib.metadata", "pandas"})
