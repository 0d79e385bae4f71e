"""docs/cli.md, generated from the commands: `make docs` writes it, a test compares it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from quiverlog.cli.app import cli
from quiverlog.cli.console.failures import ExitCode

__all__ = ["render"]

_HEAD = """\
# The command line

Generated from the commands' own help by `make docs`; do not edit.

`quiverlog COMMAND --help` prints the same. Commands are nouns and verbs (`topic create`); flags
have the names of Kafka's tools where the meaning is the same. Results go to stdout, everything else
(progress, questions, errors) to stderr. An error is one line; `--debug` adds the traceback.
On a terminal control characters and those that turn text around are shown escaped, in every format;
a pipe or a file gets the data as they are, but for tables, which always show them escaped.
"""

_SHARED = {
    "bootstrap": "Any broker, or several; the rest is found from there. Left out: those of"
    " `--profile`, else of the environment variable `QUIVERLOG_BOOTSTRAP_SERVER`, else of the"
    " profile in use (`quiverlog profile`), else `127.0.0.1:9292`.",
    "timeout_s": "Give up after this long, all steps together; a transfer, after this long"
    " without a row. Not given: 10 s to reach a broker, 30 s for an answer, 120 s until rows"
    " are acknowledged. After two seconds a line on stderr names what is waited for, and until"
    " when.",
    "output_format": "`table` for people (the default), `json` for programs: one document,"
    " the same values unrounded.",
}
_SHARED_CHOICES = ("table", "json")
_SKIPPED = {"help"}


def render() -> str:
    return "".join(_page())


def _page() -> Iterator[str]:
    yield _HEAD
    yield "\n## Exit codes\n\n| code | meaning |\n|---|---|\n"
    for code in ExitCode:
        yield f"| {code.value} | {code.meaning} |\n"
    yield "\n## Options that many commands share\n\n| option | meaning |\n|---|---|\n"
    yield f"| `--bootstrap-server HOST:PORT,...`, `-b` | {_SHARED['bootstrap']} |\n"
    yield f"| `--timeout SECONDS` | {_SHARED['timeout_s']} |\n"
    yield f"| `--format table\\|json` | {_SHARED['output_format']} |\n"
    yield "| `--debug` | Show the traceback of an error. |\n"
    yield "| `--profile NAME`, before the command | Take the brokers' addresses from this profile;"
    yield " also the environment variable `QUIVERLOG_PROFILE`. |\n"
    with click.Context(cli, info_name="quiverlog") as root:
        for name in cli.list_commands(root):
            command = cli.get_command(root, name)
            assert command is not None
            yield from _command(command, root, name)


def _command(command: click.Command, parent: click.Context, name: str) -> Iterator[str]:
    with click.Context(command, info_name=name, parent=parent) as ctx:
        yield f"\n## {ctx.command_path}\n\n{_text(command)}\n"
        if isinstance(command, click.Group):
            for child_name in command.list_commands(ctx):
                child = command.get_command(ctx, child_name)
                assert child is not None
                if not child.hidden:
                    yield from _command(child, ctx, child_name)
            return
        usage = " ".join(command.collect_usage_pieces(ctx))
        yield f"\n```sh\n{ctx.command_path} {usage}\n```\n"
        rows = [_option(p, ctx) for p in command.params if _is_shown(p)]
        if rows:
            yield "\n| option | meaning |\n|---|---|\n" + "".join(rows)
        if shared := _shared(command):
            yield f"\nAlso {shared}.\n"


def _text(command: click.Command) -> str:
    text = inspect.cleandoc(command.help or "")
    paragraphs = []
    for paragraph in text.split("\n\n"):
        if paragraph.startswith("\b\n"):
            # A paragraph that click must not wrap is an example.
            paragraphs.append(f"```sh\n{paragraph[2:]}\n```")
        else:
            paragraphs.append(" ".join(paragraph.split()))
    return "\n\n".join(paragraphs)


def _is_shared(parameter: click.Parameter) -> bool:
    if parameter.name == "timeout_s":
        return parameter.default == 10.0
    if parameter.name == "output_format":
        kind = parameter.type
        return isinstance(kind, click.Choice) and tuple(kind.choices) == _SHARED_CHOICES
    return parameter.name == "bootstrap" and not parameter.required


def _is_shown(parameter: click.Parameter) -> bool:
    return (
        isinstance(parameter, click.Option)
        and not parameter.hidden
        and parameter.name not in _SKIPPED
        and not _is_shared(parameter)
    )


def _shared(command: click.Command) -> str:
    names = [max(p.opts, key=len) for p in command.params if _is_shared(p)]
    return ", ".join(f"`{name}`" for name in names)


def _option(parameter: click.Parameter, ctx: click.Context) -> str:
    record = parameter.get_help_record(ctx)
    assert record is not None
    spelling, meaning = (part.replace("|", "\\|") for part in record)
    meaning = " ".join(meaning.split()).replace("] [", "; ")  # two in a row are a link
    return f"| `{spelling}` | {meaning} |\n"
