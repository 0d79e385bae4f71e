"""The roles of a process, the addresses of the first controllers, the names of super users and of
audited topics: how they are written."""

from __future__ import annotations

import re
from typing import Final

from quiverlog.addresses import Address, parse_address
from quiverlog.limits import (
    AUDIT_TOPICS_MAX,
    QUORUM_SEEDS_MAX,
    SUPER_USERS_MAX,
    TOPIC_NAME_CHARS_MAX,
)
from quiverlog.types import USER_NAME

__all__ = [
    "ROLE_BROKER",
    "ROLE_CONTROLLER",
    "read_audit_topics",
    "read_roles",
    "read_seeds",
    "read_super_users",
]

ROLE_BROKER: Final = "broker"
ROLE_CONTROLLER: Final = "controller"
_ROLES: Final = (ROLE_BROKER, ROLE_CONTROLLER)
_NODE_ID_MAX: Final = 2**31 - 1
_EXAMPLE: Final = "id@host:port, for example 1@10.0.0.1:9292"


def read_roles(text: str) -> tuple[str, ...]:
    """Parse roles. Raises ValueError with what was expected."""
    named = [part.strip() for part in text.split(",")]
    if not set(named) <= set(_ROLES) or len(set(named)) != len(named):
        raise ValueError("broker, controller or broker,controller")
    return tuple(role for role in _ROLES if role in named)


def read_seeds(text: str) -> dict[int, Address]:
    """Parse controllers' addresses by node id. Raises ValueError with what was expected."""
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


_TOPICS: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{TOPIC_NAME_CHARS_MAX}}}\*?|\*")


def read_audit_topics(text: str) -> tuple[str, ...]:
    """Parse names of topics, and beginnings of names. Raises ValueError with what was expected."""
    names = tuple(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))
    if not all(map(_TOPICS.fullmatch, names)):
        raise ValueError("names of topics, or beginnings such as `orders-*`, separated by commas")
    if len(names) > AUDIT_TOPICS_MAX:
        raise ValueError(f"at most {AUDIT_TOPICS_MAX} names")
    return names


def read_super_users(text: str) -> tuple[str, ...]:
    """Parse names of users. Raises ValueError with what was expected."""
    names = tuple(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))
    if not all(map(USER_NAME.fullmatch, names)):
        raise ValueError("names of users, separated by commas")
    if len(names) > SUPER_USERS_MAX:
        raise ValueError(f"at most {SUPER_USERS_MAX} names")
    return names
