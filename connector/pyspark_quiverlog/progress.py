"""A streaming query is shown beside the groups: a thread reports to the brokers where it reads.

Never in the way of a trigger: at most one report a second, only when the position has changed, and
whatever fails costs the query nothing. Never used to resume: the checkpoint decides.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Mapping
from typing import Any, Final

from quiverlog.client.replay.stream_offsets import SourceOffset
from quiverlog.errors import (
    FeatureNotFinalised,
    InvalidGroup,
    NotAuthorized,
    QuiverlogError,
    UnsupportedVersion,
)
from quiverlog.limits import GROUP_TITLE_CHARS_MAX

from . import pool
from .options import ReadOptions

__all__ = ["AFTER_FAILURE_S", "ProgressReporter", "group_of", "report", "reporter_of"]

REPORT_EVERY_S: Final = 1.0
AFTER_FAILURE_S: Final = 30.0
_REPORTER_BYTES: Final = 16
_OLDER: Final = (FeatureNotFinalised, UnsupportedVersion)
"""Errors of brokers that have no groups yet."""

logger = logging.getLogger("pyspark_quiverlog.progress")


def group_of(offset: SourceOffset) -> str:
    """Return the name under which a query is shown."""
    return offset.group or f"spark-{offset.query_id}"


def reporter_of(query_id: str) -> bytes:
    """Return the id of the member that a query is shown as, the same over its restarts."""
    return hashlib.blake2b(query_id.encode(), digest_size=_REPORTER_BYTES).digest()


def report(
    where: pool.Endpoint, offset: SourceOffset, *, title: str = "", rows_per_s: int = 0
) -> int:
    """Send one report. With a title it is that alone, and the position stays as it was reported.

    Returns how many queries report under the name.
    """
    from quiverlog.client.admin.groups import ask_coordinator
    from quiverlog.wire.group_messages import (
        ReportedPosition,
        ReportProgressRequest,
        ReportProgressResponse,
    )

    assert offset.query_id, "a position without an id is not reported"
    positions = [
        ReportedPosition(bytes.fromhex(found.topic_id), partition, at.offset, at.epoch)
        for found in offset.topics.values()
        for partition, at in found.partitions.items()
    ]
    request = ReportProgressRequest(
        group=group_of(offset),
        reporter=reporter_of(offset.query_id),
        title=title[:GROUP_TITLE_CHARS_MAX],
        positions=[] if title else positions,
        rows_per_s=rows_per_s,
    )
    client = pool.client(where)
    asked = ask_coordinator(
        client.cluster, request.group, request, ReportProgressResponse, makes=True
    )
    return client.run(asked).reporter_count


class ProgressReporter:
    """`moved` is called by Spark's one thread, and returns at once."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._news = threading.Condition()
        self._next: SourceOffset | None = None
        self._thread: threading.Thread | None = None
        self._ended = False
        self._has_warned = False

    def moved(self, start: Mapping[str, Any] | None) -> None:
        """Take a start that Spark brings: what lies before it is done."""
        if start is None or self._ended or "_id" not in start:
            return
        try:
            offset = SourceOffset.from_json(start)
        except QuiverlogError:
            return  # The planner refuses it.
        with self._news:
            if self._next is not None and self._next == offset:
                return
            self._next = offset
            self._news.notify()
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="quiverlog-progress", daemon=True
            )
            self._thread.start()

    def _run(self) -> None:
        sent: SourceOffset | None = None
        sent_s = time.monotonic()
        while True:
            with self._news:
                while self._next is None or self._next == sent:
                    self._news.wait()
                offset = self._next
            assert offset.query_id, "only positions with an id are taken"
            now_s = time.monotonic()
            rows = 0 if sent is None else _rows_between(sent, offset)
            rows_per_s = round(rows / max(now_s - sent_s, REPORT_EVERY_S))
            pause_s = REPORT_EVERY_S
            try:
                self._warn_of_others(offset, self._report(offset, rows_per_s))
                sent, sent_s = offset, now_s
            except (InvalidGroup, NotAuthorized) as error:
                logger.warning("the query is not shown as a group: %s", error)
                self._ended = True
                return
            except _OLDER as error:
                logger.debug("the query is not shown as a group: %s", error)
                self._ended = True
                return
            except Exception as error:
                logger.debug("a report of the query's position failed: %s", error)
                pause_s = AFTER_FAILURE_S
            time.sleep(pause_s)

    def _report(self, offset: SourceOffset, rows_per_s: int) -> int:
        return report(pool.endpoint(self._options), offset, rows_per_s=rows_per_s)

    def _warn_of_others(self, offset: SourceOffset, count: int) -> None:
        if count > 1 and not self._has_warned:
            self._has_warned = True
            assert not self._ended, "what has ended reports no more"
            logger.warning(
                "%d queries have the groupId %r, and are shown as that many members",
                count,
                group_of(offset),
            )


def _rows_between(before: SourceOffset, after: SourceOffset) -> int:
    """Return the rows from one position to the next, in partitions that both have."""
    count = 0
    for topic, found in after.topics.items():
        for partition, position in found.partitions.items():
            old = before.position(topic, partition)
            count += 0 if old is None else max(0, position.offset - old.offset)
    assert count >= 0
    return count
