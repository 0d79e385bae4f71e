"""What a broker's configuration says about the quorum: its roles, and whom it asks at first.

Owns how these two values are written, and what they may not say together.

Must not know: where a value was given, what is in the data directory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from quiverlog.addresses import Address, parse_address
from quiverlog.errors import InvalidConfig
from quiverlog.limits import QUORUM_SEEDS_MAX
from quiverlog.node.config import ROLE_BROKER, ROLE_CONTROLLER

__all__ = ["read_roles", "read_seeds", "refuse_lost_brokers"]

_ROLES: Final = (ROLE_BROKER, ROLE_CONTROLLER)
_NODE_ID_MAX: Final = 2**31 - 1
_EXAMPLE: Final = "id@host:port, for example 1@10.0.0.1:9292"


def read_roles(text: str) -> tuple[str, ...]:
    """The roles that a text names. Raises ValueError with what was expected."""
    named = [part.strip() for part in text.split(",")]
    if not set(named) <= set(_ROLES) or len(set(named)) != len(named):
        raise ValueError("broker, controller or broker,controller")
    return tuple(role for role in _ROLES if role in named)


def read_seeds(text: str) -> dict[int, Address]:
    """Addresses of controllers by node id. Raises ValueError with what was expected."""
    found: dict[int, Address] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        number, at, address = part.partition("@")
        try:
            node_id = int(number) if number.isascii() and number.isdigit() else -1
            where = parse_address(address)
        except ValueError:
            node_id = -1
        if not at or not 0 <= node_id <= _NODE_ID_MAX:
            raise ValueError(_EXAMPLE)
        if node_id in found:
            raise ValueError(f"one address of node {node_id}")
        found[node_id] = where
    if len(found) > QUORUM_SEEDS_MAX:
        raise ValueError(f"at most {QUORUM_SEEDS_MAX} addresses")
    return found


def refuse_lost_brokers(values: Mapping[str, Any], source: Callable[..., str]) -> None:
    """Raise InvalidConfig for a broker that could belong to no quorum, or to any.

    Args:
        source: who said a key.
    """
    seeds = values["controller_quorum_bootstrap_servers"]
    if seeds and not values["cluster_id"]:
        raise InvalidConfig(
            f"{source('controller.quorum.bootstrap.servers')}: `cluster.id` must say which cluster"
            " that is; each of its brokers logs it when it starts."
        )
    if not seeds and ROLE_CONTROLLER not in values["process_roles"]:
        raise InvalidConfig(
            f"{source('process.roles')}: a broker that is no controller needs"
            " `controller.quorum.bootstrap.servers`."
        )
