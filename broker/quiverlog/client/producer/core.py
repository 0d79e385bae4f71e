"""The producer as one machine, without I/O, thread and clock.

A host adds rows and answers; `poll(now)` returns the requests to send. The parts:

- `accumulator`: rows become encoded batches;
- `sender`: batches become requests, are retried in order, acknowledged or failed;
- `identity`: the numbers by which a broker stores a batch once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from quiverlog.client.base.results import TopicInfo
from quiverlog.client.base.waits import Wait
from quiverlog.errors import (
    InvalidResponse,
    NotLeader,
    QuiverlogError,
    UnknownTopic,
    UnknownTopicId,
    error_from_code,
)
from quiverlog.types import NO_SEQUENCE, Now
from quiverlog.wire import messages as m

from .accumulator import Accumulator
from .sender import Sender
from .types import Delivery, EncodedBatch, Identity, ProduceCall, ProducerOptions, Receiver, Work

if TYPE_CHECKING:
    from quiverlog.client.rows.convert import Converter

__all__ = ["Identity", "ProduceCall", "ProducerCore", "ProducerOptions", "Work"]

# A producer that sends refreshes its metadata to find new partitions.
METADATA_AGE_US = 10_000_000

# When the next `flush` has this many failed sends to report, later ones are not kept.
FAILURES_KEPT_MAX = 1_000


class ProducerCore:
    """One producer. `identity` is `Identity()` where it is not idempotent."""

    def __init__(
        self,
        topic: TopicInfo,
        converter: Converter,
        schema_id: int,
        options: ProducerOptions,
        identity: Identity,
        *,
        jitter: Callable[[], float],
    ) -> None:
        self.options = options
        self.converter = converter
        self.failures: list[Delivery] = []
        self._failed_pieces = 0
        self._look_again_us: int | None = None
        # A leader answered UnknownTopicId: the next refresh asks the controller.
        self.is_topic_unconfirmed = False
        self._sender = Sender(topic, options, identity, failed=self._failed, jitter=jitter)
        self._accumulator = Accumulator(
            topic,
            converter,
            schema_id,
            options,
            numbering=lambda partition: self._sender.queue_of(partition).numbering,
            closed=self._sender.append,
            failed=self._failed,
            jitter=jitter,
        )

    @property
    def topic(self) -> TopicInfo:
        return self._sender.topic

    @property
    def identity(self) -> Identity:
        return self._sender.identity

    @property
    def buffered_bytes(self) -> int:
        return self._accumulator.buffered_bytes + self._sender.buffered_bytes

    @property
    def finished(self) -> int:
        """Grows with each acknowledged or failed piece or batch."""
        return self._sender.finished + self._failed_pieces

    @property
    def has_unsent(self) -> bool:
        return self._sender.has_unsent

    def split(
        self, batch: pa.RecordBatch, partition: int | None
    ) -> Iterator[tuple[int | None, pa.RecordBatch]]:
        return self._accumulator.split(batch, partition)

    def add(
        self, partition: int | None, batch: pa.RecordBatch, delivery: Delivery, now: Now
    ) -> bool:
        return self._accumulator.add(partition, batch, delivery, now)

    def add_row(
        self, partition: int | None, row: Mapping[str, Any], delivery: Delivery, now: Now
    ) -> bool:
        return self._accumulator.add_row(partition, row, delivery, now)

    def check_partition(self, partition: int) -> None:
        self._accumulator.check_partition(partition)

    def close_batches(self, now: Now) -> None:
        self._accumulator.close_all(now)

    def outstanding(self) -> list[EncodedBatch]:
        return self._sender.outstanding()

    def waiting(self, progressed_us: int) -> Wait | None:
        """Return the oldest rows' wait, where rows were last acknowledged at `progressed_us`."""
        found = self._sender.oldest()
        if found is None:
            return None
        partition, batch = found
        born_us = batch.deadline_us - self.options.delivery_timeout_us
        since_s, until_s = max(born_us, progressed_us) / 1_000_000, batch.deadline_us / 1_000_000
        where = f"{self.topic.name}-{partition}"
        if batch.last_failure:
            what = f"{where}: {batch.last_failure}"
            return Wait(since_s, until_s, what, batch.last_reason, is_failing=True)
        if batch.leader < 0:
            return Wait(since_s, until_s, f"a leader of {where}", "leader")
        what = f"broker {batch.leader} to acknowledge rows of {where}"
        return Wait(since_s, until_s, what, "rows")

    def poll(self, now: Now, *, may_ask: bool = False) -> Work:
        """`may_ask`: no question of its own is under way."""
        self._accumulator.close_lingered(now)
        self._sender.give_up_expired(now)
        calls = self._sender.poll(now)
        needs_metadata = self._sender.needs_metadata
        if calls and self._is_metadata_old(now):
            needs_metadata = True
        wake_at_us = min((at for at in self.wake_moments(now) if at is not None), default=None)
        assert wake_at_us is not None or not self.buffered_bytes, "buffered rows need a next poll"
        return Work(
            calls,
            needs_metadata,
            self._sender.needs_identity,
            wake_at_us,
            frozenset(self._sender.silent),
            frozenset(self._sender.deposed),
        )

    def wake_moments(self, now: Now) -> list[int | None]:
        return [self._accumulator.wake_at_us(), self._sender.wake_at_us(now)]

    def give_up_expired(self, now: Now) -> None:
        self._sender.give_up_expired(now)

    def _is_metadata_old(self, now: Now) -> bool:
        due_us = self._look_again_us
        if due_us is not None and now.mono_us < due_us:
            return False
        self._look_again_us = now.mono_us + METADATA_AGE_US
        return due_us is not None

    def on_answer(self, answer: int, error: QuiverlogError | None) -> None:
        raise AssertionError(f"a producer has no questions of its own: {answer}, {error}")

    # --- answers --------------------------------------------------------------------------------
    def on_response(self, call: ProduceCall, response: m.Response, now: Now) -> None:
        if response.error_code:
            self.on_failure(call, error_from_code(response.error_code, response.error_message), now)
            return
        assert isinstance(response, m.ProduceResponse)
        self._sender.throttle(call.leader, response.throttle_ms, now)
        answered = {r.partition: r for r in response.partitions}
        for partition, batch in call.batches.items():
            result = answered.get(partition)
            error: QuiverlogError | None = None
            next_sequence = NO_SEQUENCE
            if result is None:
                error = InvalidResponse(f"partition {partition}: was left unanswered.")
            elif result.error_code:
                error = error_from_code(result.error_code, result.error_message)
                next_sequence = result.next_sequence
            elif result.row_count != batch.row_count:
                error = InvalidResponse(
                    f"partition {partition}: {result.row_count} rows were acknowledged, "
                    f"{batch.row_count} were sent."
                )
            if error is not None:
                self._failed_try(partition, batch, error, now, next_sequence)
            elif result is not None:
                self._sender.acknowledge(partition, batch, result)

    def on_failure(self, call: ProduceCall, error: QuiverlogError, now: Now) -> None:
        for partition, batch in call.batches.items():
            self._failed_try(partition, batch, error, now)

    def identity_renewed(self, identity: Identity) -> None:
        self._sender.identity_renewed(identity)

    def topic_changed(self, topic: TopicInfo) -> None:
        """Use fresh metadata; fail all rows where the name is another topic's now."""
        if topic.topic_id != self.topic.topic_id:
            self.fail_all(
                UnknownTopicId(f"Topic {topic.name!r} is not the one this producer was opened for.")
            )
            return
        self.is_topic_unconfirmed = False
        self._sender.topic_changed(topic)
        self._accumulator.topic = topic
        assert self._accumulator.topic is self._sender.topic

    def fail_all(self, error: QuiverlogError) -> None:
        self._accumulator.fail_all(error)
        self._sender.fail_all(error)
        assert not self._sender.has_unsent
        assert self.buffered_bytes == 0, "each byte that was counted is given back"

    def _failed_try(
        self,
        partition: int,
        batch: EncodedBatch,
        error: QuiverlogError,
        now: Now,
        next_sequence: int = NO_SEQUENCE,
    ) -> None:
        if isinstance(error, UnknownTopicId):
            # Nothing was stored. A leader may apply a new topic late, so only the controller's
            # answer shows whether it is gone.
            self.is_topic_unconfirmed = True
            error = NotLeader(error.message)
        self._sender.failed_try(partition, batch, error, now, next_sequence)
        if isinstance(error, UnknownTopic):
            self.fail_all(error)

    def _failed(self, receiver: Receiver, error: QuiverlogError) -> None:
        receiver.fail(error)
        if len(self.failures) < FAILURES_KEPT_MAX:
            self.failures.extend(receiver.failed())
        self._failed_pieces += 1
