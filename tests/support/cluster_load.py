"""Programs at work while brokers come and go: the errors that they get, and how long they wait.

Owns a producer that waits for each row, one that has many on the way, a consumer and a program that
asks about the topic. Each is a thread with a shipped client of its own; the first error that one of
them meets ends it, and `done` reports it. Acknowledged rows are identified by their places.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import pyarrow as pa

import quiverlog
from tests.support.row_places import Place, Row, Seen, disorder, misfits

__all__ = ["ClusterLoad", "Outcome"]

SCHEMA = pa.schema([("program", pa.string()), ("n", pa.int64())])
DONE_S = 60.0
BUSY_ROWS = 200


@dataclass
class Outcome:
    """What came of the load. Times are seconds, between two things that worked."""

    sent: Counter[str] = field(default_factory=Counter)
    acknowledged: dict[Place, Row] = field(default_factory=dict)
    read: list[Seen] = field(default_factory=list)
    longest_s: dict[str, float] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def wrong(self) -> list[str]:
        """Errors, and each acknowledged row that the consumer did not find once, in its place."""
        found = self.errors + disorder(self.acknowledged)
        if len(self.acknowledged) != self.sent.total():
            found.append(f"{self.sent.total()} rows are at {len(self.acknowledged)} places")
        return found + misfits(self.acknowledged, self.read)


class ClusterLoad:
    """Run it for the time of a `with`, and ask `done` afterwards what came of it.

    Args:
        bootstrap, topic: where.
        columns: a text and a number of a topic that is there. None: the topic is created.
        durability: what producers wait for; None for what the topic has.
        pause_s: seconds between two requests of a program, where the test needs the machine.
        security: how clients connect.
        create: how the topic is created, as in `Client.create_topic`.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        *,
        columns: tuple[str, str] | None = None,
        durability: str | None = "replicated",
        pause_s: float = 0.05,
        security: quiverlog.Security | None = None,
        **create: object,
    ) -> None:
        self._bootstrap, self._topic = bootstrap, topic
        self._durability, self._pause_s = durability, pause_s
        self._security = security
        self._columns = columns or ("program", "n")
        self._outcome = Outcome()
        self._stop = threading.Event()
        self._wanted = -1  # Rows that the consumer ends at, once it is known.
        if columns is None:
            with quiverlog.connect(bootstrap, security=security) as client:
                client.create_topic(topic, SCHEMA, **create)  # type: ignore[arg-type]
        works = {"patient": self._patient, "busy": self._busy, "asking": self._asking}
        self._programs = [self._thread(name, work) for name, work in works.items()]
        self._consumer = self._thread("consumer", self._consume)

    def __enter__(self) -> Self:
        for thread in (*self._programs, self._consumer):
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._programs:
            thread.join(DONE_S)
        self._wanted = self._outcome.sent.total()
        self._consumer.join(DONE_S)
        for thread in (*self._programs, self._consumer):
            if thread.is_alive():
                self._outcome.errors.append(f"{thread.name} does not end")

    @property
    def rows(self) -> int:
        """Acknowledged so far."""
        return self._outcome.sent.total()

    @property
    def rows_read(self) -> int:
        """That the consumer has so far."""
        return len(self._outcome.read)

    def done(self) -> Outcome:
        """What came of it all; after the `with`."""
        assert self._wanted >= 0
        return self._outcome

    # --- programs -------------------------------------------------------------------------------
    def _thread(self, name: str, work: Callable[[quiverlog.Client], None]) -> threading.Thread:
        def run() -> None:
            try:
                with quiverlog.connect(self._bootstrap, security=self._security) as client:
                    work(client)
            except Exception as error:
                self._outcome.errors.append(f"{name}: {type(error).__name__}: {error}")

        return threading.Thread(target=run, name=name, daemon=True)

    def _patient(self, client: quiverlog.Client) -> None:
        """One row after the other: what a person would wait."""
        with client.producer(self._topic, durability=self._durability) as producer:
            last_s = time.monotonic()
            while not self._stop.is_set():
                self._acknowledged("patient", producer.send(self._rows("patient", 1)))
                last_s = self._worked("patient", last_s)
                self._stop.wait(self._pause_s / 2)

    def _busy(self, client: quiverlog.Client) -> None:
        """Hundreds of rows on the way at any time."""
        with client.producer(self._topic, durability=self._durability, linger=0.005) as producer:
            while not self._stop.is_set():
                self._acknowledged("busy", producer.send(self._rows("busy", BUSY_ROWS)))
                self._stop.wait(self._pause_s)  # The test may not be alone on the machine.

    def _rows(self, program: str, count: int) -> list[dict[str, object]]:
        first, (name, number) = self._outcome.sent[program], self._columns
        return [{name: program, number: first + i} for i in range(count)]

    def _acknowledged(self, program: str, future: quiverlog.SendFuture) -> None:
        """Wait until the rows that were sent are, and note where they lie."""
        (part,) = future.result(DONE_S)  # What is sent at once lies side by side.
        first = self._outcome.sent[program]
        for number in range(part.rows):
            place = part.partition, part.base_offset + number
            self._outcome.acknowledged[place] = program, first + number
        self._outcome.sent[program] += part.rows

    def _asking(self, client: quiverlog.Client) -> None:
        last_s = time.monotonic()
        while not self._stop.is_set():
            assert client.describe_topic(self._topic).partitions
            last_s = self._worked("asking", last_s)
            self._stop.wait(self._pause_s)

    def _consume(self, client: quiverlog.Client) -> None:
        with client.consumer(self._topic, start="earliest", follow=True) as consumer:
            read, next_offsets = self._outcome.read, Counter[int]()
            until_s = float("inf")
            while self._wanted < 0 or len(read) < self._wanted:
                batch = consumer.poll(0.2)
                if batch is not None:
                    assert batch.base_offset == next_offsets[batch.partition], batch
                    next_offsets[batch.partition] = batch.next_offset
                    columns = (batch.data.column(name).to_pylist() for name in self._columns)
                    for offset, row in enumerate(zip(*columns, strict=True), batch.base_offset):
                        read.append(((batch.partition, offset), row))
                if self._wanted >= 0:
                    until_s = min(until_s, time.monotonic() + DONE_S / 2)
                if time.monotonic() > until_s:
                    raise TimeoutError(f"{len(read)} of {self._wanted} rows")

    def _worked(self, name: str, last_s: float) -> float:
        now_s = time.monotonic()
        self._outcome.longest_s[name] = max(self._outcome.longest_s.get(name, 0.0), now_s - last_s)
        return now_s
