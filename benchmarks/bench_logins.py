"""What failed logins cost others: METADATA by TLS in quiet, and while programs try passwords.

The listener asks for logins, and the client that is measured has logged in. Another process has a
hundred connections to the same listener: each makes a TLS handshake, sends a proof by a wrong
password, waits for the refusal and begins again. In the second case it waits for nothing, and
connects as fast as it can.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import uvloop

from benchmarks.bench_tls import P99_TIMES_MAX, SAMPLES, p99
from benchmarks.harness import Comparison, Rounds, Settings, interleave
from benchmarks.load import Load
from quiverlog.local.secret_file import credential_text, write_private
from quiverlog.tls import client_context
from quiverlog.wire import frames
from quiverlog.wire.authentication_messages import AuthenticateRequest, AuthenticateResponse
from quiverlog.wire.connection import ClientConnection
from quiverlog.wire.messages import Response
from quiverlog.wire.security.scram import (
    SCRAM_SHA_256,
    ClientKeys,
    ScramClient,
    derive_keys,
    nonce_of,
)
from tests.support.broker import BrokerProcess
from tests.support.tls import write_files

USER, PASSWORD = "admin", "of-the-benchmark"
CONNECTIONS = 100
WRONG = ClientKeys(bytes(32), bytes(32))
"""Of no password: to derive keys would cost the flood more than the broker."""
FLOODS = {True: "TLS: METADATA beside failed logins, p99", False: "the same beside handshakes, p99"}


@dataclass(frozen=True)
class Secured:
    broker: BrokerProcess
    ca: str

    def refused(self) -> int:
        return self._metric("quiverlog_logins_refused_total")

    def shaken(self) -> int:
        """Also those that failed: the client was gone at their end."""
        return self._metric("quiverlog_tls_handshakes_total")

    def _metric(self, name: str) -> int:
        with urllib.request.urlopen(f"http://{self.broker.http}/metrics") as answer:
            text = answer.read().decode()
        found = re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)
        return sum(map(int, map(float, found)))


def run(settings: Settings) -> list[Comparison]:
    samples = settings.scaled(SAMPLES)
    found = []
    with secured() as made, logged_in(made) as load:
        for waits, name in FLOODS.items():
            rates: list[float] = []
            rounds = beside(made, load, settings, samples, waits=waits, rates=rates)
            found.append(
                Comparison(
                    name, "us", rounds.ours, rounds.baseline,
                    budget=round(1 / P99_TIMES_MAX, 4) if waits else None,
                    bigger_is_better=False, note=f"{max(rates):.0f} in a second",
                )
            )  # fmt: skip
    return found


@contextmanager
def secured() -> Iterator[Secured]:
    with tempfile.TemporaryDirectory() as folder:
        files = write_files(Path(folder), "broker")
        admin = Path(folder) / "admin.credential"
        write_private(admin, credential_text(USER, PASSWORD))
        config = files.settings("default") | {
            "listeners.default.authentication": "required",
            "admin.credential.file": str(admin),
        }
        with BrokerProcess(config=config) as broker:
            yield Secured(broker, files.ca)


@contextmanager
def logged_in(made: Secured) -> Iterator[Load]:
    protocol = ClientConnection()
    hello = protocol.hello("benchmark", "")
    with Load(made.broker.address, hello, tls=client_context(made.ca, "", "")) as load:
        _received(protocol, load.greeted)

        def derive(salt: bytes, iterations: int) -> ClientKeys:
            return derive_keys(SCRAM_SHA_256, PASSWORD.encode(), salt, iterations)

        def step(data: bytes) -> AuthenticateResponse:
            request = AuthenticateRequest(mechanism=SCRAM_SHA_256, data=data)
            response = _received(protocol, load.exchange([protocol.send(request)[1]]))
            assert isinstance(response, AuthenticateResponse)
            return response

        client = ScramClient(SCRAM_SHA_256, USER, derive, nonce_of(os.urandom))
        assert step(client.final(step(client.first).data)).is_done
        yield load


def _received(protocol: ClientConnection, data: bytes) -> Response:
    receiver = frames.FrameReceiver(own_bodies=True)
    room = receiver.get_buffer()
    room[: len(data)] = data
    (frame,) = receiver.buffer_updated(len(data))
    return protocol.receive(frame)[1]


def beside(
    made: Secured, load: Load, settings: Settings, samples: int, *, waits: bool, rates: list[float]
) -> Rounds:
    def flooded() -> float:
        flood = get_context("spawn").Process(
            target=flood_on, args=(made.broker.address, waits), daemon=True
        )
        flood.start()
        try:
            count = made.refused if waits else made.shaken
            begin = count()
            while count() < begin + CONNECTIONS:
                time.sleep(0.01)
            before, began_s = count(), time.monotonic()
            measured = p99(load, samples)
            rates.append((count() - before) / (time.monotonic() - began_s))
            return measured
        finally:
            flood.terminate()
            flood.join()

    return interleave(settings.rounds, flooded, lambda: p99(load, samples))


# --- the flood ---------------------------------------------------------------------------------
def flood_on(address: tuple[str, int], waits: bool) -> None:
    uvloop.run(_flood(address, waits))


async def _flood(address: tuple[str, int], waits: bool) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    async with asyncio.TaskGroup() as group:
        for _ in range(CONNECTIONS):
            group.create_task(_try_on(address, context, waits))


async def _try_on(address: tuple[str, int], context: ssl.SSLContext, waits: bool) -> None:
    while True:
        with suppress(OSError, EOFError):
            reader, writer = await asyncio.open_connection(*address, ssl=context)
            try:
                if waits:
                    await _try_password(reader, writer)
            finally:
                writer.transport.abort()


async def _try_password(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    protocol = ClientConnection()
    client = ScramClient(SCRAM_SHA_256, USER, lambda *_: WRONG, nonce_of(os.urandom))
    writer.write(protocol.hello("flood", ""))
    await _answer(reader, protocol)
    data = client.first
    while True:
        request = AuthenticateRequest(mechanism=SCRAM_SHA_256, data=data)
        writer.write(protocol.send(request)[1])
        answer = await _answer(reader, protocol)
        if answer.error_code:
            return
        assert isinstance(answer, AuthenticateResponse)
        data = client.final(answer.data)


async def _answer(reader: asyncio.StreamReader, protocol: ClientConnection) -> Response:
    head = await reader.readexactly(4)
    return _received(protocol, head + await reader.readexactly(int.from_bytes(head, "little")))
