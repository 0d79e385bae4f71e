"""The ends of the logs of partitions without a leader, as their brokers report them.

A report counts for one registration of a broker and one leader epoch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from quiverlog.core.controller.alter_partition import check_broker, find_partition
from quiverlog.core.controller.image import Image
from quiverlog.core.controller.records import UNKNOWN_BROKER_EPOCH
from quiverlog.errors import QuiverlogError, StaleBrokerEpoch
from quiverlog.types import NO_EPOCH

__all__ = ["MISSING", "UNREADABLE", "LogEnd", "LogEndReport", "LogEnds"]

Key = tuple[bytes, int]

UNREADABLE: Final = -1
MISSING: Final = -2
"""There is no log: it was never made, or is lost."""


class LogEnd(NamedTuple):
    """`last_epoch`: the newest leader epoch whose log it equals up to where that epoch began, at
    least that of its last row. `log_start_offset`: rows below it never come back. `is_offline`: the
    disk failed, and the log can lead only after a restart."""

    last_epoch: int
    end_offset: int
    log_start_offset: int = 0
    is_offline: bool = False

    @property
    def reach(self) -> tuple[int, int]:
        # As in Raft: the log with the later epoch has all that was acknowledged before it.
        return (self.last_epoch, self.end_offset)

    @property
    def is_log(self) -> bool:
        assert self.end_offset >= MISSING
        return self.end_offset >= 0


class LogEndReport(NamedTuple):
    topic_id: bytes
    partition: int
    leader_epoch: int
    end: LogEnd


class _Answer(NamedTuple):
    broker_epoch: int
    leader_epoch: int
    end: LogEnd


class LogEnds:
    __slots__ = ("_answers",)

    def __init__(self) -> None:
        self._answers: dict[Key, dict[int, _Answer]] = {}

    def __len__(self) -> int:
        return len(self._answers)

    def clear(self) -> None:
        self._answers.clear()
        assert not self._answers

    def take(
        self, image: Image, broker_id: int, broker_epoch: int, reports: Iterable[LogEndReport]
    ) -> list[Key]:
        check_broker(image, broker_id, broker_epoch)
        if broker_epoch == UNKNOWN_BROKER_EPOCH:
            raise StaleBrokerEpoch(f"the registration of broker {broker_id} is not committed yet.")
        if len(self._answers) > len(image.leaderless):
            self._drop_led(image)
        taken = []
        for one in reports:
            key = (one.topic_id, one.partition)
            if key in image.leaderless and self._take(image, broker_id, broker_epoch, one):
                taken.append(key)
        assert len(self._answers) <= len(image.leaderless) + len(taken)
        return taken

    def _take(self, image: Image, broker_id: int, broker_epoch: int, one: LogEndReport) -> bool:
        assert broker_epoch >= 0
        try:
            _, partition = find_partition(image, one.topic_id, one.partition)
        except QuiverlogError:
            return False
        if one.leader_epoch != partition.leader_epoch or broker_id not in partition.replicas:
            return False
        assert one.end.end_offset >= MISSING
        assert one.end.last_epoch >= NO_EPOCH
        answers = self._answers.setdefault((one.topic_id, one.partition), {})
        answers[broker_id] = _Answer(broker_epoch, one.leader_epoch, one.end)
        return True

    def _drop_led(self, image: Image) -> None:
        known = self._answers
        self._answers = {key: known[key] for key in known if key in image.leaderless}
        assert len(self._answers) <= len(image.leaderless)

    def of(self, image: Image, topic_id: bytes, number: int) -> dict[int, LogEnd]:
        answers = self._answers.get((topic_id, number), {})
        partition = image.topics_by_id[topic_id].partitions[number]
        assert partition.partition == number
        found = {}
        for broker_id, answer in answers.items():
            broker = image.brokers.get(broker_id)
            if broker is None or broker.broker_epoch != answer.broker_epoch:
                continue  # It has registered again, and may have lost rows.
            is_replica = broker_id in partition.replicas  # A cancelled move may have removed it.
            # Under another leader epoch its log may have been cut or written to.
            if is_replica and answer.leader_epoch == partition.leader_epoch:
                found[broker_id] = answer.end
        assert set(found) <= set(partition.replicas)
        return found
