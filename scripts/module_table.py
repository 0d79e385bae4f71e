"""The table of all modules in docs/architecture.md: each once, with its docstring's first line.

Owns which packages are listed. A module that is added or renamed makes the page stale, which a test
finds.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

__all__ = ["modules_table"]

ROOT: Final = Path(__file__).resolve().parent.parent
_PACKAGES: Final = ("broker/quiverlog", "connector/pyspark_quiverlog", "demo/quiverlog_demo")


def modules_table() -> str:
    """One line per module, sorted by its path; packages that only gather names are left out."""
    lines = ["| module | |", "|---|---|"]
    for package in _PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            title = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n")[0]
            if path.name != "__init__.py":
                name = path.relative_to((ROOT / package).parent).as_posix()
                lines.append(f"| `{name}` | {title.replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"
