"""Every bound that an error's text names is in the table of docs/protocol.md."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from quiverlog import errors, limits
from quiverlog.core.transactions import coordinator, staged
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


def test_the_page_of_transactions_has_its_numbers() -> None:
    page = (ROOT / "docs" / "transactions.md").read_text()
    table = page[page.index("## Limits") : page.index("## Watching")]
    bounds = {
        "a transactional id": (f"{limits.TRANSACTIONAL_ID_CHARS_MAX} characters",),
        "attempts of a commit": (
            f"{limits.TRANSACTION_ATTEMPTS_MAX:,}; {limits.TRANSACTION_PARTS_MAX:,} parts",
        ),
        "rows for one partition": (f"{2**31 - 1:,}",),
        "staged at a broker": ("a quarter", f"{limits.STAGED_BYTES_DEFAULT_MAX // limits.GIB} GiB"),
        "in a partition of `__staged`": (
            f"{staged.STAGED_BATCHES_MAX:,} batches, {staged.STAGED_ATTEMPTS_MAX:,} attempts",
            f"{staged.STAGED_ID_BYTES_MAX // limits.MIB} MiB of ids",
        ),
        "time without a sign of life": (
            f"{limits.TRANSACTION_TIMEOUT_MS_DEFAULT // 60_000} minutes by default",
        ),
        "ids of a partition of `__transactions`": (
            f"{coordinator.IDS_MAX:,}, of them {coordinator.SINGLE_USE_IDS_MAX:,} of single use",
        ),
    }
    assert limits.STAGED_BYTES_DISK_SHARE == 4, "a quarter"
    for what, numbers in bounds.items():
        (row,) = [line for line in table.splitlines() if line.startswith(f"| {what} |")]
        assert [one for one in numbers if one not in row] == [], what
