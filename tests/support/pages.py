"""The code blocks of a guide, run as one script.

Owns how blocks are found, and how they are run: those of Python one after the other in one
namespace, with `await` allowed outside of functions, under the page's own line numbers; those of a
shell as a reader types them, with the tests' interpreter. Of a page only the broker's address is
changed. A block that cannot run has its reason in a comment before it:

    <!-- not run: needs Docker -->
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["ADDRESS", "CODE", "ROOT", "Block", "blocks", "guides", "run_python", "typed"]

ROOT = Path(__file__).resolve().parents[2]
ADDRESS = "127.0.0.1:9292"
CODE = ("python", "sh", "console", "ini")
GENERATED = ("api.md", "cli.md", "config.md", "errors.md", "transcript.md")
BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<why>[^\n]+) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    language: str
    text: str
    line: int
    why_not: str | None


def guides() -> list[Path]:
    """All that is written by hand for users."""
    pages = [p for p in sorted((ROOT / "docs").glob("*.md")) if p.name not in GENERATED]
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *pages]


def blocks(page: Path, *languages: str) -> Iterator[Block]:
    text = page.read_text()
    for found in BLOCK.finditer(text):
        if not languages or found["language"] in languages:
            line = text.count("\n", 0, found.start("text")) + 1
            yield Block(found["language"], found["text"], line, found["why"])


def run_python(
    page: Path,
    changes: Mapping[str, str],
    after: Callable[[], None] = lambda: None,
    **names: Any,
) -> dict[str, Any]:
    """Run the page's blocks; the names that they leave.

    Args:
        changes: texts of the page that are another here, such as the address.
        after: called after each block.
        names: what the page supposes to be there.
    """
    names["__name__"] = page.stem
    ran = 0
    for block in blocks(page, "python"):
        if block.why_not is not None:
            continue
        text = block.text
        for old, new in changes.items():
            text = text.replace(old, new)
        tree = ast.increment_lineno(ast.parse(text), block.line - 1)
        code = compile(tree, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if code.co_flags & inspect.CO_COROUTINE:
            asyncio.run(eval(code, names))  # noqa: S307  # it is our own page
        else:
            exec(code, names)  # noqa: S102
        after()
        ran += 1
    assert ran > 0, f"no block of {page.name} was run"
    return names


def typed(script: str, directory: Path, bootstrap: str) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("QUIVERLOG_")}
    environment["QUIVERLOG_BOOTSTRAP_SERVER"] = bootstrap
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    done = subprocess.run(
        ["bash", "-eu"],
        input=script,
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
