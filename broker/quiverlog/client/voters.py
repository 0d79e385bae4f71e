"""Administration of the metadata quorum's voters, as an operation.

Owns the way to whoever leads the quorum: each broker that is known is asked in turn.
"""

from __future__ import annotations

from quiverlog.errors import (
    BrokerShuttingDown,
    ConnectionClosed,
    ConnectionFailed,
    InvalidVoterChange,
    NotController,
    OutcomeUnknown,
    QuiverlogError,
    RequestTimedOut,
    error_from_code,
)
from quiverlog.wire.messages import Response
from quiverlog.wire.voters_messages import ChangeVotersRequest, ChangeVotersResponse, VoterChange

from .commands import Operation
from .routing import Cluster

__all__ = ["change_voters"]


def change_voters(
    cluster: Cluster, request: ChangeVotersRequest
) -> Operation[ChangeVotersResponse]:
    """The quorum when the change, if there is one, is committed; what passes is tried again.

    A change whose answer was lost, or says that the outcome is unknown, may hold: where it is
    refused then, because it does, that is its answer.
    """
    is_unanswered = False

    def attempt() -> Operation[ChangeVotersResponse]:
        nonlocal is_unanswered
        last: QuiverlogError = NotController()
        best: ChangeVotersResponse | None = None
        addresses = cluster.addresses()
        for number, address in enumerate(addresses, start=1):
            is_read = not request.change
            patience_s = cluster.patience_of(
                address,
                has_others=is_read and number < len(addresses),
                has_answer=is_read and best is not None,
            )
            try:
                reply = yield cluster.call(address, request, timeout_s=patience_s)
                found = _checked(reply.response)
            except (ConnectionClosed, RequestTimedOut, OutcomeUnknown) as error:
                if request.change:
                    is_unanswered = True
                    raise
                cluster.suspect(address)
                last = error
                continue
            except (ConnectionFailed, NotController, BrokerShuttingDown) as error:
                # The last of these is also what a broker says that has no metadata yet.
                last = error
                continue
            except InvalidVoterChange:
                if not is_unanswered:
                    raise
                reply = yield cluster.call(address, ChangeVotersRequest())
                found = _checked(reply.response)
                if not _holds(request, found):
                    raise
            if request.change:
                return found
            if best is None or _knowledge(found) > _knowledge(best):
                best = found
        if best is None:
            raise last
        return best

    return (yield from cluster.retrying(attempt))


def _holds(request: ChangeVotersRequest, found: ChangeVotersResponse) -> bool:
    wanted = request.change == VoterChange.ADD
    meant = [
        one
        for one in found.replicas
        if one.node_id == request.node_id
        and request.directory_id in ("", one.directory_id)
        and one.is_voter
    ]
    return bool(meant) == wanted


def _checked(response: Response) -> ChangeVotersResponse:
    assert isinstance(response, ChangeVotersResponse)
    if response.error_code:
        raise error_from_code(response.error_code, response.error_message)
    return response


def _knowledge(found: ChangeVotersResponse) -> tuple[int, int]:
    """The leader of the newest term knows most."""
    return found.term, sum(one.last_index >= 0 for one in found.replicas)
