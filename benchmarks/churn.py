"""A process that makes a broker's disk work: topics of many partitions come, expire and go.

`python -m benchmarks.churn BOOTSTRAP PARTITIONS` prints a line when it begins and then runs cycles
until its standard input is closed. A cycle creates a topic, stores one old batch in each of its
partitions, waits until retention has taken them all, and deletes the topic. The number of cycles
and each cycle's time are bounded, so that a broken broker ends it with an error.
"""

from __future__ import annotations

import select
import sys
import time
from datetime import datetime
from typing import Literal

import quiverlog
from benchmarks.rows import SCHEMA, make_batch
from quiverlog.batch.codec import encode_batch
from quiverlog.client.client import Client

CYCLES_MAX = 100
CYCLE_SECONDS_MAX = 120.0
RETENTION_MS = 60_000
ROWS = 20
POLL_SECONDS = 0.5
ASKED_EVERY = 100


def main(bootstrap: str, partitions: int) -> None:
    with quiverlog.connect(bootstrap, request_timeout=CYCLE_SECONDS_MAX) as client:
        print("begun", flush=True)
        for number in range(CYCLES_MAX):
            cycle(client, f"churn-{number}", partitions)
            print(number, flush=True)
            if is_stdin_closed(0.0):
                return


def cycle(client: Client, name: str, partitions: int) -> None:
    """One topic from its creation to its deletion."""
    client.create_topic(
        name, SCHEMA, partitions=partitions, config={"retention.ms": str(RETENTION_MS)}
    )
    batch = old_batch(client.metadata([name]).topics[name].schema_id)
    client.raw_produce(name, {p: [bytearray(batch)] for p in range(partitions)})
    deadline = time.monotonic() + CYCLE_SECONDS_MAX
    while not is_emptied(client, name, partitions):
        if time.monotonic() > deadline:
            raise TimeoutError(f"retention has not emptied {name} in {CYCLE_SECONDS_MAX} s")
        if is_stdin_closed(POLL_SECONDS):
            break
    client.delete_topic(name)


def is_emptied(client: Client, name: str, partitions: int) -> bool:
    """Has retention taken all rows? A few partitions are asked first.

    Two DESCRIBE of 2,000 partitions a second would be work that the budget does not speak of.
    """
    asked: dict[int, Literal["earliest", "latest"] | datetime] = {}
    asked |= dict.fromkeys(range(0, partitions, ASKED_EVERY), "earliest")
    if any(start != ROWS for start in client.list_offsets(name, asked).values()):
        return False
    return not client.describe_topic(name).rows


def old_batch(schema_id: int) -> bytearray:
    """Rows that are too old for the topic from the start."""
    old_us = time.time_ns() // 1000 - 10 * RETENTION_MS * 1000
    return encode_batch(make_batch(ROWS), schema_id=schema_id, timestamp_us=old_us)


def is_stdin_closed(seconds: float) -> bool:
    """Return True if the parent has closed our standard input, after at most `seconds`."""
    return bool(select.select([sys.stdin], [], [], seconds)[0])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
