"""What the text of a query reaches: its tables, and nothing else of the machine."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import duckdb
import pyarrow as pa
import pytest

import quiverlog
from quiverlog.cli import main
from quiverlog.cli.console.failures import ExitCode
from quiverlog.client.rows.metadata_columns import SqlFilter
from quiverlog.client.rows.sql_database import connect_duckdb
from quiverlog.client.tables.database import database_of
from quiverlog.client.tables.duckdb import open_database
from quiverlog.errors import InvalidArgument
from tests.support.scripted_broker import ScriptedBroker
from tests.support.sql_attacks import ALLOWED, EXPRESSIONS, STATEMENTS, laid_out


class NoTopics:
    """As much of a client as a database without tables asks."""

    def list_topics(self) -> list[str]:
        return []


CLIENT = cast("Any", NoTopics())


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with files; what it has afterwards was there before."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_statement_reaches_nothing_but_tables(directory: Path, statement: str) -> None:
    before = laid_out(directory)
    with open_database(CLIENT) as database, pytest.raises(duckdb.Error):
        database.sql(statement.format(directory)).fetchall()
    assert {path.name for path in directory.iterdir()} == before


def test_the_library_s_database_is_as_closed(directory: Path) -> None:
    before = laid_out(directory)
    done = []
    with database_of(CLIENT) as database:
        for statement in STATEMENTS:
            with contextlib.suppress(duckdb.Error):
                database.sql(statement.format(directory)).fetchall()
                done.append(statement)
    assert done == []
    assert {path.name for path in directory.iterdir()} == before


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_a_condition_reaches_nothing_but_its_columns(directory: Path, expression: str) -> None:
    before = laid_out(directory)
    with pytest.raises(InvalidArgument, match="where: "):
        SqlFilter(expression.format(directory), pa.schema({"x": pa.int64()}))
    assert {path.name for path in directory.iterdir()} == before


@pytest.mark.parametrize("statement", ALLOWED)
def test_what_asks_for_nothing_outside_goes_on(statement: str) -> None:
    with open_database(CLIENT) as database:
        assert database.sql(statement).fetchall()


def test_files_are_there_when_they_are_asked_for(directory: Path) -> None:
    laid_out(directory)
    for opened in (open_database(CLIENT, files=True), database_of(CLIENT, files=True)):
        with opened as database:
            assert database.sql(f"from '{directory}/in.csv'").fetchall() == [(1, 2)]
            database.sql(f"copy (select 1) to '{directory}/out.csv'")
            database.sql("set threads=1")
        assert (directory / "out.csv").exists()


def test_a_data_frame_is_a_table_when_registered() -> None:
    """A query does not find the variables of the code that asks it."""
    rows = pa.table({"x": [7]})
    with database_of(CLIENT) as database:
        with pytest.raises(duckdb.CatalogException):
            database.sql("select x from rows")
        database.register("mine", rows)
        assert database.sql("select x from mine").fetchall() == [(7,)]


def test_the_proxy_s_password_is_not_shown() -> None:
    """DuckDB takes the proxy from the environment of the process, once, when it is loaded."""
    program = (
        "from quiverlog.client.tables.duckdb import open_database\n"
        'shown = open_database(None, ()).sql("select value from duckdb_settings()").fetchall()\n'
        "assert 'secret-word' not in str(shown), shown"
    )
    environment = os.environ | {"HTTP_PROXY": "http://user:secret-word@127.0.0.1:1"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stderr.decode()


def test_what_memory_does_not_hold_is_refused_and_not_written(directory: Path) -> None:
    with connect_duckdb("SQL") as database:
        (spilling,) = database.sql("select current_setting('temp_directory')").fetchall()
    assert spilling == ("",)


@pytest.mark.parametrize("query", ["from t", "select n from t where _offset > 3"])
def test_a_topic_without_a_leader_is_the_client_s_error(
    capfd: pytest.CaptureFixture[str], query: str
) -> None:
    """DuckDB calls it an export that failed, as if the query were wrong."""
    with ScriptedBroker() as broker:
        with quiverlog.connect(broker.bootstrap) as client:
            client.create_topic("t", "n long", partitions=2)
        broker.leader_of = lambda _partition: -1
        where = ["-b", broker.bootstrap, "--timeout", "1"]
        printed = []
        for words in (["sql", query], ["consume", "t"]):
            assert main([*words, *where]) == ExitCode.FAILED
            printed.append(capfd.readouterr().err)
    for text in printed:
        # On a busy machine the time may end within a request: "No answer ... Before: ...".
        assert "t-0 has no leader" in text
        assert re.fullmatch(r"quiverlog: .* \[(NOT_LEADER 31|REQUEST_TIMED_OUT 60)\]\n", text)
