"""A bounded read asks once where its rows begin and end, and hands out what one answer brought."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import quiverlog
from quiverlog.batch.header import BatchHeader
from quiverlog.limits import MIB
from quiverlog.wire import messages as m
from tests.support.client_kinds import CLIENT_KINDS, connect
from tests.support.scripted_broker import Answer, ScriptedBroker

SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as broker:
        yield broker


@pytest.fixture(params=CLIENT_KINDS)
def client(request: pytest.FixtureRequest, broker: ScriptedBroker) -> Iterator[Any]:
    with connect(request.param, broker.bootstrap, request_timeout=2.0) as client:
        yield client


def fill(client: Any, ids: pa.Array, batch_rows: int, compression: str = "none") -> None:
    client.create_topic("t", SCHEMA)
    with client.producer("t", batch_rows=batch_rows, compression=compression) as producer:
        producer.send(pa.table([ids], schema=SCHEMA))


def kinds(broker: ScriptedBroker) -> list[str]:
    found = [type(request).__name__.removesuffix("Request") for request in broker.requests]
    broker.requests.clear()
    return [kind for kind in found if kind != "Hello"]


def test_what_is_settled_is_asked_for_once(broker: ScriptedBroker, client: Any) -> None:
    fill(client, pa.array(range(30)), 10)
    broker.requests.clear()
    reading = client.read("t")
    assert kinds(broker) == ["Metadata", "ListOffsets", "ListOffsets", "TopicSchemas"]
    for _ in range(2):
        assert reading.to_arrow()["id"].to_pylist() == list(range(30))
        assert set(kinds(broker)) == {"Fetch"}


def test_rows_that_are_gone_are_missed_within_the_timeout(broker: ScriptedBroker) -> None:
    """An election that was not clean may take rows that were there when the read was planned."""
    with quiverlog.connect(broker.bootstrap, request_timeout=2.0) as client:
        fill(client, pa.array(range(30)), 10)
        reading = client.read("t")
        plan = reading._plan
        reading._plan = replace(plan, options=replace(plan.options, end={0: 32}))
        with pytest.raises(quiverlog.OffsetOutOfRange, match=r"\[30, 32\) are not there any more"):
            reading.to_arrow()


def spoil(request: Any, response: Any, body: bytes) -> tuple[m.Response, bytes]:
    """A bit of the second batch's rows is another one."""
    broken = bytearray(body)
    first = BatchHeader.unpack(broken, 0).total_bytes
    second = BatchHeader.unpack(broken, first)
    if second.base_offset == 10:
        broken[first + second.total_bytes - 70] ^= 1
    return response, bytes(broken)


def test_rows_before_damage_are_handed_out(broker: ScriptedBroker, client: Any) -> None:
    """One answer has brought them, the damage, and rows behind it."""
    fill(client, pa.array(range(30)), 10)
    broker.always(m.FetchRequest, Answer(spoil))
    found: list[int] = []
    with pytest.raises(quiverlog.CorruptBatch, match=r"\[10, 20\)"):
        found += (i for batch in client.read("t") for i in batch["id"].to_pylist())
    assert found == list(range(10))


def test_compressed_rows_are_decoded_as_they_are_used(client: Any) -> None:
    """All batches of an answer at once might be a thousand times its size."""
    rows = MIB // 8
    fill(client, pa.array([7] * (16 * rows)), rows, "zstd")
    before = pa.total_allocated_bytes()
    peak = count = 0
    for batch in client.read("t"):
        count += batch.num_rows
        peak = max(peak, pa.total_allocated_bytes() - before)
        del batch
    assert count == 16 * rows
    assert peak < 4 * MIB
