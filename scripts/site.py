"""Lay out what the web site is built from: docs/, and what its pages link to beside it.

    python scripts/site.py DIRECTORY

Owns the differences between the repository and the site. A site has no files above its pages:
texts that docs/ links to there become pages, and programs become pages with their text. A diagram
gets its width, so that it is drawn as wide as the screen (scripts/site.css). The landing page takes
the room of the lists beside it.
"""

from __future__ import annotations

import html
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_ABOVE = re.compile(r"\]\(\.\./([\w./-]+)")
_INTO_DOCS = re.compile(r"\]\(((?:\.\./)*)docs/")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
_DRAWN = re.compile(r"[─│┌└▶◀▼▲]")
_LANDING = "---\nhide: [navigation, toc]\n---\n"
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".sh": "sh"}


def lay_out(directory: Path) -> None:
    """Write the pages; what was in the directory before is gone."""
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(ROOT / "docs", directory)
    wanted = {"CONTRIBUTING.md"}  # it has a place in the navigation
    for page in directory.glob("*.md"):
        text = page.read_text()
        wanted.update(_ABOVE.findall(text))
        text = _ABOVE.sub(lambda match: f"]({_page(match[1])}", text)
        page.write_text(_FENCE.sub(_fence_or_diagram, text))
    while wanted:
        name = wanted.pop()
        page = directory / _page(name)
        if not page.exists():
            page.parent.mkdir(parents=True, exist_ok=True)
            text = _text(name)
            page.write_text(text)
            wanted.update(re.findall(r"\]\(([A-Z_]+\.md)", text))
    landing = directory / "README.md"
    landing.write_text(_LANDING + landing.read_text())
    shutil.copy(ROOT / "scripts" / "site.css", directory)


def _fence_or_diagram(fence: re.Match[str]) -> str:
    """What a terminal shows stays code; lines that are drawn without a language are a diagram."""
    language, text = fence[1], fence[2]
    if language or not _DRAWN.search(text):
        return fence[0]
    columns = max(len(line) for line in text.splitlines())
    drawn = html.escape(text, quote=False)
    return f'<div class="diagram" style="--columns: {columns}"><pre>{drawn}</pre></div>\n'


def _page(name: str) -> str:
    return name if name.endswith(".md") else f"{name}.md"


def _text(name: str) -> str:
    """The file as a page: Markdown as it is, anything else in a fence."""
    path = ROOT / name
    if path.suffix == ".md":
        return _INTO_DOCS.sub(r"](\1", path.read_text())
    return f"# {path.name}\n\n```{_LANGUAGES.get(path.suffix, '')}\n{path.read_text()}```\n"


if __name__ == "__main__":
    lay_out(Path(sys.argv[1]))
