"""Some thirty bad values at every argument of every public method, of both clients.

A method either takes a value or raises a QuiverlogError. A value of a type that no argument takes
is refused by its argument's name.
"""

from __future__ import annotations

import datetime
import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import quiverlog
from quiverlog.client import client as client_client
from quiverlog.client.base.arguments import checked, shown
from quiverlog.client.consumer import consumer
from quiverlog.client.producer import producer
from quiverlog.client.transactions.questions import StagedAttempt
from quiverlog.errors import InvalidArgument, QuiverlogError, SchemaMismatch
from quiverlog.types import TopicPartition
from quiverlog.wire import messages as m
from tests.support.client_kinds import CLIENT_KINDS, connect
from tests.support.scripted_broker import ScriptedBroker

PLACE = TopicPartition("t", 0)
SCHEMA = pa.schema([("x", pa.int64()), ("s", pa.string())])


class Hostile:
    """Of no type that any argument has; not even its text can be had."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


BAD: dict[str, Any] = {
    "None": None,
    "True": True,
    "0": 0,
    "-1": -1,
    "5": 5,
    "2**31": 2**31,
    "2**63": 2**63,
    "2**70": 2**70,
    "10**5000": 10**5_000,
    "1.5": 1.5,
    "nan": math.nan,
    "inf": math.inf,
    "-inf": -math.inf,
    "1e308": 1e308,
    "empty": "",
    "surrogate": "\ud800",
    "long": "x" * 300,
    "NUL": "a\0b",
    "digit": "0",
    "bytes": b"x",
    "[]": [],
    "[None]": [None],
    "[surrogate]": ["\ud800"],
    "[2**70]": [2**70],
    "{}": {},
    "{'0': 0}": {"0": 0},
    "{0: 2**70}": {0: 2**70},
    "{0: None}": {0: None},
    "{0: nan}": {0: math.nan},
    "{surrogate}": {"\ud800": "1"},
    "{big setting}": {"retention.ms": 10**5_000},
    "{place: None}": {PLACE: None},
    "{place: 2**70}": {PLACE: 2**70},
    "{no place}": {TopicPartition("\ud800", 2**40): 0},  # type: ignore[arg-type]
    "{place: pair}": {PLACE: (None, 2**70)},
    "naive": datetime.datetime.max,  # noqa: DTZ901
    "type": int,
    "iterator": iter([1]),
    "arrow type": pa.int64(),
    "array": pa.array([1]),
    "big row": [{"x": 10**5_000}],
    "odd rows": [{5: Hostile()}],
    "Hostile": Hostile(),
}
FREE = {"schema", "data", "bootstrap", "compression", "durability"}
"""Of several types, and checked where they are used."""

CLIENT: dict[str, dict[str, Any]] = {
    "create_topic": {"name": "t2", "schema": SCHEMA, "validate_only": True},
    "delete_topic": {"name": "none"},
    "alter_topic": {"name": "t", "partitions": 2, "validate_only": True},
    "describe_cluster": {},
    "describe_topic": {"name": "t"},
    "describe_topics": {},
    "describe_replicas": {},
    "describe_producer": {"producer_id": 0},
    "list_transactions": {"states": ["open"]},
    "describe_transaction": {"transactional_id": "app"},
    "abort_transaction": {"transactional_id": "app"},
    "forget_transaction": {"transactional_id": "app"},
    "list_groups": {"states": ["empty"], "types": ["simple"]},
    "describe_group": {"group": "app"},
    "alter_group_offsets": {"group": "app", "offsets": {TopicPartition("t", 0): 1}},
    "delete_group": {"group": "app"},
    "transaction": {"transactional_id": "app"},
    "transactional_id": {"transactional_id": "app"},
    "stager": {"transactional_id": "app", "instance": b"run"},
    "commit_staged": {"attempts": [StagedAttempt("app", 1, 0)]},
    "abort_staged": {"attempts": [StagedAttempt("app", 1, 0)]},
    "who_am_i": {},
    "add_rules": {"rules": []},
    "remove_rules": {"numbers": [1]},
    "list_rules": {},
    "set_quota": {"kind": "user", "name": "alice", "bytes_in": 1, "connections": None},
    "list_quotas": {},
    "check_access": {"principal": "user:a", "operation": "read", "kind": "topic", "name": "t"},
    "create_user": {"name": "alice", "password": "secret", "is_admin": False},
    "change_password": {"name": "alice", "password": "secret", "keep_old": True},
    "drop_old_password": {"name": "alice"},
    "set_admin": {"name": "alice", "is_admin": True},
    "delete_user": {"name": "alice"},
    "list_users": {},
    "create_token": {"lifetime": 60.0, "owner": "alice"},
    "end_tokens": {"token_ids": [], "owner": "alice"},
    "list_topics": {},
    "metadata": {},
    "schemas": {"topic": "t"},
    "list_offsets": {"topic": "t"},
    "delete_records": {"topic": "t", "before": {0: 0}},
    "elect_leaders": {"topic": "t", "partitions": [0], "unclean": True},
    "alter_configs": {"changes": {}},
    "describe_configs": {},
    "describe_features": {},
    "finalize_features": {"level": 1},
    "reassign_partitions": {"topic": "t", "targets": {}, "throttle": 1, "change_count": True},
    "offsets_with_epochs": {"at": {PLACE: -1}},
    "epoch_end_offsets": {"epochs": {PLACE: 0}},
    "describe_ranges": {"ranges": {PLACE: (0, 0)}},
    "raw_produce": {"topic": "t", "batches": {}},
    "raw_fetch": {"topic": "t", "offsets": {0: 0}},
    "raw_call": {"request": m.MetadataRequest()},
    "producer": {"topic": "t"},
    "consumer": {"topic": "t"},
    "read": {"topic": "t"},
}
PRODUCER: dict[str, dict[str, Any]] = {"send": {"data": []}, "flush": {}, "close": {}}
CONSUMER: dict[str, dict[str, Any]] = {
    "poll": {"timeout": 0},
    "seek": {"partition": 0, "offset": 0},
    "pause": {"partition": 0},
    "resume": {"partition": 0},
}
FUTURE: dict[str, dict[str, Any]] = {"result": {}, "exception": {}}
NO_ARGUMENTS = {"open", "abort", "done", "close", "duckdb"}
BLOCKING_ONLY = {"replay"}
"""`tests/unit/client/replay` has what it refuses."""
INTERNAL = {
    *("run", "add_piece", "mark_complete", "acknowledge", "fail", "halves", "failed"),
    "warn_of_lost_rows",
}
"""For programs that compose operations of their own, for what completes a future, and for the end
of the process."""


@pytest.fixture(scope="module")
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as broker:
        with quiverlog.connect(broker.bootstrap) as setup:
            setup.create_topic("t", SCHEMA)
        yield broker


@pytest.fixture(params=CLIENT_KINDS)
def client(request: Any, broker: ScriptedBroker) -> Iterator[Any]:
    with connect(request.param, broker.bootstrap, request_timeout=0.2) as client:
        yield client


def test_every_public_method_is_here() -> None:
    for kind, calls in (
        (client_client.Client, CLIENT),
        (producer.Producer, PRODUCER),
        (consumer.Consumer, CONSUMER),
        (producer.SendFuture, FUTURE),
    ):
        found = {n for n, f in inspect.getmembers(kind, inspect.isfunction) if n[0] != "_"}
        unknown = found - calls.keys() - NO_ARGUMENTS - BLOCKING_ONLY
        assert unknown <= INTERNAL, kind


def _throw(kind: Any, method: str, call: Callable[..., Any], valid: dict[str, Any]) -> list[str]:
    """What went wrong: a line per bad value that raised something else."""
    wrong = []
    for name in list(inspect.signature(getattr(kind, method)).parameters)[1:]:
        for label, value in BAD.items():
            what = f"{method}({name}={label})"
            try:
                call(**{**valid, name: value})
            except QuiverlogError as error:
                if type(error) is QuiverlogError:
                    wrong.append(f"{what}: {error}")
                is_named = type(error) is InvalidArgument and name in error.message
                if label == "Hostile" and name not in FREE and not is_named:
                    wrong.append(f"{what}: {error}")
            except Exception as error:
                wrong.append(f"{what}: {type(error).__name__}: {str(error)[:80]}")
            else:
                if label == "Hostile":
                    wrong.append(f"{what}: taken")
    return wrong


@pytest.mark.parametrize("method", CLIENT)
def test_the_client(client: Any, method: str) -> None:
    def call(**arguments: Any) -> None:
        result = getattr(client, method)(**arguments)
        if method in ("producer", "transaction"):
            result.abort()
        if method == "consumer":
            result.poll(0)
            result.close()

    wrong = _throw(client_client.Client, method, call, CLIENT[method])
    assert not wrong, "\n".join(wrong)


def test_the_producer(client: Any) -> None:
    wrong: list[str] = []
    with client.producer("t", linger=0) as sender:
        for method in ("send", "flush"):
            wrong += _throw(producer.Producer, method, getattr(sender, method), PRODUCER[method])
        for method, valid in FUTURE.items():
            future = sender.send([{"x": 1}])
            wrong += _throw(producer.SendFuture, method, getattr(future, method), valid)

        def close(timeout: Any) -> None:
            opened = client.producer("t")
            try:
                opened.close(timeout)
            finally:
                opened.abort()

        wrong += _throw(producer.Producer, "close", close, {})
        sender.abort()
    assert not wrong, "\n".join(wrong)


def test_a_row_that_cannot_be_shown_is_refused_by_its_place(client: Any) -> None:
    with client.producer("t") as sender:
        for row in ({"x": 10**5_000}, {"x": Hostile()}):
            with pytest.raises(SchemaMismatch, match="Column 'x'"):
                sender.send([row])


def test_the_consumer(client: Any) -> None:
    wrong: list[str] = []
    with client.consumer("t") as reader:
        for method, valid in CONSUMER.items():
            wrong += _throw(consumer.Consumer, method, getattr(reader, method), valid)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("kind", CLIENT_KINDS)
@pytest.mark.parametrize("name", list(inspect.signature(quiverlog.connect).parameters))
def test_connecting(broker: ScriptedBroker, kind: str, name: str) -> None:
    for label, value in BAD.items():
        if name == "bootstrap" and label in ("digit", "long", "{'0': 0}"):
            continue  # possible names of hosts
        arguments = {"bootstrap": broker.bootstrap, name: value}
        try:
            with connect(kind, **arguments):
                assert label != "Hostile"
        except QuiverlogError as error:
            if name not in str(error) and name != "bootstrap":
                pytest.fail(f"{name}={label}: {error}")
        except Exception as error:
            pytest.fail(f"{name}={label}: {type(error).__name__}: {error}")


def test_a_message_names_what_to_give(client: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"create_topic: partitions='2': give a whole number"):
        client.create_topic("t3", SCHEMA, partitions="2")
    with pytest.raises(InvalidArgument, match=r"before: key='0': give a whole number"):
        client.delete_records("t", {"0": 0})
    with pytest.raises(InvalidArgument, match="poll: timeout=nan: give seconds"):
        client.consumer("t").poll(math.nan)


def test_an_annotation_without_a_kind_fails_when_the_method_is_made() -> None:
    def method(names: set[str]) -> None: ...

    with pytest.raises(KeyError, match=r"set\[str\]"):
        checked()(method)


def test_values_are_shown_short_and_in_any_encoding() -> None:
    assert shown("x" * 500) == "'" + "x" * 76 + "..."
    assert shown("\ud800").isascii()
    assert shown(10**5_000) == "a int that cannot be shown"
