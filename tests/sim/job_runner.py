"""The jobs of one process: serial by key, each taking time, the notice of it taking more.

Owns when a job does its work and when the node gets its result. Between the two moments everything
goes on, and the process may die in either. As in the server's pool, the loop is woken once for all
jobs that have run by then, and gets them in one call, in the order in which they ran. A job changes
nothing that the loop reads: while it runs, what the logs show is compared.

Not here: what a job does.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from quiverlog.node.runtime.effects import Job
from quiverlog.node.runtime.events import JobDone

from .checker import Violation
from .faults import Death

if TYPE_CHECKING:
    from .host import Host

__all__ = ["JobRunner"]

_QUICK_US = 4_000
_SLOW_US = 200_000


class JobRunner:
    """A process that starts gets a new one."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._life = host.life
        self._queues: dict[str, deque[Job]] = {}
        self._finished: list[tuple[JobDone, int]] = []
        """Not handed over yet, each with the number of calls when it ran."""

    def start(self, job: Job) -> None:
        """Run `job` when those of its key before it are done."""
        queue = self._queues.get(job.key)
        if queue is not None:
            queue.append(job)
            self._host.world.events["several jobs of one log"] += len({j.kind for j in queue}) > 1
            return
        self._queues[job.key] = deque((job,))
        self._run_later(job)

    def _is_over(self) -> bool:
        """Has the process died?"""
        return self._host.life != self._life or self._host.node is None

    def _run_later(self, job: Job) -> None:
        world, rng = self._host.world, self._host.rng
        slow = rng.random() < world.scenario.slow_job
        world.faults["slow job"] += slow

        def work() -> None:
            if not self._is_over():
                self._work(job, slow=slow)

        usual_us = rng.randrange(50, _SLOW_US if slow else _QUICK_US)
        world.at(usual_us + self._host.stalled_us, work)

    def _work(self, job: Job, *, slow: bool) -> None:
        host = self._host
        world, disk, rng = host.world, host.disk, host.rng
        if not world.calm and rng.random() < world.scenario.death_in_job:
            disk.die_after(rng.randrange(rng.choice((4, 10, 30))), power=rng.random() < 0.7)
        rate = world.scenario.failed_sync
        if job.kind == "trim":
            rate = max(rate, world.scenario.failed_trim)
        if not world.calm and rng.random() < rate:
            disk.fail_syncs = 1
        result: object = None
        error: BaseException | None = None
        before = self._fingerprint()
        try:
            with host.plant():
                result = job.run()
        except Death:
            host.cut_short("job")
            return
        except Exception as failure:
            world.faults["failed job"] += 1
            error = failure
        finally:
            disk.die_after(None)
            disk.fail_syncs = 0
        # The last job of a log closes it: the loop has let go of it by then.
        if job.kind != "close log" and self._fingerprint() != before:
            raise Violation(f"a {job.kind} job changed what the loop reads")
        host.look_after()
        queue = self._queues[job.key]
        queue.popleft()
        if queue:
            self._run_later(queue[0])
        else:
            del self._queues[job.key]
        self._finish_later(JobDone(job, result, error), slow=slow)

    def _finish_later(self, done: JobDone, *, slow: bool) -> None:
        """Wake the loop, unless it is awake."""
        self._finished.append((done, self._host.calls))
        if len(self._finished) == 1:
            self._host.world.at(self._host.rng.randrange(1, 100_000 if slow else 500), self._finish)

    def _finish(self) -> None:
        host, world = self._host, self._host.world
        finished, self._finished = self._finished, []
        if self._is_over():
            world.faults["death between a job and its notice"] += len(finished)
            return
        calls = sum(host.calls - before for _, before in finished)
        world.events["calls between a job and its notice"] += calls
        world.events["jobs handed over together"] += len(finished) > 1
        host.feed(*(done for done, _ in finished))

    def _fingerprint(self) -> object:
        """What the loop reads of the logs."""
        node = self._host.node
        if node is None or not self._host.world.scenario.gate("jobs-change-nothing"):
            return None
        logs = [(replica.log, replica.state) for replica in node.broker.replicas.values()]
        return [
            (
                log.fault,
                log.log_start_offset,
                log.log_end_offset,
                log.flushed_offset,
                log.reader.size_bytes,
                [(segment.base_offset, segment.end_offset) for segment in log.reader.segments],
                log.epochs.entries(),
                state.high_watermark,
            )
            for log, state in logs
        ]
