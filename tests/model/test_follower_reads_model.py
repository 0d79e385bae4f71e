"""Readers that may read copies, against brokers that come, go, lead, lag and lie.

Whatever happens, a reader hands out the rows of each partition in order, none twice and none left
out, and none that is not committed. When the storm is over it comes to the end of the log, although
one of the followers lies for ever. After an unclean election it reports that rows are lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from quiverlog.client.consumer.core import ConsumerCore
from quiverlog.client.consumer.options import ConsumerOptions
from quiverlog.client.rows.decoding import ConsumerBatch
from quiverlog.client.tables.fetcher import PartitionFetcher
from quiverlog.errors import ConnectionFailed, LogTruncated, OffsetOutOfRange, QuiverlogError
from tests.support import follower_world
from tests.support.follower_copies import View
from tests.support.follower_world import LIES, PARTITIONS, World

T = TypeVar("T")

STORM_S = 40.0
RECOVERY_S = 90.0
SEEDS = st.integers(0, 2**32)
EXAMPLES = settings().max_examples // 2
CHOICES = st.sampled_from(["follower", "nearest"])


def consumer(world: World, fetch_from: str, **options: Any) -> ConsumerCore:
    given = {
        "start": "earliest", "end": None, "follow": True, "columns": None, "partitions": None,
        "fetch_bytes": 1 << 20, "skip_corrupt": False, **options,
    }  # fmt: skip
    return ConsumerCore(
        world.cluster,
        "t",
        ConsumerOptions(fetch_from=fetch_from, client_rack="b", **given),  # type: ignore[arg-type]
    )


def patient(attempt: Callable[[], T]) -> T:
    """Try again after what time may heal."""
    while True:
        try:
            return attempt()
        except QuiverlogError as error:
            if not error.retriable:
                raise


class Reader:
    """What was handed out, by partition."""

    def __init__(self) -> None:
        self.rows: list[list[int]] = [[] for _ in range(PARTITIONS)]

    def take(self, batch: ConsumerBatch) -> None:
        rows = self.rows[batch.partition]
        assert batch.base_offset == len(rows), "skipped or repeated"
        rows += batch.data.column(0).to_pylist()

    def check(self, world: World) -> None:
        for rows, partition in zip(self.rows, world.partitions, strict=True):
            assert rows == partition.committed[: len(rows)], "other rows than those committed"

    def is_done(self, world: World) -> bool:
        """As many rows as there are can be other rows, or those of a leader that was deposed."""
        all_rows = [partition.committed for partition in world.partitions]
        return world.is_settled and self.rows == all_rows


def read(world: World, core: ConsumerCore, reader: Reader, until_s: float) -> None:
    """Read on until then, or until all is read after the storm."""
    while world.now_s < until_s:
        try:
            batch = world.run(core.next(0.7))
        except QuiverlogError as error:
            if not error.retriable:
                raise
            continue
        if batch is not None:
            reader.take(batch)
            if not world.unclean:
                reader.check(world)
        elif world.calm and reader.is_done(world):
            return


def storm(world: World, core: ConsumerCore) -> Reader:
    reader = Reader()
    patient(lambda: world.run(core.open()))
    read(world, core, reader, STORM_S)
    world.heal()
    for number in range(PARTITIONS):
        world.produce(number)
    read(world, core, reader, STORM_S + RECOVERY_S)
    return reader


@settings(max_examples=EXAMPLES)
@given(SEEDS, CHOICES, st.sampled_from([None, 2, 3]), st.booleans())
def test_no_row_is_skipped_repeated_or_made_up(
    seed: int, fetch_from: str, liar: int | None, skip_corrupt: bool
) -> None:
    """Rule 17 of docs/replication-rules.md."""
    world = World(seed, liar=liar)
    reader = storm(world, consumer(world, fetch_from, skip_corrupt=skip_corrupt))
    reader.check(world)
    assert reader.is_done(world), (reader.rows, [p.committed for p in world.partitions])


@pytest.mark.parametrize("lie", LIES)
def test_a_reader_gets_past_each_lie(lie: str) -> None:
    for seed in range(5):
        world = World(seed, liar=2, lies=(lie,))
        reader = storm(world, consumer(world, "follower", skip_corrupt=True))
        reader.check(world)
        assert reader.is_done(world), lie


def test_followers_are_read() -> None:
    """Else all of this would hold of a reader that asks leaders alone."""
    for fetch_from in ("follower", "nearest"):
        world = World(1)
        world.faults = False
        storm(world, consumer(world, fetch_from))
        counts = [sum(one is follower for _, follower in world.asked) for one in (False, True)]
        assert counts[1] > 10 * counts[0] > 0, counts
    asked = 0
    for seed in range(10):
        world = World(seed)
        storm(world, consumer(world, "follower"))
        asked += sum(follower for _, follower in world.asked)
    assert asked > 100, "in storms, too"


@settings(max_examples=EXAMPLES)
@given(SEEDS, CHOICES)
def test_an_unclean_election_is_noticed(seed: int, fetch_from: str) -> None:
    """Rows that were read and are lost are an error, from whomever they came."""
    world = World(seed, unclean=True)
    core = consumer(world, fetch_from)
    reader = Reader()
    try:
        reader = storm(world, core)
    except (LogTruncated, OffsetOutOfRange):
        return
    reader.check(world)


def elect(world: World, leader: int, up: set[int], numbers: Iterable[int] = (0, 1)) -> None:
    """Elect `leader`, which is alone; the brokers of `up` receive the new view."""
    world.up = up
    for number in numbers:
        partition = world.partitions[number]
        partition.truth = View(leader, partition.truth.leader_epoch + 1, (leader,))
        partition.acked.clear()
        while any(partition.copies[node].view != partition.truth for node in up):
            world._learn(number, partition)


def read_rows(world: World, fetch_from: str) -> tuple[ConsumerCore, Reader]:
    """A reader of three rows that node 1 alone has."""
    world.heal()
    elect(world, 1, {1})
    for _ in range(3):
        world.produce(0)
    core, reader = consumer(world, fetch_from), Reader()
    world.run(core.open())
    read(world, core, reader, world.now_s + 10)
    assert len(reader.rows[0]) == 3
    return core, reader


@pytest.mark.parametrize("others", [2, 3, 4])
@pytest.mark.parametrize("fetch_from", ["leader", "follower", "nearest"])
def test_rows_that_were_read_and_replaced_are_noticed(
    fetch_from: str, others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower_world, "ROWS_MAX", 1)
    world = World(0, unclean=True)
    core, reader = read_rows(world, fetch_from)
    elect(world, 2, {2, 3})
    for _ in range(others):
        world.produce(0)
    copy = world.partitions[0].copies[3]
    while copy.view.in_sync != (2, 3) or copy.log.high_watermark < others:
        world.step()
    assert not reader.is_done(world)
    with pytest.raises(LogTruncated, match="diverges from offset 0 on"):
        read(world, core, reader, world.now_s + RECOVERY_S)
    assert len(reader.rows[0]) == 3


@pytest.mark.parametrize("fetch_from", ["leader", "follower", "nearest"])
def test_rows_that_are_back_before_the_reader_asks_are_not_lost(
    fetch_from: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader's rows are compared with those of the last leader, once that one leads."""
    monkeypatch.setattr(follower_world, "ROWS_MAX", 1)
    world = World(0, unclean=True)
    core, reader = read_rows(world, fetch_from)
    elect(world, 2, set())
    assert reader.rows[0] == world.partitions[0].committed
    assert not reader.is_done(world), "they are not yet those of the leader"
    elect(world, 2, {2})
    for _ in range(3):
        world.produce(0)
    elect(world, 1, set())
    assert len(reader.rows[0]) == len(world.partitions[0].committed) == 3
    assert not reader.is_done(world)
    world.up = {1, 3}
    read(world, core, reader, world.now_s + RECOVERY_S)
    reader.check(world)
    assert reader.is_done(world)


@pytest.mark.parametrize("dead", range(PARTITIONS))
def test_a_leader_that_is_down_holds_up_no_other_partition(dead: int) -> None:
    """One that cannot be read is an error when for the request timeout no other has had rows."""
    live, timeout_s = 1 - dead, 30.0
    world = World(0, unclean=True)
    world.heal()
    elect(world, 1, {1, 2, 3}, (dead,))
    elect(world, 2, {2, 3}, (live,))
    core, reader = consumer(world, "leader"), Reader()
    world.up.add(1)
    world.run(core.open())
    world.up.discard(1)
    latest_s = 0.0
    for _ in range(3):
        world.produce(live)
        written_s = world.now_s
        while (batch := world.run(core.next(timeout_s - 5))) is not None:
            reader.take(batch)
            latest_s = world.now_s
            assert latest_s - written_s < 1.0
    assert latest_s > 2 * (timeout_s - 5), "each was read"
    with pytest.raises(ConnectionFailed, match=f"^t-{dead}: node 1 is down"):
        world.run(core.next(RECOVERY_S))
    assert timeout_s <= world.now_s - latest_s < timeout_s + 1.5, "a try lasts up to a second"
    world.produce(live)
    read(world, core, reader, world.now_s + 1)
    assert reader.rows[live] == world.partitions[live].committed
    elect(world, 2, {2, 3}, (dead,))
    world.produce(dead)
    read(world, core, reader, world.now_s + 2)
    assert reader.rows[dead]
    assert reader.is_done(world)


class Client:
    """As much of a blocking client as a fetcher needs."""

    def __init__(self, world: World) -> None:
        self.cluster = world.cluster
        self.run = world.run


@given(SEEDS, CHOICES, st.sampled_from([None, 2, 3]))
def test_a_range_is_read_once_and_whole(seed: int, fetch_from: str, liar: int | None) -> None:
    world = World(seed, liar=liar)
    while world.now_s < STORM_S / 2:
        world.step()
    world.heal()
    for _ in range(40):
        world.step()
    world.calm, world.faults = False, True
    partition = seed % PARTITIONS
    truth = world.partitions[partition]
    committed = list(truth.committed)
    # As in a checkpoint: without it, a leader that was deposed would call its successor's rows
    # out of range.
    epochs = [epoch for epoch, _ in truth.copies[truth.truth.leader].log.rows]
    start = world.rng.randint(0, len(committed))
    rows: list[int] = []

    def attempt() -> None:
        at = start + len(rows)
        with PartitionFetcher(
            Client(world), "t", partition, at, len(committed),  # type: ignore[arg-type]
            last_epoch=epochs[at - 1] if at else -1,
            fetch_from=fetch_from, client_rack="b",  # type: ignore[arg-type]
        ) as fetcher:  # fmt: skip
            for batch in fetcher:
                assert batch.base_offset == start + len(rows), "skipped or repeated"
                rows.extend(batch.data.column(0).to_pylist())

    patient(attempt)
    assert rows == committed[start:]


@pytest.mark.parametrize("lie", ["empty", "high", "cut", "other", "error"])
def test_rows_that_are_known_to_exist_are_not_waited_for_at_a_follower(lie: str) -> None:
    """A range with an end is never held up by the check that readers without one rely on."""
    world = World(3, liar=2, lies=(lie,))
    world.faults = False
    while world.now_s < 10:
        world.step()
    world.heal()
    while world.now_s < 15:
        world.step()
    for turn in range(8):  # Each chooses another follower, perhaps.
        began_s = world.now_s
        reader = storm_free(world, consumer(world, "follower", follow=False))
        assert reader.is_done(world)
        number = turn % PARTITIONS
        end = len(world.partitions[number].committed)
        with PartitionFetcher(
            Client(world), "t", number, 0, end, fetch_from="follower",  # type: ignore[arg-type]
        ) as fetcher:  # fmt: skip
            assert sum(len(batch) for batch in fetcher) == end > 0
        assert world.now_s - began_s < 3.0


def storm_free(world: World, core: ConsumerCore) -> Reader:
    """All that there is, without an error."""
    reader = Reader()
    world.run(core.open())
    while not core.is_at_end:
        batch = world.run(core.next(1.0))
        if batch is not None:
            reader.take(batch)
    reader.check(world)
    return reader
