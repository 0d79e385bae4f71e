"""Wide schemas take milliseconds to check: how many in one call of the node is bounded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from quiverlog.batch.schema import serialize_schema
from quiverlog.core.controller import topics as decide
from quiverlog.node.runtime.events import RequestReceived
from quiverlog.wire import messages as m
from tests.support.node import NodeDriver

WIDE = serialize_schema(pa.schema([(f"c{i:04}", pa.int64()) for i in range(2_000)]))


@pytest.mark.parametrize("api", [m.Api.CREATE_TOPICS, m.Api.ALTER_TOPIC])
def test_one_wide_schema_is_checked_in_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: m.Api
) -> None:
    """Those of one request, and those of several that came together."""
    node = NodeDriver(tmp_path)
    node.create("t")
    checked = 0
    original = decide._checked_schema

    def counted(*args: Any) -> Any:
        nonlocal checked
        checked += 1
        return original(*args)

    monkeypatch.setattr(decide, "_checked_schema", counted)
    requests: list[m.Request] = []
    for _ in range(3):
        if api is m.Api.CREATE_TOPICS:
            new = [m.NewTopic(f"wide-{n}", WIDE, 1) for n in range(3)]
            requests.append(m.CreateTopicsRequest(topics=new, validate_only=True))
        else:
            requests.append(m.AlterTopicRequest(name="t", schema=WIDE, validate_only=True))
    for request in requests:
        node._number(request)
    events = [RequestReceived(1, request, memoryview(b"")) for request in requests]
    node._perform(node.handle(*events))
    assert checked == 1
    while node.node.next_deadline_us() == 0:
        before = checked
        node.step()
        assert checked - before <= 1
    assert checked == (9 if api is m.Api.CREATE_TOPICS else 3)
    assert all(node.answer(request.correlation_id) is not None for request in requests)
