"""What a request changed, for the audit: each topic, rule, key or broker that it names.

Names alone: never a value. A request that only asks, or only validates, is not here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Final

from msgspec.structs import astuple

from quiverlog.core.security.acls import Rule
from quiverlog.errors import NotAuthorized, QuiverlogError, StorageFault, error_class
from quiverlog.limits import USER_NAME_CHARS_MAX
from quiverlog.node.broker import Broker
from quiverlog.node.runtime.tasks import Call, Steps
from quiverlog.node.security.audit import OK, TOKEN_CHARS_SHOWN
from quiverlog.node.security.needs import NEEDS
from quiverlog.types import Operation, QuotaKind, ResourceKind
from quiverlog.wire import messages as m
from quiverlog.wire.cluster_messages import UpdateFeaturesRequest
from quiverlog.wire.config_messages import WHOLE_CLUSTER, AlterConfigsRequest
from quiverlog.wire.decommission_messages import DecommissionBrokerRequest
from quiverlog.wire.election_messages import ElectLeadersRequest
from quiverlog.wire.reassignment_messages import ReassignPartitionsRequest
from quiverlog.wire.security.acl_messages import AlterAclsRequest, AlterAclsResponse
from quiverlog.wire.security.quota_messages import AlterQuotasRequest
from quiverlog.wire.security.user_messages import (
    AlterUsersRequest,
    CreateTokenRequest,
    CreateTokenResponse,
    EndTokensRequest,
    UserChange,
)
from quiverlog.wire.voters_messages import ChangeVotersRequest

__all__ = ["CHANGES", "audited"]

_Change = tuple[str, int]
"""What was changed, and the code of the error; 0: none."""
_Changes = Callable[[Broker, m.Request, m.Response | None], Iterator[_Change]]


def _created(_broker: Broker, request: m.Request, response: m.Response | None) -> Iterator[_Change]:
    assert isinstance(request, m.CreateTopicsRequest)
    return _each_topic((one.name for one in request.topics), response)


def _deleted(_broker: Broker, request: m.Request, response: m.Response | None) -> Iterator[_Change]:
    assert isinstance(request, m.DeleteTopicsRequest)
    return _each_topic(request.names, response)


def _each_topic(names: Iterable[str], response: m.Response | None) -> Iterator[_Change]:
    if isinstance(response, m.CreateTopicsResponse | m.DeleteTopicsResponse):
        yield from ((f"topic {one.name}", one.error_code) for one in response.topics)
    else:
        yield from ((f"topic {name}", 0) for name in names)


def _trimmed(broker: Broker, request: m.Request, response: m.Response | None) -> Iterator[_Change]:
    assert isinstance(request, m.DeleteRecordsRequest)
    topics = broker.view.image.topics_by_id
    answered = isinstance(response, m.DeleteRecordsResponse)
    results = response.partitions if isinstance(response, m.DeleteRecordsResponse) else []
    for number, entry in enumerate(request.partitions):
        topic = topics.get(entry.topic_id)
        name = topic.name if topic is not None else entry.topic_id.hex()
        code = results[number].error_code if answered else 0
        yield f"rows of {name}-{entry.partition} before {entry.before_offset}", code


def _topic(_broker: Broker, request: m.Request, _response: m.Response | None) -> Iterator[_Change]:
    assert isinstance(
        request, m.AlterTopicRequest | ElectLeadersRequest | ReassignPartitionsRequest
    )
    yield f"topic {request.name}", 0


def _configs(
    _broker: Broker, request: m.Request, _response: m.Response | None
) -> Iterator[_Change]:
    assert isinstance(request, AlterConfigsRequest)
    whose = "cluster" if request.node_id == WHOLE_CLUSTER else f"broker {request.node_id}"
    yield from ((f"{whose} {one.key}", 0) for one in request.changes)


def _broker_of(
    _broker: Broker, request: m.Request, _response: m.Response | None
) -> Iterator[_Change]:
    assert isinstance(request, DecommissionBrokerRequest | ChangeVotersRequest)
    yield f"broker {request.node_id}", 0


def _level(_broker: Broker, request: m.Request, _response: m.Response | None) -> Iterator[_Change]:
    assert isinstance(request, UpdateFeaturesRequest)
    yield f"feature level {request.level}", 0


def _rules(broker: Broker, request: m.Request, response: m.Response | None) -> Iterator[_Change]:
    assert isinstance(request, AlterAclsRequest)
    numbers = response.numbers if isinstance(response, AlterAclsResponse) else []
    for place, one in enumerate(request.additions):
        if place < len(numbers):
            number = numbers[place]
        else:  # The request has failed, maybe after the rule was made.
            number = broker.view.image.rules.number_of(Rule(*astuple(one)))
        effect = "allow" if one.allows else "deny"
        name = f"{one.name}{'*' if one.is_prefix else ''}"
        where = f" from {one.network}" if one.network else ""
        operation = _label(Operation, one.operation)
        kind = _label(ResourceKind, one.kind)
        yield f"rule {number}: {one.principal} {effect} {operation} {kind} {name}{where}", 0
    yield from ((f"rule {number} removed", 0) for number in request.removals)


def _quotas(_broker: Broker, request: m.Request, _response: m.Response | None) -> Iterator[_Change]:
    assert isinstance(request, AlterQuotasRequest)
    for one in request.changes:
        yield f"quota of {_label(QuotaKind, one.kind)} {one.name}".rstrip(), 0


def _user(_broker: Broker, request: m.Request, _response: m.Response | None) -> Iterator[_Change]:
    assert isinstance(request, AlterUsersRequest)
    known = request.change in set(UserChange)
    change = UserChange(request.change).name.lower() if known else str(request.change)
    admin = " administrator" if request.is_admin else ""
    yield f"user {request.name[:USER_NAME_CHARS_MAX]}: {change}{admin}", 0


def _token(broker: Broker, request: m.Request, response: m.Response | None) -> Iterator[_Change]:
    assert isinstance(request, CreateTokenRequest | EndTokensRequest)
    owner = f"tokens of {request.owner[:USER_NAME_CHARS_MAX] or 'the user itself'}"
    if isinstance(request, EndTokensRequest):
        shown = ", ".join(f"{one[:TOKEN_CHARS_SHOWN]}..." for one in request.token_ids)
        yield f"{owner}: {shown or 'all'}", 0
    elif isinstance(response, CreateTokenResponse):
        yield f"{owner}: {response.token_id[:TOKEN_CHARS_SHOWN]}...", 0
    else:
        yield owner, 0


def _label(kind: type[Operation | ResourceKind | QuotaKind], number: int) -> str:
    return kind(number).label if number in set(kind) else str(number)


CHANGES: Final[dict[type[m.Request], _Changes]] = {
    m.CreateTopicsRequest: _created,
    m.DeleteTopicsRequest: _deleted,
    m.DeleteRecordsRequest: _trimmed,
    m.AlterTopicRequest: _topic,
    ElectLeadersRequest: _topic,
    ReassignPartitionsRequest: _topic,
    AlterConfigsRequest: _configs,
    DecommissionBrokerRequest: _broker_of,
    ChangeVotersRequest: _broker_of,
    UpdateFeaturesRequest: _level,
    AlterAclsRequest: _rules,
    AlterQuotasRequest: _quotas,
    AlterUsersRequest: _user,
    CreateTokenRequest: _token,
    EndTokensRequest: _token,
}
"""The requests that change metadata, or take rows away."""


_LINES_PER_STEP: Final = 64
_FAILED_SHOWN_MAX: Final = 100
"""Of a request; the others are counted: clients choose what is not there."""


def audited(broker: Broker, call: Call, steps: Steps) -> Steps:
    """Record what a request changed, however it ends."""
    request = call.request
    if request.only_asks or getattr(request, "validate_only", False):
        return (yield from steps)
    caller = broker.audit.caller_of(call.connection_id)
    try:
        response = yield from steps
    except NotAuthorized:
        raise  # It was recorded as denied.
    except Exception as error:
        result = OK if call.is_committed else _code_name(error)
        yield from _record(broker, call, caller, None, result)
        raise
    yield from _record(broker, call, caller, response, OK)
    return response


def _code_name(error: Exception) -> str:
    if isinstance(error, OSError):
        return StorageFault.code_name()
    return error.code_name() if isinstance(error, QuiverlogError) else QuiverlogError.code_name()


def _record(
    broker: Broker,
    call: Call,
    caller: Mapping[str, object],
    response: m.Response | None,
    result: str,
) -> Generator[None, object, None]:
    api = call.request.API
    operation = NEEDS[api].operation.label
    shown = 0
    more: Counter[str] = Counter()
    changes = CHANGES[type(call.request)](broker, call.request, response)
    for number, (resource, code) in enumerate(changes, 1):
        if number % _LINES_PER_STEP == 0:
            yield
        if code == NotAuthorized.code:
            continue  # It was recorded as denied.
        found = error_class(code).code_name() if code else result
        if found != OK and shown >= _FAILED_SHOWN_MAX:
            more[found] += 1
            continue
        shown += found != OK
        broker.audit.changed(caller, api, operation, resource, found)
    assert shown <= _FAILED_SHOWN_MAX
    for found, count in more.items():
        broker.audit.changed(caller, api, operation, "others of the request", found, count)
