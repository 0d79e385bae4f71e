"""What the node has to say at the end of a call: the effects, in their order.

Owns the list that gathers them and the few ways to add to it. Every part of the node that answers,
logs or starts something has this object, and needs no other to do so.

Must not know: what an effect is good for.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence

from quiverlog.node.runtime.effects import CloseConnection, Effect, LogLine, Respond
from quiverlog.node.runtime.metrics import NodeMetrics
from quiverlog.wire.messages import Response

__all__ = ["Outbox"]


class Outbox:
    """See the module docstring."""

    __slots__ = ("_metrics", "effects")

    def __init__(self, metrics: NodeMetrics) -> None:
        self._metrics = metrics
        self.effects: list[Effect] = []

    def respond(
        self,
        connection_id: int,
        correlation_id: int,
        response: Response,
        body: Sequence[memoryview] = (),
    ) -> None:
        """Answer a request."""
        self.effects.append(Respond(connection_id, response, correlation_id, body))

    def close_connection(self, connection_id: int, why: str) -> None:
        """Close a connection after what was said to it."""
        self.effects.append(CloseConnection(connection_id, why))

    def emit(self, effect: Effect) -> None:
        """Any other effect."""
        self.effects.append(effect)

    def log(self, level: str, event: str, **fields: object) -> None:
        """A line for the broker's log."""
        self.effects.append(LogLine(level, event, fields))

    def internal_error(self, where: str, error: BaseException) -> None:
        """An exception that nobody expected: a bug of ours, counted and logged with its trace."""
        self._metrics.internal_errors += 1
        trace = "".join(traceback.format_exception(error))
        self.effects.append(LogLine("error", "internal error", {"during": where, "trace": trace}))

    def displaced(self, event: str, at: str, other_at: str, **what_now: object) -> None:
        """Another process has this broker's place in the cluster: counted and logged."""
        self._metrics.was_displaced(at, other_at)
        self.log("error", event, at=at, other_at=other_at, **what_now)

    def take(self) -> list[Effect]:
        """The effects that have gathered since the last call."""
        effects, self.effects = self.effects, []
        return effects
