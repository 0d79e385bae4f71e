"""docs/storage-format.md names every file that the storage floor writes, and every magic."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
STORAGE = ROOT / "broker" / "quiverlog" / "storage"
PAGE = (ROOT / "docs" / "storage-format.md").read_text()
NAME = re.compile(r"[a-z.]?[a-z]+([.-][a-z]+)*-?")
"""Of a file, or the end of one."""


def constants() -> Iterator[tuple[str, str | bytes]]:
    """(where, value) of each text or bytes that a module gives a name in capitals."""
    for path in sorted(STORAGE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                name = ast.unparse(target)
                if name.isupper():
                    for part in ast.walk(node.value):
                        if isinstance(part, ast.Constant) and isinstance(part.value, str | bytes):
                            yield f"{path.name}:{name}", part.value


CONSTANTS = list(constants())
FILES = [
    (where, value)
    for where, value in CONSTANTS
    if isinstance(value, str)
    and re.search("(FILE|SUFFIX|PREFIX|DELETED|ORPHAN|DAMAGED|_NEW|REPLACEABLE|UNFINISHED)$", where)
]
MAGICS = [(w, v) for w, v in CONSTANTS if isinstance(v, bytes) and v.startswith(b"QV")]


def test_the_walk_finds_them() -> None:
    assert len(FILES) > 20, FILES
    assert all(NAME.fullmatch(value) for _, value in FILES), FILES
    assert len(MAGICS) > 8, MAGICS


@pytest.mark.parametrize(("where", "value"), FILES)
def test_every_file_is_in_the_page(where: str, value: str) -> None:
    name, dot, unfinished = value.rpartition(".tmp")
    assert (name if dot else unfinished) in PAGE, where
    assert not dot or "`<name>.tmp`" in PAGE, where


@pytest.mark.parametrize(("where", "magic"), MAGICS)
def test_every_magic_is_in_the_page(where: str, magic: bytes) -> None:
    assert f"{magic.decode()}`".replace("\0", "\\0") in PAGE or f'"{magic.decode()}"' in PAGE, where
