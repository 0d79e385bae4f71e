"""The node: a whole broker as one machine. Events in, effects out; no clock, socket or thread.

Owns the dispatch: which handler takes a request, what an error becomes, when deadlines, retention,
disk state and shutdown are looked at. Everything else is in the handlers.

Invariants:
- Every request is answered exactly once, or its connection is gone.
- Nothing that a client sends raises out of `handle`: an unexpected exception becomes an INTERNAL
  error for that request and a line in the log, and the broker goes on.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from typing import Final

from quiverlog.errors import (
    BrokerShuttingDown,
    CorruptFrame,
    FrameTooLarge,
    InvalidRequest,
    NotNegotiated,
    QuiverlogError,
    StorageFault,
    UnknownApi,
    UnsupportedVersion,
)
from quiverlog.limits import CLIENT_ID_CHARS_MAX
from quiverlog.node import lifecycle, offsets, topics
from quiverlog.node.broker import Broker, Phase
from quiverlog.node.config import NodeConfig
from quiverlog.node.effects import CloseConnection, Effect
from quiverlog.node.events import (
    ConnectionClosed,
    DiskSpace,
    Event,
    JobDone,
    RequestReceived,
    Shutdown,
    Tick,
)
from quiverlog.node.fetch import handle_fetch
from quiverlog.node.metrics import NodeMetrics
from quiverlog.node.produce import finish_produces, handle_init_producer_id, handle_produce
from quiverlog.node.retention import Retention
from quiverlog.storage.disk import Disk
from quiverlog.types import Now
from quiverlog.wire import messages as m
from quiverlog.wire.registry import APIS, api_ranges

__all__ = ["Node"]

_PROTOCOL_ERRORS: Final = (
    CorruptFrame, FrameTooLarge, UnknownApi, UnsupportedVersion, NotNegotiated,
)  # fmt: skip
"""After one of these the connection is closed: its bytes can no longer be trusted."""

_Handler = Callable[[Broker, RequestReceived, Now], None]


class Node:
    """See the module docstring.

    Args:
        config: what the operator decided.
        disk: where everything lies.
        entropy: source of random bytes (topic ids, cluster id, incarnation).
        metrics: counters that the caller exports.
    """

    __slots__ = ("_handlers", "_retention", "broker")

    def __init__(
        self,
        config: NodeConfig,
        disk: Disk,
        *,
        entropy: Callable[[int], bytes],
        metrics: NodeMetrics,
    ) -> None:
        self.broker = Broker(config, disk, entropy, metrics)
        self._retention = Retention(self.broker)
        self._handlers: dict[type[m.Request], _Handler] = {
            m.HelloRequest: _handle_hello,
            m.MetadataRequest: topics.handle_metadata,
            m.ProduceRequest: handle_produce,
            m.FetchRequest: handle_fetch,
            m.ListOffsetsRequest: offsets.handle_list_offsets,
            m.InitProducerIdRequest: handle_init_producer_id,
            m.CreateTopicsRequest: topics.handle_create_topics,
            m.DeleteTopicsRequest: topics.handle_delete_topics,
            m.AlterTopicRequest: topics.handle_alter_topic,
            m.DescribeTopicsRequest: topics.handle_describe_topics,
            m.TopicSchemasRequest: topics.handle_topic_schemas,
            m.DeleteRecordsRequest: offsets.handle_delete_records,
            m.EpochEndOffsetsRequest: offsets.handle_epoch_end_offsets,
            m.DescribeRangesRequest: offsets.handle_describe_ranges,
        }
        assert len(self._handlers) == len(APIS)

    # --- the machine's face --------------------------------------------------------------------
    def start(self, now: Now) -> list[Effect]:
        """Lock and read the data directory, recover every log, lead what is ours.

        Raises:
            DataDirectoryInUse, ForeignDataDirectory, UnsupportedFormat: not ours to start on.
            CorruptLog: the metadata log is damaged.
            InvalidConfig: the broker's topic defaults contradict a topic.
        """
        assert self.broker.phase is Phase.NEW
        lifecycle.start(self.broker, now)
        self._retention.start(now)
        return self._effects(now)

    def handle(self, event: Event, now: Now) -> list[Effect]:
        """One event; see `handle_many`."""
        self._take(event, now)
        return self._effects(now)

    def handle_many(self, events: Iterable[Event], now: Now) -> list[Effect]:
        """Events that came together (say, the requests of one read from a socket), in order.

        Better than one `handle` each: produces to one log share a write, and all share a flush.
        Every body must stay valid until this returns.
        """
        for event in events:
            self._take(event, now)
        return self._effects(now)

    def next_deadline_us(self) -> int | None:
        """When (monotonic) the node wants a Tick at the latest; None: never."""
        waiter_us = self.broker.purgatory.next_deadline_us()
        if self.broker.phase is not Phase.RUNNING:
            return waiter_us
        due_us = self._retention.next_us
        removal_us = self.broker.removal.next_us
        if removal_us is not None and removal_us < due_us:
            due_us = removal_us
        return due_us if waiter_us is None or due_us < waiter_us else waiter_us

    # --- parts ---------------------------------------------------------------------------------
    def _effects(self, now: Now) -> list[Effect]:
        broker = self.broker
        if broker.produces:
            finish_produces(broker, now)
        broker.settle(now)
        if broker.phase is Phase.CLOSING:
            lifecycle.finish_if_drained(broker, now)
        effects, broker.effects = broker.effects, []
        broker.metrics.parked_requests = broker.purgatory.live
        return effects

    def _take(self, event: Event, now: Now) -> None:
        if type(event) is RequestReceived:
            self._request(event, now)
            return
        broker = self.broker
        if broker.produces:
            finish_produces(broker, now)
        match event:
            case JobDone():
                broker.jobs.done(event, now)
            case ConnectionClosed():
                _forget_connection(broker, event.connection_id)
            case Tick():
                for waiter in broker.purgatory.expired(now.mono_us):
                    if not waiter.done:
                        waiter.expire(broker, now)
                if broker.phase is Phase.RUNNING:
                    self._retention.run(now)
                    broker.removal.run(now)
            case DiskSpace():
                broker.disk_space(event.free_bytes)
            case Shutdown():
                lifecycle.shut_down(broker, now)

    def _request(self, event: RequestReceived, now: Now) -> None:
        broker = self.broker
        request = event.request
        try:
            if event.connection_id not in broker.connections:
                if type(request) is not m.HelloRequest:
                    raise NotNegotiated
            elif broker.phase is not Phase.RUNNING:
                raise BrokerShuttingDown
            if broker.produces and type(request) is not m.ProduceRequest:
                finish_produces(broker, now)
            self._handlers[type(request)](broker, event, now)
        except QuiverlogError as error:
            self._fail(event, error)
        except OSError as error:
            broker.log("error", "the disk failed", api=request.API.name, why=str(error))
            self._fail(event, StorageFault(f"the disk failed: {error}."))
        except Exception as error:
            broker.metrics.internal_errors += 1
            trace = "".join(traceback.format_exception(error))
            broker.log("error", "internal error", api=request.API.name, trace=trace)
            self._fail(event, QuiverlogError())

    def _fail(self, event: RequestReceived, error: QuiverlogError) -> None:
        """The request as a whole becomes an error."""
        request = event.request
        response = APIS[request.API].response(error_code=error.code, error_message=error.message)
        self.broker.respond(event.connection_id, request.correlation_id, response)
        if isinstance(error, _PROTOCOL_ERRORS):
            effect = CloseConnection(event.connection_id, error.code_name())
            self.broker.effects.append(effect)


def _handle_hello(broker: Broker, event: RequestReceived, now: Now) -> None:
    """Who are you, what do you speak? Asking again does no harm."""
    request = event.request
    assert isinstance(request, m.HelloRequest)
    if len(request.client_id) > CLIENT_ID_CHARS_MAX:
        raise InvalidRequest(f"a client id has at most {CLIENT_ID_CHARS_MAX} characters.")
    response = m.HelloResponse(
        cluster_id=broker.cluster_id,
        node_id=broker.config.node_id,
        roles=list(broker.config.roles),
        software_version=broker.config.software_version,
        apis=api_ranges(),
        frame_bytes_max=broker.config.frame_bytes_max,
    )
    if request.version > m.HelloRequest.VERSION:
        # The client reads the versions spoken here and says HELLO again (KIP-511).
        response.error_code = UnsupportedVersion.code
        response.error_message = f"HELLO is spoken here up to version {m.HelloRequest.VERSION}."
    else:
        broker.connections[event.connection_id] = request.client_id
    broker.respond(event.connection_id, request.correlation_id, response)


def _forget_connection(broker: Broker, connection_id: int) -> None:
    broker.connections.pop(connection_id, None)
    for waiter in broker.purgatory.of_connection(connection_id):
        waiter.release(broker)
        broker.purgatory.finish(waiter)
