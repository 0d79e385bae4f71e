"""The image that the tests on containers run; without one they name the command that builds it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.support.containers import ContainerCluster

IMAGE = "QUIVERLOG_TEST_IMAGE"


@pytest.fixture(scope="session")
def image() -> str:
    """The id of the project's image, which scripts/containers.sh builds."""
    found = os.environ.get(IMAGE)
    if not found:
        pytest.skip(
            "needs Docker and the project's image: "
            "scripts/with-env.sh scripts/containers.sh python -m pytest -m containers"
        )
    return found


@pytest.fixture(scope="session")
def cluster(image: str) -> Iterator[ContainerCluster]:
    """Three brokers on a network of their own. A test that breaks one heals it."""
    from tests.support.containers import ContainerCluster

    with ContainerCluster(image) as running:
        yield running


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    from tests.support.spark import new_session

    session = new_session()
    yield session
    session.stop()
