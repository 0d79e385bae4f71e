"""What members, people and programs ask of the coordinators of groups (28 to 34)."""

from __future__ import annotations

from quiverlog.core.controller.features import GROUPS_LEVEL, check_finalised
from quiverlog.core.controller.internal_topics import GROUPS
from quiverlog.errors import CoordinatorNotReady
from quiverlog.node.apis.topics import make_internal_topics
from quiverlog.node.broker import Broker
from quiverlog.node.controller.not_controller import check_is_controller
from quiverlog.node.runtime.tasks import Call, Steps
from quiverlog.node.security.needs import NEEDS
from quiverlog.types import ResourceKind
from quiverlog.wire import group_messages as g

__all__ = [
    "handle_alter_group_offsets",
    "handle_commit_offsets",
    "handle_delete_groups",
    "handle_describe_groups",
    "handle_fetch_offsets",
    "handle_group_heartbeat",
    "handle_list_groups",
]


def handle_group_heartbeat(broker: Broker, call: Call) -> Steps:
    request = call.request
    assert isinstance(request, g.GroupHeartbeatRequest)
    request.check()
    _check_group(broker, call, request.group)
    yield from _made(broker, call)
    raise CoordinatorNotReady("groups are not served yet.")


def handle_commit_offsets(broker: Broker, call: Call) -> Steps:
    request = call.request
    assert isinstance(request, g.CommitOffsetsRequest)
    request.check()
    _check_group(broker, call, request.group)
    yield from _made(broker, call)
    raise CoordinatorNotReady("groups are not served yet.")


def handle_fetch_offsets(broker: Broker, call: Call) -> Steps:
    request = call.request
    assert isinstance(request, g.FetchOffsetsRequest)
    request.check()
    _check_group(broker, call, request.group)
    yield None
    return g.FetchOffsetsResponse()


def handle_list_groups(broker: Broker, call: Call) -> Steps:
    yield None
    return g.ListGroupsResponse(node_id=broker.config.node_id)


def handle_describe_groups(broker: Broker, call: Call) -> Steps:
    yield None
    return g.DescribeGroupsResponse(node_id=broker.config.node_id)


def handle_alter_group_offsets(broker: Broker, call: Call) -> Steps:
    request = call.request
    assert isinstance(request, g.AlterGroupOffsetsRequest)
    request.check()
    _check_group(broker, call, request.group)
    yield None
    raise CoordinatorNotReady("groups are not served yet.")


def handle_delete_groups(broker: Broker, call: Call) -> Steps:
    yield None
    raise CoordinatorNotReady("groups are not served yet.")


def _check_group(broker: Broker, call: Call, group: str) -> None:
    """Raises NotAuthorized, FeatureNotFinalised."""
    api = call.request.API
    rights = broker.authoriser.rights_of(call.connection_id)
    if rights is not None:
        rights.check(api, NEEDS[api].operation, ResourceKind.GROUP, group)
    check_finalised(broker.view.image, GROUPS_LEVEL, "a group")


def _made(broker: Broker, call: Call) -> Steps:
    """Make `__groups` where it is missing. Raises NotController, CoordinatorNotReady."""
    if GROUPS not in broker.view.image.topics:
        check_is_controller(broker, call.connection_id)
        yield from make_internal_topics(broker, call, (GROUPS,))
        raise CoordinatorNotReady(f"{GROUPS!r} is made now.")
    return None
