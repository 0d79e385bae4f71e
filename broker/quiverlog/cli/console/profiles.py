"""Profiles: a name for the addresses of a cluster, in `quiverlog/profiles.toml` of the user's
configuration folder.

    use = "test"
    [profile.test]
    bootstrap-server = "test-1:9292,test-2:9292"
    security-file = "/etc/quiverlog/test.toml"

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
from typing import Final, NamedTuple

import click

from quiverlog.cli.console.failures import CommandFailed

__all__ = ["Profile", "Profiles", "chosen_profile", "load", "path_of_profiles", "save"]

_FILE_BYTES_MAX: Final = 1 << 20
_BOOTSTRAP: Final = "bootstrap-server"
_SECURITY: Final = "security-file"


class Profile(NamedTuple):
    bootstrap: str
    security_file: str = ""


@dataclass(slots=True)
class Profiles:
    by_name: dict[str, Profile] = field(default_factory=dict)
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
        found = {
            name: Profile(table[_BOOTSTRAP], table.get(_SECURITY, ""))
            for name, table in tables.items()
        }
        in_use = content.get("use")
        texts = [in_use or "", *(text for one in found.values() for text in one)]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("addresses, files and the profile in use are text")
    except FileNotFoundError:
        return Profiles()
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise CommandFailed(f"{path} cannot be read: {error}. Mend it, or remove it.") from error
    return Profiles(found, in_use)


def save(profiles: Profiles) -> None:
    path = path_of_profiles()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lines = [] if profiles.in_use is None else [f"use = {_quoted(profiles.in_use)}\n"]
    for name, one in sorted(profiles.by_name.items()):
        lines.append(f"\n[profile.{_quoted(name)}]\n{_BOOTSTRAP} = {_quoted(one.bootstrap)}\n")
        if one.security_file:
            lines.append(f"{_SECURITY} = {_quoted(one.security_file)}\n")
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


def chosen_profile(profile: str | None) -> Profile | None:
    """Return the named profile, else the one in use, else None.

    Raises:
        CommandFailed: there is no such profile.
    """
    profiles = load()
    name = profile if profile is not None else profiles.in_use
    if name is None:
        return None
    found = profiles.by_name.get(name)
    if found is None:
        known = ", ".join(sorted(profiles.by_name)) or "none"
        raise CommandFailed(
            f"There is no profile {name!r}; there are: {known}. `quiverlog profile create` makes "
            "one."
        )
    return found
