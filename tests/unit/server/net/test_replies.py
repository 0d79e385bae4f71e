"""Error messages on their way out: no path above the data directory, and no garbled words."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from quiverlog.server.net.replies import Replies, path_hider
from quiverlog.server.observe.metrics import ServerMetrics
from quiverlog.wire.frames import decode_response
from quiverlog.wire.messages import Response
from quiverlog.wire.registry import APIS
from tests.golden.samples import sample


@pytest.mark.parametrize(
    ("directories", "text", "shown"),
    [
        (("/srv/q",), "/srv/q/data/t-0/0.log: damaged.", "data/t-0/0.log: damaged."),
        (("/srv/q/",), "no room in '/srv/q'.", "no room in 'the data directory'."),
        (("/srv/q",), "no room in /srv/q.", "no room in the data directory."),
        (("/srv/q",), "//srv/q/data/f", "/data/f"),
        (("/srv/q",), "/srv/q2/f and /srv/q.old/f", "/srv/q2/f and /srv/q.old/f"),
        (("d", "/x/d"), "topic 'd' is damaged: d/data/t-0", "topic 'd' is damaged: data/t-0"),
        (("data", "/x/data"), "metadata: /x/data/data/t-0", "metadata: data/t-0"),
        (("data", "/x/data"), "data/data/t-0 is no data", "data/t-0 is no data"),
        ((".", "/x"), "./f /x/f.", "./f f."),
        (("a.b", "/x/a.b"), "aXb/f", "aXb/f"),
        ((".", ""), "as it was.", "as it was."),
    ],
)
def test_paths_are_relative_to_the_data_directory(
    directories: tuple[str, ...], text: str, shown: str
) -> None:
    """A directory called `d` took every `d` out of every message."""
    assert path_hider(*directories)(text) == shown


@pytest.mark.parametrize("api", list(APIS))
def test_every_response_becomes_a_frame(api: int) -> None:
    """A list in which errors are looked for had an entry that cannot fail."""
    log = Mock()
    replies = Replies(ServerMetrics(), log, hide_paths=str)
    response = sample(APIS[api].response)
    assert isinstance(response, Response)
    replies.add(response, 7)
    assert log.method_calls == []
    ((head,), _) = replies.take()
    found = decode_response(memoryview(head)[8:], api)
    assert (found.api, found.correlation_id) == (api, 7)
