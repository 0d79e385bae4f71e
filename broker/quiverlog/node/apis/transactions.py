"""OPEN, COMMIT and ABORT_TRANSACTION of clients, and what people and brokers ask about them.

LIST and DESCRIBE show what is safe: each broker what it coordinates, and what is staged there.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Generator, Iterable
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import Final

from msgspec.structs import replace

from quiverlog.core.controller.features import TRANSACTIONS_LEVEL, check_finalised
from quiverlog.core.controller.internal_topics import STAGED, TRANSACTIONS, is_internal
from quiverlog.core.transactions.coordinator import Resolving
from quiverlog.errors import CoordinatorNotReady, InvalidRequest, QuiverlogError, TransactionFenced
from quiverlog.limits import CONFIGS_PER_REQUEST_MAX
from quiverlog.node.apis.topics import make_internal_topics
from quiverlog.node.broker import Broker
from quiverlog.node.controller.not_controller import check_is_controller
from quiverlog.node.runtime.jobs import Starter
from quiverlog.node.runtime.tasks import Call, Future, Steps, Wait
from quiverlog.node.security.authoriser import Rights, no_topic_id
from quiverlog.node.transactions.coordinators import Shown
from quiverlog.types import Operation, ResourceKind
from quiverlog.wire.transaction_messages import (
    AbortTransactionRequest,
    CommitTransactionRequest,
    CountStagedRequest,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    OpenTransactionRequest,
    PublishRequest,
    PublishResponse,
    PublishWait,
    ResolvedTransaction,
    ResolveStagedRequest,
    ResolveStagedResponse,
    TransactionDescription,
    TransactionListing,
    TransactionState,
    UnservedPartition,
)

__all__ = [
    "handle_abort_transaction",
    "handle_commit_transaction",
    "handle_count_staged",
    "handle_describe_transactions",
    "handle_list_transactions",
    "handle_open_transaction",
    "handle_publish",
    "handle_resolve_staged",
]

_RESOLVED_PER_STEP: Final = 64
_SHOWN_PER_STEP: Final = 64
_LOOKS_PER_STEP: Final = 2_000
_PAGE_IDS: Final = 500
"""At most some 2 MiB: an id and its client's name have up to 4 bytes a character."""


def handle_open_transaction(broker: Broker, call: Call) -> Steps:
    request = call.request
    assert isinstance(request, OpenTransactionRequest)
    request.check()
    _check_id(broker, call, request.transactional_id)
    _check_level(broker)
    if TRANSACTIONS not in broker.view.image.topics:
        check_is_controller(broker, call.connection_id)
        yield from make_internal_topics(broker, call)
        raise CoordinatorNotReady("the internal topics are made now.")
    client_id = broker.clients.client_id_of(call.connection_id)
    return (yield from _counted(broker, broker.coordinators.open(call, client_id)))


def handle_commit_transaction(broker: Broker, call: Call) -> Steps:
    request = call.request
    assert isinstance(request, CommitTransactionRequest)
    request.check()
    check_id = partial(_check_id, broker, call, request.transactional_id)
    check_id()
    _check_level(broker)
    check = partial(_check_targets, broker, call, check_id)
    return (yield from _counted(broker, broker.coordinators.commit(call, check)))


def handle_abort_transaction(broker: Broker, call: Call) -> Steps:
    request = call.request
    assert isinstance(request, AbortTransactionRequest)
    request.check()
    _check_id(broker, call, request.transactional_id)
    _check_level(broker)
    return (yield from _counted(broker, broker.coordinators.abort(call)))


def _check_id(broker: Broker, call: Call, transactional_id: str) -> None:
    rights = broker.authoriser.rights_of(call.connection_id)
    if rights is not None:
        kind = ResourceKind.TRANSACTIONAL_ID
        rights.check(call.request.API, Operation.WRITE, kind, transactional_id)


def _check_targets(
    broker: Broker, call: Call, check_id: Callable[[], None], topic_ids: Collection[bytes]
) -> None:
    """Check, before the decision, what the rows need that were staged under earlier rules, or by
    another client. Raises UnknownTopicId, NotAuthorized."""
    check_id()
    rights = broker.authoriser.rights_of(call.connection_id)
    if rights is None:
        return
    for topic_id in sorted(topic_ids):
        topic = broker.view.image.topics_by_id.get(topic_id)
        if topic is None:
            raise no_topic_id(topic_id)
        rights.check_topic(call.request.API, Operation.WRITE, topic.name, no_topic_id(topic_id))


def _counted(broker: Broker, steps: Steps) -> Steps:
    try:
        return (yield from steps)
    except TransactionFenced:
        broker.metrics.transactions_fenced += 1
        raise


def _check_level(broker: Broker) -> None:
    check_finalised(broker.view.image, TRANSACTIONS_LEVEL, "a transaction")


def handle_count_staged(broker: Broker, call: Call) -> Steps:
    request = call.request
    assert isinstance(request, CountStagedRequest)
    yield None
    return broker.staging.count(request)


def handle_publish(broker: Broker, call: Call) -> Steps:
    request = call.request
    assert isinstance(request, PublishRequest)
    published = Future()
    broker.staging.publish(request, published.set, call.now)
    response = yield published.wait
    assert isinstance(response, PublishResponse)
    return response


def handle_resolve_staged(broker: Broker, call: Call) -> Steps:
    """Answer one by one: several coordinators here may have their ids."""
    request = call.request
    assert isinstance(request, ResolveStagedRequest)
    request.check()
    results: list[ResolvedTransaction] = []
    waits: list[tuple[ResolvedTransaction, Resolving, Starter]] = []
    for number, one in enumerate(request.transactions, 1):
        result = ResolvedTransaction()
        results.append(result)
        try:
            resolving, wait = broker.coordinators.resolve(one, call.now)
            waits.append((result, resolving, wait))
        except QuiverlogError as error:
            result.error_code, result.error_message = error.code, error.message
        if number % _RESOLVED_PER_STEP == 0:
            yield None
    for result, resolving, wait in waits:
        try:
            yield wait
        except QuiverlogError as error:
            result.error_code, result.error_message = error.code, error.message
        else:
            result.state, result.digest = int(resolving.standing), resolving.digest
    assert len(results) == len(request.transactions), "answers are found by their place"
    return ResolveStagedResponse(results=results)


# --- LIST_TRANSACTIONS, DESCRIBE_TRANSACTIONS ---------------------------------------------------
def handle_list_transactions(broker: Broker, call: Call) -> Steps:
    request = call.request
    assert isinstance(request, ListTransactionsRequest)
    wanted = None if request.states is None else set(request.states)
    if unknown := (wanted or set()) - set(TransactionState):
        raise InvalidRequest(f"there is no state {min(unknown)} of a transaction.")
    found: list[TransactionListing] = []
    ids, next_id = yield from _page(broker, call, request.first_id)
    for number, tid in enumerate(ids, 1):
        shown = broker.coordinators.shown(tid, call.now)
        if shown is not None:
            listing = _listing(tid, shown)
            if wanted is None or listing.state in wanted:
                found.append(listing)
        if number % _SHOWN_PER_STEP == 0:
            yield None
    return ListTransactionsResponse(
        node_id=broker.config.node_id, transactions=found, next_id=next_id
    )


def handle_describe_transactions(broker: Broker, call: Call) -> Steps:
    request = call.request
    assert isinstance(request, DescribeTransactionsRequest)
    rights = broker.authoriser.rights_of(call.connection_id)
    ids, next_id = yield from _page(broker, call, request.first_id, request.ids, of_staging=True)
    waiting = yield from broker.staging.waits_of(set(ids), call.now)
    found: list[TransactionDescription] = []
    for number, tid in enumerate(ids, 1):
        one = TransactionDescription(tid, staged=broker.staging.staged_of(tid, call.now))
        one.waits = waiting.get(tid, [])
        shown = broker.coordinators.shown(tid, call.now)
        if shown is not None:
            one.listing = _listing(tid, shown)
            one.timeout_ms, one.single_use = shown.state.timeout_ms, shown.state.single_use
            one.waits = [*one.waits, *_waits(broker, shown)]
        one.waits = _longest(_seen(rights, one.waits))
        if shown is not None or one.staged or one.waits:
            found.append(one)
        if number % _SHOWN_PER_STEP == 0:
            yield None
    if rights is not None and not rights.may(Operation.DESCRIBE, ResourceKind.CLUSTER):
        # What is staged, and what waits, is of all clients.
        return DescribeTransactionsResponse(
            node_id=broker.config.node_id, transactions=found, next_id=next_id
        )
    room = broker.staging.room(call.now.mono_us)
    return DescribeTransactionsResponse(
        node_id=broker.config.node_id,
        transactions=found,
        next_id=next_id,
        staged_bytes=room.byte_count,
        staged_bytes_max=room.bytes_max,
        staged_oldest_ms=room.oldest_us // 1000,
        waits=_longest(
            _seen(
                rights,
                [
                    *broker.staging.waits(call.now),
                    *(
                        wait
                        for shown in broker.coordinators.stuck(call.now)
                        for wait in _waits(broker, shown)
                    ),
                ],
            )
        ),
        unserved=[
            UnservedPartition(one.replica.topic.name, one.replica.name.partition, one.why_failed)
            for one in islice(broker.transactions.failed(), CONFIGS_PER_REQUEST_MAX)
        ],
    )


def _seen(rights: Rights | None, waits: list[PublishWait]) -> list[PublishWait]:
    if rights is None:
        return waits
    seen = [one for one in waits if rights.sees(one.name)]
    if rights.may(Operation.DESCRIBE, ResourceKind.CLUSTER):
        return seen
    # The reason of an internal topic's partition may name a topic of other clients.
    return [replace(one, reason_text="") if is_internal(one.name) else one for one in seen]


def _longest(waits: list[PublishWait]) -> list[PublishWait]:
    key = attrgetter("since_us", "name", "partition")
    return heapq.nsmallest(CONFIGS_PER_REQUEST_MAX, waits, key=key)


def _page(
    broker: Broker,
    call: Call,
    first_id: str,
    asked: list[str] | None = None,
    *,
    of_staging: bool = False,
) -> Generator[Wait, object, tuple[list[str], str]]:
    """Return the client's ids in order, from `first_id` on, and the first of the next page."""
    rights = broker.authoriser.rights_of(call.connection_id)
    kind = ResourceKind.TRANSACTIONAL_ID
    held: list[Iterable[str]]
    if asked is not None:
        held = [asked]
    else:
        held = [one.applied for one in broker.coordinators.coordinated()]
        held += broker.staging.ids() if of_staging else []
    found: set[str] = set()
    for ids in held:
        # A copy of the keys: ids come and go between the steps.
        left = iter(list(ids))
        while some := list(islice(left, _LOOKS_PER_STEP)):
            found.update(
                one
                for one in some
                if one >= first_id and (rights is None or rights.may(Operation.DESCRIBE, kind, one))
            )
            found = set(heapq.nsmallest(_PAGE_IDS + 1, found))
            yield None
    page = sorted(found)
    return page[:_PAGE_IDS], page[_PAGE_IDS] if len(page) > _PAGE_IDS else ""


def _listing(tid: str, shown: Shown) -> TransactionListing:
    state, last = shown.state, shown.state.last
    if shown.is_deciding:
        found = TransactionState.DECIDING
    elif shown.parts:
        found = TransactionState.PUBLISHING
    elif state.closed is not None:
        found = TransactionState.CLOSED
    else:
        found = TransactionState.OPEN
    return TransactionListing(
        tid,
        int(found),
        state.epoch,
        state.instance,
        state.client_id,
        state.last_sequence,
        0 if last is None else last.committed_us,
        shown.silent_ms,
    )


def _waits(broker: Broker, shown: Shown) -> list[PublishWait]:
    committed = shown.state.publishing
    topic = broker.view.image.topics.get(STAGED)
    if committed is None or topic is None:
        return []
    why = shown.why
    return [
        PublishWait(
            STAGED,
            topic.topic_id,
            part.staged_partition,
            0 if why is None else why.code,
            "" if why is None else why.message,
            shown.since_us,
            part.row_count,
        )
        for part in committed.parts
        if part.staged_partition in shown.parts
    ]
