"""`quiverlog docs [PAGE]`: the guides of this installation, from the clone or from the wheel's
files (`share/doc/quiverlog/docs` under the environment's prefix)."""

from __future__ import annotations

import difflib
import re
import sys
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import click

import quiverlog
from quiverlog.cli.console.failures import CommandFailed
from quiverlog.cli.console.options import debug_option, format_option
from quiverlog.cli.console.output import print_json, print_table

__all__ = ["docs", "docs_directory", "doors_of"]

_INSTALLED = Path("share", "doc", "quiverlog", "docs", "README.md")
_DOOR = re.compile(r"^## (.+)$|^\| \[(.+?)\]\(([\w/-]+)\.md\) \|", re.MULTILINE)
"""In docs/README.md: the heading of a door, or the title and the page of a row of its table."""
_INSIDE = "Look inside"


def docs_directory() -> Path:
    clone = Path(quiverlog.__file__).resolve().parents[2] / "docs"
    if (clone / "README.md").is_file():
        return clone
    try:
        installed = files("quiverlog") or []
    except PackageNotFoundError:
        installed = []
    for path in installed:
        if path.parts[-len(_INSTALLED.parts) :] == _INSTALLED.parts:
            return Path(str(path.locate())).resolve().parent
    raise CommandFailed("This installation has no guides; they are in docs/ of the repository.")


def _complete(_ctx: click.Context, _: click.Parameter, begun: str) -> list[str]:
    try:
        return [page for page in _pages(docs_directory()) if page.startswith(begun)]
    except (CommandFailed, OSError):
        return []


@click.command()
@click.argument("page", required=False, shell_complete=_complete)
@click.option("--path", "show_path", is_flag=True, help="Print where the page or all pages are.")
@click.option("--inside", is_flag=True, help="List the pages about protocol, files and decisions.")
@format_option("table", "json")
@debug_option
def docs(page: str | None, show_path: bool, inside: bool, output_format: str) -> None:
    """Read the guides; without PAGE list them.

    \b
    quiverlog docs getting-started
    """
    directory = docs_directory()
    pages = _pages(directory)
    if page is None and show_path:
        print(directory)
    elif page is None:
        _list(directory, pages, inside, output_format)
    else:
        found = _named(pages, page)
        if show_path:
            print(found)
        elif output_format == "json":
            print_json({"page": page, "path": str(found), "text": found.read_text("utf-8")})
        else:
            _show(found.read_text("utf-8"))


def _pages(directory: Path) -> dict[str, Path]:
    top = {path.stem: path for path in sorted(directory.glob("*.md"))}
    return top | {f"adr/{path.stem}": path for path in sorted(directory.glob("adr/[0-9]*.md"))}


def _title(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return next((line[2:].strip() for line in file if line.startswith("# ")), path.stem)


def doors_of(directory: Path) -> dict[str, str]:
    """Return which door of the landing page leads to each page, in the order of that page."""
    doors: dict[str, str] = {}
    door = ""
    text = (directory / "README.md").read_text("utf-8")
    for match in _DOOR.finditer(text):
        if match[1]:
            door = match[1]
        else:
            doors[match[3]] = door
    return doors


def _list(directory: Path, pages: dict[str, Path], inside: bool, output_format: str) -> None:
    doors = doors_of(directory)
    in_order = [
        *(page for page in doors if page in pages),
        *(page for page in pages if page not in doors),
    ]
    rows = [
        (page, _title(pages[page]), doors.get(page, _INSIDE))
        for page in in_order
        if page != "README" and (doors.get(page, _INSIDE) == _INSIDE) == inside
    ]
    if output_format == "json":
        print_json(
            [
                {"page": page, "title": title, "door": door, "path": str(pages[page])}
                for page, title, door in rows
            ]
        )
        return
    print_table(("page", "title", "door"), rows)
    if not inside:
        print(
            "`quiverlog docs --inside` lists protocol, files, architecture and decisions.",
            file=sys.stderr,
        )


def _named(pages: dict[str, Path], page: str) -> Path:
    name = page.removeprefix("docs/").removesuffix(".md")
    if name not in pages and len(name) == 4 and name.isdigit():
        name = next((known for known in pages if known.startswith(f"adr/{name}-")), name)
    if name not in pages:
        near = difflib.get_close_matches(name, pages, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise CommandFailed(f"There is no page {page!r}.{hint} `quiverlog docs` lists them.")
    return pages[name]


def _show(text: str) -> None:
    if not sys.stdout.isatty():
        print(text, end="")
        return
    click.echo_via_pager(text)
