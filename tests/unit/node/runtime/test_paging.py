"""Answers larger than a header come in pages; what asks for no page gets everything or an error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from quiverlog import errors, limits
from quiverlog.batch.schema import serialize_schema
from quiverlog.limits import HEADER_BYTES_MAX
from quiverlog.node.runtime import tasks
from quiverlog.wire import frames
from quiverlog.wire import messages as m
from quiverlog.wire.registry import api_ranges
from tests.support.node import NodeDriver

WIDE = 1_500


@pytest.fixture
def node(tmp_path: Path) -> NodeDriver:
    return NodeDriver(tmp_path)


def wide_schema(added: int) -> pa.Schema:
    return pa.schema([(f"column_{i:04}_{'x' * 40}", pa.int64()) for i in range(WIDE + added)])


def grown_topic(node: NodeDriver, name: str, columns_added: int) -> bytes:
    """A topic of 1,500 columns that got this many more, one at a time."""
    new = m.NewTopic(name, serialize_schema(wide_schema(0)), 1)
    response, _ = node.call(m.CreateTopicsRequest(topics=[new]))
    assert response.topics[0].error_code == 0
    for added in range(1, columns_added + 1):
        schema = serialize_schema(wide_schema(added))
        response, _ = node.call(m.AlterTopicRequest(name=name, schema=schema))
        assert response.error_code == 0, response.error_message
    topic_id: bytes = node.node.broker.metadata.image.topics[name].topic_id
    return topic_id


def header_bytes(response: m.Response) -> int:
    return len(frames.encode(response, 1)) - 8


def test_a_long_history_of_wide_schemas_can_be_read_to_its_end(node: NodeDriver) -> None:
    topic = grown_topic(node, "t", 43)
    response, _ = node.call(m.TopicSchemasRequest(topic_id=topic))
    assert (response.error_code, response.schemas) == (errors.FrameTooLarge.code, [])
    found: list[int] = []
    first = 1
    while first:
        page, _ = node.call(m.TopicSchemasRequest(topic_id=topic, first_schema_id=first))
        assert header_bytes(page) <= HEADER_BYTES_MAX
        assert page.schemas
        found += [version.schema_id for version in page.schemas]
        assert page.next_schema_id in (0, found[-1] + 1)
        first = page.next_schema_id
    assert found == list(range(1, 45))
    beyond, _ = node.call(m.TopicSchemasRequest(topic_id=topic, first_schema_id=45))
    assert (beyond.schemas, beyond.next_schema_id) == ([], 0)


def test_descriptions_of_wide_topics_are_bounded(node: NodeDriver) -> None:
    for name in ("a", "b"):
        grown_topic(node, name, 20)
    for n in range(5):
        new = m.NewTopic(f"c{n}", serialize_schema(wide_schema(n)), 1)
        node.call(m.CreateTopicsRequest(topics=[new]))
    one, _ = node.call(m.DescribeTopicsRequest(names=["a"]))
    assert header_bytes(one) < limits.HEADER_BYTES_MAX
    newest = [version.schema_id for version in one.topics[0].schemas]
    assert newest == list(range(newest[0], 22)), "the newest ones, without a gap"
    names: list[str] = []
    first = ""
    pages = 0
    while True:
        page, _ = node.call(m.DescribeTopicsRequest(first_name=first))
        assert header_bytes(page) <= limits.REPLY_PAGE_BYTES + limits.KIB
        names += [topic.name for topic in page.topics]
        pages += 1
        first = page.next_name
        if not first:
            break
    assert names == ["a", "b", "c0", "c1", "c2", "c3", "c4"]


def by_name(
    names: list[str], first_name: str | None, make: Callable[[str], m.TopicResult]
) -> tuple[list[m.TopicResult], str]:
    """`paging.by_name`, with all its steps made at once."""

    def making(name: str) -> tasks.Making[m.TopicResult]:
        yield
        return make(name)

    steps = tasks.by_name(names, first_name, making, len)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            entries, next_name = end.value
            return entries, next_name


def test_pages_are_cut_by_bytes_and_hold_one_entry_at_least() -> None:
    big = "x" * (limits.REPLY_PAGE_BYTES // 2)
    names = ["c", "a", "b", "a"]
    entries, next_name = by_name(names, "", lambda name: m.TopicResult(name + big))
    assert [entry.name[0] for entry in entries] == ["a"]
    assert next_name == "b"
    huge = big * 3
    entries, next_name = by_name(names, "b", lambda name: m.TopicResult(name + huge))
    assert [entry.name[0] for entry in entries] == ["b"]
    assert next_name == "c"
    entries, next_name = by_name(names, "c", lambda name: m.TopicResult(name))
    assert ([entry.name for entry in entries], next_name) == (["c"], "")
    entries, next_name = by_name(names, None, lambda name: m.TopicResult(name))
    assert ([entry.name for entry in entries], next_name) == (["c", "a", "b"], "")


def test_metadata_in_pages(node: NodeDriver) -> None:
    for name in ("b", "a", "c"):
        node.create(name)
    page, _ = node.call(m.MetadataRequest(first_name="b"))
    assert ([topic.name for topic in page.topics], page.next_name) == (["b", "c"], "")
    named, _ = node.call(m.MetadataRequest(topics=["c", "nope", "a"], first_name=""))
    assert [(t.name, bool(t.error_code)) for t in named.topics] == [
        ("a", False),
        ("c", False),
        ("nope", True),
    ]
    both, _ = node.call(m.MetadataRequest(topic_ids=[bytes(16)], first_name=""))
    assert both.error_code == errors.InvalidRequest.code


def test_a_history_that_would_not_fit_memory_is_refused(
    node: NodeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    from quiverlog.core.controller import topics

    monkeypatch.setattr(topics, "SCHEMA_HISTORY_BYTES_MAX", 1_000)
    node.create("t")
    schema = pa.schema([("n", pa.int64()), *((f"c{i}", pa.int64()) for i in range(20))])
    response, _ = node.call(m.AlterTopicRequest(name="t", schema=serialize_schema(schema)))
    assert response.error_code == errors.InvalidSchema.code
    assert "together" in response.error_message


@pytest.mark.parametrize(
    "data_type",
    [pa.list_(pa.int64()), pa.struct([("a", pa.int64())]), pa.map_(pa.string(), pa.int64()),
     pa.null()],
    ids=str,
)  # fmt: skip
def test_a_column_that_cannot_be_hashed_is_no_key(node: NodeDriver, data_type: pa.DataType) -> None:
    schema = pa.schema([("n", pa.int64()), ("k", data_type)])
    new = m.NewTopic("t", serialize_schema(schema), 1, 1, ["n", "k"])
    response, _ = node.call(m.CreateTopicsRequest(topics=[new]))
    assert response.topics[0].error_code == errors.InvalidSchema.code
    assert "'k'" in response.topics[0].error_message


def test_a_hello_from_the_future_gets_the_versions_back(node: NodeDriver) -> None:
    response, _ = node.call(m.HelloRequest(version=9), connection=3)
    assert response.error_code == errors.UnsupportedVersion.code
    assert response.apis == api_ranges(between_brokers=False, authentication=False)
    assert not node.closed
    response, _ = node.call(m.HelloRequest(), connection=3)
    assert response.error_code == 0, "the connection is still there for a second HELLO"


@pytest.mark.parametrize("bytes_max", [-1, 0])
def test_no_bound_on_a_fetch_is_the_brokers_default(node: NodeDriver, bytes_max: int) -> None:
    from tests.support.node import batch_of

    topic = node.create()
    node.produced(topic, batch_of([1, 2, 3]))
    result, body = node.fetched(topic, bytes_max=bytes_max, entry_bytes_max=bytes_max)
    assert result.error_code == 0
    assert len(body) == result.batch_bytes > 0
