"""What makes a client pleasant: schemas as text, addresses of the environment, `next`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import quiverlog
from quiverlog.addresses import BOOTSTRAP_VARIABLE
from quiverlog.client.base.arguments import bootstrap_addresses
from tests.support.client_kinds import CLIENT_KINDS, connect
from tests.support.client_scenarios import SCHEMA, rows
from tests.support.scripted_broker import ScriptedBroker


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as broker:
        yield broker


@pytest.fixture(params=CLIENT_KINDS)
def client(request: pytest.FixtureRequest, broker: ScriptedBroker) -> Iterator[Any]:
    with connect(request.param, broker.bootstrap) as client:
        yield client


# --- schemas as text ------------------------------------------------------------------------------
def test_a_schema_may_be_text_wherever_a_schema_is_taken(client: Any) -> None:
    client.create_topic("t", "id long not null, name string", key="id")
    found = client.describe_topic("t").schema
    assert found == pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
    client.alter_topic("t", schema="id long not null, name string, delay double")
    assert client.describe_topic("t").schema.field("delay").type == pa.float64()
    client.create_topic("opaque", "raw")
    assert client.describe_topic("opaque").schema == quiverlog.RAW_SCHEMA


def test_text_that_is_no_schema_is_refused_with_the_place(client: Any) -> None:
    with pytest.raises(quiverlog.InvalidArgument, match=r"expected a type .* at character 4"):
        client.create_topic("t", "id lung")
    with pytest.raises(quiverlog.InvalidArgument, match=r"give a pyarrow\.Schema, text like"):
        client.create_topic("t", 5)
    assert client.list_topics() == []


# --- where the brokers are ------------------------------------------------------------------------
@pytest.mark.parametrize("kind", CLIENT_KINDS)
def test_the_environment_has_the_addresses_of_brokers(
    kind: str, broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(BOOTSTRAP_VARIABLE, broker.bootstrap)
    with connect(kind, None) as client:
        assert client.list_topics() == []


def test_what_is_given_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BOOTSTRAP_VARIABLE, "env:1")
    assert bootstrap_addresses(None) == (("env", 1),)
    assert bootstrap_addresses("given:2") == (("given", 2),)
    monkeypatch.setenv(BOOTSTRAP_VARIABLE, "")
    assert bootstrap_addresses(None) == (("127.0.0.1", 9292),)
    monkeypatch.setenv(BOOTSTRAP_VARIABLE, "a:b")
    with pytest.raises(quiverlog.InvalidArgument, match=f"{BOOTSTRAP_VARIABLE} in the environment"):
        bootstrap_addresses(None)


# --- durability -----------------------------------------------------------------------------------
@pytest.mark.parametrize("weaker", ["memory", quiverlog.Durability.MEMORY])
def test_a_weaker_durability_than_the_topic_s_is_refused_however_it_is_written(
    client: Any, weaker: Any
) -> None:
    """MEMORY has the number 0, which must not be taken for None."""
    client.create_topic("t", SCHEMA, config={"durability": "flushed"})
    with (
        pytest.raises(quiverlog.UnsupportedDurability, match="a request may only ask for more"),
        client.producer("t", durability=weaker) as producer,
    ):
        producer.send(rows(1))


# --- next -----------------------------------------------------------------------------------------
def test_next_gives_one_batch_after_the_other_and_ends(client: Any) -> None:
    client.create_topic("t", SCHEMA)
    with client.producer("t", batch_rows=2) as producer:
        producer.send(rows(4))
    consumer = client.consumer("t")
    assert [next(consumer).base_offset, next(consumer).base_offset] == [0, 2]
    assert consumer.positions == {0: 4}
    for _ in range(2):  # the end stays the end
        with pytest.raises(StopIteration):
            next(consumer)
    assert [batch.base_offset for batch in client.consumer("t")] == [0, 2]
