"""`consume` of a topic whose columns are named like the places of rows: nothing is there twice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

import quiverlog
from quiverlog.cli import main
from quiverlog.cli.console.failures import ExitCode
from tests.support.broker import BrokerProcess

pytestmark = pytest.mark.process

ROW = {"id": 7, "_offset": 500, "_topic": "mine"}


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess() as process, quiverlog.connect(process.bootstrap) as client:
        client.create_topic("own", "id long, _offset long, _topic string")
        with client.producer("own") as producer:
            producer.send([ROW])
        yield process


def consumed(broker: BrokerProcess, capfd: Any, *words: str) -> str:
    code = main(["consume", "own", *words, "-b", broker.bootstrap])
    captured = capfd.readouterr()
    assert code == 0, captured.err
    return captured.out


@pytest.mark.parametrize("where", [(), ("--where", "_offset = 500 and _partition = 0")], ids=str)
def test_metadata_beside_own_columns(broker: BrokerProcess, capfd: Any, where: tuple[str, ...]):
    row = json.loads(consumed(broker, capfd, "--format", "json", "--metadata", *where))
    assert list(row) == [*ROW, "_partition", "_timestamp"]
    assert {name: row[name] for name in ROW} == ROW
    chosen = consumed(broker, capfd, "--format", "json", "--metadata", "--columns", "id", *where)
    assert list(json.loads(chosen)) == ["id", "_partition", "_timestamp"]
    head = consumed(broker, capfd, "--format", "csv", "--metadata", *where).splitlines()[0]
    assert head == '"id","_offset","_topic","_partition","_timestamp"'


def test_a_condition_without_metadata_shows_the_rows_as_they_are(broker: BrokerProcess, capfd: Any):
    assert json.loads(consumed(broker, capfd, "--format", "json", "--where", "id = 7")) == ROW
    assert consumed(broker, capfd, "--format", "json", "--where", "_offset = 0") == ""


def test_a_template_takes_columns_by_name_and_refuses_hidden_places(
    broker: BrokerProcess, capfd: Any
):
    assert consumed(broker, capfd, "--template", "%{_offset} %{_topic} %p") == "500 mine 0\n"
    code = main(["consume", "own", "--template", "%o", "-b", broker.bootstrap])
    assert (code, "'_offset' of its own" in capfd.readouterr().err) == (ExitCode.USAGE, True)
    code = main(["consume", "own", "--template", "%{nope}", "-b", broker.bootstrap])
    assert "they have id, _offset, _topic, _partition, _timestamp." in capfd.readouterr().err
    assert code == ExitCode.USAGE


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), "--metadata adds it to each row"),
        (("--metadata",), "--metadata adds it: leave it out of --columns"),
    ],
)
def test_places_among_the_columns_are_refused_with_their_origin(
    broker: BrokerProcess, capfd: Any, words: tuple[str, ...], reason: str
):
    code = main(["consume", "own", "--columns", "id,_timestamp", *words, "-b", broker.bootstrap])
    err = capfd.readouterr().err
    assert code == ExitCode.FAILED
    assert f"_timestamp is no column of topic 'own': {reason}." in err
    chosen = consumed(broker, capfd, "--format", "json", "--columns", "_offset")
    assert json.loads(chosen) == {"_offset": 500}


def test_several_topics_with_the_same_columns(broker: BrokerProcess, capfd: Any) -> None:
    with quiverlog.connect(broker.bootstrap) as client:
        client.create_topic("more", "id long, _offset long, _topic string, x long")
        with client.producer("more") as producer:
            producer.send([ROW | {"x": 1}])
    assert main(["consume", "own", "more", "-b", broker.bootstrap]) == ExitCode.FAILED
    assert "'own' and 'more' have different columns" in capfd.readouterr().err
    lines = consumed(broker, capfd, "more", "--columns", "id", "--format", "json").splitlines()
    assert [json.loads(line) for line in lines] == [{"id": 7}, {"id": 7}]
    out = consumed(broker, capfd, "more", "--columns", "id", "--from", "latest", "--to", "latest")
    assert "7" not in out


def test_a_group_commits_what_was_written(broker: BrokerProcess, capfd: Any) -> None:
    with quiverlog.connect(broker.bootstrap) as client:
        client.create_topic("shared", "id long")
        with client.producer("shared") as producer:
            producer.send([{"id": number} for number in range(5)])

    def shared(*words: str) -> list[int]:
        code = main(["consume", "shared", "-g", "g", "--format", "json", *words, "-b", bootstrap])
        captured = capfd.readouterr()
        assert code == 0, captured.err
        return [json.loads(line)["id"] for line in captured.out.splitlines()]

    bootstrap = broker.bootstrap
    assert shared("-n", "2") == [0, 1]
    assert shared() == [2, 3, 4]
    assert shared() == []
