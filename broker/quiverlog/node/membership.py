"""This node among the brokers: its way to the controller, its registration, and everybody's.

Owns nothing but these three, put together, and the voters that change by themselves.
"""

from __future__ import annotations

from collections.abc import Callable

from quiverlog.node.config import NodeConfig
from quiverlog.node.controller_link import ControllerLink, Local
from quiverlog.node.metadata import Metadata
from quiverlog.node.outbox import Outbox
from quiverlog.node.peers import Peers
from quiverlog.node.quorum import Quorum
from quiverlog.node.registrar import Registrar
from quiverlog.node.registration import Registration
from quiverlog.node.voter_changes import VoterChanges
from quiverlog.storage.data_directory import DataDirectory
from quiverlog.types import Now
from quiverlog.wire.broker_messages import BrokerHeartbeatRequest, RegisterBrokerRequest
from quiverlog.wire.messages import Request

__all__ = ["Membership"]


class Membership:
    """See the module docstring.

    Args:
        directory: the data directory, once it is taken.
        local: who takes what else is asked of the controller, where this node decides.
        holds_back: see `Registration`.
    """

    __slots__ = ("_is_active", "controller", "registrar", "registration", "voter_changes")

    def __init__(
        self,
        config: NodeConfig,
        quorum: Quorum,
        metadata: Metadata,
        peers: Peers,
        outbox: Outbox,
        directory: Callable[[], DataDirectory],
        local: dict[type[Request], Local],
        holds_back: Callable[[], bool],
    ) -> None:
        self._is_active = False
        self.registrar = Registrar(
            config,
            quorum,
            metadata,
            outbox,
            lambda: directory().incarnation,
            lambda: self.registration.controller_heard,
        )
        assert not local.keys() & {RegisterBrokerRequest, BrokerHeartbeatRequest}
        taken: dict[type[Request], Callable[..., None]] = {
            **local,
            RegisterBrokerRequest: self.registrar.register,
            BrokerHeartbeatRequest: self.registrar.heartbeat,
        }
        self.controller = ControllerLink(quorum, peers, taken)
        self.registration = Registration(
            config,
            self.controller,
            outbox,
            lambda: metadata.image,
            directory,
            lambda: quorum.is_alone,
            holds_back,
        )

        self.voter_changes = VoterChanges(config, quorum, metadata, outbox)

    def begin(self, now: Now) -> None:
        """There is a quorum to ask, or to be."""
        self._is_active = True
        self.registration.begin(now)

    def serve(self, now: Now) -> None:
        """This broker serves clients from now on."""
        self._is_active = True
        self.registration.serve(now)

    def next_us(self) -> int | None:
        """When `tick` is to be called at the latest; 0: at once; None: when something happens."""
        if not self._is_active:
            return None
        own_us, others_us = self.registration.next_us(), self.registrar.next_us()
        voters_us = self.voter_changes.next_us()
        if voters_us is not None and (others_us is None or voters_us < others_us):
            others_us = voters_us
        if own_us is None or others_us is None:
            return own_us if others_us is None else others_us
        return min(own_us, others_us)

    def changed(self) -> None:
        """What the metadata say of brokers is another."""
        self.registration.changed()
        self.voter_changes.changed()

    def stop(self) -> None:
        """The broker closes: nothing more is asked or decided here."""
        self._is_active = False

    @property
    def is_active(self) -> bool:
        """True while brokers that ask may be answered."""
        return self._is_active

    def tick(self, now: Now) -> None:
        """The deadlines of both sides."""
        if not self._is_active:
            return
        self.registrar.tick(now)
        self.registration.tick(now)
        self.voter_changes.tick(now)
