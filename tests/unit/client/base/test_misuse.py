"""`await` at the blocking client, and none at the asyncio one: the error names what to do."""

from __future__ import annotations

import copy
import gc
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

import quiverlog
import quiverlog.aio
from tests.support.client_scenarios import SCHEMA, rows
from tests.support.scripted_broker import ScriptedBroker


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as broker, quiverlog.connect(broker.bootstrap) as client:
        client.create_topic("t", SCHEMA)
        with client.producer("t") as producer:
            producer.send(rows(2))
        yield broker


async def awaited(thing: Any) -> Any:
    return await thing


async def entered(thing: Any) -> None:
    async with thing:
        pass


async def iterated(thing: Any) -> None:
    async for _ in thing:
        pass


@pytest.mark.parametrize("misuse", [awaited, entered, iterated])
async def test_the_blocking_client_is_not_awaited(broker: ScriptedBroker, misuse: Any) -> None:
    with quiverlog.connect(broker.bootstrap) as client, client.producer("t") as producer:
        for thing in (client, producer, client.consumer("t"), client.read("t")):
            what = rf"^{type(thing).__name__} is of the blocking client: leave `await` and `async` "
            with pytest.raises(
                TypeError, match=what + r"out, or .* quiverlog\.aio\.connect\(\)\.$"
            ):
                await misuse(thing)


def blocking_with(thing: Any) -> None:
    with thing:
        pass


@pytest.mark.parametrize("misuse", [blocking_with, iter])
async def test_the_asyncio_client_is_not_used_as_a_blocking_one(
    broker: ScriptedBroker, misuse: Any
) -> None:
    async with quiverlog.aio.connect(broker.bootstrap) as client:
        opening = client.producer("t")
        reading = await client.read("t")
        for thing in (client, opening, client.consumer("t"), reading):
            what = rf"^{type(thing).__name__} is of the asyncio client: write `async with` and "
            with pytest.raises(TypeError, match=what + r"`async for`, or .* quiverlog\.connect"):
                misuse(thing)
        async with opening:
            pass


async def test_what_was_not_awaited_names_itself(broker: ScriptedBroker) -> None:
    opening = quiverlog.aio.connect(broker.bootstrap)
    wanted = (
        r"^No 'list_topics': connect\(\) is not opened yet; `await` it, or use it with `async w"
    )
    with pytest.raises(AttributeError, match=wanted):
        opening.list_topics()  # type: ignore[attr-defined]
    assert "not opened" in repr(opening)
    async with opening as client:
        producer: Any = client.producer("t")
        with pytest.raises(AttributeError, match=r"AsyncClient\.producer\(\) is not opened yet"):
            await producer.send([])
        async with producer:
            pass
        dropped = [client.producer("t")]
        with pytest.warns(
            RuntimeWarning, match=r"AsyncClient\.producer\(\) was not opened: `await`"
        ):
            dropped.clear()


async def test_a_consumer_may_be_awaited_as_a_producer_is(broker: ScriptedBroker) -> None:
    async with quiverlog.aio.connect(broker.bootstrap) as client:
        consumer = await client.consumer("t")
        assert consumer.positions == {0: 0}
        assert (await anext(consumer)).next_offset == 2
        await consumer.close()


def test_an_opening_that_was_used_is_awaitable_and_warns_of_nothing(broker: ScriptedBroker) -> None:
    opening = quiverlog.aio.connect(broker.bootstrap)
    assert inspect.isawaitable(opening)
    opening.__await__().close()
    del opening
    gc.collect()


def test_an_opening_can_be_copied(broker: ScriptedBroker) -> None:
    opening = quiverlog.aio.connect(broker.bootstrap)
    opening.__await__().close()
    assert repr(copy.copy(opening)) == repr(opening)
