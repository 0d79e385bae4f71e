"""The root of the command line: the table of commands, `--version`, `--debug`, shell completion.

A command's module is imported when the command is called or listed, never before.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import click

from quiverlog.cli.console.failures import ExitCode, report
from quiverlog.cli.console.streams import flush_output, prepare_streams

__all__ = ["cli", "completion", "run"]


_COMMANDS = {
    "broker": "quiverlog.cli.tools.broker:broker",
    "topic": "quiverlog.cli.topics.topic:topic",
    "partition": "quiverlog.cli.topics.partition:partition",
    "cluster": "quiverlog.cli.cluster.cluster:cluster",
    "quorum": "quiverlog.cli.cluster.quorum:quorum",
    "config": "quiverlog.cli.cluster.config:config",
    "acl": "quiverlog.cli.cluster.acl:acl",
    "transaction": "quiverlog.cli.cluster.transaction:transaction",
    "group": "quiverlog.cli.cluster.group:group",
    "produce": "quiverlog.cli.rows.produce:produce",
    "consume": "quiverlog.cli.rows.consume:consume",
    "sql": "quiverlog.cli.rows.sql:sql",
    "replay": "quiverlog.cli.rows.replay:replay",
    "perf": "quiverlog.cli.rows.perf:perf",
    "dump-log": "quiverlog.cli.tools.dump_log:dump_log",
    "doctor": "quiverlog.cli.tools.doctor:doctor",
    "secret": "quiverlog.cli.tools.secret:secret",
    "user": "quiverlog.cli.security.user:user",
    "token": "quiverlog.cli.security.token:token",
    "quota": "quiverlog.cli.security.quota:quota",
    "whoami": "quiverlog.cli.security.user:whoami",
    "security": "quiverlog.cli.tools.security:security",
    "profile": "quiverlog.cli.tools.profile:profile",
    "docs": "quiverlog.cli.tools.docs:docs",
    "demo": "quiverlog_demo.command:demo",
    "dev": "quiverlog.cli.tools.dev:dev",
    "completion": "quiverlog.cli.app:completion",
}


class LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        target = _COMMANDS.get(cmd_name)
        if target is None:
            return None
        module, _, attribute = target.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            return report(error)  # click itself would exit with 1

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[Any, Any, list[str]]:
        if args and args[0] not in _COMMANDS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], _COMMANDS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"No such command {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from quiverlog.version import VERSION

        click.echo(f"quiverlog {VERSION}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    name="quiverlog",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version and exit.",
)
@click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks of errors.")
@click.option(
    "--profile",
    metavar="NAME",
    envvar="QUIVERLOG_PROFILE",
    show_envvar=True,
    help="Take the brokers' addresses from this profile (`quiverlog profile`).",
)
def cli(profile: str | None) -> None:
    """An Arrow-native event log for Spark.

    Start a broker with `quiverlog broker`, then create topics, append rows and read them back.
    `quiverlog demo` shows all of it, with Spark, on real data.
    """
    # `options.py` finds the profile among this context's parameters.


def run(arguments: Sequence[str]) -> int:
    """Return the exit code."""
    debug = "--debug" in arguments
    prepare_streams()
    return flush_output(_run(arguments, debug=debug), debug=debug)


def _run(arguments: Sequence[str], *, debug: bool) -> int:
    try:
        result = cli.main(list(arguments), prog_name="quiverlog", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as question:  # a group without a subcommand
        click.echo(question.format_message())
        return ExitCode.OK
    except SystemExit as error:  # Shell completion prints its answer and exits.
        return error.code if isinstance(error.code, int) else ExitCode.OK
    except BaseException as error:  # KeyboardInterrupt too has its exit code and its line.
        return report(error, debug=debug)
    return int(result) if isinstance(result, int) else ExitCode.OK


_COMPLETE_VARIABLE = "_QUIVERLOG_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a completion script for SHELL.

    \b
    bash:  echo 'eval "$(quiverlog completion bash)"' >> ~/.bashrc
    zsh:   echo 'eval "$(quiverlog completion zsh)"' >> ~/.zshrc
    fish:  quiverlog completion fish > ~/.config/fish/completions/quiverlog.fish
    """
    from click.shell_completion import get_completion_class

    completer_class = get_completion_class(shell)
    assert completer_class is not None
    completer = completer_class(cli, {}, "quiverlog", _COMPLETE_VARIABLE)
    # `source()` would also run bash for its version; only the template is needed.
    template = completer.source_template
    if shell == "fish":  # click's script cuts a help text at its first comma.
        template = template.replace('split "," ', 'split --max 1 "," ')
    click.echo(template % completer.source_vars())
