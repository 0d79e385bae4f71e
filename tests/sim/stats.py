"""What a run did, counted: that a simulation keeps every promise means little if little happened.

Owns the kinds of requests that are counted and the list of what the runs of a suite must have met.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from quiverlog.types import NO_EPOCH
from quiverlog.wire import messages as m

__all__ = ["MUST_HAPPEN", "report", "request_kind"]

MUST_HAPPEN: Final = (
    "requests handled together",
    "produce of several entries",
    "batches of one entry",
    "reads that end no frame",
    "long poll",
    "long poll with an epoch",
    "a reader got an error for lost rows",
    "topic created",
    "topic altered",
    "topic grown",
    "topic deleted",
    "slow job",
    "calls between a job and its notice",
    "death between a job and its notice",
    "creation undone by a power loss",
    "removal undone by a power loss",
    "rename undone by a power loss",
    "views handed out",
    "EIO read",
    "EIO append",
    "EIO fsync",
    "EMFILE",
    "rows acknowledged to the shipped producer",
    "rows given out by the shipped consumer",
    "shipped client looked its topic up",
    "several jobs of one log",
    "jobs handed over together",
    "rows deleted",
    "no room for first rows",
    "death right after a trim",
    "fetch without a bound",
    "next epoch of a producer",
    "refused: a producer id that was never given out",
    "refused: a producer epoch that was never given out",
    "refused: rows that no reader can decode",
)
"""What the issue asks of the simulator, each as something that is counted."""


def request_kind(request: m.Request, client: str) -> str:
    """What a request of this client is counted as."""
    if isinstance(request, m.MetadataRequest) and client.startswith("client-"):
        return "shipped client looked its topic up"
    if isinstance(request, m.ProduceRequest):
        return "produce of several entries" if len(request.partitions) > 1 else "produce"
    if isinstance(request, m.FetchRequest) and request.max_wait_ms:
        epochs = any(part.last_epoch != NO_EPOCH for part in request.partitions)
        return "long poll with an epoch" if epochs else "long poll"
    if isinstance(request, m.ListOffsetsRequest) and request.max_wait_ms:
        return "long poll"
    return type(request).__name__


def report(counts: Counter[str]) -> str:
    """One line for each kind."""
    width = max(map(len, counts), default=0)
    return "\n".join(f"  {kind:{width}} {counts[kind]:9,}" for kind in sorted(counts))
