"""The settings of every connection of DuckDB: for `where`, `client.duckdb()`, `quiverlog sql`.

Queries' text often comes from outside, so it reaches tables and nothing else of the machine, unless
the caller asks for files (docs/adr/0077).
"""

from __future__ import annotations

from typing import Any, Final

from quiverlog.client.base.arguments import extra

__all__ = ["connect_duckdb"]

_CLOSED: Final = {
    # Files, the network, extensions, secrets, and the variables of the Python code that asks.
    "enable_external_access": "false",
    "python_enable_replacements": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "temp_directory": "",  # else large results spill to .tmp of the working directory
}
# Settings of a result's form; others open files again or raise bounds.
_MAY_BE_SET: Final = (
    "calendar",
    "default_collation",
    "default_null_order",
    "default_order",
    "preserve_insertion_order",
    "timezone",
)


def connect_duckdb(user: str, *, files: bool = False) -> Any:
    """Open an in-memory connection of DuckDB with times in UTC.

    Args:
        user: what needs DuckDB, for the error where it is missing.
        files: let queries use files, the network, extensions, Python's variables and any setting.

    Raises:
        InvalidArgument: DuckDB is not installed.
    """
    database = extra("duckdb", user).connect(config={} if files else _CLOSED)
    database.execute("set timezone='UTC'").fetchall()
    if not files:
        # DuckDB reads it from the environment, with a password, which a query could show.
        database.execute("set http_proxy=''").fetchall()
        database.execute(f"set allowed_configs={list(_MAY_BE_SET)}").fetchall()
        database.execute("set lock_configuration=true").fetchall()
    return database
