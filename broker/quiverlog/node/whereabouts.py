"""Where the other brokers are, from all who tell of it.

Owns what each source says, and which of them counts for a node when they differ:

| source | says | counts |
|---|---|---|
| the operator (`controllers`) | where controllers were once | when nobody else tells |
| a broker that was asked for the leader | where the leader is that it follows | before that |
| the voters in the metadata log | where a voter was when it became one | before that |
| the registrations in the metadata | where a broker was when it last registered | before that |
| the operator (`moved_controllers`) | where all are that moved at once | before that |
| the requests of another replica | where it is now | before all others |

What a request says is believed of the node's voter, that is of its very disk, and of nodes that are
no voters: a wiped disk must not draw the messages of the voter to itself.

Must not know: connections, what is sent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from quiverlog.addresses import Address, parse_address
from quiverlog.core.controller.records import BrokerRecord
from quiverlog.core.raft.messages import ReplicaKey, Voters
from quiverlog.errors import InvalidRequest
from quiverlog.limits import RAFT_OBSERVERS_MAX
from quiverlog.node.config import NodeConfig

__all__ = ["Said", "Whereabouts"]

_HEARD_MAX: Final = RAFT_OBSERVERS_MAX


class Said(NamedTuple):
    """What a replica has said of itself."""

    key: ReplicaKey
    address: Address
    is_controller: bool


class Whereabouts:
    """See the module docstring.

    Args:
        config: this node, which is never among the others, and what the operator says.
        changed: is told where all are, when that may have changed.
    """

    __slots__ = (
        "_changed",
        "_controllers",
        "_heard",
        "_listener",
        "_moved",
        "_node_id",
        "_registered",
        "_told",
        "_voters",
    )

    def __init__(
        self,
        config: NodeConfig,
        changed: Callable[[Mapping[int, Address]], None],
    ) -> None:
        self._node_id = config.node_id
        self._listener = config.inter_broker_listener
        self._controllers = config.controllers
        self._moved = config.moved_controllers
        self._changed = changed
        self._voters: Voters = {}
        self._registered: Mapping[int, Address] = {}
        self._heard: dict[int, Said] = {}
        self._told: dict[int, Address] = {}  # One leader at most.

    def voters_changed(self, voters: Voters) -> None:
        """The metadata log names other voters, or other endpoints of them."""
        self._voters = dict(voters)
        for node_id, said in list(self._heard.items()):
            if not self._is_believed(said.key):
                del self._heard[node_id]
        self._tell()

    def brokers_changed(self, brokers: Iterable[BrokerRecord]) -> None:
        """The metadata has other registrations: all of them."""
        registered: dict[int, Address] = {}
        for one in brokers:
            endpoints = {name: Address(host, port) for name, host, port in one.listeners}
            if self._listener in endpoints:
                registered[one.node_id] = endpoints[self._listener]
        if registered != self._registered:
            self._registered = registered
            self._tell()

    def heard(self, key: ReplicaKey, endpoint: str, *, is_controller: bool = True) -> None:
        """A replica says in a request where it is (empty: it does not), and whether it may vote.

        Raises:
            InvalidRequest: that is no address.
        """
        if not endpoint:
            return
        try:
            address = parse_address(endpoint)
        except ValueError as error:
            raise InvalidRequest(f"the sender's endpoint {error}.") from None
        if key.node_id == self._node_id or not self._is_believed(key):
            return
        said = Said(key, address, is_controller)
        if self._heard.get(key.node_id) != said:
            self._heard.pop(key.node_id, None)
            while len(self._heard) >= _HEARD_MAX:
                del self._heard[next(iter(self._heard))]
            self._heard[key.node_id] = said
            assert len(self._heard) <= _HEARD_MAX
            self._tell()

    def told(self, node_id: int, address: Address) -> None:
        """A broker that was asked for the leader says where it is."""
        if node_id != self._node_id and self._told != {node_id: address}:
            self._told = {node_id: address}
            self._tell()

    def _is_believed(self, key: ReplicaKey) -> bool:
        return key in self._voters or all(key.node_id != one.node_id for one in self._voters)

    def said_by(self, node_id: int) -> Said | None:
        """What a node has said of itself since this process began."""
        return self._heard.get(node_id)

    def known(self) -> dict[int, Address]:
        """Where each other node is, by all that is known."""
        found = {**self._controllers, **self._told}
        for voter, endpoint in self._voters.items():
            # A quorum of one has written down no address, an older one perhaps a strange one.
            with contextlib.suppress(ValueError):
                found[voter.node_id] = parse_address(endpoint)
        found.update(self._registered)
        found.update(self._moved)
        found.update((node_id, said.address) for node_id, said in self._heard.items())
        found.pop(self._node_id, None)
        assert self._node_id not in found, "nobody connects to itself"
        return found

    def _tell(self) -> None:
        self._changed(self.known())
