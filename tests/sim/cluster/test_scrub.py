"""Reading a bad disk at the end, on scripted machines: each rule is red at least once."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import pytest

from quiverlog.batch.header import stamp
from quiverlog.errors import ReplicaNotAvailable
from quiverlog.wire import messages as m
from tests.sim.checker import Violation
from tests.sim.rows import encode_rows

from .clients import ClusterSetup
from .patience import FILE_US, HEAL_US, patience_us
from .promises import ClusterChecker, ClusterTopicModel
from .scrub import batches_of, compare, is_to_hold

KEY: Final = (bytes(16), 0)
_ROWS: Final = 4
_REFUSED_US: Final = 100_000
"""How long a client waits after an error."""


def _batch(base_offset: int, *, epoch: int = 3) -> bytes:
    """Four rows, whose values are their offsets."""
    values = list(range(base_offset, base_offset + _ROWS))
    data = bytearray(
        encode_rows(
            values, random.Random(7), schema_id=1, at_us=1, producer=(1, 0), sequence=base_offset
        )
    )
    stamp(data, 0, base_offset, epoch)
    return bytes(data)


ROWS: Final = {base: _batch(base) for base in (0, 4, 8)}


def _cluster(
    *,
    scale: int = 1,
    files: tuple[int, ...] = (),
    heal_ms: int = 60_000,
    byte_count: int = 0,
    move_bytes_per_s: int = 0,
) -> Any:
    """One living broker, with a log of this many files, and these bytes, for each partition."""
    replicas = [
        SimpleNamespace(
            topic=SimpleNamespace(topic_id=KEY[0]),
            name=SimpleNamespace(partition=number),
            log=SimpleNamespace(
                reader=SimpleNamespace(segments=[None] * count),
                _segments=SimpleNamespace(byte_count=byte_count),
            ),
        )
        for number, count in enumerate(files)
    ]
    broker = SimpleNamespace(
        assignment=SimpleNamespace(all_open=lambda: replicas),
        replication=SimpleNamespace(_quota=SimpleNamespace(_bytes_per_s=move_bytes_per_s)),
    )
    return SimpleNamespace(
        living=[SimpleNamespace(node=SimpleNamespace(broker=broker))],
        scenario=SimpleNamespace(tempo=SimpleNamespace(scale=scale), heal_ms=heal_ms),
    )


class _Asker(ClusterSetup):
    """Gives the result of `answer` for an offset; each question that is refused takes a while."""

    def __init__(
        self, answer: Callable[[int], m.FetchPartitionResult | bytes], **world: Any
    ) -> None:
        self.world: Any = SimpleNamespace(mono_us=0)
        self._cluster = _cluster(**world)
        self._answer = answer
        self.asked = 0

    def call(self, request: m.Request) -> tuple[m.Response, bytes]:
        assert isinstance(request, m.FetchRequest)
        self.asked += 1
        answer = self._answer(request.partitions[0].offset)
        if isinstance(answer, bytes):
            return m.FetchResponse(partitions=[m.FetchPartitionResult(*KEY)]), answer
        self.world.mono_us += _REFUSED_US
        return m.FetchResponse(partitions=[answer]), b""


def _refused() -> m.FetchPartitionResult:
    return m.FetchPartitionResult(*KEY, error_code=ReplicaNotAvailable.code)


def _rows(offset: int) -> bytes:
    return ROWS[offset // _ROWS * _ROWS]


@pytest.fixture
def checker() -> ClusterChecker:
    """Twelve rows were sent."""
    found = ClusterChecker()
    found.add(ClusterTopicModel("t", KEY[0], {"durability": "replicated"}), 1)
    found.sent(KEY, list(range(12)))
    return found


# --- reading --------------------------------------------------------------------------------------
def test_all_batches_are_read(checker: ClusterChecker) -> None:
    asker = _Asker(_rows)
    assert batches_of(asker, checker, KEY, 0, 12) == ROWS
    assert asker.asked == 3
    assert checker.rows_seen == 12


def test_a_copy_that_is_made_anew_takes_as_long_as_its_leader_has_files(
    checker: ClusterChecker,
) -> None:
    """Such a copy had 40 s, whatever there was to copy, and however slow the timers."""
    asker = _Asker(lambda _: _refused() if asker.asked < 800 else ROWS[0], files=(300,))
    assert batches_of(asker, checker, KEY, 0, 4) == {0: ROWS[0]}
    slow = _Asker(lambda _: _refused() if slow.asked < 800 else ROWS[0], scale=3)
    assert batches_of(slow, checker, KEY, 0, 4) == {0: ROWS[0]}
    assert asker.world.mono_us == slow.world.mono_us > 40_000_000


def test_each_answer_with_rows_begins_the_wait_anew(checker: ClusterChecker) -> None:
    """A machine that is found damaged in three places is copied again three times."""
    asker = _Asker(lambda offset: _rows(offset) if asker.asked % 500 == 0 else _refused())
    assert batches_of(asker, checker, KEY, 0, 12) == ROWS
    assert asker.world.mono_us > 2 * HEAL_US


def test_a_row_that_never_comes_is_missed(checker: ClusterChecker) -> None:
    asker = _Asker(lambda offset: _refused() if offset == 4 else _rows(offset))
    with pytest.raises(Violation, match="t-0: 4 is not read there: FetchPartitionResult"):
        batches_of(asker, checker, KEY, 0, 12)
    assert HEAL_US <= asker.world.mono_us < HEAL_US + 2 * _REFUSED_US


def test_damaged_bytes_are_served_to_no_reader(checker: ClusterChecker) -> None:
    damaged = bytearray(ROWS[4])
    damaged[-9] ^= 1
    asker = _Asker(lambda offset: bytes(damaged) if offset == 4 else _rows(offset))
    with pytest.raises(Violation, match="damaged bytes were served"):
        batches_of(asker, checker, KEY, 0, 12)


def test_rows_of_a_bad_disk_are_those_that_were_acknowledged(checker: ClusterChecker) -> None:
    checker.acked(KEY, 0, [0, 1], 0, flushed=True)
    checker.acked(KEY, 2, [11], 0, flushed=True)
    with pytest.raises(Violation, match="offset 2 holds 2, acknowledged was 11"):
        batches_of(_Asker(_rows), checker, KEY, 0, 12)


def test_rows_that_retention_has_taken_meanwhile_are_not_missed(checker: ClusterChecker) -> None:
    gone = m.FetchPartitionResult(*KEY, error_code=ReplicaNotAvailable.code, log_start_offset=8)
    asker = _Asker(lambda offset: gone if offset < 8 else _rows(offset))
    assert batches_of(asker, checker, KEY, 0, 12) == {8: ROWS[8]}
    all_gone = m.FetchPartitionResult(*KEY, error_code=0, log_start_offset=12)
    assert batches_of(_Asker(lambda _: all_gone), checker, KEY, 0, 12) == {}


# --- comparing ------------------------------------------------------------------------------------
def test_a_bad_disk_has_the_leaders_batches() -> None:
    compare("t-0: a", ROWS, dict(ROWS), 0)
    with pytest.raises(Violation, match="t-0: a has other bytes at 4"):
        compare("t-0: a", {**ROWS, 4: _batch(4, epoch=2)}, ROWS, 0)


def test_a_bad_disk_has_all_of_the_leaders_batches() -> None:
    """Batches were compared where both had one: a copy that began later was as good as any."""
    tail = {8: ROWS[8]}
    with pytest.raises(Violation, match="a gives no batch at 0"):
        compare("t-0: a", tail, ROWS, 0)
    with pytest.raises(Violation, match="a gives no batch at 4"):
        compare("t-0: a", tail, ROWS, 4)
    with pytest.raises(Violation, match="a gives a batch at 0 that the leader has not"):
        compare("t-0: a", ROWS, tail, 0)
    compare("t-0: a", tail, ROWS, 5)
    compare("t-0: a", ROWS, tail, 5)


# --- who is read, and for how long ----------------------------------------------------------------
def test_a_copy_that_is_not_here_just_now_is_to_be_read_all_the_same() -> None:
    """Such a one was passed over while it was made anew, and not read again."""
    topic = SimpleNamespace(partitions=[SimpleNamespace(replicas=(1, 2))])
    images = [
        SimpleNamespace(version=6, topics_by_id={}),
        SimpleNamespace(version=7, topics_by_id={KEY[0]: topic}),
    ]
    brokers = [SimpleNamespace(metadata=SimpleNamespace(image=image)) for image in images]
    hosts = [SimpleNamespace(node=SimpleNamespace(broker=broker)) for broker in brokers]
    cluster: Any = SimpleNamespace(living=hosts)
    assert is_to_hold(cluster, KEY, 2), "whatever it has open, or whether it lives"
    assert not is_to_hold(cluster, KEY, 0)
    images[1].version = 5
    assert not is_to_hold(cluster, KEY, 2), "the topic was deleted"


def test_patience_is_of_the_tempo_and_of_what_there_is_to_copy() -> None:
    assert patience_us(_cluster()) == HEAL_US
    assert patience_us(_cluster(scale=30), 1_000) == 30_000
    assert patience_us(_cluster(scale=3, heal_ms=10_000)) == 30_000_000
    assert patience_us(_cluster(scale=10, files=(200, 50))) == 10 * HEAL_US + 250 * FILE_US
    assert patience_us(_cluster(files=(1,), byte_count=10**6)) == HEAL_US + FILE_US
    moving = _cluster(files=(1,), byte_count=10**6, move_bytes_per_s=20_000)
    assert patience_us(moving) == HEAL_US + FILE_US + 50_000_000
