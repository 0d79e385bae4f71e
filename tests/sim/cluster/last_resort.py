"""What an operator does where a partition waits for one: the rows that may be gone are given up.

Owns the recognition of the one case that the documentation leaves to the operator: a topic has had
`min.insync.replicas` 1 at some time, a disk was replaced, and all live replicas have reported. Any
other partition that stays without a leader is a violation, as before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiverlog.wire.election_messages import ElectLeadersRequest, ElectLeadersResponse
from tests.sim.checker import Key, Violation
from tests.sim.host import Host

from .clients import ClusterSetup
from .promises import ClusterChecker, ClusterTopicModel

if TYPE_CHECKING:
    from .cluster import Cluster

__all__ = ["awaiting_operator", "elect_uncleanly"]


def awaiting_operator(cluster: Cluster, checker: ClusterChecker) -> list[Key]:
    """Partitions to which only an operator gives a leader."""
    host = cluster.controller()
    if host is None or host.node is None:
        return []
    broker = host.node.broker
    image, known = broker.metadata.image, broker.membership.log_end_decisions
    found: list[Key] = []
    for key in checker.live():
        topic, model = image.topics_by_id.get(key[0]), checker.partitions[key].topic
        assert isinstance(model, ClusterTopicModel)
        if topic is None or not model.is_frail:
            continue
        partition = topic.partitions[key[1]]
        reported = known.of(image, *key)
        if partition.awaits_logs and partition.replaced_disks:
            found += [key] if set(reported) >= set(partition.replicas) else []
    return found


def elect_uncleanly(cluster: Cluster, checker: ClusterChecker, key: Key) -> None:
    """As `quiverlog topic elect NAME --unclean` does, by the controller."""
    model = checker.partitions[key].topic
    assert isinstance(model, ClusterTopicModel)
    model.may_be_unclean = True
    cluster.world.events["rows given up by an operator"] += 1
    asker = _Asker(cluster, checker, key)
    request = ElectLeadersRequest(name=model.name, partitions=[key[1]], unclean=True)
    for _ in asker.tries():
        response, _ = asker.call(request)
        if isinstance(response, ElectLeadersResponse) and not response.error_code:
            break
    else:
        raise Violation(f"{model.name}: no controller elects a leader on request")
    asker.retired = True


class _Asker(ClusterSetup):
    @property
    def host(self) -> Host:
        return self._cluster.controller() or super().host
