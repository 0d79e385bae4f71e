"""Assertions in the broker's machines: how many per function, and each about one thing.

An assertion is for a bug of ours and stays on in production; what a client, a disk or a peer can
cause is an error from `errors.py`. The aim is two per function on average, in functions that are
not trivial. A function is trivial when its body, without the docstring, has at most
`TRIVIAL_LINES_MAX` lines of code: there is little between such a function's first line and its last
that could go wrong unseen. Assertions of trivial functions count for their package all the same,
and an inner function is part of the one around it.

The floors are a ratchet: each is what a package has, and is raised with it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import quiverlog.errors

BROKER: Final = Path(quiverlog.errors.__file__).parent
TRIVIAL_LINES_MAX: Final = 5
CONNECTOR: Final = Path("../../connector/pyspark_quiverlog")
PLANNING: Final = CONNECTOR / "planning"
FLOORS: Final = {
    "core/controller": 1.9,
    "core/partition": 2.0,
    "core/placement": 0.75,  # Plans: functions from values to values, nothing that is kept.
    "core/raft": 2.0,
    "core/replication": 1.8,
    "node": 0.95,
    "storage": 1.4,
    "client": 0.31,
    "client/cluster": 0.24,
    "client/consumer": 0.43,
    "client/producer": 0.44,
    "client/tables": 0.4,
    str(CONNECTOR): 0.34,
    str(PLANNING): 0.64,
}
"""Assertions for each function that is not trivial, at least."""
MACHINES: Final = {
    "client/consumer/core.py": 0.58,
    "client/consumer/fetches.py": 0.5,
    "client/consumer/positions.py": 0.6,
    "client/producer/accumulator.py": 0.64,
    "client/producer/core.py": 0.8,
    "client/producer/sender.py": 0.68,
    "client/cluster/routing.py": 0.4,
    "client/replay/stream_offsets.py": 0.5,
    "client/tables/fetcher.py": 0.5,
    str(PLANNING / "admission.py"): 0.6,
    str(CONNECTOR / "driver_read.py"): 0.5,
    str(PLANNING / "log_view.py"): 0.3,
    str(PLANNING / "ranges.py"): 1.2,
    str(CONNECTOR / "pool.py"): 0.5,
    str(CONNECTOR / "reader.py"): 0.4,
    str(PLANNING / "stream_planner.py"): 0.75,
    str(CONNECTOR / "writer.py"): 0.3,
}
"""The same for single files: those with the state of a reader, a writer or a plan."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST) -> Iterator[Function]:
    """Functions and methods, without those inside of others."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            yield node
        else:
            yield from functions(node)


def is_trivial(function: Function) -> bool:
    """True for a body of a few lines."""
    body = function.body
    if ast.get_docstring(function) is not None:
        body = body[1:]
    # Blank lines and comments have no node: a reason makes no function longer.
    lines = {
        line
        for statement in body
        for node in ast.walk(statement)
        if isinstance(node, ast.stmt | ast.expr | ast.excepthandler)
        for line in (node.lineno, node.end_lineno)
    }
    return len(lines) <= TRIVIAL_LINES_MAX


def count(tree: ast.AST) -> tuple[int, int]:
    """(assertions, functions that are not trivial)."""
    asserts = sum(isinstance(node, ast.Assert) for node in ast.walk(tree))
    return asserts, sum(not is_trivial(function) for function in functions(tree))


def trees(package: str) -> dict[str, ast.Module]:
    return {
        str(path): ast.parse(path.read_text()) for path in sorted((BROKER / package).rglob("*.py"))
    }


def joined(tree: ast.AST) -> list[int]:
    """Lines of assertions that are about two things: `assert a and b`."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert)
        and isinstance(node.test, ast.BoolOp)
        and isinstance(node.test.op, ast.And)
    ]


@pytest.mark.parametrize("package", FLOORS)
def test_a_package_keeps_its_assertions(package: str) -> None:
    counts = [count(tree) for tree in trees(package).values()]
    asserts, bodies = (sum(column) for column in zip(*counts, strict=True))
    assert asserts / bodies >= FLOORS[package], f"{asserts} assertions in {bodies} functions"


@pytest.mark.parametrize("file", MACHINES)
def test_a_machine_keeps_its_assertions(file: str) -> None:
    asserts, bodies = count(ast.parse((BROKER / file).read_text()))
    assert asserts / bodies >= MACHINES[file], f"{asserts} assertions in {bodies} functions"


@pytest.mark.parametrize("package", FLOORS)
def test_an_assertion_is_about_one_thing(package: str) -> None:
    found = [f"{name}:{line}" for name, tree in trees(package).items() for line in joined(tree)]
    assert found == [], "two things: write two assertions, so that a failure names the one"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def f():\n    assert a\n", (1, 0)),
        ("def f():\n    '''Doc.'''\n" + "    x()\n" * 5, (0, 0)),
        ("def f():\n    '''Doc.'''\n" + "    x()\n" * 6, (0, 1)),
        ("def f():\n    # Why.\n\n" + "    x()\n" * 5, (0, 0)),
        ("def f():\n    x(\n" + "        y,\n" * 4 + "    )\n", (0, 1)),
        ("class C:\n    def f(self):\n        assert a\n" + "        x()\n" * 5, (1, 1)),
        ("def f():\n    def g():\n        assert a\n" + "        x()\n" * 5, (1, 1)),
    ],
)
def test_the_count_itself(source: str, expected: tuple[int, int]) -> None:
    assert count(ast.parse(source)) == expected


def test_what_is_joined() -> None:
    assert joined(ast.parse("assert a and b")) == [1]
    assert joined(ast.parse("assert a or b and c\nassert a\nassert not (a and b)")) == []
