"""The common part of both producers: arguments, opening, failures, the warning of lost rows.

Callers without `flush`, `close` and `with` would lose rows silently: a warning names the topic of a
producer that is dropped, or open at the process's end, with unacknowledged rows.
"""

from __future__ import annotations

import atexit
import os
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from quiverlog.batch.key_columns import check_key_columns
from quiverlog.client.base.arguments import counted, shown
from quiverlog.client.base.commands import Operation
from quiverlog.client.cluster.answers import about
from quiverlog.client.cluster.routing import Cluster
from quiverlog.client.rows.convert import Converter
from quiverlog.errors import BufferExhausted, ClientClosed, ForkedClient, InvalidArgument
from quiverlog.types import Compression, Durability, Now

from .core import ProducerCore
from .runner import new_identity
from .types import CompressionChoice, DurabilityChoice, EncodedBatch, Identity, ProducerOptions

__all__ = [
    "INTERRUPTED_FLUSH_S",
    "ProducerBase",
    "UnsentRows",
    "all_done",
    "now",
    "open_core",
    "producer_options",
]


C = TypeVar("C", bound=ProducerCore)


class UnsentRows(RuntimeWarning):
    """A producer is dropped, or the process ends, while its rows are not acknowledged."""


_producers: weakref.WeakSet[ProducerBase] = weakref.WeakSet()


def _warn_at_the_end() -> None:
    # The background thread may still send: these rows may be stored or not.
    for producer in list(_producers):
        producer.warn_of_lost_rows()


atexit.register(_warn_at_the_end)


# How long an interrupted process (Ctrl-C) waits for its last rows.
INTERRUPTED_FLUSH_S = 5.0


def now() -> Now:
    return Now(time.monotonic_ns() // 1000, time.time_ns() // 1000)


def producer_options(
    cluster: Cluster,
    *,
    batch_rows: int,
    batch_bytes: int,
    linger: float,
    compression: CompressionChoice | None,
    durability: DurabilityChoice | None,
    buffer_bytes: int,
    delivery_timeout: float,
    idempotent: bool,
    partition: int | None,
) -> Callable[[Compression], ProducerOptions]:
    """Check the arguments; the result adds the topic's default compression."""
    codec = None if compression is None else _member(Compression, compression, "compression")
    asked = Durability.TOPIC_DEFAULT if durability is None else durability
    level = _member(Durability, asked, "durability")
    delivery_us = round(delivery_timeout * 1_000_000)
    request_us = min(delivery_us, round(cluster.settings.request_timeout_s * 1_000_000))

    def complete(advice: Compression) -> ProducerOptions:
        return ProducerOptions(
            batch_rows=batch_rows,
            batch_bytes=batch_bytes,
            linger_us=round(linger * 1_000_000),
            compression=advice if codec is None else codec,
            durability=level,
            buffer_bytes=buffer_bytes,
            delivery_timeout_us=delivery_us,
            request_timeout_us=request_us,
            idempotent=idempotent,
            partition=partition,
        )

    complete(Compression.NONE)  # refuses bad numbers before anything is sent
    return complete


def _member(kind: Any, value: Any, name: str) -> Any:
    try:
        return kind[value.upper()] if isinstance(value, str) else kind(value)
    except Exception:  # KeyError, ValueError, or what an object without a text raises
        choices = ", ".join(m.name.lower() for m in kind if m >= 0)
        raise InvalidArgument(f"{name}={shown(value)} is none of {choices}.") from None


def open_core(
    cluster: Cluster,
    topic_name: str,
    complete: Callable[[Compression], ProducerOptions],
    kind: type[C],
) -> Operation[C]:
    def attempt() -> Operation[C]:
        # Fresh: another client may have altered it.
        topic = yield from cluster.topic(topic_name, fresh=True)
        history = yield from cluster.history(topic.topic_id, topic_name, needed_id=topic.schema_id)
        options = complete(topic.compression)
        identity = (yield from new_identity(cluster)) if options.idempotent else Identity()
        check_key_columns(history.current, topic.key_columns)
        converter = Converter(history.current, topic_name)
        core = kind(topic, converter, history.current_id, options, identity, jitter=cluster.jitter)
        if options.partition is not None:
            core.check_partition(options.partition)
        return core

    return (yield from about(topic_name, cluster.retrying(attempt)))


class ProducerBase:
    def __init__(self, core: ProducerCore) -> None:
        self.topic = core.topic.name
        self._core = core
        self._converter = core.converter
        self._options = core.options
        self._pid = os.getpid()
        self._closed = False
        _producers.add(self)

    def __del__(self) -> None:
        self.warn_of_lost_rows()

    def warn_of_lost_rows(self) -> None:
        """Warn of rows that wait, or failed without a report."""
        # A forked child's are the parent's.
        core = self._core
        is_lossless = core.buffered_bytes == 0 and all(one.reported for one in core.failures)
        if self._is_own_process and not is_lossless:
            warnings.warn(
                f"Rows sent to {self.topic} are not acknowledged, and may be lost. End with "
                "`flush`, `close` or `with`, or ask for the `result` of each send.",
                UnsentRows,
                stacklevel=2,
            )

    def __repr__(self) -> str:
        state = (
            "closed"
            if self._closed
            else f"{counted(self.buffered_bytes, 'byte', 'bytes')} not acknowledged"
        )
        return f"<{type(self).__name__} of {self.topic}: {state}>"

    @property
    def schema(self) -> Any:
        """The schema that rows are converted to (pa.Schema)."""
        return self._converter.schema

    @property
    def buffered_bytes(self) -> int:
        """Bytes of rows that are not acknowledged."""
        return self._core.buffered_bytes

    @property
    def is_closed(self) -> bool:
        """True after `close` or `abort`."""
        return self._closed

    @property
    def _is_own_process(self) -> bool:
        return os.getpid() == self._pid

    def _check_usable(self) -> None:
        if self._closed:
            raise ClientClosed(f"The producer of {self.topic!r} is closed: open a new one.")
        if not self._is_own_process:
            raise ForkedClient("This producer was opened before the process forked.")

    def _is_full(self) -> bool:
        return self._core.buffered_bytes >= self._options.buffer_bytes

    def _exhausted(self) -> BufferExhausted:
        seconds = self._options.delivery_timeout_us / 1_000_000
        return BufferExhausted(
            f"{self._core.buffered_bytes} bytes wait for {self.topic!r}, and there was no room "
            f"for more in {seconds:g} s."
        )

    def _raise_failures(self) -> None:
        failures = [d for d in self._core.failures if not d.reported]
        self._core.failures.clear()
        if not failures:
            return
        for delivery in failures:
            delivery.reported = True
        error = failures[0].error
        assert error is not None
        if len(failures) > 1:
            error.add_note(f"{len(failures)} sends failed since the last flush; this is the first.")
        raise error


def all_done(waiting: list[EncodedBatch]) -> bool:
    while waiting and waiting[-1].is_done:
        waiting.pop()
    return not waiting
