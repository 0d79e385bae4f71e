"""The client when brokers, networks and programs misbehave; both clients, a scripted broker."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

import quiverlog
from quiverlog.batch.codec import encode_batch, split_batches
from quiverlog.broker_keys import CONFIG_KEYS
from quiverlog.client.base.arguments import bootstrap_addresses
from quiverlog.client.cluster import routing
from quiverlog.wire import messages as m
from tests.support.client_kinds import CLIENT_KINDS, connect
from tests.support.client_scenarios import SCHEMA, read, rows
from tests.support.scripted_broker import Answer, Door, ScriptedBroker


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as broker:
        yield broker


@pytest.fixture(params=CLIENT_KINDS)
def client(request: pytest.FixtureRequest, broker: ScriptedBroker) -> Iterator[Any]:
    with connect(request.param, broker.bootstrap, request_timeout=2.0) as client:
        yield client


# --- connections ----------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", CLIENT_KINDS)
def test_a_refused_connection(kind: str) -> None:
    with pytest.raises(quiverlog.ConnectionFailed, match=r"127\.0\.0\.1:1: Connection refused"):
        connect(kind, ["127.0.0.1:1"])


@pytest.mark.parametrize("kind", CLIENT_KINDS)
def test_something_else_listens(kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(quiverlog.QuiverlogError, match=address) as caught:
            connect(kind, address, connect_timeout=0.2)
        assert isinstance(caught.value, (quiverlog.ConnectionFailed, quiverlog.RequestTimedOut))


def test_connections_closed_while_idle_are_replaced(broker: ScriptedBroker, client: Any) -> None:
    for _ in range(3):
        assert client.list_topics() == []
        broker.drop_connections()
    assert client.list_topics() == []


def test_what_is_sent_once_only_never_meets_a_dead_connection(broker: ScriptedBroker) -> None:
    with quiverlog.connect(broker.bootstrap) as client:
        client.create_topic("t", SCHEMA)
        batch = encode_batch(
            pa.RecordBatch.from_pylist(rows(3), schema=SCHEMA), schema_id=1, timestamp_us=1
        )
        for offset in (0, 3, 6):
            broker.drop_connections()
            time.sleep(0.02)  # the end must have arrived: only it shows that
            assert client.raw_produce("t", {0: [batch]})[0].base_offset == offset


def test_a_silent_broker_is_not_waited_for_for_ever(broker: ScriptedBroker, client: Any) -> None:
    broker.fault(m.MetadataRequest, "hang")
    started = time.monotonic()
    with pytest.raises(quiverlog.RequestTimedOut, match=re.escape(broker.bootstrap)):
        client.list_topics()
    assert time.monotonic() - started < 10
    assert client.list_topics() == []


def test_a_lost_answer_is_asked_for_again(broker: ScriptedBroker, client: Any) -> None:
    broker.fault(m.MetadataRequest, "drop_reply", "drop", quiverlog.ThrottledBroker("busy"))
    assert client.list_topics() == []


def test_a_lost_answer_to_a_creation_is_no_error(broker: ScriptedBroker, client: Any) -> None:
    broker.fault(m.CreateTopicsRequest, "drop_reply")
    assert client.create_topic("t", SCHEMA).name == "t"
    broker.fault(m.CreateTopicsRequest, "drop_reply")
    words = pa.schema([("word", pa.dictionary(pa.int32(), pa.string()))])  # stored as text
    assert client.create_topic("words", words).name == "words"
    broker.fault(m.DeleteTopicsRequest, "drop_reply")
    client.delete_topic("t")
    client.create_topic("t", SCHEMA)
    broker.fault(m.CreateTopicsRequest, "drop")
    with pytest.raises(quiverlog.TopicExists):  # of another shape: not made by us
        client.create_topic("t", "raw")


def test_a_closed_client_raises_client_closed(broker: ScriptedBroker) -> None:
    client = quiverlog.connect(broker.bootstrap)
    client.create_topic("t", SCHEMA)
    producer = client.producer("t", linger=60)
    future = producer.send(rows(1))
    client.close()
    with pytest.raises(quiverlog.ClientClosed):
        client.list_topics()
    with pytest.raises(quiverlog.ClientClosed):
        future.result()
    with pytest.raises(quiverlog.ClientClosed):
        producer.send(rows(1))


# --- producing ------------------------------------------------------------------------------------
FAULTS = (
    ["drop_reply"],
    ["drop"],
    ["drop_reply", "drop_reply", "drop"],
    [quiverlog.DiskFull("full"), "drop_reply"],
    [quiverlog.NotLeader("moved")],
    [quiverlog.ThrottledBroker("busy")] * 3,
)


@pytest.mark.parametrize("faults", FAULTS, ids=lambda f: "+".join(str(x)[:10] for x in f))
def test_whatever_is_repeated_is_stored_once(
    broker: ScriptedBroker, client: Any, faults: list[Any]
) -> None:
    client.create_topic("t", SCHEMA)
    broker.fault(m.ProduceRequest, *faults)
    with client.producer("t", batch_rows=5, linger=0) as producer:
        for i in range(10):
            producer.send(rows(5, first=5 * i))
    assert read(client, "t") == rows(50)


def test_a_refused_batch_does_not_stop_the_next(broker: ScriptedBroker, client: Any) -> None:
    client.create_topic("t", SCHEMA)
    broker.fault(m.ProduceRequest, quiverlog.CorruptBatch("damaged"))
    with client.producer("t", linger=0) as producer:
        futures = [producer.send(rows(1, first=i)) for i in range(8)]
        errors = [future.exception() for future in futures]
    failed = [e for e in errors if e is not None]
    assert {type(e) for e in failed} == {quiverlog.CorruptBatch}
    kept = [i for i, e in enumerate(errors) if e is None]
    assert kept, "the refusal took everything with it"
    assert [row["id"] for row in read(client, "t")] == kept


def test_a_delivery_ends_when_its_time_is_up(broker: ScriptedBroker, client: Any) -> None:
    client.create_topic("t", SCHEMA)
    broker.fault(m.ProduceRequest, *[quiverlog.DiskFull("full")] * 500)
    producer = client.producer("t", delivery_timeout=0.3)
    with pytest.raises(quiverlog.DeliveryTimedOut, match="full"):
        producer.send(rows(1)).result(timeout=10)
    producer.close()


def test_the_buffer_is_bounded(broker: ScriptedBroker, client: Any) -> None:
    client.create_topic("t", SCHEMA)
    broker.fault(m.ProduceRequest, *[quiverlog.DiskFull("full")] * 500)
    producer = client.producer("t", buffer_bytes=10_000, delivery_timeout=0.5, batch_rows=100)
    started = time.monotonic()
    # No room for as long as rows may wait: whichever of the two ends first, room or patience.
    with contextlib.suppress(quiverlog.BufferExhausted):
        for _ in range(8):
            producer.send(rows(100))
            assert producer.buffered_bytes < 10_000 + 10_000, "room for one more at most"
    assert time.monotonic() - started > 0.3, "send did not wait for room"
    with pytest.raises(quiverlog.DeliveryTimedOut):
        producer.flush()
    producer.close()


def test_rows_too_large_for_one_batch_are_split_and_a_row_is_refused(
    broker: ScriptedBroker, client: Any
) -> None:
    client.create_topic("t", "raw", config={"max.message.bytes": 4_096})
    with client.producer("t") as producer:
        producer.send([{"value": bytes(1_000)} for _ in range(20)])
        too_large = producer.send([{"value": bytes(10_000)}])
        with pytest.raises(quiverlog.BatchTooLarge, match="4096"):
            too_large.result()
    assert sum(len(batch) for batch in client.consumer("t")) == 20
    stored = client.raw_fetch("t", {0: 0})[0].body
    assert all(len(view) <= 4_096 for _, view in split_batches(stored))


def test_a_topic_made_anew_is_not_taken_for_the_old(broker: ScriptedBroker, client: Any) -> None:
    client.create_topic("t", SCHEMA)
    with client.producer("t") as producer, client.consumer("t", follow=True) as consumer:
        producer.send(rows(1)).result()
        assert consumer.poll(timeout=5) is not None
        client.delete_topic("t")
        client.create_topic("t", SCHEMA)
        with pytest.raises(quiverlog.UnknownTopicId):
            producer.send(rows(1)).result()
        with pytest.raises(quiverlog.UnknownTopicId):
            consumer.poll(timeout=5)


# --- consuming ------------------------------------------------------------------------------------
@pytest.mark.parametrize("fault", ["drop", "drop_reply", quiverlog.NotLeader("moved")], ids=str)
def test_a_reader_survives(broker: ScriptedBroker, client: Any, fault: Any) -> None:
    client.create_topic("t", SCHEMA, partitions=2)
    with client.producer("t", batch_rows=5) as producer:
        producer.send(rows(40))
    broker.fault(m.FetchRequest, fault, fault)
    assert sorted(row["id"] for row in read(client, "t")) == [*range(40)]


def test_the_next_fetch_is_under_way_before_rows_are_handed_out(
    broker: ScriptedBroker, client: Any
) -> None:
    client.create_topic("t", SCHEMA)
    with client.producer("t", batch_rows=1_000, batch_bytes=1 << 20) as producer:
        producer.send(rows(200_000))
    iterator = iter(client.consumer("t", fetch_bytes=1 << 20))
    next(iterator)
    deadline = time.monotonic() + 10
    while len(broker.seen(m.FetchRequest)) < 2:
        assert time.monotonic() < deadline, "no second fetch while the first is being used"
        time.sleep(0.005)
    iterator.close()


# --- several brokers ------------------------------------------------------------------------------
@pytest.fixture
def pair(broker: ScriptedBroker) -> tuple[ScriptedBroker, Door]:
    """Two brokers of one cluster: partition n is led by broker n modulo 2."""
    second = broker.door(1)
    broker.leader_of = lambda partition: partition % 2
    return broker, second


def test_requests_go_to_the_leaders(pair: tuple[ScriptedBroker, Door], client: Any) -> None:
    client.create_topic("t", SCHEMA, partitions=4)
    with client.producer("t", batch_rows=10) as producer:
        producer.send(rows(120))
    assert sorted(row["id"] for row in read(client, "t")) == [*range(120)]
    assert set(client.list_offsets("t").values()) == {30}
    for broker in pair:
        for kind in (m.ProduceRequest, m.FetchRequest, m.ListOffsetsRequest):
            asked = [p.partition for r in broker.seen(kind) for p in r.partitions]
            assert asked, f"{kind.__name__} never came to broker {broker.node_id}"
            assert {p % 2 for p in asked} == {broker.node_id}


def test_a_broker_that_hangs_is_not_the_first_choice_again(
    pair: tuple[ScriptedBroker, Door], client: Any
) -> None:
    assert client.list_topics() == []
    pair[0].fault(m.MetadataRequest, "hang")
    assert client.list_topics() == [], "the other one is asked in time"
    first = len(pair[0].seen(m.MetadataRequest))
    assert client.list_topics() == []
    assert len(pair[0].seen(m.MetadataRequest)) == first


def test_a_moved_leader_is_found(pair: tuple[ScriptedBroker, Door], client: Any) -> None:
    client.create_topic("t", SCHEMA, partitions=1)
    with client.producer("t") as producer, client.consumer("t", follow=True) as consumer:
        producer.send(rows(1)).result()
        assert consumer.poll(timeout=5) is not None
        pair[0].leader_of = lambda _partition: 1
        pair[0].fault(m.ProduceRequest, quiverlog.NotLeader("moved"))
        pair[0].fault(m.FetchRequest, *[quiverlog.NotLeader("moved")] * 2)
        producer.send(rows(1, first=1)).result()
        batch = consumer.poll(timeout=10)
        assert batch is not None
        assert batch.to_pylist() == rows(1, first=1)
    assert pair[1].seen(m.ProduceRequest)


def test_partitions_take_turns_when_replies_are_small(broker: ScriptedBroker, client: Any) -> None:
    client.create_topic("t", "raw", partitions=3)
    with client.producer("t", batch_rows=1) as producer:
        for partition in range(3):
            producer.send([{"value": bytes(700_000)}] * 6, partition=partition)
    order = [b.partition for b in client.consumer("t", fetch_bytes=1 << 20)]
    assert len(order) == 18
    for third in range(3):
        assert set(order[6 * third : 6 * third + 6]) == {0, 1, 2}, order


# --- routing --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("h:1", [("h", 1)]),
        ("a:1, b:2,", [("a", 1), ("b", 2)]),
        ("host", [("host", 9292)]),
        ("[::1]:5", [("::1", 5)]),
        ("::1", [("::1", 9292)]),
        (["a:1", "a:1"], [("a", 1)]),
    ],
)
def test_addresses(text: Any, addresses: list[tuple[str, int]]) -> None:
    assert list(bootstrap_addresses(text)) == addresses


@pytest.mark.parametrize("text", ["", [], "h:", "h:x", "h:0", "h:70000", ":5", "http://h:5"])
def test_bad_addresses(text: Any) -> None:
    with pytest.raises(quiverlog.InvalidArgument):
        bootstrap_addresses(text)


def test_the_pause_grows_is_bounded_and_never_fixed() -> None:
    ceilings = [routing.backoff_s(n, 0.999999) for n in range(12)]
    assert ceilings == sorted(ceilings)
    assert 0.9 < ceilings[-1] <= 1.0
    assert routing.backoff_s(5, 0.0) == 0.0


def test_pauses_are_short_while_another_leader_may_be_elected() -> None:
    elsewhere = [routing.pause_s(quiverlog.errors.NotLeader(), n, 0.999) for n in range(50)]
    assert max(elsewhere[:40]) < 0.25
    assert 4 < sum(elsewhere[:40]) / 2 < 6, "on average; an election takes half of it"
    assert elsewhere[40] > 0.9
    assert routing.pause_s(quiverlog.errors.DiskFull(), 20, 0.999) > 0.9
    assert routing.pause_s(quiverlog.errors.NotLeader(), 0, 0.999) < 0.02


# --- the package ---------------------------------------------------------------------------------
def test_the_import_is_cheap() -> None:
    """No pyarrow, no sockets, no asyncio: the command line and Spark's discovery pay for it."""
    code = "import sys, quiverlog; print(' '.join(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"pyarrow", "asyncio", "socket", "msgspec"} & set(loaded)


def test_the_version_is_the_packages() -> None:
    from importlib.metadata import version

    assert quiverlog.__version__ == version("quiverlog")


@pytest.mark.parametrize("kind", CLIENT_KINDS)
def test_batches_of_many_partitions_fit_the_smallest_frame_of_a_broker(kind: str) -> None:
    """Sixteen batches that fit alone were put into one request that did not, and all failed."""
    smallest = CONFIG_KEYS["frame.bytes.max"].minimum
    partitions = 16
    with ScriptedBroker(frame_bytes_max=smallest) as broker, connect(kind, broker.bootstrap) as c:
        c.create_topic("wide", "raw", partitions=partitions)
        with c.producer("wide", linger=60.0, compression="none") as producer:
            for partition in range(partitions):
                producer.send([{"value": bytes(900_000)}], partition=partition)
            producer.flush()
        assert c.list_offsets("wide") == dict.fromkeys(range(partitions), 1)


def test_rows_that_come_while_a_consumer_opens_at_the_end_are_not_out_of_range(
    broker: ScriptedBroker, client: Any
) -> None:
    """The end is asked for first: a start that is asked for later may lie beyond it."""

    def one_more(request: Any, response: Any, body: bytes) -> tuple[m.Response, bytes]:
        response.partitions[0].offset += 1
        return response, body

    client.create_topic("t", SCHEMA)
    for start in ("latest", datetime(2020, 1, 1, tzinfo=UTC), {0: "latest"}):
        broker.fault(m.ListOffsetsRequest, lambda request: None, Answer(one_more))
        consumer = client.consumer("t", start=start)
        assert consumer.poll(timeout=1) is None
        assert consumer.positions == {0: 0}
        consumer.close()


@pytest.mark.parametrize("kind", CLIENT_KINDS)
def test_a_row_that_raises_anything_fails_alone(broker: ScriptedBroker, kind: str) -> None:
    """The row's neighbours were lost with it: no batch, no error, and `result` waited for ever."""

    class Lazy(dict[str, Any]):
        def __getitem__(self, name: str) -> Any:
            raise RuntimeError("not today")

        def get(self, name: str, default: Any = None) -> Any:
            raise RuntimeError("not today")

    with connect(kind, broker.bootstrap) as client:
        client.create_topic("t", SCHEMA)
        with client.producer("t", linger=0.05) as producer:
            futures = [producer.send(r) for r in (rows(1)[0], Lazy(rows(1)[0]))]
            assert futures[0].result(timeout=30)[0].rows == 1
            error = futures[1].exception(timeout=30)
        assert isinstance(error, quiverlog.SchemaMismatch)
        assert "not today" in str(error)
