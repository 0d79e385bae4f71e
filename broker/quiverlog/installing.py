"""The command that installs what is missing.

quiverlog itself may come from a clone, a file or an index, so the advice names the libraries, with
the bounds of this installation's metadata.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Final

__all__ = ["install_all", "install_line"]

_MADE_BY_UV: Final = re.compile(r"^uv\s*=", re.MULTILINE)
_OF_UVX: Final = re.compile(r"(archive|environments)-v\d+")
"""Where in its cache uv keeps environments that last for one command."""

_OF_EXTRA: Final = re.compile(
    r"(?P<name>[\w.-]+)(?:\[[^]]*\])?(?P<bounds>[^;]*);\s*extra\s*==\s*['\"](?P<extra>[\w-]+)['\"]"
)


def install_line(extra: str, missing: str) -> str:
    """Return the command that installs what is missing of an extra.

    Args:
        extra: a name from `[project.optional-dependencies]`, "" for none.
        missing: a module; named in any case with its bounds, as it may be too old, and alone where
            the extra is unknown.
    """
    return install_all([(extra, missing)])


def install_all(missing: Iterable[tuple[str, str]]) -> str:
    """Return one command for several pairs of `install_line`'s arguments."""
    wanted: dict[str, None] = {}
    for extra, module in missing:
        top = module.partition(".")[0]
        wanted |= dict.fromkeys(_wanted(extra, top) or [top])
    return _command([shlex.quote(each) for each in wanted])


def _command(wanted: list[str]) -> str:
    """Use uv where it made this environment and left pip out; what is added to an environment of
    `uvx` goes with its cache.
    """
    if not _is_made_by_uv(sys.prefix) or find_spec("pip") is not None:
        return "pip install " + " ".join(wanted)
    if any(_OF_UVX.fullmatch(part) for part in sys.prefix.split(os.sep)):
        return f"uvx {' '.join(f'--with {each}' for each in wanted)} ... (the rest as it was)"
    return f"uv pip install --python {shlex.quote(sys.prefix)} " + " ".join(wanted)


def _is_made_by_uv(prefix: str) -> bool:
    try:
        with open(os.path.join(prefix, "pyvenv.cfg"), errors="replace") as file:
            return _MADE_BY_UV.search(file.read()) is not None
    except OSError:  # No virtual environment at all.
        return False


def _wanted(extra: str, missing: str) -> list[str]:
    found = []
    for line in _requirements():
        match = _OF_EXTRA.match(line)
        if match is None or match["extra"] != extra:
            continue
        name = match["name"]
        if name.replace("-", "_") == missing or not _is_installed(name):
            found.append(name + match["bounds"].strip())
    return found


def _requirements() -> list[str]:
    # The import brings email, zipfile and more: only a missing library pays for them.
    from importlib.metadata import PackageNotFoundError, requires

    try:
        return requires("quiverlog") or []
    except PackageNotFoundError:  # A bare source tree on the path.
        return []


def _is_installed(name: str) -> bool:
    from importlib.metadata import PackageNotFoundError, version

    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True
