"""Which parts of a broker follow which key of the configuration while it runs.

Owns that table. The server's keys are the server's (`ConfigChanged`).
"""

from __future__ import annotations

from collections.abc import Callable

from quiverlog.core.controller.image import Image
from quiverlog.node.config import NodeConfig
from quiverlog.node.elections import Elections
from quiverlog.node.live_config import LiveConfig
from quiverlog.node.outbox import Outbox
from quiverlog.node.replication import Replication

__all__ = ["make_live_config"]


def make_live_config(
    config: NodeConfig,
    image: Callable[[], Image],
    outbox: Outbox,
    elections: Elections,
    replication: Replication,
) -> LiveConfig:
    """What takes the typed value of a key, and the moment from which on it counts."""
    setters = {
        "leader.balance.period.ms": elections.set_period,
        "leader.balance.moves.max": elections.set_moves_max,
        "partition.move.bytes.per.second": replication.set_move_rate,
    }
    return LiveConfig(config.node_id, config.given, image, outbox, setters)
