"""Fetch: 1 MiB from a warm page cache, one connection, against a bare sender of the same mmap.

The log holds 256 batches of 1 MiB. Both servers answer each request with the next of them, 4
requests in flight; the bare one reads nothing of the request and sends slices of a mapped file
with the same bytes, behind as many header bytes as the broker's.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.baselines.process import bare_server
from benchmarks.harness import Comparison, Settings, interleave
from benchmarks.load import Frame, Load
from benchmarks.quiver import (
    fetch_frame,
    fetched,
    largest_batch,
    numbered,
    open_load,
    produce_frame,
    producer_id,
    running,
    temporary_topic,
)

MIB = 1024 * 1024
BATCHES = 256
PASSES = 3
DEPTH = 4


def run(settings: Settings) -> list[Comparison]:
    batches = settings.scaled(BATCHES)
    with (
        running() as (broker, client),
        temporary_topic(client, "fetch", durability="memory") as topic,
        tempfile.TemporaryDirectory() as directory,
        open_load(broker) as load,
    ):
        batch, rows = largest_batch(MIB, schema_id=topic.schema_id)
        copies = numbered(batch, batches, producer_id=producer_id(client), rows=rows)
        load.pipeline([produce_frame(topic, copy, n) for n, copy in enumerate(copies)], depth=4)
        requests = [
            fetch_frame(topic, number * rows, len(batch), number) for number in range(batches)
        ]
        stored = Path(directory) / "stored"
        head_bytes = _copy_log(load, requests, copies, stored)
        moved = PASSES * batches * len(batch)

        def ours() -> float:
            return moved / load.pipeline(requests * PASSES, depth=DEPTH) / 1e6

        with (
            bare_server("send", stored, len(batch), head_bytes) as address,
            Load(address) as bare,
        ):

            def baseline() -> float:
                return moved / bare.pipeline(requests * PASSES, depth=DEPTH) / 1e6

            measured = interleave(settings.rounds, ours, baseline)
    return [
        Comparison(
            "fetch, 1 MiB, warm page cache",
            "MB/s",
            measured.ours,
            measured.baseline,
            budget=0.6,
            goal=0.9,
        )
    ]


def _copy_log(load: Load, requests: list[Frame], copies: list[bytearray], path: Path) -> int:
    """Fetch every batch once, check its bytes, keep them in `path`; the reply's header bytes."""
    head_bytes = 0
    with path.open("wb") as file:
        for request, copy in zip(requests, copies, strict=True):
            reply = load.exchange(request)
            _, body = fetched(reply)
            if body[16:] != memoryview(copy)[16:]:  # the first 16 bytes are the leader's
                raise AssertionError("the broker sent other bytes than it was given")
            head_bytes = len(reply) - len(body)
            file.write(body)
    return head_bytes
