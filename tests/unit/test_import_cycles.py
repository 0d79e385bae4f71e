"""No module of the broker's floors needs itself by way of others, not even for its types."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import quiverlog

ROOT = Path(quiverlog.__file__).parent


def imports(path: Path, known: set[str]) -> set[str]:
    """Modules of quiverlog that a file names in an import, those under TYPE_CHECKING included."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found & known


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """The modules of one circle, in order; empty when there is none."""
    done: set[str] = set()

    def visit(module: str, path: list[str]) -> list[str]:
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return []
        for needed in sorted(graph[module]):
            if found := visit(needed, [*path, module]):
                return found
        done.add(module)
        return []

    return next((found for module in sorted(graph) if (found := visit(module, []))), [])


@pytest.mark.parametrize("package", ["node", "server", "storage", "core", "wire", "batch"])
def test_no_module_needs_itself(package: str) -> None:
    files: dict[str, Path] = {}
    for path in (ROOT / package).rglob("*.py"):
        if path.name != "__init__.py":
            files[".".join(("quiverlog", *path.relative_to(ROOT).with_suffix("").parts))] = path
    graph = {module: imports(path, set(files)) - {module} for module, path in files.items()}
    assert cycle(graph) == []


def test_a_circle_is_found() -> None:
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
