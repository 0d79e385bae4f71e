"""Requests to leaders of `__staged`, which may be this broker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from quiverlog.core.controller.internal_topics import STAGED
from quiverlog.errors import CoordinatorNotReady, UnknownTopicId, error_from_code
from quiverlog.node.runtime.effects import Peer, Purpose
from quiverlog.node.runtime.jobs import Then
from quiverlog.node.runtime.metadata_view import MetadataView
from quiverlog.node.runtime.peers import Answer, Peers
from quiverlog.types import Now
from quiverlog.wire.messages import Request, Response
from quiverlog.wire.transaction_messages import CountStagedRequest, PublishRequest

__all__ = ["Leaders", "Local"]

Local = Callable[[Any, Then, Now], None]
"""Answers a request as its leader: passes the response, or the error, to `then`; or raises."""


class Leaders:
    """Requests to leaders of `__staged`: calls where that is this broker."""

    __slots__ = ("_node_id", "_peers", "_view", "local")

    def __init__(
        self,
        node_id: int,
        view: MetadataView,
        peers: Peers,
        local: Mapping[type[Request], Local],
    ) -> None:
        self._node_id = node_id
        self._view = view
        self._peers = peers
        self.local = local

    def ask_leader(
        self,
        topic_id: bytes,
        partition: int,
        request: CountStagedRequest | PublishRequest,
        then: Then,
        now: Now,
    ) -> None:
        """Pass the response, or the error, to `then`; perhaps before this returns."""
        try:
            topic = self._view.image.topics_by_id.get(topic_id)
            if topic is None or not partition < len(topic.partitions):
                raise UnknownTopicId(f"there is no partition {partition} of {STAGED!r}.")
            image = topic.partitions[partition]
            request.broker_id = self._node_id
            request.partition = partition
            request.leader_epoch = image.leader_epoch
            if image.leader_id == self._node_id:
                self.local[type(request)](request, then, now)
                return
            if image.leader_id < 0:
                raise CoordinatorNotReady(f"{STAGED}-{partition} has no leader now.")
            # Not with the quorum: a leader holds a PUBLISH, and 20,000 attempts are not small.
            peer = Peer(image.leader_id, Purpose.ROWS)
            self._peers.ask(peer, request, partial(_take_answer, then), now)
        except Exception as error:
            then(None, error, now)


def _take_answer(then: Then, answer: object, error: BaseException | None, now: Now) -> None:
    if error is not None:
        then(None, error, now)
        return
    assert isinstance(answer, Answer)
    response: Response = answer.response
    if response.error_code:
        then(None, error_from_code(response.error_code, response.error_message), now)
    else:
        then(response, None, now)
