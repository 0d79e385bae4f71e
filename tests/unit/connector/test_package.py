"""The package imports everywhere, cheaply, and keeps connections per process."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import pyspark_quiverlog
from pyspark_quiverlog import _compat, pool, sending
from pyspark_quiverlog.options import Use, parse_read_options
from pyspark_quiverlog.planning.ranges import Range
from pyspark_quiverlog.reader import LogSplit
from quiverlog.errors import WorkersLackPackage, WorkersPythonDiffers


def python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_it_imports_without_pyspark() -> None:
    """One `pyspark_*` module that fails to import breaks every Python data source."""
    code = (
        "import sys; sys.modules['pyspark'] = None\n"
        "import pyspark_quiverlog as q\n"
        "import pyspark_quiverlog.stream_reader, pyspark_quiverlog.writer\n"
        "print(q.DefaultSource.name(), q._compat.HAS_PYSPARK)\n"
        "for use in (lambda: q.register(None), lambda: q.LagListener, lambda: q.source_lags):\n"
        "    try: use()\n"
        "    except RuntimeError as error: print(error)"
    )
    found, *refused = python(code).splitlines()
    assert found == "quiverlog False"
    assert len(refused) == 3
    for line in refused:
        assert line.startswith("quiverlog's data source needs PySpark 4.0 or newer: ")
        assert "pyspark>=" in line


def test_it_imports_with_a_pyspark_that_has_no_streaming_api() -> None:
    """As on 4.0 and 4.1: no read limits, no Trigger.AvailableNow, no Arrow stream writer."""
    code = (
        "import sys; sys.modules['pyspark.sql.streaming.datasource'] = None\n"
        "import types\n"
        "api = types.ModuleType('pyspark.sql.datasource')\n"
        "names = 'DataSource DataSourceReader DataSourceStreamReader DataSourceArrowWriter '\\\n"
        "        'DataSourceStreamWriter InputPartition WriterCommitMessage'\n"
        "for name in names.split(): setattr(api, name, type(name, (), {}))\n"
        "sys.modules['pyspark.sql.datasource'] = api\n"
        "from pyspark_quiverlog import _compat, stream_reader, writer\n"
        "print(_compat.HAS_STREAM_ARROW_WRITER, _compat.limit_class('ReadMaxRows'))\n"
        "print(writer.LogStreamWriter.__mro__[1].__name__)"
    )
    assert python(code).splitlines() == ["False None", "DataSourceStreamWriter"]


def test_importing_it_loads_nothing_heavy() -> None:
    code = (
        "import sys, pyspark.sql.datasource\n"
        "before = set(sys.modules)\n"
        "import pyspark_quiverlog\n"
        "print([m for m in set(sys.modules) - before if not m.startswith('pyspark')])"
    )
    assert python(code) == "[]"


def test_spark_finds_it_by_its_name() -> None:
    from pkgutil import iter_modules

    from pyspark.sql.datasource import DataSource

    assert "pyspark_quiverlog" in {m.name for m in iter_modules()}
    assert issubclass(pyspark_quiverlog.DefaultSource, DataSource)
    assert pyspark_quiverlog.DefaultSource.name() == "quiverlog"


def test_stand_ins_are_distinct() -> None:
    """A class with two stand-ins among its bases must be possible."""
    assert _compat._stand_in("A") is not _compat._stand_in("A")


class FakeClient:
    schema_id = 0

    def __init__(self) -> None:
        self.made: list[Any] = []

    def metadata(self, topics: list[str]) -> Any:
        info = SimpleNamespace(topic_id=b"id", schema_id=self.schema_id, partitions=[0])
        return SimpleNamespace(topics=dict.fromkeys(topics, info))

    def producer(self, topic: str, **settings: Any) -> Any:
        made = type("Producer", (), {"close": lambda self: None})()
        self.made.append((topic, settings))
        return made


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[FakeClient]:
    made: list[FakeClient] = []

    def connect(*args: Any, **kwargs: Any) -> FakeClient:
        made.append(FakeClient())
        return made[-1]

    monkeypatch.setattr("quiverlog.connect", connect)
    monkeypatch.setattr(pool, "_pool", pool._Pool())
    return made


WHERE = pool.endpoint(
    parse_read_options({"bootstrap.servers": "a:1", "subscribe": "t"}, Use.BATCH_READ)
)


def test_a_process_keeps_its_client_and_its_producers(connections: list[FakeClient]) -> None:
    assert pool.client(WHERE) is pool.client(WHERE)
    first = pool.producer(WHERE, "t", linger=1)
    assert pool.producer(WHERE, "t", linger=1) is first
    assert pool.producer(WHERE, "t", linger=2) is not first
    pool.drop_producer(first)
    assert pool.producer(WHERE, "t", linger=1) is not first
    assert len(connections) == 1


def test_a_topic_that_changed_gets_a_new_producer(connections: list[FakeClient]) -> None:
    first = pool.producer(WHERE, "t", linger=1)
    other = pool.producer(WHERE, "u", linger=1)
    connections[0].schema_id = 1
    second = pool.producer(WHERE, "t", linger=1)
    assert second is not first
    assert pool.producer(WHERE, "t", linger=1) is second
    assert pool.producer(WHERE, "u", linger=1) is not other


def test_threads_share_a_producer(
    connections: list[FakeClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would open one, and the pool forget all but the last, with its thread and its rows."""
    is_opening, another_opens = threading.Event(), threading.Event()
    plain = FakeClient.producer

    def slow(self: FakeClient, topic: str, **settings: Any) -> Any:
        if is_opening.is_set():
            another_opens.set()
        is_opening.set()
        another_opens.wait(0.3)
        return plain(self, topic, **settings)

    monkeypatch.setattr(FakeClient, "producer", slow)
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(lambda _: pool.producer(WHERE, "t", linger=1), range(2))
    assert first is second
    assert len(connections) == 1
    assert len(connections[0].made) == 1


def test_a_forked_child_opens_its_own() -> None:
    assert (
        python(
            "import os, warnings\n"
            "from pyspark_quiverlog import pool\n"
            "warnings.simplefilter('ignore')\n"
            "pool._pool.clients['w'] = 1\n"
            "parent = pool._pool\n"
            "with parent.lock:\n"
            "    child = os.fork()\n"
            "    if child == 0: os._exit(pool._pool is parent or len(pool._pool.clients))\n"
            "print(os.waitpid(child, 0)[1], pool._pool is parent)"
        )
        == "0 True"
    )


def test_what_travels_to_a_task_is_small() -> None:
    split = LogSplit([Range("flights", "0a" * 16, 3, 10, 20, 1)])
    data = pickle.dumps(split)
    assert len(data) < 250
    assert pickle.loads(data).ranges == split.ranges


@pytest.mark.parametrize("condition", ["DATA_SOURCE_ALREADY_EXISTS", "DATA_SOURCE_ERROR"])
def test_register_where_spark_has_found_it_already(condition: str) -> None:
    """PySpark 4.0 refuses then; there is nothing to do, and nothing else is passed over."""

    class Refused(Exception):
        def getCondition(self) -> str:
            return condition

    def register(source: type) -> None:
        raise Refused

    spark: Any = SimpleNamespace(dataSource=SimpleNamespace(register=register))
    if condition == "DATA_SOURCE_ALREADY_EXISTS":
        pyspark_quiverlog.register(spark)
    else:
        with pytest.raises(Refused):
            pyspark_quiverlog.register(spark)


# --- workers whose interpreter does not have it ---------------------------------------------------
def session_of(python: str, registered: list[type]) -> Any:
    """As much of a classic session as `register` asks before it sends anything."""
    return SimpleNamespace(
        sparkContext=SimpleNamespace(pythonExec=python),
        dataSource=SimpleNamespace(register=registered.append),
    )


def script(path: Path, words: str) -> str:
    path.write_text(f"#!/bin/sh\n{words}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("banner", ["", "echo activated 3.8; "])
def test_workers_that_have_it_are_sent_nothing(tmp_path: Path, banner: str) -> None:
    """A wrapper or `sitecustomize` of theirs may print something of its own."""
    registered: list[type] = []
    python = script(tmp_path / "python", f'{banner}exec {sys.executable} "$@"')
    pyspark_quiverlog.register(session_of(python, registered))
    assert registered == [pyspark_quiverlog.DefaultSource]


def test_an_interpreter_that_spark_cannot_plan_with_is_refused(tmp_path: Path) -> None:
    """Spark's own words are `Cannot run program` and `No module named`, at the first load."""
    none = "./environment/bin/python"
    no_pyarrow = script(tmp_path / "python", f'exec {sys.executable} -S "$@"')
    broken = script(tmp_path / "broken", "exit 3")
    for python, part in (
        (none, "link the environment of --archives"),
        (no_pyarrow, "has no pyarrow"),
        (broken, "has no pyarrow"),
    ):
        registered: list[type] = []
        with pytest.raises(WorkersLackPackage) as caught:
            pyspark_quiverlog.register(session_of(python, registered))
        assert python in caught.value.message
        assert part in caught.value.message
        assert registered == []


def test_an_interpreter_of_another_version_is_refused(tmp_path: Path) -> None:
    """Spark's own words come at the first load, under its traceback."""
    python = script(tmp_path / "python", "echo 2.7; echo quiverlog")
    driver = f"{sys.version_info[0]}.{sys.version_info[1]}"
    for send in (None, True):
        registered: list[type] = []
        with pytest.raises(WorkersPythonDiffers) as caught:
            pyspark_quiverlog.register(session_of(python, registered), send=send)
        words = f"{python}, which is Python 2.7, and the driver runs Python {driver}: "
        assert words in caught.value.message
        assert registered == []
    pyspark_quiverlog.register(session_of(python, registered), send=False)
    assert registered == [pyspark_quiverlog.DefaultSource]


def test_an_interpreter_that_does_not_end_in_time_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "_LOOK_S_MAX", 0.05)
    python = script(tmp_path / "python", "exec sleep 60")
    with pytest.raises(WorkersLackPackage, match=f"{python}, which did not end within 0.05 s"):
        pyspark_quiverlog.register(session_of(python, []))


def test_what_is_sent_is_whole(tmp_path: Path) -> None:
    """Packages of the archives alone, in an interpreter that has none of them."""
    for name in sending.PACKAGES:
        with zipfile.ZipFile(sending._packed(name, str(tmp_path))) as file:
            file.extractall(tmp_path / "unpacked" / name)
    site = str(Path(pa.__file__).parent.parent)
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "import pyspark_quiverlog.source, quiverlog.client.client, msgspec, fastcrc\n"
        "print(quiverlog.__file__, msgspec.__file__, fastcrc.crc32.iscsi(b'123456789'))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code, str(tmp_path / "unpacked"), site],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    where, other, checksum = done.stdout.split()
    assert where.startswith(str(tmp_path))
    assert other.startswith(str(tmp_path))
    assert int(checksum) == 0xE3069283  # the check value of CRC-32C
