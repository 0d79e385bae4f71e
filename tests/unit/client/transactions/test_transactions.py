"""Transactions of both clients against the real node, with answers that are lost on the way."""

from __future__ import annotations

import gc
import os
import pickle
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import quiverlog
from quiverlog.client.transactions import async_transaction, questions, staging, transaction
from quiverlog.client.transactions.questions import StagedAttempt
from quiverlog.errors import NotAuthorized, OutcomeUnknown, StagedRowsLost
from quiverlog.limits import TRANSACTION_SEQUENCE_MAX, TRANSACTIONAL_ID_CHARS_MAX
from quiverlog.wire import messages as m
from quiverlog.wire.transaction_messages import (
    AbortTransactionRequest,
    CommitTransactionRequest,
    OpenTransactionRequest,
)
from tests.support.client_kinds import CLIENT_KINDS, connect
from tests.support.scripted_broker import Answer, ScriptedBroker

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])
WAIT_S = 20.0


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as broker:
        with quiverlog.connect(broker.bootstrap) as client:
            client.create_topic("a", SCHEMA)
            client.create_topic("b", SCHEMA, partitions=3)
            with client.transaction("first") as tx:  # The topics of transactions are made.
                tx.send("a", {"id": -1})
        broker.requests.clear()
        yield broker


@pytest.fixture(params=CLIENT_KINDS)
def client(request: pytest.FixtureRequest, broker: ScriptedBroker) -> Iterator[Any]:
    with connect(request.param, broker.bootstrap, request_timeout=WAIT_S) as client:
        yield client


def table(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())}, schema=SCHEMA)


def stored(broker: ScriptedBroker, topic: str) -> list[int]:
    with quiverlog.connect(broker.bootstrap) as client:
        return sorted(
            number
            for batch in client.consumer(topic, start="earliest")
            for number in batch.data.column("id").to_pylist()
            if number >= 0
        )


# --- commit and abort -----------------------------------------------------------------------------
def test_a_transaction_of_two_topics_is_published_at_its_end(
    client: Any, broker: ScriptedBroker
) -> None:
    with client.transaction("app") as tx:
        assert tx.sequence == 0
        assert tx.previous is None
        one = tx.send("a", {"id": 1})
        many = tx.send("b", table(*range(10)), partition=2)
        assert one.result(WAIT_S) == 1
        assert many.result(WAIT_S) == 10
        assert stored(broker, "b") == []
    assert tx.result.rows == 11
    assert tx.result.is_published
    assert stored(broker, "a") == [1]
    assert stored(broker, "b") == list(range(10))
    assert client.transactional_id("app").last_sequence == 0


def test_each_transaction_has_the_next_sequence(client: Any, broker: ScriptedBroker) -> None:
    for number in range(3):
        with client.transaction("app", wait="decided") as tx:
            tx.send("a", {"id": number})
        assert tx.sequence == tx.result.sequence == number
    with client.transaction("app") as tx:
        pass
    assert tx.sequence == 3
    assert tx.result.rows == 0
    assert stored(broker, "a") == [0, 1, 2]
    assert len({r.epoch for r in broker.seen(CommitTransactionRequest)}) == 1


@pytest.mark.parametrize(("age_s", "questions_asked"), [(WAIT_S, 1), (0.0, 3)])
def test_metadata_of_its_topics_are_asked_for_when_they_are_old(
    client: Any,
    broker: ScriptedBroker,
    monkeypatch: pytest.MonkeyPatch,
    age_s: float,
    questions_asked: int,
) -> None:
    for module in (transaction, async_transaction):
        monkeypatch.setattr(module, "_TOPIC_AGE_MAX_S", age_s)
    for number in range(3):
        with client.transaction("app") as tx:
            tx.send("a", {"id": number})
    asked = [one for one in broker.seen(m.MetadataRequest) if one.topics == ["a"]]
    assert len(asked) == questions_asked
    assert stored(broker, "a") == [0, 1, 2]


def test_an_exception_aborts_and_is_raised(client: Any, broker: ScriptedBroker) -> None:
    def broken(tx: Any) -> None:
        tx.send("a", {"id": 1}).result(WAIT_S)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), client.transaction("app") as tx:
        broken(tx)
    assert len(broker.seen(AbortTransactionRequest)) == 1
    with client.transaction("app") as tx:
        assert tx.sequence == 0, "nothing has committed"
        tx.send("a", {"id": 2})
    assert stored(broker, "a") == [2]


def test_an_abort_that_fails_does_not_hide_the_exception(
    client: Any, broker: ScriptedBroker
) -> None:
    broker.always(AbortTransactionRequest, "drop")
    with pytest.raises(ZeroDivisionError) as caught, client.transaction("app", timeout=2.0):
        raise ZeroDivisionError
    broker.heal()
    broker.requests.clear()
    assert "could not be aborted" in caught.value.__notes__[0]
    # The next one aborts it first: else it had the epoch, which the late abort would end.
    with client.transaction("app") as tx:
        tx.send("a", {"id": 1})
    assert len(broker.seen(AbortTransactionRequest)) == 1
    assert stored(broker, "a") == [1]


def test_commit_and_abort_by_hand(client: Any, broker: ScriptedBroker) -> None:
    tx = connect_tx(client)
    tx.send("a", {"id": 1})
    assert tx.commit().sequence == 0
    with pytest.raises(quiverlog.InvalidArgument, match="is committed: open another"):
        tx.send("a", {"id": 2})
    with pytest.raises(quiverlog.InvalidArgument, match="is committed"):
        tx.commit()
    tx.abort()
    tx = connect_tx(client)
    tx.send("a", {"id": 3})
    tx.abort()
    tx.abort()
    with pytest.raises(quiverlog.InvalidArgument, match="is aborted: open another"):
        tx.send("a", {"id": 2})
    assert stored(broker, "a") == [1]


def connect_tx(client: Any, name: str = "app", **options: Any) -> Any:
    return client.transaction(name, **options).__enter__()


def test_one_transaction_of_an_id_at_a_time(client: Any) -> None:
    open_ = [connect_tx(client, name) for name in ("app", "other")]
    with pytest.raises(quiverlog.InvalidArgument, match="commit or abort it first"):
        connect_tx(client)
    for tx in open_:
        tx.commit()


def test_a_transaction_that_was_dropped_is_aborted_by_the_next(broker: ScriptedBroker) -> None:
    with quiverlog.connect(broker.bootstrap) as client:
        held = [client.transaction("app")]
        held[0].send("a", {"id": 1})
        with pytest.warns(RuntimeWarning, match="dropped without a commit"):
            held.clear()
        with client.transaction("app") as tx:
            tx.send("a", {"id": 2})
    assert stored(broker, "a") == [2]
    assert len(broker.seen(AbortTransactionRequest)) == 1


# --- bad input ------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["", "x" * (TRANSACTIONAL_ID_CHARS_MAX + 1), 7, None, "\ud800"])
def test_ids_that_cannot_be(client: Any, broker: ScriptedBroker, name: Any) -> None:
    with pytest.raises(quiverlog.InvalidArgument):
        connect_tx(client, name)
    with pytest.raises(quiverlog.InvalidArgument):
        client.transactional_id(name)
    assert not broker.seen(OpenTransactionRequest)


def test_the_longest_id(client: Any) -> None:
    name = "\U0001f600" * TRANSACTIONAL_ID_CHARS_MAX
    with client.transaction(name) as tx:
        tx.send("a", {"id": 1})
    assert client.transactional_id(name).last_sequence == 0


@pytest.mark.parametrize(
    "options",
    [{"wait": "soon"}, {"timeout": 0}, {"transaction_timeout": 0}, {"transaction_timeout": 90_000}],
)
def test_options_that_cannot_be(client: Any, options: dict[str, Any]) -> None:
    with pytest.raises(quiverlog.InvalidArgument):
        connect_tx(client, **options)
    connect_tx(client).abort()


def test_sends_that_cannot_be_take_nothing(client: Any, broker: ScriptedBroker) -> None:
    with client.transaction("app") as tx:
        for error, topic, data, options in (
            (quiverlog.UnknownTopic, "none", {"id": 1}, {}),
            (quiverlog.InternalTopic, "__staged", {"id": 1}, {}),
            (quiverlog.UnknownPartition, "b", {"id": 1}, {"partition": 3}),
            (quiverlog.InvalidArgument, "b", {"id": 1}, {"partition": "one"}),
            (quiverlog.SchemaMismatch, "a", pa.table({"other": [1]}), {}),
        ):
            with pytest.raises(error):
                tx.send(topic, data, **options)
        tx.send("a", {"id": 1})
    assert stored(broker, "a") == [1]


def test_a_row_that_does_not_fit_fails_the_commit(client: Any, broker: ScriptedBroker) -> None:
    tx = connect_tx(client)
    good, bad = tx.send("a", {"id": 1}), tx.send("a", {"id": "one"})
    with pytest.raises(quiverlog.SchemaMismatch):
        tx.commit()
    assert isinstance(bad.exception(WAIT_S), quiverlog.SchemaMismatch)
    assert good.done()
    assert not broker.seen(CommitTransactionRequest)
    connect_tx(client).abort()
    assert stored(broker, "a") == []


def test_a_send_that_was_taken_in_part_fails_the_commit(
    client: Any, broker: ScriptedBroker
) -> None:
    tx = connect_tx(client)
    add_to = tx._core.add_to
    added: list[Any] = []

    def second_fails(*args: Any) -> Any:
        added.append(args)
        if len(added) == 2:
            raise quiverlog.BufferExhausted("planted")
        return add_to(*args)

    tx._core.add_to = second_fails
    batch = pa.record_batch([pa.array([1], pa.int64())], schema=SCHEMA)
    with pytest.raises(quiverlog.BufferExhausted):
        tx.send("a", pa.Table.from_batches([batch, batch]))
    with pytest.raises(quiverlog.InvalidArgument, match="not taken as a whole"):
        tx.commit()
    assert stored(broker, "a") == []


def test_a_topic_that_is_deleted_ends_the_transaction(client: Any, broker: ScriptedBroker) -> None:
    tx = connect_tx(client, timeout=WAIT_S)
    tx.send("a", {"id": 1}).result(WAIT_S)
    with quiverlog.connect(broker.bootstrap) as other:
        other.delete_topic("b")
        other.create_topic("b", SCHEMA)
        first = tx.send("b", {"id": 1})
        assert first.result(WAIT_S) == 1, "it is opened at the first send"
        other.delete_topic("b")
    second = tx.send("b", {"id": 2})
    assert isinstance(second.exception(WAIT_S), quiverlog.UnknownTopicId)
    with pytest.raises(quiverlog.UnknownTopicId, match="'b' is gone"):
        tx.commit()
    assert stored(broker, "a") == []


def test_a_topic_that_is_deleted_before_the_commit(client: Any, broker: ScriptedBroker) -> None:
    tx = connect_tx(client, timeout=WAIT_S)
    tx.send("a", {"id": 1})
    tx.send("b", {"id": 1}).result(WAIT_S)
    with quiverlog.connect(broker.bootstrap) as other:
        other.delete_topic("b")
    with pytest.raises(quiverlog.UnknownTopicId):
        tx.commit()
    assert stored(broker, "a") == []


def test_too_many_rows_for_one_partition(
    client: Any, broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert staging._TARGET_ROWS_MAX == 2**31 - 1
    monkeypatch.setattr(staging, "_TARGET_ROWS_MAX", 5)
    with client.transaction("app") as tx:
        tx.send("a", table(*range(5)))
        tx.send("b", table(*range(5)), partition=1)
    tx = connect_tx(client)
    tx.send("a", table(*range(3)))
    tx.send("a", table(*range(3)))
    with pytest.raises(quiverlog.TransactionTooLarge, match=r"6 rows .* for a-0, the most are 5"):
        tx.commit()
    assert stored(broker, "a") == list(range(5))


# --- the holder -----------------------------------------------------------------------------------
def test_a_second_client_fences_the_first(client: Any, broker: ScriptedBroker) -> None:
    with client.transaction("app") as tx:
        tx.send("a", {"id": 1})
    late = connect_tx(client)
    late.send("a", {"id": 2})
    with quiverlog.connect(broker.bootstrap) as second, second.transaction("app") as tx:
        assert tx.sequence == 1
        tx.send("a", {"id": 3})
    with pytest.raises(quiverlog.TransactionFenced):
        late.commit()
    with pytest.raises(quiverlog.TransactionFenced, match="another instance"):
        connect_tx(client)
    assert client.transactional_id("app").last_sequence == 1
    assert stored(broker, "a") == [1, 3]


def test_a_sign_of_life_finds_the_fence(client: Any, broker: ScriptedBroker) -> None:
    tx = connect_tx(client, transaction_timeout=0.3)
    future = tx.send("a", {"id": 1})
    with quiverlog.connect(broker.bootstrap) as second:
        second.transaction("app").abort()
    until(lambda: tx._core.lost is not None)
    with pytest.raises(quiverlog.TransactionFenced):
        tx.send("a", {"id": 1})
    assert future.done()
    with pytest.raises(quiverlog.TransactionFenced):
        tx.commit()


def until(is_true: Any) -> None:
    event = threading.Event()
    for _ in range(400):
        if is_true():
            return
        event.wait(0.05)
    raise AssertionError("it did not come")


def test_an_epoch_that_the_cluster_has_closed_ends_the_transaction(
    client: Any, broker: ScriptedBroker
) -> None:
    tx = connect_tx(client, transaction_timeout=0.3)
    close_epoch(broker, tx.transactional_id)
    until(lambda: tx._core.lost is not None)
    with pytest.raises(quiverlog.TransactionClosed):
        tx.send("a", {"id": 1})
    tx.abort()
    with client.transaction("app") as tx:
        tx.send("a", {"id": 2})
    assert stored(broker, "a") == [2]


def test_a_commit_of_what_the_cluster_has_ended_lets_the_next_transaction_begin(
    client: Any, broker: ScriptedBroker
) -> None:
    tx = connect_tx(client, transaction_timeout=0.3)
    tx.send("a", {"id": 1})
    close_epoch(broker, tx.transactional_id)
    until(lambda: tx._core.lost is not None)
    with pytest.raises(quiverlog.TransactionClosed):
        tx.commit()
    with client.transaction("app") as tx:
        tx.send("a", {"id": 2})
    assert stored(broker, "a") == [2]


def close_epoch(broker: ScriptedBroker, name: str) -> None:
    with quiverlog.connect(broker.bootstrap) as other:
        request = AbortTransactionRequest(transactional_id=name, force=True)
        other.run(questions.abort_transaction(other.cluster, request))


def test_signs_of_life_end_with_the_client(broker: ScriptedBroker) -> None:
    client = quiverlog.connect(broker.bootstrap)
    with client.transaction("app", transaction_timeout=0.15):
        until(lambda: len(broker.seen(OpenTransactionRequest)) > 3)
    host, driver = client._host, client.driver
    del client
    gc.collect()
    count = len(broker.seen(OpenTransactionRequest))
    threading.Event().wait(0.4)
    assert len(broker.seen(OpenTransactionRequest)) <= count + 1
    host.stop()
    driver.close()


def test_a_closed_client_ends_its_transactions(client: Any, broker: ScriptedBroker) -> None:
    tx = connect_tx(client)
    tx.send("a", {"id": 1}).result(WAIT_S)
    client.close()
    with pytest.raises(quiverlog.ClientClosed):
        tx.send("a", {"id": 2})
    with pytest.raises(quiverlog.ClientClosed):
        tx.commit()
    assert stored(broker, "a") == []


def test_a_forked_child_may_not_use_it(broker: ScriptedBroker) -> None:
    with quiverlog.connect(broker.bootstrap) as client:
        tx = client.transaction("app")
        tx.send("a", {"id": 1})
        child = os.fork()
        if not child:
            code = 1
            try:
                for use in (
                    lambda: tx.send("a", {"id": 2}),
                    tx.commit,
                    lambda: client.transaction("other"),
                ):
                    with pytest.raises(quiverlog.ForkedClient):
                        use()
                tx.abort()
                client.close()
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        tx.commit()
    assert stored(broker, "a") == [1]


# --- answers that are lost ------------------------------------------------------------------------
@pytest.mark.parametrize("fault", ["drop", "drop_reply", OutcomeUnknown("planted")])
@pytest.mark.parametrize(
    "request_type",
    [
        OpenTransactionRequest,
        m.ProduceRequest,
        CommitTransactionRequest,
        m.InitProducerIdRequest,
    ],
)
def test_a_lost_answer_is_asked_for_again(
    client: Any, broker: ScriptedBroker, request_type: type[m.Request], fault: Any
) -> None:
    broker.fault(request_type, fault)
    with client.transaction("app") as tx:
        tx.send("a", table(1, 2, 3))
        tx.send("b", {"id": 4})
    assert tx.result.rows == 4
    with client.transaction("app") as tx:
        tx.send("a", {"id": 5})
    assert stored(broker, "a") == [1, 2, 3, 5]
    assert stored(broker, "b") == [4]


@pytest.mark.parametrize(
    ("fault", "outcome", "rows"), [("drop_reply", "committed", [1, 2]), ("drop", "aborted", [2])]
)
def test_the_next_transaction_tells_what_became_of_a_commit(
    client: Any, broker: ScriptedBroker, fault: str, outcome: str, rows: list[int]
) -> None:
    tx = connect_tx(client, timeout=1.0)
    tx.send("a", {"id": 1}).result(WAIT_S)
    broker.always(CommitTransactionRequest, fault)
    with pytest.raises(quiverlog.CommitUnknown, match=r"next `transaction\(\)`"):
        tx.commit()
    with pytest.raises(quiverlog.InvalidArgument, match="of unknown outcome"):
        tx.send("a", {"id": 7})
    with pytest.raises(quiverlog.CommitUnknown):
        connect_tx(client, timeout=0.5)
    broker.heal()
    if outcome == "aborted":
        # As where its staged rows are lost: the same COMMIT cannot decide it.
        broker.fault(CommitTransactionRequest, StagedRowsLost("planted"))
    with client.transaction("app") as tx:
        assert tx.previous == outcome
        assert tx.sequence == (1 if outcome == "committed" else 0)
        tx.send("a", {"id": 2})
    with client.transaction("app") as tx:
        assert tx.previous is None
    assert stored(broker, "a") == rows


def test_a_commit_that_is_not_allowed_has_decided_nothing(
    client: Any, broker: ScriptedBroker
) -> None:
    tx = connect_tx(client, timeout=1.0)
    tx.send("a", {"id": 1}).result(WAIT_S)
    broker.fault(CommitTransactionRequest, NotAuthorized("planted"))
    with pytest.raises(NotAuthorized):
        tx.commit()
    with client.transaction("app") as tx:
        assert tx.previous is None
        tx.send("a", {"id": 2})
    assert stored(broker, "a") == [2]


def test_an_outcome_that_another_client_hides_is_unknown(
    client: Any, broker: ScriptedBroker
) -> None:
    tx = connect_tx(client, timeout=1.0)
    tx.send("a", {"id": 1}).result(WAIT_S)
    broker.always(CommitTransactionRequest, "drop")
    with pytest.raises(quiverlog.CommitUnknown):
        tx.commit()
    broker.heal()

    def others(request: Any, response: Any, body: bytes) -> None:
        return None  # The answer to the abort is lost; others come in between.

    broker.fault(CommitTransactionRequest, StagedRowsLost("planted"))
    broker.fault(AbortTransactionRequest, Answer(others))
    with pytest.raises(quiverlog.QuiverlogError):
        connect_tx(client, timeout=0.5)
    with quiverlog.connect(broker.bootstrap) as second:
        for number in (2, 3):
            with second.transaction("app") as other:
                other.send("a", {"id": number})
    with client.transaction("app") as tx:
        assert tx.previous == "unknown"
    assert stored(broker, "a") == [2, 3]


def test_a_fenced_client_does_not_fence_to_find_out(client: Any, broker: ScriptedBroker) -> None:
    tx = connect_tx(client, timeout=1.0)
    broker.always(CommitTransactionRequest, "drop")
    with pytest.raises(quiverlog.CommitUnknown):
        tx.commit()
    broker.heal()
    with quiverlog.connect(broker.bootstrap) as second, second.transaction("app") as other:
        with pytest.raises(quiverlog.TransactionFenced) as caught:
            connect_tx(client)
        other.send("a", {"id": 1})
    assert caught.value.__notes__ == ["What became of transaction 0 is not known."]
    assert stored(broker, "a") == [1]


def commit_beside(tx: Any, sequence: int = 0) -> None:
    """Another program commits under the transaction's own epoch, as none may."""
    request = CommitTransactionRequest(
        transactional_id=tx.transactional_id, epoch=tx._holder.epoch, sequence=sequence
    )
    tx._holder.run(questions.commit_transaction(tx._holder.cluster, request, timeout_s=WAIT_S))


@pytest.mark.parametrize("end", ["commit", "commit without an answer", "abort"])
def test_a_sequence_that_another_took_stops_nothing(broker: ScriptedBroker, end: str) -> None:
    with quiverlog.connect(broker.bootstrap, request_timeout=WAIT_S) as client:
        tx = client.transaction("app", timeout=1.0)
        tx.send("a", {"id": 1}).result(WAIT_S)
        if end == "commit without an answer":
            broker.always(CommitTransactionRequest, "drop")
            with pytest.raises(quiverlog.CommitUnknown):
                tx.commit()
            broker.heal()
        commit_beside(tx)
        if end == "commit":
            with pytest.raises(quiverlog.SequenceTaken):
                tx.commit()
        elif end == "abort":
            tx.abort()
        with client.transaction("app", timeout=WAIT_S) as tx:
            assert tx.previous == ("aborted" if end == "commit without an answer" else None)
            assert tx.sequence == 1
            tx.send("a", {"id": 2})
        assert stored(broker, "a") == [2]


def test_an_id_without_another_sequence_is_refused(client: Any, broker: ScriptedBroker) -> None:
    with quiverlog.connect(broker.bootstrap) as second:
        tx = second.transaction("app")
        commit_beside(tx, TRANSACTION_SEQUENCE_MAX)
        tx.abort()
    for _ in range(2):
        with pytest.raises(quiverlog.InvalidRequest, match="allowed are 0 to 9223372036854775806"):
            connect_tx(client).commit()
    client.forget_transaction("app")
    with quiverlog.connect(broker.bootstrap) as third, third.transaction("app") as tx:
        assert tx.sequence == 0


def test_a_commit_that_is_published_late_is_committed(client: Any, broker: ScriptedBroker) -> None:
    def unpublished(request: Any, response: Any, body: bytes) -> tuple[Any, bytes]:
        response.is_published = False
        return response, body

    tx = connect_tx(client, timeout=1.0)
    tx.send("a", {"id": 1})
    broker.fault(CommitTransactionRequest, Answer(unpublished))
    broker.always(CommitTransactionRequest, "drop_reply")
    result = tx.commit()
    assert not result.is_published, "what follows the decision changes nothing of it"
    broker.heal()
    with client.transaction("app") as tx:
        assert tx.previous is None
        assert tx.sequence == 1
    assert stored(broker, "a") == [1]


def test_a_commit_that_is_interrupted_keeps_its_unknown_outcome(broker: ScriptedBroker) -> None:
    with quiverlog.connect(broker.bootstrap) as client:

        def interrupt(tx: Any) -> None:
            tx.send("a", {"id": 1}).result(WAIT_S)
            holder, run = tx._holder, tx._holder.run

            def interrupted(operation: Any) -> Any:
                holder.run = run
                run(operation)
                raise KeyboardInterrupt

            holder.run = interrupted

        with pytest.raises(KeyboardInterrupt), client.transaction("app") as tx:
            interrupt(tx)
        assert not broker.seen(AbortTransactionRequest)
        with client.transaction("app") as tx:
            assert tx.previous == "committed"
            assert tx.sequence == 1
    assert stored(broker, "a") == [1]


def test_a_transaction_begins_when_the_one_before_can_be_read(
    client: Any, broker: ScriptedBroker
) -> None:
    def publishing(request: Any, response: Any, body: bytes) -> tuple[Any, bytes]:
        response.is_publishing = True
        return response, body

    broker.fault(OpenTransactionRequest, *[Answer(publishing)] * 2)
    connect_tx(client).abort()
    assert len(broker.seen(OpenTransactionRequest)) == 3
    broker.fault(OpenTransactionRequest, Answer(publishing))
    connect_tx(client, wait="decided").abort()
    assert len(broker.seen(OpenTransactionRequest)) == 4
    broker.always(OpenTransactionRequest, Answer(publishing))
    with pytest.raises(quiverlog.TransactionBusy, match="not all of its rows are published"):
        connect_tx(client, timeout=0.5)


def test_an_older_sequence_of_an_old_coordinator_is_not_taken(
    client: Any, broker: ScriptedBroker
) -> None:
    def older(request: Any, response: Any, body: bytes) -> tuple[Any, bytes]:
        response.last_sequence = -1
        return response, body

    for number in range(2):
        broker.fault(OpenTransactionRequest, Answer(older))
        with client.transaction("app") as tx:
            assert tx.sequence == number
            tx.send("a", {"id": number})
    assert stored(broker, "a") == [0, 1]


# --- threads --------------------------------------------------------------------------------------
def test_threads_send_in_one_transaction(broker: ScriptedBroker) -> None:
    with quiverlog.connect(broker.bootstrap) as client, client.transaction("app") as tx:

        def send(first: int) -> None:
            for number in range(first, first + 50):
                tx.send("a", {"id": number})
            tx.send("b", table(*range(first, first + 50)))

        threads = [threading.Thread(target=send, args=(50 * i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert tx.result.rows == 400
    assert stored(broker, "a") == stored(broker, "b") == list(range(200))


# --- attempts of several processes ----------------------------------------------------------------
def staged(client: Any, *ids: int, sequence: int = 0, instance: bytes = b"run 1") -> StagedAttempt:
    attempt = client.stager("app", instance=instance).attempt(sequence)
    if ids:
        attempt.send("b", table(*ids))
    found: StagedAttempt = attempt.finish()
    return pickle.loads(pickle.dumps(found))


def test_one_commit_publishes_the_attempts_that_it_names(
    client: Any, broker: ScriptedBroker
) -> None:
    with quiverlog.connect(broker.bootstrap) as other:
        chosen = [staged(client, 1, 2), staged(other, 3), staged(other)]
        staged(other, 3)  # a task that was run twice
        assert [one.rows for one in chosen] == [2, 1, 0]
        assert {one.epoch for one in chosen} == {1}
        result = client.commit_staged(chosen)
        assert (result.rows, result.is_published) == (3, True)
        assert client.commit_staged(chosen).rows == 3
        assert stored(broker, "b") == [1, 2, 3]
        with pytest.raises(quiverlog.SequenceTaken):
            client.commit_staged([staged(other, 4)])
        # The same transaction, repeated by the program's next run: its rows may be others.
        assert client.commit_staged([staged(other, 5, instance=b"run 2")]).rows == 3
        with pytest.raises(quiverlog.TransactionFenced):
            staged(client, 6, sequence=1)
        with pytest.raises(quiverlog.TransactionFenced):
            client.commit_staged([replace(chosen[0], sequence=1)])
    assert stored(broker, "b") == [1, 2, 3]


def test_attempts_of_several_epochs_are_not_committed(client: Any, broker: ScriptedBroker) -> None:
    first = staged(client, 1)
    assert client.abort_staged([first]) is False
    second = staged(client, 2)
    assert (first.epoch, second.epoch) == (1, 3)
    with pytest.raises(quiverlog.TransactionClosed, match=r"the epochs 1, 3.*Nothing is committed"):
        client.commit_staged([first, second])
    assert not broker.seen(CommitTransactionRequest)
    assert client.abort_staged([first]) is False, "of an epoch that has ended already"
    assert client.commit_staged([second]).rows == 1
    assert client.abort_staged([second]) is True
    assert stored(broker, "b") == [2]


@pytest.mark.parametrize("attempts", [[], "app", [1], None])
def test_attempts_that_cannot_be(client: Any, attempts: Any) -> None:
    for method in (client.commit_staged, client.abort_staged):
        with pytest.raises(quiverlog.InvalidArgument, match="attempts="):
            method(attempts)
    one = StagedAttempt("app", 1, 0)
    with pytest.raises(quiverlog.InvalidArgument, match="of one transaction"):
        client.commit_staged([one, replace(one, sequence=1)])
    for instance in (b"", b"x" * 65, "run"):
        with pytest.raises(quiverlog.InvalidArgument, match="instance="):
            client.stager("app", instance=instance)


def test_an_id_is_opened_once_in_a_process(client: Any, broker: ScriptedBroker) -> None:
    stager = client.stager("app", instance=b"run", transaction_timeout=90)
    assert not broker.seen(OpenTransactionRequest), "nothing is asked before the first attempt"
    for sequence in range(3):
        attempt = stager.attempt(sequence)
        attempt.send("a", table(sequence))
        with pytest.raises(quiverlog.InvalidArgument, match="finish it or give it up"):
            stager.attempt(sequence)
        client.commit_staged([attempt.finish()])
        with pytest.raises(quiverlog.InvalidArgument, match="is finished"):
            attempt.send("a", table(9))
    assert len(broker.seen(OpenTransactionRequest)) == 1
    assert stored(broker, "a") == [0, 1, 2]


def test_an_id_is_opened_anew_where_it_may_have_been_closed(broker: ScriptedBroker) -> None:
    clock_s = [0.0]
    with quiverlog.connect(broker.bootstrap) as client:
        client.cluster.clock = lambda: clock_s[0]
        stager = client.stager("app", instance=b"run", transaction_timeout=90)
        for passed_s, count in ((0, 1), (29.9, 1), (0.1, 2), (29.9, 2)):
            clock_s[0] += passed_s
            stager.attempt(0).finish()
            assert len(broker.seen(OpenTransactionRequest)) == count


def test_an_attempt_that_is_given_up_leaves_nothing(client: Any, broker: ScriptedBroker) -> None:
    stager = client.stager("app", instance=b"run")
    attempt = stager.attempt(0)
    attempt.send("a", table(1))
    attempt.give_up()
    attempt.give_up()
    dropped = [stager.attempt(0)]
    dropped[0].send("a", table(2))
    dropped.clear()
    gc.collect()
    attempt = stager.attempt(0)
    attempt.send("a", table(3))
    assert client.commit_staged([attempt.finish()]).rows == 1
    assert stored(broker, "a") == [3]


def test_signs_of_life_are_those_of_an_open_attempt(broker: ScriptedBroker) -> None:
    with quiverlog.connect(broker.bootstrap) as client:
        stager = client.stager("app", instance=b"run", transaction_timeout=0.3)
        attempt = stager.attempt(0)
        until(lambda: len(broker.seen(OpenTransactionRequest)) >= 3)
        attempt.finish()
        core = stager._holder.staging[0]
        assert core._life_due_us is None
        stager.attempt(0)
        assert core._life_due_us is not None
