"""The blocking and the asyncio client, against the scripted broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.blocking_scenarios import BlockingScenarios
from tests.support.client_scenarios import ClientScenarios
from tests.support.scripted_broker import ScriptedBroker


@pytest.fixture
def address() -> Iterator[str]:
    with ScriptedBroker() as broker:
        yield broker.bootstrap


class TestClient(ClientScenarios):
    pass


class TestBlockingClient(BlockingScenarios):
    pass
