"""Courses of disks without room, and of partitions that were never made.

Owns these courses, and what must come of each within a bound; `courses` has the others.

Not here: rules about rows.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from .stage import Course, Stage

__all__ = ["DiskCourses"]

_PAUSE_US: Final = 100_000
_SLOW_US: Final = 2_000_000


class DiskCourses(Stage):
    def full_disks(self) -> Course:
        """The leader has no room for rows, nor has the next one: the third one leads."""
        yield from self.three()
        *full, third = (self.cluster.hosts[node_id] for node_id in self.partition().replicas)
        self.rng.shuffle(full)
        leader, other = full
        yield from self.lead(leader)
        yield _PAUSE_US
        other.disk.set_full(0)
        leader.disk.set_full(0)
        yield from self.must(
            lambda: self.partition().leader_id == third.node_id, "the broker with room leads"
        )
        yield self.rng.randrange(3 * _PAUSE_US)
        self.heal()
        yield 2 * _PAUSE_US

    def failed_disk(self) -> Course:
        """The leader cannot write, or flush, for a moment: another one leads until an operator
        restarts it.
        """
        leader, *_ = yield from self.three()
        yield from self.lead(leader)
        yield _PAUSE_US
        self.cluster.machines.ails(leader)
        if self.rng.random() < 0.5:
            leader.disk.write_error_rate = 1.0
        else:
            leader.disk.sync_error_rate = 1.0
        yield _PAUSE_US
        leader.disk.quiet()
        yield from self.must(
            lambda: self.partition().leader_id != leader.node_id, "whose disk works leads"
        )
        yield _PAUSE_US
        self.down(leader)
        leader.kill()
        self.up(leader)
        yield from self.must(lambda: self.is_in_sync(leader), "the restarted broker is in sync")

    def never_made(self) -> Course:
        """The only copy of a topic is lost before its directory was made."""
        yield from self.until(self.cluster.all_in_sync)
        decides = self.controller()
        host = self.rng.choice([one for one in self.cluster.hosts if one is not decides])
        self.remove("lone")
        yield _PAUSE_US
        host.stalled_us = _SLOW_US
        topic_id = self.create("lone", [host])
        yield from self.until(partial(self.has_topic, host, topic_id), look_us=100)
        yield _PAUSE_US // 10
        host.stalled_us = 0  # Its directory is still to be made.
        yield self.rng.randrange(19 * _PAUSE_US)
        host.kill()
        self.up(host)
        yield from self.must(
            lambda: self.has_open(host, topic_id), "the only copy, which was never made, begins"
        )
