"""Quotas at a node: which connections are measured and muted, and for how long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quiverlog.core.controller.features import SECURITY_LEVEL
from quiverlog.core.security.principals import of_broker
from quiverlog.errors import FeatureNotFinalised, InvalidRequest, QuotaExceeded
from quiverlog.limits import QUOTA_BYTES_MIN
from quiverlog.node.runtime.effects import ConnectionMuted, Effect
from quiverlog.node.runtime.events import ConnectionClosed, ConnectionOpened
from quiverlog.node.security import quotas as module
from quiverlog.types import Operation
from quiverlog.types import QuotaKind as Kind
from quiverlog.wire import messages as m
from quiverlog.wire.security.quota_messages import (
    AlterQuotasRequest,
    DescribeQuotasRequest,
    QuotaPart,
)
from quiverlog.wire.security.user_messages import UserChange
from quiverlog.wire.transaction_messages import (
    CommittedAttempt,
    CommittedPart,
    CommitTransactionRequest,
    OpenTransactionRequest,
)
from tests.support.logins import alter, log_in
from tests.support.node import NodeDriver, batch_of
from tests.support.rights import ALICE, ROOT, RightsDriver, rule
from tests.support.staged import ATTEMPT, make_staged, staged_batch, staged_row

RATE = QUOTA_BYTES_MIN
SECOND = 1_000
BATCH = bytes(batch_of(list(range(1_000))))


class QuotaDriver(RightsDriver):
    def __init__(self, root: Path, **config: Any) -> None:
        super().__init__(root, **config)
        self.topic_id = self.create("t")
        for operation in (Operation.READ, Operation.WRITE):
            self.give(rule(operation, name="t", who="user:*"))

    def limit(self, kind: Kind, name: str = "", **limits: int) -> None:
        fields = {"bytes_in": -1, "bytes_out": -1, "connections": -1, **limits}
        part = QuotaPart(int(kind), name, **fields)
        answer = self.call(AlterQuotasRequest(changes=[part]), connection=ROOT)[0]
        assert answer.error_code == 0, answer.error_message

    def write(self, byte_count: int, connection: int = ALICE) -> Any:
        """A PRODUCE of about this size (whole batches); returns its answer."""
        batches = [BATCH] * (byte_count // len(BATCH))
        correlation = self.produce(self.topic_id, *batches, connection=connection)
        while self.syncs and self.answer(correlation) is None:
            self.flush()
        answer = self.answer(correlation)
        assert answer is not None
        assert answer[0].partitions[0].error_code == 0, answer[0].partitions[0].error_message
        return answer[0]

    def read(self, connection: int = ALICE, **options: Any) -> Any:
        request = self.fetch_request(self.topic_id, 0, bytes_max=1 << 24, **options)
        request.partitions[0].bytes_max = 1 << 24
        return self.call(request, connection=connection)[0]

    def _greet(self) -> None:
        self.muted: set[int] = set()
        """Connections that the server reads nothing from."""
        super()._greet()

    def _perform(self, effects: list[Effect]) -> list[Effect]:
        for effect in effects:
            if isinstance(effect, ConnectionMuted):
                is_muted = effect.connection_id in self.muted
                assert is_muted is not effect.is_muted, "the node sends each change once"
                change = self.muted.add if effect.is_muted else self.muted.discard
                change(effect.connection_id)
        return super()._perform(effects)


@pytest.fixture
def node(tmp_path: Path) -> QuotaDriver:
    return QuotaDriver(tmp_path)


def test_without_a_quota_nobody_waits(node: QuotaDriver) -> None:
    assert node.write(100 * RATE).throttle_ms == 0
    assert node.read().throttle_ms == 0
    assert node.muted == set()
    assert not node.node.broker.quotas.is_on


def test_who_is_over_is_answered_told_and_muted_until_it_is_made_up_for(
    node: QuotaDriver,
) -> None:
    node.limit(Kind.USER, "alice", bytes_in=RATE)
    answer = node.write(3 * RATE)
    assert 1_800 <= answer.throttle_ms <= 2_000
    assert node.muted == {ALICE}
    told = [one for one in node.responses if one.response is answer]
    assert told, "it was answered, and is muted all the same"
    node.advance(answer.throttle_ms - 1)
    assert node.muted == {ALICE}, "a second at a time, until nothing is owed"
    node.advance(1)
    assert node.muted == set()
    assert -(-node.metrics.quota_muted_us["in"] // 1_000) == answer.throttle_ms
    assert node.metrics.quota_muted_us["out"] == 0
    assert node.metrics.quota_connections_muted == 0
    assert RATE < node.metrics.quota_bytes_beyond["in"] < 3 * RATE


def test_a_muted_client_is_looked_at_each_second(node: QuotaDriver) -> None:
    """A raised quota counts for it soon."""
    node.limit(Kind.USER, "alice", bytes_in=RATE)
    node.write(100 * RATE)
    node.advance(10 * SECOND)
    assert node.muted == {ALICE}
    node.limit(Kind.USER, "alice", bytes_in=100 * RATE)
    assert node.muted == {ALICE}
    node.advance(SECOND)
    assert node.muted == set()
    node.limit(Kind.USER, "alice", bytes_in=RATE)
    node.write(100 * RATE)
    node.limit(Kind.USER, "alice", bytes_in=0)
    node.advance(SECOND)
    assert node.muted == set()
    assert node.node.next_deadline_us() is None or not node.node.broker.quotas.next_us()


def test_a_second_of_rows_passes_at_once(node: QuotaDriver) -> None:
    node.limit(Kind.USER, "alice", bytes_in=10 * RATE)
    assert node.write(9 * RATE).throttle_ms == 0
    assert node.muted == set()
    assert node.write(2 * RATE).throttle_ms > 0


def test_connections_of_a_user_are_measured_together(node: QuotaDriver) -> None:
    node.limit(Kind.USER, "alice", bytes_in=2 * RATE)
    node.connect(20, "alice")
    node.connect(21, "bob")
    assert node.write(2 * RATE - len(BATCH)).throttle_ms == 0
    assert node.write(RATE, connection=20).throttle_ms > 0
    assert node.muted == {20}
    assert node.write(RATE).throttle_ms > 0, "whichever of them sends next"
    assert node.muted == {ALICE, 20}
    assert node.write(9 * RATE, connection=21).throttle_ms == 0


def test_each_connection_waits_for_what_it_found_and_not_for_those_behind_it(
    node: QuotaDriver,
) -> None:
    node.limit(Kind.USER, "alice", bytes_in=RATE)
    node.connect(20, "alice")
    first_ms = node.write(3 * RATE).throttle_ms
    node.advance(1_000)
    second_ms = node.write(3 * RATE, connection=20).throttle_ms
    assert second_ms > first_ms - 1_000 + 2_500
    node.advance(first_ms - 1_001)
    assert node.muted == {ALICE, 20}
    node.advance(1)
    assert node.muted == {20}
    node.advance(second_ms - (first_ms - 1_000))
    assert node.muted == set()


def test_requests_that_were_under_way_together_are_waited_for_together(node: QuotaDriver) -> None:
    node.limit(Kind.USER, "alice", bytes_in=RATE)
    batches = [BATCH] * (3 * RATE // len(BATCH))
    sent = [node.produce(node.topic_id, *batches, connection=ALICE) for _ in range(2)]
    node.advance(100)
    while node.syncs:
        node.flush()
    answers = [node.answer(one) for one in sent]
    assert answers[0] is not None
    assert answers[1] is not None
    told_ms = {answer[0].throttle_ms for answer in answers if answer is not None}
    assert len(told_ms) == 1, "both say when it is read from again"
    (wait_ms,) = told_ms
    assert 4_500 < wait_ms < 4_900, "of five seconds, a tenth has passed"
    node.advance(wait_ms - 1)
    assert node.muted == {ALICE}
    node.advance(1)
    assert node.muted == set()


def test_a_new_connection_of_who_owes_is_muted_at_once(node: QuotaDriver) -> None:
    node.limit(Kind.USER, "alice", bytes_in=RATE)
    node.write(5 * RATE)
    node.send(ConnectionClosed(ALICE))
    node.connect(20, "alice")
    node.call(m.MetadataRequest(topics=["t"]), connection=20)
    assert 20 in node.muted
    node.connect(21, "bob")
    node.call(m.MetadataRequest(topics=["t"]), connection=21)
    assert 21 not in node.muted


def test_read_rows_count_as_many_as_are_sent_or_named_in_files(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path)
    topic_id = node.create("t")
    node.produced(topic_id, *[BATCH] * 30)
    found = []
    for in_files in (False, True):
        for rate in (RATE, 0):
            part = QuotaPart(int(Kind.DEFAULT), "", 0, rate)
            assert node.call(AlterQuotasRequest(changes=[part]))[0].error_code == 0
            request = node.fetch_request(topic_id, 0, bytes_max=1 << 24, file_ranges=in_files)
            request.partitions[0].bytes_max = 1 << 24
            answer, body = node.call(request)
            assert bool(answer.partitions[0].file_ranges) is in_files
            assert bool(body) is not in_files
            found.append((answer.partitions[0].batch_bytes, answer.throttle_ms))
            node.advance(100 * SECOND)
    assert found[:2] == found[2:]
    assert found[0] == (30 * len(BATCH), -(-(30 * len(BATCH) - RATE) * 1_000 // RATE))
    assert found[1][1] == 0
    assert node.metrics.quota_muted_us["out"] > 0
    assert node.metrics.quota_muted_us["in"] == 0


def test_a_parked_fetch_of_a_muted_client_is_answered_in_its_time(node: QuotaDriver) -> None:
    node.limit(Kind.USER, "alice", bytes_in=RATE)
    request = node.fetch_request(node.topic_id, 0, max_wait_ms=500, min_bytes=1)
    parked = node.request(request, connection=ALICE)
    late = node.fetch_request(node.topic_id, 0, max_wait_ms=500, min_bytes=1 << 20)
    until = node.request(late, connection=ALICE)
    node.write(5 * RATE)
    assert node.muted == {ALICE}
    assert node.answer(parked) is not None, "rows have come"
    node.advance(500)
    assert node.answer(until) is not None
    assert node.muted == {ALICE}


def test_the_default_is_each_users_and_each_addresss_own(node: QuotaDriver) -> None:
    node.limit(Kind.DEFAULT, bytes_out=RATE)
    node.write(3 * RATE, connection=ROOT)
    node.connect(20, "bob")
    node.connect(21, "alice")
    assert node.read().throttle_ms > 0
    assert node.read(20).throttle_ms > 0
    assert node.read(21).throttle_ms > node.read(20).throttle_ms // 2
    node.limit(Kind.USER, "alice", bytes_out=100 * RATE)
    node.advance(20 * SECOND)
    assert node.read().throttle_ms == 0
    assert node.read(20).throttle_ms > 0


def test_a_client_id_counts_before_the_default(node: QuotaDriver) -> None:
    node.limit(Kind.DEFAULT, bytes_in=RATE)
    node.limit(Kind.CLIENT_ID, f"test-{ALICE}", bytes_in=50 * RATE)
    assert node.write(40 * RATE).throttle_ms == 0
    node.connect(20, "bob")
    assert node.write(3 * RATE, connection=20).throttle_ms > 0
    # HELLO again, under another name.
    node.call(m.HelloRequest(client_id="other"), connection=ALICE)
    assert node.write(3 * RATE).throttle_ms > 0


def test_brokers_are_not_measured(node: QuotaDriver) -> None:
    node.limit(Kind.DEFAULT, bytes_in=RATE, connections=1)
    for connection in (30, 31):
        node.send(ConnectionOpened(connection, "10.0.0.9:1"))
        node.node.broker.clients.authenticated(connection, of_broker(connection))
        node.call(m.HelloRequest(client_id="broker"), connection=connection)
        node.node.broker.quotas.enter(connection, node.now)
        node.node.broker.quotas.received(connection, 100 * RATE, node.now)
        node.read(ROOT)
    assert node.muted == set()


def test_staged_rows_count_when_they_are_staged_and_not_when_they_are_published(
    node: QuotaDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.limit(Kind.DEFAULT, bytes_in=1 << 20)
    staged_id = make_staged(node)
    charged: list[int] = []
    charge = module.Bucket.charge

    def counted(bucket: module.Bucket, byte_count: int, now_us: int) -> int:
        charged.append(byte_count)
        return charge(bucket, byte_count, now_us)

    monkeypatch.setattr(module.Bucket, "charge", counted)

    def done(request: m.Request) -> Any:
        correlation = node.request(request, connection=ROOT)
        for _ in range(30):
            node.run_until_idle()
            node.flush()
        answer = node.answer(correlation)
        assert answer is not None
        return answer[0]

    opens = OpenTransactionRequest(transactional_id="app", instance=b"one")
    epoch = next(one for one in iter(lambda: done(opens), None) if not one.error_code).epoch
    row = staged_row(node.topic_id, BATCH, transactional_id="app", epoch=epoch, sequence=0)
    body = staged_batch([row])
    node.produced(staged_id, body, connection=ROOT)
    part = CommittedPart(0, 0, 1, 1_000)
    commit = CommitTransactionRequest(
        transactional_id="app",
        epoch=epoch,
        sequence=0,
        attempts=[CommittedAttempt(ATTEMPT, 1_000, [part])],
        timeout_ms=1_000,
    )
    assert done(commit).error_code == 0
    assert node.broker_end(node.topic_id) == 1_000, "they are published"
    assert charged == [len(body)]


# --- connections ---------------------------------------------------------------------------------
def test_connections_at_the_limit_and_above(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path)
    part = QuotaPart(int(Kind.CLIENT_ID), "app", connections=2)
    assert node.call(AlterQuotasRequest(changes=[part]))[0].error_code == 0

    def connect(number: int, client_id: str = "app") -> int:
        node.send(ConnectionOpened(number, "10.0.0.9:1"))
        hello = node.call(m.HelloRequest(client_id=client_id), connection=number)[0]
        return int(hello.error_code)

    assert [connect(10), connect(11), connect(12)] == [0, 0, QuotaExceeded.code]
    assert [one.connection_id for one in node.closed] == [12]
    node.close_connection(12)
    assert connect(13, "another") == 0
    node.close_connection(10)
    assert connect(14) == 0
    assert connect(15) == QuotaExceeded.code
    assert node.metrics.quota_connections_refused == 2
    # Those that are open stay, and count under what holds now.
    part.connections = 1
    assert node.call(AlterQuotasRequest(changes=[part]))[0].error_code == 0
    node.close_connection(11)
    node.close_connection(15)
    assert connect(16) == QuotaExceeded.code
    node.call(m.HelloRequest(client_id="app"), connection=14)
    node.close_connection(14)
    assert connect(17) == 0
    # HELLO again, as another.
    assert node.call(m.HelloRequest(client_id="app"), connection=13)[0].error_code != 0


def test_a_login_beyond_the_users_connections_is_refused_and_the_next_one_is_not(
    node: QuotaDriver,
) -> None:
    alter(node, "carol", UserChange.CREATE, b"secret", connection=ROOT)
    node.limit(Kind.USER, "carol", connections=1)
    answers = {}
    for connection in (40, 41):
        node.connect(connection, "")
        answers[connection] = log_in(node, "carol", b"secret", connection)
    assert answers[40].is_done
    assert answers[41].error_code == QuotaExceeded.code
    assert "user carol has 1 connections" in answers[41].error_message
    assert [one.connection_id for one in node.closed] == [41]
    results = [one.fields["result"] for one in node.audited if one.fields["event"] == "login"]
    assert results == ["ok", "QUOTA_EXCEEDED"]
    # Another login of the same connection is none more, whatever the limit is now.
    assert log_in(node, "carol", b"secret", 40).is_done
    node.limit(Kind.USER, "carol", connections=2)
    node.connect(43, "")
    assert log_in(node, "carol", b"secret", 43).is_done
    node.limit(Kind.USER, "carol", connections=1)
    assert log_in(node, "carol", b"secret", 43).is_done
    node.close_connection(43)
    assert log_in(node, "carol", b"secret", 40).is_done
    node.close_connection(40)
    node.connect(42, "")
    assert log_in(node, "carol", b"secret", 42).is_done


def test_anonymous_clients_have_the_default_of_their_address(node: QuotaDriver) -> None:
    node.limit(Kind.DEFAULT, connections=1)
    codes = []
    for connection, peer in ((50, "10.1.0.1:1"), (51, "10.1.0.1:2"), (52, "10.1.0.2:1")):
        node.connect(connection, "", peer)
        answer = node.call(m.MetadataRequest(topics=["t"]), connection=connection)[0]
        codes.append(answer.error_code)
    assert codes == [0, QuotaExceeded.code, 0]


def test_quotas_survive_a_restart_and_a_snapshot(node: QuotaDriver) -> None:
    node.limit(Kind.USER, "alice", bytes_in=RATE, connections=3)
    node.limit(Kind.DEFAULT, bytes_out=RATE)
    node.restart()
    shown = node.call(DescribeQuotasRequest(), connection=ROOT)[0].quotas
    assert shown == [QuotaPart(1, "alice", RATE, 0, 3), QuotaPart(3, "", 0, RATE, 0)]
    assert node.node.broker.quotas.is_on
    only = node.call(DescribeQuotasRequest(kind=1, name="alice"), connection=ROOT)[0].quotas
    assert [one.name for one in only] == ["alice"]
    assert node.write(3 * RATE).throttle_ms > 0
    node.limit(Kind.USER, "alice", bytes_in=0, connections=0)
    shown = node.call(DescribeQuotasRequest(), connection=ROOT)[0].quotas
    assert [one.kind for one in shown] == [3]


def test_below_the_level_of_quotas_there_are_none(node: QuotaDriver) -> None:
    node.node.broker.metadata.pending.feature_level = SECURITY_LEVEL - 1
    part = QuotaPart(int(Kind.DEFAULT), "", RATE)
    answer = node.call(AlterQuotasRequest(changes=[part]), connection=ROOT)[0]
    assert answer.error_code == FeatureNotFinalised.code
    assert "a quota needs feature level 3" in answer.error_message


def test_a_change_that_is_only_validated_changes_nothing(node: QuotaDriver) -> None:
    part = QuotaPart(int(Kind.DEFAULT), "", RATE)
    request = AlterQuotasRequest(changes=[part], validate_only=True)
    assert node.call(request, connection=ROOT)[0].error_code == 0
    assert not node.node.broker.quotas.is_on
    part.bytes_in = 1
    assert node.call(request, connection=ROOT)[0].error_code == InvalidRequest.code


def test_buckets_of_those_who_owe_nothing_are_forgotten(
    node: QuotaDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BUCKETS_MIN", 4)
    node.node.broker.quotas._sweep_at = 4
    node.limit(Kind.DEFAULT, bytes_in=RATE)
    node.write(20 * RATE)
    for number in range(40):
        node.advance(10)
        node.connect(100 + number, f"user-{number}")
        node.node.broker.quotas.received(100 + number, 10, node.now)
    assert len(node.node.broker.quotas._buckets) < 100
    node.advance(2 * SECOND)
    node.node.broker.quotas._sweep(node.now)
    assert [owner.name for owner, _ in node.node.broker.quotas._buckets] == ["alice"]
    assert node.muted == {ALICE}, "a debt is not forgotten"
