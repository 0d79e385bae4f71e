"""`quiverlog cluster features` and `upgrade`: the cluster's feature level, and the possible one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from quiverlog.cli.console.options import bootstrap_option, debug_option, format_option, open_client
from quiverlog.cli.console.output import print_fields, print_json, print_table
from quiverlog.limits import FEATURE_LEVEL_MIN

if TYPE_CHECKING:
    from quiverlog.client.admin.cluster import ClusterFeatures

__all__ = ["features", "upgrade"]


@click.command()
@bootstrap_option
@format_option()
@debug_option
def features(bootstrap: str, timeout_s: float, output_format: str) -> None:
    """Show the finalised feature level, and what each broker supports."""
    with open_client(bootstrap, timeout_s=timeout_s, request_timeout_s=timeout_s) as client:
        found = client.describe_features()
    if output_format == "json":
        print_json(_json(found))
    else:
        _print(found)


@click.command()
@click.option("--finalize", is_flag=True, help="Raise the level; without it: only print the level.")
@click.option(
    "--level",
    type=click.IntRange(FEATURE_LEVEL_MIN),
    metavar="N",
    help="To which level; otherwise to the highest that every broker supports.",
)
@bootstrap_option
@format_option()
@debug_option
def upgrade(
    finalize: bool, level: int | None, bootstrap: str, timeout_s: float, output_format: str
) -> None:
    """Raise the cluster's feature level when every broker is upgraded. There is no way back.

    From then on brokers write what older ones do not understand, and those are refused.
    """
    with open_client(bootstrap, timeout_s=timeout_s, request_timeout_s=timeout_s) as client:
        before = client.describe_features()
        wanted = before.level_max if level is None else level
        found = client.finalize_features(wanted, validate_only=not finalize)
    if output_format == "json":
        print_json({**_json(found), "before": before.level, "wanted": wanted})
        return
    if found.level == wanted == before.level:
        click.echo(f"The cluster has feature level {wanted}; there is nothing to do.")
        for node_id in _behind(found):
            click.echo(f"Broker {node_id} supports no higher one.", err=True)
    elif finalize:
        click.echo(f"The cluster has feature level {found.level} now; it had {before.level}.")
    else:
        click.echo(f"The cluster can go from feature level {before.level} to {wanted}: --finalize.")


def _behind(found: ClusterFeatures) -> list[int]:
    highest = max((high for _, high in found.brokers.values()), default=0)
    return [n for n, (_, high) in found.brokers.items() if high < highest]


def _json(found: ClusterFeatures) -> dict[str, object]:
    from quiverlog.core.controller.features import LEVELS

    return {
        "level": found.level,
        "level_max": found.level_max,
        "levels": {str(level): text for level, text in LEVELS.items()},
        "brokers": [
            {"node_id": n, "level_min": low, "level_max": high}
            for n, (low, high) in found.brokers.items()
        ],
    }


def _print(found: ClusterFeatures) -> None:
    from quiverlog.core.controller.features import LEVELS

    print_fields({"feature level": found.level, "all support": found.level_max})
    print("\nlevels")
    print_table(
        ["LEVEL", "FINALISED", "ADDS"],
        [(n, "yes" if n <= found.level else "no", text) for n, text in LEVELS.items()],
        right=["LEVEL"],
    )
    print("\nbrokers")
    print_table(
        ["NODE", "SUPPORTS"],
        [(n, f"{low} to {high}") for n, (low, high) in found.brokers.items()],
        right=["NODE"],
    )
