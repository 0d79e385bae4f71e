"""What an operator sees of transactional ids, and does about one."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from quiverlog.client.base.commands import Call, Reply
from quiverlog.client.transactions import overview
from quiverlog.errors import (
    InvalidArgument,
    NotLeader,
    QuiverlogError,
    RequestTimedOut,
    TransactionBusy,
    TransactionClosed,
    UnknownTransactionalId,
)
from quiverlog.wire import transaction_messages as t
from quiverlog.wire.transaction_messages import TransactionState as State
from tests.support.client_kinds import CLIENT_KINDS, connect
from tests.support.scripted_broker import ScriptedBroker
from tests.unit.client.cluster.test_each_broker import ADDRESSES, OneTry

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as broker:
        yield broker


@pytest.fixture(params=CLIENT_KINDS)
def client(request: pytest.FixtureRequest, broker: ScriptedBroker) -> Iterator[Any]:
    with connect(request.param, broker.bootstrap, request_timeout=20.0) as client:
        yield client


def test_ids_are_listed_described_ended_and_forgotten(client: Any) -> None:
    assert client.list_transactions() == overview.TransactionList((), ())
    for ask in (client.describe_transaction, client.abort_transaction, client.forget_transaction):
        with pytest.raises(UnknownTransactionalId):
            ask("app")
    client.create_topic("a", SCHEMA)
    with client.transaction("done") as tx:
        tx.send("a", {"id": 1})
    tx = client.transaction("app")
    tx.send("a", {"id": 2}).result(20.0)
    app, done = client.list_transactions().transactions
    assert (app.transactional_id, app.state, app.last_sequence) == ("app", "open", None)
    assert (done.transactional_id, done.state, done.last_sequence) == ("done", "open", 0)
    assert timedelta(0) < datetime.now(UTC) - done.last_committed < timedelta(minutes=1)
    found = client.describe_transaction("app")
    (staged,) = found.staged
    assert (found.info.epoch, staged.rows, staged.missing, found.silent) == (app.epoch, 1, 0, ())
    assert staged.bytes > 0
    client.abort_transaction("app")
    assert [one.transactional_id for one in client.list_transactions(["closed"]).transactions] == [
        "app"
    ]
    with pytest.raises(TransactionClosed):
        tx.commit()
    client.forget_transaction("app")
    with pytest.raises(UnknownTransactionalId):
        client.forget_transaction("app")


def test_a_state_that_does_not_exist(client: Any) -> None:
    with pytest.raises(InvalidArgument, match="publishing"):
        client.list_transactions(["opened"])


# --- answers of several brokers -------------------------------------------------------------------
def ask(operation: Any, answers: dict[tuple[int, str], Any]) -> Any:
    """Drive it; `answers`: by node id and first id of the page."""
    by_address = {address: n for n, address in ADDRESSES.items()}
    command = next(operation)
    while True:
        assert isinstance(command, Call)
        request: Any = command.request
        answer = answers[by_address[command.address], request.first_id]
        try:
            if isinstance(answer, QuiverlogError):
                command = operation.throw(answer)
            else:
                command = operation.send(Reply(answer, memoryview(b"")))
        except StopIteration as end:
            return end.value


def listing(name: str, epoch: int = 1, last: int = -1, **more: Any) -> t.TransactionListing:
    return t.TransactionListing(name, epoch=epoch, last_sequence=last, **more)


def listed(node_id: int, *found: t.TransactionListing, then: str = "") -> Any:
    return t.ListTransactionsResponse(node_id=node_id, transactions=list(found), next_id=then)


def described(node_id: int, *found: t.TransactionDescription, **more: Any) -> Any:
    return t.DescribeTransactionsResponse(node_id=node_id, transactions=list(found), **more)


CLUSTER: Any = OneTry()


def test_all_pages_count_and_of_two_coordinators_the_one_that_is_further() -> None:
    found = ask(
        overview.list_transactions(CLUSTER),
        {
            (1, ""): listed(1, listing("a", 2), then="b"),
            (1, "b"): listed(1, listing("b", 1, 7)),
            (2, ""): RequestTimedOut("silent"),
            (3, ""): listed(3, listing("a", 1, 9), listing("b", 1, 8, state=State.CLOSED)),
        },
    )
    assert [(one.transactional_id, one.coordinator) for one in found.transactions] == [
        ("a", 1),
        ("b", 3),
    ]
    assert (found.transactions[1].state, found.silent) == ("closed", (2,))


def wait(name: str, reason: type[QuiverlogError], since_us: int = 0) -> t.PublishWait:
    return t.PublishWait(name, b"i" * 16, 3, reason.code, "why", since_us, 5)


def test_a_description_is_put_together() -> None:
    coordinator = t.TransactionDescription(
        "a", listing("a"), 900_000, waits=[wait("__staged", TransactionBusy)]
    )
    leader = t.TransactionDescription(
        "a", staged=[t.StagedRows(1, 5, 100, 2_500, 0)], waits=[wait("t", NotLeader, 2_000_000)]
    )
    found = ask(
        overview.describe_transaction(CLUSTER, "a"),
        {(1, ""): described(1, coordinator), (2, ""): described(2, leader), (3, ""): described(3)},
    )
    assert (found.info.coordinator, found.timeout_s) == (1, 900.0)
    assert found.staged == (overview.StagedPart(1, 2, 5, 100, 2.5, 0),)
    (one,) = found.waits
    assert (one.topic, one.partition, one.rows, one.broker) == ("t", 3, 5, 2)
    assert (one.reason, one.detail) == ("NotLeader", "why")
    assert one.since == datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC)


@pytest.mark.parametrize("reason", [TransactionBusy, NotLeader])
def test_a_staging_leader_is_named_where_it_is_what_is_known(reason: type[QuiverlogError]) -> None:
    one = t.TransactionDescription("a", listing("a"), waits=[wait("__staged", reason)])
    answers = {(1, ""): described(1, one), (2, ""): described(2), (3, ""): described(3)}
    found = ask(overview.describe_transaction(CLUSTER, "a"), answers)
    assert [one.topic for one in found.waits] == ["__staged"]
    answers[2, ""] = described(2, t.TransactionDescription("a", waits=[wait("t", NotLeader)]))
    found = ask(overview.describe_transaction(CLUSTER, "a"), answers)
    # One that refuses is another thing than one that is busy with these rows.
    assert ("__staged" in [one.topic for one in found.waits]) == (reason is NotLeader)


def test_an_unknown_id_names_brokers_that_may_know_it() -> None:
    answers: dict[tuple[int, str], Any] = {(n, ""): described(n) for n in ADDRESSES}
    answers[2, ""] = RequestTimedOut("silent")
    with pytest.raises(UnknownTransactionalId, match="Brokers 2 did not answer"):
        ask(overview.describe_transaction(CLUSTER, "a"), answers)


def test_the_room_of_brokers_that_stage_nothing_is_left_out() -> None:
    rooms, silent = ask(
        overview.describe_staging(CLUSTER),
        {
            (1, ""): described(1, staged_bytes=8, staged_bytes_max=10, staged_oldest_ms=1_500),
            (2, ""): described(2),
            (3, ""): described(3, waits=[wait("t", NotLeader)]),
        },
    )
    assert silent == []
    assert rooms[0] == overview.StagingRoom(1, 8, 10, 1.5)
    assert [(one.broker, len(one.waits)) for one in rooms] == [(1, 0), (3, 1)]


def test_partitions_that_a_broker_cannot_use_are_those_of_its_room() -> None:
    odd = t.UnservedPartition("__staged", 5, "rows 7 to 7")
    rooms, _ = ask(
        overview.describe_staging(CLUSTER),
        {(1, ""): described(1), (2, ""): described(2, unserved=[odd]), (3, ""): described(3)},
    )
    assert [(one.broker, one.unserved) for one in rooms] == [(2, ("__staged-5: rows 7 to 7",))]


def test_names_of_states_are_those_of_the_wire() -> None:
    assert {int(one): one.name.lower() for one in State} == overview._NAME_OF
