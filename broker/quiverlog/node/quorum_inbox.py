"""Where the quorum's messages arrive from other brokers.

Owns who takes them: the host of the Raft, from the moment when it says so. Before that this broker
serves no QUORUM, and says so at HELLO.

Must not know: connections, requests, what a message asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quiverlog.core.raft.messages import Message
from quiverlog.types import Now

__all__ = ["QuorumInbox", "Receiver"]

Receiver = Callable[[Sequence[Message], Now], None]
"""Takes messages in their order. They are meant for this node, perhaps for another disk of it."""


class QuorumInbox:
    """See the module docstring."""

    __slots__ = ("_receiver",)

    def __init__(self) -> None:
        self._receiver: Receiver | None = None

    @property
    def is_served(self) -> bool:
        """True when somebody takes messages."""
        return self._receiver is not None

    def serve(self, receiver: Receiver) -> None:
        """`receiver` takes all messages from now on."""
        assert self._receiver is None, "a node has one quorum"
        self._receiver = receiver

    def take(self, messages: Sequence[Message], now: Now) -> None:
        """Messages have arrived."""
        assert self._receiver is not None, "asked before"
        if messages:
            self._receiver(messages, now)
