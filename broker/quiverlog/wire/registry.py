"""The table of APIs: request, response, versions and audience of each number.

A new API needs its number in `apis`, its two classes in a file of messages, and one line here; one
between brokers also the field that names its sender.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import msgspec

from quiverlog.first_use import MAKING
from quiverlog.limits import HEADER_BYTES_MAX

from . import authentication_messages as a
from . import broker_messages as b
from . import cluster_messages as c
from . import config_messages as k
from . import decommission_messages as d
from . import election_messages as e
from . import group_messages as g
from . import messages as m
from . import producer_messages as w
from . import quorum_messages as q
from . import reassignment_messages as n
from . import replica_messages as r
from . import transaction_messages as t
from . import voters_messages as v
from .apis import Audience
from .security import acl_messages as s
from .security import quota_messages as o
from .security import user_messages as u

__all__ = ["ADMINISTRATION", "ALSO_ASK", "APIS", "SENDERS", "ApiSpec", "LateDecoder", "api_ranges"]

_Message = TypeVar("_Message")


class LateDecoder(Generic[_Message]):
    """A decoder made on first use, under `first_use.MAKING`: all of them take 9 ms, and no process
    needs all.

    Attributes:
        decode: made when it is first looked up.
    """

    __slots__ = ("_kind", "decode")

    decode: Callable[[bytes | bytearray | memoryview], _Message]

    def __init__(self, kind: type[_Message]) -> None:
        self._kind = kind

    def __getattr__(self, name: str) -> Callable[[bytes | bytearray | memoryview], _Message]:
        if name != "decode":
            raise AttributeError(name)
        with MAKING:  # A second thread makes its own again: the types are complete then.
            self.decode = msgspec.msgpack.Decoder(self._kind).decode
        return self.decode


@dataclass(frozen=True, slots=True)
class ApiSpec:
    """One API: its message types, decoders, supported versions and audience."""

    api: m.Api
    request: type[m.Request]
    response: type[m.Response]
    request_decoder: LateDecoder[m.Request]
    response_decoder: LateDecoder[m.Response]
    version_min: int
    version_max: int
    audience: Audience
    request_containers_max: int
    """Bound on arrays and maps in a request's header, where nested lists need a common one."""
    sender: str
    """Of an API between brokers: the request's field with the node id of the broker that sends it;
    the connection must have proved that id."""

    @property
    def between_brokers(self) -> bool:
        return self.audience is Audience.BROKERS


def _spec(
    request: type[m.Request],
    response: type[m.Response],
    audience: Audience,
    *,
    request_containers_max: int = HEADER_BYTES_MAX,
    sender: str = "",
) -> ApiSpec:
    assert request.API is response.API
    assert bool(sender) is (audience is Audience.BROKERS), request
    assert not sender or sender in request.__struct_fields__, request
    return ApiSpec(
        api=request.API,
        request=request,
        response=response,
        request_decoder=LateDecoder(request),
        response_decoder=LateDecoder(response),
        version_min=1,
        version_max=request.VERSION,
        audience=audience,
        request_containers_max=request_containers_max,
        sender=sender,
    )


_CLIENTS, _ADMINISTRATION, _BROKERS = Audience

APIS: dict[int, ApiSpec] = {
    int(spec.api): spec
    for spec in (
        _spec(m.HelloRequest, m.HelloResponse, _CLIENTS),
        _spec(m.MetadataRequest, m.MetadataResponse, _CLIENTS),
        _spec(m.ProduceRequest, m.ProduceResponse, _CLIENTS),
        _spec(m.FetchRequest, m.FetchResponse, _CLIENTS),
        _spec(m.ListOffsetsRequest, m.ListOffsetsResponse, _CLIENTS),
        _spec(m.InitProducerIdRequest, m.InitProducerIdResponse, _CLIENTS),
        # Sinks create the topic that they write to, and widen it, so these are no administration.
        _spec(m.CreateTopicsRequest, m.CreateTopicsResponse, _CLIENTS),
        _spec(m.DeleteTopicsRequest, m.DeleteTopicsResponse, _ADMINISTRATION),
        _spec(m.AlterTopicRequest, m.AlterTopicResponse, _CLIENTS),
        _spec(m.DescribeTopicsRequest, m.DescribeTopicsResponse, _CLIENTS),
        _spec(m.TopicSchemasRequest, m.TopicSchemasResponse, _CLIENTS),
        _spec(m.DeleteRecordsRequest, m.DeleteRecordsResponse, _ADMINISTRATION),
        _spec(m.EpochEndOffsetsRequest, m.EpochEndOffsetsResponse, _CLIENTS),
        _spec(m.DescribeRangesRequest, m.DescribeRangesResponse, _CLIENTS),
        _spec(c.DescribeClusterRequest, c.DescribeClusterResponse, _CLIENTS),
        _spec(v.ChangeVotersRequest, v.ChangeVotersResponse, _ADMINISTRATION),
        _spec(e.ElectLeadersRequest, e.ElectLeadersResponse, _ADMINISTRATION),
        _spec(n.DescribeReplicasRequest, n.DescribeReplicasResponse, _CLIENTS),
        _spec(w.DescribeProducerRequest, w.DescribeProducerResponse, _CLIENTS),
        _spec(
            n.ReassignPartitionsRequest,
            n.ReassignPartitionsResponse,
            _ADMINISTRATION,
            request_containers_max=n.REASSIGN_PARTITIONS_CONTAINERS_MAX,
        ),
        _spec(k.AlterConfigsRequest, k.AlterConfigsResponse, _ADMINISTRATION),
        _spec(k.DescribeConfigsRequest, k.DescribeConfigsResponse, _CLIENTS),
        _spec(c.UpdateFeaturesRequest, c.UpdateFeaturesResponse, _ADMINISTRATION),
        _spec(d.DecommissionBrokerRequest, d.DecommissionBrokerResponse, _ADMINISTRATION),
        _spec(s.AlterAclsRequest, s.AlterAclsResponse, _ADMINISTRATION),
        _spec(s.DescribeAclsRequest, s.DescribeAclsResponse, _CLIENTS),
        _spec(o.AlterQuotasRequest, o.AlterQuotasResponse, _ADMINISTRATION),
        _spec(o.DescribeQuotasRequest, o.DescribeQuotasResponse, _CLIENTS),
        _spec(t.OpenTransactionRequest, t.OpenTransactionResponse, _CLIENTS),
        _spec(
            t.CommitTransactionRequest,
            t.CommitTransactionResponse,
            _CLIENTS,
            request_containers_max=t.COMMIT_CONTAINERS_MAX,
        ),
        _spec(t.AbortTransactionRequest, t.AbortTransactionResponse, _CLIENTS),
        _spec(t.ListTransactionsRequest, t.ListTransactionsResponse, _CLIENTS),
        _spec(t.DescribeTransactionsRequest, t.DescribeTransactionsResponse, _CLIENTS),
        _spec(
            g.GroupHeartbeatRequest,
            g.GroupHeartbeatResponse,
            _CLIENTS,
            request_containers_max=g.HEARTBEAT_CONTAINERS_MAX,
        ),
        _spec(
            g.CommitOffsetsRequest,
            g.CommitOffsetsResponse,
            _CLIENTS,
            request_containers_max=g.COMMIT_OFFSETS_CONTAINERS_MAX,
        ),
        _spec(g.FetchOffsetsRequest, g.FetchOffsetsResponse, _CLIENTS),
        _spec(g.ListGroupsRequest, g.ListGroupsResponse, _CLIENTS),
        _spec(g.DescribeGroupsRequest, g.DescribeGroupsResponse, _CLIENTS),
        _spec(
            g.AlterGroupOffsetsRequest,
            g.AlterGroupOffsetsResponse,
            _CLIENTS,
            request_containers_max=g.COMMIT_OFFSETS_CONTAINERS_MAX,
        ),
        _spec(g.DeleteGroupsRequest, g.DeleteGroupsResponse, _CLIENTS),
        _spec(
            g.ReportProgressRequest,
            g.ReportProgressResponse,
            _CLIENTS,
            request_containers_max=g.REPORT_CONTAINERS_MAX,
        ),
        _spec(a.AuthenticateRequest, a.AuthenticateResponse, _CLIENTS),
        _spec(u.WhoAmIRequest, u.WhoAmIResponse, _CLIENTS),
        _spec(u.AlterUsersRequest, u.AlterUsersResponse, _ADMINISTRATION),
        _spec(u.DescribeUsersRequest, u.DescribeUsersResponse, _CLIENTS),
        # Each user makes and ends its own.
        _spec(u.CreateTokenRequest, u.CreateTokenResponse, _CLIENTS),
        _spec(u.EndTokensRequest, u.EndTokensResponse, _CLIENTS),
        _spec(
            q.QuorumRequest,
            q.QuorumResponse,
            _BROKERS,
            sender="source_id",
            request_containers_max=q.QUORUM_CONTAINERS_MAX,
        ),
        _spec(
            b.RegisterBrokerRequest,
            b.RegisterBrokerResponse,
            _BROKERS,
            sender="node_id",
            request_containers_max=b.REGISTER_CONTAINERS_MAX,
        ),
        _spec(b.BrokerHeartbeatRequest, b.BrokerHeartbeatResponse, _BROKERS, sender="node_id"),
        _spec(r.ReplicaFetchRequest, r.ReplicaFetchResponse, _BROKERS, sender="replica_id"),
        _spec(
            r.AlterPartitionRequest,
            r.AlterPartitionResponse,
            _BROKERS,
            sender="broker_id",
            request_containers_max=r.ALTER_PARTITION_CONTAINERS_MAX,
        ),
        _spec(
            r.ReportLogEndsRequest,
            r.ReportLogEndsResponse,
            _BROKERS,
            sender="broker_id",
            request_containers_max=r.LOG_ENDS_CONTAINERS_MAX,
        ),
        _spec(t.ForwardRequest, t.ForwardResponse, _BROKERS, sender="broker_id"),
        _spec(t.CountStagedRequest, t.CountStagedResponse, _BROKERS, sender="broker_id"),
        _spec(t.PublishRequest, t.PublishResponse, _BROKERS, sender="broker_id"),
        _spec(t.ResolveStagedRequest, t.ResolveStagedResponse, _BROKERS, sender="broker_id"),
    )
}

assert set(APIS) == {int(api) for api in m.Api}, "every API has a line in the table"

ADMINISTRATION: Final = frozenset(
    s.api for s in APIS.values() if s.audience is Audience.ADMINISTRATION
)
"""Refused at a listener with `listeners.<name>.administration=false`."""

ALSO_ASK: Final = frozenset(s.api for s in APIS.values() if s.request().only_asks)
"""Those with a form that changes nothing, which is served at each listener."""
assert ALSO_ASK < ADMINISTRATION


SENDERS: Final[dict[type[m.Request], str]] = {
    s.request: s.sender for s in APIS.values() if s.sender
}
"""What only a proved broker may send, each with the field that names the sender."""


def api_ranges(
    *, between_brokers: bool, administration: bool = True, authentication: bool = True
) -> list[m.ApiRange]:
    """Return the API versions for the answer to HELLO.

    Args:
        between_brokers: include those for brokers only.
        administration: include those of `ADMINISTRATION` that have no form without a change.
        authentication: include AUTHENTICATE: brokers, or clients, have something to prove.
    """
    return [
        m.ApiRange(int(s.api), s.version_min, s.version_max)
        for s in APIS.values()
        if (between_brokers or not s.between_brokers)
        and (administration or s.api not in ADMINISTRATION - ALSO_ASK)
        and (authentication or s.api is not m.Api.AUTHENTICATE)
    ]
