"""FORWARD: another broker's committed rows for partitions that this one leads.

Answered when the rows are as safe as their level, or at the deadline: the sender tries again, and
what is stored by then is found.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from quiverlog.errors import InvalidRequest, QuiverlogError, RequestTimedOut, ThrottledBroker
from quiverlog.limits import BATCH_HEADER_BYTES, FORWARD_TIMEOUT_MS
from quiverlog.node.broker import Broker
from quiverlog.node.runtime.events import RequestReceived
from quiverlog.node.runtime.purgatory import Waiter
from quiverlog.node.transactions.forwarded import Forwarded, Part, check_batches
from quiverlog.types import Now
from quiverlog.wire.messages import Api
from quiverlog.wire.transaction_messages import ForwardRequest

__all__ = ["ForwardWaiter", "handle_forward"]


def handle_forward(broker: Broker, event: RequestReceived, now: Now) -> None:
    request, body = event.request, event.body
    assert isinstance(request, ForwardRequest)
    if broker.purgatory.live >= broker.config.requests_waiting_max:
        raise ThrottledBroker
    forward = Forward(broker, event.connection_id, request, _parts(request, body))
    broker.appends.begin(forward, len(body))
    forward.admit(broker.appends, now)


def _parts(request: ForwardRequest, body: memoryview) -> list[Part]:
    parts: list[Part] = []
    at = 0
    for entry in request.partitions:
        if entry.batch_bytes < BATCH_HEADER_BYTES:
            raise InvalidRequest(
                f"an entry has {entry.batch_bytes} bytes of batches; a batch has at least"
                f" {BATCH_HEADER_BYTES}."
            )
        parts.append((entry, partial(check_batches, body[at : at + entry.batch_bytes])))
        at += entry.batch_bytes
    if at != len(body):
        raise InvalidRequest(f"the entries add up to {at} bytes, the body has {len(body)}.")
    return parts


class Forward(Forwarded):
    """The rows of a request."""

    __slots__ = ("_broker", "_request", "waiter")

    def __init__(
        self, broker: Broker, connection_id: int, request: ForwardRequest, parts: list[Part]
    ) -> None:
        super().__init__(broker.forwarding.targets, parts, None)
        self.asker = connection_id
        self._broker = broker
        self._request = request
        self.waiter: ForwardWaiter | None = None

    def on_wait(self, now: Now) -> None:
        assert self.waiter is None, "it waits once"
        timeout_ms = min(max(self._request.timeout_ms, 1), FORWARD_TIMEOUT_MS)
        self.waiter = ForwardWaiter(self, self._request, now.mono_us + timeout_ms * 1000)
        purgatory = self._broker.purgatory
        purgatory.add(self.waiter)

    def then(self, bug: Exception | None, now: Now) -> None:
        broker, waiter = self._broker, self.waiter
        self.settle()
        if bug is not None:
            if waiter is not None:
                broker.purgatory.fail(waiter, "FORWARD", bug)
                return
            broker.outbox.internal_error("FORWARD", bug)
            broker.fail(self.asker, self._request, QuiverlogError())
        elif waiter is None:
            broker.outbox.respond(self.asker, self._request.correlation_id, self.response)
        else:
            waiter.answer(broker.outbox, self.response)
            broker.purgatory.finish(waiter)
            del waiter.forward  # Else they would hold each other until the next collection.


class ForwardWaiter(Waiter):
    """The deadline of a request."""

    __slots__ = ("forward",)

    api: ClassVar[Api] = Api.FORWARD

    def __init__(self, forward: Forward, request: ForwardRequest, deadline_us: int) -> None:
        super().__init__(forward.asker, request.correlation_id, deadline_us)
        self.forward = forward

    def expire(self, now: Now) -> None:
        assert not self.done
        late = RequestTimedOut("the rows were not safe in time; they may yet be.")
        self.forward.give_up(late, now)

    def release(self) -> None:
        self.forward.done = True
