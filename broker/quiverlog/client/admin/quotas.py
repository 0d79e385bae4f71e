"""Quotas, as `quiverlog quota` shows and changes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from quiverlog.client.base.commands import Operation
from quiverlog.client.cluster.routing import Cluster
from quiverlog.errors import InvalidArgument
from quiverlog.types import QuotaKind
from quiverlog.wire.security.quota_messages import (
    AlterQuotasRequest,
    AlterQuotasResponse,
    DescribeQuotasRequest,
    DescribeQuotasResponse,
    QuotaPart,
)

from .rules import label_of

__all__ = ["ClientQuota", "change_quota", "list_quotas"]

_KINDS: Final = {one.label: one for one in QuotaKind}
_UNCHANGED: Final = -1


@dataclass(frozen=True, slots=True)
class ClientQuota:
    """How much one client may ask of each broker; 0: this quota does not limit it.

    Attributes:
        kind: user, client-id or default; the first of them that has such a limit counts.
        name: of the user or client; the default has none.
        bytes_in: of produced rows, in a second.
        bytes_out: of rows that are read, in a second.
        connections: open at a time.
    """

    kind: str
    name: str = ""
    bytes_in: int = 0
    bytes_out: int = 0
    connections: int = 0


def change_quota(
    cluster: Cluster,
    kind: str,
    name: str,
    bytes_in: int | None,
    bytes_out: int | None,
    connections: int | None,
) -> Operation[None]:
    """None leaves a limit as it is, 0 takes it away."""
    if kind not in _KINDS:
        raise InvalidArgument(f"there is no quota of a {kind!r}: give one of {', '.join(_KINDS)}.")
    # One that is not given must not take away what another operator has set.
    limits = (_UNCHANGED if one is None else one for one in (bytes_in, bytes_out, connections))
    request = AlterQuotasRequest(changes=[QuotaPart(int(_KINDS[kind]), name, *limits)])

    def attempt() -> Operation[None]:
        reply = yield from cluster.call_controller(request)
        assert isinstance(reply.response, AlterQuotasResponse)

    yield from cluster.retrying(attempt)


def list_quotas(cluster: Cluster) -> Operation[list[ClientQuota]]:
    def attempt() -> Operation[list[ClientQuota]]:
        reply = yield from cluster.call_any(DescribeQuotasRequest())
        assert isinstance(reply.response, DescribeQuotasResponse)
        return [
            ClientQuota(
                label_of(QuotaKind, one.kind),
                one.name,
                one.bytes_in,
                one.bytes_out,
                one.connections,
            )
            for one in reply.response.quotas
        ]

    return (yield from cluster.retrying(attempt))
