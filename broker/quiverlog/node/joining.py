"""A start that waits for others: the metadata comes from a quorum of which this is not the whole.

Owns what happens between JOINING and STARTING. This node's replica of the metadata log votes, leads
and follows from the first moment, for others may wait for it; clients are not served, and no
partition is opened, before all is applied that was decided before the present leader was elected,
and this life of the broker is registered: what an earlier one has led is not its own to lead.

Must not know: who leads, how partitions are opened (lifecycle.py).
"""

from __future__ import annotations

from functools import partial
from typing import Final

from quiverlog.errors import InvalidConfig
from quiverlog.node.admission import Phase
from quiverlog.node.broker import Broker
from quiverlog.node.decision import why
from quiverlog.node.effects import ListenToBrokers
from quiverlog.node.leftovers import Leftovers, LeftoversJob
from quiverlog.node.lifecycle import take_up
from quiverlog.types import Now

__all__ = ["Joining"]

_RETRY_US: Final = 5_000_000


class Joining:
    """See the module docstring."""

    __slots__ = ("_broker", "_has_failed", "_is_looking", "next_us")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._is_looking = False
        self._has_failed = False
        self.next_us: int | None = None  # When the directory is looked at again.

    def begin(self, now: Now) -> None:
        """The directory is taken and the metadata log is open.

        Raises:
            InvalidConfig: there is nobody whom this node could ask, and there never will be.
        """
        broker = self._broker
        assert not broker.quorum.is_alone, "what is on its own disk is decided"
        assert broker.admission.phase is Phase.NEW
        others = broker.whereabouts.known()
        if not broker.quorum.raft.voters and not others:
            raise InvalidConfig(
                "`controller.quorum.bootstrap.servers` names no other broker, and this data"
                " directory belongs to no quorum yet. To begin a new cluster with this"
                " broker, start it without that key the first time."
            )
        broker.admission.enter(Phase.JOINING)
        asks = ", ".join(f"{node_id}@{where}" for node_id, where in sorted(others.items()))
        broker.outbox.log(
            "info", "waiting for the metadata of the cluster", asks=asks or "no broker"
        )
        broker.outbox.emit(ListenToBrokers())
        broker.quorum.follow(now)
        broker.membership.begin(now)

    def run(self, now: Now) -> None:
        """Go on, if the metadata is there."""
        broker = self._broker
        assert broker.admission.phase is Phase.JOINING
        if self._is_looking or not broker.quorum.knows_all:
            return
        if not broker.membership.registration.is_registered:
            return  # What an earlier life led may be led by others when it is.
        if broker.metadata.image.version != broker.quorum.applied_index:
            return  # A snapshot is being made of it, and what came since waits.
        if self.next_us is not None and now.mono_us < self.next_us:
            return
        self._is_looking, self.next_us = True, None
        job = LeftoversJob(broker)
        broker.jobs.start(job, partial(self._looked, [job]))

    def _looked(
        self,
        jobs: list[LeftoversJob],
        result: object,
        error: BaseException | None,
        now: Now,
    ) -> None:
        assert self._is_looking, "one look at a time"
        self._is_looking = False
        broker = self._broker
        if broker.admission.phase is not Phase.JOINING:
            return  # It stops.
        if error is not None:
            # The voters need this replica all the same, so the process stays.
            self.next_us = now.mono_us + _RETRY_US
            if not self._has_failed:
                self._has_failed = True
                broker.outbox.log("error", "the data directory cannot be used", why=why(error))
            return
        assert isinstance(result, Leftovers)
        assert jobs, "a job comes back once"
        assert broker.metadata.image.version <= broker.quorum.applied_index
        broker.metadata.begin_to_serve()
        broker.producer_ids.start()
        take_up(broker, result, jobs.pop(), now)
