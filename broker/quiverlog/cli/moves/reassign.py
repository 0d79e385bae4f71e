"""`quiverlog partition reassign`: options to a plan; showing it, starting it, waiting for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from quiverlog.cli.console.failures import CommandFailed
from quiverlog.cli.console.interrupts import printed_on_interrupt
from quiverlog.cli.console.options import (
    INT32_MAX,
    bootstrap_option,
    complete_topics,
    debug_option,
    format_option,
    open_client,
)
from quiverlog.cli.console.output import counted, print_json
from quiverlog.cli.moves.options import WAIT_S_MAX, moving_options, node_id_type
from quiverlog.limits import PARTITIONS_PER_TOPIC_MAX, REPLICATION_FACTOR_MAX

if TYPE_CHECKING:
    from quiverlog.cli.moves.placement import Placement
    from quiverlog.client.client import Client
    from quiverlog.core.placement.moves import Move

__all__ = ["How", "carry_out", "change_factor", "reassign"]

_PARTITION = click.IntRange(0, PARTITIONS_PER_TOPIC_MAX - 1)
_GOES_ON = (
    "Moves that have begun go on. `quiverlog partition reassign --status` shows them, "
    "`quiverlog partition reassign --cancel` cancels them."
)


class _Target(click.ParamType[tuple[int, list[int]]]):
    """`0=2,3,1`, or `2,3,1`, which has no partition: -1."""

    name = "[PARTITION=]BROKER,..."

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, list[int]]:
        if isinstance(value, tuple):
            return value
        number, equals, brokers = str(value).rpartition("=")
        try:
            ids = [int(one) for one in brokers.split(",")]
            found = int(number) if equals else -1, ids
        except ValueError:
            self.fail(f"{value!r} is not of the form 0=2,3,1 or 2,3,1.", param, ctx)
        if min(ids) < 0 or max(ids) > INT32_MAX or (equals and found[0] < 0):
            self.fail(f"{value!r} has a number that no broker or partition has.", param, ctx)
        return found


@dataclass(frozen=True, slots=True)
class _Request:
    topic: str | None
    partitions: tuple[int, ...]
    targets: tuple[tuple[int, list[int]], ...]
    leaving: tuple[int, ...]
    factor: int | None
    plan_file: Path | None

    def check(self) -> None:
        kinds = (self.targets, self.leaving, self.factor, self.plan_file)
        if sum(one not in ((), None) for one in kinds) > 1:
            raise click.UsageError(
                "Give one of --to, --from, --replication-factor and --plan-file."
            )
        if self.topic is None and (self.targets or self.factor or self.partitions):
            raise click.UsageError("Name the topic.")
        if self.factor and self.partitions:
            raise click.UsageError("A topic has one replication factor: leave --partition away.")
        if len({number for number, _ in self.targets}) != len(self.targets):
            raise click.UsageError("A partition is named twice.")

    @property
    def asks_for_a_plan(self) -> bool:
        return bool(self.targets or self.leaving or self.factor or self.plan_file)

    def plan(self, placement: Placement) -> list[Move]:
        from quiverlog.cli.moves.plan_file import read_plan
        from quiverlog.core.placement.moves import evacuate, with_replication_factor

        if self.plan_file is not None:
            return read_plan(self.plan_file, placement)
        self.check_partitions(placement, self.partitions)
        everything = placement.partitions
        if self.factor is not None and self.topic is not None:
            return with_replication_factor(placement.brokers, everything, self.topic, self.factor)
        if self.leaving:
            return evacuate(
                placement.brokers,
                everything,
                self.leaving,
                means=lambda one: self.means(one.topic, one.partition),
            )
        return self._to(placement)

    def means(self, topic: str, partition: int) -> bool:
        is_named = not self.partitions or partition in self.partitions
        return is_named and self.topic in (None, topic)

    def check_partitions(self, placement: Placement, numbers: Iterable[int]) -> None:
        if self.topic is None:
            return
        held = {one.partition for one in placement.of(self.topic)}
        unknown = sorted(set(numbers) - held)
        if unknown:
            raise CommandFailed(f"{self.topic} has no partition {unknown[0]}.")

    def _to(self, placement: Placement) -> list[Move]:
        from quiverlog.core.placement.moves import evacuate

        assert self.topic is not None
        known = {one.node_id for one in placement.brokers}
        unknown = sorted({node_id for _, ids in self.targets for node_id in ids} - known)
        if unknown:
            names = ", ".join(map(str, sorted(known)))
            raise CommandFailed(
                f"There is no broker {unknown[0]} in this cluster; there are: {names}."
            )
        held = {one.partition: one for one in placement.of(self.topic)}
        exact = {number: ids for number, ids in self.targets if number >= 0}
        for number, ids in self.targets:
            if number < 0 and self.partitions:
                exact |= dict.fromkeys(self.partitions, ids)
            elif number < 0:
                return evacuate(
                    placement.brokers,
                    placement.partitions,
                    known - set(ids),
                    means=lambda one: one.topic == self.topic,
                )
        self.check_partitions(placement, exact)
        return [
            held[number].move(tuple(ids))
            for number, ids in sorted(exact.items())
            if held[number].replicas != tuple(ids)
        ]


@click.command()
@click.argument("name", metavar="[TOPIC]", required=False, shell_complete=complete_topics)
@click.option("--topic", "-t", "topic_option", metavar="TOPIC", help="The same as the argument.")
@click.option(
    "--partition",
    "partitions",
    type=_PARTITION,
    multiple=True,
    help="Only this one of the topic; may be given several times.",
)
@click.option(
    "--to",
    "targets",
    type=_Target(),
    multiple=True,
    help="The brokers of a partition, preferred leader first: 0=2,3,1. Without a partition:"
    " these hold what --partition names, or the topic is spread over these.",
)
@click.option(
    "--from",
    "leaving",
    type=node_id_type,
    multiple=True,
    metavar="BROKER",
    help="Empty this broker; of all topics, or the one named.",
)
@click.option(
    "--replication-factor",
    "factor",
    type=click.IntRange(1, REPLICATION_FACTOR_MAX),
    help="The new number of replicas of the topic.",
)
@click.option(
    "--plan-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A plan as `--dry-run --format plan` prints it, or kafka-reassign-partitions.",
)
@click.option("--cancel", is_flag=True, help="Move back what is on its way.")
@click.option("--status", is_flag=True, help="Show what moves; so does the command alone.")
@moving_options
@bootstrap_option
@format_option("table", "json", "plan")
@debug_option
def reassign(
    name: str | None,
    topic_option: str | None,
    partitions: tuple[int, ...],
    targets: tuple[tuple[int, list[int]], ...],
    leaving: tuple[int, ...],
    factor: int | None,
    plan_file: Path | None,
    cancel: bool,
    status: bool,
    dry_run: bool,
    throttle: int,
    wait_s: float,
    ignore_room: bool,
    bootstrap: str,
    timeout_s: float,
    output_format: str,
) -> None:
    """Move partitions to other brokers, change how many replicas a topic has, show what moves.

    Rows can be written and read meanwhile. New replicas are copied first; the old ones are removed
    when enough of the others are in sync.
    """
    if name and topic_option and name != topic_option:
        raise click.UsageError("Two topics are named.")
    topic = name or topic_option
    request = _Request(topic, partitions, targets, leaving, factor, plan_file)
    request.check()
    if request.asks_for_a_plan and (cancel or status):
        raise click.UsageError("--cancel and --status are about what moves already.")
    with open_client(bootstrap, timeout_s=timeout_s) as client:
        if request.asks_for_a_plan:
            how = How(dry_run, throttle, wait_s, ignore_room, output_format)
            carry_out(client, request.plan, how)
        else:
            _moving(client, request, cancel=cancel, wait_s=wait_s, output_format=output_format)


@dataclass(frozen=True, slots=True)
class How:
    dry_run: bool = False
    throttle: int = 0
    wait_s: float = 0.0
    ignore_room: bool = False
    output_format: str = "table"


def change_factor(client: Client, topic: str, factor: int, *, is_quiet: bool = False) -> None:
    request = _Request(topic, (), (), (), factor, None)
    shown = "nothing" if is_quiet else "table"
    carry_out(client, request.plan, How(wait_s=WAIT_S_MAX, output_format=shown))


def carry_out(
    client: Client,
    plan: Callable[[Placement], Sequence[Move]],
    how: How,
    *,
    confirm: Callable[[], None] | None = None,
) -> None:
    """Plan, print, start, wait. `confirm` asks the user between printing and starting."""
    from quiverlog.cli.moves.placement import check_room, look
    from quiverlog.cli.moves.plan_file import plan_text
    from quiverlog.cli.moves.run import check_plan
    from quiverlog.cli.moves.tables import plan_json, print_plan

    placement = look(client)
    moves = plan(placement)
    check_plan(client, moves, how.throttle)
    if how.output_format == "plan":
        click.echo(plan_text(moves), nl=False)
    elif how.output_format == "json":
        print_json(plan_json(placement, moves, how.throttle))
    elif moves and how.output_format == "table":
        print_plan(placement, moves, how.throttle)
    elif not moves:
        click.echo("Nothing has to move.", err=True)
    if not how.ignore_room:
        check_room(placement, moves)
    if how.dry_run or not moves:
        return
    if confirm is not None:
        confirm()
        client.cluster.progressed()
    with printed_on_interrupt(_GOES_ON):
        _run_plan(client, moves, how)


def _run_plan(client: Client, moves: Sequence[Move], how: How) -> None:
    from quiverlog.cli.moves.run import elect_preferred, start_plan, wait_for

    start_plan(client, moves, how.throttle)
    if not how.wait_s:
        click.echo(
            "Under way. `quiverlog partition reassign --status` shows it, --cancel cancels it; "
            "leaders follow by themselves, or by `quiverlog partition elect`.",
            err=True,
        )
        return
    copies = {(one.topic, one.partition): one.added for one in moves}
    left = wait_for(client, copies, how.wait_s)
    if left:
        raise CommandFailed(
            f"{len(left)} of {counted(len(moves), 'partition', 'partitions')} still "
            f"{'moves' if len(left) == 1 else 'move'}; `--cancel` cancels a move."
        )
    _check_done(client, moves)
    elect_preferred(client, moves)


def _check_done(client: Client, moves: Sequence[Move]) -> None:
    """Raise CommandFailed if another client has changed targets or deleted topics meanwhile."""
    topics = client.metadata().topics
    gone = sum(one.topic not in topics for one in moves)
    other = sum(
        topics[one.topic].partitions[one.partition].replicas != one.after
        for one in moves
        if one.topic in topics
    )
    if gone or other:
        raise CommandFailed(
            f"{len(moves) - gone - other} of {len(moves)} partitions have moved; {gone} are of "
            f"topics that were deleted meanwhile, {other} were cancelled or sent elsewhere."
        )
    click.echo(f"{counted(len(moves), 'partition has', 'partitions have')} moved.", err=True)


def _moving(
    client: Client, request: _Request, *, cancel: bool, wait_s: float, output_format: str
) -> None:
    from quiverlog.cli.moves.placement import look
    from quiverlog.cli.moves.run import wait_for
    from quiverlog.cli.moves.tables import moves_json, print_moves

    placement = look(client)
    request.check_partitions(placement, request.partitions)
    moving = {key: one for key, one in placement.moving.items() if request.means(*key)}
    if cancel:
        for topic in sorted({topic for topic, _ in moving}):
            back = {number: None for name, number in moving if name == topic}
            found = client.reassign_partitions(topic, back)
            moving |= {(topic, number): one for number, one in found.items()}
        count = len(moving)
        moving = {key: one for key, one in moving.items() if not one.is_over}
        if output_format != "json":
            click.echo(
                f"{counted(count, 'move is', 'moves are')} cancelled; {len(moving):,} on the way "
                "back.",
                err=True,
            )
    left = list(moving)
    if wait_s and moving:
        with printed_on_interrupt(_GOES_ON):
            left = wait_for(client, {key: one.adding for key, one in moving.items()}, wait_s)
        now = look(client).moving
        moving = {key: now[key] for key in left if key in now}
    if output_format == "json":
        print_json({"moving": moves_json(moving)})
    elif moving:
        print_moves(moving)
    elif not cancel:
        click.echo("No partition moves.", err=True)
    if wait_s and left:
        still = counted(len(left), "partition still moves", "partitions still move")
        raise CommandFailed(f"{still}; `--cancel` cancels a move.")
