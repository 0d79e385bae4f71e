"""Which parts of a broker follow which key of the configuration while it runs.

Owns that table. The server's keys are the server's (`ConfigChanged`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiverlog.node.live_config import LiveConfig

if TYPE_CHECKING:
    from quiverlog.node.broker import Broker

__all__ = ["make_live_config"]


def make_live_config(broker: Broker) -> LiveConfig:
    """What takes the typed value of a key, and the moment from which on it counts."""
    setters = {
        "leader.balance.period.ms": broker.elections.set_period,
        "leader.balance.moves.max": broker.elections.set_moves_max,
        "partition.move.bytes.per.second": broker.replication.set_move_rate,
    }
    config = broker.config
    return LiveConfig(
        config.node_id, config.given, lambda: broker.metadata.image, broker.outbox, setters
    )
