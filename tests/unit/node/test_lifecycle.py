"""The node as a whole: hello, errors, the full disk, retention, starting and stopping."""

from __future__ import annotations

import errno
import itertools
import os
from pathlib import Path

import pytest

from quiverlog import errors
from quiverlog.batch.schema import serialize_schema
from quiverlog.limits import TIMESTAMP_AHEAD_MS_DEFAULT
from quiverlog.node.node import Node
from quiverlog.node.runtime.effects import ShutdownComplete
from quiverlog.node.runtime.events import DiskSpace, JobDone, RequestReceived, Shutdown, Tick
from quiverlog.storage.metadata.metadata_log import MetadataLog
from quiverlog.types import EARLIEST
from quiverlog.wire import messages as m
from quiverlog.wire.registry import APIS
from tests.support.node import SCHEMA, START_WALL_US, NodeDriver, batch_of


@pytest.fixture
def node(tmp_path: Path) -> NodeDriver:
    return NodeDriver(tmp_path)


# --- connections --------------------------------------------------------------------------------
@pytest.mark.parametrize("cluster_id", ["", "one-of-several"])
def test_hello_returns_the_versions(tmp_path: Path, cluster_id: str) -> None:
    node = NodeDriver(tmp_path, cluster_id=cluster_id)
    response, _ = node.call(m.HelloRequest(client_id="c"), connection=9)
    assert response.error_code == 0
    spoken = {api for api, spec in APIS.items() if cluster_id or not spec.between_brokers}
    spoken.discard(m.Api.AUTHENTICATE)  # This broker has nothing to prove.
    assert {a.api for a in response.apis} == spoken, "brokers meet at the default listener"
    assert response.cluster_id
    assert response.roles == ["broker", "controller"]


def test_nothing_is_answered_before_hello(node: NodeDriver) -> None:
    for spec in APIS.values():
        if spec.request is m.HelloRequest:
            continue
        response, _ = node.call(spec.request(), connection=9)
        assert type(response) is spec.response
        assert response.error_code == errors.NotNegotiated.code
        assert node.closed[-1].connection_id == 9


def test_every_api_answers_an_empty_request(node: NodeDriver) -> None:
    for spec in APIS.values():
        response, _ = node.call(spec.request())
        assert type(response) is spec.response


def test_a_bug_in_a_handler_is_answered_and_the_broker_goes_on(
    node: NodeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = node.create()
    replica = node.node.broker.replicas[topic, 0]

    class Broken:
        def __getattr__(self, name: str) -> object:
            raise RuntimeError("planted")

    log, replica.log = replica.log, Broken()  # type: ignore[assignment]
    response, _ = node.call(node.fetch_request(topic, 0))
    assert response.error_code == errors.QuiverlogError.code
    assert node.metrics.internal_errors == 1
    assert "planted" in str(node.lines[-1].fields["trace"])
    replica.log = log
    assert node.produced(topic, batch_of([1])).base_offset == 0


# --- the disk -----------------------------------------------------------------------------------
def test_a_disk_below_its_reserve_refuses_writes_and_recovers(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path, disk_reserve_bytes=1000)
    topic = node.create()
    node.produced(topic, batch_of([1]))
    node.disk_space(999)
    assert node.metrics.disk_full == 1
    refused = node.call(_produce(topic), bytes(batch_of([1])))[0]
    assert refused.error_code == errors.DiskFull.code
    new = m.NewTopic("u", serialize_schema(SCHEMA))
    response, _ = node.call(m.CreateTopicsRequest(topics=[new]))
    assert response.error_code == errors.DiskFull.code
    assert len(node.headers(topic)) == 1, "reading goes on"
    node.call(m.DeleteRecordsRequest(partitions=[m.DeleteRecordsPartition(topic, 0, 1)]))
    node.disk_space(1000)
    assert node.metrics.disk_full == 0
    assert node.produced(topic, batch_of([2])).base_offset == 1


def _produce(topic: bytes) -> m.ProduceRequest:
    entry = m.ProducePartition(topic, 0, -1, len(batch_of([1])))
    return m.ProduceRequest(partitions=[entry])


@pytest.mark.parametrize("error", [errors.DiskFull(), errors.StorageFault("planted"), OSError(5)])
def test_a_failed_write_stores_nothing_and_forgets_its_sequences(
    node: NodeDriver, error: Exception
) -> None:
    topic = node.create()
    node.produced(topic, batch_of([1], producer=(5, 0, 0)))
    replica = node.node.broker.replicas[topic, 0]
    log = replica.log

    class NoRoom:
        def append(self, *arguments: object) -> int:
            raise error

        def __getattr__(self, name: str) -> object:
            return getattr(log, name)

    replica.log = NoRoom()  # type: ignore[assignment]
    bodies = [bytes(batch_of([2, 3], producer=(5, 0, 1))), bytes(batch_of([4], producer=(5, 0, 3)))]
    requests: list[tuple[m.Request, bytes]] = []
    for body in (*bodies, bodies[0]):
        entry = m.ProducePartition(topic, 0, -1, len(body))
        requests.append((m.ProduceRequest(partitions=[entry]), body))
    node.request_many(requests)
    full = isinstance(error, errors.DiskFull)
    expected = errors.DiskFull if full else errors.StorageFault
    for request, _ in requests:
        answer = node.answer(request.correlation_id)
        assert answer is not None
        assert answer[0].partitions[0].error_code == expected.code
    replica.log = log
    if full:
        assert node.metrics.disk_full == 1
        node.disk_space(2**40)
        for offset, body in zip((1, 3), bodies, strict=True):
            result = node.produced(topic, body)
            assert (result.base_offset, result.duplicate) == (offset, False)
    else:
        answer = node.answer(node.produce(topic, bodies[0]))
        assert answer is not None
        assert answer[0].partitions[0].error_code == errors.StorageFault.code


# --- retention ----------------------------------------------------------------------------------
def test_retention_by_time_holds_on_an_idle_topic(node: NodeDriver) -> None:
    topic = node.create(retention_ms="60000")
    node.produced(topic, batch_of([1] * 10))
    node.advance(30_000)
    node.produced(topic, batch_of([2] * 10, at_us=node.wall_us))
    node.advance(29_000)
    assert node.offset_of(topic, EARLIEST).offset == 0
    node.advance(15_000)
    assert node.offset_of(topic, EARLIEST).offset == 10, "a row younger than its bound stays"
    node.advance(30_000)
    assert node.offset_of(topic, EARLIEST).offset == 20


def test_retention_wakes_fetches_that_wait_for_what_is_gone(node: NodeDriver) -> None:
    topic = node.create(retention_ms="1000")
    node.produced(topic, batch_of([1] * 10))
    request = node.fetch_request(topic, 0, max_wait_ms=100_000, min_bytes=10**6)
    parked = node.request(request)
    node.advance(12_000)
    answer = node.answer(parked)
    assert answer is not None
    assert answer[0].partitions[0].error_code == errors.OffsetOutOfRange.code


def test_retention_looks_at_every_partition_in_its_period(node: NodeDriver) -> None:
    topic = node.create(partitions=600, retention_ms="1000", durability="memory")
    for partition in range(600):
        node.produced(topic, batch_of([1]), partition=partition)
    node.advance(1_500 + 2 * 10_000)
    starts = [r.log.log_start_offset for r in node.node.broker.replicas.values()]
    assert starts == [1] * 600


def test_silent_producers_are_dropped(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path, producer_expiry_ms=60_000)
    topic = node.create()
    node.produced(topic, batch_of([1], producer=(5, 0, 0)))
    node.advance(50_000)
    node.produced(topic, batch_of([1], producer=(5, 0, 1)))
    node.advance(75_000)
    answer = node.answer(node.produce(topic, batch_of([1], producer=(5, 0, 2))))
    assert answer is not None
    assert answer[0].partitions[0].error_code == errors.UnknownProducerId.code


def test_rows_of_the_far_future_are_refused(node: NodeDriver) -> None:
    topic = node.create()
    ahead = START_WALL_US + (TIMESTAMP_AHEAD_MS_DEFAULT + 60_000) * 1000
    answer = node.answer(node.produce(topic, batch_of([1], at_us=ahead)))
    assert answer is not None
    assert answer[0].partitions[0].error_code == errors.InvalidTimestamp.code


# --- deadlines ----------------------------------------------------------------------------------
def test_an_idle_node_wants_few_ticks(node: NodeDriver) -> None:
    node.create(partitions=10)
    ticks = 0
    end = node.mono_us + 60_000_000
    while (deadline := node.node.next_deadline_us()) is not None and deadline <= end:
        node.advance((deadline - node.mono_us) // 1000 + 1)
        ticks += 1
    assert 4 <= ticks <= 7


def test_an_early_tick_does_nothing(node: NodeDriver) -> None:
    topic = node.create()
    node.request(node.fetch_request(topic, 0, max_wait_ms=500))
    assert node.send(Tick()) == []


# --- stopping -----------------------------------------------------------------------------------
def test_a_graceful_stop_answers_flushes_and_marks(node: NodeDriver) -> None:
    flushed, memory = node.create("f"), node.create("m", durability="memory")
    node.produced(memory, batch_of([1]))
    waiting = node.produce(flushed, batch_of([1]))
    parked = node.request(node.fetch_request(memory, 1, max_wait_ms=60_000))
    node.send(Shutdown())
    assert node.answer(parked) is not None, "a long poll is no reason to stay"
    assert node.answer(waiting) is None
    late, _ = node.call(_produce(flushed), bytes(batch_of([1])))
    assert late.error_code == errors.BrokerShuttingDown.code
    while node.syncs:
        assert not node.shut_down
        node.flush()
    assert node.shut_down
    answer = node.answer(waiting)
    assert answer is not None
    assert answer[0].partitions[0].error_code == 0
    node.start()
    assert node.metrics.unclean_starts == 0
    assert node.metrics.recovery_partitions_scanned == 0
    assert len(node.headers(flushed)) == len(node.headers(memory)) == 1


@pytest.mark.parametrize("postponed", [False, True])
def test_no_flush_begins_while_logs_are_closed(tmp_path: Path, postponed: bool) -> None:
    """Closing thousands takes longer than the flush in the background waits."""
    node = NodeDriver(tmp_path)
    topic = node.create()
    if postponed:
        node.produce(topic, batch_of([1]))
    else:
        node.produced(topic, batch_of([1]))
    node.hold_jobs = True
    node.send(Shutdown())
    if postponed:
        node.flush(OSError(errno.EMFILE, "no descriptor"))
    closing = list(node.jobs)
    assert [start.job.kind for start in closing] == ["close log"]
    node.advance(120_000)
    assert node.syncs == []
    node.hold_jobs = False
    node.run_until_idle()
    assert node.shut_down
    assert not any(line.event == "log not closed" for line in node.lines)
    assert (tmp_path / "data-1" / "clean-shutdown").exists()


def test_logs_that_were_never_written_cost_a_stop_no_fsync_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten thousand of them took 14 seconds of the 30 that a stop has."""
    synced: list[int] = []
    node = NodeDriver(tmp_path)
    topic = node.create(partitions=200)
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, synced.append)
    node.stop()
    assert len(synced) < 20
    node.start()
    node.crash()  # Every partition gets a new leader epoch, and is scanned.
    synced.clear()
    node.stop()
    assert len(synced) < 20
    node.start()
    assert node.lines[-1].fields["clean"] is True
    assert node.produced(topic, batch_of([1]), partition=199).base_offset == 0
    epochs = [r.state.leader_epoch for r in node.node.broker.replicas.values()]
    assert len(set(epochs)) == 1
    assert epochs[0] == 1


def test_an_idle_broker_stops_at_once(node: NodeDriver) -> None:
    effects = node.send(Shutdown())
    assert isinstance(effects[-1], ShutdownComplete)


def test_a_directory_that_was_let_go_at_a_stop_is_not_lost(node: NodeDriver) -> None:
    """The measurement of free room came after the stop had given up the lock, and cried wolf."""
    node.create()
    node.hold_jobs = True
    node.send(Shutdown())
    for _ in range(10):
        if node.shut_down:
            break
        job = node.jobs.pop(0).job
        result = job.run()
        node.send(DiskSpace(0))  # the job ran in its thread; the loop has not taken its end yet
        node.send(JobDone(job, result, None))
    assert node.shut_down
    node.send(DiskSpace(0))
    assert [line.event for line in node.lines if line.level == "error"] == []
    assert node.metrics.disk_full == 0


def test_a_stop_with_a_fault_is_not_clean(node: NodeDriver) -> None:
    topic = node.create()
    node.produce(topic, batch_of([1]))
    node.flush(OSError(5, "Input/output error"))
    node.stop()
    node.start()
    assert node.metrics.unclean_starts == 1
    assert node.offset_of(topic, -1).error_code == 0


# --- starting -----------------------------------------------------------------------------------
def test_the_first_start_is_clean(node: NodeDriver) -> None:
    assert node.metrics.unclean_starts == 0
    node.crash()
    assert node.metrics.unclean_starts == 1


def test_cluster_id_stays_and_a_foreign_directory_is_refused(node: NodeDriver) -> None:
    cluster_id = node.node.broker.directory.cluster_id
    node.restart()
    assert node.node.broker.directory.cluster_id == cluster_id
    with pytest.raises(errors.ForeignDataDirectory):
        node.restart(cluster_id="another")


def test_two_brokers_do_not_share_a_directory(node: NodeDriver) -> None:
    with pytest.raises(errors.DataDirectoryInUse):
        Node(node.config, node.disk, entropy=bytes, metrics=node.metrics).start(node.now)


def test_leader_epochs_grow_with_every_crash_and_stay_with_every_stop(node: NodeDriver) -> None:
    topic = node.create()
    epochs = itertools.count(0)
    for _ in range(3):
        epoch = next(epochs)
        assert node.produced(topic, batch_of([epoch])).leader_epoch == epoch
        node.restart()
        assert node.produced(topic, batch_of([epoch])).leader_epoch == epoch
        node.crash()
    assert [h.leader_epoch for h in node.headers(topic)] == [0, 0, 1, 1, 2, 2]


def test_a_compacted_metadata_log_has_the_same_state(
    node: NodeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = node.create(partitions=2)
    node.call(m.AlterTopicRequest(name="t", set_configs={"retention.ms": "60000"}))
    node.call(m.InitProducerIdRequest())
    node.stop()
    monkeypatch.setattr(MetadataLog, "wants_compaction", True)
    node.start()
    monkeypatch.undo()
    before = node.node.broker.metadata.image.snapshot_records()
    node.restart()
    after = node.node.broker.metadata.image.snapshot_records()
    # Every start begins a term and registers the broker once more: the rest stays.
    assert after[0].version == before[0].version + 2  # type: ignore[union-attr]
    assert after[2:] == before[2:]
    assert node.produced(topic, batch_of([1])).base_offset == 0


def test_bodies_are_not_needed_after_handle(node: NodeDriver) -> None:
    topic = node.create()
    body = bytearray(batch_of([1, 2, 3]))
    expected = bytes(body)[64:]
    request = _produce(topic)
    request.partitions[0].batch_bytes = len(body)
    request.correlation_id = 10_000
    node.send(RequestReceived(1, request, memoryview(body)))
    body[:] = b"\xff" * len(body)
    node.flush()
    _, stored = node.fetched(topic)
    assert stored[64:] == expected


def test_a_full_disk_does_not_keep_a_broker_from_stopping(
    node: NodeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.create()

    def full(self: object, **options: object) -> None:
        raise errors.DiskFull("no room for the clean mark.")

    monkeypatch.setattr(type(node.node.broker.directory), "close", full)
    effects = node.send(Shutdown())
    assert isinstance(effects[-1], ShutdownComplete)
