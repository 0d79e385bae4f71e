"""Imports in the node: parts write their own state alone; waiters use few of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from quiverlog.node import broker
from quiverlog.node.broker import Broker

NODE: Final = Path(broker.__file__).parent
FILES: Final = sorted(path for path in NODE.rglob("*.py") if path.name != "__init__.py")
MUTATORS: Final = {
    "add", "append", "clear", "discard", "extend", "insert", "pop", "popleft", "remove",
    "setdefault", "update",
}  # fmt: skip
SHARED: Final = {
    "metrics": "counters, each counted where it happens",
}
ALLOWED: Final = {
    ("partitions/opening.py", "_directory.written"): "taken out by what opens a log",
}
REPLICA_OWNERS: Final = {
    "admitted": {"partitions/replica.py"},
    "answers": {"partitions/replica.py"},
    "corrupt": {"partitions/replica.py"},
    "cutting": {"replication/replica_fetcher.py"},
    "damage": {"replication/repairs.py"},
    "deleted": {"assignment/assignment.py"},
    "fault": {"partitions/flushing.py"},
    "flush_queued": {"partitions/flushing.py"},
    "flush_running": {"partitions/flushing.py"},
    "flush_wanted": {"partitions/flushing.py"},
    "jobs_running": {
        "partitions/cold_reads.py",
        "partitions/flushing.py",
        "replication/repairs.py",
        "replication/replica_fetcher.py",
        "partitions/trimming.py",
        "transactions/hosted.py",
    },  # The file that starts a job counts it.
    "waiters": {"runtime/purgatory.py"},
}
"""A replica is a record of several owners' columns: which files write which."""


def parts() -> set[str]:
    return {name.lstrip("_") for name in Broker.__slots__} - set(SHARED)


def stores(tree: ast.AST) -> Iterator[ast.Attribute]:
    """Attributes that are assigned to, deleted, or of which what they hold is changed in place."""
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.Delete):
            targets = list(node.targets)
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in MUTATORS
        ):
            targets = [node.func.value]
        while targets:
            target = targets.pop()
            if isinstance(target, ast.Tuple):
                targets += target.elts
            elif isinstance(target, ast.Subscript):
                targets.append(target.value)
            elif isinstance(target, ast.Attribute):
                yield target


def foreign(file: str, source: str) -> list[str]:
    """Where a file writes the state of a part that is another file's."""
    found = []
    for target in stores(ast.parse(source)):
        path = ast.unparse(target).split(".")
        place = f"{file}: {'.'.join(path)}"
        if path[0] == "self" and len(path) == 2:
            continue  # Its own.
        holder = path[-2].lstrip("_")
        if holder in ("replica", "taken"):
            allowed = file in REPLICA_OWNERS.get(path[-1], ())
        elif holder == "broker" or holder in parts():
            allowed = (file, ".".join(path[-2:])) in ALLOWED
        else:
            continue
        if not allowed:
            found.append(place)
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(NODE).as_posix())
def test_no_file_writes_the_state_of_another_part(path: Path) -> None:
    assert foreign(path.relative_to(NODE).as_posix(), path.read_text()) == []


@pytest.mark.parametrize(
    "line",
    [
        "broker.admission.phase = 1",
        "self._broker.metadata.waiters[self] = 2",
        "self._broker.metadata.waiters.pop(self, None)",
        "a, broker.removal.directory = 1, 2",
        "broker.directory = 1",
        "del self._metadata.cache['t']",
        "replica.waiters[self] = 1",
        "replica.log = 1",
    ],
)
def test_a_foreign_write_is_found(line: str) -> None:
    assert foreign("fetch.py", line)
    assert not foreign("fetch.py", "self.request = 1; result.offset = 2; broker.admission.enter(1)")


def waiters() -> list[tuple[str, ast.ClassDef]]:
    return [
        (path.relative_to(NODE).as_posix(), node)
        for path in FILES
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and "Waiter" in map(ast.unparse, node.bases)
    ]


def names(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
    return {name.lstrip("_").lower() for name in found}


def test_requests_that_wait_do_not_know_the_broker() -> None:
    """Waiters look up partitions, answer, and have themselves looked at again: nothing else."""
    found = waiters()
    assert {node.name for _, node in found} >= {"FetchWaiter", "OffsetsWaiter", "ProduceWaiter"}
    others = parts() - {"lookup", "waits", "replica"} | {"broker"}
    for file, node in found:
        assert not names(node) & others, (file, node.name)


@pytest.mark.parametrize("module", ["assignment/lookup", "runtime/purgatory"])
def test_what_a_wait_is_made_of_does_not_know_the_broker(module: str) -> None:
    tree = ast.parse((NODE / f"{module}.py").read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert "quiverlog.node.broker" not in imported


def test_what_answers_a_fetch_does_not_know_the_broker() -> None:
    """A fetch that waited is answered by the same code as one that did not."""
    body = ast.parse((NODE / "apis/fetch.py").read_text()).body
    found = [one for one in body if isinstance(one, ast.ClassDef | ast.FunctionDef)]
    assert {one.name for one in found} >= {"FetchAnswer", "read_entry", "handle_fetch"}
    assert [one.name for one in found if "broker" in names(one)] == ["handle_fetch"]
