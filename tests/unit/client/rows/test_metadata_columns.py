"""Columns of a topic with the names of metadata columns: they go first, everywhere."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import quiverlog
from quiverlog.client.rows.metadata_columns import METADATA_NAMES
from tests.support.client_kinds import CLIENT_KINDS, connect
from tests.support.scripted_broker import ScriptedBroker

OWN = {
    "_topic": (pa.string(), "mine"),
    "_partition": (pa.int64(), 700),
    "_offset": (pa.int64(), 500),
    "_timestamp": (pa.timestamp("us", "UTC"), 60_000_000),
}
"""Types and values that no place of a row has."""


def topic_with(client: Any, own: tuple[str, ...]) -> str:
    schema = pa.schema([("id", pa.int64()), *((name, OWN[name][0]) for name in own)])
    client.create_topic("t", schema)
    row = {"id": pa.array([7]), **{n: pa.array([OWN[n][1]]).cast(OWN[n][0]) for n in own}}
    with client.producer("t") as producer:
        producer.send(pa.table(row, schema=schema))
    return "t"


@pytest.fixture(params=CLIENT_KINDS)
def client(request: pytest.FixtureRequest) -> Iterator[Any]:
    with ScriptedBroker() as broker, connect(request.param, broker.bootstrap) as client:
        yield client


CHOICES = [c for n in range(1, 5) for c in itertools.combinations(METADATA_NAMES, n)]


@pytest.mark.parametrize("own", CHOICES, ids="-".join)
def test_own_columns_are_read_and_places_beside_them(client: Any, own: tuple[str, ...]) -> None:
    topic = topic_with(client, own)
    [row] = client.read(topic, columns=["id", *METADATA_NAMES]).to_arrow().to_pylist()
    for name in own:
        assert pa.scalar(row[name], OWN[name][0]) == pa.scalar(OWN[name][1]).cast(OWN[name][0])
    places = {"_topic": "t", "_partition": 0, "_offset": 0}
    assert {n: row[n] for n in places if n not in own} == {
        n: value for n, value in places.items() if n not in own
    }
    [whole] = client.read(topic).to_arrow().to_pylist()
    assert list(whole) == ["id", *own]


@pytest.mark.parametrize("own", CHOICES, ids="-".join)
def test_a_condition_on_an_own_column_leaves_out_no_row(client: Any, own: tuple[str, ...]) -> None:
    topic = topic_with(client, own)
    for name in own:
        data_type, value = OWN[name]
        wanted = pc.field(name) == pa.scalar(value).cast(data_type)
        assert client.read(topic, where=wanted).to_arrow().num_rows == 1, name
        assert client.read(topic, where=~wanted).to_arrow().num_rows == 0, name
    for name in set(METADATA_NAMES[1:3]) - set(own):
        assert client.read(topic, where=pc.field(name) == 0).to_arrow().num_rows == 1
        assert client.read(topic, where=pc.field(name) == 1).to_arrow().num_rows == 0


@pytest.mark.parametrize("own", CHOICES, ids="-".join)
def test_such_a_topic_is_a_table(own: tuple[str, ...]) -> None:
    with ScriptedBroker() as broker, quiverlog.connect(broker.bootstrap) as client:
        topic_with(client, own)
        database = client.duckdb()
        for name in own:
            value = "epoch_ms(60000)" if name == "_timestamp" else repr(OWN[name][1])
            query = f"select id from t where {name} = {value}"
            assert database.sql(query).fetchall() == [(7,)], name
        database.close()
