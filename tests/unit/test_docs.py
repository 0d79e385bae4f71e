"""The generated pages agree with the tables in the code, and commands in the docs exist."""

from __future__ import annotations

import ast
import re

import pytest

from scripts.build_docs import MARKED, PAGES, ROOT, wanted_texts


def test_generated_pages_are_fresh() -> None:
    stale = [
        str(page.relative_to(ROOT))
        for page, text in wanted_texts().items()
        if not page.exists() or page.read_text() != text
    ]
    assert not stale, "type `make docs`"


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/benchmarks.md"])
def test_make_targets_that_are_named_exist(page: str) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"`?make ([a-z][a-z-]*)\b", _code(ROOT.joinpath(page).read_text())))
    assert named, f"{page} names no target"
    assert named <= targets


def _code(markdown: str) -> str:
    """The text in backticks or fences; prose is free."""
    return "\n".join(re.findall(r"```.*?```|`[^`]*`", markdown, re.DOTALL))


def test_the_paths_that_pages_name_exist() -> None:
    """From the root of the repository, or from the package `quiverlog` as in the architecture."""
    homes = (ROOT, ROOT / "broker", ROOT / "broker" / "quiverlog")
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    missing = []
    for page in pages:
        named = set(re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", page.read_text()))
        assert page.name != "architecture.md" or len(named) > 30
        missing += [
            f"{page.name}: {path}"
            for path in named
            if not any((home / path).exists() for home in homes)
        ]
    assert not missing


def test_the_members_of_classes_that_pages_name_exist() -> None:
    """Such as `Log.append`: a rename of the code is one of the page, too."""
    source = [
        path.read_text() for home in ("broker", "connector") for path in (ROOT / home).rglob("*.py")
    ]
    pages = [ROOT / "docs" / "architecture.md", *(ROOT / "docs" / "adr").glob("*.md")]
    named = {
        (page.name, *match)
        for page in pages
        for match in re.findall(r"`([A-Z][a-z]\w+)\.(\w+)\b", page.read_text())
    }
    assert len(named) > 5
    missing = [
        f"{page}: {owner}.{member}"
        for page, owner, member in sorted(named)
        if not any(
            re.search(rf"^class {owner}\b", text, re.MULTILINE)
            and re.search(rf"\b(?:def {member}\b|{member}\s*[:=])", text)
            for text in source
        )
    ]
    assert not missing


def test_every_package_names_what_it_owns() -> None:
    """In its docstring, which the architecture sends its reader to."""
    for package in ("broker/quiverlog", "connector/pyspark_quiverlog", "demo/quiverlog_demo"):
        for path in (ROOT / package).rglob("__init__.py"):
            text = ast.get_docstring(ast.parse(path.read_text())) or ""
            assert 3 <= len(text.splitlines()) <= 12, path


WORDS_MAX = 82_000


def test_what_is_written_by_hand_is_bounded() -> None:
    """Generated pages and tables are counted apart: they grow with the code. No comments."""
    aside = re.compile(f"{MARKED.pattern}|<!--.*?-->", re.DOTALL)
    pages = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    pages += [p for p in (ROOT / "docs").rglob("*.md") if p.name not in PAGES]
    words = {page.name: len(aside.sub("", page.read_text()).split()) for page in pages}
    assert 30_000 < sum(words.values()) <= WORDS_MAX, sorted(words.items(), key=lambda w: w[1])
