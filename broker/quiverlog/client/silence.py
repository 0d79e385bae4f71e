"""What is done about a leader that owes an answer: the others are asked whether it still leads.

So it is with the controller, who leads the metadata. Owns the wait for several answers at once. A
machine without power, a cable that is out and a process that is stopped break no connection, so
that silence alone says nothing: a leader may keep an answer back for good reasons. Once others name
a successor, nothing is waited for any more.

Must not know: what is asked. It may be asked again elsewhere (a read, or what can be repeated).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from quiverlog.errors import ConnectionFailed, NotLeader, QuiverlogError, RequestTimedOut
from quiverlog.limits import LEADER_SILENCE_MS
from quiverlog.types import TopicPartition

from .commands import (
    Abandon,
    Call,
    CallMany,
    Finish,
    FinishAny,
    Operation,
    PendingReply,
    Reply,
    Start,
)
from .metadata_looks import partition_info
from .results import Address

if TYPE_CHECKING:
    from .routing import Cluster

__all__ = ["answer_of_controller", "answers_of_leaders", "is_deposed"]

_SILENCE_S: Final = LEADER_SILENCE_MS / 1000

Question: TypeAlias = tuple[Call, Sequence[TopicPartition]]
"""What a leader is asked, and about which of its partitions."""


def is_deposed(
    cluster: Cluster, address: Address, places: Iterable[TopicPartition]
) -> Operation[bool]:
    """Ask the others whether a leader that owes an answer leads all of these partitions still."""
    cluster.suspect(address)
    looked_at: set[str] = set()
    for where in places:
        try:
            topic = yield from cluster.topic(where.topic, fresh=where.topic not in looked_at)
        except QuiverlogError as error:
            if not error.retriable:
                raise
            return False
        looked_at.add(where.topic)
        info = partition_info(topic, where.partition)
        if cluster.metadata.is_led_elsewhere(info, address):
            return True
    return False


def answer_of_controller(cluster: Cluster, call: Call) -> Operation[Reply]:
    """What the broker answers that decides, as long as it does.

    Raises:
        ConnectionFailed: it was not asked.
        RequestTimedOut: it was asked, and is silent. Another one decides by now, or the time is up.
    """
    pending = yield from _started(call)
    try:
        while (yield FinishAny((pending,), _SILENCE_S)) is None:
            if (yield from _is_replaced(cluster, call.address)):
                raise RequestTimedOut(f"{call.address} is silent, and decides no more.")
    except QuiverlogError:
        yield Abandon(pending)
        raise
    reply: Reply = yield Finish(pending)
    return reply


def _is_replaced(cluster: Cluster, address: Address) -> Operation[bool]:
    """Ask the others whether somebody else decides than who has this address."""
    cluster.suspect(address)
    try:
        yield from cluster.refresh([])
    except QuiverlogError as error:
        if not error.retriable:
            raise
        return False
    metadata = cluster.metadata
    return metadata.brokers.get(metadata.controller_id, address) != address


def answers_of_leaders(
    cluster: Cluster, questions: Sequence[Question], wait_s: float
) -> Operation[list[Reply | QuiverlogError]]:
    """The answers, or what failed, in the questions' order; all are asked before any is awaited.

    Args:
        wait_s: so long may a leader keep its answer back.
    """
    if not cluster.has_others:
        found: list[Reply | QuiverlogError] = yield CallMany([call for call, _ in questions])
        return found
    answers: dict[int, Reply | QuiverlogError] = {}
    pending: dict[int, PendingReply] = {}
    try:
        for number, (call, _) in enumerate(questions):
            try:
                pending[number] = yield from _started(call)
            except QuiverlogError as error:
                answers[number] = error
        while pending:
            ready = yield FinishAny(tuple(pending.values()), _SILENCE_S + wait_s)
            for number, one in list(pending.items()):
                if ready is one:
                    del pending[number]
                    answers[number] = yield from _finished(one)
                elif ready is None:
                    call, places = questions[number]
                    if (yield from is_deposed(cluster, call.address, places)):
                        del pending[number]
                        yield Abandon(one)
                        why = f"{call.address} is silent, and leads no more."
                        answers[number] = NotLeader(why)
    except QuiverlogError:
        for one in pending.values():
            yield Abandon(one)
        raise
    return [answers[number] for number in range(len(questions))]


def _started(call: Call) -> Operation[PendingReply]:
    """Raises ConnectionFailed, after which the others are asked, also for who lets nobody in."""
    try:
        started: PendingReply = yield Start(call, within_s=_SILENCE_S)
    except RequestTimedOut as error:
        raise ConnectionFailed(error.message, **error.details) from error
    return started


def _finished(one: PendingReply) -> Operation[Reply | QuiverlogError]:
    try:
        reply: Reply = yield Finish(one)
    except QuiverlogError as error:
        return error
    return reply
