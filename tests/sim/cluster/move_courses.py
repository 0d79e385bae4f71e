"""Courses in which a partition moves, while a broker gets decisions late.

Owns these courses; `courses` has the others and begins them. The partition is on three of four
brokers, and the fourth decides.

Not here: rules about rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from quiverlog.core.controller.reassignment import reassign
from quiverlog.errors import QuiverlogError

from .host import ClusterHost
from .stage import Course, Over, Stage

__all__ = ["MoveCourses"]

_PAUSE_US: Final = 100_000
_VERY_LATE_US: Final = 1_200_000
"""Shorter than a broker's session, and two moves are over in it."""


class MoveCourses(Stage):
    def away_and_back(self) -> Course:
        """A broker loses the partition and gets it back before it has received either decision."""
        leader, other, third = yield from self.three()
        decides = self.controller()
        yield from self.lead(leader)
        yield _PAUSE_US
        self.late(decides, third, _VERY_LATE_US)
        self.move([leader, other, decides])
        yield from self.until(lambda: not self._is_moving(), _VERY_LATE_US)
        self.move([leader, other, third])
        yield from self.until(lambda: not self._is_moving(), _VERY_LATE_US)
        self.heal()
        yield 10 * _PAUSE_US

    def replaced(self) -> Course:
        """A leader that no longer holds the partition gets the decision late, and is asked
        meanwhile.
        """
        leader, other, third = yield from self.three()
        decides = self.controller()
        yield from self.lead(leader)
        yield 2 * _PAUSE_US
        self.move([other, third, decides])
        yield from self.until(lambda: self.is_in_sync(decides), look_us=100)
        self.late(decides, leader, 7 * _PAUSE_US)
        yield from self.until(lambda: not self._is_moving())
        yield 7 * _PAUSE_US
        self.heal()
        yield 2 * _PAUSE_US
        self.move([other, third, leader])
        yield from self.until(lambda: not self._is_moving())

    def cut_inside(self) -> Course:
        """A copy is away while rows are given up to the middle of a batch, and begins there."""
        leader, _, third = yield from self.three()
        yield from self.lead(leader)
        yield _PAUSE_US
        self.down(third)
        third.stop()
        yield from self.until(lambda: third.node is None)
        had = self.committed
        yield from self.until(lambda: self.committed > had + 50)
        self.trim(self.committed - self.rng.randrange(1, 8))
        yield from self.until(lambda: self.log_start(leader) > had)
        self.up(third)
        yield from self.until(lambda: self.is_in_sync(third))
        yield 2 * _PAUSE_US

    # --- parts ---------------------------------------------------------------------------------
    def move(self, target: Sequence[ClusterHost]) -> None:
        """These are to hold the partition, as the controller accepts it."""
        decides, image = self.controller(), self.image()
        topic = image.topics_by_id[self.key[0]]
        try:
            with decides.plant():  # Here its own code decides.
                records = reassign(
                    image, topic, self.partition(), [host.node_id for host in target]
                )
        except QuiverlogError as error:
            raise Over from error
        if records:
            self.decide(records)

    def _is_moving(self) -> bool:
        return self.partition().moves
