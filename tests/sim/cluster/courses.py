"""Faults in an order: elections, and links that are late or cut, step by step until a mistake
shows.

Owns the courses of events that some mistakes need and chance does not give: four or five things at
the right moments. A run has the one that its scenario names (`AimPlan.course`), again and again
until the world is calm; what a course has waited for in vain ends it.

Not here: rules about rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from quiverlog.limits import REPLICA_FETCH_WAIT_MS

from .client_plan import HASTY_US
from .disk_courses import DiskCourses
from .host import ClusterHost
from .move_courses import MoveCourses
from .stage import LATE_US, Course, Over

__all__ = ["COURSES", "Courses"]

_PAUSE_US: Final = 100_000
_HELD_US: Final = 100_000 + REPLICA_FETCH_WAIT_MS * 1_000


class Courses(MoveCourses, DiskCourses):
    def begin(self) -> None:
        """From now on until the world is calm."""
        self._go_on(COURSES[self.cluster.scenario.aims.course](self))

    def _go_on(self, course: Course) -> None:
        if self.world.calm:
            return
        try:
            delay_us = next(course)
        except (StopIteration, Over) as end:
            self.world.faults["course given up" if isinstance(end, Over) else "course"] += 1
            self.heal()
            course, delay_us = COURSES[self.cluster.scenario.aims.course](self), _PAUSE_US
        self.world.at(delay_us, lambda: self._go_on(course))

    # --- courses -------------------------------------------------------------------------------
    def late_question(self) -> Course:
        """A fetch is sent under one leadership, and arrives when its target leads again."""
        leader, other, third = yield from self.three()
        yield from self.lead(leader)
        self.late(third, leader)
        yield 2 * LATE_US
        self.cut(leader, other)
        yield from self.until(lambda: self.end(third) > self.end(other))
        yield from self.lead(other)
        yield from self.lead(leader)
        self.mend(leader, other)
        yield 3 * LATE_US

    def late_answer(self) -> Course:
        """A leader answers where logs part, and the answer arrives under the next leadership but
        one.
        """
        leader, other, third = yield from self.three(controller_may_be=1)
        yield from self.lead(leader)
        yield _PAUSE_US  # All have a way to it.
        yield from self.lead(third)
        yield _HELD_US  # The last question that it has asked the other one is answered.
        self.cut(third, leader, other)
        yield from self.until(lambda: self.end(third) > max(self.end(leader), self.end(other)) + 2)
        self.late(leader, third)
        self.decide_leader(leader)
        yield from self.until(lambda: self.leads(leader))
        self.mend(third, leader)
        parted = self.end(leader)
        yield _PAUSE_US
        self.mend(third, other)
        yield from self.lead(other)
        yield from self.until(lambda: self.committed > parted + 2, LATE_US)
        yield from self.lead(leader)
        yield 2 * LATE_US

    def left_behind(self) -> Course:
        """A copy is away while another begins to lead, and rows beyond its end are given up; a
        producer that has been silent since goes on when this copy leads."""
        first, other, third = yield from self.three()
        yield from self.lead(first)
        yield _PAUSE_US
        self.down(third)
        third.stop()
        yield from self.until(lambda: third.node is None)
        yield from self.lead(other)
        had = self.committed
        yield from self.until(lambda: self.committed > had + 10)
        silent = "producer-0"
        for host in self.cluster.hosts:
            self.world.network.cut(silent, host.name)
        yield _PAUSE_US
        end = self.end(other)
        yield from self.until(lambda: self.committed > end)
        self.trim(self.committed)
        yield from self.until(lambda: self.log_start(other) > end)
        self.up(third)
        yield from self.until(lambda: self.is_in_sync(third))
        yield from self.lead(third)
        for host in self.cluster.hosts:
            self.world.network.mend(silent, host.name)
        yield 5 * _PAUSE_US

    def trimmed(self) -> Course:
        """A leader gives up rows, no follower learns of it, and the leader is lost."""
        leader, *others = yield from self.three(controller_may_be=1)
        yield from self.lead(leader)
        yield _PAUSE_US
        self.deaf(leader, *others)
        yield _PAUSE_US // 10
        self.trim(self.committed)
        before = self.log_start(leader)
        yield from self.until(lambda: self.log_start(leader) > before)
        yield _PAUSE_US
        self.cluster.goes_down(leader)
        leader.kill()
        yield from self.until(lambda: any(map(self.leads, others)))
        yield 5 * _PAUSE_US

    def stood_down(self) -> Course:
        """A leader writes its new log start down, and no longer leads when it is on disk."""
        leader, other, _ = yield from self.three(controller_may_be=1)
        yield from self.lead(leader)
        yield _PAUSE_US
        leader.stalled_us = 4 * _PAUSE_US
        self.trim(self.committed)
        yield _PAUSE_US // 5
        leader.stalled_us = 0
        yield from self.lead(other)
        yield 8 * _PAUSE_US

    def last_log(self) -> Course:
        """All lose their power, the one whose disk was slow comes back alone."""
        slow, *others = yield from self.three()
        yield from self.lead(others[0])
        slow.stalled_us = 2_000_000
        yield from self.until(lambda: self._has_unflushed(slow))
        self.cluster.all_power()
        for host in self.cluster.hosts:
            host.down_until_us = 1 << 62 if host is slow else self.world.mono_us
        slow.stalled_us = 0
        yield from self.until(lambda: all(map(self._is_known_again, others)))
        for host in others:
            self.down(host)
            host.kill()
        self.up(slow)
        yield 5_000_000

    def earlier_rows(self) -> Course:
        """Rows of one leader are replicated under the next but one; a third broker has other rows
        of the leader between, and is there when no replica is trusted (docs/adr/0067).
        """
        first, other, third = yield from self.three()
        yield from self.lead(first)
        yield _PAUSE_US
        parted = self.committed
        self.cut(first, other, third)
        yield from self.until(lambda: self.end(first) > max(parted, self.end(third)) + 5)
        self.decide_leader(other)
        yield from self.until(lambda: self.leads(other) and self.end(third) > self.end(first) + 5)
        self._silence_producers()
        self.down(third)
        third.kill()
        self.decide_leader(first)
        self.mend(first, other)
        yield from self.until(lambda: self.leads(first) and self.committed >= self.end(first))
        if not self.cluster.may_lose_power(other):
            raise Over
        self.down(first)
        self.down(other)
        other.power_loss()
        first.kill()
        self.up(third)
        yield from self.until(lambda: self.is_registered(third))
        self.up(first)
        self.up(other)
        yield 5_000_000

    def _silence_producers(self) -> None:
        for number in range(self.cluster.scenario.producers):
            for host in self.cluster.hosts:
                self.world.network.cut(f"producer-{number}", host.name)

    def _has_unflushed(self, slow: ClusterHost) -> bool:
        """Does it lack rows on its disk that were promised?"""
        replica = self.replica(slow)
        promised = max(self.checker.partitions[self.key].acknowledged, default=-1) + 1
        return replica is not None and replica.log.flushed_offset + 5 < promised

    def _is_known_again(self, host: ClusterHost) -> bool:
        return self.cluster.controller() is not None and self.is_registered(host)

    def asked_again(self) -> Course:
        """A replica about to join loses its power, and is back when the proposal is repeated."""
        leader, _, third = yield from self.three(controller_may_be=1)
        decides = self.controller()
        yield from self.lead(leader)
        self.down(third)
        third.stop()
        yield from self.until(lambda: third.node is None)
        self.late(leader, decides, _PAUSE_US)
        self.up(third)
        yield from self.until(lambda: self._is_asked_for(leader, third))
        self.deaf(leader, decides)
        self.reset(leader, decides)
        if not self.cluster.may_lose_power(third):
            raise Over
        self.late(leader, third, 8 * _PAUSE_US)
        before = self._epoch_received(leader, third)
        third.down_until_us = 0
        third.power_loss()
        third.start()
        yield from self.until(lambda: self._epoch_received(leader, third) > before)
        self.mend(leader, decides)
        yield 10 * _PAUSE_US

    def _is_asked_for(self, leader: ClusterHost, third: ClusterHost) -> bool:
        """Is a request to take it in under way?"""
        replica = self.replica(leader)
        if replica is None or replica.state.leadership is None:
            raise Over
        in_sync = replica.state.leadership.in_sync
        return in_sync.in_flight and third.node_id in in_sync.maximal - in_sync.committed

    def _epoch_received(self, leader: ClusterHost, third: ClusterHost) -> int:
        replica = self.replica(leader)
        if replica is None or replica.state.leadership is None:
            raise Over
        return replica.state.leadership.followers[third.node_id].broker_epoch

    def stalled_stop(self) -> Course:
        """A leader stops whose disk hardly moves: it applies decisions late."""
        leader, *_ = yield from self.three(controller_may_be=1)
        yield from self.lead(leader)
        yield _PAUSE_US
        leader.stalled_us = self.rng.randrange(2 * _PAUSE_US, 10 * _PAUSE_US)
        self.cluster.goes_down(leader)
        leader.stop()
        yield from self.until(lambda: leader.node is None)
        yield _PAUSE_US

    def lonely_controller(self) -> Course:
        """The controller leads a partition, too, and no broker receives its messages any more;
        clients do.
        """
        yield from self.until(self.cluster.all_in_sync)
        decides = self.controller()
        if decides.node_id not in self.partition().replicas:
            self.move_controller()
            raise Over
        yield from self.lead(decides)
        yield self.rng.randrange(_PAUSE_US, 5 * _PAUSE_US)
        self.cut(decides, *(host for host in self.cluster.hosts if host is not decides))
        yield 30 * _PAUSE_US

    def half_reachable(self) -> Course:
        """The controller leads a partition, too; one broker receives its messages no more, then
        none does, and the first one becomes the controller: the others had contact for longer.
        """
        yield from self.until(self.cluster.all_in_sync)
        decides = self.controller()
        if decides.node_id not in self.partition().replicas:
            self.move_controller()
            raise Over
        yield from self.lead(decides)
        yield 2 * _PAUSE_US  # All have it.
        deaf, *others = (host for host in self.cluster.hosts if host is not decides)
        self.cut(decides, deaf)
        yield self.rng.randrange(8 * _PAUSE_US, 16 * _PAUSE_US)
        self.cut(decides, *others)
        yield 30 * _PAUSE_US

    def minority(self) -> Course:
        """The controller and a partition's leader are cut off together; earlier messages of the
        others arrive late at the controller, so that it counts itself as reachable.
        """
        yield from self.until(self.cluster.all_in_sync)
        decides = self.controller()
        leaders = [n for n in self.partition().replicas if n != decides.node_id]
        leader = self.cluster.hosts[self.rng.choice(leaders)]
        yield from self.lead(leader)
        others = [host for host in self.cluster.hosts if host not in (decides, leader)]
        for host in others:
            self.late(host, decides, LATE_US)
        yield 10 * _PAUSE_US
        self.deaf(decides, *others)
        self.cut(leader, *others)
        yield 40 * _PAUSE_US

    def late_news(self) -> Course:
        """Some broker gets decisions later than clients do, and clients ask it."""
        decides = self.controller()
        others = [host for host in self.cluster.hosts if host is not decides]
        self.late(decides, self.rng.choice(others), 12 * _PAUSE_US)
        yield 30 * _PAUSE_US
        self.heal()

    def newborn(self) -> Course:
        """A topic is decided, and all lose their power before its directories are on any disk."""
        replicas = yield from self.three()
        self.remove("newborn")
        yield _PAUSE_US
        topic_id = self.create("newborn", replicas)
        yield from self.until(
            lambda: any(self.has_topic(host, topic_id) for host in replicas), look_us=100
        )
        yield self.rng.randrange(1, 500)
        self.cluster.all_power()
        for host in self.cluster.hosts:
            host.down_until_us = self.world.mono_us
        yield 15 * _PAUSE_US

    def kept_requests(self) -> Course:
        """What programs have sent to a leader stays in the network until they have given it up, and
        have gone on over other connections."""
        leader, *_ = yield from self.three(controller_may_be=1)
        yield from self.lead(leader)
        network, programs = self.world.network, self.cluster.scenario.clients.producers
        yield 3 * _PAUSE_US
        names = [f"client-producer-{number}" for number in range(programs)]
        kept = [one for name in names for one in network.keep(name, leader.name)]
        yield 2 * HASTY_US + self.rng.randrange(4 * _PAUSE_US)
        network.give(kept)
        self.world.faults["requests kept"] += len(kept)
        yield 3 * _PAUSE_US

    def names(self) -> Course:
        """A name is given to one topic after the other, while the disk of a broker hardly moves."""
        replicas = yield from self.three()
        stalled = replicas[0]
        self.remove("name")
        yield _PAUSE_US
        stalled.stalled_us = 8 * _PAUSE_US
        topic_id = self.create("name", replicas)
        yield from self.until(partial(self.has_topic, stalled, topic_id), look_us=100)
        yield _PAUSE_US // 10
        stalled.stalled_us = 0  # Its directory is still to be made.
        for _ in range(2):
            self.remove("name")
            topic_id = self.create("name", replicas)
            yield from self.until(partial(self.has_topic, stalled, topic_id))
            yield self.rng.randrange(_PAUSE_US)
        yield from self.until(lambda: self.has_open(stalled, topic_id))


COURSES: Final[dict[str, Callable[[Courses], Course]]] = {
    "late question": Courses.late_question,
    "late answer": Courses.late_answer,
    "left behind": Courses.left_behind,
    "trimmed": Courses.trimmed,
    "stood down": Courses.stood_down,
    "last log": Courses.last_log,
    "asked again": Courses.asked_again,
    "earlier rows": Courses.earlier_rows,
    "stalled stop": Courses.stalled_stop,
    "lonely controller": Courses.lonely_controller,
    "half reachable": Courses.half_reachable,
    "minority": Courses.minority,
    "late news": Courses.late_news,
    "newborn": Courses.newborn,
    "names": Courses.names,
    "kept requests": Courses.kept_requests,
    "away and back": Courses.away_and_back,
    "replaced": Courses.replaced,
    "cut inside": Courses.cut_inside,
    "full disks": Courses.full_disks,
    "failed disk": Courses.failed_disk,
    "never made": Courses.never_made,
}
