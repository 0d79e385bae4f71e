"""Which parts of a broker follow which key of the configuration while it runs.

Owns that table. The server's keys are the server's (`ConfigChanged`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from quiverlog.node.assignment import Assignment
from quiverlog.node.config import NodeConfig
from quiverlog.node.elections import Elections
from quiverlog.node.live_config import LiveConfig
from quiverlog.node.metadata import Metadata
from quiverlog.node.outbox import Outbox
from quiverlog.node.repairs import Repairs
from quiverlog.node.replication import Replication

__all__ = ["make_live_config"]


class Making(Protocol):
    """The parts of a broker that is being made which follow some key."""

    @property
    def assignment(self) -> Assignment: ...

    @property
    def config(self) -> NodeConfig: ...

    @property
    def elections(self) -> Elections: ...

    @property
    def metadata(self) -> Metadata: ...

    @property
    def outbox(self) -> Outbox: ...

    @property
    def repairs(self) -> Repairs: ...

    @property
    def replication(self) -> Replication: ...


def make_live_config(broker: Making) -> LiveConfig:
    """What takes the typed value of a key, and the moment from which on it counts."""

    def give_defaults(given: Mapping[str, str]) -> None:
        """Some default of topics is another one, as given or decided: logs and rules take it."""
        broker.metadata.give_defaults(given)
        broker.assignment.reconfigure()

    setters = {
        "leader.balance.period.ms": broker.elections.set_period,
        "leader.balance.moves.max": broker.elections.set_moves_max,
        "partition.move.bytes.per.second": broker.replication.set_move_rate,
        "damaged.replicas.kept": broker.repairs.set_kept,
    }
    config = broker.config
    return LiveConfig(
        config.node_id,
        config.given,
        lambda: broker.metadata.image,
        broker.outbox,
        setters,
        give_defaults,
    )
