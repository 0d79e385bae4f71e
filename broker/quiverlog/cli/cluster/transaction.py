"""`quiverlog transaction ...`: look at transactional ids, and end or forget one."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from quiverlog.cli.console.options import (
    bootstrap_option,
    completed,
    confirmed,
    debug_option,
    format_option,
    open_client,
)
from quiverlog.cli.console.output import human_bytes, print_fields, print_json, print_table
from quiverlog.cli.console.staged_rows import print_waits, seconds_shown
from quiverlog.limits import TRANSACTIONAL_ID_CHARS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from quiverlog.client.transactions.overview import TransactionDetail, TransactionInfo

__all__ = ["transaction"]

STATES = ("open", "deciding", "publishing", "closed")


@click.group()
def transaction() -> None:
    """See, end and forget transactions, by transactional id."""


def _complete_ids(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    return completed(
        ctx,
        incomplete,
        lambda client: (one.transactional_id for one in client.list_transactions().transactions),
    )


def _check_id(_ctx: click.Context, _parameter: click.Parameter, value: str) -> str:
    if not 1 <= len(value) <= TRANSACTIONAL_ID_CHARS_MAX:
        raise click.BadParameter(f"an id has 1 to {TRANSACTIONAL_ID_CHARS_MAX} characters.")
    return value


def _id_argument(command: Callable[..., None]) -> Callable[..., None]:
    return click.argument("name", metavar="ID", callback=_check_id, shell_complete=_complete_ids)(
        command
    )


@transaction.command(name="list")
@click.option(
    "--state", "states", type=click.Choice(STATES), multiple=True,
    help="Only those in this state; may be given several times.",
)  # fmt: skip
@bootstrap_option
@format_option()
@debug_option
def list_ids(states: tuple[str, ...], bootstrap: str, timeout_s: float, output_format: str) -> None:
    """List the transactional ids that the cluster has not forgotten.

    open: its holder may commit. deciding: a commit is looked at. publishing: committed, and not
    all rows are in their topics yet. closed: aborted, or ended by the cluster.
    """
    with open_client(bootstrap, timeout_s=timeout_s) as client:
        found = client.list_transactions(states or None)
    if output_format == "json":
        print_json([_info_json(one) for one in found.transactions])
    else:
        print_table(
            ["ID", "STATE", "EPOCH", "LAST", "COMMITTED", "CLIENT", "SILENT", "COORDINATOR"],
            [
                (
                    one.transactional_id,
                    one.state,
                    one.epoch,
                    one.last_sequence,
                    _time(one.last_committed),
                    one.client_id,
                    seconds_shown(one.silent_s),
                    one.coordinator,
                )
                for one in found.transactions
            ],
            right=["EPOCH", "LAST", "SILENT", "COORDINATOR"],
        )
    _print_silent(found.silent)


@transaction.command()
@_id_argument
@bootstrap_option
@format_option()
@debug_option
def describe(name: str, bootstrap: str, timeout_s: float, output_format: str) -> None:
    """Show a transactional id: its state, its staged rows, and what a publish waits for."""
    with open_client(bootstrap, timeout_s=timeout_s) as client:
        found = client.describe_transaction(name)
    if output_format == "json":
        print_json(_detail_json(found))
    else:
        _print_detail(found)
    _print_silent(found.silent)


@transaction.command()
@_id_argument
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@bootstrap_option
@debug_option
def abort(name: str, yes: bool, bootstrap: str, timeout_s: float) -> None:
    """Close the epoch of a transactional id: what is open is never committed.

    What has committed stays, and is published. The holder gets an error, and may open the id again.
    """
    if not yes:
        confirmed(f"End what {name!r} has open? Its holder gets an error.")
    with open_client(bootstrap, timeout_s=timeout_s) as client:
        client.abort_transaction(name)
    click.echo(f"closed {name}: nothing of its epoch is committed any more.")


@transaction.command()
@_id_argument
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@bootstrap_option
@debug_option
def forget(name: str, yes: bool, bootstrap: str, timeout_s: float) -> None:
    """Forget a transactional id, and give up what it still has to publish.

    For a committed transaction whose staged rows will never come back (`describe` shows what it
    waits for), and for ids that nothing uses any more. A writer that repeats an earlier transaction
    of a forgotten id stores its rows again.
    """
    if not yes:
        confirmed(
            f"Forget {name!r}? Committed rows that are not in their topics may be lost, and a "
            "repeated transaction is stored twice."
        )
    with open_client(bootstrap, timeout_s=timeout_s) as client:
        client.forget_transaction(name)
    click.echo(f"forgot {name}.")


def _info_json(one: TransactionInfo) -> dict[str, Any]:
    return {**asdict(one), "instance": one.instance.hex()}


def _detail_json(found: TransactionDetail) -> dict[str, Any]:
    return {
        "transactional_id": found.transactional_id,
        "info": None if found.info is None else _info_json(found.info),
        "timeout_s": found.timeout_s,
        "single_use": found.single_use,
        "staged": [asdict(one) for one in found.staged],
        "waits": [asdict(one) for one in found.waits],
        "silent_brokers": list(found.silent),
    }


def _print_detail(found: TransactionDetail) -> None:
    info = found.info
    if info is None:
        print(f"{found.transactional_id}: no broker that answered coordinates it.")
    else:
        print_fields(
            {
                "id": found.transactional_id,
                "state": info.state,
                "epoch": info.epoch,
                "last sequence": "(none)" if info.last_sequence is None else info.last_sequence,
                "committed": _time(info.last_committed) or "(never)",
                "client": info.client_id,
                "instance": info.instance.hex(),
                "silent": seconds_shown(info.silent_s),
                "closed after": f"{found.timeout_s:,.0f} s of silence",
                "single use": found.single_use,
                "coordinator": info.coordinator,
            }
        )
    if found.staged:
        print("\nstaged")
        columns = ["PARTITION", "LEADER", "ROWS", "SIZE", "AGE", "LOST"]
        print_table(
            columns,
            [
                (
                    one.partition,
                    one.leader,
                    one.rows,
                    human_bytes(one.bytes),
                    seconds_shown(one.age_s),
                    one.missing,
                )
                for one in found.staged
            ],
            right=columns,
        )
    if found.waits:
        print("\nwaits to be published")
        print_waits(found.waits)


def _time(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S %Z}"


def _print_silent(silent: Sequence[int]) -> None:
    if silent:
        missing = ", ".join(map(str, silent))
        click.echo(f"Brokers that did not answer: {missing}. What they have is missing.", err=True)
