"""docs/kafka-users.md: every command, option and Spark option that it names here exists."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from pyspark_quiverlog.option_table import OPTIONS
from quiverlog.cli.app import cli

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "kafka-users.md").read_text()


def cells(heading: str, column: int) -> list[str]:
    """One column of the table below a heading, without its head."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in section.splitlines() if line[:1] == "|"]
    assert len(rows) > 10
    return [row[column] for row in rows[2:]]


def ours() -> list[str]:
    return cells("kcat", 1) + cells("rpk and Kafka's tools", 2)


def command_of(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that the words begin with, and the words after it."""
    command: click.Command = cli
    with click.Context(cli) as ctx:
        while isinstance(command, click.Group) and words:
            found = command.get_command(ctx, words[0])
            assert found is not None, words
            command, words = found, words[1:]
    return command, words


def options_of(command: click.Command) -> set[str]:
    return {spelling for p in command.params for spelling in p.opts}


def test_every_command_exists_with_its_options() -> None:
    named = [text for cell in ours() for text in re.findall(r"`quiverlog ([^`]+)`", cell)]
    assert len(named) > 20
    for text in named:
        command, rest = command_of(re.sub(r"'[^']*'", "X", text).split())
        given = {word for word in rest if word.startswith("-") and word != "-"}
        assert given <= options_of(command), text


def test_every_option_alone_is_one_of_produce_or_consume() -> None:
    known = options_of(command_of(["produce"])[0]) | options_of(command_of(["consume"])[0])
    named = [text for cell in ours() for text in re.findall(r"`(--?[\w-]+)", cell)]
    assert len(named) > 15
    assert set(named) <= known


@pytest.mark.parametrize("row", range(len(cells("Spark's Kafka source and sink", 0))))
def test_every_option_of_spark_is_one_of_the_data_source(row: int) -> None:
    theirs = cells("Spark's Kafka source and sink", 0)[row]
    mine = cells("Spark's Kafka source and sink", 1)[row]
    same = mine.strip() == "the same"
    names = re.findall(r"`([\w.]+)`", theirs if same else mine)
    assert names or "–" in mine
    known = set(OPTIONS)
    assert set(names) <= known
