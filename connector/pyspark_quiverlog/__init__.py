"""quiverlog's data source for PySpark: `spark.readStream.format("quiverlog")`.

Spark finds this package by its name (`pyspark_*`) and loads `DefaultSource` in every session,
whether or not quiverlog is used. So this module starts nothing, and imports even where PySpark is
missing or too old; of this package it imports only `_compat` and `refusals`, the rest when it is
used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _compat
from .refusals import RefusedStream, in_one_frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from .lag import LagListener, source_lags

__all__ = ["DefaultSource", "LagListener", "register", "source_lags"]


def __getattr__(name: str) -> Any:
    # Every session imports this module: what few use is imported on first use.
    if name not in ("LagListener", "source_lags"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _check_pyspark()
    from . import lag

    return getattr(lag, name)


class DefaultSource(_compat.DataSource):  # type: ignore[misc]
    """The data source `quiverlog`. docs/spark.md lists its options and guarantees."""

    options: Any

    @classmethod
    def name(cls) -> str:
        return "quiverlog"

    @in_one_frame
    def schema(self) -> StructType:
        """Return the columns of the topics that are read."""
        from .source import read_schema

        return read_schema(self.options)

    @in_one_frame
    def reader(self, schema: StructType) -> Any:
        from .batch_reader import LogBatchReader

        return LogBatchReader(self.options, schema)

    def streamReader(self, schema: StructType) -> Any:
        from quiverlog.errors import InvalidOption

        from .stream_reader import LogStreamReader

        try:
            return LogStreamReader(self.options, schema)
        except InvalidOption as error:
            return RefusedStream(error)

    @in_one_frame
    def writer(self, schema: StructType, overwrite: bool) -> Any:
        from .writer import LogBatchWriter

        return LogBatchWriter(self.options, schema, overwrite)

    @in_one_frame
    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        from .writer import LogStreamWriter

        return LogStreamWriter(self.options, schema, overwrite)


def _check_pyspark() -> None:
    if not _compat.HAS_PYSPARK:
        from quiverlog.installing import install_line

        line = install_line("spark", "pyspark")
        raise RuntimeError(f"quiverlog's data source needs PySpark 4.0 or newer: {line}")


def register(spark: SparkSession, *, send: bool | None = None) -> None:
    """Register `quiverlog` in a session where Spark did not find it by itself.

    Spark searches once per JVM, with the interpreter of `PYSPARK_PYTHON`, or else the first
    `python3` on the PATH; without quiverlog there, it answers `DATA_SOURCE_NOT_FOUND`. So does a
    write on a new thread, in `foreachBatch` for example: call this there. Where Spark has found it,
    nothing changes.

    Args:
        send: send quiverlog, and what it needs except pyarrow, to the workers, which need the
            same Python on the same system. Default: if their interpreter, as found on the driver's
            machine, lacks it. Not with Spark Connect, whose server needs it installed.

    Raises:
        RuntimeError: PySpark is missing, or older than 4.0.
        WorkersLackPackage: Spark cannot plan with the workers' interpreter, or a Spark Connect
            server does not have quiverlog.
        WorkersPythonDiffers: the workers' interpreter is of another version.
    """
    _check_pyspark()
    from . import sending

    context = sending.context_of(spark)
    if context is None:  # Spark Connect
        _register(spark)
        sending.check_server(spark)
    elif send is not False and (sending.is_missing_in(context.pythonExec) or send):
        with sending.sent(spark, context):
            _register(spark)
    else:
        _register(spark)
    _activate(spark)


def _activate(spark: SparkSession) -> None:
    """Have Spark find sources of `spark` when this thread writes, where it has no session yet."""
    # A write looks Python sources up in the session that is active in the thread, and only there.
    jvm, session = getattr(spark, "_jvm", None), getattr(spark, "_jsparkSession", None)
    if jvm is None or session is None:  # Spark Connect
        return
    sessions = getattr(jvm, "org.apache.spark.sql.classic.SparkSession")
    if not sessions.getActiveSession().isDefined():
        sessions.setActiveSession(session)


def _register(spark: SparkSession) -> None:
    try:
        spark.dataSource.register(DefaultSource)
    except Exception as error:
        # PySpark 4.0 refuses a source that it has found: all is well.
        if not _compat.is_found_by_spark(error):
            raise
