"""Each call that a client makes on its sockets fails once, with each error that the system gives.

Nothing but a documented error leaves the client, within the timeouts that were promised; the same
client works again afterwards; rows of the idempotent producer are stored once; and nothing that was
open stays open.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any, Final
from unittest import mock

import pytest

import quiverlog
from quiverlog.wire import messages as m
from tests.support.client_kinds import CLIENT_KINDS, connect
from tests.support.client_scenarios import SCHEMA, rows
from tests.support.failing_sockets import failing_sockets
from tests.support.scripted_broker import Cut, ScriptedBroker

SENT: Final = (
    errno.EPIPE, errno.ECONNRESET, errno.ENOBUFS, errno.ETIMEDOUT, errno.EHOSTUNREACH,
)  # fmt: skip
ERRORS: Final[dict[str, tuple[int, ...]]] = {
    "getaddrinfo": (socket.EAI_AGAIN,),
    "socket": (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.EAFNOSUPPORT),
    "connect": (
        errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT,
        errno.EADDRNOTAVAIL,
    ),
    "getpeername": (errno.ENOTCONN,),
    "getsockname": (errno.EINVAL,),
    "getsockopt": (errno.ENOBUFS,),
    "setsockopt": (errno.EINVAL, errno.ENOBUFS),
    "send": SENT,
    "sendmsg": SENT,
    "recv_into": (errno.ECONNRESET, errno.ETIMEDOUT, errno.EHOSTUNREACH),
    "poll": (errno.ENOMEM,),
}  # fmt: skip
"""What the system answers, call by call: the first at every place of the course."""
CASES: Final = [
    pytest.param(name, number, marks=[pytest.mark.long] * (number != numbers[0]))
    for name, numbers in ERRORS.items()
    for number in numbers
]
"""The client tells few errors of one call apart."""
CALLS_MAX: Final = 1_000
PLACES: Final = 2
"""At which all but the first error of a call are given: the client tells few of them apart."""
NEVER_MADE: Final = {("asyncio", "poll"), ("asyncio", "sendmsg")}
ASKED: Final = (
    m.HelloRequest, m.MetadataRequest, m.TopicSchemasRequest, m.ListOffsetsRequest,
    m.InitProducerIdRequest, m.ProduceRequest, m.FetchRequest,
)  # fmt: skip
REQUEST_S, CONNECT_S, DELIVERY_S = 4.0, 2.0, 10.0
SLACK_S: Final = 5.0
"""What a busy machine may add."""
ROWS: Final = 20


@pytest.fixture(scope="module")
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as broker:
        with quiverlog.connect(broker.bootstrap) as client:
            client.create_topic("t", SCHEMA, partitions=2)
        yield broker


def failure(name: str, number: int) -> OSError:
    if name == "getaddrinfo":
        return socket.gaierror(number, "Temporary failure in name resolution")
    return OSError(number, os.strerror(number))


class Course:
    """What a program does, in the same order every time."""

    def __init__(self, kind: str, broker: ScriptedBroker, host: str = "127.0.0.1") -> None:
        self.kind = kind
        self.host = host
        self.broker = broker
        self.errors: list[quiverlog.QuiverlogError] = []

    def attempt(self, action: Any) -> Any:
        """Do it; a documented error is an answer, and it comes in time."""
        started = time.monotonic()
        try:
            return action()
        except quiverlog.QuiverlogError as error:
            self.errors.append(error)
        finally:
            assert time.monotonic() - started < DELIVERY_S + SLACK_S
        return None

    def run(self) -> None:
        client = self.attempt(self.connect)
        if client is None:
            return
        with client:
            self.use(client)
            self.errors.clear()
            self.use(client)  # What failed has failed once.
            assert not self.errors

    def connect(self) -> Any:
        return connect(
            self.kind,
            f"{self.host}:{self.broker.port}",
            request_timeout=REQUEST_S,
            connect_timeout=CONNECT_S,
        )

    def use(self, client: Any) -> None:
        self.attempt(client.list_topics)
        before = self.attempt(lambda: client.list_offsets("t"))
        acknowledged = self.attempt(lambda: self.produce(client))
        after = self.attempt(lambda: client.list_offsets("t"))
        if before and after and acknowledged is not None:
            # Stored once each, whatever had to be sent again.
            assert sum(after.values()) - sum(before.values()) == acknowledged
        self.attempt(lambda: self.consume(client, before))

    def produce(self, client: Any) -> int:
        options = {"delivery_timeout": DELIVERY_S, "batch_rows": 5}
        with client.producer("t", **options) as producer:
            futures = [producer.send(rows(ROWS), partition=p) for p in (0, 1)]
            producer.flush()
            return sum(part.rows for future in futures for part in future.result())

    def consume(self, client: Any, start: dict[int, int] | None) -> None:
        at = dict(start or {0: 0, 1: 0})
        with client.consumer("t", start=dict(at)) as consumer:
            for batch in consumer:
                assert batch.base_offset == at[batch.partition], "a row twice, or none"
                at[batch.partition] = batch.next_offset


def descriptors() -> int:
    """Of sockets and event loops: files are the broker's."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")
            found += target.startswith("socket:") or "eventpoll" in target
    return found


def settled(before: int) -> None:
    """The broker in this process has closed its ends, too."""
    deadline = time.monotonic() + 10
    while descriptors() > before or any(
        thread.name == "quiverlog-io" for thread in threading.enumerate()
    ):
        assert time.monotonic() < deadline, f"{descriptors() - before} descriptors are left"
        time.sleep(0.005)


@pytest.mark.parametrize(("name", "number"), CASES, ids=lambda v: errno.errorcode.get(v, v))
@pytest.mark.parametrize("kind", CLIENT_KINDS)
def test_a_call_that_fails_once(
    broker: ScriptedBroker, kind: str, name: str, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    before = descriptors()
    host = "localhost" if name == "getaddrinfo" else "127.0.0.1"  # an address is not looked up
    places = CALLS_MAX if number == ERRORS[name][0] else PLACES
    for nth in range(places):
        with failing_sockets(name, nth, failure(name, number)) as log:
            Course(kind, broker, host).run()
        settled(before)
        assert not caplog.records, caplog.text
        if not log.has_failed:
            assert (nth == 0) == ((kind, name) in NEVER_MADE), "the course makes this call"
            return
    assert places == PLACES, "the course never ends"


@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: asked.__name__)
@pytest.mark.parametrize("kind", CLIENT_KINDS)
def test_a_broker_that_resets_in_the_middle_of_an_answer(
    broker: ScriptedBroker, kind: str, asked: type[m.Request], caplog: pytest.LogCaptureFixture
) -> None:
    """Each kind of answer, each place in it where a client does something else."""
    before = descriptors()
    for sent in (0, 1, 7, 8, 9, 40):
        broker.fault(asked, Cut(sent, resets=True))
        Course(kind, broker).run()
        broker.heal()
        settled(before)
    assert not caplog.records, caplog.text


@pytest.mark.parametrize("kind", CLIENT_KINDS)
def test_a_broker_that_stops_reading_while_a_producer_sends(
    broker: ScriptedBroker, kind: str
) -> None:
    """The broker's buffers and ours are full: rows have their error in time, and `close` ends."""
    before = descriptors()
    course = Course(kind, broker)
    with course.connect() as client, client.producer("t", delivery_timeout=3.0) as producer:
        producer.send(rows(1), partition=0).result()
        broker.on_loop(broker.stop_reading)
        started = time.monotonic()
        text = "x" * 1_000
        futures = [
            producer.send([{**row, "name": text} for row in rows(2_000)], partition=p)
            for p in (0, 1, 0, 1, 0, 1)
        ]
        with pytest.raises(quiverlog.QuiverlogError):
            producer.flush()
        for future in futures:
            with pytest.raises(quiverlog.QuiverlogError):
                future.result()
        assert time.monotonic() - started < 3.0 + REQUEST_S + SLACK_S
    assert time.monotonic() - started < 3.0 + 2 * REQUEST_S + SLACK_S
    broker.drop_connections()  # Which reads nothing, and so sees no end.
    settled(before)
    course.run()


def test_no_event_loop_for_producers_is_a_typed_error(broker: ScriptedBroker) -> None:
    before = descriptors()
    with quiverlog.connect(broker.bootstrap) as client:
        full = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        with (
            mock.patch.object(asyncio, "new_event_loop", side_effect=full),
            pytest.raises(quiverlog.ConnectionFailed, match="Too many open files"),
        ):
            client.producer("t")
        with client.producer("t") as producer:
            assert producer.send(rows(1), partition=0).result()
    settled(before)
