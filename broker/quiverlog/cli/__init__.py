"""The `quiverlog` command.

Owns the way from an argument list to an exit code, and nothing of what the commands do. Importing
this package must stay cheap (`quiverlog --version` answers in well under 150 ms): click, rich and
pyarrow are only imported by the command that needs them.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: the words after `quiverlog`; None takes them from `sys.argv`.

    Returns:
        the exit code, one of `quiverlog.cli.console.failures.ExitCode`.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words == ["--version"]:
        # Scripts ask this often: it shall not even cost the import of click.
        from quiverlog.version import VERSION

        try:
            print(f"quiverlog {VERSION}", flush=True)
        except OSError as error:
            # What it holds has nowhere to go; the interpreter would try once more at its end.
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
            if not isinstance(error, BrokenPipeError):
                print(f"quiverlog: {error.strerror}", file=sys.stderr)
                return 1
        return 0
    try:
        from quiverlog.cli.app import run
    except ModuleNotFoundError as error:
        # A client-only installation has no click. Say so; anything else missing is our bug.
        if error.name not in {"click", "rich"}:
            raise
        from quiverlog.installing import install_line

        line = install_line("cli", error.name)
        print(f"quiverlog: the command line needs {error.name}: {line}", file=sys.stderr)
        return 1
    code = run(words)
    # The process ends, and the interpreter would look at all of its memory twice. DuckDB counts
    # what is left of it then, and complains on stderr.
    if arguments is None and "duckdb" not in sys.modules:
        gc.freeze()
    return code
