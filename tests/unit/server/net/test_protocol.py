"""The connection's flow control, on a real loop and real sockets; the node is a function."""

from __future__ import annotations

import asyncio
import os
import struct
import time
from typing import Any

import msgspec
import pytest

from quiverlog.errors import CorruptFrame, error_class
from quiverlog.node.runtime.effects import Effect, Respond, StartJob
from quiverlog.node.runtime.events import ConnectionOpened, JobDone, RequestReceived, Tick
from quiverlog.server.net.connection import BUSY_READ_BYTES, READ_BYTES, ClientProtocol
from quiverlog.wire import messages as m
from quiverlog.wire.frames import encode
from tests.support.server import PLACES, echo, request, serving, until


async def test_requests_of_one_read_are_handled_and_answered_together() -> None:
    async with serving() as server:
        client = await server.connect()
        client.writer.write(b"".join(request(i, b"x" * i) for i in range(1, 21)))
        answers = await client.receive(20)
        assert [a.correlation_id for a in answers] == list(range(1, 21))
        opened, handled = server.node.calls
        assert [type(event) for event in opened] == [ConnectionOpened]
        assert {type(event) for event in handled} == {RequestReceived}
        assert server.node.bodies == [b"x" * i for i in range(1, 21)]
        counters = server.metrics.requests[m.Api.METADATA]
        assert counters.count == sum(counters.total.counts) == sum(counters.queue.counts) == 20


async def test_a_request_in_many_pieces() -> None:
    async with serving() as server:
        client = await server.connect()
        data = request(7, os.urandom(300_000))
        for at in range(0, len(data), 40_000):
            client.writer.write(data[at : at + 40_000])
            await client.writer.drain()
            await asyncio.sleep(0.002)
        (answer,) = await client.receive(1)
        assert answer.correlation_id == 7
        assert server.node.bodies == [data[-300_000:]]


async def test_too_many_in_flight_pause_reading_and_nothing_is_lost() -> None:
    async with serving(in_flight_max=4) as server:
        server.node.answer = lambda event: []
        client, other = await server.connect(), await server.connect()
        client.writer.write(b"".join(request(i, b"%03d" % i) for i in range(1, 31)))
        await until(lambda: len(server.node.bodies) == 4)
        # Another client's bytes go through the same receive buffer meanwhile.
        other.writer.write(request(99, b"z" * 1000))
        await until(lambda: b"z" * 1000 in server.node.bodies)
        assert len(server.node.bodies) == 5
        (connection_id,) = {e.connection_id for e in server.node.calls[0]}
        for i in range(1, 31):
            respond = Respond(connection_id, m.MetadataResponse(), i)
            server.runner.perform([respond])
            server.runner.flush()
            await asyncio.sleep(0)
            held = server.table.by_id[connection_id].state.in_flight
            assert len(held) <= 4
            await until(lambda done=i: len(server.node.bodies) >= min(30, done + 4) + 1)
        assert len(await client.receive(30)) == 30
        mine = [b for b in server.node.bodies if len(b) == 3]
        assert mine == [b"%03d" % i for i in range(1, 31)]
        assert server.metrics.reads_paused >= 1


async def test_a_slow_reader_stops_only_itself() -> None:
    big = memoryview(bytes(1 << 20))

    def answer(event: Any) -> list[Effect]:
        if not isinstance(event, RequestReceived):
            return []
        body = [big] if event.body == b"big" else []
        return [Respond(event.connection_id, m.FetchResponse(), event.request.correlation_id, body)]

    async with serving(write_buffer_bytes=2 << 20) as server:
        server.node.answer = answer
        slow, good = await server.connect(), await server.connect()
        slow.writer.write(b"".join(request(i, b"big") for i in range(1, 1001)))
        await until(lambda: server.metrics.reads_paused)
        handled = len(server.node.bodies)
        # What was taken up: a chunk, and what the kernel's buffers held.
        assert handled < 200
        for i in range(1, 101):
            good.writer.write(request(i))
            (response,) = await good.receive(1)
            assert response.correlation_id == i
        assert len(server.node.bodies) == handled + 100
        waiting = max(c.waiting_bytes for c in server.table.by_id.values())
        assert waiting < (64 + 2 + 1) << 20
        slow.writer.transport.abort()
        await until(lambda: len(server.table) == 1)


async def test_connections_beyond_the_limit_get_the_error() -> None:
    async with serving(places=PLACES._replace(clients=2)) as server:
        first, _ = await server.connect(), await server.connect()
        await until(lambda: len(server.table) == 2)
        third = await server.connect()
        (refusal,) = await third.receive(1)
        assert error_class(refusal.error_code).code_name() == "TOO_MANY_CONNECTIONS"
        assert await third.ended()
        assert server.metrics.connections_refused_by == {"TOO_MANY_CONNECTIONS": 1}
        first.writer.close()
        await until(lambda: len(server.table) == 1)
        fourth = await server.connect()
        fourth.writer.write(request(1))
        assert len(await fourth.receive(1)) == 1


async def test_a_response_too_large_for_a_frame_becomes_an_error() -> None:
    async with serving() as server:
        server.node.answer = lambda event: (
            [
                Respond(
                    event.connection_id,
                    m.MetadataResponse(cluster_id="x" * (5 << 20)),
                    event.request.correlation_id,
                )
            ]
            if isinstance(event, RequestReceived)
            else []
        )
        client = await server.connect()
        client.writer.write(request(1))
        (response,) = await client.receive(1)
        assert error_class(response.error_code).code_name() == "FRAME_TOO_LARGE"
        assert (response.api, response.correlation_id) == (m.Api.METADATA, 1)


@pytest.mark.parametrize("correlation_id", [0, -1, 2**31, 2**63])
async def test_an_answer_under_no_id_is_about_no_api(correlation_id: int) -> None:
    """API 0 and id 0: about the connection itself, however the bad id was written."""
    header = msgspec.msgpack.encode([int(m.Api.METADATA), 1, correlation_id])
    async with serving() as server:
        client = await server.connect()
        client.writer.write(struct.pack("<II", 4 + len(header), len(header)) + header)
        (answer,) = await client.receive(1)
        assert (answer.api, answer.correlation_id) == (0, 0)
        assert error_class(answer.error_code) is CorruptFrame


async def test_flushes_come_back_to_the_node_with_their_error() -> None:
    class Flush:
        kind = "flush"

        def __init__(self, key: str, error: Exception | None = None) -> None:
            self.key = key
            self.error = error

        def run(self) -> None:
            if self.error is not None:
                raise self.error

    async with serving() as server:
        good, bad = Flush("a"), Flush("b", OSError("no"))
        server.runner.perform([StartJob(good), StartJob(bad)])
        await until(lambda: len(server.node.events(JobDone)) == 2)
        errors = {id(e.job): e.error for e in server.node.events(JobDone)}
        assert errors == {id(good): None, id(bad): bad.error}
        assert server.runner.jobs.uncollected == 0
        assert sum(server.metrics.sync.counts) == 2


async def test_nothing_that_happens_after_a_stop_starts_a_job() -> None:
    """A stop that is out of time leaves jobs, connections and a timer behind."""

    class Work:
        key = kind = "work"

        def run(self) -> None:
            pass

    def answer(event: Any) -> list[Effect]:
        return [StartJob(Work())]  # type: ignore[arg-type]

    raised: list[dict[str, Any]] = []
    async with serving() as server:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: raised.append(what))
        client = await server.connect()
        await until(lambda: len(server.table) == 1)
        server.node.answer = answer
        server.node.deadline_us = 0
        server.runner.deliver(Tick())
        assert server.runner.close(10.0)
        count = len(server.node.calls)
        client.writer.transport.abort()
        await until(lambda: not server.table.by_id)
        server.runner.deliver(Tick())
        await asyncio.sleep(0.01)  # The job that was under way has woken the loop meanwhile.
        assert len(server.node.calls) == count
    assert raised == []


async def test_ticks_come_when_the_node_wants_them() -> None:
    async with serving() as server:
        loop = asyncio.get_running_loop()

        def answer(event: Any) -> list[Effect]:
            if isinstance(event, Tick):
                server.node.deadline_us = None
            return []

        server.node.answer = answer
        start = loop.time()
        for delay_s in (10.0, 0.05):  # the earlier deadline must replace the later timer
            server.node.deadline_us = int((start + delay_s) * 1e6)
            server.runner.flush()
        await until(lambda: server.node.events(Tick))
        assert 0.05 <= round(loop.time() - start, 3) < 5  # The clock has steps of a millisecond.
        assert len(server.node.events(Tick)) == 1


async def test_a_flood_of_requests_is_worked_off_in_turns_between_others() -> None:
    """Between two turns of the busy connection, a connection with a single request is served."""
    async with serving(in_flight_max=100_000) as server:
        busy, other = await server.connect(), await server.connect()
        order: list[int] = []

        def answer(event: Any) -> list[Effect]:
            if isinstance(event, RequestReceived):
                order.append(event.request.correlation_id)
            return echo(event)

        server.node.answer = answer
        busy.writer.write(b"".join(request(i) for i in range(1, 3_001)))
        await until(lambda: order)
        other.writer.write(request(999_999))
        assert len(await other.receive(1)) == 1
        assert order.index(999_999) < 2_500
        assert [a.correlation_id for a in await busy.receive(3_000)] == list(range(1, 3_001))
        assert [i for i in order if i != 999_999] == list(range(1, 3_001))


async def test_a_turn_ends_in_time_however_long_its_requests_take() -> None:
    async with serving() as server:
        client = await server.connect()

        def answer(event: Any) -> list[Effect]:
            if isinstance(event, RequestReceived):
                deadline = time.perf_counter_ns() + 2_000_000
                while time.perf_counter_ns() < deadline:
                    pass
            return echo(event)

        server.node.answer = answer
        client.writer.write(b"".join(request(i) for i in range(1, 31)))
        assert [a.correlation_id for a in await client.receive(30)] == list(range(1, 31))
        requests = [len(call) for call in server.node.calls]
        assert max(requests) <= 2, requests


async def test_pieces_read_are_small_while_others_wait_for_a_turn() -> None:
    """Cutting and copying thousands of tiny requests is work that no turn's time counts."""

    class Waiting:
        is_scheduled = False

        def run_turn(self) -> None:
            pass

    async with serving() as server:
        await server.connect()
        await until(lambda: server.table.by_id)
        (connection,) = server.table.by_id.values()
        assert isinstance(connection, ClientProtocol)
        assert len(connection.get_buffer(-1)) == READ_BYTES
        server.scheduler.request(Waiting())
        assert len(connection.get_buffer(-1)) == BUSY_READ_BYTES
        await until(lambda: not server.scheduler)
        assert len(connection.get_buffer(-1)) == READ_BYTES


async def test_large_answers_make_chunks_small() -> None:
    def answer(event: Any) -> list[Effect]:
        if not isinstance(event, RequestReceived):
            return []
        response = m.MetadataResponse(cluster_id="x" * 500_000)
        return [Respond(event.connection_id, response, event.request.correlation_id)]

    async with serving(write_buffer_bytes=1 << 20) as server:
        server.node.answer = answer
        client = await server.connect()
        client.writer.write(b"".join(request(i) for i in range(1, 501)))
        await until(lambda: server.memory.used_bytes > 1 << 20)
        await until(lambda: not server.scheduler)
        # The first chunk of 64, not known to be large; then 16; then it is held back.
        assert server.memory.used_bytes < 90 * 500_000
        assert len(await client.receive(500)) == 500


async def test_the_connection_that_holds_most_is_closed_when_all_hold_too_much() -> None:
    async with serving(memory_bytes=8 << 20) as server:
        good = await server.connect()
        holders = [await server.connect() for _ in range(8)]
        for number, client in enumerate(holders):
            size = (1 + number) << 20
            client.writer.write(encode(m.MetadataRequest(), 1, 40 << 20) + bytes(size))
        await until(lambda: server.metrics.connections_closed_by.get("memory"))
        await until(lambda: server.memory.used_bytes <= 8 << 20)
        good.writer.write(request(5))
        assert len(await good.receive(1)) == 1
        assert "reason=memory" in server.log.getvalue()
        assert server.memory.used_bytes_peak < 10 << 20


async def test_an_error_names_no_path_outside_the_data_directory() -> None:
    def answer(event: Any) -> list[Effect]:
        if not isinstance(event, RequestReceived):
            return []
        text = "writing /srv/quiverlog/t-0/00.log failed."
        part = m.FetchPartitionResult(error_code=CorruptFrame.code, error_message=text)
        response = m.FetchResponse(
            error_code=CorruptFrame.code, error_message=text, partitions=[part]
        )
        return [Respond(event.connection_id, response, event.request.correlation_id)]

    async with serving() as server:
        server.node.answer = answer
        client = await server.connect()
        client.writer.write(request(1))
        (response,) = await client.receive(1)
        assert response.error_message == "writing t-0/00.log failed."


async def test_a_response_that_cannot_be_encoded_is_answered_and_the_others_go_out() -> None:
    def answer(event: Any) -> list[Effect]:
        if not isinstance(event, RequestReceived):
            return []
        bad = event.request.correlation_id == 2
        response = m.MetadataResponse(cluster_id="\ud800" if bad else "")
        return [Respond(event.connection_id, response, event.request.correlation_id)]

    async with serving() as server:
        server.node.answer = answer
        client = await server.connect()
        client.writer.write(request(1) + request(2) + request(3))
        answers = await client.receive(3)
        assert [bool(a.error_code) for a in answers] == [False, True, False]
        assert server.metrics.node.internal_errors == 1


async def test_closed_connections_leave_the_budget_empty() -> None:
    async with serving() as server:
        client = await server.connect()
        client.writer.write(encode(m.MetadataRequest(), 1, 4 << 20) + bytes(1 << 20))
        await until(lambda: server.memory.used_bytes > 900_000)
        client.writer.transport.abort()
        await until(lambda: not server.table.by_id)
        assert server.memory.used_bytes == 0
