"""CHANGE_VOTERS: the voters of the metadata quorum."""

from __future__ import annotations

import enum
from typing import Annotated, ClassVar

from msgspec import Meta

from quiverlog.limits import QUORUM_REPLICAS_SHOWN_MAX

from .messages import (
    Api,
    BrokerEndpoint,
    Int32,
    Known,
    Part,
    Request,
    Response,
    UInt31,
    UInt63,
)
from .quorum_messages import DirectoryId, Endpoint

__all__ = ["ChangeVotersRequest", "ChangeVotersResponse", "QuorumReplica", "VoterChange"]


class VoterChange(enum.IntEnum):
    NOTHING = 0
    ADD = 1
    REMOVE = 2


class ChangeVotersRequest(Request, array_like=True, gc=False):
    """Adds a voter to the metadata quorum, removes one, or asks for the present ones.

    The quorum's leader makes the change, and answers when it is committed; every broker answers
    questions from its own state.
    """

    API: ClassVar[Api] = Api.CHANGE_VOTERS
    change: UInt31 = 0
    node_id: UInt31 = 0
    directory_id: DirectoryId = ""

    @property
    def only_asks(self) -> bool:
        return self.change == VoterChange.NOTHING


class QuorumReplica(Part, array_like=True, gc=False):
    node_id: UInt31 = 0
    directory_id: DirectoryId = ""
    endpoint: Endpoint = ""
    is_voter: bool = False
    last_index: Known = -1
    lag: Known = -1
    silent_ms: Known = -1


class ChangeVotersResponse(Response, array_like=True, gc=False):
    """The quorum as it is now, as far as this broker has it."""

    API: ClassVar[Api] = Api.CHANGE_VOTERS
    leader_id: Int32 = -1
    term: UInt63 = 0
    committed_index: UInt63 = 0
    replicas: Annotated[list[QuorumReplica], Meta(max_length=QUORUM_REPLICAS_SHOWN_MAX)] = []
    controller: BrokerEndpoint | None = None
