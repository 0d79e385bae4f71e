"""Both faces of the client, against the fake broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.client_scenarios import BlockingScenarios, ClientScenarios
from tests.support.fakebroker import FakeBroker


@pytest.fixture
def address() -> Iterator[str]:
    with FakeBroker() as broker:
        yield broker.bootstrap


class TestClient(ClientScenarios):
    pass


class TestBlockingClient(BlockingScenarios):
    pass
