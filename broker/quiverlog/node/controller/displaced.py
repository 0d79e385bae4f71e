"""When a displaced broker registers again.

A broker is displaced when another process registers under its node id, or the controller holds it
for stopping without its request. It registers again after a session or more, unless its disk was
replaced.
"""

from __future__ import annotations

from typing import Final

from quiverlog.addresses import Address
from quiverlog.limits import BROKER_DISPLACED_MS_MAX
from quiverlog.node.metadata.voters import endpoint_of
from quiverlog.node.runtime.config import NodeConfig
from quiverlog.node.runtime.metadata_view import MetadataView
from quiverlog.node.runtime.outbox import Outbox

__all__ = ["DISK_REPLACED", "HELD", "REPLACED", "Displaced"]

REPLACED: Final = "another process is registered with this node id"
DISK_REPLACED: Final = "another disk is registered with this node id"
HELD: Final = "held for stopping, which this broker has not asked for"

_WAIT_US_MAX: Final = BROKER_DISPLACED_MS_MAX * 1000
_CALM_US: Final = 2 * _WAIT_US_MAX
"""Longer than between two displacements with the same cause."""


class Displaced:
    """`due_us`: when to register again; None: the broker is not displaced."""

    __slots__ = ("_config", "_last_us", "_metadata", "_outbox", "_wait_us", "due_us")

    def __init__(self, config: NodeConfig, outbox: Outbox, metadata: MetadataView) -> None:
        self._config = config
        self._outbox = outbox
        self._metadata = metadata
        self._last_us = -_CALM_US
        self._wait_us = 0
        self.due_us: int | None = None

    def look(self, how: str, session_us: int, now_us: int) -> None:
        """Note why the broker is displaced; empty: it is not."""
        if not how:
            self.due_us = None
        elif self.due_us is None:
            self._begins(session_us, now_us)
            waits_ms, at = self._wait_us // 1000, str(self._config.endpoint)
            if how == REPLACED:
                self._outbox.displaced(how, at, self.other_address, registers_again_in_ms=waits_ms)
            else:
                self._outbox.log("warning", how, at=at, registers_again_in_ms=waits_ms)

    def disk_was_replaced(self) -> None:
        # Registering again, with earlier rows, would displace the new disk.
        self.due_us = None
        remedy = "stop this process: its disk was replaced, and it does not register again"
        at = str(self._config.endpoint)
        self._outbox.displaced(DISK_REPLACED, at, self.other_address, remedy=remedy)

    def _begins(self, session_us: int, now_us: int) -> None:
        assert session_us > 0
        assert now_us >= self._last_us
        # If it happens again soon, the pause stays as long as it has become.
        if now_us - self._last_us >= _CALM_US:
            self._wait_us = session_us
        self._last_us = now_us
        self.due_us = now_us + self._wait_us

    @property
    def other_address(self) -> str:
        other = self._metadata.image.brokers[self._config.node_id]
        listener = self._config.inter_broker_listener
        return endpoint_of(other, listener) or str(Address(other.host, other.port))

    def is_due(self, now_us: int) -> bool:
        return self.due_us is not None and now_us >= self.due_us

    def refused(self, session_us: int, now_us: int) -> None:
        # The other process is alive, and this request took nothing from it: the pause is kept.
        if self.due_us is not None:
            self._wait_us = session_us
            self.due_us = now_us + session_us

    def asked(self, now_us: int) -> None:
        assert self._wait_us > 0
        # Two processes with one identity must not displace each other at full speed.
        self._wait_us = max(self._wait_us, min(2 * self._wait_us, _WAIT_US_MAX))
        self._last_us = now_us
        self.due_us = now_us + self._wait_us
