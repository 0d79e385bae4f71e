"""House rules that no other tool checks: sizes, docstrings, leftovers, links.

Works on the files that git would take in (or, outside a clone, on all that are not ignored by
name), so that a new file is checked before it is committed.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILE_LINES_MAX = 400
LONGER_FILES = {
    "broker/quiverlog/broker_keys.py": "a table: every key of a broker's configuration.",
    "broker/quiverlog/cli/read_csv.py": "one machine: text, its records, and what pyarrow makes.",
    "broker/quiverlog/server/broker_server.py": "one machine: a broker's parts, put together.",
    "broker/quiverlog/server/protocol.py": "one machine: a connection from accept to end.",
    "broker/quiverlog/client/consumer_core.py": "one machine: a consumer's positions and rows.",
    "broker/quiverlog/client/routing.py": "one machine: the picture of the cluster, and retries.",
    "broker/quiverlog/client/results.py": "what the client returns, value by value.",
    "broker/quiverlog/node/registration.py": "one machine: all that a broker says of itself.",
    "broker/quiverlog/node/registrar.py": "one machine: what the controller makes of that.",
    "tests/unit/test_node_registrations.py": "one machine's tests: the controller's side of it.",
    "broker/quiverlog/errors.py": "a table: every error with its number, flags and hint.",
    "broker/quiverlog/client/async_methods.py": "a table: every question with its documentation.",
    "broker/quiverlog/client/sender.py": "one machine: what becomes of a batch, and what is sent.",
    "broker/quiverlog/core/raft/raft.py": "one machine: the glue of its parts, the host's duties.",
    "broker/quiverlog/node/broker.py": "one object: the parts of a broker, put together.",
    "broker/quiverlog/storage/opening.py": "one order of steps, from the files to the log.",
    "broker/quiverlog/storage/segment.py": "one file of a log: bytes, and what is known of them.",
    "broker/quiverlog/wire/messages.py": "a table: every message of the protocol, in its order.",
    "connector/pyspark_quiverlog/option_table.py": "a table: every option, with its explanation.",
    "connector/pyspark_quiverlog/stream_planner.py": "one machine: the state of a streaming query.",
    "broker/quiverlog/storage/data_directory.py": "one directory: its small files, in a row.",
    "scripts/protocol_model.py": "a table: what every field of the protocol means.",
    "tests/model/test_log_model.py": "one machine: a log, and all that may happen to it.",
    "tests/model/test_client_producer_model.py": "one model: the network, the broker, the rules.",
    "tests/sim/host.py": "one machine: a process, its sockets and its lives.",
    "tests/unit/test_batch_validate.py": "one rule after the other, over the same batches.",
    "tests/unit/test_client_controller.py": "one small world, all that may happen to a question.",
    "tests/unit/test_storage_recovery.py": "one log after the other that died, over the same disk.",
    "tests/unit/test_node_produce.py": "one request, all its outcomes, over the same node.",
}
"""Files above the bound, each with its reason; style.md allows 800 lines for a single machine."""
LONGER_LINES_MAX = 800
GENERATED = re.compile(r"^Generated (?:from|by) .*do not edit", re.MULTILINE | re.DOTALL)
QUESTIONS_ALLOWED: dict[str, str] = {}
"""Docstrings and comments that may ask: file -> the question."""
FUNCTION_LINES_MAX = 70
LINE_CHARS_MAX = 100
SKIPPED_PARTS = {
    *(".venv", ".matrix", ".git", "node_modules", "__pycache__", "build", "dist", "site"),
    *(".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".import_linter_cache"),
}
TEXT_SUFFIXES = {".py", ".md", ".sh", ".toml", ".yml", ".yaml", ".cfg", ".txt", ".ini"}

# Spelt in two halves, so that this file passes its own check.
LEFTOVERS = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")
PRONOUN = re.compile(r"\s*(?:It|Its|They|Their|He|She)\b")
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


class Looked:
    """One look at a Python file; its tree is made once and not kept."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path.relative_to(ROOT))
        source = path.read_text()
        tree = ast.parse(source)
        docstring = ast.get_docstring(tree) or ""
        self.lines = len(source.splitlines())
        self.is_written = not GENERATED.search(docstring)
        self.needs_docstring = not docstring and bool(path.name != "__init__.py" or source.strip())
        self.docstrings = list(docstrings(tree))
        self.long_functions = [
            f"{place(path, node.lineno)} {node.name} has {length} lines"
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES_MAX
        ]


@cache
def looked() -> tuple[Looked, ...]:
    return tuple(Looked(path) for path in python_files())


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, text) of each string that stands alone."""
    for node in ast.walk(tree):
        docstring = node.value if isinstance(node, ast.Expr) else None
        if isinstance(docstring, ast.Constant) and isinstance(docstring.value, str):
            yield docstring.lineno, docstring.value


def lengths() -> dict[str, int]:
    """Lines of each Python file that a person writes."""
    return {file.name: file.lines for file in looked() if file.is_written}


def test_no_file_is_longer_than_a_sitting() -> None:
    problems = []
    for name, length in lengths().items():
        limit = LONGER_LINES_MAX if name in LONGER_FILES else FILE_LINES_MAX
        if length > limit:
            problems.append(f"{name} has {length} lines, at most {limit} are wanted")
    report(problems)


def test_the_list_of_longer_files_is_true() -> None:
    found = lengths()
    report(
        [
            f"{name} is listed, and has {found.get(name, 0)} lines"
            for name in LONGER_FILES
            if found.get(name, 0) <= FILE_LINES_MAX
        ]
    )


def test_every_function_fits_a_screen() -> None:
    report([problem for file in looked() for problem in file.long_functions])


def test_every_module_says_what_it_owns() -> None:
    report(
        [f"{place(file.path, 1)} has no module docstring" for file in looked()
         if file.needs_docstring]
    )  # fmt: skip


def prose(file: Looked) -> Iterator[tuple[int, str]]:
    """(line, text) of the docstrings and comments of a file, paragraph by paragraph."""
    for line, docstring in file.docstrings:
        for paragraph in docstring.split("\n\n"):
            yield line, " ".join(paragraph.split())
    for token in tokenize.generate_tokens(io.StringIO(file.path.read_text()).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def test_docstrings_and_comments_state_and_do_not_ask() -> None:
    problems = []
    for file in looked():
        if file.name.startswith(("broker/", "connector/")):
            for line, text in prose(file):
                asks = re.search(r"\?(?:\s|$|[.-]+$)", text)
                if asks and text != QUESTIONS_ALLOWED.get(file.name):
                    problems.append(f"{file.name}:{line} asks: {text[:80]}")
    report(problems)


def shown_texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, text) of the strings that users may read: not docstrings, nor words of assertions."""
    inner = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert | ast.Expr)
        for part in ast.walk(node.msg or node.test if isinstance(node, ast.Assert) else node.value)
        if isinstance(node, ast.Assert) or isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            yield node.lineno, node.value


def test_what_users_read_names_the_actor() -> None:
    """Broker, controller, leader, follower or client; who is told is no answer to who did what."""
    vague = re.compile(r"\b(?:(?:no|some|any)body|whoever|told)\b", re.IGNORECASE)
    problems = []
    for file in looked():
        if file.name.startswith(("broker/", "connector/")):
            for line, text in shown_texts(ast.parse(file.path.read_text())):
                if " " in text and vague.search(text):
                    problems.append(f"{file.name}:{line} does not name the actor: {text[:80]}")
    report(problems)


def test_docstrings_name_what_they_speak_of() -> None:
    report(
        [
            f"{place(file.path, line)} begins with a pronoun: {text[:60]}"
            for file in looked()
            for line, text in file.docstrings
            if PRONOUN.match(text)
        ]
    )


def test_what_begins_with_a_pronoun() -> None:
    found = docstrings(ast.parse("def f():\n    'It is closed.'\n\ndef g():\n    'Items.'\n"))
    assert [line for line, text in found if PRONOUN.match(text)] == [2]


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


def test_spark_is_started_in_one_place() -> None:
    """scripts/test.sh looks for tests of Spark nowhere else."""
    mark = "pytest.mark." + "spark"
    elsewhere = [path for path in (ROOT / "tests").rglob("*.py") if mark in path.read_text()]
    report([f"{path} has the mark" for path in elsewhere if path.parent.name != "spark"])


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
