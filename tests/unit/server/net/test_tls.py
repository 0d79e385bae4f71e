"""A listener with TLS: silent clients, answers that are not taken, the last word, changed files."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import socket
import ssl
import struct
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import uvloop

from quiverlog.errors import InvalidConfig, TlsRequired
from quiverlog.local.authority import Authority
from quiverlog.node.runtime.effects import Effect, Respond
from quiverlog.node.runtime.events import ConnectionOpened, RequestReceived
from quiverlog.server.net import certified as certified_module
from quiverlog.server.net import connection as connection_module
from quiverlog.server.net import tls as tls_module
from quiverlog.server.net.tls import TlsHolder, TlsWatch, read_tls
from quiverlog.server.net.tls_writer import STEP_BYTES, TlsWriter
from quiverlog.server.observe.logs import make_logger
from quiverlog.server.observe.metrics import ServerMetrics
from quiverlog.tls import ServerTls, certificates_in, client_context
from quiverlog.wire import messages as m
from quiverlog.wire.frames import decode_error, encode
from tests.support.server import PLACES, Client, Server, echo, request, serving, until
from tests.support.tls import TlsFiles, write_files

LARGE_BYTES = 32 << 20


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.make("tests")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> TlsFiles:
    return write_files(tmp_path_factory.mktemp("tls"), "broker", authority=authority)


def holder(files: TlsFiles, auth: str = "none") -> TlsHolder:
    ca = files.ca if auth != "none" else ""
    return TlsHolder(ServerTls(files.cert, files.key, ca, auth))


def client(files: TlsFiles, **own: str) -> dict[str, Any]:
    context = client_context(files.ca, own.get("cert", ""), own.get("key", ""))
    return {"ssl": context, "server_hostname": "127.0.0.1"}


def run(course: Coroutine[Any, Any, None]) -> None:
    """On the loop of brokers: its TLS is what is tested."""
    uvloop.run(asyncio.wait_for(course, 60))


def handshakes(server: Server) -> dict[str, int]:
    return server.metrics.tls_handshakes


def taken(server: Server) -> int:
    return sum(server.table.places._taken.values())


async def silent(server: Server, data: bytes = b"") -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", server.port))
    sock.sendall(data)
    return sock


async def answers(server: Server, files: TlsFiles) -> None:
    async with asyncio.timeout(1):
        good = await server.connect(**client(files))
        good.writer.write(request(7))
        (response,) = await good.receive(1)
    assert not response.error_code
    good.writer.transport.abort()


def test_clients_that_say_nothing_hold_no_other_handshake(files, monkeypatch):
    monkeypatch.setattr(tls_module, "HANDSHAKE_S", 0.5)

    async def course() -> None:
        async with serving(tls=holder(files)) as server:
            open_sockets = [await silent(server) for _ in range(400)]
            await until(lambda: taken(server) == 400)
            assert not server.table.by_id, "counted before their handshake"
            await answers(server, files)
            await until(lambda: handshakes(server).get("silent") == 400)
            await until(lambda: taken(server) == 0)
            for one in open_sockets:
                assert one.recv(1) == b""
                one.close()

    run(course())


def test_clients_that_stop_within_a_handshake_make_room(files, monkeypatch):
    monkeypatch.setattr(tls_module, "RUNNING_MAX", 4)
    monkeypatch.setattr(tls_module, "CROWDED_S", 0.3)

    async def course() -> None:
        async with serving(tls=holder(files)) as server:
            open_sockets = [await silent(server, b"\x16\x03") for _ in range(6)]
            await until(lambda: taken(server) == 6)
            async with asyncio.timeout(3):
                good = await server.connect(**client(files))
            await until(lambda: handshakes(server).get("cut_off", 0) >= 2)
            good.writer.write(request(1))
            assert await good.receive(1)
            for one in open_sockets:
                one.close()
            await until(lambda: taken(server) == 1)

    run(course())


def test_many_that_stop_within_a_handshake_are_cut_off_one_after_another(files, monkeypatch):
    monkeypatch.setattr(tls_module, "RUNNING_MAX", 4)
    monkeypatch.setattr(tls_module, "CROWDED_S", 0.05)

    async def course() -> None:
        async with serving(tls=holder(files)) as server:
            # Clocks of loops are rounded: now and then one finds that the time is not over yet.
            open_sockets = [await silent(server) for _ in range(80)]
            await until(lambda: taken(server) == 80)
            for one in open_sockets:
                one.sendall(b"\x16\x03")
            async with asyncio.timeout(4):
                good = await server.connect(**client(files))
            assert handshakes(server)["cut_off"] >= 76, "those before it, and none sooner"
            good.writer.transport.abort()
            for one in open_sockets:
                one.close()

    run(course())


def test_of_handshakes_that_come_at_once_one_begins_in_a_turn(files, monkeypatch):
    turn, begun = 0, []
    shake = tls_module.Handshakes._shake

    async def noted(self: Any, shaking: Any) -> None:
        begun.append(turn)
        await shake(self, shaking)

    monkeypatch.setattr(tls_module.Handshakes, "_shake", noted)

    async def course() -> None:
        loop = asyncio.get_running_loop()

        def count() -> None:
            nonlocal turn
            turn += 1
            if len(begun) < 20:
                loop.call_soon(count)

        async with serving(tls=holder(files)) as server:
            open_sockets = [await silent(server) for _ in range(20)]
            await until(lambda: taken(server) == 20)
            loop.call_soon(count)
            for one in open_sockets:
                one.sendall(b"\x16\x03")
            await until(lambda: len(begun) == 20)
            assert len(set(begun)) == 20
            for one in open_sockets:
                one.close()

    run(course())


def test_a_client_without_tls_gets_the_reason_in_a_frame_and_the_end(files):
    async def course() -> None:
        async with serving(tls=holder(files)) as server:
            plain = await server.connect()
            plain.writer.write(request(1, b"x" * 100_000))
            frames = []
            async with asyncio.timeout(5):
                while data := await plain.reader.read(1 << 16):
                    room = plain.receiver.get_buffer()
                    room[: len(data)] = data
                    frames += plain.receiver.buffer_updated(len(data))
            assert decode_error(frames[0].header).error_code == TlsRequired.code
            assert len(frames) == 1
            plain.writer.transport.abort()
            await until(lambda: handshakes(server) == {"plain": 1})
            assert taken(server) == 0
            await answers(server, files)

    run(course())


def test_where_tls_is_not_required_both_are_served(files):
    async def course() -> None:
        given = TlsHolder(ServerTls(files.cert, files.key, is_required=False))
        async with serving(tls=given, serves_brokers=True) as server:
            plain = await server.connect()
            plain.writer.write(request(3))
            (response,) = await plain.receive(1)
            assert not response.error_code
            await answers(server, files)
            await until(lambda: handshakes(server) == {"plain_taken": 1, "done": 1})
            await until(lambda: taken(server) == 1)
            plain.writer.transport.abort()
            await until(lambda: taken(server) == 0)

    run(course())


def test_without_a_place_a_client_gets_an_alert(files):
    async def course() -> None:
        places = PLACES._replace(clients=1)
        async with serving(tls=holder(files), places=places) as server:
            first = await server.connect(**client(files))
            with pytest.raises(ssl.SSLError, match=r"(?i)internal.error"):
                await server.connect(**client(files))
            assert handshakes(server)["no_room"] == 1
            first.writer.transport.abort()
            await until(lambda: taken(server) == 0)
            await answers(server, files)

    run(course())


def test_a_handshake_that_fails_frees_its_place(files, tmp_path):
    async def course() -> None:
        async with serving(tls=holder(files, "required")) as server:
            one = await silent(server, b"\x16\x03\x01\x00\x05hello")
            await until(lambda: handshakes(server).get("failed") == 1)
            one.close()
            with contextlib.suppress(OSError):
                bare = await server.connect(**client(files))
                await bare.ended()
            await until(lambda: handshakes(server).get("failed") == 2)
            stranger = write_files(tmp_path, "stranger")
            with contextlib.suppress(OSError):
                other = await server.connect(**client(files, cert=stranger.cert, key=stranger.key))
                await other.ended()
            await until(lambda: handshakes(server).get("failed") == 3)
            one = await silent(server)
            one.close()
            await until(lambda: handshakes(server).get("left") == 1)
            assert (taken(server), server.table.by_id) == (0, {})
            assert "its certificate is refused" in server.log.getvalue()

    run(course())


def test_clients_that_leave_at_every_moment(files, monkeypatch):
    """With a reset, which makes the next call on the socket fail."""
    context = client(files)["ssl"]
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    shaking = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with contextlib.suppress(ssl.SSLWantReadError):
        shaking.do_handshake()
    first = outgoing.read()

    async def course() -> None:
        async with serving(tls=holder(files)) as server:
            for data in (b"", first[:1], first[:100], first, b"plain", b"p" * 100_000):
                for _ in range(5):
                    one = await silent(server, data)
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    one.close()
            reading = await server.connect(**client(files))
            server.node.answer = large
            reading.writer.write(request(1))
            await reading.reader.readexactly(1)
            reading.writer.transport.abort()
            await until(lambda: taken(server) == 0 and not server.table.by_id)
            server.node.answer = echo
            await answers(server, files)
            assert "internal error" not in server.log.getvalue()

    run(course())


def test_the_names_of_a_certificate_reach_the_node(files, tmp_path, authority):
    mine = write_files(tmp_path, "alice", authority=authority, broker=("c", 5))

    async def course() -> None:
        async with serving(tls=holder(files, "wanted")) as server:
            await server.connect(**client(files, cert=mine.cert, key=mine.key))
            await server.connect(**client(files))
            await until(lambda: len(server.node.events(ConnectionOpened)) == 2)
            opened = server.node.events(ConnectionOpened)
            assert [event.names for event in opened] == [
                ("IP Address:127.0.0.1", "DNS:localhost", "URI:quiverlog://c/broker/5", "CN:alice"),
                (),
            ]

    run(course())


def large(event: Any) -> list[Effect]:
    if not isinstance(event, RequestReceived):
        return []
    number = event.request.correlation_id
    body = memoryview(bytes([number % 251]) * LARGE_BYTES)
    return [Respond(event.connection_id, m.MetadataResponse(), number, [body])]


def test_an_answer_that_is_not_taken_is_counted_and_ended(files):
    async def course() -> None:
        limits = {"write_stall_us": 300_000, "write_buffer_bytes": 1 << 20}
        async with serving(tls=holder(files), **limits) as server:
            server.node.answer = large
            lazy = await server.connect(**client(files))
            lazy.reader._transport.pause_reading()  # type: ignore[attr-defined]
            lazy.writer.write(request(1))
            await until(lambda: server.table.by_id)
            (connection,) = server.table.by_id.values()
            await until(lambda: connection.waiting_bytes > LARGE_BYTES * 3 // 4)
            server.table.look(0)
            assert connection.is_held, "it is asked for no more"
            await asyncio.sleep(0)
            at_us = [0]

            def stalled() -> bool:
                at_us[0] += 100_000
                server.table.look(10**15 + at_us[0])
                return not server.table.by_id

            await until(stalled)
            assert server.metrics.connections_closed_by == {"write": 1}

    run(course())


def test_large_answers_arrive_whole_in_steps_while_others_are_answered(files, monkeypatch):
    steps: list[int] = []
    take = TlsWriter._take

    def noted(self: TlsWriter, bytes_max: int) -> list[bytes | memoryview]:
        parts = take(self, bytes_max)
        steps.append(sum(map(len, parts)))
        return parts

    monkeypatch.setattr(TlsWriter, "_take", noted)

    async def course() -> None:
        async with serving(tls=holder(files), write_buffer_bytes=1 << 20) as server:
            server.node.answer = large
            reading = await server.connect(**client(files))
            reading.writer.write(request(1) + request(2) + request(3))
            seen = bytearray()
            small = await server.connect(**client(files))
            async with asyncio.timeout(30):
                for number in (1, 2, 3):
                    header = await reading.reader.readexactly(4)
                    frame = await reading.reader.readexactly(_frame_bytes(header) - 4)
                    seen += frame[-1:]
                    assert frame[-LARGE_BYTES:] == bytes([number]) * LARGE_BYTES
            small.writer.transport.abort()
        assert bytes(seen) == bytes([1, 2, 3])
        assert max(steps) <= STEP_BYTES
        assert len(steps) >= 3 * LARGE_BYTES // STEP_BYTES

    run(course())


def test_what_waits_at_the_end_is_encrypted_in_steps_and_arrives(files, monkeypatch):
    steps: list[int] = []
    take = TlsWriter._take

    def noted(self: TlsWriter, bytes_max: int) -> list[bytes | memoryview]:
        parts = take(self, bytes_max)
        steps.append(sum(map(len, parts)))
        return parts

    monkeypatch.setattr(TlsWriter, "_take", noted)

    async def course() -> None:
        async with serving(tls=holder(files), write_buffer_bytes=1 << 20) as server:
            server.node.answer = large
            lazy = await server.connect(**client(files))
            lazy.reader._transport.pause_reading()  # type: ignore[attr-defined]
            lazy.writer.write(request(1))
            await until(lambda: server.table.by_id)
            (connection,) = server.table.by_id.values()
            await until(lambda: connection.waiting_bytes > LARGE_BYTES * 3 // 4)
            connection.close_soon("by the test")
            assert max(steps) <= STEP_BYTES
            assert connection.waiting_bytes > LARGE_BYTES // 2
            lazy.reader._transport.resume_reading()  # type: ignore[attr-defined]
            async with asyncio.timeout(30):
                header = await lazy.reader.readexactly(4)
                frame = await lazy.reader.readexactly(_frame_bytes(header) - 4)
                assert frame[-LARGE_BYTES:] == bytes([1]) * LARGE_BYTES
                assert await lazy.reader.read() == b"", "then comes the end"
        assert max(steps) <= STEP_BYTES

    run(course())


def test_garbage_behind_an_answer_that_is_not_taken_ends_the_connection(files, monkeypatch):
    monkeypatch.setattr(connection_module, "ANSWERS_S_MAX", 0.1)
    monkeypatch.setattr(connection_module, "LINGER_S", 0.2)

    async def course() -> None:
        async with serving(tls=holder(files), write_buffer_bytes=1 << 30) as server:
            server.node.answer = large
            lazy = await server.connect(**client(files))
            lazy.reader._transport.pause_reading()  # type: ignore[attr-defined]
            lazy.writer.write(request(1) + b"\xff" * 64)
            await until(lambda: server.metrics.connections_closed_by)
            await until(lambda: not server.table.by_id)
            assert server.table.lingering == 0

    run(course())


def _frame_bytes(header: bytes) -> int:
    sample = encode(m.MetadataResponse(), 1, LARGE_BYTES)
    assert sample[:4] == header, "all frames are of one size here"
    return len(sample) + LARGE_BYTES


def test_the_last_word_arrives_and_then_the_end(files, monkeypatch):
    monkeypatch.setattr("quiverlog.server.net.connection.LINGER_S", 3_600.0)

    async def course() -> None:
        async with serving(tls=holder(files)) as server:
            broken = await server.connect(**client(files))
            broken.writer.write(request(5) + b"\xff" * 1000)
            first, last = await broken.receive(2)
            assert not first.error_code
            assert last.error_code
            assert await broken.ended()
            await until(lambda: not server.table.by_id)

    run(course())


def test_local_reads_need_the_listeners_leave(files):
    async def course() -> None:
        async with serving(tls=holder(files)) as server:
            await server.connect(**client(files))
            await until(lambda: server.table.by_id)
            (connection,) = server.table.by_id.values()
            assert connection._feed.may_read_files
            connection._context = server.context._replace(local_reads=False)
            connection.limits_changed()
            assert not connection._feed.may_read_files

    run(course())


def test_the_end_of_a_listener_ends_handshakes(files):
    async def course() -> None:
        async with serving(tls=holder(files)) as server:
            open_sockets = [await silent(server), await silent(server, b"\x16\x03")]
            plain = await silent(server, b"GET /")
            await until(lambda: taken(server) == 3)
            await asyncio.sleep(0)
        await until(lambda: taken(server) == 0)
        for one in [*open_sockets, plain]:
            one.close()

    run(course())


# --- files ----------------------------------------------------------------------------------------
class Watched:
    def __init__(self, folder: Path, authority: Authority) -> None:
        self.folder, self.authority = folder, authority
        self.files = write_files(folder, "watched", authority=authority)
        self.holder = holder(self.files)
        self.metrics = ServerMetrics()
        self.log = io.StringIO()
        log = make_logger(level="info", format="logfmt", stream=self.log)
        self.watch = TlsWatch(
            asyncio.get_running_loop(), {"default": self.holder}, metrics=self.metrics, log=log
        )

    @property
    def serial(self) -> str:
        return self.metrics.tls_dates["default"].serial

    def break_key(self) -> None:
        Path(self.files.key).write_text("broken")

    def renew(self) -> str:
        made = write_files(self.folder, "watched", authority=self.authority)
        return f"{made.serial:x}"


@pytest.mark.parametrize("by_signal", [True, False])
def test_changed_files_count_and_broken_ones_change_nothing(
    tmp_path, authority, monkeypatch, by_signal
):
    monkeypatch.setattr(tls_module, "LOOK_S", 3_600 if by_signal else 0.05)
    monkeypatch.setattr(tls_module, "SETTLE_S", 0.01)

    async def course() -> None:
        watched = Watched(tmp_path, authority)
        before = watched.serial
        context = watched.holder.contexts.server
        watched.break_key()
        if by_signal:
            watched.watch.request()
        await until(lambda: watched.metrics.tls_files_refused.get("default") == 1)
        if by_signal:
            watched.watch.request()
            await until(lambda: watched.watch._task.done())
        assert (watched.serial, watched.holder.contexts.server) == (before, context)
        assert watched.log.getvalue().count("changed TLS files are not used") == 1
        assert "no private key in PEM form" in watched.log.getvalue()
        renewed = watched.renew()
        if by_signal:
            watched.watch.request()
        await until(lambda: watched.serial == renewed)
        assert watched.metrics.tls_files_refused["default"] == 0
        assert watched.holder.contexts.server is not context
        assert f"serial={renewed}" in watched.log.getvalue()
        watched.watch.stop()

    run(course())


def test_an_authority_that_is_taken_out_counts_for_no_connection(files, tmp_path, monkeypatch):
    monkeypatch.setattr(tls_module, "SETTLE_S", 0.01)
    old, new = Authority.make("old"), Authority.make("new")
    both = tmp_path / "both.pem"
    both.write_bytes(old.certificate + new.certificate)
    mine = [write_files(tmp_path, name, authority=of) for name, of in (("o", old), ("n", new))]
    given = TlsHolder(ServerTls(files.cert, files.key, str(both), "required"))

    async def course() -> None:
        async with serving(tls=given) as server:
            earlier = [await certified(server, files, own) for own in mine]
            watch = TlsWatch(
                asyncio.get_running_loop(),
                {"default": given},
                metrics=server.metrics,
                log=server.context.log,
            )
            before = given.contexts
            both.write_bytes(new.certificate)
            watch.request()
            await until(lambda: given.contexts is not before)
            watch.stop()
            await certified(server, files, mine[1])
            with contextlib.suppress(OSError):
                refused = await server.connect(**client(files, cert=mine[0].cert, key=mine[0].key))
                refused.writer.write(request(1))
                assert not await refused.receive(1)
            await until(lambda: handshakes(server).get("failed") == 1)
            assert await earlier[0].ended()
            earlier[1].writer.write(request(2))
            assert await earlier[1].receive(1), "its authority counts"
            assert server.metrics.connections_closed_by == {"certificate": 1}

    run(course())


async def certified(server: Server, files: TlsFiles, own: TlsFiles) -> Client:
    made = await server.connect(**client(files, cert=own.cert, key=own.key))
    made.writer.write(request(1))
    assert await made.receive(1)
    return made


def test_a_connection_ends_with_the_certificate_that_it_has_shown(files, authority, tmp_path):
    short, long = (
        write_files(tmp_path, name, authority=authority, days=days)
        for name, days in (("short", 2 / 86_400), ("long", 1))
    )
    given = holder(files, "wanted")

    async def course() -> None:
        async with serving(tls=given) as server:
            lives = await certified(server, files, long)
            anonymous = await server.connect(**client(files))
            anonymous.writer.write(request(1))
            assert await anonymous.receive(1)
            ends = await certified(server, files, short)
            assert len(given.certified) == 2
            began_s = time.time()
            assert await ends.ended()
            assert time.time() - began_s < 5
            assert time.time() >= certificates_in(short.cert)[0].not_after_s
            for one in (lives, anonymous):
                one.writer.write(request(2))
                assert await one.receive(1)
            assert "its certificate has expired" in server.log.getvalue()
            lives.writer.close()
            await until(lambda: not len(given.certified))
            given.certified.close()

    run(course())


def test_an_authority_that_is_taken_out_during_a_handshake_counts_no_more(files):
    given = holder(files, "required")

    async def course() -> None:
        async with serving(tls=given) as server:
            # The handshake is over with the contexts of before.
            given.certified.trust(frozenset())
            late = await server.connect(**client(files, cert=files.cert, key=files.key))
            assert await late.ended()
            assert server.metrics.connections_closed_by == {"certificate": 1}

    run(course())


def test_the_clock_of_dates_may_be_set(files, monkeypatch):
    monkeypatch.setattr(certified_module, "_LOOK_S_MAX", 0.02)
    given = holder(files, "required")

    async def course() -> None:
        async with serving(tls=given) as server:
            one = await certified(server, files, files)
            end_s = certificates_in(files.cert)[0].not_after_s
            with mock.patch.object(certified_module.time, "time", return_value=end_s - 1):
                await asyncio.sleep(0.1)
                one.writer.write(request(2))
                assert await one.receive(1)
            with mock.patch.object(certified_module.time, "time", return_value=end_s):
                assert await one.ended()

    run(course())


def test_a_key_that_every_user_may_read_is_refused(tmp_path, authority):
    files = write_files(tmp_path, "open", authority=authority)
    for mode in (0o604, 0o602, 0o601):
        os.chmod(files.key, mode)
        with pytest.raises(InvalidConfig, match="every user of this machine may use it"):
            read_tls({"default": ServerTls(files.cert, files.key)})
    os.chmod(files.key, 0o640)
    assert read_tls({"default": ServerTls(files.cert, files.key)})


def test_dates_are_those_of_what_ends_first(tmp_path):
    short, long = Authority.make("short", days=3), Authority.make("long", days=300)
    files = write_files(tmp_path, "b", authority=long, days=30)
    Path(files.ca).write_bytes(long.certificate + short.certificate)
    dates = holder(files, "required").contexts.dates
    assert dates.authority_s < dates.certificate_s
    assert dates.serial == f"{files.serial:x}"
