"""The blocking and the asyncio client are one text: what a program sees of both agrees.

The classes are compared as a program finds them (signatures, defaults, docstrings, waits), and each
generated file with its source. That they behave alike is what tests.support.client_scenarios shows,
which runs over both.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import quiverlog
from quiverlog import aio
from quiverlog.client import async_client, client
from quiverlog.client.consumer import consumer, reading
from quiverlog.client.groups import group_consumer
from quiverlog.client.producer import producer
from quiverlog.client.transactions import transaction
from quiverlog.wire import messages as m
from scripts import generate_client
from tests.support.client_scenarios import SCHEMA, rows
from tests.support.scripted_broker import ScriptedBroker

TWINS = (
    (client.Client, aio.AsyncClient),
    (producer.Producer, aio.AsyncProducer),
    (producer.SendFuture, aio.AsyncSendFuture),
    (consumer.Consumer, aio.AsyncConsumer),
    (reading.Reading, aio.AsyncReading),
    (group_consumer.GroupConsumer, aio.AsyncGroupConsumer),
    (transaction.Transaction, aio.AsyncTransaction),
    (transaction.StagedFuture, aio.AsyncStagedFuture),
    (transaction.Stager, aio.AsyncStager),
    (transaction.Attempt, aio.AsyncAttempt),
)
PLAIN = {"producer", "consumer", "transaction", "stager", "done"}
"""Methods that are no coroutines with asyncio either; but for `done` opened by `await`."""
BLOCKING_ONLY = {"duckdb", "replay"}
"""Engines that ask by themselves, from threads of their own, cannot wait for a loop; a replay is
for notebooks."""
WORD = r"\b(?:async (?=def|with|for)|await |Async(?=[A-Z])|quiverlog\.aio\.(?=Async))"


def without_waiting(text: str) -> str:
    """As a blocking program would write it."""
    text = re.sub(r"Opening\[(\w+)\]", r"\1", text)
    return re.sub(WORD, "", text).replace("one task", "one thread")


def public(kind: type) -> dict[str, Any]:
    return {n: f for n, f in inspect.getmembers(kind) if not n.startswith("_")}


def members() -> Iterator[tuple[str, Any, Any]]:
    yield "connect", client.connect, async_client.connect
    for blocking, asyncio_ in TWINS:
        ours, theirs = public(blocking), public(asyncio_)
        for name in BLOCKING_ONLY - theirs.keys():
            ours.pop(name, None)
        assert ours.keys() == theirs.keys(), blocking.__name__
        for name, member in ours.items():
            yield f"{blocking.__name__}.{name}", member, theirs[name]


def test_signatures_defaults_and_docstrings_agree() -> None:
    compared = 0
    for name, ours, theirs in members():
        if ours is theirs:  # inherited by both
            continue
        assert ours.__doc__, f"{name} has no docstring"
        assert without_waiting(theirs.__doc__ or "") == ours.__doc__, name
        if not callable(ours):
            continue
        compared += 1
        signature = without_waiting(str(inspect.signature(theirs)))
        assert signature == str(inspect.signature(ours)), name
        assert not inspect.iscoroutinefunction(ours), name
        waits = name.rpartition(".")[2] not in PLAIN and "." in name
        assert inspect.iscoroutinefunction(theirs) is waits, name
    assert compared > 25


def test_nothing_points_to_the_other_client_for_its_meaning() -> None:
    for name, ours, theirs in members():
        for member in (ours, theirs):
            assert not re.match(r"As `", member.__doc__ or ""), name
            if callable(member):
                parameters = inspect.signature(member).parameters.values()
                assert all(p.annotation is not p.empty for p in parameters if p.name != "self")


@pytest.mark.parametrize("source", generate_client.FILES)
def test_each_generated_file_is_that_of_its_source(source: str) -> None:
    target = generate_client.CLIENT / generate_client.FILES[source][0]
    assert target.read_text() == generate_client.generated(source), "run scripts/generate_client.py"


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as broker:
        with quiverlog.connect(broker.bootstrap) as setup:
            setup.create_topic("t", SCHEMA)
        yield broker


# --- who may do what at the same time -------------------------------------------------------------
async def test_a_poll_that_waits_ends_quietly_when_its_consumer_is_closed(
    broker: ScriptedBroker,
) -> None:
    async with aio.connect(broker.bootstrap) as client:
        reader = client.consumer("t", follow=True)
        polled = asyncio.create_task(reader.poll(timeout=20))
        await _until(lambda: bool(broker.seen(m.FetchRequest)))
        await reader.close()
        assert await asyncio.wait_for(polled, 10) is None
        assert not reader._core.requests, "a request was left behind"


def test_a_thread_that_reads_ends_quietly_when_its_consumer_is_closed(
    broker: ScriptedBroker,
) -> None:
    ended: list[Any] = []

    def read(reader: Any) -> None:
        try:
            ended.append(list(reader))
        except BaseException as error:
            ended.append(error)

    with quiverlog.connect(broker.bootstrap) as client:
        reader = client.consumer("t", follow=True)
        thread = threading.Thread(target=read, args=(reader,))
        thread.start()
        asyncio.run(_until(lambda: bool(broker.seen(m.FetchRequest))))
        reader.close()
        thread.join(10)
    assert ended == [[]]
    assert not reader._core.requests, "a request was left behind"


async def test_two_readers_of_one_consumer_get_an_error(broker: ScriptedBroker) -> None:
    async with aio.connect(broker.bootstrap) as client:
        reader = await client.consumer("t", follow=True).open()
        first = asyncio.create_task(reader.poll(timeout=20))
        await _until(lambda: bool(broker.seen(m.FetchRequest)))
        with pytest.raises(quiverlog.InvalidArgument, match="'t' is read by another caller"):
            await reader.poll(timeout=0.1)
        await reader.close()
        await first


def test_a_future_ends_with_its_client_though_its_producer_was_dropped(
    broker: ScriptedBroker,
) -> None:
    client = quiverlog.connect(broker.bootstrap)
    future = client.producer("t", linger=60).send(rows(1))
    client.close()
    with pytest.raises(quiverlog.ClientClosed):
        future.result(timeout=30)


def test_a_producer_is_not_opened_behind_the_end_of_its_client(broker: ScriptedBroker) -> None:
    before = threading.active_count()
    client = quiverlog.connect(broker.bootstrap)
    broker.fault(m.InitProducerIdRequest, lambda _request: client.close())
    with contextlib.suppress(quiverlog.ConnectionClosed), pytest.raises(quiverlog.ClientClosed):
        client.producer("t")
    assert threading.active_count() == before, "a thread was left behind"


async def _until(is_true: Any) -> None:
    async with asyncio.timeout(10):
        while not is_true():  # noqa: ASYNC110 - the broker sets no event
            await asyncio.sleep(0.005)
