"""A client's connection: every answer finds its request, wrong answers end the connection."""

from __future__ import annotations

import pytest

from quiverlog.errors import (
    CorruptFrame,
    FrameTooLarge,
    TooManyConnections,
    UnknownApi,
    UnsupportedVersion,
)
from quiverlog.wire import frames, messages
from quiverlog.wire.connection import CORRELATION_ID_MAX, ClientConnection, ConnectionState
from quiverlog.wire.registry import api_ranges


def answer(response: messages.Response, correlation_id: int, body: bytes = b"") -> frames.Frame:
    head = frames.encode(response, correlation_id, len(body))
    return frames.Frame(memoryview(head)[8:], memoryview(body))


def greeted(**hello: object) -> ClientConnection:
    connection = ClientConnection()
    head = connection.hello("test", "1.0")
    request = frames.decode_request(head[8:])
    assert isinstance(request, messages.HelloRequest)
    assert request.client_id == "test"
    fields = {"apis": api_ranges(between_brokers=True), "node_id": 3, **hello}
    connection.receive(answer(messages.HelloResponse(**fields), request.correlation_id))
    assert connection.state is ConnectionState.READY
    return connection


def test_answers_are_matched_in_any_order() -> None:
    connection = greeted()
    assert connection.peer is not None
    assert connection.peer.node_id == 3
    fetch, _ = connection.send(messages.FetchRequest())
    produce, head = connection.send(messages.ProduceRequest(), 10)
    assert frames.peek_preamble(head[8:]) == (messages.Api.PRODUCE, 1, produce)
    assert connection.in_flight == 2
    got = connection.receive(answer(messages.ProduceResponse(), produce))
    assert (got[0], type(got[1])) == (produce, messages.ProduceResponse)
    got = connection.receive(answer(messages.FetchResponse(), fetch, b"batches"))
    assert (got[0], bytes(got[2])) == (fetch, b"batches")
    assert connection.in_flight == 0


def test_requests_may_follow_hello_at_once() -> None:
    connection = ClientConnection()
    connection.hello("test", "1.0")
    correlation_id, _ = connection.send(messages.MetadataRequest())
    connection.receive(answer(messages.HelloResponse(apis=api_ranges(between_brokers=True)), 1))
    got = connection.receive(answer(messages.MetadataResponse(), correlation_id))
    assert isinstance(got[1], messages.MetadataResponse)


def test_an_unrequested_answer_ends_the_connection() -> None:
    connection = greeted()
    with pytest.raises(CorruptFrame, match="77"):
        connection.receive(answer(messages.FetchResponse(), 77))
    assert connection.state is ConnectionState.CLOSED


def test_an_answer_comes_once() -> None:
    connection = greeted()
    correlation_id, _ = connection.send(messages.FetchRequest())
    connection.receive(answer(messages.FetchResponse(), correlation_id))
    with pytest.raises(CorruptFrame):
        connection.receive(answer(messages.FetchResponse(), correlation_id))


def test_an_answer_of_another_api_is_refused() -> None:
    connection = greeted()
    correlation_id, _ = connection.send(messages.FetchRequest())
    with pytest.raises(CorruptFrame):
        connection.receive(answer(messages.ProduceResponse(), correlation_id))


def test_a_refusal_of_the_connection_itself_is_raised_as_it_is() -> None:
    connection = ClientConnection()
    connection.hello("test", "1.0")
    head = frames.encode_error(TooManyConnections("12,000 connections are open."))
    with pytest.raises(TooManyConnections, match="12,000"):
        connection.receive(frames.Frame(memoryview(head)[8:], memoryview(b"")))


def test_what_the_broker_does_not_speak_is_not_sent() -> None:
    ranges = [r for r in api_ranges(between_brokers=True) if r.api != messages.Api.DESCRIBE_RANGES]
    for api in ranges:
        if api.api == messages.Api.FETCH:
            api.version_min = api.version_max = 2
    connection = greeted(apis=ranges)
    with pytest.raises(UnknownApi, match="DESCRIBE_RANGES"):
        connection.send(messages.DescribeRangesRequest())
    with pytest.raises(UnsupportedVersion, match="2 to 2"):
        connection.send(messages.FetchRequest())
    assert connection.in_flight == 0


def test_administration_that_hello_does_not_name_is_sent() -> None:
    """The listener refuses it: its message names the listener to ask, which HELLO does not."""
    connection = greeted(apis=api_ranges(between_brokers=False, administration=False))
    connection.send(messages.DeleteTopicsRequest())
    assert connection.in_flight == 1


def test_the_brokers_frame_bound_holds() -> None:
    connection = greeted(frame_bytes_max=1000)
    with pytest.raises(FrameTooLarge, match="1000"):
        connection.send(messages.ProduceRequest(), 1000)
    assert connection.in_flight == 0


def test_correlation_ids_wrap_and_skip_those_in_flight() -> None:
    connection = greeted()
    connection._last_id = CORRELATION_ID_MAX - 1
    assert connection.send(messages.FetchRequest())[0] == CORRELATION_ID_MAX
    connection._in_flight[1] = messages.Api.FETCH
    assert connection.send(messages.FetchRequest())[0] == 2


def test_closing_reports_what_was_lost() -> None:
    connection = greeted()
    sent = [connection.send(messages.FetchRequest())[0] for _ in range(3)]
    assert connection.close() == sent
    assert connection.state is ConnectionState.CLOSED
    assert connection.in_flight == 0
