"""What all client connections of one event loop share."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from quiverlog.node.runtime.config import LISTENER_DEFAULT
from quiverlog.server.connections import ConnectionTable
from quiverlog.server.logs import Logger
from quiverlog.server.memory import MemoryBudget
from quiverlog.server.metrics import ServerMetrics
from quiverlog.server.node_runner import NodeRunner
from quiverlog.server.turns import Turns
from quiverlog.wire.buffers import BufferPool

__all__ = ["ConnectionContext"]


class ConnectionContext(NamedTuple):
    """See the module docstring."""

    runner: NodeRunner
    connections: ConnectionTable
    metrics: ServerMetrics
    log: Logger
    turns: Turns
    memory: MemoryBudget
    scratch: bytearray
    """Received small frames lie here until they were handled; see `FrameReceiver`."""
    pool: BufferPool
    hide_paths: Callable[[str], str]
    """Makes an error message fit for clients."""
    listener: str = LISTENER_DEFAULT
    """The listener that takes the connections."""
    serves_brokers: bool = False
    """Other brokers may come to it."""
