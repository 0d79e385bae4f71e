"""The table of what a client needs for each API: an operation on a kind of resource.

    WHOLE   checked before the handler, which has nothing more to check
    EACH    checked for each topic, id or name that the request names, or that an answer would show
    NONE    every connection
    BROKER  `wire.registry.SENDERS`: a proved broker alone

A new API needs its line here.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

from quiverlog.types import Operation, ResourceKind
from quiverlog.wire.apis import Api
from quiverlog.wire.registry import APIS

__all__ = ["NEEDS", "Need", "Scope"]


class Scope(enum.Enum):
    NONE = enum.auto()
    WHOLE = enum.auto()
    EACH = enum.auto()
    BROKER = enum.auto()


class Need(NamedTuple):
    """`asking`: the operation of a request that `only_asks`; None: as the others."""

    scope: Scope
    operation: Operation = Operation.ALL
    kind: ResourceKind = ResourceKind.CLUSTER
    asking: Operation | None = None


def _whole(operation: Operation, asking: Operation | None = None) -> Need:
    return Need(Scope.WHOLE, operation, ResourceKind.CLUSTER, asking)


def _topic(operation: Operation) -> Need:
    return Need(Scope.EACH, operation, ResourceKind.TOPIC)


def _id(operation: Operation) -> Need:
    return Need(Scope.EACH, operation, ResourceKind.TRANSACTIONAL_ID)


def _group(operation: Operation) -> Need:
    return Need(Scope.EACH, operation, ResourceKind.GROUP)


_NONE, _BROKER = Need(Scope.NONE), Need(Scope.BROKER)
_ALTER, _DESCRIBE = Operation.ALTER, Operation.DESCRIBE

NEEDS: Final[dict[Api, Need]] = {
    Api.HELLO: _NONE,
    Api.AUTHENTICATE: _NONE,
    Api.METADATA: _topic(_DESCRIBE),
    # A row of `__staged` needs WRITE on the topic of its batch, and on its transactional id.
    Api.PRODUCE: _topic(Operation.WRITE),
    Api.FETCH: _topic(Operation.READ),
    Api.LIST_OFFSETS: _topic(_DESCRIBE),
    # On some topic: an id by itself writes nothing.
    Api.INIT_PRODUCER_ID: _topic(Operation.WRITE),
    Api.CREATE_TOPICS: _topic(Operation.CREATE),
    Api.DELETE_TOPICS: _topic(Operation.DELETE),
    # Its configuration needs ALTER_CONFIGS.
    Api.ALTER_TOPIC: _topic(_ALTER),
    Api.DESCRIBE_TOPICS: _topic(_DESCRIBE),
    Api.TOPIC_SCHEMAS: _topic(_DESCRIBE),
    Api.DELETE_RECORDS: _topic(Operation.DELETE),
    Api.EPOCH_END_OFFSETS: _topic(_DESCRIBE),
    Api.DESCRIBE_RANGES: _topic(_DESCRIBE),
    Api.DESCRIBE_PRODUCER: _topic(_DESCRIBE),
    Api.DESCRIBE_REPLICAS: _topic(_DESCRIBE),
    Api.DESCRIBE_CLUSTER: _whole(_DESCRIBE),
    Api.CHANGE_VOTERS: _whole(_ALTER, _DESCRIBE),
    Api.ELECT_LEADERS: _whole(_ALTER),
    Api.REASSIGN_PARTITIONS: _whole(_ALTER, _DESCRIBE),
    Api.ALTER_CONFIGS: _whole(Operation.ALTER_CONFIGS),
    Api.DESCRIBE_CONFIGS: _whole(_DESCRIBE),
    Api.UPDATE_FEATURES: _whole(_ALTER, _DESCRIBE),
    Api.DECOMMISSION_BROKER: _whole(_ALTER, _DESCRIBE),
    Api.OPEN_TRANSACTION: _id(Operation.WRITE),
    # And WRITE on the topic of each batch, looked at again.
    Api.COMMIT_TRANSACTION: _id(Operation.WRITE),
    Api.ABORT_TRANSACTION: _id(Operation.WRITE),
    Api.LIST_TRANSACTIONS: _id(_DESCRIBE),
    Api.DESCRIBE_TRANSACTIONS: _id(_DESCRIBE),
    # And READ on each topic that a member subscribes to, commits or resets; what is shown of a
    # topic needs DESCRIBE on it.
    Api.GROUP_HEARTBEAT: _group(Operation.READ),
    Api.COMMIT_OFFSETS: _group(Operation.READ),
    Api.FETCH_OFFSETS: _group(_DESCRIBE),
    Api.LIST_GROUPS: _group(_DESCRIBE),
    Api.DESCRIBE_GROUPS: _group(_DESCRIBE),
    Api.ALTER_GROUP_OFFSETS: _group(Operation.READ),
    Api.DELETE_GROUPS: _group(Operation.DELETE),
    Api.REPORT_PROGRESS: _group(Operation.READ),
    Api.WHO_AM_I: _NONE,
    # An own password, and own tokens, need nothing; what touches an administrator needs ALTER on
    # the cluster, too. `apis/users.py` has the operation of each change.
    Api.ALTER_USERS: Need(Scope.EACH, _ALTER, ResourceKind.USER),
    Api.DESCRIBE_USERS: Need(Scope.EACH, _DESCRIBE, ResourceKind.USER),
    Api.CREATE_TOKEN: Need(Scope.EACH, Operation.CREATE, ResourceKind.TOKEN),
    Api.END_TOKENS: Need(Scope.EACH, Operation.DELETE, ResourceKind.TOKEN),
    Api.ALTER_ACLS: _whole(_ALTER),
    Api.DESCRIBE_ACLS: _whole(_DESCRIBE),
    Api.ALTER_QUOTAS: _whole(_ALTER),
    Api.DESCRIBE_QUOTAS: _whole(_DESCRIBE),
    **{api: _BROKER for api, spec in ((Api(n), s) for n, s in APIS.items()) if spec.sender},
}
assert NEEDS.keys() == set(Api), "every API has its line"
