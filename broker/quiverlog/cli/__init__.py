"""The `quiverlog` command.

Importing this package must stay cheap (`quiverlog --version` answers in well under 150 ms): a
command imports click, rich and pyarrow only when it needs them.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return an `ExitCode`.

    Args:
        arguments: the words after `quiverlog`; None: from `sys.argv`.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words == ["--version"]:
        # Scripts ask this often: it does without the import of click.
        from quiverlog.version import VERSION

        try:
            print(f"quiverlog {VERSION}", flush=True)
        except OSError as error:
            # The interpreter would flush the old one again, and fail again.
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
            if not isinstance(error, BrokenPipeError):
                print(f"quiverlog: {error.strerror}", file=sys.stderr)
                return 1
        return 0
    try:
        from quiverlog.cli.app import run
    except ModuleNotFoundError as error:
        # A client-only installation has no click; any other missing module is our bug.
        if error.name not in {"click", "rich"}:
            raise
        from quiverlog.installing import install_line

        line = install_line("cli", error.name)
        print(f"quiverlog: the command line needs {error.name}: {line}", file=sys.stderr)
        return 1
    code = run(words)
    # The process ends, and the interpreter would scan all of its memory twice. DuckDB counts
    # its remaining objects then, and complains on stderr.
    if arguments is None and "duckdb" not in sys.modules:
        gc.freeze()
    return code
