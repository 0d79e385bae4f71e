"""Rows of transactions that wait: the table of them, and what is to be done about one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from quiverlog.cli.console.output import human_bytes, print_table
from quiverlog.client.base.arguments import counted
from quiverlog.types import STAGED_TOPIC

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from quiverlog.client.client import Client
    from quiverlog.client.transactions.overview import StagingRoom, WaitingRows

__all__ = ["print_waits", "seconds_shown", "staging_rooms", "staging_warnings"]

PUBLISH_S_MAX: Final = 60
STAGED_S_MAX: Final = 3_600
STAGED_PART_MAX: Final = 0.8
"""Above it the cluster ends what holds the room, if it has been open for a minute."""


def staging_rooms(client: Client, topics: Collection[str]) -> tuple[list[StagingRoom], list[int]]:
    """Return what the brokers have staged, and those that did not answer; of a cluster with these
    topics."""
    from quiverlog.client.transactions.overview import describe_staging
    from quiverlog.errors import QuiverlogError

    if STAGED_TOPIC not in topics:
        return [], []  # No broker is asked: it never saw a transaction.
    try:
        return client.run(describe_staging(client.cluster))
    except QuiverlogError:
        return [], sorted(client.cluster.metadata.brokers)


def staging_warnings(rooms: Sequence[StagingRoom], now: datetime) -> list[tuple[str, str]]:
    """Return (finding, advice) of each that is wrong."""
    found = [
        (
            f"Broker {one.broker} cannot use {why}",
            "docs/operating.md, Internal partitions that are not served, has what to do.",
        )
        for one in rooms
        for why in one.unserved
    ]
    waits = [
        wait
        for room in rooms
        for wait in room.waits
        if (now - wait.since).total_seconds() > PUBLISH_S_MAX
    ]
    if waits:
        longest = min(waits, key=lambda one: one.since)
        why = f" ({longest.reason}: {longest.detail})" if longest.reason else ""
        found.append(
            (
                f"Committed rows wait for {counted(len(waits), 'partition', 'partitions')}, the"
                f" longest for {seconds_shown((now - longest.since).total_seconds())} for"
                f" {longest.topic or 'a deleted topic'}-{longest.partition}{why}.",
                "quiverlog transaction list --state publishing, then describe, shows what each"
                " waits for.",
            )
        )
    full = [one for one in rooms if one.bytes > STAGED_PART_MAX * one.bytes_max]
    if full:
        shown = ", ".join(
            f"broker {one.broker} ({human_bytes(one.bytes)} of {human_bytes(one.bytes_max)})"
            for one in full
        )
        found.append(
            (
                f"The room for staged rows is nearly full: {shown}.",
                "End a transaction that is not needed (quiverlog transaction list, abort), or raise"
                " staged.bytes.max.",
            )
        )
    old = [one for one in rooms if one.oldest_s > STAGED_S_MAX]
    if old:
        shown = ", ".join(f"broker {one.broker} ({seconds_shown(one.oldest_s)})" for one in old)
        found.append(
            (
                f"Rows have been staged for more than an hour: {shown}.",
                "quiverlog transaction list shows which ids are open or publishing.",
            )
        )
    return found


def print_waits(waits: Sequence[WaitingRows]) -> None:
    now = datetime.now(UTC)
    print_table(
        ["TOPIC", "PARTITION", "ROWS", "FOR", "WHY"],
        [
            (
                one.topic or "(deleted)",
                one.partition,
                one.rows,
                seconds_shown((now - one.since).total_seconds()),
                f"{one.reason}: {one.detail}" if one.reason else "",
            )
            for one in waits
        ],
        right=["PARTITION", "ROWS", "FOR"],
    )


def seconds_shown(seconds: float | None) -> str:
    return "?" if seconds is None else f"{max(0, seconds):,.0f} s"
