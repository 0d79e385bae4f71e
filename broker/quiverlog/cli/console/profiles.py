"""Profiles: a name for the addresses of a cluster, in `quiverlog/profiles.toml` of the user's
configuration folder.

    use = "test"
    [profile.test]
    bootstrap-server = "test-1:9292,test-2:9292"

Precedence: `--bootstrap-server`, `--profile`, QUIVERLOG_BOOTSTRAP_SERVER, QUIVERLOG_PROFILE, the
profile in use. The file is written readable for its owner only.
"""

from __future__ import annotations

import json
import os
import tempfile
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import click

from quiverlog.cli.console.failures import CommandFailed

__all__ = ["Profiles", "chosen_bootstrap", "load", "path_of_profiles", "save"]

_FILE_BYTES_MAX: Final = 1 << 20
_BOOTSTRAP: Final = "bootstrap-server"


@dataclass(slots=True)
class Profiles:
    """`bootstraps`: profile -> bootstrap servers."""

    bootstraps: dict[str, str] = field(default_factory=dict)
    in_use: str | None = None


def path_of_profiles() -> Path:
    # $XDG_CONFIG_HOME/quiverlog, else ~/.config/quiverlog.
    return Path(click.get_app_dir("quiverlog")) / "profiles.toml"


def load() -> Profiles:
    """A missing file has no profiles. Raises CommandFailed: too large, or invalid."""
    path = path_of_profiles()
    try:
        with path.open("rb") as file:
            data = file.read(_FILE_BYTES_MAX + 1)
        if len(data) > _FILE_BYTES_MAX:
            raise ValueError(f"it has more than {_FILE_BYTES_MAX} bytes")
        content = tomllib.loads(data.decode())
        tables = content.get("profile", {})
        found = {name: table[_BOOTSTRAP] for name, table in tables.items()}
        in_use = content.get("use")
        if not all(isinstance(text, str) for text in (*found.values(), in_use or "")):
            raise ValueError("addresses and the profile in use are text")
    except FileNotFoundError:
        return Profiles()
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise CommandFailed(f"{path} cannot be read: {error}. Mend it, or remove it.") from error
    return Profiles(found, in_use)


def save(profiles: Profiles) -> None:
    path = path_of_profiles()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lines = [] if profiles.in_use is None else [f"use = {_quoted(profiles.in_use)}\n"]
    for name, bootstrap in sorted(profiles.bootstraps.items()):
        lines.append(f"\n[profile.{_quoted(name)}]\n{_BOOTSTRAP} = {_quoted(bootstrap)}\n")
    data = "".join(lines).encode()
    if len(data) > _FILE_BYTES_MAX:
        raise CommandFailed(
            f"{path} would have more than {_FILE_BYTES_MAX} bytes: delete profiles first."
        )
    # mkstemp's file is readable for its owner only. It replaces the old one whole, but without an
    # fsync: after a power failure the file may be empty.
    number, name = tempfile.mkstemp(dir=path.parent, prefix=".profiles-")
    try:
        with os.fdopen(number, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _quoted(text: str) -> str:
    # A TOML basic string has JSON's escapes, except for surrogates.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def chosen_bootstrap(profile: str | None) -> str | None:
    """Return the addresses of the named profile, else of the one in use, else None.

    Raises:
        CommandFailed: there is no such profile.
    """
    profiles = load()
    name = profile if profile is not None else profiles.in_use
    if name is None:
        return None
    found = profiles.bootstraps.get(name)
    if found is None:
        known = ", ".join(sorted(profiles.bootstraps)) or "none"
        raise CommandFailed(
            f"There is no profile {name!r}; there are: {known}. `quiverlog profile create` makes "
            "one."
        )
    return found
