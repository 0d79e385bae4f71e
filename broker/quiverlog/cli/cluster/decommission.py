"""`quiverlog cluster decommission`: a broker leaves for good. Run again, the command skips the
steps that are done:

1. the controller assigns it nothing more; 2. its replicas move to other brokers; 3. its vote is
removed; 4. when it has stopped it is unregistered.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from quiverlog.cli.console.failures import CommandFailed
from quiverlog.cli.console.interrupts import printed_on_interrupt
from quiverlog.cli.console.options import (
    INT32_MAX,
    bootstrap_option,
    debug_option,
    format_option,
    open_client,
    without_end,
)
from quiverlog.cli.console.output import counted, human_bytes, print_json, print_table
from quiverlog.cli.console.waiting import Patience, polls, shown_waiting
from quiverlog.cli.moves.placement import look
from quiverlog.cli.moves.run import check_plan, start_plan
from quiverlog.client.admin.cluster import change_voters, decommission_broker
from quiverlog.core.placement.moves import Move, evacuate
from quiverlog.errors import BrokerAlive, InvalidReplicationFactor, QuiverlogError
from quiverlog.wire.decommission_messages import DecommissionStep
from quiverlog.wire.voters_messages import ChangeVotersRequest, VoterChange

if TYPE_CHECKING:
    from quiverlog.client.client import Client
    from quiverlog.wire.decommission_messages import DecommissionBrokerResponse

__all__ = ["decommission", "unregister"]

_PLAN_AGAIN_POLLS: Final = 40
_node_id = click.argument("node_id", metavar="NODE", type=click.IntRange(0, INT32_MAX))


class _State(enum.StrEnum):
    PLANNED = "planned"
    STAYS = "stays"
    MOVING = "moving"
    EMPTY = "empty"
    UNREGISTERED = "unregistered"


@click.command()
@_node_id
@click.option("--dry-run", is_flag=True, help="Show what would move where, and change nothing.")
@click.option("--cancel", is_flag=True, help="The broker stays; what has moved stays where it is.")
@click.option("--no-wait", is_flag=True, help="Begin the moves and return.")
@bootstrap_option
@format_option()
@debug_option
def decommission(
    node_id: int,
    dry_run: bool,
    cancel: bool,
    no_wait: bool,
    bootstrap: str,
    timeout_s: float,
    output_format: str,
) -> None:
    """Take a broker out of the cluster for good.

    It gets no partitions any more, what it holds moves to others while it is written and read, and
    its vote is removed. Then stop it and type the command again: the cluster unregisters it. One
    that is dead needs no second run. Ctrl-C ends the waiting, not the moves.
    """
    if cancel and dry_run:
        raise click.UsageError("--cancel has no plan to show.")
    with open_client(bootstrap, timeout_s=timeout_s, request_timeout_s=timeout_s) as client:
        moves: list[Move] = []
        if cancel:
            state = _cancel(client, node_id)
        elif dry_run:
            moves, state = _plan(client, node_id), _State.PLANNED
        else:
            with printed_on_interrupt(_GOES_ON.format(node_id=node_id)):
                state = _decommission(client, node_id, is_waiting=not no_wait)
    _show_state(node_id, state, moves, output_format)


_WORDS: Final = {
    _State.STAYS: "Broker {node_id} stays. What has moved stays where it is; "
    "`quiverlog cluster rebalance` evens it out.",
    _State.MOVING: "What broker {node_id} holds is moving. The same command waits for it and goes "
    "on; --cancel calls it off.",
    _State.EMPTY: "Broker {node_id} holds nothing any more and has no vote. Stop it, and type the "
    "same command again.",
    _State.UNREGISTERED: "Broker {node_id} has left the cluster.",
}

_GOES_ON: Final = (
    "What has begun goes on: broker {node_id} is given nothing any more, and what it holds moves. "
    "The same command waits for it and goes on; --cancel calls it off."
)


@click.command()
@_node_id
@bootstrap_option
@format_option()
@debug_option
def unregister(node_id: int, bootstrap: str, timeout_s: float, output_format: str) -> None:
    """Remove the registration of a broker that is gone for good and holds nothing.

    A broker that still holds something, or has a vote, is decommissioned.
    """
    with open_client(bootstrap, timeout_s=timeout_s, request_timeout_s=timeout_s) as client:
        _step(client, node_id, DecommissionStep.UNREGISTER)
    _show_state(node_id, _State.UNREGISTERED, [], output_format)


def _step(client: Client, node_id: int, step: DecommissionStep) -> DecommissionBrokerResponse:
    return client.run(decommission_broker(client.cluster, node_id, step))


def _plan(client: Client, node_id: int) -> list[Move]:
    """Return moves for the broker's replicas that do not move yet.

    Raises:
        CommandFailed: no other broker may take them.
        QuiverlogError: the controller would refuse the plan.
    """
    placement = look(client)
    try:
        # A replica that moves already counts at its destination.
        moves = evacuate(placement.brokers, placement.partitions, {node_id})
    except InvalidReplicationFactor as error:
        raise CommandFailed(
            f"What broker {node_id} holds has no place elsewhere: {error.message} Start or add "
            "a broker, or give the topic fewer replicas."
        ) from error
    check_plan(client, moves, throttle=0)
    return moves


def _decommission(client: Client, node_id: int, *, is_waiting: bool) -> _State:
    before = _step(client, node_id, DecommissionStep.NOTHING)
    left = _step(client, node_id, DecommissionStep.BEGIN)
    if left.replica_count:
        try:
            start_plan(client, _plan(client, node_id), throttle=0)
        except (CommandFailed, QuiverlogError):
            if not before.is_decommissioning:
                _step(client, node_id, DecommissionStep.CANCEL)  # A refused plan changes nothing.
            raise
        if not is_waiting:
            return _State.MOVING
        left = _wait(client, node_id, left.replica_count)
    if left.is_voter:
        request = ChangeVotersRequest(change=VoterChange.REMOVE, node_id=node_id)
        client.run(change_voters(client.cluster, request))
    if not left.is_fenced:
        return _State.EMPTY
    try:
        _step(client, node_id, DecommissionStep.UNREGISTER)
    except BrokerAlive:
        return _State.EMPTY  # It was started again meanwhile.
    return _State.UNREGISTERED


def _wait(client: Client, node_id: int, total: int) -> DecommissionBrokerResponse:
    without_end(client)
    patience = Patience()
    with shown_waiting(f"broker {node_id}") as waiting:
        for poll, _ in enumerate(polls(), 1):
            left = patience.ask(lambda: _step(client, node_id, DecommissionStep.NOTHING))
            if left is None:
                continue
            if not left.replica_count:
                return left
            if not left.is_decommissioning:
                raise CommandFailed(f"Broker {node_id} stays: its decommissioning was called off.")
            done = max(0, total - left.replica_count)
            text = f"{left.replica_count:,} of {total:,} partitions left"
            waiting.show(done, total, text + patience.note)
            if poll % _PLAN_AGAIN_POLLS == 0:
                # Replicas are left that were assigned before BEGIN, or whose move was cancelled.
                patience.ask(lambda: start_plan(client, _plan(client, node_id), throttle=0))
    raise AssertionError("`polls` without a bound does not end")


def _cancel(client: Client, node_id: int) -> _State:
    for name in client.list_topics(internal=True):
        moving = client.reassign_partitions(name, {})
        leaving = {number: None for number, one in moving.items() if node_id in one.removing}
        if leaving:
            client.reassign_partitions(name, leaving)
    _step(client, node_id, DecommissionStep.CANCEL)
    return _State.STAYS


def _show_state(node_id: int, state: _State, moves: Sequence[Move], output_format: str) -> None:
    if output_format == "json":
        print_json({"node_id": node_id, "state": state, "moves": [_json(one) for one in moves]})
    elif state is _State.PLANNED:
        _show(moves, node_id)
    else:
        print(_WORDS[state].format(node_id=node_id))


def _json(move: Move) -> dict[str, object]:
    return {
        "topic": move.topic,
        "partition": move.partition,
        "from": list(move.before),
        "to": list(move.after),
        "bytes": move.copied_bytes,
    }


def _show(moves: Sequence[Move], node_id: int) -> None:
    if not moves:
        print(f"Nothing would move: broker {node_id} holds nothing, or all of it moves already.")
        return
    print_table(
        ["TOPIC", "PARTITION", "FROM", "TO", "BYTES"],
        [
            (
                one.topic,
                one.partition,
                ",".join(map(str, one.before)),
                ",".join(map(str, one.after)),
                human_bytes(one.copied_bytes),
            )
            for one in moves
        ],
        right=["PARTITION", "BYTES"],
    )
    total = sum(one.copied_bytes for one in moves)
    count = counted(len(moves), "partition", "partitions")
    print(f"\n{count} would move, {human_bytes(total)}. Nothing was changed.")
