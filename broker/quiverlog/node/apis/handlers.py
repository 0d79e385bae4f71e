"""The handler of each API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from quiverlog.node.apis import describe, groups, offsets, topics, transactions
from quiverlog.node.apis.acls import (
    handle_alter_acls,
    handle_alter_quotas,
    handle_describe_acls,
    handle_describe_quotas,
)
from quiverlog.node.apis.admin import (
    handle_alter_configs,
    handle_change_voters,
    handle_decommission_broker,
    handle_describe_configs,
    handle_elect_leaders,
    handle_reassign_partitions,
    handle_update_features,
)
from quiverlog.node.apis.brokers import (
    handle_alter_partition,
    handle_authenticate,
    handle_broker_heartbeat,
    handle_hello,
    handle_quorum,
    handle_register_broker,
    handle_report_log_ends,
)
from quiverlog.node.apis.describe import handle_describe_cluster, handle_describe_replicas
from quiverlog.node.apis.fetch import handle_fetch
from quiverlog.node.apis.forward import handle_forward
from quiverlog.node.apis.offsets import handle_list_offsets
from quiverlog.node.apis.produce import handle_produce
from quiverlog.node.apis.producers import handle_describe_producer, handle_init_producer_id
from quiverlog.node.apis.replica_fetch import handle_replica_fetch
from quiverlog.node.apis.users import (
    handle_alter_users,
    handle_create_token,
    handle_describe_users,
    handle_end_tokens,
    handle_who_am_i,
)
from quiverlog.node.broker import Broker
from quiverlog.node.runtime.events import RequestReceived
from quiverlog.node.runtime.tasks import Call, Steps
from quiverlog.types import Now
from quiverlog.wire import messages as m
from quiverlog.wire.authentication_messages import AuthenticateRequest
from quiverlog.wire.broker_messages import BrokerHeartbeatRequest, RegisterBrokerRequest
from quiverlog.wire.cluster_messages import DescribeClusterRequest, UpdateFeaturesRequest
from quiverlog.wire.config_messages import AlterConfigsRequest, DescribeConfigsRequest
from quiverlog.wire.decommission_messages import DecommissionBrokerRequest
from quiverlog.wire.election_messages import ElectLeadersRequest
from quiverlog.wire.group_messages import (
    AlterGroupOffsetsRequest,
    CommitOffsetsRequest,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FetchOffsetsRequest,
    GroupHeartbeatRequest,
    ListGroupsRequest,
    ReportProgressRequest,
)
from quiverlog.wire.producer_messages import DescribeProducerRequest
from quiverlog.wire.quorum_messages import QuorumRequest
from quiverlog.wire.reassignment_messages import DescribeReplicasRequest, ReassignPartitionsRequest
from quiverlog.wire.registry import APIS
from quiverlog.wire.replica_messages import (
    AlterPartitionRequest,
    ReplicaFetchRequest,
    ReportLogEndsRequest,
)
from quiverlog.wire.security.acl_messages import AlterAclsRequest, DescribeAclsRequest
from quiverlog.wire.security.quota_messages import AlterQuotasRequest, DescribeQuotasRequest
from quiverlog.wire.security.user_messages import (
    AlterUsersRequest,
    CreateTokenRequest,
    DescribeUsersRequest,
    EndTokensRequest,
    WhoAmIRequest,
)
from quiverlog.wire.transaction_messages import (
    AbortTransactionRequest,
    CommitTransactionRequest,
    CountStagedRequest,
    DescribeTransactionsRequest,
    ForwardRequest,
    ListTransactionsRequest,
    OpenTransactionRequest,
    PublishRequest,
    ResolveStagedRequest,
)
from quiverlog.wire.voters_messages import ChangeVotersRequest

__all__ = ["HANDLERS", "STEPS_HANDLERS"]

HANDLERS: Final[dict[type[m.Request], Callable[[Broker, RequestReceived, Now], None]]] = {
    m.HelloRequest: handle_hello,
    AuthenticateRequest: handle_authenticate,
    m.ProduceRequest: handle_produce,
    m.FetchRequest: handle_fetch,
    m.ListOffsetsRequest: handle_list_offsets,
    QuorumRequest: handle_quorum,
    ReplicaFetchRequest: handle_replica_fetch,
    RegisterBrokerRequest: handle_register_broker,
    BrokerHeartbeatRequest: handle_broker_heartbeat,
    ReportLogEndsRequest: handle_report_log_ends,
    ForwardRequest: handle_forward,
}
"""Answered, or set to wait, in the call that brings them."""

STEPS_HANDLERS: Final[dict[type[m.Request], Callable[[Broker, Call], Steps]]] = {
    m.MetadataRequest: describe.handle_metadata,
    m.InitProducerIdRequest: handle_init_producer_id,
    m.CreateTopicsRequest: topics.handle_create_topics,
    m.DeleteTopicsRequest: topics.handle_delete_topics,
    m.AlterTopicRequest: topics.handle_alter_topic,
    m.DescribeTopicsRequest: describe.handle_describe_topics,
    m.TopicSchemasRequest: describe.handle_topic_schemas,
    m.DeleteRecordsRequest: offsets.handle_delete_records,
    m.EpochEndOffsetsRequest: offsets.handle_epoch_end_offsets,
    m.DescribeRangesRequest: offsets.handle_describe_ranges,
    DescribeClusterRequest: handle_describe_cluster,
    DescribeReplicasRequest: handle_describe_replicas,
    DescribeProducerRequest: handle_describe_producer,
    ChangeVotersRequest: handle_change_voters,
    AlterPartitionRequest: handle_alter_partition,
    ElectLeadersRequest: handle_elect_leaders,
    ReassignPartitionsRequest: handle_reassign_partitions,
    AlterConfigsRequest: handle_alter_configs,
    DescribeConfigsRequest: handle_describe_configs,
    UpdateFeaturesRequest: handle_update_features,
    DecommissionBrokerRequest: handle_decommission_broker,
    WhoAmIRequest: handle_who_am_i,
    AlterUsersRequest: handle_alter_users,
    DescribeUsersRequest: handle_describe_users,
    CreateTokenRequest: handle_create_token,
    EndTokensRequest: handle_end_tokens,
    AlterAclsRequest: handle_alter_acls,
    DescribeAclsRequest: handle_describe_acls,
    AlterQuotasRequest: handle_alter_quotas,
    DescribeQuotasRequest: handle_describe_quotas,
    OpenTransactionRequest: transactions.handle_open_transaction,
    CommitTransactionRequest: transactions.handle_commit_transaction,
    AbortTransactionRequest: transactions.handle_abort_transaction,
    ListTransactionsRequest: transactions.handle_list_transactions,
    DescribeTransactionsRequest: transactions.handle_describe_transactions,
    GroupHeartbeatRequest: groups.handle_group_heartbeat,
    CommitOffsetsRequest: groups.handle_commit_offsets,
    FetchOffsetsRequest: groups.handle_fetch_offsets,
    ListGroupsRequest: groups.handle_list_groups,
    DescribeGroupsRequest: groups.handle_describe_groups,
    AlterGroupOffsetsRequest: groups.handle_alter_group_offsets,
    DeleteGroupsRequest: groups.handle_delete_groups,
    ReportProgressRequest: groups.handle_report_progress,
    CountStagedRequest: transactions.handle_count_staged,
    PublishRequest: transactions.handle_publish,
    ResolveStagedRequest: transactions.handle_resolve_staged,
}

assert len(HANDLERS) + len(STEPS_HANDLERS) == len(APIS)
assert not HANDLERS.keys() & STEPS_HANDLERS.keys(), "one handler each"
