"""Commands that operate a cluster can all be read by programs."""

from __future__ import annotations

import click
import pytest

from quiverlog.cli.app import cli


def commands_of(group: click.Group, path: str) -> list[tuple[str, click.Command]]:
    found = []
    for name, one in group.commands.items():
        inner = f"{path} {name}"
        found += commands_of(one, inner) if isinstance(one, click.Group) else [(inner, one)]
    return found


@pytest.mark.parametrize("noun", ["cluster", "partition", "quorum", "config", "topic"])
def test_every_command_about_a_cluster_has_a_format_for_programs(noun: str) -> None:
    group = cli.get_command(click.Context(cli), noun)
    assert isinstance(group, click.Group)
    commands = commands_of(group, noun)
    assert commands
    assert [
        path
        for path, one in commands
        if not any("--format" in option.opts for option in one.params)
    ] == []
