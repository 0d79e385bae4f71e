"""Traces: a span for each produce and fetch where that is asked for, else nothing at all."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import quiverlog
from quiverlog import otel
from quiverlog.client.drivers.asynchronous import AsyncConnection
from quiverlog.client.drivers.blocking import BlockingConnection
from tests.support.scripted_broker import ScriptedBroker

METHODS = [
    (BlockingConnection, "send"),
    (BlockingConnection, "receive"),
    (BlockingConnection, "receive_ready"),
    (BlockingConnection, "close"),
    (AsyncConnection, "request"),
]

INSTRUMENT = """
import quiverlog.otel
try:
    quiverlog.otel.instrument()
except quiverlog.InvalidArgument as error:
    print(error)
"""
"""A program that ends with the reason."""


def printed(program: str) -> str:
    """What a program in a process of its own prints."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    otel.instrument(provider)
    try:
        yield exporter
    finally:
        otel.uninstrument()


def move_rows(client: Any) -> None:
    client.create_topic("t", "id long")
    with client.producer("t") as producer:
        producer.send([{"id": 1}])
    assert client.read("t").to_arrow().num_rows == 1


def test_a_produce_and_a_fetch_have_spans(spans: InMemorySpanExporter) -> None:
    with ScriptedBroker() as broker, quiverlog.connect(broker.bootstrap) as client:
        move_rows(client)
        port = int(broker.bootstrap.rpartition(":")[2])
    found = {span.name: span for span in spans.get_finished_spans()}
    assert set(found) == {"quiverlog produce", "quiverlog fetch"}
    for name, span in found.items():
        assert span.attributes is not None
        assert span.attributes["messaging.operation.name"] == name.removeprefix("quiverlog ")
        assert (span.attributes["server.port"], span.attributes["quiverlog.partitions"]) == (
            port,
            1,
        )
        assert span.status.is_unset


def test_asyncio_has_them_too(spans: InMemorySpanExporter) -> None:
    async def consume(bootstrap: str) -> None:
        async with quiverlog.aio.connect(bootstrap) as client:
            assert (await (await client.read("t")).to_arrow()).num_rows == 1

    with ScriptedBroker() as broker:
        with quiverlog.connect(broker.bootstrap) as client:
            move_rows(client)
        spans.clear()
        asyncio.run(consume(broker.bootstrap))
    assert {span.name for span in spans.get_finished_spans()} == {"quiverlog fetch"}


def test_without_them_the_client_is_as_it_was() -> None:
    before = [owner.__dict__[name] for owner, name in METHODS]
    otel.instrument(TracerProvider())
    otel.instrument(TracerProvider())
    assert all(owner.__dict__[n] is not m for (owner, n), m in zip(METHODS, before, strict=True))
    otel.uninstrument()
    assert [owner.__dict__[name] for owner, name in METHODS] == before


def test_without_opentelemetry_the_error_names_what_to_install() -> None:
    """The module that is wanted lies below the package that is missing."""
    program = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name == "opentelemetry":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""
    advice = printed(program + INSTRUMENT)
    assert re.match(r"instrument needs opentelemetry: .*pip install .*opentelemetry", advice)


def test_a_package_of_the_same_namespace_is_not_enough() -> None:
    """`opentelemetry` is there as soon as one of its many packages is."""
    program = """
import sys
sys.modules["opentelemetry.trace"] = None
from quiverlog import installing
installing._is_installed = lambda name: False
"""
    advice = printed(program + INSTRUMENT)
    assert "opentelemetry-api" in advice
    assert "opentelemetry-sdk" in advice


def test_a_program_without_traces_imports_nothing_of_them() -> None:
    program = """
import sys, quiverlog
from tests.support.scripted_broker import ScriptedBroker
with ScriptedBroker() as broker, quiverlog.connect(broker.bootstrap) as client:
    client.create_topic("t", "id long")
    with client.producer("t") as producer:
        producer.send([{"id": 1}])
    assert client.read("t").to_arrow().num_rows == 1
print([name for name in sys.modules if "otel" in name or "opentelemetry" in name])
"""
    assert printed(program).strip() == "[]"
