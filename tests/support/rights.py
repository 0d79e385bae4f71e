"""A node at which clients have names: a super user, alice, and one without a name.

Owns the numbers of their connections; a test gives rules and asks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from quiverlog.core.controller.internal_topics import STAGED
from quiverlog.core.security.principals import of_user
from quiverlog.node.runtime.events import ConnectionOpened
from quiverlog.types import Operation, ResourceKind
from quiverlog.wire import messages as m
from quiverlog.wire.security.acl_messages import AlterAclsRequest, RulePart

from .logins import WANTED
from .node import NodeDriver
from .staged import staged_batch

__all__ = ["ALICE", "ANONYMOUS", "ROOT", "RightsDriver", "rule", "settle", "stage"]

ROOT: Final = 1
ALICE: Final = 2
ANONYMOUS: Final = 3


def rule(
    operation: Operation,
    kind: ResourceKind = ResourceKind.TOPIC,
    name: str = "",
    *,
    allows: bool = True,
    prefix: bool = False,
    who: str = "user:alice",
    network: str = "",
) -> RulePart:
    return RulePart(who, allows, operation, kind, name, prefix, network)


class RightsDriver(NodeDriver):
    """Each start logs the connections in: the node's logins are tested elsewhere."""

    def __init__(self, root: Path, **config: Any) -> None:
        super().__init__(root, authentication=WANTED, super_users=("root",), **config)

    def _greet(self) -> None:
        assert self.started
        for connection, name in ((ROOT, "root"), (ALICE, "alice"), (ANONYMOUS, "")):
            self.connect(connection, name, f"10.0.0.{connection}:9999")

    def connect(self, connection: int, name: str, peer: str = "10.0.0.9:9999") -> None:
        self.send(ConnectionOpened(connection, peer))
        if name:
            self.node.broker.clients.authenticated(connection, of_user(name))
        self.call(m.HelloRequest(client_id=f"test-{connection}"), connection=connection)

    def give(self, *rules: RulePart, removals: list[int] | None = None) -> list[int]:
        """Change the rules as the super user; returns the numbers of those added."""
        request = AlterAclsRequest(additions=list(rules), removals=removals or [])
        response, _ = self.call(request, connection=ROOT)
        assert response.error_code == 0, response.error_message
        return list(response.numbers)

    def take_all(self) -> None:
        self.give(removals=list(self.node.broker.view.image.rules.rules))


def settle(node: RightsDriver) -> None:
    for _ in range(30):
        node.run_until_idle()
        if node.syncs:
            node.flush()


def stage(node: RightsDriver, *rows: dict[str, Any], connection: int = ALICE) -> Any:
    """Write rows of `__staged`; returns the entry's result."""
    staged = node.node.broker.view.image.topics[STAGED].topic_id
    correlation = node.produce(staged, staged_batch(rows), connection=connection)
    settle(node)
    answer = node.answer(correlation)
    assert answer is not None
    return answer[0].partitions[0]
