"""`quiverlog sql` and `client.duckdb()`: topics as tables, and no more of them than needed."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import quiverlog
from quiverlog.cli import main
from quiverlog.cli.console.failures import ExitCode
from tests.integration.test_cli_pipes import SCRIPT, until
from tests.support.broker import BrokerProcess
from tests.support.sql_attacks import STATEMENTS, laid_out

pytestmark = pytest.mark.process

MEASURED = """
import re, sys
from quiverlog.cli import main
code = main(sys.argv[1:])
print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
sys.exit(code)
"""

ROWS = [{"carrier": "UA" if i % 2 else "DL", "delay": float(i)} for i in range(10)]


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess() as process, quiverlog.connect(process.bootstrap) as client:
        for topic in ("flights", "my-topic"):
            client.create_topic(topic, "carrier string, delay double", partitions=2)
            with client.producer(topic, batch_rows=2) as producer:
                producer.send(ROWS, partition=0)
        yield process


def answer(broker: BrokerProcess, capfd: Any, *words: str) -> tuple[int, str, str]:
    code = main(["sql", *words, "-b", broker.bootstrap])
    captured = capfd.readouterr()
    return code, captured.out, captured.err


def lines(broker: BrokerProcess, capfd: Any, query: str, *words: str) -> list[Any]:
    code, out, err = answer(broker, capfd, query, "--format", "json", *words)
    assert code == 0, err
    return [json.loads(line) for line in out.splitlines()]


def test_topics_are_tables(broker, capfd):
    query = "select carrier, avg(delay) as late, count(*) as n from flights group by 1 order by 1"
    expected = [{"carrier": "DL", "late": 4.0, "n": 5}, {"carrier": "UA", "late": 5.0, "n": 5}]
    assert lines(broker, capfd, query) == expected
    young = "select count(*) as n from flights where _timestamp > now() - interval 1 hour"
    assert lines(broker, capfd, young) == [{"n": 10}]
    quoted = 'select max(a.delay) as m from "my-topic" a join flights b using (delay)'
    assert lines(broker, capfd, quoted) == [{"m": 9.0}]
    names = [row["name"] for row in lines(broker, capfd, "show tables")]
    assert {"flights", "my-topic"} <= set(names)


def test_only_the_offsets_of_the_condition_are_fetched(broker, monkeypatch):
    planned = []
    from quiverlog.client.consumer import reading

    class Spied(reading.Reading):
        def __init__(self, plan: Any, *rest: Any) -> None:
            planned.append(plan)
            super().__init__(plan, *rest)

    monkeypatch.setattr(reading, "Reading", Spied)
    with quiverlog.connect(broker.bootstrap) as client, client.duckdb() as database:
        query = "select sum(delay) from flights where _partition = 0 and _offset between 4 and 6"
        assert database.sql(query).fetchall() == [(15.0,)]
        assert planned[-1].ranges == {0: (4, 7)}
        assert planned[-1].options.reader_schema.names == ["delay"]
        late = (
            "select count(*) from flights where _timestamp > timestamptz '2100-01-01 00:00:00+00'"
        )
        assert database.sql(late).fetchall() == [(0,)]
        assert planned[-1].ranges == {}


def test_formats_and_files(broker, capfd, tmp_path):
    query = "select carrier, sum(delay) s from flights group by all order by 1"
    assert answer(broker, capfd, query, "--format", "csv")[1] == '"carrier","s"\n"DL",20\n"UA",25\n'
    path = tmp_path / "late.parquet"
    assert answer(broker, capfd, query, "-o", str(path))[0] == 0
    assert lines(broker, capfd, f"from '{path}'", "--files") == lines(broker, capfd, query)
    assert "carrier" in answer(broker, capfd, query)[1], "a table"
    assert lines(broker, capfd, "select 1::utinyint u, 'a'::enum('a', 'b') e") == [
        {"u": 1, "e": "a"}
    ]


@pytest.mark.parametrize("statement", STATEMENTS[::8])  # all of them: test_sql_database.py
def test_a_query_reaches_topics_alone(broker, capfd, tmp_path, monkeypatch, statement):
    monkeypatch.chdir(tmp_path)
    before = laid_out(tmp_path)
    code, out, err = answer(broker, capfd, statement.format(tmp_path))
    assert (code in (ExitCode.USAGE, ExitCode.FAILED), out, err.count("\n")) == (True, "", 1), err
    assert {path.name for path in tmp_path.iterdir()} == before


def test_the_refusal_names_the_remedy(broker, capfd, tmp_path):
    laid_out(tmp_path)
    for query in (f"from '{tmp_path}/in.csv'", "set memory_limit='1TB'", "load httpfs"):
        code, _, err = answer(broker, capfd, query)
        assert (code, "--files" in err) == (ExitCode.USAGE, True), err
    query = f"select x from '{tmp_path}/in.csv' join flights on delay = y"
    assert lines(broker, capfd, query, "--files") == [{"x": 1}]
    own = tmp_path / "own.csv"  # the command's own output is not the query's
    assert answer(broker, capfd, "select 1 as x", "-o", str(own))[0] == 0
    assert own.read_text().split() == ['"x"', "1"]


@pytest.mark.parametrize(
    ("chars", "rows", "ending"),
    [
        (1 << 20, 2_100, ".parquet"),
        pytest.param(32 << 10, 65_536, ".parquet", marks=pytest.mark.long),
        pytest.param(1 << 20, 2_100, ".csv", marks=pytest.mark.long),
    ],
)
def test_two_gigabytes_of_text_in_a_small_file_are_bounded(broker, tmp_path, chars, rows, ending):
    file = tmp_path / "small.parquet"
    column = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), ["x" * chars])
    pq.write_table(pa.table({"s": column}), file, compression="zstd", store_schema=False)
    assert file.stat().st_size < 5 << 10
    output = os.devnull if ending == ".csv" else str(tmp_path / "out.parquet")
    form = ["--format", ending[1:], "-o", output]
    words = ["sql", f"from '{file}'", "--files", *form, "-b", broker.bootstrap]
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *words], capture_output=True, text=True, timeout=120
    )
    peak_kib = int(done.stdout.split()[-1])
    assert peak_kib < 2 << 20, done.stderr
    if done.returncode:
        assert done.stderr.count("\n") == 1
        assert done.stderr.startswith(f"quiverlog: {file}: reading it takes more than 1536 MiB"), (
            done.stderr
        )
    assert (done.returncode == 0) == (chars == 32 << 10), done.stderr


@pytest.mark.parametrize("query", ["selct 1", "select nope from flights", "from no_such_topic"])
def test_what_duckdb_refuses_is_one_line(broker, capfd, query):
    code, out, err = answer(broker, capfd, query)
    assert (code, out, err.count("\n")) == (ExitCode.USAGE, "", 1), err


@pytest.mark.parametrize(
    ("query", "names_files"),
    [
        ("from '/etc/passwd'", True),
        ("from './nope'", True),
        ("from 'here'", True),
        ("from 'here.csv'", True),
        ("from sqlite_scan('a', 'b')", True),
        ("from 'not_here'", False),
        ("from no_such_topic", False),
    ],
)
def test_what_only_files_would_allow_is_refused_with_the_option(
    broker, capfd, tmp_path, monkeypatch, query, names_files
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").write_text("a\n1\n")
    code, out, err = answer(broker, capfd, query)
    assert (code, out, err.count("\n")) == (ExitCode.USAGE, "", 1), err
    assert ("--files lets it use files" in err) == names_files
    assert "--files lets" not in answer(broker, capfd, query, "--files")[2]


def test_the_end_of_the_process_prints_nothing(broker):
    """What DuckDB finds left of itself at the end it lists on stderr."""
    command = [sys.executable, "-m", "quiverlog", "sql", "select count(*) as n from flights"]
    done = subprocess.run([*command, "-b", broker.bootstrap], capture_output=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, b"")


def test_options_that_contradict(broker, capfd):
    for words in (["--watch", "2s"], ["select 1", "--watch", "2s", "-o", "x.csv"]):
        assert answer(broker, capfd, *words)[0] == ExitCode.USAGE
    code, _, err = answer(broker, capfd, "select 1", "--watch", "soon")
    assert (code, "2s" in err) == (ExitCode.USAGE, True)


def test_a_query_may_come_by_a_pipe(broker, capfd, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("select count(*) as n from flights"))
    assert answer(broker, capfd, "--format", "json")[1] == '{"n":10}\n'


def test_each_of_several_statements_is_answered(broker, capfd, tmp_path):
    two = "select 'a;b' as x; select count(*) as n from flights;"
    assert lines(broker, capfd, two) == [{"x": "a;b"}, {"n": 10}]
    assert answer(broker, capfd, "select 1 as a; nonsense")[1] == ""
    path = tmp_path / "last.jsonl"
    assert answer(broker, capfd, two, "-o", str(path))[0] == 0
    assert path.read_text() == '{"n":10}\n'


def test_watch_asks_again_until_it_is_ended(broker):
    words = ["sql", "select count(*) n from flights", "--format", "json", "--watch", "50ms"]
    command = [sys.executable, "-c", SCRIPT, *words, "-b", broker.bootstrap]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert [process.stdout.readline() for _ in range(3)] == [b'{"n":10}\n'] * 3
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, err.strip()) == (ExitCode.INTERRUPTED, b"quiverlog: interrupted")


@pytest.mark.parametrize("timeout", [[], ["--timeout", "100"]])
@pytest.mark.parametrize("is_prompt", [False, True])
def test_ctrl_c_ends_a_query_that_would_take_for_ever(broker, tmp_path, is_prompt, timeout):
    """DuckDB itself hangs when Python passes it Ctrl-C while it joins in nested loops."""
    begun = tmp_path / "begun.csv"
    query = (
        "create table b as select (hash(range) % 1000000)::int as n from range(1400000);"
        f"copy (select 1) to '{begun}';"
        "select count(*) from b x, b y where x.n < y.n;"
    )
    words = ["sql", "--files", "-b", broker.bootstrap, *timeout, *([] if is_prompt else [query])]
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", SCRIPT, *words]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        try:
            if is_prompt:
                os.write(ours, query.encode() + b"\n")
            until(begun.exists)
            process.send_signal(signal.SIGINT)
            if is_prompt:
                os.write(ours, b"exit\n")
            assert process.wait(60) == (0 if is_prompt else ExitCode.INTERRUPTED)
        finally:
            process.kill()
            os.close(ours)
            os.close(theirs)


HEAVY = "select sum(hash(a.range + b.range) % 7) from range(1_000) a, range(3_600_000) b"
"""A minute of one processor or more, then it ends by itself."""


@pytest.mark.parametrize("words", [[HEAVY], ["-o", "PATH", f"select 1; {HEAVY}"], []])
def test_the_timeout_ends_a_query(broker, tmp_path, words):
    words = [str(tmp_path / "x.csv") if word == "PATH" else word for word in words]
    piped = None if words else f"{HEAVY};".encode()
    command = [sys.executable, "-m", "quiverlog", "sql", *words, "-b", broker.bootstrap]
    begun_s = time.monotonic()
    done = subprocess.run(
        [*command, "--timeout", "5"], input=piped, capture_output=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (ExitCode.FAILED, b""), done.stderr
    assert time.monotonic() - begun_s < 30.0, "the query takes longer"
    printed = done.stderr.decode()
    assert "No row of the result within 5 s, the query was ended: raise --timeout." in printed
    assert printed.count("\n") == 1


def test_a_query_that_is_done_in_time_is_answered(broker, capfd):
    assert lines(broker, capfd, "select count(*) n from flights", "--timeout", "60") == [{"n": 10}]


def test_a_timeout_is_for_one_question_of_a_prompt(broker):
    command = [sys.executable, "-c", SCRIPT, "sql", "-b", broker.bootstrap, "--timeout", "5"]
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        try:
            os.write(ours, f"{HEAVY};\n".encode())
            printed = b""
            while b"was ended" not in printed:
                printed += os.read(ours, 65_536)
            os.write(ours, b"select count(*) + 1000 n from flights;\nexit\n")
            while b"1010" not in printed:
                printed += os.read(ours, 65_536)
            assert process.wait(60) == 0
        finally:
            process.kill()
            os.close(ours)
            os.close(theirs)


def test_a_name_that_a_result_has_twice(broker, capfd, tmp_path):
    """As DuckDB itself names the columns of a data frame; a table shows what was asked for."""
    query = "select 1 a, 2 a, 3 a_1, 4 a_1, 5 a"
    numbered = {"a": 1, "a_1": 2, "a_1_1": 3, "a_1_2": 4, "a_2": 5}
    assert list(duckdb.sql(query).df()) == list(numbered)
    assert lines(broker, capfd, query) == [numbered]
    for name in ("x.csv", "x.parquet", "x.arrow"):
        assert answer(broker, capfd, query, "-o", str(tmp_path / name))[0] == 0
    assert lines(broker, capfd, f"from '{tmp_path / 'x.parquet'}'", "--files") == [numbered]
    assert lines(broker, capfd, f"from '{tmp_path / 'x.csv'}'", "--files") == [numbered]
    assert answer(broker, capfd, "select 1 a, 2 a")[1] == "a  a\n1  2\n"


def test_all_columns_of_a_join(broker, capfd):
    query = 'select * from flights f join "my-topic" m using (_offset) where f.delay = 3'
    (row,) = lines(broker, capfd, query)
    names = ["carrier", "delay", "_partition", "_offset", "_timestamp"]
    again = ["carrier_1", "delay_1", "_partition_1", "_timestamp_1"]
    assert list(row) == [*names, *again]
    assert (row["carrier"], row["delay_1"], row["_partition_1"]) == ("UA", 3.0, 0)


def test_the_prompt(broker):
    command = [sys.executable, "-c", SCRIPT, "sql", "-b", broker.bootstrap, "--format", "json"]
    ours, theirs = pty.openpty()

    def answered(typed: str, *texts: str) -> None:
        os.write(ours, f"{typed}\n".encode() if typed else b"")
        printed = b""  # What was typed comes back, too, before the answer.
        while not all(text.encode() in printed for text in texts):
            printed += os.read(ours, 65_536)

    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        try:
            answered("", "quiverlog 0.1.0, SQL of DuckDB", "topics, each a table", "quiverlog> ")
            answered("select count(*) as n\nfrom flights;", '{"n":10}')
            answered(".tables", '{"name":"flights"}', '{"name":"my-topic"}')
            answered("help", ".schema NAME   show", "leave; so do quit")
            answered("flights", "No SQL begins with `flights`;", "quiverlog> ")
            answered("select", "...> ")
            answered("exit", "a semicolon ends it, Ctrl-C drops it")
            answered("from nowhere;", "quiverlog: There is no table", "quiverlog> ")
            os.write(ours, b"exit\n")
            assert process.wait(60) == 0
        finally:
            process.kill()
            os.close(ours)
            os.close(theirs)


def test_commands_of_the_prompt_are_queries_too(broker, capfd):
    assert {"name": "flights"} in lines(broker, capfd, ".tables")
    described = [
        {"column": "carrier", "type": "VARCHAR"},
        {"column": "delay", "type": "DOUBLE"},
        {"column": "_partition", "type": "INTEGER"},
        {"column": "_offset", "type": "BIGINT"},
        {"column": "_timestamp", "type": "TIMESTAMP WITH TIME ZONE"},
    ]
    for named in ("my-topic", '"my-topic"', "MY-TOPIC;"):
        assert lines(broker, capfd, f".schema {named}") == described


@pytest.mark.parametrize(
    ("typed", "reason"),
    [
        (
            "tables",
            "No SQL begins with `tables`; `.help` lists what can be typed. Did you mean `.t",
        ),
        (
            "quiverlog topic list",
            "No SQL begins with `quiverlog`; `.help` lists what can be typed.",
        ),
        ("\\d", "No SQL begins with `\\d`"),
        (".schema", "Name one topic: `.schema NAME`."),
        (".schema a b", "Name one topic"),
        (".schema nowhere", "There is no table nowhere: each topic is one, `.tables` lists them."),
        (".tables flights", "`.tables flights` is no command: those are .tables, .schema NAME, .h"),
    ],
)
def test_what_is_no_sql(broker, capfd, typed, reason):
    code, out, err = answer(broker, capfd, typed)
    assert (code, out) == (ExitCode.USAGE, "")
    assert err.startswith(f"quiverlog: {reason}")


@pytest.mark.parametrize("begun", ["select", "(select", "with", "from", "explain", "-- note", "/*"])
def test_what_begins_a_statement_waits_for_its_end(broker, capfd, begun):
    assert "No SQL" not in answer(broker, capfd, begun)[2]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("max(_timestamp) - max(_timestamp) + interval 90 minute", "01:30:00"),
        ("timetz '10:00:00+02'", "10:00:00+02"),
        ("'101'::bit", "101"),
        ("union_value(a := 'x')", "x"),
        ("[interval 1 day, null]", ["1 day", None]),
        ("{'interval': {'x': interval 1 day}, 'b': 1}", {"interval": {"x": "1 day"}, "b": 1}),
        ("map {1: timetz '10:00:00+02'}", [[1, "10:00:00+02"]]),
        ("array_value(interval 1 day)", ["1 day"]),
    ],
)
def test_types_that_only_duckdb_has_are_written_as_its_text(broker, capfd, tmp_path, value, text):
    query = f'select {value} as "a ""b""", 2 as n from flights limit 1'
    assert lines(broker, capfd, query) == [{'a "b"': text, "n": 2}]
    for name in ("x.csv", "x.parquet", "x.arrow"):
        code, _, err = answer(broker, capfd, query, "-o", str(tmp_path / name))
        assert code == 0, err
    code, out, _ = answer(broker, capfd, f"select {value} as n, 2 as n from flights limit 1")
    assert (code, out.splitlines()[0].split()) == (0, ["n", "n"]), "a table may have a name twice"


def test_a_span_keeps_its_order_and_in_arrow_its_type(broker, capfd, tmp_path):
    query = "select delay * interval 1 minute as late from flights where delay < 3 order by 1 desc"
    texts = [row["late"] for row in lines(broker, capfd, query)]
    assert texts == ["00:02:00", "00:01:00", "00:00:00"]
    file = tmp_path / "x.arrow"
    assert answer(broker, capfd, query, "-o", str(file))[0] == 0
    with pa.ipc.open_file(file) as reader:
        assert reader.schema.field("late").type == pa.month_day_nano_interval()


@pytest.mark.parametrize("form", ["json", "csv", "table", "parquet", "arrow"])
def test_nanoseconds_are_refused_by_their_column(broker, capfd, tmp_path, form):
    query = "select timestamp_ns '2024-01-01 00:00:00.000000001' as at"
    words = (query, "--format", form, "-o", str(tmp_path / "x"))
    code, _, err = answer(broker, capfd, *words)
    assert code == ExitCode.FAILED
    assert "Column 'at' (timestamp[ns]) has a value that timestamp[us] cannot hold" in err
    assert "internal error" not in err


@pytest.mark.parametrize("form", ["json", "csv", "table", "parquet", "arrow"])
@pytest.mark.parametrize("value", ["time '24:00:00'", "[time '24:00:00']", "{'x': time '24:00'}"])
def test_the_end_of_a_day_is_refused_by_its_column(broker, capfd, tmp_path, form, value):
    """Only DuckDB has it: Arrow and Parquet end at 23:59:59.999999."""
    words = ("--format", form, "-o", str(tmp_path / "x"), "--force")
    code, _, err = answer(broker, capfd, f"select {value} as at", *words)
    assert (code, "Column 'at'" in err, "::text" in err) == (ExitCode.FAILED, True, True), err
    assert answer(broker, capfd, "select time '23:59:59.999999' as at", *words)[0] == 0
    assert answer(broker, capfd, f"select {value}::text as at", *words)[0] == 0
