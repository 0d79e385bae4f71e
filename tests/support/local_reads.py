"""What tests of reading a broker's files share: rows, calls that fail, answers that lie.

Not here: what a test asserts.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import quiverlog
from quiverlog.wire import messages as m

from .scripted_broker import Answer, ScriptedBroker

__all__ = [
    "BATCH_ROWS",
    "EXPECTED",
    "ROWS",
    "System",
    "broker_fixture",
    "changing",
    "filled_broker",
    "filled_fixture",
    "ids",
    "now_at",
    "wishes",
]

ROWS = 100_000
BATCH_ROWS = 20_000
EXPECTED = list(range(ROWS))


@contextlib.contextmanager
def filled_broker() -> Iterator[ScriptedBroker]:
    """A broker with `EXPECTED` in the two partitions of topic `t`."""
    with ScriptedBroker() as broker:
        with quiverlog.connect(broker.bootstrap) as client:
            client.create_topic("t", pa.schema([("id", pa.int64())]), partitions=2)
            with client.producer("t", batch_rows=BATCH_ROWS, compression="none") as producer:
                producer.send(pa.table({"id": EXPECTED[:50_000]}), partition=0)
                producer.send(pa.table({"id": EXPECTED[50_000:]}), partition=1)
        yield broker


@pytest.fixture(scope="module", name="filled")
def filled_fixture() -> Iterator[ScriptedBroker]:
    with filled_broker() as broker:
        yield broker


@pytest.fixture(name="broker")
def broker_fixture(filled: ScriptedBroker) -> Iterator[ScriptedBroker]:
    """The module's broker, with no request before and no faults."""
    filled.requests.clear()
    yield filled
    filled.heal()


def ids(client: Any) -> list[int]:
    return sorted(client.read("t").to_arrow()["id"].to_pylist())


def wishes(broker: ScriptedBroker) -> list[bool]:
    return [request.file_ranges for request in broker.seen(m.FetchRequest)]


class System:
    """`os`, with one call that fails, or does something else, the n-th time it is made, or always.

    Threads may share it.
    """

    def __init__(
        self, name: str, nth: int, action: Callable[..., Any], *, always: bool = False
    ) -> None:
        self._name, self._nth, self._action, self._always = name, nth, action, always
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name != self._name:
            return real

        def call(*arguments: Any) -> Any:
            self.calls += 1
            changed = self._always or self.calls == self._nth
            return (self._action if changed else real)(*arguments)

        return call


def changing(change: Callable[[m.FileRange], None]) -> Answer:
    """The first range of an answer is changed."""

    def answer(request: Any, response: Any, body: bytes) -> tuple[m.Response, bytes]:
        for result in response.partitions:
            if result.file_ranges:
                change(result.file_ranges[0])
                break
        return response, body

    return Answer(answer)


def now_at(path: Path) -> Callable[[m.FileRange], None]:
    """What `path` holds is found where the rows were."""
    found = path.stat()

    def change(one: m.FileRange) -> None:
        one.path, one.device, one.inode = str(path), found.st_dev, found.st_ino

    return change
