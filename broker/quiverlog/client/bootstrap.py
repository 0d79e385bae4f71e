"""Where a client finds its first broker: what was given, or the environment's, or the default.

Owns the forms of `bootstrap`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from quiverlog.addresses import (
    BOOTSTRAP_DEFAULT,
    BOOTSTRAP_VARIABLE,
    PORT_DEFAULT,
    Address,
    parse_addresses,
)
from quiverlog.errors import InvalidArgument

from .arguments import shown

__all__ = ["bootstrap_addresses"]


def bootstrap_addresses(bootstrap: str | Iterable[str] | None) -> tuple[Address, ...]:
    """`"host:port"`, `"a:1,b:2"` or a list of them; a missing port means 9292.

    None stands for the environment variable QUIVERLOG_BOOTSTRAP_SERVER, which is as good as unset
    when it is empty, and else for this machine's port 9292.

    Raises:
        InvalidArgument: nothing given, or something that is not host:port.
    """
    source = "bootstrap address"
    if bootstrap is None:
        bootstrap = os.environ.get(BOOTSTRAP_VARIABLE, "")
        source = f"{BOOTSTRAP_VARIABLE} in the environment"
        if not bootstrap:
            bootstrap = BOOTSTRAP_DEFAULT
    if isinstance(bootstrap, str):
        bootstrap = bootstrap.split(",")
    parts = list(bootstrap) if isinstance(bootstrap, Iterable) else [bootstrap]
    if not all(isinstance(part, str) for part in parts):
        raise InvalidArgument(f"{shown(bootstrap)}: give 'host:port', or a list of such texts.")
    try:
        return parse_addresses(",".join(parts), port_default=PORT_DEFAULT)
    except ValueError as error:
        raise InvalidArgument(f"{source}: {error}.") from None
