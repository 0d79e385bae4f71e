"""Producers and clients closed while they are used: every send and every wait has an end."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import quiverlog
import quiverlog.aio
from quiverlog.wire import messages as m
from tests.support.client_scenarios import SCHEMA, rows
from tests.support.scripted_broker import ScriptedBroker
from tests.support.until import until

WAIT_S = 10.0


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as broker:
        with quiverlog.connect(broker.bootstrap) as client:
            client.create_topic("t", SCHEMA)
        yield broker


@pytest.mark.parametrize("data", [rows(3), rows(1)[0]], ids=["list", "dict"])
def test_rows_sent_while_another_thread_closes_are_refused(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch, data: Any
) -> None:
    """Rows that came after the close had no end: they would be neither sent nor failed."""
    with quiverlog.connect(broker.bootstrap) as client:
        producer = client.producer("t")
        check = producer._check_usable

        def checked_and_overtaken() -> None:
            check()
            monkeypatch.undo()
            closing = threading.Thread(target=producer.abort)
            closing.start()
            closing.join(WAIT_S)
            assert producer.is_closed

        monkeypatch.setattr(producer, "_check_usable", checked_and_overtaken)
        with pytest.raises(quiverlog.ClientClosed):
            producer.send(data)
        assert producer.buffered_bytes == 0


async def test_a_close_that_is_cancelled_still_ends_every_send(broker: ScriptedBroker) -> None:
    async with quiverlog.aio.connect(broker.bootstrap) as client:
        producer = await client.producer("t", linger=60.0)
        future = await producer.send(rows(3))
        hosted = producer._hosted

        async def stop_for_ever() -> None:
            await asyncio.Event().wait()

        hosted.stop = stop_for_ever  # type: ignore[method-assign]
        closing = asyncio.create_task(producer.abort())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert isinstance(await future.exception(WAIT_S), quiverlog.ClientClosed)


def test_a_poll_ends_when_another_thread_closes_the_client(broker: ScriptedBroker) -> None:
    client = quiverlog.connect(broker.bootstrap)
    consumer = client.consumer("t", follow=True)
    errors: list[Exception] = []

    def poll() -> None:
        try:
            consumer.poll(timeout=60.0)
        except quiverlog.QuiverlogError as error:
            errors.append(error)

    polling = threading.Thread(target=poll)
    polling.start()
    deadline = time.monotonic() + WAIT_S
    while not broker.seen(m.FetchRequest):
        assert time.monotonic() < deadline, "the poll has asked nothing"
        time.sleep(0.001)
    client.close()
    polling.join(WAIT_S)
    assert not polling.is_alive()
    assert [type(error) for error in errors] == [quiverlog.ClientClosed]
    until(lambda: not broker.has_connections, "no connection")


def test_the_end_of_a_client_ends_the_requests_of_its_consumers(broker: ScriptedBroker) -> None:
    """A request stays under way between two polls, on a connection of its own."""
    client = quiverlog.connect(broker.bootstrap)
    consumers = [client.consumer("t", follow=True) for _ in range(2)]
    for consumer in consumers:
        assert consumer.poll(timeout=0.05) is None
    assert broker.has_connections
    client.close()
    until(lambda: not broker.has_connections, "no connection")
    for consumer in consumers:
        consumer.close()
