"""House rules that no other tool checks: sizes, docstrings, leftovers, links.

Works on the files that git would take in (or, outside a clone, on all that are not ignored by
name), so that a new file is checked before it is committed.
"""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILE_LINES_MAX = 800
FUNCTION_LINES_MAX = 70
LINE_CHARS_MAX = 100
SKIPPED_PARTS = {".venv", ".git", "node_modules", "__pycache__", "build", "dist", "site"}
TEXT_SUFFIXES = {".py", ".md", ".sh", ".toml", ".yml", ".yaml", ".cfg", ".txt", ".ini"}

# Spelt in two halves, so that this file passes its own check.
LEFTOVERS = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")
MACHINE_PATHS = re.compile(r"(?<![\w./:}-])/(?:home|root|Users|work|mnt|data0?\d)/[\w.-]+")


@cache
def files() -> tuple[Path, ...]:
    git = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if git.returncode == 0 and git.stdout:
        names = [ROOT / name for name in git.stdout.split("\0") if name]
    else:
        names = list(ROOT.rglob("*"))
    kept = [p for p in names if p.is_file() and not SKIPPED_PARTS & set(p.relative_to(ROOT).parts)]
    return tuple(sorted(kept))


def python_files() -> list[Path]:
    return [path for path in files() if path.suffix == ".py"]


def text_files() -> list[Path]:
    named = {"Makefile", "Dockerfile", "run"}
    return [path for path in files() if path.suffix in TEXT_SUFFIXES or path.name in named]


def report(problems: list[str]) -> None:
    assert not problems, "\n" + "\n".join(problems)


def place(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def test_the_house_is_there() -> None:
    assert len(python_files()) > 20
    assert ROOT / "README.md" in files()


def test_no_file_is_longer_than_a_sitting() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in python_files()}
    report(
        [
            f"{place(path, length)} has {length} lines, at most {FILE_LINES_MAX} are wanted"
            for path, length in lengths.items()
            if length > FILE_LINES_MAX
        ]
    )


def test_every_function_fits_a_screen() -> None:
    problems = []
    for path in python_files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > FUNCTION_LINES_MAX:
                    problems.append(f"{place(path, node.lineno)} {node.name} has {length} lines")
    report(problems)


def test_every_module_says_what_it_owns() -> None:
    problems = []
    for path in python_files():
        source = path.read_text()
        if path.name == "__init__.py" and not source.strip():
            continue
        if not ast.get_docstring(ast.parse(source)):
            problems.append(f"{place(path, 1)} has no module docstring")
    report(problems)


@pytest.mark.parametrize(
    ("pattern", "what"),
    [(LEFTOVERS, "an unfinished note"), (MACHINE_PATHS, "a path of one machine")],
)
def test_no_leftovers(pattern: re.Pattern[str], what: str) -> None:
    problems = []
    for path in text_files():
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = pattern.search(line)
            if match and path != Path(__file__).resolve():
                problems.append(f"{place(path, number)} has {what}: {match.group()}")
    report(problems)


def test_text_ends_well() -> None:
    problems = []
    for path in text_files():
        text = path.read_text()
        if text and not text.endswith("\n"):
            problems.append(f"{place(path, text.count(chr(10)) + 1)} does not end with a newline")
        if "\r" in text:
            problems.append(f"{place(path, 1)} has carriage returns")
    report(problems)


def headings(markdown: str) -> set[str]:
    """The anchors that a Markdown page offers, as GitHub makes them."""
    outside_code = re.sub(r"^```.*?^```", "", markdown, flags=re.MULTILINE | re.DOTALL)
    anchors = set()
    for title in re.findall(r"^#{1,6} +(.+?) *#*$", outside_code, re.MULTILINE):
        plain = re.sub(r"[`*]|\[([^]]*)\]\([^)]*\)", r"\1", title)
        anchors.add(re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-"))
    return anchors


def broken_links(page: Path) -> list[str]:
    problems = []
    text = page.read_text()
    outside_code = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"(?<!`)\[[^]\n]*\]\(([^)\s]+)\)", outside_code):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        linked = (page.parent / name).resolve() if name else page
        if not linked.exists():
            problems.append(f"{page.relative_to(ROOT)} links to {target}: no such file")
        elif anchor and linked.suffix == ".md" and anchor not in headings(linked.read_text()):
            problems.append(f"{page.relative_to(ROOT)} links to {target}: no such heading")
    return problems


def test_links_in_the_docs_resolve() -> None:
    report([p for page in files() if page.suffix == ".md" for p in broken_links(page)])
