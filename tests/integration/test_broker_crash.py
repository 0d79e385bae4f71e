"""kill -9 during produce: what was acknowledged is there exactly once, in order, CRCs good.

Every producer is idempotent and pipelines; after a kill it sends again, under the same sequence
numbers, what was not acknowledged: rows whose acknowledgement was lost must not appear twice.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Iterator

import pytest

from quiverlog.errors import QuiverlogError
from quiverlog.wire import messages as m
from tests.support.broker import BrokerProcess
from tests.support.rawclient import RawClient, make_batch

pytestmark = pytest.mark.process

KILLS = 4
PIPELINE = 5
ROWS = 7


class Producer:
    """One idempotent producer of one partition; survives the broker's deaths."""

    def __init__(self, broker: BrokerProcess, topic_id: bytes, partition: int) -> None:
        self.broker = broker
        self.topic_id = topic_id
        self.partition = partition
        self.acknowledged: dict[int, int] = {}
        """Base sequence -> base offset, as acknowledged first."""
        self.duplicates = 0
        self.error: BaseException | None = None
        self._pending: deque[int] = deque()
        self._next = 0
        with RawClient(broker.address) as client:
            self._producer = client.init_producer()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    @property
    def sent(self) -> int:
        """Rows that were ever sent."""
        return self._next

    def __enter__(self) -> Producer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            while not self._stop.is_set() or self._pending:
                try:
                    with RawClient(self.broker.address) as client:
                        self._converse(client)
                except ConnectionError:
                    time.sleep(0.005)  # the broker is dead: it comes back on the same port
        except BaseException as error:
            self.error = error

    def _converse(self, client: RawClient) -> None:
        """Send again what is pending, then new batches, until stopped or cut off."""
        on_wire = {self._send(client, sequence): sequence for sequence in self._pending}
        while on_wire or not self._stop.is_set():
            while len(on_wire) < PIPELINE and not self._stop.is_set():
                # Counted before it is sent: the connection may break with the bytes on their way.
                sequence, self._next = self._next, self._next + ROWS
                self._pending.append(sequence)
                on_wire[self._send(client, sequence)] = sequence
            correlation_id, response, _ = client.receive()
            sequence = on_wire.pop(correlation_id)
            assert isinstance(response, m.ProduceResponse)
            assert not response.error_code, response
            result = response.partitions[0]
            assert not result.error_code, result
            self.duplicates += result.duplicate
            assert sequence == self._pending.popleft(), "acknowledged out of order"
            self.acknowledged[sequence] = result.base_offset

    def _send(self, client: RawClient, sequence: int) -> int:
        producer_id, producer_epoch = self._producer
        batch = make_batch(
            sequence,
            ROWS,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=sequence,
        )
        return client.send_produce(self.topic_id, batch, self.partition)


def check(broker: BrokerProcess, producer: Producer) -> None:
    """All that was acknowledged is at its offset; nothing twice, nothing missing in between."""
    with RawClient(broker.address) as client:
        stored = list(client.read_all(producer.topic_id, producer.partition))
    next_id = 0
    found = {}
    for batch in stored:
        assert batch.ids == list(range(next_id, next_id + ROWS))
        found[next_id] = batch.base_offset
        assert batch.base_offset == next_id, "offsets count rows"
        next_id += ROWS
    for sequence, base_offset in producer.acknowledged.items():
        assert found[sequence] == base_offset
    assert next_id <= producer.sent


@pytest.fixture
def broker() -> Iterator[BrokerProcess]:
    # Small segments: kills fall into rolls, indexes and checkpoints as well.
    with BrokerProcess(config={"topic.defaults.segment.bytes": 1 << 16}) as process:
        yield process


@pytest.mark.timeout(300)
def test_kill_9_again_and_again(broker: BrokerProcess) -> None:
    rng = random.Random()
    with RawClient(broker.address) as client:
        topic_id = client.create_topic("crash", partitions=2)
    slowest_start = 0.0
    with Producer(broker, topic_id, 0) as first, Producer(broker, topic_id, 1) as second:
        for kill in range(KILLS):
            before = len(first.acknowledged) + len(second.acknowledged)
            time.sleep(rng.uniform(0.0, 0.25))
            broker.kill()
            broker.start()
            slowest_start = max(slowest_start, broker.start_seconds)
            deadline = time.monotonic() + 20
            while len(first.acknowledged) + len(second.acknowledged) <= before:
                assert time.monotonic() < deadline, f"no progress after kill {kill + 1}"
                assert first.error is None, first.error
                assert second.error is None, second.error
                time.sleep(0.005)
    check(broker, first)
    check(broker, second)
    duplicates = first.duplicates + second.duplicates
    print(f"{first.sent + second.sent} rows, {duplicates} retries of stored batches,", end=" ")
    print(f"slowest start {slowest_start:.2f} s")
    assert broker.restart().running
    check(broker, first)


def test_kill_9_with_memory_durability_loses_nothing_of_the_process(broker: BrokerProcess) -> None:
    """`memory` survives the process (the page cache is the kernel's), not the machine."""
    with RawClient(broker.address) as client:
        topic_id = client.create_topic("memory", durability="memory")
        for number in range(200):
            client.produce(topic_id, make_batch(number * 10))
    broker.restart(kill=True)
    with RawClient(broker.address) as client:
        ids = [i for stored in client.read_all(topic_id) for i in stored.ids]
    assert ids == list(range(2_000))


def test_deleted_topics_stay_deleted_after_a_kill(broker: BrokerProcess) -> None:
    with RawClient(broker.address) as client:
        old = client.create_topic("again")
        client.produce(old, make_batch(0))
        client.ask(m.DeleteTopicsRequest(names=["again"]))
        new = client.create_topic("again")
        client.produce(new, make_batch(1000))
    broker.restart(kill=True)
    with RawClient(broker.address) as client:
        assert [stored.ids[0] for stored in client.read_all(new)] == [1000]
        with pytest.raises(QuiverlogError, match="UNKNOWN_TOPIC_ID"):
            client.list_offset(old)
