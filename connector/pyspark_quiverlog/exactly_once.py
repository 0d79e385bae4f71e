"""`deliveryMode=exactly_once`: tasks stage rows, and the driver's commit publishes them once.

A query is a transactional id, a run of it an instance of the id, a micro-batch a sequence. A
micro-batch that Spark repeats after its commit is skipped, whatever its rows; tasks and drivers of
an earlier run can commit nothing.

Invariant: what is committed are the rows of the attempts that Spark has chosen, and no others.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from quiverlog.errors import (
    FeatureNotFinalised,
    QuiverlogError,
    SequenceTaken,
    SequenceTooOld,
    TransactionClosed,
    TransactionFenced,
)

from . import pool
from .options import WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from quiverlog.client.transactions.questions import StagedAttempt

__all__ = [
    "Staging",
    "TransactionName",
    "abort",
    "batch_settings",
    "check_cluster",
    "commit",
    "transaction_name",
]

LEVEL: Final = 2
"""The feature level of transactions."""

PUBLISH_S_MAX: Final = 30.0
"""What is decided by then is a success, whenever it is published."""

ABORT_S_MAX: Final = 5.0

SILENT_S_MAX: Final = 60.0
"""A task without a row opens the id after this: others may have staged rows long before."""

LINGER_S: Final = 60.0
"""Batches are closed by size and at the end of the task before this."""

_SESSION: Final = re.compile(r"spark-session-([0-9a-f-]{36})(-execution-root-id-\d+)?")

logger = logging.getLogger("pyspark_quiverlog")

WRITTEN_MAX: Final = 1_024

_checked: set[tuple[str, ...]] = set()
_written: dict[str, tuple[bytes, int]] = {}
"""Of this process: by transactional id, the run and the sequence of its last commit."""
_writing = threading.Lock()


# --- names ----------------------------------------------------------------------------------------
class TransactionName(NamedTuple):
    transactional_id: str
    sequence: int
    instance: bytes
    single_use: bool


def transaction_name(
    options: WriteOptions, local_property: Callable[[str], str | None], writer_id: uuid.UUID
) -> TransactionName:
    """Return the transaction that a task writes to.

    Args:
        local_property: of the task.
        writer_id: of the batch write; all of its tasks have the same.
    """
    sink = options.sink_id or options.topic or "*"
    if options.txn_app_id is not None:
        assert options.txn_version is not None
        app_id = f"spark-app/{options.txn_app_id}/{sink}"
        return TransactionName(app_id, options.txn_version, writer_id.bytes, False)
    query_id = local_property("sql.streaming.queryId")
    if not query_id:
        return TransactionName(f"spark-batch/{writer_id}", 0, writer_id.bytes, True)
    batch_id = local_property("streaming.sql.batchId")
    if not batch_id:
        raise QuiverlogError(f"Spark gives no id of the micro-batch of query {query_id}.")
    instance = _run(local_property)
    return TransactionName(f"spark/{query_id}/{sink}", int(batch_id), instance, False)


def _run(local_property: Callable[[str], str | None]) -> bytes:
    """Return what is the same in all writes of a run of a query, and another in each run."""
    # Each run has a session of its own, which the root execution has in its tag. A DataFrame of
    # another session, written in `foreachBatch`, brings the plain tag of that one.
    tags = (local_property("spark.job.tags") or "").split(",")
    found = [match for tag in tags if (match := _SESSION.fullmatch(tag.strip()))]
    found.sort(key=lambda match: match[2] is None)
    if found:
        return uuid.UUID(found[0][1]).bytes
    group = local_property("spark.jobGroup.id")  # the run's id, unless `setJobGroup` replaced it
    if not group:
        raise QuiverlogError("Spark gives neither a session tag nor a job group of the run.")
    return uuid.uuid5(uuid.NAMESPACE_OID, group).bytes


# --- the driver, before tasks ---------------------------------------------------------------------
def check_cluster(options: WriteOptions) -> None:
    """Raises FeatureNotFinalised: the cluster has no transactions."""
    if options.bootstrap_servers in _checked:
        return
    level = pool.client(pool.endpoint(options)).describe_features().level
    if level < LEVEL:
        raise FeatureNotFinalised(
            f"an exactly-once write needs feature level {LEVEL}, the cluster has {level}: upgrade "
            "its brokers, or write with `deliveryMode=at_least_once`."
        )
    _checked.add(options.bootstrap_servers)


# --- a task ---------------------------------------------------------------------------------------
class Staging:
    """The target of one attempt at a task."""

    def __init__(self, options: WriteOptions, name: TransactionName, writer_id: uuid.UUID) -> None:
        self._options = options
        self._name = name
        self._writer_id = writer_id
        self._stager: Any = None
        self._attempt: Any = None
        self._skipped = 0
        self._is_over = False
        # Held while opening: the timer may do it, too.
        self._lock = threading.Lock()
        silent_s = min(SILENT_S_MAX, options.transaction_timeout / 3)
        self._timer = threading.Timer(silent_s, self._show_life)
        self._timer.daemon = True

    def begin(self, _topic: str | None) -> None:
        self._timer.start()

    def send(self, topic: str, partition: int | None, rows: pa.RecordBatch) -> None:
        attempt = self._open()
        if attempt is None:
            self._skipped += rows.num_rows
        else:
            attempt.send(topic, rows, partition=partition)

    def finish(self, report: Any) -> None:
        """Wait until all rows are staged."""
        self._timer.cancel()
        with self._lock:
            self._is_over = True
            assert self._attempt is None or not self._skipped, "all rows of a task, or none"
            report.skipped = self._skipped
            if self._attempt is not None:
                staged = self._attempt.finish()
                report.staged = staged if staged.rows else None
            elif self._skipped:
                report.staged = self._nothing()

    def stage_nothing(self) -> StagedAttempt:
        attempt = self._open()
        return self._nothing() if attempt is None else attempt.finish()

    def drop(self) -> None:
        """End it after an error: its rows count for nothing."""
        self._timer.cancel()
        with self._lock:
            self._is_over = True
            if self._stager is not None:
                pool.drop_stager(self._stager)

    def _nothing(self) -> StagedAttempt:
        from quiverlog.client.transactions.questions import StagedAttempt

        name = self._name
        assert self._stager is not None, "the epoch is that of an open id"
        return StagedAttempt(name.transactional_id, self._stager.epoch, name.sequence)

    def _show_life(self) -> None:
        with contextlib.suppress(QuiverlogError):  # the first row fails, if there comes one
            self._open()

    def _open(self) -> Any:
        """Return the attempt; None: the transaction had committed before this run."""
        with self._lock:
            # The timer may fire as the task ends: nothing would end an attempt that it opens.
            if self._stager is None and not self._is_over:
                self._timer.cancel()
                stager = pool.stager(
                    pool.endpoint(self._options),
                    self._name.transactional_id,
                    self._name.instance,
                    self._writer_id,
                    single_use=self._name.single_use,
                    transaction_timeout=self._options.transaction_timeout,
                    timeout=self._options.delivery_timeout,
                    **batch_settings(self._options),
                )
                attempt = stager.attempt(self._name.sequence)
                self._stager = stager
                if stager.last_sequence >= self._name.sequence:
                    attempt.finish()
                else:
                    self._attempt = attempt
            return self._attempt


def batch_settings(options: WriteOptions) -> dict[str, Any]:
    """Return what a stager and a producer are given alike."""
    settings: dict[str, Any] = {
        "batch_rows": options.batch_rows,
        "batch_bytes": options.batch_bytes,
        "linger": LINGER_S,
    }
    if options.compression != "topic_default":
        settings["compression"] = options.compression
    if options.durability != "topic_default":
        settings["durability"] = options.durability
    return settings


# --- the driver, after tasks ----------------------------------------------------------------------
def commit(
    options: WriteOptions,
    writer_id: uuid.UUID,
    staged: Sequence[StagedAttempt],
    instance: bytes,
    skipped: int,
    what: str,
) -> None:
    """Publish the rows. Without any, nothing is sent but for a `txnVersion`, which is taken.

    Args:
        instance: the run, as the tasks name it.
    """
    if not staged and options.txn_app_id is not None:
        name = transaction_name(options, lambda _: None, writer_id)
        staged, instance = [Staging(options, name, writer_id).stage_nothing()], name.instance
    if not staged:
        return
    client = pool.client(pool.endpoint(options))
    transaction = (instance, staged[0].sequence)
    # A micro-batch that is repeated is answered so twice, and the second write's rows were never
    # written: its tasks skip, and only this process sees that there are two.
    if _written.get(staged[0].transactional_id) == transaction:
        raise _taken(staged[0], what)
    try:
        # Also where all tasks skipped: by the epoch the coordinator distinguishes a micro-batch
        # that is repeated from a second write to the sink.
        committed = client.commit_staged(
            staged, timeout=options.delivery_timeout, publish_timeout=PUBLISH_S_MAX
        )
    except QuiverlogError as error:
        raise _explained(error, options, staged[0], what) from error
    with _writing:
        _written.pop(staged[0].transactional_id, None)
        if len(_written) >= WRITTEN_MAX:
            del _written[next(iter(_written))]
        _written[staged[0].transactional_id] = transaction
    if skipped:
        logger.warning(
            "%s had been written before: its %d rows are not written again", what, skipped
        )
    if skipped and skipped != committed.rows:
        logger.warning(
            "%s had %d rows when it was written, and has %d now. That is right for a query whose "
            "rows differ from try to try. Where its checkpoint was put back or edited, Spark has "
            "chosen other rows to read for the same number: what was not among the first is in no "
            "micro-batch any more. Start such a query anew, with a new checkpoint",
            what,
            committed.rows,
            skipped,
        )
    if not committed.is_published:
        logger.warning(
            "%s is committed, and its %d rows are not all published after %g s; they will be. "
            "`quiverlog transaction describe %s` shows what they wait for",
            what,
            committed.rows,
            PUBLISH_S_MAX,
            staged[0].transactional_id,
        )


def _explained(
    error: QuiverlogError, options: WriteOptions, one: StagedAttempt, what: str
) -> QuiverlogError:
    name = f"{one.transactional_id!r}"
    if isinstance(error, SequenceTaken):
        return _taken(one, what)
    if isinstance(error, SequenceTooOld):
        if options.txn_app_id is not None:
            return SequenceTooOld(f"{what}: {error.message} Write under a higher `txnVersion`.")
        return SequenceTooOld(
            f"{what}: sink {name} has later micro-batches of this query, and this one was not "
            "written. If another run of the query writes them, leave it to that one. If the "
            "checkpoint was put back from a backup, the rows up to there are in the topic: go on "
            "with the newer checkpoint, or with a new one from the offsets that you choose."
        )
    if isinstance(error, TransactionClosed):
        return TransactionClosed(
            f"{what}: {error.message} Start the query or job again: nothing of this write remains. "
            "If no command had aborted it, raise `transaction.timeout` "
            f"({options.transaction_timeout:g} s)."
        )
    if isinstance(error, TransactionFenced):
        holder = "query" if options.txn_app_id is None else "job"
        return TransactionFenced(f"{what}: another run of the {holder} writes to sink {name} now.")
    return error


def _taken(one: StagedAttempt, what: str) -> SequenceTaken:
    return SequenceTaken(
        f"{what} has been written to sink {one.transactional_id!r} already in this run, by another "
        "write. Give each write of a micro-batch a `sinkId` of its own, or write all of its rows "
        "at once, with a topic column."
    )


def abort(options: WriteOptions, staged: Sequence[StagedAttempt], what: str) -> None:
    """Have staged rows given up early. Without it they are when the id is opened again."""
    if not staged:
        return
    try:
        client = pool.client(pool.endpoint(options))
        if client.abort_staged(staged, timeout=ABORT_S_MAX):
            logger.warning("%s failed after its rows were committed; they stay", what)
    except Exception as error:  # Spark reports why the write failed, not this.
        logger.info("%s: its staged rows are given up later (%s)", what, error)
