"""OPEN, COMMIT and ABORT_TRANSACTION of clients, and what brokers ask each other about them."""

from __future__ import annotations

from typing import Final

from quiverlog.core.controller.features import TRANSACTIONS_LEVEL, check_finalised
from quiverlog.core.controller.internal_topics import TRANSACTIONS
from quiverlog.core.transactions.coordinator import Resolving
from quiverlog.errors import CoordinatorNotReady, QuiverlogError
from quiverlog.node.apis.topics import make_internal_topics
from quiverlog.node.broker import Broker
from quiverlog.node.controller.not_controller import check_is_controller
from quiverlog.node.runtime.jobs import Starter
from quiverlog.node.runtime.tasks import Call, Steps
from quiverlog.wire.transaction_messages import (
    AbortTransactionRequest,
    CommitTransactionRequest,
    OpenTransactionRequest,
    ResolvedTransaction,
    ResolveStagedRequest,
    ResolveStagedResponse,
)

__all__ = [
    "handle_abort_transaction",
    "handle_commit_transaction",
    "handle_open_transaction",
    "handle_resolve_staged",
]

_RESOLVED_PER_STEP: Final = 64


def handle_open_transaction(broker: Broker, call: Call) -> Steps:
    request = call.request
    assert isinstance(request, OpenTransactionRequest)
    request.check()
    _check_level(broker)
    if TRANSACTIONS not in broker.view.image.topics:
        check_is_controller(broker, call.connection_id)
        yield from make_internal_topics(broker, call)
        raise CoordinatorNotReady("the internal topics are made now.")
    client_id = broker.clients.client_id_of(call.connection_id)
    return (yield from broker.coordinators.open(call, client_id))


def handle_commit_transaction(broker: Broker, call: Call) -> Steps:
    request = call.request
    assert isinstance(request, CommitTransactionRequest)
    request.check()
    _check_level(broker)
    return (yield from broker.coordinators.commit(call))


def handle_abort_transaction(broker: Broker, call: Call) -> Steps:
    request = call.request
    assert isinstance(request, AbortTransactionRequest)
    request.check()
    _check_level(broker)
    return (yield from broker.coordinators.abort(call))


def _check_level(broker: Broker) -> None:
    check_finalised(broker.view.image, TRANSACTIONS_LEVEL, "a transaction")


def handle_resolve_staged(broker: Broker, call: Call) -> Steps:
    """Answer one by one: several coordinators here may have their ids."""
    request = call.request
    assert isinstance(request, ResolveStagedRequest)
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
    return ResolveStagedResponse(results=results)
