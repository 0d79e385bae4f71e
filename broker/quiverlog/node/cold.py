"""Reading what is not in memory: the job runs, its result is taken in, the caller asks again.

Owns how a `NotResident` becomes a job and how its result reaches the log.
"""

from __future__ import annotations

from functools import partial

from quiverlog.node.broker import Broker
from quiverlog.node.jobs import Starter, Then, Urgency
from quiverlog.node.replica import Replica
from quiverlog.storage.jobs import LoadIndexJob, NotResident, ReadJob, ReadResult
from quiverlog.storage.segment_index import LoadedIndex
from quiverlog.types import Now

__all__ = ["cold_read", "start_cold"]


def start_cold(broker: Broker, replica: Replica, cold: NotResident, then: Then) -> None:
    """Run the job; `then` is called when its result is in the log, or with what it raised."""
    replica.jobs_running += 1
    broker.jobs.start(cold.job, partial(_done, replica, cold.job, [then]), Urgency.READ)


def cold_read(broker: Broker, replica: Replica, cold: NotResident) -> Starter:
    """`start_cold`, to be yielded by a handler that waits for it."""
    return lambda then: start_cold(broker, replica, cold, then)


def _done(
    replica: Replica,
    job: LoadIndexJob | ReadJob,
    waiting: list[Then],
    result: object,
    error: BaseException | None,
    now: Now,
) -> None:
    if not waiting:
        return  # Called again because `then` raised: it is no business of the log's.
    then = waiting.pop()
    replica.jobs_running -= 1
    try:
        if error is None and not replica.deleted:
            if isinstance(job, ReadJob):
                assert isinstance(result, ReadResult)
                replica.log.complete_read(job, result)
            else:
                assert isinstance(result, LoadedIndex)
                replica.log.complete_load(job, result)
    except Exception as failure:
        error = failure
    then(result, error, now)
