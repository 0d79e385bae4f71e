"""ALTER_QUOTAS and DESCRIBE_QUOTAS: how much each client may ask of a broker."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from quiverlog.limits import CLIENT_ID_CHARS_MAX, QUOTAS_MAX
from quiverlog.wire.messages import (
    Api,
    BrokerEndpoint,
    Int64,
    Part,
    Request,
    Response,
    UInt31,
    UInt63,
)

__all__ = [
    "AlterQuotasRequest",
    "AlterQuotasResponse",
    "DescribeQuotasRequest",
    "DescribeQuotasResponse",
    "QuotaPart",
]

OwnerName = Annotated[str, Meta(max_length=CLIENT_ID_CHARS_MAX)]


class QuotaPart(Part, array_like=True, gc=False):
    """Of a broker, by bytes a second: `bytes_in` of PRODUCE, `bytes_out` of rows for FETCH.

    In a change -1 leaves a limit as it is, and 0 takes it away.
    """

    kind: UInt31 = 0
    name: OwnerName = ""
    bytes_in: Int64 = 0
    bytes_out: Int64 = 0
    connections: Int64 = 0


class AlterQuotasRequest(Request, array_like=True, gc=False):
    """Changes quotas; all or nothing. The controller decides."""

    API: ClassVar[Api] = Api.ALTER_QUOTAS
    changes: Annotated[list[QuotaPart], Meta(max_length=QUOTAS_MAX)] = []
    validate_only: bool = False


class AlterQuotasResponse(Response, array_like=True, gc=False):
    """Answered when all live brokers go by the quotas."""

    API: ClassVar[Api] = Api.ALTER_QUOTAS
    metadata_version: UInt63 = 0
    controller: BrokerEndpoint | None = None


class DescribeQuotasRequest(Request, array_like=True, gc=False):
    """Asks for quotas; `kind` 0, `name` nil: any."""

    API: ClassVar[Api] = Api.DESCRIBE_QUOTAS
    kind: UInt31 = 0
    name: OwnerName | None = None


class DescribeQuotasResponse(Response, array_like=True, gc=False):
    API: ClassVar[Api] = Api.DESCRIBE_QUOTAS
    metadata_version: UInt63 = 0
    quotas: Annotated[list[QuotaPart], Meta(max_length=QUOTAS_MAX)] = []
