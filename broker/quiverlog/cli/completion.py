"""`quiverlog completion bash|zsh|fish`: the script that a shell sources."""

from __future__ import annotations

import click

__all__ = ["completion"]

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

    from quiverlog.cli.app import cli

    completer_class = get_completion_class(shell)
    assert completer_class is not None
    completer = completer_class(cli, {}, "quiverlog", _COMPLETE_VARIABLE)
    # `source()` would also start bash to ask for its version; the template is what is wanted.
    template = completer.source_template
    if shell == "fish":  # click's script drops what stands behind the first comma of a help text
        template = template.replace('split "," ', 'split --max 1 "," ')
    click.echo(template % completer.source_vars())
