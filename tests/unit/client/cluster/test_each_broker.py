"""Questions to each broker: pages go on, and a broker that does not answer is named."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from quiverlog.client.admin.producers import describe_producer
from quiverlog.client.base.commands import Call, Reply
from quiverlog.client.base.results import Address
from quiverlog.errors import QuiverlogError, RequestTimedOut
from quiverlog.wire.producer_messages import (
    DescribeProducerResponse,
    ProducerPartition,
    TopicProducer,
)

ADDRESSES = {n: Address(f"broker-{n}", 9292) for n in (1, 2, 3)}


class OneTry:
    """A cluster of three whose addresses are known."""

    metadata = SimpleNamespace(brokers=ADDRESSES)
    settings = SimpleNamespace(request_timeout_s=30.0)

    def refresh(self, _names: object) -> Any:
        yield from ()

    def retrying(self, attempt: Any) -> Any:
        return attempt()

    def address_of(self, node_id: int) -> Address:
        return ADDRESSES[node_id]

    def call(self, address: Address, request: Any, *, timeout_s: float) -> Call:
        return Call(address, request, timeout_s)


def ask(answers: Mapping[tuple[int, str], Any]) -> Any:
    """Drive `describe_producer`; `answers`: by node id and first name of the page."""
    by_address = {address: n for n, address in ADDRESSES.items()}
    operation = describe_producer(OneTry(), 7)  # type: ignore[arg-type]
    command = next(operation)
    while True:
        assert isinstance(command, Call)
        assert command.timeout_s == 5.0, "the others have to be asked as well"
        request: Any = command.request
        answer = answers[by_address[command.address], request.first_name]
        try:
            if isinstance(answer, QuiverlogError):
                command = operation.throw(answer)
            else:
                command = operation.send(Reply(answer, memoryview(b"")))
        except StopIteration as end:
            return end.value


def page(*topics: tuple[str, int], epoch: int = 0, then: str = "") -> DescribeProducerResponse:
    """(topic, offset of the producer's last row in partition 0) of each."""
    found = [
        TopicProducer(name, b"t" * 16, [ProducerPartition(0, 0, last + 1, last, 1_500)])
        for name, last in topics
    ]
    return DescribeProducerResponse(newest_epoch=epoch, topics=found, next_name=then)


def test_all_pages_of_all_brokers_count_and_the_silent_one_is_named() -> None:
    found = ask(
        {
            (1, ""): page(("a", 4), then="b"),
            (1, "b"): page(("b", 5)),
            (2, ""): RequestTimedOut("silent"),
            (3, ""): page(("c", 6), epoch=2),
        }
    )
    assert [(one.topic, one.leader, one.last_offset) for one in found.partitions] == [
        ("a", 1, 4),
        ("b", 1, 5),
        ("c", 3, 6),
    ]
    assert (found.epoch, found.silent) == (2, (2,))
    assert found.partitions[0].idle_s == 1.5


@pytest.mark.parametrize("ahead", [1, 3])
def test_of_two_that_report_a_partition_the_one_with_more_rows_counts(ahead: int) -> None:
    answers: dict[tuple[int, str], Any] = {(n, ""): page(("a", 4)) for n in ADDRESSES}
    answers[ahead, ""] = page(("a", 9))
    (one,) = ask(answers).partitions
    assert (one.leader, one.last_offset) == (ahead, 9)


def test_where_no_broker_answers_the_last_error_is_raised() -> None:
    with pytest.raises(RequestTimedOut, match="3 is silent"):
        ask({(n, ""): RequestTimedOut(f"{n} is silent") for n in ADDRESSES})
