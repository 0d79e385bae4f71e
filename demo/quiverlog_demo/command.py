"""The command `quiverlog demo`: its options."""

from __future__ import annotations

from pathlib import Path

import click

from quiverlog.cli.console.options import INT32_MAX, Seconds, debug_option
from quiverlog.cli.formats.output_file import check_free, force_option, free_name

__all__ = ["demo"]

BROKERS_MAX = 7
_PLOT = Path("delays.png")


def _checked_brokers(_context: click.Context, _option: click.Parameter, count: int) -> int:
    if count == 2:
        raise click.BadParameter("two brokers cannot lose one: take 1, or 3 and more.")
    return count


@click.command()
@click.option("--keep", is_flag=True, help="Leave the brokers running and print their addresses.")
@click.option(
    "--brokers",
    type=click.IntRange(1, BROKERS_MAX),
    default=1,
    show_default=True,
    callback=_checked_brokers,
    help="One, or three and more: then every row is copied, read from followers, and a leader is "
    "killed in mid-stream.",
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where the picture goes. [default: delays.png, or delays-2.png and so on if it is there]",
)
@force_option
@click.option(
    "--flights",
    "flights_max",
    type=click.IntRange(1, INT32_MAX),
    help="Replay at most this many flights of the year, the first ones. [default: all 336,776]",
)
@click.option(
    "--rows-per-batch",
    type=click.IntRange(1, INT32_MAX),
    default=100_000,
    show_default=True,
    help="What one micro-batch of Spark takes at most.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=Seconds(min=1.0),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="Give Spark up after this long.",
)
@click.option(
    "--format",
    "output_format",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
)
@debug_option
def demo(
    keep: bool,
    brokers: int,
    plot: Path | None,
    force: bool,
    flights_max: int | None,
    rows_per_batch: int,
    timeout_s: float,
    output_format: str,
) -> int:
    """Run the whole system on the flights that left New York in 2013.

    Starts brokers in a temporary directory, creates typed topics, replays the flights, lets Spark
    join them with weather and airlines as a stream and sum up delays per carrier and day into the
    topic `delays`, kills Spark in a micro-batch and starts it again, reads that back, prints and
    draws it, and checks every number against the same sums done by pyarrow alone. Exit code 5 if
    any differs. Needs quiverlog[broker,spark,demo] and Java 17 or newer.
    """
    from quiverlog_demo.run import DemoOptions, run_demo

    if plot is None:
        plot = _PLOT if force else free_name(_PLOT)
    check_free(plot, force=force)
    return run_demo(
        DemoOptions(
            keep=keep,
            brokers=brokers,
            plot=plot,
            flights_max=flights_max,
            rows_per_batch=rows_per_batch,
            timeout_s=timeout_s,
            as_json=output_format == "json",
        )
    )
