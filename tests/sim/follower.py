"""Clients that wait and clients that follow: long polls, and copies of a log.

Owns two rules. Awake: once a row at or after the asked offset is acknowledged, a parked fetch or
list-offsets request is answered within a moment, long before its own deadline. Reported: a client
that reads a log in order, with the epoch of its last row in each request, ends with a true copy:
rows that it read and that were lost are answered with LOG_TRUNCATED, never replaced in silence.
"""

from __future__ import annotations

from quiverlog.errors import LogTruncated, OffsetOutOfRange, UnknownTopicId
from quiverlog.types import LATEST, NO_EPOCH
from quiverlog.wire import messages as m

from .actors import Actor
from .checker import Checker, Key, PartitionModel, Violation
from .decoding import rows_of
from .world import World

__all__ = ["Follower", "Tailer"]

_WAIT_MS = 20_000
_AWAKE_US = 2_000_000
"""More than any latency and any flush, far less than the wait."""
_NAP_US = 3_000_000


class Follower(Actor):
    """Waits at the end of one partition, with a fetch and a list-offsets request by turns."""

    def __init__(self, world: World, checker: Checker, number: int) -> None:
        self._waits: tuple[int, Key, int] | None = None
        """(correlation id, key, offset) of the long poll under way."""
        super().__init__(world, checker, f"follower-{number}")
        checker.on_acked.append(self._acked)

    def act(self) -> None:
        keys = self.checker.live()
        if not keys:
            self.later(10_000)
            return
        key = self.rng.choice(keys)
        self.ask(m.ListOffsetsRequest(partitions=[m.ListOffsetsPartition(*key, at=LATEST)]))

    def lost(self) -> None:
        self._waits = None

    def answered(self, request: m.Request, response: m.Response, body: bytes) -> None:
        waited, self._waits = self._waits, None
        if isinstance(response, m.ListOffsetsResponse) and waited is None:
            got = response.partitions[0] if response.partitions else None
            if got is not None and not got.error_code and got.offset >= 0:
                self._wait((got.topic_id, got.partition), got.offset)
                return
        self.later(self.rng.randrange(1_000, 100_000))

    def _wait(self, key: Key, offset: int) -> None:
        if self.rng.random() < 0.5:
            entry = m.FetchPartition(*key, offset=offset, bytes_max=1_000)
            asked = self.ask(m.FetchRequest(max_wait_ms=_WAIT_MS, min_bytes=1, partitions=[entry]))
        else:
            known = m.ListOffsetsPartition(*key, at=LATEST, known_offset=offset)
            asked = self.ask(m.ListOffsetsRequest(max_wait_ms=_WAIT_MS, partitions=[known]))
        self._waits = (asked, key, offset)

    def _acked(self, key: Key, end_offset: int) -> None:
        """Rows up to `end_offset` are visible: the long poll has to be answered."""
        waits, connection = self._waits, self.connection
        if waits is None or waits[1] != key or end_offset <= waits[2]:
            return

        def look() -> None:
            cut = self.world.network.is_cut(self.name, self.host.name)
            if self._waits == waits and self.connection is connection and not cut:
                raise Violation(f"a long poll at {waits[2]} slept on when {end_offset} was there")

        self.world.at(_AWAKE_US, look)


class Tailer(Actor):
    """Copies one partition from its first row on."""

    def __init__(self, world: World, checker: Checker, number: int) -> None:
        self.key: Key | None = None
        self.copy: dict[int, int] = {}
        self.offset = 0
        self.last_epoch = NO_EPOCH
        self.at_end = False
        self._nap_until_us = 0
        super().__init__(world, checker, f"tailer-{number}")

    def act(self) -> None:
        if not self.world.calm and self.world.mono_us < self._nap_until_us:
            self.later(50_000)
            return
        if self.key is None or self.checker.partitions[self.key].topic.doomed:
            self.at_end = True
            keys = self.checker.live()
            if not keys or self.world.calm:
                self.later(10_000)
                return
            self.key = self.rng.choice(keys)
            self.copy, self.offset, self.last_epoch = {}, 0, NO_EPOCH
        self.at_end = False
        entry = m.FetchPartition(
            *self.key,
            leader_epoch=self.epoch(self.key),
            offset=self.offset,
            last_epoch=self.last_epoch,
            bytes_max=self.rng.choice((2_000, 100_000)),
        )
        wait_ms = 0 if self.world.calm else self.rng.choice((0, 100, 1_000))
        self.ask(m.FetchRequest(max_wait_ms=wait_ms, bytes_max=100_000, partitions=[entry]))

    def answered(self, request: m.Request, response: m.Response, body: bytes) -> None:
        if isinstance(response, m.FetchResponse) and response.partitions:
            assert isinstance(request, m.FetchRequest)
            self._fetched(request.partitions[0], response.partitions[0], body)
        naps = not self.world.calm and self.rng.random() < self.world.scenario.naps
        if naps:
            self._nap_until_us = self.world.mono_us + self.rng.randrange(_NAP_US)
        self.later(self.rng.randrange(1_000, 40_000))

    def _fetched(self, asked: m.FetchPartition, got: m.FetchPartitionResult, body: bytes) -> None:
        key = (got.topic_id, got.partition)
        model = self.checker.partitions[key]
        if got.error_code == LogTruncated.code:
            self.checker.error(got.error_code)
            self._truncated(key, got)
        elif got.error_code == OffsetOutOfRange.code:
            self.checker.error(got.error_code)
            self._out_of_range(key, got)
        elif got.error_code == UnknownTopicId.code and model.topic.doomed:
            self.key = None
        elif got.error_code:
            self.refused(key, got.error_code, got.error_message)
            self.at_end = model.damaged or model.torn
        else:
            self.note_epoch(key, got.leader_epoch)
            epochs: dict[int, int] = {}
            after, found = rows_of(model, self.offset, body, epochs=epochs)
            for base_offset, values in found:
                self.checker.read(key, base_offset, values)
                self.copy.update(enumerate(values, base_offset))
            if found:
                self.last_epoch = epochs[after - 1]
            self.offset = after
            self.at_end = not found and self.offset >= got.high_watermark

    def _may_lose(self, model: PartitionModel) -> bool:
        """May rows that were read be gone? The end of a process alone takes none."""
        return model.damaged or (model.topic.lossy and self.checker.power_failed)

    def _truncated(self, key: Key, got: m.FetchPartitionResult) -> None:
        model = self.checker.partitions[key]
        if not self._may_lose(model):
            raise Violation(f"{model.name}: rows were truncated: {got.error_message}")
        if not 0 <= got.diverging_end_offset <= self.offset:
            raise Violation(
                f"{model.name}: read up to {self.offset}, got the answer that the log diverges at"
                f" {got.diverging_end_offset}"
            )
        self.world.faults["a reader got an error for lost rows"] += 1
        self.offset = got.diverging_end_offset
        self.copy = {o: v for o, v in self.copy.items() if o < self.offset}
        self.last_epoch = got.diverging_epoch

    def _out_of_range(self, key: Key, got: m.FetchPartitionResult) -> None:
        """Trimmed or retained away; or beyond the end, which only a lossy topic may come to."""
        model = self.checker.partitions[key]
        if self.offset < got.log_start_offset:
            self.copy.clear()
            self.offset, self.last_epoch = got.log_start_offset, NO_EPOCH
        elif not self._may_lose(model):
            raise Violation(f"{model.name}: offset {self.offset} was read before: {got}")
        else:
            self.copy.clear()
            self.offset, self.last_epoch = 0, NO_EPOCH

    def check_copy(self) -> None:
        """At the end, when all rows were read once more: is the copy true?"""
        if self.key is None or self.checker.partitions[self.key].topic.doomed:
            return
        model = self.checker.partitions[self.key]
        if model.damaged:
            return
        for offset, value in self.copy.items():
            now = model.seen.get(offset)
            if offset >= model.log_start_offset and now != value:
                raise Violation(
                    f"{model.name}: a follower read {value} at {offset}, the log holds {now},"
                    " and no error reported it"
                )
