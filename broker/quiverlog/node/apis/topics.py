"""CREATE_TOPICS, DELETE_TOPICS, ALTER_TOPIC.

A change is decided on `metadata.pending`, proposed, and answered when it is committed and its
partitions here are open or offline. Their directories are made before the record is logged: one
that is missing later is a loss. A crash in between leaves some without a record, which the next
start removes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Final, TypeVar

from quiverlog.core.controller import topics as decide
from quiverlog.core.controller.internal_topics import TRANSACTION_TOPICS
from quiverlog.core.controller.records import PartitionRecord, Record, TopicRecord
from quiverlog.core.controller.topic_image import TopicImage
from quiverlog.errors import InvalidRequest, QuiverlogError
from quiverlog.limits import TOPICS_PER_REQUEST_MAX
from quiverlog.node.broker import Broker
from quiverlog.node.controller.not_controller import controller_for, decided
from quiverlog.node.runtime.tasks import Call, Change, Future, Making, Steps, Wait, by_name
from quiverlog.node.security.authoriser import Rights, no_topic
from quiverlog.types import Operation
from quiverlog.wire import messages as m

__all__ = [
    "check_count",
    "handle_alter_topic",
    "handle_create_topics",
    "handle_delete_topics",
    "make_internal_topics",
    "topic_page",
]

_Entry = TypeVar("_Entry", bound=m.Part)

_DECIDED_AT_ONCE: Final = 64
"""Decided before the first is waited for: they share the fsync."""

_SCHEMA_BYTES_PER_STEP: Final = 1_024
"""A schema of 2,000 columns (100 KB) takes some ten milliseconds."""


def _schema_cost(schema: bytes | None) -> int:
    return 1 + len(schema or b"") // _SCHEMA_BYTES_PER_STEP


def check_count(count: int) -> None:
    if count > TOPICS_PER_REQUEST_MAX:
        raise InvalidRequest(f"{count} topics in a request, allowed are {TOPICS_PER_REQUEST_MAX}.")


def topic_page(
    broker: Broker,
    call: Call,
    names: list[str] | None,
    first_name: str | None,
    make: Callable[[TopicImage | None, str], Making[_Entry]],
) -> Generator[None, object, tuple[list[_Entry], str]]:
    """`by_name` for these topics; None: all that the client may describe. `make` gets None for a
    name without such a topic."""
    seen = broker.authoriser.topics(call.connection_id, call.request.API)
    chosen = (yield from seen.names()) if names is None else names
    check_count(len(chosen))
    return (
        yield from by_name(
            chosen, first_name, lambda name: make(seen.listed(name), name), lambda _name: 0
        )
    )


# --- CREATE_TOPICS ------------------------------------------------------------------------------
def handle_create_topics(broker: Broker, call: Call) -> Steps:
    request = call.request
    assert isinstance(request, m.CreateTopicsRequest)
    check_count(len(request.topics))
    change = _enter(broker, call, [new.name for new in request.topics])
    return _create_topics(broker, call, request, change)


def _create_topics(
    broker: Broker, call: Call, request: m.CreateTopicsRequest, change: Change
) -> Steps:
    broker.admission.check_writable()
    rights = broker.authoriser.rights_of(call.connection_id)
    results: list[m.TopicResult] = []
    for first in range(0, len(request.topics), _DECIDED_AT_ONCE):
        proposed: list[tuple[m.TopicResult, Future]] = []
        for new in request.topics[first : first + _DECIDED_AT_ONCE]:
            result = m.TopicResult(new.name)
            results.append(result)
            yield from _wait_turn(broker, change)
            try:
                if rights is not None:
                    # Before anything is looked up: others do not learn whether the name is taken.
                    rights.check_topic(request.API, Operation.CREATE, new.name)
                records = yield from decided(
                    broker,
                    call,
                    partial(_decide_create, broker, call, new),
                    partial(_until_free, broker, call, new.name),
                )
                if not request.validate_only:
                    # Taken now: when it is committed, the name may be another topic's.
                    result.topic_id = _id_of_new(records)
                    proposed.append((result, _propose(broker, call, records)))
            except QuiverlogError as error:
                _refuse(result, error)
            broker.topic_order.decided(change, call.now)
            yield None
        yield from _wait_for_each(proposed)
        for result, _ in proposed:
            yield from _created(broker, call, result)
    assert len(results) == len(request.topics), "a result for each"
    controller = controller_for(broker, call.connection_id, results)
    return m.CreateTopicsResponse(topics=results, controller=controller)


def _until_free(broker: Broker, call: Call, name: str) -> Generator[Wait, object, None]:
    """Wait while a deleted topic of this name has directories."""
    while True:
        old = broker.assignment.opening_deleted(name)
        if broker.metadata.is_ending(name):
            yield broker.metadata.after_pending(call.now)
        elif old is not None:
            yield broker.assignment.opened(old, call.now)
        else:
            return


def _decide_create(broker: Broker, call: Call, new: m.NewTopic) -> list[Record]:
    config = broker.config
    call.cost = _schema_cost(new.schema)
    broker.admission.check_writable()  # The topics before may have filled the disk.
    return decide.create_topic(
        broker.metadata.pending,
        name=new.name,
        schema=new.schema,
        partitions=config.partitions_default if new.partitions == -1 else new.partitions,
        replication_factor=new.replication_factor,
        key_columns=new.key_columns,
        configs=new.configs,
        now_us=call.now.wall_us,
        entropy=broker.entropy,
    )


def _id_of_new(records: list[Record]) -> bytes:
    topic = records[0]
    assert isinstance(topic, TopicRecord)
    return topic.topic_id


def _propose(broker: Broker, call: Call, records: list[Record]) -> Future:
    future = Future()
    broker.propose(records, call.now, future.set)
    return future


def _created(broker: Broker, call: Call, result: m.TopicResult) -> Generator[Wait, object, None]:
    if result.error_code:
        return
    assert result.topic_id
    topic = broker.metadata.image.topics_by_id.get(result.topic_id)
    if topic is None:
        return  # It was deleted meanwhile.
    broker.outbox.log(
        "info",
        "topic created",
        topic=result.name,
        partitions=len(topic.partitions),
        replicas=topic.replication_factor,
        min_in_sync=topic.config.min_in_sync_replicas,
    )
    yield broker.assignment.opened(topic.topic_id, call.now)


# --- internal topics ----------------------------------------------------------------------------
def make_internal_topics(
    broker: Broker, call: Call, names: Sequence[str] = TRANSACTION_TOPICS
) -> Generator[Wait, object, None]:
    """Make these internal topics where they are missing; return when all are there.

    Raises NotController, and as `ensure_internal_topics`.
    """
    records = yield from decided(broker, call, partial(_decide_internal, broker, call, names))
    if records:
        broker.admission.check_writable()
        yield _propose(broker, call, records).wait
        factor = decide.internal_factor(broker.metadata.image)
        broker.outbox.log("info", "internal topics created", replicas=factor)
    for name in names:
        yield broker.assignment.opened(broker.metadata.image.topics[name].topic_id, call.now)


def _decide_internal(broker: Broker, call: Call, names: Sequence[str]) -> list[Record]:
    return decide.ensure_internal_topics(
        broker.metadata.pending,
        names,
        staged=broker.config.staged_partitions,
        now_us=call.now.wall_us,
        entropy=broker.entropy,
    )


# --- DELETE_TOPICS ------------------------------------------------------------------------------
def handle_delete_topics(broker: Broker, call: Call) -> Steps:
    """Answer when the deletions are committed; the files are removed later."""
    request = call.request
    assert isinstance(request, m.DeleteTopicsRequest)
    check_count(len(request.names))
    if request.topic_ids and len(request.topic_ids) != len(request.names):
        raise InvalidRequest(
            f"{len(request.names)} names and {len(request.topic_ids)} topic ids: give one for each"
            " name, or none."
        )
    change = _enter(broker, call, request.names)
    return _delete_topics(broker, call, request, change)


def _delete_topics(
    broker: Broker, call: Call, request: m.DeleteTopicsRequest, change: Change
) -> Steps:
    results: list[m.TopicResult] = []
    rights = broker.authoriser.rights_of(call.connection_id)
    for first in range(0, len(request.names), _DECIDED_AT_ONCE):
        proposed: list[tuple[m.TopicResult, Future]] = []
        for number, name in enumerate(request.names[first : first + _DECIDED_AT_ONCE], first):
            result = m.TopicResult(name)
            results.append(result)
            yield from _wait_turn(broker, change)
            topic_id = request.topic_ids[number] if request.topic_ids else b""
            try:
                find = partial(_find, broker, rights, name, topic_id)
                topic = yield from decided(broker, call, find)
                result.topic_id = topic.topic_id
                proposed.append((result, _propose(broker, call, decide.delete_topic(topic))))
            except QuiverlogError as error:
                _refuse(result, error)
            broker.topic_order.decided(change, call.now)
            yield None
        yield from _wait_for_each(proposed)
        for result, _ in proposed:
            if not result.error_code:
                broker.outbox.log("info", "topic deleted", topic=result.name)
    assert len(results) == len(request.names), "a result for each"
    controller = controller_for(broker, call.connection_id, results)
    return m.DeleteTopicsResponse(topics=results, controller=controller)


def _find(broker: Broker, rights: Rights | None, name: str, topic_id: bytes) -> TopicImage:
    if rights is not None and name in broker.metadata.pending.topics:
        rights.check_topic(m.Api.DELETE_TOPICS, Operation.DELETE, name, no_topic(name))
    topic = decide.find_topic_as(broker.metadata.pending, name, topic_id)
    assert topic.name == name
    return topic


# --- ALTER_TOPIC --------------------------------------------------------------------------------
def handle_alter_topic(broker: Broker, call: Call) -> Steps:
    """Decide the whole request or nothing."""
    request = call.request
    assert isinstance(request, m.AlterTopicRequest)
    change = _enter(broker, call, [request.name])
    return _alter_topic(broker, call, request, change)


def _alter_topic(broker: Broker, call: Call, request: m.AlterTopicRequest, change: Change) -> Steps:
    yield from _wait_turn(broker, change)
    rights = broker.authoriser.rights_of(call.connection_id)
    decide_alter = partial(_decide_alter, broker, call, request, rights)
    records = yield from decided(broker, call, decide_alter)
    topic = decide.find_topic(broker.metadata.pending, request.name)
    if not records or request.validate_only:
        return m.AlterTopicResponse(schema_id=topic.schema_id)
    if any(isinstance(record, PartitionRecord) for record in records):
        broker.admission.check_writable()
    proposed = _propose(broker, call, records)
    broker.topic_order.decided(change, call.now)
    yield proposed.wait
    call.is_committed = True
    yield broker.assignment.opened(topic.topic_id, call.now)
    broker.outbox.log("info", "topic altered", topic=topic.name, records=len(records))
    altered = broker.metadata.image.topics_by_id.get(topic.topic_id, topic)
    return m.AlterTopicResponse(schema_id=altered.schema_id)


def _decide_alter(
    broker: Broker, call: Call, request: m.AlterTopicRequest, rights: Rights | None
) -> list[Record]:
    topic = decide.find_topic(broker.metadata.pending, request.name)
    if rights is not None:
        _check_alter(rights, request)
    call.cost = _schema_cost(request.schema)
    return decide.alter_topic(
        broker.metadata.pending,
        topic,
        set_configs=request.set_configs,
        delete_configs=request.delete_configs,
        partitions=request.partitions,
        schema=request.schema,
        now_us=call.now.wall_us,
    )


def _check_alter(rights: Rights, request: m.AlterTopicRequest) -> None:
    needed = set[Operation]()
    if request.set_configs or request.delete_configs:
        needed.add(Operation.ALTER_CONFIGS)
    if request.schema or request.partitions != -1:
        needed.add(Operation.ALTER)
    assert not request.schema or Operation.ALTER in needed
    for operation in sorted(needed or {Operation.DESCRIBE}):
        rights.check_topic(request.API, operation, request.name, no_topic(request.name))


# --- parts --------------------------------------------------------------------------------------
def _enter(broker: Broker, call: Call, names: Sequence[str]) -> Change:
    """Have later requests of the connection wait for this one's decisions about these names."""
    change = broker.topic_order.enter(call.connection_id, names)
    call.on_end = partial(broker.topic_order.leave, change)
    return change


def _wait_turn(broker: Broker, change: Change) -> Generator[Wait, object, None]:
    while (earlier := broker.topic_order.wait(change)) is not None:
        yield earlier


def _wait_for_each(
    proposed: list[tuple[m.TopicResult, Future]],
) -> Generator[Wait, object, None]:
    for result, future in proposed:
        try:
            yield future.wait
        except QuiverlogError as error:
            _refuse(result, error)


def _refuse(result: m.TopicResult, error: QuiverlogError) -> None:
    result.topic_id = b""
    result.error_code, result.error_message = error.code, error.message
