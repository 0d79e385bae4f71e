"""Transactional ids: what their coordinators and the leaders of staged rows have of them, and what
an operator does about one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal, get_args

from quiverlog.client.base.commands import Operation
from quiverlog.client.base.results import moment
from quiverlog.client.cluster.each_broker import ask_each_broker
from quiverlog.client.cluster.routing import Cluster
from quiverlog.errors import (
    InvalidArgument,
    TransactionBusy,
    UnknownTopic,
    UnknownTransactionalId,
    error_class,
)
from quiverlog.types import STAGED_TOPIC
from quiverlog.wire.transaction_messages import (
    AbortTransactionRequest,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    PublishWait,
    TransactionDescription,
    TransactionListing,
    TransactionState,
)

from . import questions

__all__ = [
    "StagedPart",
    "StagingRoom",
    "TransactionDetail",
    "TransactionInfo",
    "TransactionList",
    "TransactionStateName",
    "WaitingRows",
    "abort_transaction",
    "describe_staging",
    "describe_transaction",
    "forget_transaction",
    "list_transactions",
]

TransactionStateName = Literal["open", "deciding", "publishing", "closed"]
_STATE_OF: Final[dict[str, TransactionState]] = {
    name: TransactionState[name.upper()] for name in get_args(TransactionStateName)
}
_NAME_OF: Final = {int(state): name for name, state in _STATE_OF.items()}


@dataclass(frozen=True, slots=True)
class TransactionInfo:
    """A transactional id, as its coordinator has it.

    Attributes:
        state: "open"; "deciding": its staged rows are being counted; "publishing": it has
            committed, and its rows are on their way; "closed": nothing more of this epoch commits.
        instance: bytes that tell one life of the holder from the next.
        last_sequence, last_committed: of its last committed transaction; None: it has none.
        silent_s: seconds since the holder was last heard of; None: unknown.
        coordinator: node id.
    """

    transactional_id: str
    state: str
    epoch: int
    instance: bytes
    client_id: str
    last_sequence: int | None
    last_committed: datetime | None
    silent_s: float | None
    coordinator: int


@dataclass(frozen=True, slots=True)
class TransactionList:
    """`silent`: node ids of brokers that did not answer; what they coordinate is missing."""

    transactions: tuple[TransactionInfo, ...]
    silent: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StagedPart:
    """Rows of an id in a partition of `__staged`.

    Attributes:
        missing: rows that were committed, and that a fault has taken.
    """

    partition: int
    leader: int
    rows: int
    bytes: int
    age_s: float
    missing: int


@dataclass(frozen=True, slots=True)
class WaitingRows:
    """Committed rows that have not reached a partition.

    Attributes:
        topic: "" where it is deleted; `__staged`: its leader has refused to publish.
        rows: how many of them.
        since: the last progress.
        reason: the name of the last error; "": there was none.
        broker: node id of the one that reports it.
    """

    topic: str
    partition: int
    rows: int
    since: datetime
    reason: str
    detail: str
    broker: int


@dataclass(frozen=True, slots=True)
class TransactionDetail:
    """All that the cluster has of a transactional id.

    Attributes:
        info: None: no broker that answered coordinates it.
        silent: node ids of brokers that did not answer; what they have is missing.
    """

    transactional_id: str
    info: TransactionInfo | None
    timeout_s: float
    single_use: bool
    staged: tuple[StagedPart, ...]
    waits: tuple[WaitingRows, ...]
    silent: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StagingRoom:
    """What is staged at a broker, of all ids, and what waits to be published from there.

    `unserved`: partitions of internal topics that the broker cannot use, each with the reason.
    """

    broker: int
    bytes: int
    bytes_max: int
    oldest_s: float
    waits: tuple[WaitingRows, ...] = field(default=())
    unserved: tuple[str, ...] = field(default=())


def list_transactions(
    cluster: Cluster, states: Sequence[str] | None = None
) -> Operation[TransactionList]:
    for name in states or ():
        if name not in _STATE_OF:
            raise InvalidArgument(f"state={name!r}: give one of {', '.join(_STATE_OF)}.")
    wanted = None if states is None else [int(_STATE_OF[one]) for one in states]
    request = ListTransactionsRequest(states=wanted)
    pages, silent = yield from ask_each_broker(cluster, request, by="id")
    found: dict[str, TransactionInfo] = {}
    for responses in pages.values():
        for response in responses:
            assert isinstance(response, ListTransactionsResponse)
            for one in response.transactions:
                info = _info(one, response.node_id)
                before = found.get(one.transactional_id)
                # Two brokers have it while its coordinator changes.
                if before is None or _progress(before) < _progress(info):
                    found[one.transactional_id] = info
    return TransactionList(tuple(found[name] for name in sorted(found)), tuple(silent))


def describe_transaction(cluster: Cluster, name: str) -> Operation[TransactionDetail]:
    request = DescribeTransactionsRequest(ids=[name])
    pages, silent = yield from ask_each_broker(cluster, request, by="id")
    info: TransactionInfo | None = None
    timeout_ms, single_use = 0, False
    staged: list[StagedPart] = []
    waits: list[WaitingRows] = []
    for node_id, one in _descriptions(pages, name):
        if one.listing is not None:
            listed = _info(one.listing, node_id)
            if info is None or _progress(info) < _progress(listed):
                info, timeout_ms, single_use = listed, one.timeout_ms, one.single_use
        staged += [
            StagedPart(
                part.partition,
                node_id,
                part.row_count,
                part.byte_count,
                part.oldest_ms / 1_000,
                part.missing_count,
            )
            for part in one.staged
        ]
        waits += [_wait(wait, node_id) for wait in one.waits]
    if info is None and not staged and not waits:
        missing = f" Brokers {', '.join(map(str, silent))} did not answer." if silent else ""
        raise UnknownTransactionalId(f"no broker has transactional id {name!r}.{missing}")
    return TransactionDetail(
        name,
        info,
        timeout_ms / 1_000,
        single_use,
        tuple(sorted(staged, key=lambda part: part.partition)),
        tuple(_told(waits)),
        tuple(silent),
    )


def _descriptions(
    pages: dict[int, list[DescribeTransactionsResponse]], name: str
) -> list[tuple[int, TransactionDescription]]:
    return [
        (response.node_id, one)
        for responses in pages.values()
        for response in responses
        for one in response.transactions
        if one.transactional_id == name
    ]


def _told(waits: list[WaitingRows]) -> list[WaitingRows]:
    """Leave out that a staging leader is busy with what it reports itself."""
    is_known = any(one.topic != STAGED_TOPIC for one in waits)
    found = [
        one for one in waits if not (is_known and one.topic == STAGED_TOPIC and one.reason in _BUSY)
    ]
    return sorted(found, key=lambda one: (one.since, one.topic, one.partition))


_BUSY: Final = ("", TransactionBusy.__name__)


def describe_staging(cluster: Cluster) -> Operation[tuple[list[StagingRoom], list[int]]]:
    """Return the brokers that lead partitions of `__staged` or have rows that wait, and the brokers
    that did not answer."""
    request = DescribeTransactionsRequest(ids=[])
    pages, silent = yield from ask_each_broker(cluster, request, by="id")
    found = []
    for responses in pages.values():
        for one in responses:
            assert isinstance(one, DescribeTransactionsResponse)
            if one.staged_bytes_max or one.waits or one.unserved:
                unserved = tuple(f"{it.name}-{it.partition}: {it.why}" for it in one.unserved)
                waits = tuple(_wait(wait, one.node_id) for wait in one.waits)
                oldest_s = one.staged_oldest_ms / 1_000
                found.append(
                    StagingRoom(
                        one.node_id,
                        one.staged_bytes,
                        one.staged_bytes_max,
                        oldest_s,
                        waits,
                        unserved,
                    )
                )
    return found, silent


def _info(one: TransactionListing, node_id: int) -> TransactionInfo:
    has_committed = one.last_sequence >= 0
    return TransactionInfo(
        one.transactional_id,
        _NAME_OF[one.state],
        one.epoch,
        one.instance,
        one.client_id,
        one.last_sequence if has_committed else None,
        moment(one.last_committed_us) if has_committed else None,
        None if one.silent_ms < 0 else one.silent_ms / 1_000,
        node_id,
    )


def _progress(one: TransactionInfo) -> tuple[int, int]:
    return one.epoch, -1 if one.last_sequence is None else one.last_sequence


def _wait(one: PublishWait, node_id: int) -> WaitingRows:
    reason = error_class(one.reason).__name__ if one.reason else ""
    return WaitingRows(
        one.name,
        one.partition,
        one.row_count,
        moment(one.since_us),
        reason,
        one.reason_text,
        node_id,
    )


# What an operator does.
def abort_transaction(cluster: Cluster, name: str) -> Operation[None]:
    """Close the present epoch of an id, whatever it is."""
    request = AbortTransactionRequest(transactional_id=name, force=True)
    yield from _of_coordinator(cluster, request)


def forget_transaction(cluster: Cluster, name: str) -> Operation[None]:
    """Have an id forgotten, with what it still has to publish."""
    request = AbortTransactionRequest(transactional_id=name, forget=True)
    yield from _of_coordinator(cluster, request)


def _of_coordinator(cluster: Cluster, request: AbortTransactionRequest) -> Operation[None]:
    try:
        yield from questions.abort_transaction(cluster, request)
    except UnknownTopic:
        raise UnknownTransactionalId(
            f"transactional id {request.transactional_id!r}: the cluster has had no transaction."
        ) from None
