"""How far the logs of partitions without a leader reach: what their brokers have told so far.

Owns the answers, as long as this node decides. Nothing of it is in the metadata log: another
controller is told anew. An answer is of one life of a broker and of one leader epoch. A broker
that registers anew may have lost rows since, and under another epoch its log may have been cut or
written to: such answers are of no use. While a partition has no leader, nobody writes to its logs.

Bounded by the partitions without a leader, and their replicas.

Must not know: who leads because of it (elections.py), requests, files.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from quiverlog.core.controller.alter_partition import check_broker, find_partition
from quiverlog.core.controller.image import Image
from quiverlog.core.controller.records import UNKNOWN_BROKER_EPOCH
from quiverlog.errors import QuiverlogError, StaleBrokerEpoch
from quiverlog.types import NO_EPOCH

__all__ = ["MISSING", "UNREADABLE", "LogEnd", "LogEnds", "Said"]

Key = tuple[bytes, int]

UNREADABLE: Final = -1
"""There is a log, which cannot be opened or has damaged rows: nobody knows how far it reached."""
MISSING: Final = -2
"""There is no log: it was never made, or is lost."""


class LogEnd(NamedTuple):
    """Where a log ends: the newest leader epoch whose leader's log it is up to where that epoch
    began, at least (that of its last row, or a later one), and the offset after its last row.

    `log_start_offset`: rows below it never come back. `is_offline`: its disk has failed, and the
    log can lead only after a restart, with what is found then.
    """

    last_epoch: int
    end_offset: int
    log_start_offset: int = 0
    is_offline: bool = False

    @property
    def reach(self) -> tuple[int, int]:
        """Of two logs the one with the later epoch has all that was acknowledged before, whatever
        their offsets are: so epochs are compared first, as in Raft."""
        return (self.last_epoch, self.end_offset)

    @property
    def is_log(self) -> bool:
        """False when it says that there is none, or none that can be read."""
        assert self.end_offset >= MISSING
        return self.end_offset >= 0


class Said(NamedTuple):
    """What a broker says of one of its logs, as of this leader epoch."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    end: LogEnd


class _Answer(NamedTuple):
    broker_epoch: int
    leader_epoch: int
    end: LogEnd


class LogEnds:
    """See the module docstring."""

    __slots__ = ("_answers",)

    def __init__(self) -> None:
        self._answers: dict[Key, dict[int, _Answer]] = {}

    def __len__(self) -> int:
        return len(self._answers)

    def clear(self) -> None:
        """This node decides no more, or anew."""
        self._answers.clear()
        assert not self._answers

    def take(
        self, image: Image, broker_id: int, broker_epoch: int, told: Iterable[Said]
    ) -> list[Key]:
        """A broker tells of its logs. Returns the partitions of which it is to be known.

        Raises:
            StaleBrokerEpoch: it is not this life of the broker that is registered.
        """
        check_broker(image, broker_id, broker_epoch)
        if broker_epoch == UNKNOWN_BROKER_EPOCH:
            raise StaleBrokerEpoch(f"the registration of broker {broker_id} is not decided yet.")
        if len(self._answers) > len(image.leaderless):
            self._forget_led(image)
        taken = []
        for one in told:
            key = (one.topic_id, one.partition)
            if key in image.leaderless and self._take(image, broker_id, broker_epoch, one):
                taken.append(key)
        assert len(self._answers) <= len(image.leaderless) + len(taken)
        return taken

    def _take(self, image: Image, broker_id: int, broker_epoch: int, one: Said) -> bool:
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

    def _forget_led(self, image: Image) -> None:
        """Those that have a leader again, or are gone."""
        known = self._answers
        self._answers = {key: known[key] for key in known if key in image.leaderless}
        assert len(self._answers) <= len(image.leaderless)

    def of(self, image: Image, topic_id: bytes, number: int) -> dict[int, LogEnd]:
        """What is known of a partition now, by broker: from lives and under an epoch that last."""
        answers = self._answers.get((topic_id, number), {})
        partition = image.topics_by_id[topic_id].partitions[number]
        assert partition.partition == number
        found = {}
        for broker_id, answer in answers.items():
            broker = image.brokers.get(broker_id)
            if broker is None or broker.broker_epoch != answer.broker_epoch:
                continue
            is_replica = broker_id in partition.replicas  # A move may have been given up.
            if is_replica and answer.leader_epoch == partition.leader_epoch:
                found[broker_id] = answer.end
        assert set(found) <= set(partition.replicas)
        return found
