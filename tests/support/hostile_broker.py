"""What a hostile broker does to a client: every public method, every kind of wrong answer.

Owns the topics that are attacked, the calls that a program could make, and the faults beyond those
of `tests.support.mutations`. Not here: what a client makes of them.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa

import quiverlog
from quiverlog import errors
from quiverlog.batch.codec import encode_batch
from quiverlog.client.admin.cluster import change_voters, decommission_broker
from quiverlog.client.admin.groups import ask_coordinator
from quiverlog.client.admin.rules import AccessRule
from quiverlog.client.tables.fetcher import PartitionFetcher
from quiverlog.limits import FEATURE_LEVEL_MAX, FRAME_BYTES_MAX, HEADER_BYTES_MAX
from quiverlog.types import EARLIEST, LATEST, TopicPartition
from quiverlog.wire import frames
from quiverlog.wire import messages as m
from quiverlog.wire.decommission_messages import DecommissionStep
from quiverlog.wire.group_messages import (
    CommitOffsetsRequest,
    FetchOffsetsRequest,
    GroupHeartbeatRequest,
    ReportProgressRequest,
)
from quiverlog.wire.registry import APIS
from quiverlog.wire.voters_messages import ChangeVotersRequest

from .client_scenarios import SCHEMA, rows
from .mutations import Mutator
from .scripted_broker import Answer, Cut, Fault, ScriptedBroker

__all__ = ["ACTIONS", "CODES", "REQUEST_TIMEOUT_S", "Action", "any_fault", "error", "prepare"]

REQUEST_TIMEOUT_S = 0.15
TOPIC, SINK = "attacked", "written"
TRANSACTIONAL_ID = "app"
GROUP = "readers"
ROWS: Final = 45
"""In each of the two partitions of TOPIC, in batches of 5."""
T0, T1 = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)
CODES: Final = (*sorted(code for code in errors._BY_CODE if code), 777, 2**31 - 1)
"""Of every error there is, the client's own and unknown ones included."""


def prepare(broker: ScriptedBroker) -> None:
    """Make the topics."""
    with quiverlog.connect(broker.bootstrap) as client:
        client.create_topic(TOPIC, SCHEMA, partitions=2)
        for codec in ("none", "zstd", "lz4"):
            with client.producer(TOPIC, batch_rows=5, compression=codec) as producer:
                for partition in (0, 1):
                    producer.send(rows(15), partition=partition)
        client.create_topic(SINK, SCHEMA, partitions=2)
        with client.transaction(TRANSACTIONAL_ID) as transaction:
            transaction.send(SINK, rows(1))
        client.alter_group_offsets(GROUP, {T0: 1, T1: ROWS})


# --- what a program does --------------------------------------------------------------------------
def _in_order(batches: Any, at: dict[int, int]) -> dict[int, int]:
    """Read; the offsets of each partition must follow one another."""
    for batch in batches:
        assert batch.base_offset == at[batch.partition], "a row twice, or none"
        assert batch.data.num_rows > 0
        at[batch.partition] = batch.next_offset
    return at


def _consume(client: Any, **options: Any) -> None:
    # The broker may lie about where the log starts and ends, and about nothing in between.
    start, end = {0: 0, 1: 0}, {0: ROWS, 1: ROWS}
    found = _in_order(client.consumer(TOPIC, start=start, end=end, **options), dict(start))
    assert found == end, "ended early without an error"


def _consume_some(client: Any, **options: Any) -> None:
    for _ in client.consumer(TOPIC, **options):
        pass


def _poll(client: Any) -> None:
    with client.consumer(TOPIC, follow=True, partitions=[1]) as consumer:
        at = {1: 0}
        for _ in range(4):
            batch = consumer.poll(timeout=0.05)
            _in_order([] if batch is None else [batch], at)
            assert consumer.positions == at
        consumer.seek(1, 7)
        batch = consumer.poll(timeout=0.05)
        _in_order([] if batch is None else [batch], {1: 7})


def _produce(client: Any, **options: Any) -> None:
    options = {"batch_rows": 3, "delivery_timeout": REQUEST_TIMEOUT_S, **options}
    with client.producer(SINK, **options) as producer:
        futures = [producer.send(rows(7), partition=0), producer.send(rows(1)[0], partition=0)]
        producer.flush()
        for future in futures:
            assert sum(part.rows for part in future.result()) in (1, 7)


def _transact(client: Any) -> None:
    with client.transaction(TRANSACTIONAL_ID, timeout=REQUEST_TIMEOUT_S) as transaction:
        staged = transaction.send(SINK, rows(7), partition=0)
    assert staged.result() == 7
    with client.transaction(TRANSACTIONAL_ID, timeout=REQUEST_TIMEOUT_S) as transaction:
        transaction.abort()


def _staged(client: Any) -> list[Any]:
    # Each time a new run: the transaction that it repeats has committed.
    stager = client.stager("staged", instance=os.urandom(16), timeout=REQUEST_TIMEOUT_S)
    try:
        attempt = stager.attempt(0)
        attempt.send(SINK, rows(7), partition=0)
        staged = attempt.finish()
    finally:
        stager.close()
    assert staged.rows == 7
    return [staged]


def _commit_staged(client: Any) -> None:
    client.commit_staged(_staged(client), timeout=REQUEST_TIMEOUT_S, publish_timeout=0.1)


def _abort_staged(client: Any) -> None:
    client.abort_staged(_staged(client), timeout=REQUEST_TIMEOUT_S)


def _raw_produce(client: Any) -> None:
    data = pa.RecordBatch.from_pylist(rows(3), schema=SCHEMA)
    client.raw_produce(SINK, {0: [encode_batch(data, schema_id=1, timestamp_us=1)]})


def _raw_call(client: Any) -> None:
    client.raw_call(m.MetadataRequest(topics=[TOPIC]))


def _fetch_range(client: Any) -> None:
    if isinstance(client, quiverlog.Client):
        with PartitionFetcher(client, TOPIC, 0, 3, 37) as fetcher:
            assert _in_order(fetcher, {0: 3}) == {0: 37}


def _of_known(ask: Callable[[str], object]) -> None:
    with contextlib.suppress(quiverlog.UnknownTransactionalId):  # It may be forgotten.
        ask(TRANSACTIONAL_ID)


def _create_and_delete(client: Any) -> None:
    client.create_topic("new", SCHEMA, if_not_exists=True)
    client.delete_topic("new", if_exists=True)


def _with_rules(client: Any) -> None:
    client.add_rules([AccessRule("user:alice", True, "read", "topic", TOPIC)])


def _without_rules(client: Any) -> None:
    with contextlib.suppress(quiverlog.InvalidRequest):  # None had that number yet.
        client.remove_rules([1])


def _replace_password(client: Any) -> None:
    client.change_password("alice", "newer", keep_old=True)
    client.drop_old_password("alice")


def _with_user(act: Callable[[Any], object]) -> Callable[[Any], None]:
    """Do something about a user; what an earlier, half answered action has left is no failure."""

    def run(client: Any) -> None:
        with contextlib.suppress(quiverlog.UserExists):
            client.create_user("alice", "secret")
        with contextlib.suppress(quiverlog.UnknownUser, quiverlog.UnknownToken):
            act(client)

    return run


def _in_group(request: Any) -> Callable[[Any], None]:
    """Ask the coordinator; what an earlier, half answered action has left is no failure."""

    def run(client: Any) -> None:
        kind = APIS[int(request.API)].response
        asked = ask_coordinator(client.cluster, request.group, copy(request), kind)
        with contextlib.suppress(errors.ThrottledBroker, errors.InvalidGroup, errors.GroupNotEmpty):
            client.run(asked)

    return run


def _of_group(act: Callable[[Any], object]) -> Callable[[Any], None]:
    def run(client: Any) -> None:
        with contextlib.suppress(errors.InvalidGroup, errors.GroupNotEmpty):
            act(client)

    return run


_LEAVES: Final = GroupHeartbeatRequest(group=GROUP, member_id=b"m" * 16, member_epoch=-1)


@dataclass(frozen=True)
class Action:
    """One thing that a program does, the topic and the partition that it is about."""

    method: str
    run: Callable[[Any], object]
    topic: str | None = None
    partition: int | None = None

    def __repr__(self) -> str:
        return f"<{self.method}, action {ACTIONS.index(self)}>"


def _of_topic(method: str, run: Callable[[Any], object], partition: int | None = None) -> Action:
    return Action(method, run, TOPIC, partition)


ACTIONS: tuple[Action, ...] = (
    Action("list_topics", lambda c: c.list_topics()),
    Action("metadata", lambda c: c.metadata([TOPIC, "nope"])),
    Action("raw_call", _raw_call),
    Action("describe_cluster", lambda c: c.describe_cluster()),
    Action("alter_configs", lambda c: c.alter_configs({"log.level": "info"})),
    Action("describe_configs", lambda c: c.describe_configs(None, ["log.level"])),
    Action("describe_features", lambda c: c.describe_features()),
    Action("finalize_features", lambda c: c.finalize_features(FEATURE_LEVEL_MAX)),
    Action("describe_topics", lambda c: c.describe_topics()),
    Action("describe_replicas", lambda c: c.describe_replicas()),
    Action("describe_producer", lambda c: c.describe_producer(0)),
    Action("transaction", _transact),
    Action("stager", _staged),
    Action("commit_staged", _commit_staged),
    Action("abort_staged", _abort_staged),
    Action("transactional_id", lambda c: c.transactional_id(TRANSACTIONAL_ID)),
    Action("list_transactions", lambda c: c.list_transactions(["open"])),
    Action("describe_transaction", lambda c: _of_known(c.describe_transaction)),
    Action("abort_transaction", lambda c: _of_known(c.abort_transaction)),
    Action("forget_transaction", lambda c: _of_known(c.forget_transaction)),
    Action("list_groups", lambda c: c.list_groups()),
    Action("describe_group", _of_group(lambda c: c.describe_group(GROUP))),
    Action("alter_group_offsets", _of_group(lambda c: c.alter_group_offsets(GROUP, {T0: 2}))),
    Action("delete_group", _of_group(lambda c: c.delete_group("none"))),
    Action("run", _in_group(_LEAVES)),
    Action("run", _in_group(CommitOffsetsRequest(group=GROUP))),
    Action("run", _in_group(FetchOffsetsRequest(group=GROUP))),
    Action("run", _in_group(ReportProgressRequest(group="query", reporter=b"r" * 16))),
    Action("run", lambda c: c.run(change_voters(c.cluster, ChangeVotersRequest()))),
    Action("run", lambda c: c.run(decommission_broker(c.cluster, 0, DecommissionStep.NOTHING))),
    Action("who_am_i", lambda c: c.who_am_i()),
    Action("add_rules", _with_rules),
    Action("remove_rules", _without_rules),
    Action("list_rules", lambda c: c.list_rules()),
    Action("set_quota", lambda c: c.set_quota("client-id", "other", connections=5)),
    Action("list_quotas", lambda c: c.list_quotas()),
    Action("check_access", lambda c: c.check_access("user:alice", "read", "topic", TOPIC)),
    Action("list_users", lambda c: c.list_users()),
    Action("create_user", _with_user(lambda c: c.list_users("alice", with_tokens=True))),
    Action("change_password", _with_user(lambda c: c.change_password("alice", "new"))),
    Action("change_password", _with_user(_replace_password)),
    Action("drop_old_password", _with_user(lambda c: c.drop_old_password("alice"))),
    Action("set_admin", _with_user(lambda c: c.set_admin("alice", True))),
    Action("delete_user", _with_user(lambda c: c.delete_user("alice"))),
    Action("create_token", _with_user(lambda c: c.create_token(60.0, owner="alice"))),
    Action("end_tokens", _with_user(lambda c: c.end_tokens(owner="alice"))),
    Action("create_topic", _create_and_delete, "new"),
    Action("delete_topic", lambda c: c.delete_topic("nope", if_exists=True), "nope"),
    _of_topic("create_topic", lambda c: c.create_topic(TOPIC, SCHEMA, if_not_exists=True)),
    _of_topic("alter_topic", lambda c: c.alter_topic(TOPIC, config={"retention.ms": 10**9})),
    _of_topic("alter_topic", lambda c: c.alter_topic(TOPIC, schema=SCHEMA, partitions=2)),
    _of_topic("describe_topic", lambda c: c.describe_topic(TOPIC)),
    _of_topic("schemas", lambda c: c.schemas(TOPIC)),
    _of_topic("list_offsets", lambda c: c.list_offsets(TOPIC)),
    _of_topic("list_offsets", lambda c: c.list_offsets(TOPIC, {1: datetime.now(UTC)}), 1),
    _of_topic("reassign_partitions", lambda c: c.reassign_partitions(TOPIC, {0: [0], 1: None})),
    _of_topic("elect_leaders", lambda c: c.elect_leaders(TOPIC, [0, 1])),
    _of_topic("delete_records", lambda c: c.delete_records(TOPIC, {1: 0}), 1),
    _of_topic("offsets_with_epochs", lambda c: c.offsets_with_epochs({T0: LATEST, T1: EARLIEST})),
    _of_topic("offsets_with_epochs", lambda c: c.offsets_with_epochs({T1: LATEST}), 1),
    _of_topic("epoch_end_offsets", lambda c: c.epoch_end_offsets({T0: 0, T1: 0})),
    _of_topic("describe_ranges", lambda c: c.describe_ranges({T1: (3, 40)}), 1),
    _of_topic("raw_fetch", lambda c: c.raw_fetch(TOPIC, {0: 0, 1: 3})),
    _of_topic("raw_fetch", lambda c: c.raw_fetch(TOPIC, {1: 3}), 1),
    _of_topic("read", lambda c: c.read(TOPIC).to_arrow()),
    _of_topic("consumer", _consume),
    _of_topic("consumer", lambda c: _consume(c, columns=["id"])),
    _of_topic("consumer", lambda c: _consume_some(c, start=datetime(2020, 1, 1, tzinfo=UTC))),
    _of_topic("consumer", lambda c: _consume_some(c, skip_corrupt=True)),
    _of_topic("consumer", _poll, 1),
    _of_topic("fetcher", _fetch_range, 0),
    Action("producer", _produce, SINK, 0),
    Action("producer", lambda c: _produce(c, idempotent=False), SINK, 0),
    Action("raw_produce", _raw_produce, SINK, 0),
)


# --- what the broker does -------------------------------------------------------------------------
def error(code: int, *, whole: bool) -> Answer:
    """The error with this code, for the request or for each of its parts."""

    def change(request: Any, response: Any, body: bytes) -> tuple[m.Response, bytes]:
        parts = getattr(response, "partitions", None) or getattr(response, "topics", None) or []
        parts = [p for p in parts if hasattr(p, "error_code")]
        if whole or not parts:
            return type(response)(error_code=code, error_message="by the script"), b""
        for part in parts:
            part.error_code = code
            part.error_message = "by the script"
            if hasattr(part, "batch_bytes"):
                part.batch_bytes = 0
        return response, b""

    return Answer(change)


def _empty(request: Any, response: Any, body: bytes) -> tuple[m.Response, bytes]:
    return type(response)(), b""


def _framed(response: Any, body: bytes) -> bytes:
    return frames.encode(response, response.correlation_id, len(body)) + body


def _declared(choose: random.Random) -> Answer:
    """Sizes that are not those of what follows."""

    def change(request: Any, response: Any, body: bytes) -> bytes:
        whole = bytearray(_framed(response, body))
        at = choose.choice((0, 4))
        size = choose.choice(
            (0, 3, len(whole) * 2, HEADER_BYTES_MAX + 1, FRAME_BYTES_MAX + 1, 2**31, 2**32 - 1)
        )
        whole[at : at + 4] = size.to_bytes(4, "little")
        return bytes(whole)

    return Answer(change)


def _other_kind(request: Any, response: Any, body: bytes) -> bytes:
    """The right id, and an answer to another question."""
    other = m.DeleteTopicsResponse if request.API is m.Api.METADATA else m.MetadataResponse
    return frames.encode(other(), response.correlation_id, 0)


def _twice(request: Any, response: Any, body: bytes) -> bytes:
    return _framed(response, body) * 2


def _stray(choose: random.Random) -> Answer:
    """A frame without a request comes first."""
    code = choose.choice(CODES)
    before = frames.encode(m.HelloResponse(error_code=code), choose.choice((0, 77)), 0)
    return Answer(lambda request, response, body: before + _framed(response, body))


def _epochs(choose: random.Random) -> Answer:
    """The leader's epoch, in the answer or in METADATA, is not what it was."""
    wrong = choose.choice((-1, 0, 1, 7, 2**31 - 1))

    def change(request: Any, response: Any, body: bytes) -> tuple[m.Response, bytes]:
        parts = list(getattr(response, "partitions", ()))
        for topic in getattr(response, "topics", ()):
            parts.extend(getattr(topic, "partitions", ()))
        for part in parts:
            for name in ("leader_epoch", "diverging_epoch", "epoch"):
                if hasattr(part, name):
                    setattr(part, name, wrong)
        return response, body

    return Answer(change)


def any_fault(seed: int) -> tuple[Fault, object]:
    """A fault, and the message when a client falls over it."""
    choose = random.Random(seed)
    way = choose.randrange(12)
    if way < 4:
        mutator = Mutator(seed)
        return Answer(mutator), mutator.log
    if way < 6:
        code, whole = choose.choice(CODES), choose.random() < 0.3
        return error(code, whole=whole), f"error {code}"
    if way == 6:
        return Cut(choose.randrange(200)), "cut"
    faults: list[tuple[Fault, object]] = [
        ("hang", "hang"),
        (Answer(_empty), "empty"),
        (_declared(choose), "declared"),
        (Answer(choose.choice((_other_kind, _twice))), "other or twice"),
        (choose.choice((_stray, _epochs))(choose), "stray or epochs"),
    ]
    return faults[way - 7]
