"""The one type for settings, and that every key of every table is read by code that runs."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

import pytest

from pyspark_quiverlog.option_table import OPTIONS, Use
from quiverlog.broker_keys import CONFIG_KEYS
from quiverlog.core.controller.configs import CONFIG_DEFS, TopicConfig, check_configs
from quiverlog.errors import InvalidConfig
from quiverlog.server.config.config import BrokerConfig, load_config
from quiverlog.settings import InvalidValue, Kind, Setting, SettingsTable, markdown_table

ROOT = Path(__file__).resolve().parents[2]


def integer(**fields: int | bool) -> Setting:
    return Setting("a.b", Kind.INTEGER, "1", "A number.", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(("value", "expected"), [("7", 7), (7, 7), (" 1_000 ", 1_000), ("-1", -1)])
def test_integers(value: object, expected: int) -> None:
    assert integer(unlimited=True).parse(value) == expected


@pytest.mark.parametrize("value", ["", "x", "1.0", 1.0, True, None, "1__0", "٣", "0x10", "9" * 30])
def test_what_is_no_whole_number(value: object) -> None:
    with pytest.raises(InvalidValue, match=r"is .*, not a whole number"):
        integer().parse(value)


def test_ranges_name_what_is_allowed() -> None:
    with pytest.raises(InvalidValue, match=r"is 0, allowed is 1 to 9\."):
        integer(minimum=1, maximum=9).parse("0")
    with pytest.raises(InvalidValue, match=r"is -2, allowed is 5 or more, or -1 for no bound\."):
        integer(minimum=5, unlimited=True).parse("-2")


def test_choices_with_and_without_case() -> None:
    strict = Setting("a", Kind.CHOICE, "x", "A choice.", choices=("x", "y"))
    with pytest.raises(InvalidValue, match="is 'X', allowed are x, y"):
        strict.parse("X")
    lenient = dataclasses.replace(strict, ignore_case=True)
    assert lenient.parse(" Y ") == "y"


def test_a_table_finds_suggests_and_explains() -> None:
    table = SettingsTable(
        [Setting("maxRows", Kind.INTEGER, None, "Rows.", aliases=("rowsMax",)), integer()],
        absent={"acks": "is not there: use `durability`"},
        ignore_case=True,
    )
    assert table.find("MAXROWS") is table.find("rowsmax") is table["maxRows"]
    assert list(table) == ["maxRows", "a.b"]
    assert table.suggest("maxrow") == "maxRows"
    assert table.why_unknown("Acks") == "is not there: use `durability`"
    assert table.why_unknown("a.bb") == "there is no such key (is it `a.b`?)"
    assert table.why_unknown("colour") == "there is no such key"


def test_tables_refuse_to_contradict_themselves() -> None:
    with pytest.raises(AssertionError, match="twice"):
        SettingsTable([integer(), integer()])
    with pytest.raises(AssertionError):
        SettingsTable([integer()], absent={"a.b": "why"})
    with pytest.raises(InvalidValue):
        SettingsTable([Setting("a", Kind.INTEGER, "x", "A number.")])


def test_tables_for_people_escape_bars() -> None:
    assert markdown_table(("a",), [("x|y",)]) == "| a |\n|---|\n| x\\|y |\n"


# --- every key is read --------------------------------------------------------------------------
def attributes_read(*folders: str, but: tuple[str, ...]) -> set[str]:
    """Names of attributes that the code of these folders reads."""
    return {
        node.attr
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.name not in but
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }


def test_every_key_of_a_broker_is_read() -> None:
    read = attributes_read("broker/quiverlog/server", but=("config.py",))
    assert {s.field for s in CONFIG_KEYS.values()} - read == set()


def test_every_key_of_a_topic_is_read() -> None:
    folders = ("broker/quiverlog/node", "broker/quiverlog/core", "broker/quiverlog/storage")
    read = attributes_read(*folders, but=("configs.py",))
    fields = {field.name for field in dataclasses.fields(TopicConfig)}
    # Producers read the advised codec from the description of the topic, the others are read here.
    assert fields - read - {"compression"} == set()
    assert len(fields) == len(CONFIG_DEFS)
    assert "compression" in attributes_read("broker/quiverlog/client", but=())


def test_every_option_of_the_connector_is_read() -> None:
    read = attributes_read(
        "connector/pyspark_quiverlog", but=("options.py", "option_table.py", "option_types.py")
    )
    # Accepted, and of no effect.
    assert {s.field for s in OPTIONS.values()} - read == {"isolation_level"}


def test_what_does_not_exist_yet_is_refused_with_the_reason() -> None:
    key = "cleanup.policy"
    assert CONFIG_DEFS.find(key) is None
    assert len(CONFIG_DEFS.why_unknown(key)) > 20
    with pytest.raises(InvalidConfig, match="does not exist yet"):
        check_configs({key: "delete"})
    with pytest.raises(InvalidConfig, match="does not exist yet"):
        load_config(flags={f"topic.defaults.{key}": "delete"})


def test_the_typed_values_have_the_tables_fields() -> None:
    fields = {field.name for field in dataclasses.fields(BrokerConfig)} - {"topic_defaults"}
    # Keys that name a listener.
    fields -= {"listeners", "listeners_without_administration", "authentication"}
    fields -= {"listeners", "listeners_without_administration"}
    fields -= {"listeners_tls", "listeners_without_local_reads"}
    fields -= {"given"}  # All keys that were given.
    assert fields == {s.field for s in CONFIG_KEYS.values()}
    assert all(s.where in Use.ALL for s in OPTIONS.values())
