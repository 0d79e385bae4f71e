"""INIT_PRODUCER_ID: a new producer id, or the next epoch of one; DESCRIBE_PRODUCER.

An older epoch is over, in all partitions, before the answer with the newer one leaves: the
controller answers when all live brokers have applied the record, and fences one that does not
(registrar.py). A new id needs no wait: a broker without its record has the producer retry.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from quiverlog.core.controller.records import ProducerEpochRecord
from quiverlog.core.controller.topic_image import TopicImage
from quiverlog.core.controller.topics import next_producer_id_block
from quiverlog.errors import InvalidProducerEpoch, InvalidRequest, UnknownProducerId
from quiverlog.node.apis.topics import topic_page
from quiverlog.node.broker import Broker
from quiverlog.node.controller.not_controller import check_is_controller
from quiverlog.node.runtime import tasks
from quiverlog.node.runtime.tasks import Call, Steps, Wait
from quiverlog.types import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    PRODUCER_IDS_END,
    Operation,
    ResourceKind,
)
from quiverlog.wire import messages as m
from quiverlog.wire.producer_messages import (
    DescribeProducerRequest,
    DescribeProducerResponse,
    ProducerPartition,
    TopicProducer,
)

__all__ = ["handle_describe_producer", "handle_init_producer_id"]

_PRODUCER_EPOCH_MAX: Final = 2**15 - 1


def handle_init_producer_id(broker: Broker, call: Call) -> Steps:
    request = call.request
    assert isinstance(request, m.InitProducerIdRequest)
    if request.transactional_id:
        raise InvalidRequest("leave transactional_id empty: ordinary producers stage rows.")
    rights = broker.authoriser.rights_of(call.connection_id)
    if rights is not None:
        rights.check_some(request.API, Operation.WRITE, ResourceKind.TOPIC)
    check_is_controller(broker, call.connection_id)
    ids = broker.producer_ids
    producer_id, epoch = request.producer_id, request.producer_epoch
    if producer_id == NO_PRODUCER_ID and epoch != NO_EPOCH:
        raise InvalidRequest(f"epoch {epoch} comes without a producer id: leave it -1.")
    if producer_id != NO_PRODUCER_ID:
        if not 0 <= producer_id < PRODUCER_IDS_END or epoch < 0:
            raise InvalidRequest(f"producer id {producer_id} or epoch {epoch} is out of range.")
        yield from _end_epoch(broker, call, producer_id, epoch)
        if epoch < _PRODUCER_EPOCH_MAX:  # After the last epoch comes a new id.
            return m.InitProducerIdResponse(producer_id=producer_id, producer_epoch=epoch + 1)
    while ids.exhausted:
        yield _another_block(broker, call)
    return m.InitProducerIdResponse(producer_id=ids.take(), producer_epoch=0)


def _end_epoch(
    broker: Broker, call: Call, producer_id: int, epoch: int
) -> Generator[Wait, object, None]:
    """Propose the next epoch, and wait until no broker accepts this one any more."""
    ids = broker.producer_ids
    while True:
        newest = ids.newest_epoch(producer_id)
        if not ids.may_be_assigned(producer_id) or epoch > min(newest, _PRODUCER_EPOCH_MAX):
            raise UnknownProducerId(
                f"producer id {producer_id} with epoch {epoch} was never assigned, or is no longer"
                " kept: ask for a new id."
            )
        if epoch == newest:
            # Also after the last epoch: no client gets the next one, but its record ends this one.
            broker.admission.check_writable()
            record = ProducerEpochRecord(producer_id, newest + 1)
            yield broker.metadata.proposal([record], call.now)
            yield broker.membership.registrar.everywhere(call.now)
            return
        if epoch < ids.assigned_epoch(producer_id):
            # A refusal waits as long: the answer with the newer epoch may have been lost.
            yield broker.membership.registrar.everywhere(call.now)
            raise InvalidProducerEpoch(
                f"epoch {newest} of producer {producer_id} was assigned after epoch {epoch}."
            )
        yield broker.metadata.after_pending(call.now)


def _another_block(broker: Broker, call: Call) -> Wait:
    broker.admission.check_writable()
    return broker.metadata.proposal([next_producer_id_block(broker.metadata.pending)], call.now)


# --- DESCRIBE_PRODUCER ----------------------------------------------------------------------------
_PARTITIONS_PER_STEP: Final = 64
"""Each costs two look-ups."""


def handle_describe_producer(broker: Broker, call: Call) -> Steps:
    """Report the partitions led here: a follower may lack the newest batches."""
    request = call.request
    assert isinstance(request, DescribeProducerRequest)
    producer_id = request.producer_id
    if not 0 <= producer_id < PRODUCER_IDS_END:
        raise InvalidRequest(f"producer id {producer_id} is not from 0 to {PRODUCER_IDS_END - 1}.")
    found, next_name = yield from topic_page(
        broker,
        call,
        request.names,
        request.first_name,
        lambda topic, name: _written(broker, topic, name, call),
    )
    assert not next_name or next_name > request.first_name, "pages go on"
    ids = broker.producer_ids
    is_assigned = ids.may_be_assigned(producer_id)
    return DescribeProducerResponse(
        node_id=broker.config.node_id,
        newest_epoch=ids.assigned_epoch(producer_id) if is_assigned else NO_EPOCH,
        topics=[one for one in found if one.partitions],
        next_name=next_name,
    )


def _written(
    broker: Broker, topic: TopicImage | None, name: str, call: Call
) -> tasks.Making[TopicProducer]:
    request = call.request
    assert isinstance(request, DescribeProducerRequest)
    if topic is None:
        return TopicProducer(name=name)
    partitions: list[ProducerPartition] = []
    for number in range(len(topic.partitions)):
        if number % _PARTITIONS_PER_STEP == _PARTITIONS_PER_STEP - 1:
            yield
        replica = broker.replicas.get((topic.topic_id, number))
        if replica is None:
            continue
        progress = replica.producers.progress(request.producer_id, call.now.mono_us)
        if progress is not None:
            assert progress.last_offset < replica.log.log_end_offset, "its rows are stored"
            assert progress.idle_us >= 0
            partitions.append(
                ProducerPartition(
                    number,
                    progress.epoch,
                    progress.next_sequence,
                    progress.last_offset,
                    progress.idle_us // 1_000,
                )
            )
    return TopicProducer(name, topic.topic_id, partitions)
