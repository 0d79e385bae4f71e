"""How a command's clients are secured: --security-file, the profile's, or the environment's.

Kept in click's context, so that commands need not hand it on.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from quiverlog.addresses import SECURITY_VARIABLE

if TYPE_CHECKING:
    from quiverlog.client.base.security import Security

__all__ = ["chosen_security", "security_option", "use_profiles_file"]

_GIVEN: Final = "quiverlog.security.given"
_OF_PROFILE: Final = "quiverlog.security.profile"

_Command = TypeVar("_Command", bound=Callable[..., Any])


def security_option(command: _Command) -> _Command:
    def keep(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
        ctx.meta[_GIVEN] = value

    return click.option(
        "--security-file",
        type=click.Path(dir_okay=False),
        expose_value=False,
        callback=keep,
        metavar="FILE",
        show_default=f"the profile's, else that of {SECURITY_VARIABLE}, else none",
        help="How to reach brokers by TLS, and to log in; docs/security.md lists the keys.",
    )(command)


def use_profiles_file(ctx: click.Context, path: str) -> None:
    """Take the security file of the profile whose brokers are asked; empty: it has none."""
    ctx.meta[_OF_PROFILE] = path


def chosen_security() -> Security | None:
    """Return how the clients of the running command are secured; None: they are plain.

    Raises:
        InvalidSecurity: the file cannot be used.
    """
    context = click.get_current_context(silent=True)
    meta = {} if context is None else context.meta
    path = meta.get(_GIVEN) or meta.get(_OF_PROFILE) or os.environ.get(SECURITY_VARIABLE, "")
    if not path.strip():
        return None
    from quiverlog.client.base.security import Security

    return Security.load(path.strip())
