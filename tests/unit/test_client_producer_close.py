"""A producer that is closed while rows are on their way into it: every send has an end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import quiverlog
import quiverlog.aio
from tests.support.client_scenarios import SCHEMA, rows
from tests.support.scripted_broker import ScriptedBroker

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
    """Rows that came after the close had no end: nobody would send them, nobody would fail them."""
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
