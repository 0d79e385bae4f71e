"""`quiverlog group ...`: look at groups and how far they lag behind, reset their offsets, delete
them."""

from __future__ import annotations

import csv
from dataclasses import asdict
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple

import click

from quiverlog.cli.console.options import (
    INT64_MAX,
    bootstrap_option,
    complete_topics,
    completed,
    confirmed,
    debug_option,
    format_option,
    open_client,
    whole_number,
)
from quiverlog.cli.console.output import human_bytes, print_fields, print_json, print_table
from quiverlog.cli.console.spans import SPAN, total
from quiverlog.cli.console.staged_rows import seconds_shown
from quiverlog.errors import InvalidGroup
from quiverlog.types import GROUPS_TOPIC, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from quiverlog.client.admin.groups import GroupDetail, GroupPartition
    from quiverlog.client.client import Client

__all__ = ["group", "groups_that_stand_still"]

STILL_S: Final = 600
"""A group that has members, and rows older than this, and committed nothing meanwhile."""
_LOOKED_AT_MAX: Final = 100

STATES = ("empty", "assigning", "reconciling", "stable")
TYPES = ("consumer", "observer", "simple")


@click.group()
def group() -> None:
    """See groups of consumers and their lag; reset and delete their offsets."""


def _complete_groups(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    return completed(
        ctx, incomplete, lambda client: (one.group for one in client.list_groups().groups)
    )


def _group_argument(command: Callable[..., None]) -> Callable[..., None]:
    return click.argument("name", metavar="GROUP", shell_complete=_complete_groups)(command)


# --- looking ------------------------------------------------------------------------------------
@group.command(name="list")
@click.option(
    "--state", "states", type=click.Choice(STATES), multiple=True,
    help="Only those in this state; may be given several times.",
)  # fmt: skip
@click.option(
    "--type", "types", type=click.Choice(TYPES), multiple=True,
    help="Only those of this type; may be given several times.",
)  # fmt: skip
@bootstrap_option
@format_option()
@debug_option
def list_groups(
    states: tuple[str, ...],
    types: tuple[str, ...],
    bootstrap: str,
    timeout_s: float,
    output_format: str,
) -> None:
    """List the groups of the cluster.

    stable: each member has its partitions. assigning, reconciling: partitions are on their way to
    other members. empty: it has no members. An observer is a Spark query; simple: offsets alone.
    """
    with open_client(bootstrap, timeout_s=timeout_s) as client:
        found = client.list_groups(states or None, types or None)
    if output_format == "json":
        print_json([asdict(one) for one in found.groups])
    else:
        print_table(
            ["GROUP", "TYPE", "STATE", "MEMBERS", "EPOCH", "COORDINATOR"],
            [
                (one.group, one.type, one.state, one.members, one.epoch, one.coordinator)
                for one in found.groups
            ],
            right=["MEMBERS", "EPOCH", "COORDINATOR"],
        )
    if found.silent:
        missing = ", ".join(map(str, found.silent))
        click.echo(f"Brokers that did not answer: {missing}. Their groups are missing.", err=True)


@group.command()
@_group_argument
@click.option("--members", "shows_members", is_flag=True, help="The members, too.")
@bootstrap_option
@format_option()
@debug_option
def describe(
    name: str, shows_members: bool, bootstrap: str, timeout_s: float, output_format: str
) -> None:
    """Show a group: how far it has read each partition, its lag, and which member reads it."""
    with open_client(bootstrap, timeout_s=timeout_s) as client:
        found = client.describe_group(name)
    if output_format == "json":
        print_json(
            {
                **asdict(found.info),
                "assignor": found.assignor,
                "members": [_member_json(one) for one in found.members],
                "partitions": [asdict(one) for one in found.partitions],
            }
        )
        return
    _print_detail(found)
    if shows_members:
        _print_members(found)


def _member_json(one: Any) -> dict[str, Any]:
    return {**asdict(one), "partitions": {t: list(p) for t, p in one.partitions.items()}}


def _print_detail(found: GroupDetail) -> None:
    info = found.info
    print_fields(
        {
            "group": info.group,
            "type": info.type,
            "state": info.state,
            "members": info.members,
            "epoch": info.epoch,
            "assignor": found.assignor or "(none)",
            "coordinator": info.coordinator,
        }
    )
    if not found.partitions:
        return
    print()
    print_table(
        [
            *("TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "BYTES", "BEHIND", "MEMBER"),
            *("HOST", "NOTE"),
        ],
        [
            (
                one.topic,
                one.partition,
                _number(one.committed),
                _number(one.end),
                _number(one.lag_rows),
                "?" if one.lag_bytes is None else human_bytes(one.lag_bytes),
                "?" if one.lag_s is None else seconds_shown(one.lag_s),
                one.client_id,
                one.host,
                "pending" if one.is_pending else "",
            )
            for one in found.partitions
        ],
        right=["PARTITION", "COMMITTED", "END", "LAG", "BYTES", "BEHIND"],
    )


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _print_members(found: GroupDetail) -> None:
    print("\nmembers")
    print_table(
        ["MEMBER", "CLIENT", "HOST", "INSTANCE", "STATE", "EPOCH", "PARTITIONS", "SILENT"],
        [
            (
                one.member_id,
                one.title or one.client_id,
                one.host,
                one.instance_id,
                one.state,
                one.epoch,
                sum(map(len, one.partitions.values())),
                "?" if one.silent_s is None else seconds_shown(one.silent_s),
            )
            for one in found.members
        ],
        right=["EPOCH", "PARTITIONS", "SILENT"],
    )


# --- resetting ----------------------------------------------------------------------------------
class _Wanted(NamedTuple):
    """`partitions` None: all of the topic."""

    topic: str
    partitions: tuple[int, ...] | None


def _parse_topics(
    _ctx: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> list[_Wanted]:
    found = []
    for value in values:
        topic, colon, numbers = value.partition(":")
        partitions = [whole_number(one, INT64_MAX) for one in numbers.split(",")] if colon else []
        if not topic or None in partitions:
            raise click.BadParameter(f"{value!r} is not TOPIC or TOPIC:0,1.")
        known = tuple(one for one in partitions if one is not None)
        found.append(_Wanted(topic, known if colon else None))
    return found


def _topics_option(*, required: bool) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option(
        "--topic", "topics", multiple=True, required=required, metavar="TOPIC[:0,1]",
        callback=_parse_topics, shell_complete=complete_topics,
        help="The topic, or some of its partitions; may be given several times.",
    )  # fmt: skip


def _moment(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> datetime | None:
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value.strip())
    except ValueError:
        raise click.BadParameter(f"{value!r} is no ISO time (2026-01-31T12:00:00Z).") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _ago(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> datetime | None:
    if value is None:
        return None
    text = value.strip().lower()
    if not text or SPAN.sub("", text).strip():
        raise click.BadParameter(f"{value!r} is no time span (30m, 2h, 1d 12h).")
    try:
        return datetime.now(UTC) - total(text)
    except (ValueError, OverflowError):
        raise click.BadParameter(f"{value!r} is too long a time span.") from None


class _Target(NamedTuple):
    """Where to; one of them is given."""

    earliest: bool
    latest: bool
    offset: int | None
    moment: datetime | None
    ago: datetime | None
    shift: int | None
    file: IO[str] | None

    def check(self) -> None:
        given = sum(one is not None and one is not False for one in self)
        if given != 1:
            raise click.UsageError(
                "Give one of --to-earliest, --to-latest, --to-offset, --to-timestamp,"
                " --by-duration, --shift-by, --from-file."
            )


@group.command(name="reset-offsets")
@_group_argument
@_topics_option(required=False)
@click.option("--to-earliest", is_flag=True, help="To the first rows kept.")
@click.option("--to-latest", is_flag=True, help="To the ends: rows until then are not read.")
@click.option("--to-offset", type=click.IntRange(0, INT64_MAX), help="To this offset.")
@click.option("--to-timestamp", callback=_moment, metavar="TIME", help="To rows from then on.")
@click.option("--by-duration", callback=_ago, metavar="SPAN", help="To rows of the last 2h, 1d.")
@click.option(
    "--shift-by", type=click.IntRange(-INT64_MAX, INT64_MAX),
    help="This many rows on from what is committed; back, if negative.",
)  # fmt: skip
@click.option(
    "--from-file", type=click.File(), help="Lines of TOPIC,PARTITION,OFFSET; - is the input."
)
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@bootstrap_option
@format_option()
@debug_option
def reset_offsets(
    name: str,
    topics: list[_Wanted],
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_timestamp: datetime | None,
    by_duration: datetime | None,
    shift_by: int | None,
    from_file: IO[str] | None,
    dry_run: bool,
    yes: bool,
    bootstrap: str,
    timeout_s: float,
    output_format: str,
) -> None:
    """Set where a group goes on to read, of partitions that no member reads.

    Shows the offsets before and after, and asks. Offsets beyond the rows that are kept are moved to
    the first or behind the last of these. A group that does not exist is made.
    """
    target = _Target(
        to_earliest, to_latest, to_offset, to_timestamp, by_duration, shift_by, from_file
    )
    target.check()
    if bool(topics) is (from_file is not None):
        raise click.UsageError("Give --topic, or --from-file, which names the topics itself.")
    with open_client(bootstrap, timeout_s=timeout_s) as client:
        before = _before(client, name)
        after = _after(client, topics, target, before)
        # A member that reads one of them is found before anything is asked or shown as possible.
        client.alter_group_offsets(name, after, validate_only=True)
        _print_changes(name, before, after, output_format, is_dry=dry_run)
        if dry_run:
            return
        if not yes:
            confirmed(f"Set these {len(after)} offsets of {name!r}?")
        client.alter_group_offsets(name, after)
    if output_format != "json":
        click.echo(f"{name}: {len(after)} offsets set.")


def _print_changes(
    name: str,
    before: Mapping[TopicPartition, GroupPartition],
    after: Mapping[TopicPartition, int],
    output_format: str,
    *,
    is_dry: bool,
) -> None:
    rows = [
        (where.topic, where.partition, old.committed if (old := before.get(where)) else None, to)
        for where, to in sorted(after.items())
    ]
    names = ("topic", "partition", "before", "after")
    if output_format == "json":
        changes = [dict(zip(names, row, strict=True)) for row in rows]
        print_json({"group": name, "dry_run": is_dry, "offsets": changes})
        return
    print_table(
        [one.upper() for one in names],
        [(topic, partition, _number(old), to) for topic, partition, old, to in rows],
        right=["PARTITION", "BEFORE", "AFTER"],
    )


def _before(client: Client, name: str) -> dict[TopicPartition, GroupPartition]:
    try:
        found = client.describe_group(name).partitions
    except InvalidGroup as error:
        if not error.message.startswith("there is no group"):
            raise
        return {}
    return {TopicPartition(one.topic, one.partition): one for one in found}


def _after(
    client: Client,
    topics: Sequence[_Wanted],
    target: _Target,
    before: Mapping[TopicPartition, GroupPartition],
) -> dict[TopicPartition, int]:
    if target.file is not None:
        return _read_file(target.file)
    found: dict[TopicPartition, int] = {}
    for wanted in topics:
        first = _known(client.list_offsets(wanted.topic, "earliest"))
        end = _known(client.list_offsets(wanted.topic, "latest"))
        partitions = sorted(end) if wanted.partitions is None else wanted.partitions
        if unknown := [one for one in partitions if one not in end]:
            raise click.BadParameter(
                f"{wanted.topic!r} has no partition {unknown[0]}.", param_hint="--topic"
            )
        if target.earliest:
            offsets = first
        elif target.latest:
            offsets = end
        elif (moment := target.moment or target.ago) is not None:
            # Where no row is that young: the end.
            offsets = {**end, **_known(client.list_offsets(wanted.topic, moment))}
        elif target.offset is not None:
            offsets = dict.fromkeys(end, target.offset)
        else:
            assert target.shift is not None
            offsets = _shifted(wanted.topic, partitions, target.shift, before)
        for one in partitions:
            place = TopicPartition(wanted.topic, one)
            found[place] = min(max(offsets[one], first[one]), end[one])
    return found


def _known(offsets: Mapping[int, int | None]) -> dict[int, int]:
    return {number: offset for number, offset in offsets.items() if offset is not None}


def _shifted(
    topic: str,
    partitions: Iterable[int],
    shift: int,
    before: Mapping[TopicPartition, GroupPartition],
) -> dict[int, int]:
    found = {}
    for one in partitions:
        old = before.get(TopicPartition(topic, one))
        if old is None or old.committed is None:
            raise click.UsageError(
                f"--shift-by: the group has no offset of {topic}:{one}. Give its partitions with"
                " --topic, or another target."
            )
        found[one] = old.committed + shift
    return found


def _read_file(file: IO[str]) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for number, row in enumerate(csv.reader(file), 1):
        if not row or row[0].startswith("#") or row == ["topic", "partition", "offset"]:
            continue
        partition = whole_number(row[1].strip(), INT64_MAX) if len(row) == 3 else None
        offset = whole_number(row[2].strip(), INT64_MAX) if len(row) == 3 else None
        if partition is None or offset is None:
            raise click.BadParameter(
                f"line {number}: {','.join(row)[:80]!r} is not TOPIC,PARTITION,OFFSET.",
                param_hint="--from-file",
            )
        found[TopicPartition(row[0].strip(), partition)] = offset
    if not found:
        raise click.BadParameter("it names no offset.", param_hint="--from-file")
    return found


# --- deleting -----------------------------------------------------------------------------------
@group.command(name="delete-offsets")
@_group_argument
@_topics_option(required=True)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@bootstrap_option
@debug_option
def delete_offsets(
    name: str, topics: list[_Wanted], yes: bool, bootstrap: str, timeout_s: float
) -> None:
    """Delete committed offsets of partitions that no member reads: they are read anew."""
    with open_client(bootstrap, timeout_s=timeout_s) as client:
        has = [where for where, one in _before(client, name).items() if one.committed is not None]
        chosen = [where for where in has if any(_names(one, where) for one in topics)]
        if not chosen:
            raise click.UsageError(f"The group {name!r} has no offsets of these partitions.")
        if not yes:
            confirmed(f"Delete {len(chosen)} offsets of {name!r}?")
        client.alter_group_offsets(name, dict.fromkeys(chosen))
    click.echo(f"{name}: {len(chosen)} offsets deleted.")


def _names(wanted: _Wanted, where: TopicPartition) -> bool:
    if wanted.topic != where.topic:
        return False
    return wanted.partitions is None or where.partition in wanted.partitions


@group.command()
@_group_argument
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@bootstrap_option
@debug_option
def delete(name: str, yes: bool, bootstrap: str, timeout_s: float) -> None:
    """Delete a group that has no members, with its offsets."""
    if not yes:
        confirmed(f"Delete the group {name!r} and its offsets?")
    with open_client(bootstrap, timeout_s=timeout_s) as client:
        client.delete_group(name)
    click.echo(f"deleted {name}.")


# --- for `quiverlog doctor` ---------------------------------------------------------------------
def groups_that_stand_still(
    client: Client, topics: Mapping[str, object], now: datetime
) -> list[tuple[str, str]]:
    """Return what is wrong with groups that have members, and what to do."""
    if GROUPS_TOPIC not in topics:
        return []  # No broker is asked: it never saw a group.
    found = []
    with_members = [one for one in client.list_groups(types=["consumer"]).groups if one.members]
    for one in with_members[:_LOOKED_AT_MAX]:
        try:
            detail = client.describe_group(one.group)
        except InvalidGroup:
            continue  # It was deleted meanwhile.
        still = [part for part in detail.partitions if _stands_still(part, now)]
        if still:
            oldest = max(still, key=lambda part: part.lag_s or 0)
            reader = oldest.client_id or "no member"
            found.append(
                (
                    f"{one.group}: {len(still)} partitions stand still; the next row of"
                    f" {oldest.topic}-{oldest.partition} (read by {reader}) has waited"
                    f" {seconds_shown(oldest.lag_s or 0)}",
                    f"Look at that member's process; quiverlog group describe {one.group} --members"
                    " shows all.",
                )
            )
    return found


def _stands_still(part: GroupPartition, now: datetime) -> bool:
    if not part.lag_rows or part.lag_s is None or part.lag_s < STILL_S:
        return False
    committed = part.committed_at
    return committed is None or (now - committed).total_seconds() >= STILL_S
