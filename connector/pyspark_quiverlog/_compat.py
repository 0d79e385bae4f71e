"""The differences between PySpark 4.0 and 4.3, and the absence of PySpark.

The classes of a data source, and what differs between versions, are imported from here. Without
PySpark, or with 3.x, the classes are stand-ins: one `pyspark_*` module that fails to import breaks
every Python data source of a session.

- 4.0: data sources, Arrow writers for batch. Spark refuses to register a source that it found.
- 4.1: Arrow writers for streams; on 4.0 `arrow_from_rows` replaces them, more slowly.
- 4.2: admission control (`latestOffset(start, limit)`), Trigger.AvailableNow.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import socket
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "HAS_PYSPARK",
    "HAS_STREAM_ARROW_WRITER",
    "QUICK_ACKNOWLEDGEMENT",
    "DataSource",
    "DataSourceArrowWriter",
    "DataSourceReader",
    "DataSourceStreamArrowWriter",
    "DataSourceStreamReader",
    "InputPartition",
    "SupportsTriggerAvailableNow",
    "WriterCommitMessage",
    "arrow_from_rows",
    "hand_over",
    "in_daemon_worker",
    "is_found_by_spark",
    "limit_class",
    "rows_wrapper",
    "to_arrow_schema",
    "worker_socket",
]


def _stand_in(name: str) -> type:
    return type(name, (), {})


_api: Any = None
_streaming_api: Any = None
# Any exception: a broken PySpark must fail where it is used, not here.
with contextlib.suppress(Exception):
    _api = importlib.import_module("pyspark.sql.datasource")
with contextlib.suppress(Exception):
    _streaming_api = importlib.import_module("pyspark.sql.streaming.datasource")

HAS_PYSPARK = hasattr(_api, "DataSource")
HAS_STREAM_ARROW_WRITER = hasattr(_api, "DataSourceStreamArrowWriter")


def _base(name: str, module: Any = _api) -> Any:
    return getattr(module, name, None) or _stand_in(name)


DataSource: Any = _base("DataSource")
DataSourceReader: Any = _base("DataSourceReader")
DataSourceStreamReader: Any = _base("DataSourceStreamReader")
DataSourceArrowWriter: Any = _base("DataSourceArrowWriter")
DataSourceStreamArrowWriter: Any = _base(
    "DataSourceStreamArrowWriter" if HAS_STREAM_ARROW_WRITER else "DataSourceStreamWriter"
)
InputPartition: Any = _base("InputPartition")
WriterCommitMessage: Any = _base("WriterCommitMessage")
SupportsTriggerAvailableNow: Any = _base("SupportsTriggerAvailableNow", _streaming_api)


def is_found_by_spark(error: Exception) -> bool:
    condition = getattr(error, "getCondition", lambda: None)
    return bool(condition() == "DATA_SOURCE_ALREADY_EXISTS")


def limit_class(name: str) -> Any:
    return getattr(_streaming_api, name, None)


# --- PySpark's worker process ---------------------------------------------------------------------
# Not an API: read in pyspark/daemon.py of 4.3. In a version that differs no worker and no socket is
# found: nothing is tuned, and a task takes longer.
_DAEMON: Final = "pyspark.daemon"
_FRAMES_MAX: Final = 60

QUICK_ACKNOWLEDGEMENT: Final = (socket.IPPROTO_TCP, getattr(socket, "TCP_QUICKACK", -1))


def in_daemon_worker() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return getattr(spec, "name", None) == _DAEMON


def worker_socket() -> socket.socket | None:
    """Return the JVM's socket to this worker, if it is TCP on Linux."""
    if QUICK_ACKNOWLEDGEMENT[1] < 0 or not in_daemon_worker():
        return None
    daemon = vars(sys.modules["__main__"])
    frame = sys._getframe(1)
    for _ in range(_FRAMES_MAX):
        if frame.f_globals is daemon and frame.f_code.co_name == "worker":
            found = frame.f_locals.get("sock")
            is_tcp = getattr(found, "family", None) in (socket.AF_INET, socket.AF_INET6)
            return found if is_tcp else None
        if frame.f_back is None:
            break
        frame = frame.f_back
    return None


# --- rows that the driver hands over with its plan ----------------------------------------------
# Not an API: with PySpark's wrapper of simple readers the JVM takes rows together with the plan of
# a micro-batch, and no Python task runs. Read in 4.2 and 4.3; older versions do not pass the start
# of a micro-batch to a source.
_ROWS_VERSIONS: Final = ((4, 2), (4, 3))


@functools.cache
def rows_wrapper() -> Any:
    """Return PySpark's wrapper; None where it differs."""
    try:
        version = importlib.import_module("pyspark.version").__version__
        internal = importlib.import_module("pyspark.sql.datasource_internal")
        wrapper = internal._SimpleStreamReaderWrapper
        parameters = list(inspect.signature(wrapper.getCache).parameters)
        known = tuple(map(int, version.split(".")[:2])) in _ROWS_VERSIONS
        is_same = parameters == ["self", "start", "end"] and issubclass(
            wrapper, DataSourceStreamReader
        )
    except Exception:  # Missing or different: tasks read, as they always can.
        return None
    return wrapper if known and is_same else None


_with_rows_of: dict[Any, Any] = {}


def _with_rows(reader_class: Any) -> Any:
    made = _with_rows_of.get(reader_class)
    if made is not None:
        return made

    def get_cache(self: Any, start: Any, end: Any) -> Iterator[Any]:
        self.__class__ = reader_class  # everywhere else Spark handles a wrapper differently
        return iter(self.__dict__.pop("_rows_of_the_plan"))

    bases = (reader_class, rows_wrapper())
    made = type(reader_class.__name__ + "WithRows", bases, {"getCache": get_cache})
    return _with_rows_of.setdefault(reader_class, made)


def hand_over(reader: Any, batches: list[pa.RecordBatch]) -> None:
    """Have Spark take these rows with the plan of one partition; call it in `partitions()`."""
    reader._rows_of_the_plan = batches
    # For one check: right after `partitions()` Spark looks for the wrapper's class.
    reader.__class__ = _with_rows(type(reader))


def to_arrow_schema(schema: Any) -> pa.Schema:
    """Return the Arrow schema, with nullability, that Spark requires."""
    from pyspark.sql.pandas.types import to_arrow_schema as convert

    if "timezone" in inspect.signature(convert).parameters:
        return convert(schema, timezone="UTC")
    return convert(schema)


def arrow_from_rows(rows: Iterable[Any], schema: Any, batch_rows: int) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    arrow_schema = to_arrow_schema(schema)
    names = arrow_schema.names
    chunk: list[Any] = []
    for row in rows:
        chunk.append(row)
        if len(chunk) >= batch_rows:
            yield _record_batch(pa, chunk, names, arrow_schema)
            chunk = []
    if chunk:
        yield _record_batch(pa, chunk, names, arrow_schema)


def _record_batch(pa: Any, rows: list[Any], names: list[str], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [
        pa.array([_plain(value) for value in column], type=schema.field(i).type)
        for i, column in enumerate(columns)
    ]
    return pa.RecordBatch.from_arrays(arrays, names=names)


def _plain(value: Any) -> Any:
    if hasattr(value, "asDict"):  # Spark's Row, a tuple: Arrow takes a dictionary for a struct
        return value.asDict(recursive=True)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return [(_plain(k), _plain(v)) for k, v in value.items()]
    return value
