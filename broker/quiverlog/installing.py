"""What to type to install what is missing.

Owns the words of that advice, at floor 0 so that every floor gives the same. quiverlog itself may
come from a clone, a file or an index, and nobody here knows which: the advice names the libraries
themselves, with the bounds that this installation's metadata gives them.
"""

from __future__ import annotations

import re
import shlex
from typing import Final

__all__ = ["install_line"]

_OF_EXTRA: Final = re.compile(
    r"(?P<name>[\w.-]+)(?:\[[^]]*\])?(?P<bounds>[^;]*);\s*extra\s*==\s*['\"](?P<extra>[\w-]+)['\"]"
)


def install_line(extra: str, missing: str) -> str:
    """The command that brings what an extra of quiverlog consists of and is not installed yet.

    What was found to be missing is named in any case, with its bounds: it may be too old.

    Args:
        extra: a name from `[project.optional-dependencies]`, "" for none.
        missing: the module that was found to be missing; named alone where the extra is not known.
    """
    top = missing.partition(".")[0]
    wanted = _wanted(extra, top) or [top]
    return "pip install " + " ".join(map(shlex.quote, wanted))


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
    # With it come email, zipfile and more: only who lacks something shall wait for them.
    from importlib.metadata import PackageNotFoundError, requires

    try:
        return requires("quiverlog") or []
    except PackageNotFoundError:  # a bare source tree on the path
        return []


def _is_installed(name: str) -> bool:
    from importlib.metadata import PackageNotFoundError, version

    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True
