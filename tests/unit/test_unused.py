"""No code of the product is unused, or used by tests alone.

A name counts as used where the product's code has it as a name, an attribute or an import, outside
of its own definition and of the `__init__` files. It is a coarse net: names that two things share
are used as soon as one of them is.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
PRODUCT: Final = ("broker/quiverlog", "connector/pyspark_quiverlog", "demo/quiverlog_demo")
EXCEPTIONS: Final[dict[str, str]] = {
    **dict.fromkeys(
        [
            "connector/pyspark_quiverlog/__init__.py:streamReader",
            "connector/pyspark_quiverlog/lag.py:onQueryIdle",
            "connector/pyspark_quiverlog/lag.py:onQueryProgress",
            "connector/pyspark_quiverlog/lag.py:onQueryStarted",
            "connector/pyspark_quiverlog/lag.py:onQueryTerminated",
            "connector/pyspark_quiverlog/stream_reader.py:getDefaultReadLimit",
        ],
        "Spark calls it",
    ),
    **dict.fromkeys(
        [
            "connector/pyspark_quiverlog/lag.py:LagListener",
            "connector/pyspark_quiverlog/lag.py:instrument",
            "broker/quiverlog/otel.py:instrument",
            "broker/quiverlog/otel.py:uninstrument",
            "broker/quiverlog/client/consumer/async_reading.py:to_polars",
            "broker/quiverlog/client/consumer/reading.py:to_polars",
            "broker/quiverlog/client/replay/replay.py:to_polars",
        ],
        "programs call it",
    ),
    "connector/pyspark_quiverlog/lag.py:do_GET": "http.server calls it",
    "connector/pyspark_quiverlog/lag.py:log_message": "http.server calls it",
    "broker/quiverlog/server/http.py:handle_error": "aiohttp calls it",
    "broker/quiverlog/client/tables/duckdb.py:scanner": "DuckDB calls it",
    "broker/quiverlog/client/tables/duckdb.py:to_reader": "DuckDB calls it",
    "connector/pyspark_quiverlog/option_table.py:options_page": "scripts/build_docs.py calls it",
}
"""`file:name`, or a folder -> who needs it although nothing in the product uses it."""

ASYNCIO_CALLS = frozenset(
    (
        *("connection_made", "data_received", "eof_received", "connection_lost"),
        *("get_buffer", "buffer_updated", "pause_writing", "resume_writing"),
    )
)
"""The methods of a protocol."""

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def definitions(tree: ast.AST) -> Iterator[Definition]:
    for node in ast.walk(tree):
        if isinstance(node, Definition) and not node.name.startswith("_"):
            yield node


def used_names(tree: ast.AST) -> Counter[str]:
    """How often each name is used; a function that calls itself does not use itself."""
    found: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found[node.id] += 1
        elif isinstance(node, ast.Attribute):
            found[node.attr] += 1
        elif isinstance(node, ast.alias) and node.asname not in (None, node.name):
            found[node.name] += 1
        elif isinstance(node, Definition):
            found[node.name] -= sum(
                isinstance(inner, ast.Name) and inner.id == node.name for inner in ast.walk(node)
            )
    return found


def unused(trees: dict[str, ast.AST]) -> list[str]:
    """Public definitions that nothing uses, as `file:name`."""
    used: Counter[str] = Counter()
    for tree in trees.values():
        used.update(used_names(tree))
    return sorted(
        f"{name}:{node.name}"
        for name, tree in trees.items()
        for node in definitions(tree)
        if used[node.name] <= 0 and not node.decorator_list
    )


@cache
def unused_in_product() -> list[str]:
    trees: dict[str, ast.AST] = {
        str(path.relative_to(ROOT)): ast.parse(path.read_text())
        for folder in PRODUCT
        for path in sorted((ROOT / folder).rglob("*.py"))
    }
    return unused(trees)


def is_excepted(found: str) -> bool:
    if found.rpartition(":")[2] in ASYNCIO_CALLS:
        return True
    return found in EXCEPTIONS or f"{found.rpartition('/')[0]}/*" in EXCEPTIONS


def test_everything_is_used_by_the_product() -> None:
    assert [found for found in unused_in_product() if not is_excepted(found)] == []


def test_every_exception_is_needed() -> None:
    found = unused_in_product()
    folders = {f"{one.rpartition('/')[0]}/*" for one in found}
    assert set(EXCEPTIONS) - set(found) - folders == set()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def f(): pass", ["m:f"]),
        ("def f(): f()", ["m:f"]),
        ("class C:\n    def go(self): pass\nC()", ["m:go"]),
        ("class C:\n    def go(self): pass\nC().go()", []),
        ("def f(): pass\nf()", []),
        ("def _f(): pass", []),
    ],
)
def test_the_search_itself(source: str, expected: list[str]) -> None:
    assert unused({"m": ast.parse(source)}) == expected
