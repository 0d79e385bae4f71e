"""What Spark shows of a refusal: its sentence, under one frame of this package."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from pyspark_quiverlog import DefaultSource
from pyspark_quiverlog.refusals import RefusedStream, in_one_frame
from quiverlog.errors import InvalidOption

WHERE = {"bootstrap.servers": "127.0.0.1:9292", "subscribe": "t"}


@pytest.mark.parametrize(
    "call",
    [
        lambda source: source(subscribePattern=".*").schema(),
        lambda source: source(startingOffsets="soon").schema(),
        lambda source: source(topic="t").writer(None, True),
        lambda source: source(txnAppId="a").streamWriter(None, False),
        lambda source: source(maxTriggerDelay="1m").reader(None),
        lambda source: source(endingOffsets="latest").streamReader(None).initialOffset(),
    ],
)
def test_a_refusal_has_one_frame(call: Callable[[Any], Any]) -> None:
    """And no cause: PySpark's worker prints that as well."""
    with pytest.raises(InvalidOption) as caught:
        call(lambda **more: DefaultSource(WHERE | more))
    ours = [entry for entry in caught.traceback if "pyspark_quiverlog" in str(entry.path)]
    assert [(entry.path.name, entry.name) for entry in ours] == [("refusals.py", "call")]
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_our_own_bugs_keep_their_frames() -> None:
    @in_one_frame
    def outer() -> None:
        def inner() -> None:
            raise AssertionError("a bug")

        inner()

    with pytest.raises(AssertionError) as caught:
        outer()
    assert [entry.name for entry in caught.traceback][-1] == "inner"


def test_a_stream_that_is_refused_raises_at_the_first_call() -> None:
    """Whichever that is: a new run's, or a replay's."""
    stream = DefaultSource(WHERE | {"endingOffsets": "latest"}).streamReader(None)
    assert isinstance(stream, RefusedStream)
    calls: list[Callable[[], Any]] = [
        *(stream.initialOffset, stream.getDefaultReadLimit, lambda: stream.latestOffset({}, None)),
        *(lambda: stream.partitions({}, {}), lambda: stream.read(None)),
    ]
    for call in calls:
        with pytest.raises(InvalidOption, match="`endingOffsets` applies to batch read"):
            call()
    stream.stop()  # PySpark does so in any case


def test_spark_finds_the_arguments_that_a_method_takes() -> None:
    """By them it chooses between the interfaces of 4.1 and 4.2."""
    from pyspark_quiverlog.stream_reader import LogStreamReader

    for reader in (LogStreamReader, RefusedStream):
        assert list(inspect.signature(reader.latestOffset).parameters) == ["self", "start", "limit"]
