"""`quiverlog sql`: topics as tables of DuckDB (`client.tables`), queried once, repeatedly, or at a
prompt."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

import click

from quiverlog.cli.console.failures import CommandFailed, ExitCode, explain, one_line
from quiverlog.cli.console.interrupts import interrupts_carried_to
from quiverlog.cli.console.options import (
    bootstrap_option,
    debug_option,
    given_timeout_s,
    open_client,
)
from quiverlog.cli.console.spans import watch_option
from quiverlog.cli.console.terminal import clear_screen
from quiverlog.cli.formats.formats import FileKind
from quiverlog.cli.formats.memory_bound import bounded_memory, too_large
from quiverlog.cli.formats.output_file import check_free, force_option, output_kind
from quiverlog.client.base.arguments import counted
from quiverlog.errors import QuiverlogError, RequestTimedOut
from quiverlog.limits import FILE_MEMORY_BYTES_MAX, MIB
from quiverlog.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from quiverlog.client.client import Client

__all__ = ["sql"]

_FORMATS = ("table", "json", "csv", "tsv", "lines", "arrow", "parquet")
_ARROW = ("arrow", "arrow-file")
_FOR_PEOPLE = ("table", "json", "csv", "tsv", "lines")
_QUERY_CHARS_MAX: Final = 1 << 20
_BATCH_ROWS: Final = 1 << 16
_FILES_BATCH_ROWS: Final = 1 << 11
"""DuckDB's own unit of rows: a file may store one long value for all its rows."""
_FILES_MEMORY_BYTES_MAX: Final = FILE_MEMORY_BYTES_MAX * 3 // 2
"""Bound on the process: DuckDB's memory, and the rows that are written."""
_FILES_HINT: Final = (
    "A query reaches topics alone: --files lets it use files, the network, extensions and settings."
)
_AGAIN_S: Final = 0.05
_PROMPT: Final = "quiverlog> "
_MORE: Final = "      ...> "
_LEAVING: Final = ("exit", "quit", "\\q", ".exit", ".quit")
_HELP: Final = """\
.tables        list the topics: each is a table
.schema NAME   show the columns of a topic, and their types in SQL
.help          show this
exit           leave; so do quit and Ctrl-D

All else is SQL of DuckDB, at one or several lines, up to a semicolon:

  select * from NAME limit 10;
  select count(*) from NAME where _timestamp > now() - interval 1 hour;

Names with other signs than letters, digits and _ are put in "double quotes". Ctrl-C ends a query
that runs, or drops what was typed."""


@click.command()
@click.argument("query", required=False)
@click.option(
    "--format",
    "output_format",
    type=click.Choice(_FORMATS),
    help="[default: by the output's name, else table] As those of `consume`.",
)
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, allow_dash=True),
    default="-",
    help="Write to this file instead of stdout; its suffix names format and compression.",
)
@force_option
@watch_option
@click.option("--wide", is_flag=True, help="Cut nothing in a terminal's table.")
@click.option(
    "--files",
    is_flag=True,
    help="Let the query read and write files, use the network and load extensions of DuckDB.",
)
@bootstrap_option
@debug_option
def sql(
    query: str | None,
    output_format: str | None,
    output: str,
    force: bool,
    watch: float | None,
    wide: bool,
    files: bool,
    bootstrap: str,
    timeout_s: float,
) -> None:
    """Ask topics in SQL; without QUERY at a prompt (.help helps), or what comes from a pipe.

    Each topic is a table of DuckDB, with its columns and _partition, _offset and _timestamp (when
    the rows were sent). Columns that the query does not use are not decoded, and conditions on
    these three narrow what is fetched: `where _timestamp > now() - interval 1 hour` reads the last
    hour. A topic's own column of such a name goes before it. Names with other signs than letters,
    digits and _ are put in double quotes; of names that differ only in case DuckDB calls the second
    `name_1`. A name that a result has twice becomes `name` and `name_1`, but not in a table. Types
    that topics cannot have (spans of time) are written as text. Only with --files does the query
    reach files and the network: then its text must be trusted. Ctrl-C ends the query, at the prompt
    nothing else; so does --timeout, without a row of a topic or the result for that long. Needs
    DuckDB (the extra `sql`).

    \b
    quiverlog sql "select carrier, avg(delay) from flights group by 1" --watch 2s
    """
    kind = output_kind(output, output_format)
    if watch is not None and (query is None or output != "-" or kind.format not in _FOR_PEOPLE):
        raise click.UsageError("--watch is for a query, and for text on stdout.")
    check_free(output, force=force)
    bound = bounded_memory("the query", _FILES_MEMORY_BYTES_MAX) if files else nullcontext()
    with (
        open_client(bootstrap, timeout_s=timeout_s) as client,
        bound,
        _session(client, files) as session,
    ):
        session.output, session.kind, session.is_wide = output, kind, wide
        session.is_forced = force
        if query is not None:
            session.ask_again_and_again(query, watch)
        elif sys.stdin.isatty():
            session.prompt()
        else:
            piped = _piped()
            client.cluster.progressed()
            session.ask(piped)


def _piped() -> str:
    text = sys.stdin.read(_QUERY_CHARS_MAX + 1)
    if len(text) > _QUERY_CHARS_MAX:
        raise click.UsageError(f"A query has at most {_QUERY_CHARS_MAX} characters.")
    return text


@contextlib.contextmanager
def _session(client: Client, files: bool) -> Any:
    from quiverlog.client.tables.duckdb import open_database

    database = open_database(client, (), files=files)
    if files:
        # DuckDB spills to temporary files beyond this.
        database.execute(f"set memory_limit='{FILE_MEMORY_BYTES_MAX // MIB} MiB'")
    try:
        yield _Session(client, database, files)
    finally:
        database.close()


def _is_about_files(message: str) -> bool:
    table = re.search(r"Table with name (.+?) does not exist", message)
    if table is None:
        return "it exists in the " in message
    return "/" in table[1] or os.path.exists(table[1])


def _files_in(query: str) -> str:
    # The error does not name the file.
    named = [text for text in re.findall(r"'([^'\n]+)'", query) if os.path.isfile(text)]
    return ", ".join(dict.fromkeys(named)) or "the query"


def _as_sql(query: str) -> str:
    """Return the query that answers a command of the prompt, or `query` itself."""
    words = query.strip().rstrip(";").split()
    if not words or not words[0].startswith("."):
        if word := _word_of_no_statement(query):
            near = f" Did you mean `.{word}`?" if word in ("tables", "schema", "help") else ""
            text = f"No SQL begins with `{word}`; `.help` lists what can be typed.{near}"
            raise CommandFailed(text, ExitCode.USAGE)
        return query
    command, *names = words
    if command == ".tables" and not names:
        return "show tables"
    if command == ".schema" and len(names) == 1:
        name = names[0].strip('"').replace('"', '""')
        return f'select column_name as "column", column_type as "type" from (describe "{name}")'
    if command == ".schema":
        raise CommandFailed("Name one topic: `.schema NAME`.", ExitCode.USAGE)
    raise CommandFailed(
        f"`{query.strip()}` is no command: those are .tables, .schema NAME, .help and exit.",
        ExitCode.USAGE,
    )


def _statements(query: str) -> list[str]:
    import duckdb

    try:
        return [statement.query for statement in duckdb.extract_statements(query)]
    except duckdb.Error:
        return [query]


def _word_of_no_statement(typed: str) -> str:
    """Return the first word where no statement begins with it, else an empty text."""
    import duckdb

    first = typed.split(maxsplit=1)[:1]
    try:
        # Two brackets follow no first word: DuckDB refuses them, or the word.
        duckdb.extract_statements(f"{first[0]} ( (" if first else "")
    except duckdb.Error as error:
        refused = re.search(r'syntax error at or near "(.*)"', str(error))
        if refused is not None and refused[1] != "(" and first[0].startswith(refused[1]):
            return first[0].rstrip(";")
    return ""


class _Session:
    def __init__(self, client: Client, database: Any, files: bool) -> None:
        self._client = client
        self._database = database
        self._failures: list[QuiverlogError] = []
        self._files = files
        self._timeout_s = given_timeout_s()
        self._is_late = False
        self.output = "-"
        self.kind = FileKind("table")
        self.is_wide = False
        self.is_forced = False

    def ask(self, query: str) -> None:
        if query.strip() == ".help":
            print(_HELP)
            return
        query = _as_sql(query)
        is_file = self.output != "-" or self.kind.format not in _FOR_PEOPLE
        for statement in [query] if is_file else _statements(query):
            self._ask(statement)

    def _ask(self, query: str) -> None:
        self._failures.clear()
        self._make_tables(query)
        with self._own_errors(query), self._running():
            relation = self._database.sql(query)
            reader = None if relation is None else self._reader(relation)
        if reader is not None:
            self._write(reader, query)

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        """Let Ctrl-C and the end of `--timeout` interrupt DuckDB."""
        self._is_late = False
        over = threading.Event()

        def watch() -> None:
            cluster = self._client.cluster
            # Repeated: between two statements an interrupt has no effect on either.
            while not over.wait(max(_AGAIN_S, cluster.deadline_s - cluster.clock())):
                # Rows that were read meanwhile have moved the deadline.
                if cluster.clock() >= cluster.deadline_s:
                    self._is_late = True
                    self._database.interrupt()

        watching = threading.Thread(target=watch, name="quiverlog-sql", daemon=True)
        if self._timeout_s is not None:
            watching.start()
        try:
            with interrupts_carried_to(self._database.interrupt):
                yield
        finally:
            over.set()
            if self._timeout_s is not None:
                watching.join()

    @contextlib.contextmanager
    def _own_errors(self, query: str) -> Iterator[None]:
        import duckdb

        try:
            yield
        except (duckdb.Error, MemoryError, OSError) as error:
            if self._failures:  # A topic could not be read; DuckDB's error has only the text.
                raise self._failures[0] from error
            if self._is_late and "interrupt" in str(error).lower():
                raise CommandFailed(
                    f"No row of the result within {self._timeout_s:g} s, the query was ended: "
                    f"raise --timeout. [{RequestTimedOut.code_name()} {RequestTimedOut.code}]"
                ) from error
            # While rows are read, Arrow wraps DuckDB's errors.
            is_out_of_memory = isinstance(error, MemoryError) or "Out of Memory" in str(error)
            if is_out_of_memory and self._files:
                raise too_large(_files_in(query), _FILES_MEMORY_BYTES_MAX) from error
            if not isinstance(error, duckdb.Error):
                raise
            message = one_line(str(error).split("\n\n")[0])
            table = re.search(r"Table with name (.+?) does not exist", message)
            is_closed = isinstance(error, duckdb.PermissionException) or "been locked" in message
            if is_closed or (not self._files and _is_about_files(message)):
                message = f"{message.rstrip('.')}. {_FILES_HINT}"
            elif table is not None and not _is_about_files(message):
                # DuckDB proposes tables of its own.
                message = f"There is no table {table[1]}: each topic is one, `.tables` lists them."
            is_wrong = is_closed or isinstance(error, duckdb.ProgrammingError)
            raise CommandFailed(message, ExitCode.USAGE if is_wrong else ExitCode.FAILED) from error

    def ask_again_and_again(self, query: str, every_s: float | None) -> None:
        while True:
            if every_s is not None:
                clear_screen(sys.stdout)
            self.ask(query)
            if every_s is None:
                return
            sys.stdout.flush()
            time.sleep(every_s)
            self._client.cluster.progressed()

    def prompt(self) -> None:
        """Run each statement at its semicolon, until `exit` or the end of the input."""
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - gives input() a history and editing

        print(self._banner(), file=sys.stderr)
        typed = ""
        while True:
            try:
                line = input(_MORE if typed else _PROMPT)
            except EOFError:
                print()
                return
            except KeyboardInterrupt:
                print()
                typed = ""
                continue
            word = line.strip().rstrip(";").lower()
            if not typed and word in _LEAVING:
                return
            if not typed and word == "help":
                line = ".help"
            if typed and (word in _LEAVING or word == ".help"):
                print(
                    "quiverlog: a statement is begun: a semicolon ends it, Ctrl-C drops it.",
                    file=sys.stderr,
                )
            typed = f"{typed}\n{line}" if typed.strip() else line
            is_command = typed.lstrip().startswith(".")
            if (
                is_command
                or line.rstrip().endswith(";")
                or len(typed) > _QUERY_CHARS_MAX
                or _word_of_no_statement(typed)
            ):
                self._answer(typed)
                typed = ""

    def _banner(self) -> str:
        import duckdb

        topics = counted(len(self._client.list_topics()), "topic", "topics")
        return (
            f"quiverlog {VERSION}, SQL of DuckDB {duckdb.__version__}: {topics}, each a table."
            "\nType .tables to list them, a statement and a semicolon to run it, .help, or exit."
        )

    def _answer(self, typed: str) -> None:
        self._client.cluster.progressed()
        try:
            self.ask(typed)
        except Exception as error:  # The prompt outlives a failed statement.
            print(f"quiverlog: {one_line(explain(error)[0])}", file=sys.stderr)
        except KeyboardInterrupt:
            print("quiverlog: interrupted", file=sys.stderr)

    def _make_tables(self, query: str) -> None:
        from quiverlog.client.tables.duckdb import register_topics

        words = query.casefold()
        shows_all = "show" in words or "information_schema" in words or "duckdb_" in words
        topics = self._client.list_topics()
        wanted = [topic for topic in topics if shows_all or topic.casefold() in words]
        register_topics(self._database, self._client, wanted, self._failures)

    def _write(self, reader: pa.RecordBatchReader, query: str) -> None:
        from quiverlog.cli.formats.write_files import open_sink
        from quiverlog.cli.rows.sql_results import as_written, written_schema

        assert self.kind.format is not None
        if self.output == "-" and self.kind.format not in _FOR_PEOPLE and sys.stdout.isatty():
            raise CommandFailed(f"{self.kind.format} is not for terminals: give --output.")
        schema = written_schema(reader.schema, has_unique_names=self.kind.format != "table")
        is_cut = self.output == "-" and sys.stdout.isatty() and not self.is_wide
        sink_of = open_sink(
            self.output, self.kind.format, schema, compression=self.kind.compression, is_cut=is_cut,
            force=self.is_forced,
        )  # fmt: skip
        with sink_of as sink, self._own_errors(query):
            while (batch := self._next(reader)) is not None:
                if batch.num_rows:
                    sink.write(as_written(batch, schema))
                    self._client.cluster.progressed()

    def _reader(self, relation: Any) -> pa.RecordBatchReader:
        from quiverlog.cli.rows.sql_results import with_text

        relation = with_text(relation, keeps_spans=self.kind.format in _ARROW)
        return relation.to_arrow_reader(_FILES_BATCH_ROWS if self._files else _BATCH_ROWS)

    def _next(self, reader: pa.RecordBatchReader) -> pa.RecordBatch | None:
        with self._running():  # DuckDB computes a result while it is read.
            return next(iter(reader), None)
