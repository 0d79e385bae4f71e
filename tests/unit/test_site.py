"""The web site has every page, and is laid out so that its links resolve."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from quiverlog.cli.tools.docs import doors_of
from scripts.site import ROOT, lay_out

CONFIG = (ROOT / "mkdocs.yml").read_text()
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LANDING = (ROOT / "docs" / "README.md").read_text()


def test_every_page_has_a_place_in_the_navigation() -> None:
    named = set(re.findall(r"^ +- ([\w-]+\.md)$", CONFIG, re.MULTILINE))
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert pages - named == set()


def test_the_doors_of_the_landing_page_are_those_of_the_navigation() -> None:
    """So `quiverlog docs`, which reads the landing page, lists what the site has, in its order."""
    of_the_site: dict[str, str] = {}
    door = ""
    for opened, page in re.findall(
        r"^  - ([\w ]+):$|^ {6}- ([\w-]+)\.md$", CONFIG.partition("nav:\n")[2], re.MULTILINE
    ):
        door = opened or door
        if page and (ROOT / "docs" / f"{page}.md").exists():
            of_the_site[page] = door
    listed = {page: door for page, door in doors_of(ROOT / "docs").items() if "/" not in page}
    assert list(listed.items()) == list(of_the_site.items())
    assert len(set(listed.values())) == 3


def test_links_show_titles_and_not_names_of_files() -> None:
    named = [
        f"{page.name}: {name}"
        for page in (ROOT / "docs").rglob("*.md")
        for name in re.findall(r"\[([\w-]+\.md)\]\(", page.read_text())
        if (ROOT / "docs" / name).exists()
    ]
    assert named == []


def test_the_code_of_the_landing_page_is_that_of_the_readme() -> None:
    """A test runs it there."""
    (code,) = re.findall(r"^```python\n(.*?)^```", LANDING, re.MULTILINE | re.DOTALL)
    assert code in (ROOT / "README.md").read_text()


def test_a_diagram_fits_a_phone_and_a_console_stays_code(tmp_path: Path) -> None:
    """Lines of at most 72 characters are 8 pixels high on a phone."""
    lay_out(tmp_path / "pages")
    found = 0
    for page in (tmp_path / "pages").glob("*.md"):
        for columns in re.findall(r'class="diagram" style="--columns: (\d+)"', page.read_text()):
            found += 1
            assert int(columns) <= 72, page.name
    assert found >= 6
    assert "```console" in (tmp_path / "pages" / "operating.md").read_text()


def test_what_is_built_has_no_link_above_itself(tmp_path: Path) -> None:
    lay_out(tmp_path / "pages")
    broken = [
        f"{page.name}: {link}"
        for page in (tmp_path / "pages").rglob("*.md")
        for link in re.findall(r"\]\(([^)#\s]+)", FENCE.sub("", page.read_text()))
        if "://" not in link and not (page.parent / link).resolve().exists()
    ]
    assert broken == []


def test_nothing_is_asked_of_other_servers() -> None:
    assert "font: false" in CONFIG
    assert "://" not in CONFIG


def test_docstrings_of_the_reference_are_read_without_a_warning(caplog) -> None:
    """What its parser cannot read is reported while the site is built, and missing in the site."""
    griffe = pytest.importorskip("griffe")
    names = re.findall(r"^::: ([\w.]+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)
    loader = griffe.GriffeLoader(search_paths=[str(ROOT / "broker")])
    loader.load("quiverlog")
    waiting = [loader.modules_collection[name] for name in names]
    read = 0
    while waiting:
        thing = waiting.pop()
        waiting += [each for each in thing.all_members.values() if not each.name.startswith("_")]
        if thing.docstring is not None:
            read += len(thing.docstring.parse("google"))
    assert read > 100
    assert [record.getMessage() for record in caplog.records] == []
