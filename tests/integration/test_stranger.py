"""A client written from the docs alone against a real broker."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

import quiverlog.testing
from quiverlog.local.cluster import LocalCluster
from tests.stranger import client as c
from tests.stranger import groups, transactions
from tests.support.broker import BrokerProcess

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def stranger() -> Iterator[c.Stranger]:
    with BrokerProcess() as broker:
        stranger = c.Stranger(*broker.address)
        yield stranger
        stranger.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with quiverlog.testing.cluster(3) as cluster:
        yield cluster


def test_it_imports_nothing_of_quiverlog() -> None:
    for module in (c, transactions, groups):
        text = c.Path(module.__file__).read_text()
        assert "import quiverlog" not in text
        assert "from quiverlog" not in text
    assert "pyarrow" not in c.Path(c.__file__).read_text()


def test_a_day_in_its_life(stranger: c.Stranger) -> None:
    newer, _ = stranger.ask(c.HELLO, {"a field": "of version 2"}, version=2)
    assert newer[3] == 5, "UNSUPPORTED_VERSION"
    assert [c.HELLO, 1, 1] in newer[9], "with the versions, and the connection is still there"
    assert stranger.hello()[c.PRODUCE] == (1, 1)
    schema = bytes.fromhex(c.vector("batches.json", "int64")["schema_hex"])
    topic_id = stranger.create_topic("from-a-stranger", schema)
    epoch = stranger.leader_epoch(topic_id)
    producer_id, producer_epoch = stranger.init_producer()
    at_us = time.time_ns() // 1000
    first = c.int64_batch([7, -8, 9], at_us, producer_id, producer_epoch, 0)
    second = c.int64_batch([10, 11, 2**63 - 1], at_us, producer_id, producer_epoch, 3)
    assert stranger.produce(topic_id, epoch, first) == (0, False)
    assert stranger.produce(topic_id, epoch, first) == (0, True), "sent again, stored once"
    assert stranger.produce(topic_id, epoch, second) == (3, False)
    high_watermark, batches = stranger.fetch(topic_id, 1)
    assert high_watermark == 6
    assert [batch.values for batch in batches] == [[7, -8, 9], [10, 11, 2**63 - 1]]
    assert [batch.base_offset for batch in batches] == [0, 3]
    assert {batch.producer_id for batch in batches} == {producer_id}
    assert [batch.base_sequence for batch in batches] == [0, 3]
    assert {batch.timestamp_max_us for batch in batches} == {at_us}
    assert {batch.schema_id for batch in batches} == {1}


def test_its_mistakes_are_named(stranger: c.Stranger) -> None:
    schema = bytes.fromhex(c.vector("batches.json", "int64")["schema_hex"])
    stranger.hello()
    topic_id = stranger.create_topic("mistakes", schema)
    batch = bytearray(c.int64_batch([1, 2, 3], 1, -1, -1, -1))
    batch[-1] ^= 1
    with pytest.raises(c.Refused) as refused:
        stranger.produce(topic_id, -1, bytes(batch))
    assert refused.value.code == 50, "CORRUPT_BATCH"
    with pytest.raises(c.Refused) as refused:
        stranger.fetch(topic_id, 99)
    assert refused.value.code == 34, "OFFSET_OUT_OF_RANGE"


def test_what_brokers_ask_each_other_is_not_for_it(stranger: c.Stranger) -> None:
    apis = json.loads((c.VECTORS.parent / "protocol.json").read_text())["apis"]
    between = {api["api"] for api in apis if api["between_brokers"]}
    assert between >= {40, 53, 54, 55, 56}
    assert not between & stranger.hello().keys()
    for api in between:
        response, _ = stranger.ask(api)
        assert response[3] == 72, (api, "WRONG_LISTENER")
    assert stranger.hello(), "the connection is still there"


def test_in_a_cluster_it_finds_the_controller_for_producer_ids(cluster: LocalCluster) -> None:
    """Brokers never forward: each names the controller, and where it is."""
    strangers = {}
    for address in cluster.bootstrap.split(","):
        host, _, port = address.rpartition(":")
        strangers[host, int(port)] = c.Stranger(host, int(port))
    controllers = set()
    given = []
    for one in strangers.values():
        one.hello()
        response, _ = one.ask(c.INIT_PRODUCER_ID, "", -1, -1)
        if response[3]:
            assert (response[3], response[5]) == (38, -1), "NOT_CONTROLLER, and no id"
            _, host, port, *_ = response[7]
            controllers.add((host, port))
        else:
            given.append(response[5])
    assert len(given) == 1, "one decides"
    assert len(controllers) == 1, "and the others name the same one"
    decides = strangers[controllers.pop()]
    given += [decides.init_producer()[0] for _ in range(2)]
    assert len(set(given)) == 3
    for one in strangers.values():
        one.close()


@pytest.fixture
def holder(cluster: LocalCluster) -> Iterator[transactions.TransactionalStranger]:
    with transactions.transactional_stranger(cluster.bootstrap.split(",")[0]) as stranger:
        yield stranger


def test_it_commits_is_fenced_and_aborts(holder: transactions.TransactionalStranger) -> None:
    app, a, b = "my-app", "one-of-a-stranger", "another-of-a-stranger"
    holder.create(a)
    holder.create(b)
    first = holder.open(app, b"first life")
    assert first.last_sequence == -1
    staged = [holder.stage(app, first.epoch, 0, {a: [1, 2, 3], b: [4]})]
    assert holder.read(a) == holder.read(b) == [], "no row before the commit"
    committed = holder.commit(app, first.epoch, 0, staged)
    assert (committed.outcome, committed.row_count, committed.is_published) == (0, 4, True)
    assert committed.durability >= 2, "replicated"
    assert (holder.read(a), holder.read(b)) == ([1, 2, 3], [4])
    assert holder.commit(app, first.epoch, 0, staged).outcome == 1, "once"

    second = holder.open(app, b"second life")
    assert second.epoch > first.epoch
    assert (second.last_sequence, second.is_publishing) == (0, False)
    fenced = [
        lambda: holder.open(app, b"first life"),
        lambda: holder.commit(app, first.epoch, 1, []),
        lambda: holder.abort(app, first.epoch, 1),
    ]
    for ask in fenced:
        with pytest.raises(c.Refused) as refused:
            ask()
        assert refused.value.code == 84, "TRANSACTION_FENCED"
    staged = [holder.stage(app, second.epoch, 1, {a: [5], b: [6]})]
    assert holder.abort(app, second.epoch, 1) == 0
    with pytest.raises(c.Refused) as refused:
        holder.commit(app, second.epoch, 1, staged)
    assert refused.value.code == 85, "TRANSACTION_CLOSED"
    assert holder.open(app, b"second life").epoch > second.epoch
    assert (holder.read(a), holder.read(b)) == ([1, 2, 3], [4])


def test_the_coordinator_alone_answers(holder: transactions.TransactionalStranger) -> None:
    app = "asked-anywhere"
    epoch = holder.open(app, b"life").epoch
    requests = [
        (transactions.OPEN, b"life"),
        (transactions.COMMIT, epoch, 0, []),
        (transactions.ABORT, epoch, 0),
    ]
    others = [node for node in holder.addresses if node != holder.coordinator(app)]
    assert len(others) == 2
    for node in others:
        for api, *fields in requests:
            answer, _ = holder.at(node).ask(api, app, *fields)
            assert answer[3] == 31, "NOT_LEADER"
    committed = holder.commit(app, epoch, 0, [])
    assert (committed.outcome, committed.row_count, committed.is_published) == (0, 0, True)


def test_it_reads_in_a_group(holder: transactions.TransactionalStranger) -> None:
    holder.create("shared")
    holder.refresh()
    first = groups.StrangeMember(holder, "strangers", "shared")
    first.settle()
    (topic_id,) = first.has
    assert first.has == {topic_id: [0]}
    assert first.committed() == {0: -1}
    assert first.commit(7) == [0]
    second = groups.StrangeMember(holder, "strangers", "shared")
    second.settle()
    assert second.has == {}, "there is one partition"
    first.leave()
    second.settle()
    assert second.has == {topic_id: [0]}
    assert second.committed() == {0: 7}
    with pytest.raises(c.Refused) as refused:
        first.beat(1)
    assert refused.value.code == groups.UNKNOWN_MEMBER
