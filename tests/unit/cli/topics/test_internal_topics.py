"""Which commands show and touch the cluster's own topics without being asked for them."""

from __future__ import annotations

import json
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from quiverlog.cli.topics import partition as partition_commands
from quiverlog.cli.topics import topic as topic_commands
from quiverlog.client.base.results import PartitionInfo, TopicInfo
from quiverlog.types import Compression, Durability


def info(name: str) -> TopicInfo:
    return TopicInfo(
        name, b"\1" * 16, 1, (), Durability.FLUSHED, 1, Compression.NONE,
        (PartitionInfo(0, 1, 1, (1,), (1,)),), is_internal=name.startswith("__"),
    )  # fmt: skip


class Client:
    """One topic of a user, and one of the cluster."""

    def __init__(self) -> None:
        self.elected: list[str] = []

    def metadata(self) -> Any:
        return SimpleNamespace(topics={name: info(name) for name in ("flights", "__staged")})

    def list_topics(self, *, internal: bool = False) -> list[str]:
        return ["__staged", "flights"] if internal else ["flights"]

    def elect_leaders(self, topic: str, _partitions: Any, *, unclean: bool) -> dict[int, int]:
        self.elected.append(topic)
        return {0: 1}


@pytest.mark.parametrize(
    ("given", "shown"), [([], ["flights"]), (["--internal"], ["__staged", "flights"])]
)
def test_a_list_has_them_when_asked(
    given: list[str], shown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_commands, "open_client", lambda *_, **__: nullcontext(Client()))
    result = CliRunner().invoke(topic_commands.topic, ["list", *given, "--format", "json"])
    assert result.exit_code == 0
    assert [one["name"] for one in json.loads(result.stdout)] == shown


@pytest.mark.parametrize(
    ("given", "elected"),
    [
        ([], ["__staged", "flights"]),
        (["--unclean", "--yes"], ["flights"]),
        (["__staged", "--unclean", "--yes"], ["__staged"]),
    ],
)
def test_an_unclean_election_of_all_topics_leaves_them_out(
    given: list[str], elected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client()
    monkeypatch.setattr(partition_commands, "open_client", lambda *_, **__: nullcontext(client))
    result = CliRunner().invoke(partition_commands.partition, ["elect", *given])
    assert result.exit_code == 0
    assert client.elected == elected
