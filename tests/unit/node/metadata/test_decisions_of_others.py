"""A broker applies what others have decided, some of it late."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from quiverlog.core.controller.records import ProducerIdBlockRecord, encode_entry
from quiverlog.core.controller.topics import PRODUCER_ID_BLOCK
from quiverlog.core.raft.messages import Entry, EntryKind
from quiverlog.errors import ThrottledBroker, UnknownProducerId
from quiverlog.node.metadata.metadata import Metadata
from quiverlog.wire import messages as m
from tests.support.node import NodeDriver, batch_of


@pytest.fixture
def node(tmp_path: Path) -> NodeDriver:
    return NodeDriver(tmp_path)


def apply_a_block(node: NodeDriver) -> int:
    """Another broker sets ids aside. Returns the first of them."""
    metadata = node.node.broker.metadata
    first = metadata.image.next_producer_id
    data = encode_entry([ProducerIdBlockRecord(first + PRODUCER_ID_BLOCK)])
    version = metadata.image.version + 1
    metadata.apply(Entry(version, 1, EntryKind.DATA, data), node.now)
    return first


def produce(node: NodeDriver, topic: bytes, producer: tuple[int, int, int]) -> int:
    """Return the error of a batch of this producer, whose id was assigned elsewhere."""
    with mock.patch.object(NodeDriver, "_give_out"):
        return int(node.produced(topic, batch_of([1], producer=producer)).error_code)


def test_a_block_of_ids_that_another_broker_has_set_aside_is_no_bug(node: NodeDriver) -> None:
    apply_a_block(node)
    node.disk_space(1 << 40)
    assert not [line for line in node.lines if line.event == "internal error"]


def test_an_id_that_another_broker_has_given_out_is_known_here(node: NodeDriver) -> None:
    topic = node.create()
    ours = node.call(m.InitProducerIdRequest())[0].producer_id
    theirs = apply_a_block(node)
    assert produce(node, topic, (theirs + 3, 0, 0)) == 0
    assert produce(node, topic, (ours, 0, 0)) == 0
    assert produce(node, topic, (ours + 1, 0, 0)) == UnknownProducerId.code, "ours to give out"


def test_what_may_have_been_decided_a_moment_ago_is_asked_for_again(node: NodeDriver) -> None:
    """A producer gets its id from the controller, and may write elsewhere before that."""
    topic = node.create()
    first = apply_a_block(node)
    unknown = first + PRODUCER_ID_BLOCK
    assert produce(node, topic, (unknown, 0, 0)) == UnknownProducerId.code, (
        "no other broker decides"
    )
    with mock.patch.object(Metadata, "is_decided_here", False):
        assert produce(node, topic, (unknown, 0, 0)) == ThrottledBroker.code
        assert produce(node, topic, (first, 1, 0)) == ThrottledBroker.code
