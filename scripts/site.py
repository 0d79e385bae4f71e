"""Lay out what the web site is built from: docs/, and what its pages link to beside it.

    python scripts/site.py DIRECTORY

Owns the one difference between the repository and the site: a site has no files above its pages, so
the texts that docs/ links to there become pages, and programs become pages with their text.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TEXTS = ("CHANGELOG.md", "SECURITY.md", "CONTRIBUTING.md", "CODE_OF_CONDUCT.md")
_ABOVE = re.compile(r"\]\(\.\./([\w./-]+)")
_INTO_DOCS = re.compile(r"\]\(docs/")


def lay_out(directory: Path) -> None:
    """Write the pages; what was in the directory before is gone."""
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(ROOT / "docs", directory)
    for page in directory.glob("*.md"):
        page.write_text(_ABOVE.sub(_moved, page.read_text()))
    for name in TEXTS:
        text = _INTO_DOCS.sub("](", (ROOT / name).read_text())
        (directory / name).write_text(text)
    for program in sorted((ROOT / "examples").glob("*.py")):
        page = directory / "examples" / f"{program.stem}.md"
        page.parent.mkdir(exist_ok=True)
        page.write_text(f"# {program.name}\n\n```python\n{program.read_text()}```\n")


def _moved(match: re.Match[str]) -> str:
    path = match[1]
    return "](" + (path.removesuffix(".py") + ".md" if path.startswith("examples/") else path)


if __name__ == "__main__":
    lay_out(Path(sys.argv[1]))
