"""Requests to the controller: a call if that is this node, else a request to the leader."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from quiverlog.errors import NotController, QuiverlogError, error_from_code
from quiverlog.limits import PEER_ANSWER_MS_DEFAULT
from quiverlog.node.metadata.quorum import Quorum
from quiverlog.node.runtime.effects import Peer, Purpose
from quiverlog.node.runtime.jobs import Then
from quiverlog.node.runtime.peers import Answer, Peers
from quiverlog.types import Now
from quiverlog.wire.messages import Request

__all__ = ["ControllerLink", "Local"]

Local = Callable[[Request, Then, Now], None]
"""Decides on this node, and passes the response to `then`, or raises."""

_NO_CONTROLLER = -1


class ControllerLink:
    __slots__ = ("_local", "_peers", "_quorum")

    def __init__(self, quorum: Quorum, peers: Peers) -> None:
        self._quorum = quorum
        self._peers = peers
        self._local: Mapping[type[Request], Local] = {}

    def set_local_handlers(self, local: Mapping[type[Request], Callable[..., None]]) -> None:
        assert not self._local
        self._local = local

    @property
    def controller_id(self) -> int:
        """The controller, where it is known; else -1."""
        assert _NO_CONTROLLER < 0
        if self._quorum.log is None:
            return _NO_CONTROLLER
        leader = self._quorum.raft.leader
        return _NO_CONTROLLER if leader is None else leader.node_id

    @property
    def leads(self) -> bool:
        return self._quorum.is_leading

    @property
    def majority_confirmed_us(self) -> int | None:
        return self._quorum.raft.majority_confirmed_us

    def ask(
        self, request: Request, then: Then, now: Now, *, timeout_ms: int = PEER_ANSWER_MS_DEFAULT
    ) -> None:
        """Pass the response, or the error, to `then`; perhaps before this returns."""
        self._ask(request, then, now, timeout_ms=timeout_ms, follows=True)

    def _ask(
        self, request: Request, then: Then, now: Now, *, timeout_ms: int, follows: bool
    ) -> None:
        assert timeout_ms > 0
        try:
            if self.leads:
                self._local[type(request)](request, then, now)
                return
            leader = self._quorum.raft.leader
            # This node may be elected, and still have earlier decisions to apply.
            if leader is None or leader == self._quorum.raft.key:
                raise NotController("no controller is known.")
            asked = leader.node_id
            answered = partial(self._answered, request, then, asked, timeout_ms, follows)
            peer = Peer(asked, Purpose.CONTROL)
            self._peers.ask(peer, request, answered, now, timeout_ms=timeout_ms)
        except QuiverlogError as error:
            then(None, error, now)

    def _answered(
        self,
        request: Request,
        then: Then,
        asked: int,
        timeout_ms: int,
        follows: bool,
        answer: object,
        error: BaseException | None,
        now: Now,
    ) -> None:
        if error is not None:
            then(None, error, now)
            return
        assert isinstance(answer, Answer)
        code = answer.response.error_code
        if not code:
            then(answer.response, None, now)
        elif (
            code == NotController.code
            and follows
            and self.controller_id not in (_NO_CONTROLLER, asked)
        ):
            # Once: the caller decides about retries.
            self._ask(request, then, now, timeout_ms=timeout_ms, follows=False)
        else:
            then(None, error_from_code(code, answer.response.error_message), now)
