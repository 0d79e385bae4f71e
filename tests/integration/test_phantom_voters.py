"""Broker processes and a client that speaks as a broker which is not there: it gets no vote."""

from __future__ import annotations

from contextlib import ExitStack

import pyarrow as pa
import pytest

import quiverlog
from quiverlog.core.raft import messages as r
from quiverlog.errors import QuiverlogError, VoterNotReady, WrongListener
from quiverlog.node.metadata.quorum_wire import pack
from quiverlog.wire import messages as m
from quiverlog.wire.broker_messages import BrokerHeartbeatRequest, RegisterBrokerRequest
from quiverlog.wire.replica_messages import (
    AlterPartitionRequest,
    ReplicaFetchRequest,
    ReportLogEndsRequest,
)
from quiverlog.wire.voters_messages import ChangeVotersRequest, VoterChange
from tests.support.broker import BrokerProcess
from tests.support.rawclient import RawClient
from tests.support.until import until

pytestmark = pytest.mark.process

PHANTOM = r.ReplicaKey(9, "d" * 32)
NOWHERE = "127.0.0.1:1"
BETWEEN = (
    RegisterBrokerRequest,
    BrokerHeartbeatRequest,
    ReplicaFetchRequest,
    AlterPartitionRequest,
    ReportLogEndsRequest,
)


def messages_of(client: RawClient, cluster_id: str, node_id: int) -> list[m.Request]:
    """Observe, live, and have all that the leader has: the messages of a replica that follows."""
    quorum = client.ask(ChangeVotersRequest())
    target = r.ReplicaKey(node_id, quorum.replicas[0].directory_id)
    place = {"source": PHANTOM, "target": target, "term": quorum.term}
    messages = [
        [r.Observe(**place)],
        [
            r.HeartbeatResponse(**place),
            r.AppendResponse(**place, accepted=True, index=quorum.committed_index),
        ],
    ]
    return [
        packed.request for one in messages for packed in pack(cluster_id, one, endpoint=NOWHERE)
    ]


def wants_vote() -> ChangeVotersRequest:
    return ChangeVotersRequest(change=int(VoterChange.ADD), node_id=PHANTOM.node_id)


def test_a_broker_without_configuration_speaks_with_no_other_broker() -> None:
    """Five messages of any client made a default broker wait for a voter that is not there."""
    with BrokerProcess() as broker, RawClient(broker.address) as client:
        answer = client.ask(m.MetadataRequest())
        for request in messages_of(client, answer.cluster_id, 0):
            with pytest.raises(WrongListener, match=f"`cluster.id` = '{answer.cluster_id}'"):
                client.ask(request)
        for kind in BETWEEN:
            with pytest.raises(WrongListener, match="start it with"):
                client.ask(kind())
        with pytest.raises(VoterNotReady):
            client.ask(wants_vote())
        assert [one.node_id for one in client.ask(ChangeVotersRequest()).replicas] == [0]
        broker.restart(kill=True)
        with quiverlog.connect(broker.bootstrap) as again:
            again.create_topic("t", schema=pa.schema({"x": pa.int64()}))


def test_a_voter_that_does_not_exist_is_not_added() -> None:
    with ExitStack() as stack:
        config: dict[str, object] = {"cluster.id": "phantoms"}
        first = stack.enter_context(BrokerProcess(config={"node.id": 1, **config}))
        with RawClient(first.address) as client:
            refused: list[str] = []

            def is_refused_where_it_is() -> bool:
                for request in messages_of(client, "phantoms", 1):
                    client.ask(request)
                try:
                    client.ask(wants_vote())
                except VoterNotReady as error:
                    refused.append(str(error))
                return bool(refused) and NOWHERE in refused[-1]

            until(is_refused_where_it_is, "an answer that names the endpoint")
            found = client.ask(ChangeVotersRequest())
            assert [one.node_id for one in found.replicas if one.is_voter] == [1]
            config["controller.quorum.bootstrap.servers"] = f"1@{first.bootstrap}"
            for node_id in (2, 3):
                stack.enter_context(BrokerProcess(config={"node.id": node_id, **config}))

            def has_three() -> bool:
                found = client.ask(ChangeVotersRequest())
                return sum(one.is_voter for one in found.replicas) == 3

            until(has_three, "three voters, all of them real")


def test_a_broker_that_wants_to_join_one_without_a_cluster_id_names_what_is_missing() -> None:
    with ExitStack() as stack:
        first = stack.enter_context(BrokerProcess(config={"node.id": 1}))
        with RawClient(first.address) as client:
            cluster_id = client.ask(m.MetadataRequest()).cluster_id
        seeds = f"1@{first.bootstrap}"
        config = {
            "node.id": 2,
            "cluster.id": cluster_id,
            "controller.quorum.bootstrap.servers": seeds,
        }
        second = BrokerProcess(config=config)
        second.launch()
        stack.callback(second.kill)
        until(lambda: "started without `cluster.id`" in second.log_text, "what is missing")
        assert f"'{cluster_id}'" in second.log_text
        first.config["cluster.id"] = cluster_id
        first.restart()
        second.wait_ready()
        with quiverlog.connect(first.bootstrap) as client:

            def both_live() -> bool:
                try:
                    return sum(not one.fenced for one in client.describe_cluster().brokers) == 2
                except QuiverlogError:
                    return False

            until(both_live, "two live brokers")
