"""Every bound that an error's text names is in the table of docs/protocol.md."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from quiverlog import errors, limits
from scripts.limits_table import LIMITS, limits_table

ROOT = Path(__file__).resolve().parents[2]


def _raised_bounds() -> Iterator[tuple[str, str]]:
    """(constant, file) for each bound that an error names."""
    kinds = {name for name, kind in vars(errors).items() if isinstance(kind, type)}
    for path in sorted((ROOT / "broker" / "quiverlog").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                continue
            if node.func.id in kinds:
                names = (inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name))
                yield from ((name, path.name) for name in names)


def test_every_bound_that_an_error_names_is_in_the_table() -> None:
    found = {(n, file) for n, file in _raised_bounds() if n.endswith("_MAX") and hasattr(limits, n)}
    assert len(found) > 15, "the search has lost its way"
    assert not {(name, file) for name, file in found if name not in LIMITS}


def test_every_bound_of_requests_topics_and_batches_is_in_the_table() -> None:
    """Also where the text does not name it."""
    named = {n for n in vars(limits) if n.endswith("_MAX")}
    part = ("TOPIC", "PARTITIONS_PER", "SCHEMA", "KEY_COLUMNS", "BATCH_", "PRODUCE_", "CONFIGS_PER")
    inside = {"BATCH_BYTES_DEFAULT_MAX", "PRODUCE_CHECKS_MAX", "PRODUCE_CHECK_BYTES_MAX"}
    described = {"SCHEMAS_DESCRIBED_BYTES_MAX"}
    assert {n for n in named if n.startswith(part)} - inside - described <= LIMITS.keys()


def test_the_page_has_the_numbers() -> None:
    page = (ROOT / "docs" / "protocol.md").read_text()
    assert limits_table() in page, "run `make docs`"
    assert f"| {limits.PARTITIONS_PER_BROKER_MAX:,} | partitions of a broker" in page
