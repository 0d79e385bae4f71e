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
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILE_LINES_MAX = 800
LONGER_FILES: dict[str, str] = {
    "broker/quiverlog/client/async_methods.py": "one table: a method for each question.",
    "broker/quiverlog/errors.py": "one table: the errors.",
    "broker/quiverlog/node/transactions/hosted.py": "one machine: a leadership of a partition.",
    "broker/quiverlog/storage/log/log.py": "one machine: a partition's log.",
}
"""Files above the bound, each with its reason: one machine or one table."""
SHORT_LINES_MAX = 80
SHORT_FILES: dict[str, str] = {
    "broker/quiverlog/aio.py": "programs import it.",
    "broker/quiverlog/client/base/opening.py": "asyncio only: generated clients leave it out.",
    "broker/quiverlog/client/tables/database.py": "light: every program imports it.",
    "broker/quiverlog/first_use.py": "at the lowest floor: any module may need its lock.",
    "broker/quiverlog/testing.py": "programs import it.",
}
"""Files below the bound with fewer than two importers that stay apart, each with its reason."""
NOT_FOLDED_YET: frozenset[str] = frozenset()
"""The same, but without a reason: each is to be folded into its only importer. Only shrinks."""
FOLDER_FILES_MAX = 20
FULL_FOLDERS: dict[str, int] = {}
"""Folders with more files than the bound, and how many: the number only falls."""
PRODUCT = ("broker/", "connector/", "demo/")
GENERATED = re.compile(r"^Generated (?:from|by) .*do not edit", re.MULTILINE | re.DOTALL)
QUESTIONS_ALLOWED: dict[str, str] = {}
"""Docstrings and comments that may ask: file -> the question."""
PRIVATE_WORDS = re.compile(
    r"\b(?:told|tells?|telling|said|says?|hears?|heard|knows?|(?:no|some|any)body|whoever)\b"
    r"|\b(?:ow(?:es?|ed|ing)|stands?(?!-in)|standing|stood)\b"
    r"|\bso many\b|\bso long\b(?! as\b)|\bsee the module docstring\b"
    # An actor without a noun before it: at the start of a clause, or after such a word.
    r"|(?:(?:^|[.;:,(])\s*|\b(?:of|by|to|for|from|with|and|or|but|than|as|at|on|is|are|those|asks?"
    r"|names?|sees?|one)\s+)whom?\b",
    re.IGNORECASE,
)
"""Words for what a broker, a client or a caller does that the field has better words for: sends,
records, reports, refuses, "at most 5". Docstrings and comments do without them."""
PRIVATE_WORDS_MAX = {
    "batch": 4,
    "benchmarks": 4,
    "cli": 0,
    "client": 4,
    "connector": 0,
    "core": 4,
    "demo": 0,
    "local": 4,
    "node": 0,
    "quiverlog": 4,
    "scripts": 4,
    "server": 0,
    "storage": 4,
    "tests": 2,
    "wire": 4,
}
"""How many of them a package may have in 10,000 words of docstrings and comments. Only falls."""
PROSE_WORDS_MAX = 120_000
"""Words in the docstrings and comments of the product; grows with a new subsystem alone."""
REASONS_MIN: dict[str, float] = {
    "batch": 3.7,
    "cli": 1.6,
    "client": 3.3,
    "connector": 3.2,
    "core": 3.8,
    "demo": 1.6,
    "local": 3.2,
    "node": 3.2,
    "quiverlog": 2.0,
    "server": 2.6,
    "storage": 2.9,
    "wire": 2.4,
}
"""Comments per 100 lines of code, for the packages where each was weighed. Only rises."""
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


COMMENT = re.compile(r"(?:^|\s)#+ (?!type:|noqa|fmt:|pragma|-{5})(.*)")


class Looked:
    """One look at a Python file; its tree is made once and not kept."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path.relative_to(ROOT))
        source = path.read_text()
        tree = ast.parse(source)
        nodes = list(ast.walk(tree))
        docstring = ast.get_docstring(tree) or ""
        self.lines = len(source.splitlines())
        self.is_written = not GENERATED.search(docstring)
        self.needs_docstring = not docstring and bool(path.name != "__init__.py" or source.strip())
        self.docstrings = list(docstrings(nodes))
        self.comments, self.reasons, self.code_lines = comments(source, nodes, self.docstrings)
        is_product = self.name.startswith(PRODUCT)
        self.modules = frozenset(modules_named_in(self.name, nodes) if is_product else ())
        self.shown = list(shown_texts(nodes) if is_product else ())
        self.long_functions = [
            f"{place(path, node.lineno)} {node.name} has {length} lines"
            for node in nodes
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES_MAX
        ]


@cache
def looked() -> tuple[Looked, ...]:
    return tuple(Looked(path) for path in python_files())


def docstrings(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """(line, text) of each string that is a statement."""
    for node in nodes:
        docstring = node.value if isinstance(node, ast.Expr) else None
        if isinstance(docstring, ast.Constant) and isinstance(docstring.value, str):
            yield docstring.lineno, docstring.value


def comments(
    source: str, nodes: Iterable[ast.AST], docstrings: Iterable[tuple[int, str]]
) -> tuple[list[str], int, int]:
    """The text of each comment, how many blocks they form, and the lines of code around them.

    Notes to tools (`noqa`, `type:`) are code.
    """
    in_text = {
        line
        for node in nodes
        if isinstance(node, ast.Constant | ast.JoinedStr) and (node.end_lineno or 0) > node.lineno
        for line in range(node.lineno, (node.end_lineno or 0) + 1)
    }
    in_docstring = {
        line for start, text in docstrings for line in range(start, start + text.count("\n") + 1)
    }
    in_text |= in_docstring
    found, blocks, code, before = [], 0, 0, False
    for number, line in enumerate(source.splitlines(), 1):
        match = COMMENT.search(line) if number not in in_text else None
        alone = match is not None and not line[: match.start()].strip()
        if match:
            found.append(match.group(1))
            blocks += not (alone and before)
        before = alone
        code += bool(line.strip()) and not alone and number not in in_docstring
    return found, blocks, code


def lengths() -> dict[str, int]:
    """Lines of each Python file that a person writes."""
    return {file.name: file.lines for file in looked() if file.is_written}


def test_no_file_holds_more_than_one_machine_or_table() -> None:
    report(
        [
            f"{name} has {length} lines, more than {FILE_LINES_MAX}: split it, or give the reason"
            for name, length in lengths().items()
            if length > FILE_LINES_MAX and name not in LONGER_FILES
        ]
    )


def test_the_list_of_longer_files_is_true() -> None:
    found = lengths()
    report(
        [
            f"{name} is listed, and has {found.get(name, 0)} lines"
            for name in LONGER_FILES
            if found.get(name, 0) <= FILE_LINES_MAX
        ]
    )


def module_name(name: str) -> str:
    """`broker/quiverlog/wire/frames.py` -> `quiverlog.wire.frames`."""
    return ".".join(Path(name).with_suffix("").parts[1:]).removesuffix(".__init__")


def modules_named_in(name: str, nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Dotted names that a file imports, or has as text (the table of commands, lazy names)."""
    home = module_name(name).split(".")
    if not name.endswith("/__init__.py"):
        home = home[:-1]
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = home[: len(home) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value.partition(":")[0]


@cache
def importers() -> dict[str, set[str]]:
    """For each file of the product the others that import it."""
    product = [file for file in looked() if file.name.startswith(PRODUCT)]
    by_module = {module_name(file.name): file.name for file in product}
    found: dict[str, set[str]] = {file.name: set() for file in product}
    for file in product:
        for module in file.modules:
            target = by_module.get(module)
            if target is not None and target != file.name:
                found[target].add(file.name)
    return found


def short_files() -> dict[str, int]:
    """Files that are shorter than the bound and have fewer than two importers: how many they have.

    An `__init__` is a package's face, a `__main__` a program's.
    """
    found = lengths()
    return {
        name: len(others)
        for name, others in importers().items()
        if found.get(name, SHORT_LINES_MAX) < SHORT_LINES_MAX
        and len(others) < 2
        and Path(name).stem not in ("__init__", "__main__")
    }


def test_a_short_file_has_two_importers_or_is_folded() -> None:
    report(
        [
            f"{name} has fewer than {SHORT_LINES_MAX} lines and {count} importers: fold it"
            for name, count in short_files().items()
            if name not in SHORT_FILES and name not in NOT_FOLDED_YET
        ]
    )


def test_the_lists_of_short_files_are_true() -> None:
    listed = [*SHORT_FILES, *NOT_FOLDED_YET]
    report([f"{name} is listed for nothing" for name in listed if name not in short_files()])


def folders() -> dict[str, int]:
    """How many files each folder of the product holds, without `__init__` and `__main__`."""
    found: dict[str, int] = {}
    for file in looked():
        if file.name.startswith(PRODUCT) and file.path.stem not in ("__init__", "__main__"):
            folder = str(Path(file.name).parent)
            found[folder] = found.get(folder, 0) + 1
    return found


def test_folders_can_be_overlooked() -> None:
    report(
        [
            f"{name} has {count} files, more than {FULL_FOLDERS.get(name, FOLDER_FILES_MAX)}"
            for name, count in folders().items()
            if count > FULL_FOLDERS.get(name, FOLDER_FILES_MAX)
        ]
    )


def test_the_list_of_full_folders_is_true() -> None:
    report(
        [
            f"{name} is listed with {count} files and has {folders().get(name, 0)}"
            for name, count in FULL_FOLDERS.items()
            if not FOLDER_FILES_MAX < count == folders().get(name, 0)
        ]
    )


def test_every_function_fits_a_screen() -> None:
    report([problem for file in looked() for problem in file.long_functions])


def test_every_module_names_what_it_owns() -> None:
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


def package_of(name: str) -> str:
    """`broker/quiverlog/core/raft/log.py` -> `core`; `tests/unit/test_tidy.py` -> `tests`."""
    parts = Path(name).parts
    return parts[min(2, len(parts) - 2)] if parts[0] == "broker" else parts[0]


class Prose:
    """What the docstrings and comments of one package come to."""

    def __init__(self, files: list[Looked]) -> None:
        texts = [(file.name, line, text) for file in files for line, text in file.docstrings]
        texts += [(file.name, 0, " ".join(file.comments)) for file in files]
        self.words = sum(len(text.split()) for _, _, text in texts)
        self.private = [
            f"{name}:{line}: {match.group().strip()}"
            for name, line, text in texts
            for match in PRIVATE_WORDS.finditer(" ".join(text.split()))
        ]
        self.reasons = 100 * sum(file.reasons for file in files) / sum(f.code_lines for f in files)

    def private_rate(self) -> float:
        return 10_000 * len(self.private) / max(1, self.words)


@cache
def packages() -> dict[str, Prose]:
    found: dict[str, list[Looked]] = {}
    for file in looked():
        if file.is_written:
            found.setdefault(package_of(file.name), []).append(file)
    return {package: Prose(files) for package, files in found.items()}


def test_docstrings_and_comments_speak_the_words_of_the_field() -> None:
    problems = []
    for package, prose in packages().items():
        limit, rate = PRIVATE_WORDS_MAX.get(package, 0), prose.private_rate()
        if rate > limit:
            problems.append(f"{package}: {rate:.1f} private words in 10,000, more than {limit}:")
            problems.extend(f"    {found}" for found in prose.private[:50])
        elif rate < 0.75 * limit - 5:
            problems.append(f"{package}: {rate:.1f} private words in 10,000: lower its {limit}")
    report(problems)


@pytest.mark.parametrize(
    ("text", "private"),
    [
        ("The leader is told, who asks, and so many rows; so long.", 4),
        ("The leader that asks is known; as many rows, so long as it leads.", 0),
        ("Of whom nobody knows: see the module\ndocstring.", 4),
        ("The client who asked owes one; outstanding bodies.", 1),
    ],
)
def test_what_is_a_private_word(text: str, private: int) -> None:
    assert len(PRIVATE_WORDS.findall(" ".join(text.split()))) == private


def test_docstrings_and_comments_are_worth_reading() -> None:
    """Fewer words, and more of them reasons."""
    product = [file for file in looked() if file.is_written and file.name.startswith(PRODUCT)]
    words = Prose(product).words
    problems = []
    if not 0.9 * PROSE_WORDS_MAX < words <= PROSE_WORDS_MAX:
        problems.append(f"{words} words of docstrings and comments, bound {PROSE_WORDS_MAX}")
    for package, least in REASONS_MIN.items():
        share = packages()[package].reasons
        if not least <= share < least + 0.5:
            problems.append(f"{package}: {share:.2f} comments in 100 lines of code, bound {least}")
    report(problems)


def test_comments_are_found_where_code_is() -> None:
    source = (
        "# one reason,\n# two lines\na = 1  # another\nb = '''\n# text\n'''\n"
        'c = 2  # type: ignore[x]\n"""Docs  # of c."""\n'
    )
    nodes = list(ast.walk(ast.parse(source)))
    assert comments(source, nodes, docstrings(nodes)) == (
        ["one reason,", "two lines", "another"],
        2,
        5,
    )


def test_docstrings_and_comments_state_and_do_not_ask() -> None:
    problems = []
    for file in looked():
        if file.name.startswith(("broker/", "connector/", "demo/")):
            for line, text in prose(file):
                asks = re.search(r"\?(?:\s|$|[.-]+$)", text)
                if asks and text != QUESTIONS_ALLOWED.get(file.name):
                    problems.append(f"{file.name}:{line} asks: {text[:80]}")
    report(problems)


def shown_texts(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """(line, text) of the strings that users may read: not docstrings, nor words of assertions."""
    inner = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Assert):
            inner.update(id(part) for part in ast.walk(node.msg or node.test))
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            yield node.lineno, node.value


def test_what_users_read_names_the_actor() -> None:
    """Broker, controller, leader, follower or client: a text in the passive voice hides which."""
    vague = re.compile(r"\b(?:(?:no|some|any)body|whoever|told)\b", re.IGNORECASE)
    problems = []
    for file in looked():
        if file.name.startswith(("broker/", "connector/", "demo/")):
            for line, text in file.shown:
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
    source = "def f():\n    'It is closed.'\n\ndef g():\n    'Items.'\n"
    found = docstrings(ast.walk(ast.parse(source)))
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


DECISION = re.compile(
    r"# (?P<number>\d{4}): \S.*\n\n"
    r"Status: (?:accepted|withdrawn|superseded by \[(?P<next>\d{4})\]\(\S+\))  \n"
    r"Date: \d{4}-\d\d-\d\d\n\n"
)
DECISION_WORDS_MAX = 400


def test_every_decision_has_a_status_and_a_date() -> None:
    """On one page, under its number, and with a line in the index."""
    folder = ROOT / "docs" / "adr"
    index = (folder / "README.md").read_text()
    pages = sorted(folder.glob("[0-9]*.md"))
    numbers = {page.name[:4] for page in pages}
    assert len(numbers) == len(pages) > 60
    problems = []
    for page in pages:
        text = page.read_text()
        head = DECISION.match(text)
        if head is None or head["number"] != page.name[:4]:
            problems.append(f"{place(page, 1)} does not begin with its number, status and date")
        elif head["next"] and head["next"] not in numbers:
            problems.append(f"{place(page, 3)} names a decision that is not there")
        if len(text.split()) > DECISION_WORDS_MAX:
            problems.append(f"{place(page, 1)} has {len(text.split())} words: {DECISION_WORDS_MAX}")
        if index.count(f"({page.name})") != 1:
            problems.append(f"{place(page, 1)} is not in the index")
    report(problems)
