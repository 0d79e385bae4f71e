"""The effects of one call of the node, in their order."""

from __future__ import annotations

import traceback
from collections.abc import Sequence

from quiverlog.node.runtime.effects import CloseConnection, Effect, LogLine, Respond
from quiverlog.node.runtime.metrics import NodeMetrics
from quiverlog.wire.messages import Response

__all__ = ["Outbox"]


class Outbox:
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
        self.effects.append(Respond(connection_id, response, correlation_id, body))

    def close_connection(self, connection_id: int, why: str) -> None:
        self.effects.append(CloseConnection(connection_id, why))

    def emit(self, effect: Effect) -> None:
        self.effects.append(effect)

    def log(self, level: str, event: str, **fields: object) -> None:
        self.effects.append(LogLine(level, event, fields))

    def internal_error(self, where: str, error: BaseException) -> None:
        self._metrics.internal_errors += 1
        trace = "".join(traceback.format_exception(error))
        self.effects.append(LogLine("error", "internal error", {"during": where, "trace": trace}))

    def displaced(self, event: str, at: str, other_at: str, **what_now: object) -> None:
        """Count and log that another process has this broker's place in the cluster."""
        self._metrics.was_displaced(at, other_at)
        self.log("error", event, at=at, other_at=other_at, **what_now)

    def take(self) -> list[Effect]:
        effects, self.effects = self.effects, []
        return effects
