"""Check that another replica has the address that a change of voters, or a registration, names.

Any client could claim a replica's id in a request. So before a change this broker connects to the
endpoint itself: the broker there names its cluster and node at HELLO (checked by the server), and
its directory in the answer to a QUORUM without messages.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from quiverlog.addresses import Address
from quiverlog.core.controller.records import BrokerRecord
from quiverlog.core.raft.messages import ReplicaKey
from quiverlog.errors import BrokerNotReached, QuiverlogError, VoterNotReady, error_from_code
from quiverlog.node.runtime.config import NodeConfig
from quiverlog.node.runtime.effects import Peer, Purpose
from quiverlog.node.runtime.jobs import Then
from quiverlog.node.runtime.peers import Answer, BrokerAddresses, Peers
from quiverlog.storage.directory.data_directory import DataDirectory
from quiverlog.types import Now
from quiverlog.wire.quorum_messages import QuorumRequest, QuorumResponse

__all__ = ["Reach"]

_ANSWER_MS: Final = 3_000


class Reach:
    __slots__ = ("_broker_addresses", "_config", "_directory", "_peers", "_proves")

    def __init__(
        self,
        config: NodeConfig,
        peers: Peers,
        broker_addresses: BrokerAddresses,
        directory: Callable[[], DataDirectory],
        proves: Callable[[], bool],
    ) -> None:
        self._config = config
        self._peers = peers
        self._broker_addresses = broker_addresses
        self._directory = directory
        self._proves = proves

    def check_newcomer(self, newcomer: BrokerRecord, now: Now, then: Then) -> None:
        """Call `then` with None when a broker has answered where it registers, else with
        BrokerNotReached; without a look where brokers prove nothing: any could answer.
        """
        key = ReplicaKey(newcomer.node_id, newcomer.directory_id)
        # A voter that has lost its disk, and moved: only its old address is known here.
        if not self._proves() or not self._broker_addresses.is_believed(key):
            then(None, None, now)
            return
        between = self._config.inter_broker_listener
        where = [Address(host, port) for name, host, port in newcomer.listeners if name == between]

        def reached(_: object, error: BaseException | None, now: Now) -> None:
            assert error is None or isinstance(error, QuiverlogError)
            then(None, BrokerNotReached(error.message) if error else None, now)

        self.check(key, str(where[0]) if where else f"no listener {between!r}", now, reached)

    def check(self, key: ReplicaKey, endpoint: str, now: Now, then: Then) -> None:
        """Call `then` with VoterNotReady unless that replica answers there."""
        if key == ReplicaKey(self._config.node_id, self._directory().directory_id):
            then(None, None, now)  # It is this replica.
            return
        request = QuorumRequest(
            cluster_id=self._directory().cluster_id,
            source_id=self._config.node_id,
            source_directory=self._directory().directory_id,
            target_id=key.node_id,
            source_endpoint=str(self._config.endpoint),
        )
        try:
            self._check_address(key, endpoint)
            self._peers.ask(
                Peer(key.node_id, Purpose.CONTROL),
                request,
                partial(self._answered, key, endpoint, then),
                now,
                timeout_ms=_ANSWER_MS,
            )
        except QuiverlogError as error:
            then(None, _not_reached(key, endpoint, error), now)

    def _check_address(self, key: ReplicaKey, endpoint: str) -> None:
        """Refuse an endpoint other than the node's address here, which connections go to."""
        known: Address | None = self._broker_addresses.known().get(key.node_id)
        if str(known) != endpoint:
            where = (
                f"has node {key.node_id} at {known}" if known else f"knows no node {key.node_id}"
            )
            raise VoterNotReady(f"this broker {where}.")

    def _answered(
        self,
        key: ReplicaKey,
        endpoint: str,
        then: Then,
        answer: object,
        error: BaseException | None,
        now: Now,
    ) -> None:
        try:
            if error is not None:
                raise error
            assert isinstance(answer, Answer)
            response = answer.response
            if response.error_code:
                raise error_from_code(response.error_code, response.error_message)
            assert isinstance(response, QuorumResponse)
            self._check_address(key, endpoint)  # A connection ends when its address changes.
            if response.directory_id != key.directory_id:
                raise VoterNotReady(
                    f"the broker there has the directory {response.directory_id!r},"
                    f" not {key.directory_id!r}."
                )
        except QuiverlogError as failure:
            then(None, _not_reached(key, endpoint, failure), now)
        else:
            then(None, None, now)


def _not_reached(key: ReplicaKey, endpoint: str, error: QuiverlogError) -> VoterNotReady:
    return VoterNotReady(f"node {key.node_id} was not reached at {endpoint}: {error}")
