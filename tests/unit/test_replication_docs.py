"""docs/replication-rules.md and the tests name each other: each name and each number exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from quiverlog.types import Durability

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "replication-rules.md").read_text()
LEVELS = (ROOT / "docs" / "replication.md").read_text()
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
CITED = re.compile(r"\b[Rr]ules? (\d+(?:(?:, | and )\d+)*)(?: of (docs/[\w./-]+\.md))?")
OWN_RULES = ("sim", "chaos")
"""Folders of tests whose checkers number rules of their own."""

#: Groups, and their offsets in transactions, are not there yet.
LATER = {24, 26}


def docstring(path: Path, function: str) -> str:
    """The docstring of a test; empty if the test does not exist."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return ast.get_docstring(node) or ""
    return ""


def defined(path: Path) -> set[str]:
    return {
        node.name for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
    }  # fmt: skip


def test_every_test_that_is_named_exists() -> None:
    named = NAMED.findall(PAGE)
    assert len(named) > 10
    missing = [f"{path}::{name}" for path, name in named if name not in defined(ROOT / path)]
    assert missing == []


def test_every_level_is_in_the_table_and_has_its_tests() -> None:
    levels = LEVELS[LEVELS.index("## Durability") : LEVELS.index("### Too few")]
    table = PAGE[PAGE.index("## Durability") : PAGE.index("## Repair")]
    for level in Durability:
        if level >= 0:
            assert f"\n| `{level.label}` | " in levels, level
            tests = [line for line in table.splitlines() if f"| `{level.label}`" in line]
            assert any("survives |" in line and NAMED.search(line) for line in tests), level
            assert any("acknowledged" in line and NAMED.search(line) for line in tests), level


def test_every_rule_has_tests_that_name_it() -> None:
    rules = PAGE[PAGE.index("## The rules") :]
    rows = re.findall(r"^\| (\d+) \| (.*)$", rules, re.MULTILINE)
    assert [int(number) for number, _ in rows] == [n for n in range(1, 33) if n not in LATER]
    for number, row in rows:
        tests = NAMED.findall(row)
        assert tests, number
        for path, name in tests:
            text = docstring(ROOT / path, name)
            assert re.search(rf"[Rr]ules? (\d+(,| and) )*{number}\b", text), (number, path, name)


def wrong_citations(text: str, *, rules: set[str]) -> list[str]:
    """The citations of `text` that name a rule that the page lacks, or another page."""
    return [
        match.group()
        for match in CITED.finditer(" ".join(text.split()))
        if not set(re.findall(r"\d+", match[1])) <= rules
        or (match[2] or "docs/replication-rules.md") != "docs/replication-rules.md"
    ]


def test_every_rule_that_a_test_cites_is_on_the_page() -> None:
    rules = set(re.findall(r"^\| (\d+) \| ", PAGE[PAGE.index("## The rules") :], re.MULTILINE))
    assert (
        wrong_citations("Rules 1 and 32 of docs/replication-rules.md; rule 7.", rules=rules) == []
    )
    for wrong in ("rules 1 and 24", "rule 33", "Rule 7 of docs/replication.md"):
        assert wrong_citations(f"By {wrong}.", rules=rules) == [wrong]
    tests = ROOT / "tests"
    found = [
        f"{path.relative_to(ROOT)}: {wrong}"
        for path in tests.rglob("*.py")
        if path != Path(__file__) and path.relative_to(tests).parts[0] not in OWN_RULES
        for wrong in wrong_citations(path.read_text(), rules=rules)
    ]
    assert found == []


def test_what_is_not_there_is_noticed() -> None:
    assert "test_every_test_that_is_named_exists" in defined(Path(__file__))
    assert "no_such_test" not in defined(Path(__file__))
