"""What a broker's configuration may not say of the quorum: its roles and whom it asks, together.

Must not know: where a value was given, what is in the data directory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from quiverlog.errors import InvalidConfig
from quiverlog.roles import ROLE_CONTROLLER

__all__ = ["refuse_lost_brokers"]


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
