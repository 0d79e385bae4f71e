"""The names of transactions, what a task stages, what the driver commits; without a broker."""

from __future__ import annotations

import logging
import pickle
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from pyspark_quiverlog import exactly_once, pool, writer
from pyspark_quiverlog.exactly_once import TransactionName, transaction_name
from pyspark_quiverlog.options import (
    Use,
    WriteOptions,
    parse_read_options,
    parse_write_options,
)
from pyspark_quiverlog.routing import Route
from pyspark_quiverlog.writer import LogBatchWriter, LogStreamWriter, TaskReport, WriteTask
from quiverlog.client.transactions.questions import Committed, StagedAttempt
from quiverlog.errors import (
    ConnectionFailed,
    FeatureNotFinalised,
    InvalidOption,
    QuiverlogError,
    SequenceTaken,
    SequenceTooOld,
    TransactionClosed,
    TransactionFenced,
)
from quiverlog.types import Durability
from quiverlog.wire.transaction_messages import CommittedAttempt, CommittedPart

WRITER = uuid.UUID(int=7)
RUN = "0f316a71-1851-4317-917c-0c6e72a0e2c3"
OTHER = "54f3364c-465b-456c-8186-718c242f8c09"
SCHEMA = pa.schema([("id", pa.int64())])


def options(use: Use = Use.BATCH_WRITE, **given: str) -> WriteOptions:
    return parse_write_options({"bootstrap.servers": "a:1", "topic": "t"} | given, use)


def properties(tags: str | None = None, group: str | None = None) -> Callable[[str], str | None]:
    return {
        "sql.streaming.queryId": "q",
        "streaming.sql.batchId": "4",
        "spark.job.tags": tags,
        "spark.jobGroup.id": group,
    }.get


# --- names ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "tags",
    [
        f"spark-session-{RUN}-execution-root-id-0,spark-session-{RUN}",
        # A DataFrame of the program's own session, written in foreachBatch.
        f"spark-session-{OTHER},spark-session-{RUN}-execution-root-id-12",
        f"mine, spark-session-{RUN}",
    ],
)
def test_all_writes_of_a_run_have_one_instance(tags: str) -> None:
    found = transaction_name(options(), properties(tags, "replaced"), WRITER)
    assert found == TransactionName("spark/q/t", 4, uuid.UUID(RUN).bytes, False)


def test_without_a_tag_the_job_group_is_the_instance() -> None:
    one = transaction_name(options(), properties(None, "run-1"), WRITER)
    assert one == transaction_name(options(), properties("tag", "run-1"), uuid.UUID(int=8))
    assert one.instance != transaction_name(options(), properties("", "run-2"), WRITER).instance
    with pytest.raises(QuiverlogError, match="neither a session tag nor a job group"):
        transaction_name(options(), properties(), WRITER)


def test_the_sink_of_a_query_is_its_topic_or_its_own_name() -> None:
    of = properties(group="g")
    assert transaction_name(options(sinkId="s"), of, WRITER).transactional_id == "spark/q/s"
    columns = parse_write_options({"bootstrap.servers": "a:1"}, Use.STREAM_WRITE)
    assert transaction_name(columns, of, WRITER).transactional_id == "spark/q/*"


def test_a_batch_write_is_a_transaction_of_its_own() -> None:
    found = transaction_name(options(), lambda _: None, WRITER)
    assert found == TransactionName(f"spark-batch/{WRITER}", 0, WRITER.bytes, True)
    named = options(txnAppId="job", txnVersion="9")
    for of in (properties(group="g"), lambda _: None):  # in foreachBatch, too
        found = transaction_name(named, of, WRITER)
        assert found == TransactionName("spark-app/job/t", 9, WRITER.bytes, False)


# --- options --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("use", "given", "message"),
    [
        (Use.STREAM_WRITE, {"deliveryMode": "exactly"}, "exactly_once.*at_least_once"),
        (Use.BATCH_WRITE, {"txnVersion": "1"}, "`txnVersion` needs `txnAppId`"),
        (Use.BATCH_WRITE, {"txnAppId": "a"}, "`txnAppId` needs `txnVersion`"),
        (Use.STREAM_WRITE, {"txnAppId": "a"}, "`txnAppId`.* batch write.*`sinkId`"),
        (Use.STREAM_WRITE, {"txnVersion": "1"}, "`txnVersion`.* batch write.*`sinkId`"),
        (Use.BATCH_WRITE, {"txnAppId": "a", "txnVersion": "-1"}, "`txnVersion`"),
        (Use.BATCH_WRITE, {"txnAppId": "a", "txnVersion": f"{2**63 - 1}"}, "`txnVersion`"),
        (Use.BATCH_WRITE, {"sinkId": " "}, "`sinkId`.* 1 to 249"),
        (Use.BATCH_WRITE, {"sinkId": "s" * 250}, "`sinkId`.* 1 to 249 characters, not 250"),
        (Use.BATCH_WRITE, {"txnAppId": "s" * 250, "txnVersion": "1"}, "`txnAppId`.* 1 to 249"),
        (Use.STREAM_WRITE, {"transaction.timeout": "999ms"}, "`transaction.timeout`.* 1s to 24h"),
        (Use.STREAM_WRITE, {"transaction.timeout": "25h"}, "`transaction.timeout`.* 1s to 24h"),
        (
            Use.BATCH_WRITE,
            {"txnAppId": "a", "txnVersion": "1", "deliveryMode": "at_least_once"},
            "`txnAppId` needs `deliveryMode` exactly_once",
        ),
        # `a/b` and `c` would be one id with `a` and `b/c`: the later of two jobs was skipped.
        (
            Use.BATCH_WRITE,
            {"txnAppId": "a", "txnVersion": "1", "sinkId": "b/c"},
            "`sinkId` is 'b/c'.* no `/`",
        ),
        (Use.STREAM_WRITE, {"asyncProgressTrackingEnabled": "true"}, "repeats a micro-batch"),
    ],
)
def test_bad_options_are_refused(use: Use, given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        options(use, **given)


def test_good_options_at_their_limits() -> None:
    found = options(
        txnAppId="a" * 249,
        txnVersion="0",
        sinkId="s" * 249,
        deliveryMode="Exactly_Once",
        **{"transaction.timeout": "24h"},
    )
    assert (found.txn_version, found.delivery_mode) == (0, "exactly_once")
    name = transaction_name(found, lambda _: None, WRITER).transactional_id
    assert len(name) <= 512
    assert options(sinkId="b/c").sink_id == "b/c"
    assert options(txnAppId="a/b", txnVersion="1", sinkId="c").txn_app_id == "a/b"
    last = options(txnAppId="a", txnVersion=f"{2**63 - 2}", **{"transaction.timeout": "1s"})
    assert (last.txn_version, last.transaction_timeout) == (2**63 - 2, 1)
    assert options().transaction_timeout == 900


def test_an_isolation_level_is_taken_and_changes_nothing() -> None:
    """Programs that were written for Kafka set it."""
    for level in ("read_committed", "READ_UNCOMMITTED"):
        found = options(**{"isolation.level": level})
        assert replace(found, isolation_level="read_committed") == options()
        raw = {"bootstrap.servers": "a:1", "subscribe": "t", "isolation.level": level}
        assert parse_read_options(raw, Use.STREAM_READ).subscribe == ("t",)


# --- a task ---------------------------------------------------------------------------------------
def staged(rows: int = 3, epoch: int = 1) -> StagedAttempt:
    parts = [CommittedPart(0, 0, 1, rows)]
    attempt = CommittedAttempt(bytes(16), rows, parts) if rows else None
    return StagedAttempt("spark/q/t", epoch, 4, attempt)


class FakeAttempt:
    def __init__(self, fail: bool) -> None:
        self.rows = 0
        self.fail = fail
        self.targets: list[tuple[str, int | None]] = []

    def send(self, topic: str, rows: pa.RecordBatch, *, partition: int | None = None) -> None:
        self.rows += rows.num_rows
        self.targets.append((topic, partition))

    def finish(self) -> StagedAttempt:
        if self.fail:
            raise ConnectionFailed("gone")
        return staged(self.rows)


class FakeStager:
    epoch = 1

    def __init__(self, last_sequence: int = -1, *, fail: bool = False) -> None:
        self.last_sequence = last_sequence
        self.fail = fail
        self.attempts: list[FakeAttempt] = []
        self.closed = False

    def attempt(self, sequence: int) -> FakeAttempt:
        self.attempts.append(FakeAttempt(self.fail))
        return self.attempts[-1]

    def close(self) -> None:
        self.closed = True


def run(monkeypatch: pytest.MonkeyPatch, stager: FakeStager, *rows: int) -> TaskReport:
    monkeypatch.setattr(pool, "stager", lambda *_, **__: stager)
    task = WriteTask(options(), Route("t", None, None), SCHEMA, WRITER)
    return task.run(pa.record_batch({"id": pa.array(range(n), pa.int64())}) for n in rows)


def test_a_task_reports_its_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    stager = FakeStager()
    report = run(monkeypatch, stager, 2, 5)
    assert (report.staged, report.rows, report.skipped) == (staged(7), 7, 0)
    assert pickle.loads(pickle.dumps(report)) == report
    assert len(stager.attempts) == 1
    assert not stager.closed, "the next task takes the same stager"


def test_a_task_without_rows_opens_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "stager", None)
    task = WriteTask(options(), Route("t", None, None), SCHEMA, WRITER)
    assert task.run(iter([])) == TaskReport(instance=WRITER.bytes)


@pytest.mark.parametrize("last_sequence", [0, 1])
def test_what_an_earlier_run_committed_is_skipped(
    monkeypatch: pytest.MonkeyPatch, last_sequence: int
) -> None:
    """The report names the epoch all the same: the commit shows whether it was this run."""
    stager = FakeStager(last_sequence)
    report = run(monkeypatch, stager, 2, 5)
    assert report.skipped == 7
    assert report.staged == StagedAttempt(f"spark-batch/{WRITER}", 1, 0)
    assert stager.attempts[0].targets == []


def test_a_task_that_fails_drops_its_stager(monkeypatch: pytest.MonkeyPatch) -> None:
    stager = FakeStager(fail=True)
    with pytest.raises(ConnectionFailed):
        run(monkeypatch, stager, 1)
    assert stager.closed


def test_a_task_that_gets_no_row_for_long_opens_the_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tasks have staged rows, and may have ended: the epoch must not end."""
    stager = FakeStager()
    monkeypatch.setattr(pool, "stager", lambda *_, **__: stager)
    timers: list[Any] = []

    class Timer:
        def __init__(self, seconds: float, function: Callable[[], None]) -> None:
            self.seconds, self.fire = seconds, function
            timers.append(self)

        def start(self) -> None: ...
        def cancel(self) -> None: ...

    monkeypatch.setattr(exactly_once.threading, "Timer", Timer)

    def rows() -> Any:
        timers[0].fire()
        assert len(stager.attempts) == 1
        yield from ()

    report = WriteTask(options(), Route("t", None, None), SCHEMA, WRITER).run(rows())
    assert timers[0].seconds == 60
    assert report == TaskReport(instance=WRITER.bytes), "it has nothing to commit"
    soon = options(**{"transaction.timeout": "90s"})
    WriteTask(soon, Route("t", None, None), SCHEMA, WRITER).run(iter([]))
    assert timers[1].seconds == 30
    timers[1].fire()
    assert len(stager.attempts) == 1, "the task has ended"


def test_a_worker_keeps_the_stagers_that_it_used_last(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[FakeStager] = []

    class Client:
        def stager(self, *_: Any, **__: Any) -> FakeStager:
            made.append(FakeStager())
            return made[-1]

    monkeypatch.setattr(pool, "client", lambda where: Client())
    monkeypatch.setattr(pool, "_pool", pool._Pool())
    where = pool.endpoint(options())
    for number in range(pool.STAGERS_MAX):
        pool.stager(where, f"q{number}", b"run", WRITER)
    assert pool.stager(where, "q0", b"run", WRITER) is made[0]
    assert pool.stager(where, "q0", b"another run", WRITER) is made[-1]
    assert [one.closed for one in made[:3]] == [False, True, False]
    assert len(pool._pool.stagers) == pool.STAGERS_MAX
    # Another write, of foreachBatch: the one before may have failed, and ended the epoch.
    assert pool.stager(where, "q0", b"run", uuid.uuid4()) is made[-1]
    assert [one.closed for one in made[:3]] == [True, True, False]
    assert len(pool._pool.stagers) == pool.STAGERS_MAX


# --- the driver -----------------------------------------------------------------------------------
class FakeClient:
    def __init__(self, answer: Any = None, level: int = 2) -> None:
        self.answer = Committed(4, 3, Durability.FLUSHED, True) if answer is None else answer
        self.level = level
        self.calls: list[tuple[str, list[StagedAttempt]]] = []

    def commit_staged(self, attempts: Any, **_: Any) -> Committed:
        return self._called("commit", attempts)

    def abort_staged(self, attempts: Any, **_: Any) -> Any:
        return self._called("abort", attempts)

    def _called(self, name: str, attempts: Any) -> Any:
        self.calls.append((name, list(attempts)))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def describe_features(self) -> Any:
        self.calls.append(("level", []))
        return self


def driver(monkeypatch: pytest.MonkeyPatch, client: FakeClient, **given: str) -> writer._Writer:
    monkeypatch.setattr(pool, "client", lambda where: client)
    monkeypatch.setattr(exactly_once, "_checked", set())
    monkeypatch.setattr(exactly_once, "_written", {})
    monkeypatch.setattr(writer, "check_write", lambda *_: Route("t", None, None))
    monkeypatch.setattr(writer, "to_arrow_schema", lambda schema: schema)
    made = writer._Writer(options(**given), SCHEMA, False, WRITER)
    client.calls.clear()
    return made


def test_a_write_that_may_follow_a_failed_one_has_an_id_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In foreachBatch; a failed write of a stream ends the run, and writers are made for each
    micro-batch."""
    driver(monkeypatch, FakeClient())
    raw = {"bootstrap.servers": "127.0.0.1:1", "topic": "t"}
    batch, stream = (
        {kind(raw, SCHEMA, False)._writer.id for _ in range(2)}
        for kind in (LogBatchWriter, LogStreamWriter)
    )
    assert (len(batch), len(stream)) == (2, 1)


def test_a_commit_names_the_attempts_of_all_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeClient()
    made = driver(monkeypatch, client)
    made.commit([TaskReport(staged=staged(1)), TaskReport(), TaskReport(staged=staged(2))], "m")
    assert client.calls == [("commit", [staged(1), staged(2)])]


def test_a_second_write_of_a_repeated_micro_batch_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The coordinator answers both that they had committed: their tasks have skipped."""
    client = FakeClient()
    made = driver(monkeypatch, client)
    again = TaskReport(staged=staged(0), instance=b"run", skipped=7)
    made.commit([TaskReport(), again], "micro-batch 4")
    with pytest.raises(SequenceTaken, match=r"micro-batch 4 .*'spark/q/t'.*`sinkId`"):
        made.commit([again], "micro-batch 4")
    assert len(client.calls) == 1
    made.commit([TaskReport(staged=staged(0), instance=b"next", skipped=7)], "micro-batch 4")
    client.answer = TransactionFenced("x")
    for _ in range(2):  # What has not committed is no write.
        with pytest.raises(TransactionFenced):
            made.commit([TaskReport(staged=staged(), instance=b"third")], "micro-batch 4")


def test_a_driver_knows_the_last_writes_of_so_many_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    made = driver(monkeypatch, FakeClient())
    monkeypatch.setattr(exactly_once, "WRITTEN_MAX", 2)
    for sequence, name in enumerate(("a", "b", "a", "c")):
        one = StagedAttempt(name, 1, sequence)
        made.commit([TaskReport(staged=one, instance=b"run")], "m")
    assert exactly_once._written == {"a": (b"run", 2), "c": (b"run", 3)}


def test_nothing_is_sent_without_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeClient()
    made = driver(monkeypatch, client)
    made.commit([TaskReport(), TaskReport()], "m")
    made.abort([None, TaskReport()], "m")
    assert client.calls == []


def test_a_version_without_rows_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeClient()
    made = driver(monkeypatch, client, txnAppId="a", txnVersion="4")
    monkeypatch.setattr(pool, "stager", lambda *_, **__: FakeStager())
    made.commit([TaskReport()], "m")
    assert client.calls == [("commit", [staged(0)])]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (SequenceTaken("x"), "micro-batch 4 has been written to sink 'spark/q/t'.*`sinkId`"),
        (SequenceTooOld("x"), "later micro-batches of this query.*backup"),
        (TransactionFenced("x"), "another run of the query"),
        (TransactionClosed("x"), r"Start the query or job again.*`transaction.timeout` \(900 s\)"),
        (ConnectionFailed("x"), "x"),
    ],
)
def test_a_refusal_names_the_way_out(
    monkeypatch: pytest.MonkeyPatch, error: QuiverlogError, message: str
) -> None:
    made = driver(monkeypatch, FakeClient(error))
    with pytest.raises(type(error), match=message):
        made.commit([TaskReport(staged=staged())], "micro-batch 4")


def test_an_old_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made = driver(monkeypatch, FakeClient(SequenceTooOld("x")), txnAppId="a", txnVersion="4")
    with pytest.raises(SequenceTooOld, match="higher `txnVersion`"):
        made.commit([TaskReport(staged=staged())], "the batch write")


def test_a_job_is_fenced_by_another_run_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    made = driver(monkeypatch, FakeClient(TransactionFenced("x")), txnAppId="a", txnVersion="4")
    with pytest.raises(TransactionFenced, match="another run of the job"):
        made.commit([TaskReport(staged=staged())], "the batch write")


def test_what_is_not_published_yet_is_a_success(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = driver(monkeypatch, FakeClient(Committed(4, 3, Durability.FLUSHED, False)))
    made.commit([TaskReport(staged=staged())], "micro-batch 4")
    assert "quiverlog transaction describe spark/q/t" in caplog.text


def test_a_skip_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = driver(monkeypatch, FakeClient())
    made.commit([TaskReport(staged=staged(0), skipped=7)], "micro-batch 4")
    assert "micro-batch 4 had been written before: its 7 rows" in caplog.text


@pytest.mark.parametrize("skipped", [2, 3, 4])
def test_a_skip_of_other_rows_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, skipped: int
) -> None:
    """A checkpoint that was put back by one micro-batch looks as one that Spark repeats."""
    made = driver(monkeypatch, FakeClient(Committed(4, 3, Durability.FLUSHED, True)))
    made.commit([TaskReport(staged=staged(0), skipped=skipped)], "micro-batch 4")
    different = (
        f"micro-batch 4 had 3 rows when it was written, and has {skipped} now" in caplog.text
    )
    assert different is (skipped != 3)


@pytest.mark.parametrize("answer", [False, True, TransactionFenced("x"), OSError("x")])
def test_an_abort_never_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, answer: Any
) -> None:
    """Spark reports why the write failed; and it aborts after a commit that raised."""
    client = FakeClient(answer)
    made = driver(monkeypatch, client)
    with caplog.at_level(logging.WARNING):
        made.abort([None, TaskReport(staged=staged())], "m")
    assert client.calls == [("abort", [staged()])]
    assert ("they stay" in caplog.text) is (answer is True)


def test_a_cluster_without_transactions_is_refused_before_any_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(FeatureNotFinalised) as refusal:
        driver(monkeypatch, FakeClient(level=1))
    assert str(refusal.value).count("cluster upgrade --finalize") == 1
    assert "deliveryMode=at_least_once" in str(refusal.value)
    driver(monkeypatch, FakeClient(level=1), deliveryMode="at_least_once")
