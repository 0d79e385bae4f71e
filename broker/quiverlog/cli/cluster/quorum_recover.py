"""`quiverlog quorum recover`: the broker of a stopped data directory becomes the only voter, if no
other voter answers (or by --force) and the operator consents."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from quiverlog.addresses import parse_address
from quiverlog.cli.console.failures import CommandFailed
from quiverlog.cli.console.options import confirmed, debug_option, format_option
from quiverlog.cli.console.output import print_fields, print_json
from quiverlog.errors import CorruptFrame, InvalidResponse, QuiverlogError

if TYPE_CHECKING:
    from quiverlog.storage.directory.quorum_recovery import StoppedQuorum

__all__ = ["recover"]

_ANSWER_S: Final = 3.0
"""A live voter answers HELLO at once."""


class _Found(NamedTuple):
    """What accepts connections at a voter's address; `is_voter`: its HELLO names that voter."""

    at: str
    is_voter: bool

    def described(self, node_id: int) -> str:
        if self.is_voter:
            return f"voter {node_id} answers at {self.at}"
        return (
            f"voter {node_id}: something accepts connections at {self.at} and does not answer HELLO"
            " (a frozen broker does so)"
        )


@click.command()
@click.option(
    "--data-dir",
    "path",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The data directory of the broker that is left. The broker must be stopped.",
)
@click.option("--force", is_flag=True, help="Also where another voter answers.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, and change nothing.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@format_option()
@debug_option
def recover(path: Path, force: bool, dry_run: bool, yes: bool, output_format: str) -> None:
    """Make the broker of a stopped data directory the only voter of its quorum.

    For a cluster whose other voters are gone for good, so that nothing is decided any more. All
    records stay; decisions that only the lost voters had are gone. It is refused while another
    voter answers: that one, and those that it may find again, would go on deciding, and there
    would be two clusters with one id. Empty the data directories of the other voters before any of
    them is started again.
    """
    from quiverlog.storage.directory.quorum_recovery import StoppedQuorum
    from quiverlog.storage.disk.posix import PosixDisk

    found = StoppedQuorum(PosixDisk(), str(path.absolute()))
    with contextlib.closing(found):
        if found.is_only_voter:
            _print_result(
                found, {}, output_format, "is the only voter already; nothing was changed"
            )
            return
        answers = _answering(found.node.cluster_id, found.others())
        if output_format != "json":
            _explain(found, path)
        if answers and not force:
            where = ", ".join(one.described(node_id) for node_id, one in sorted(answers.items()))
            raise CommandFailed(
                f"{where}. Nothing was changed: stop it for good and empty its data directory, or"
                " bring a majority of the voters back. --force does it all the same."
            )
        if dry_run:
            _print_result(
                found, answers, output_format, "would become the only voter; nothing was changed"
            )
            return
        if not yes:
            confirmed(f"Make broker {found.key.node_id} the only voter?")
        found.recover()
        _print_result(found, answers, output_format, "is the only voter")


def _explain(found: StoppedQuorum, path: Path) -> None:
    voters = [
        f"{voter.node_id} (this directory)" if voter == found.key else
        f"{voter.node_id} at {endpoint or 'an unknown address'}"
        for voter, endpoint in sorted(found.voters.items())
    ]  # fmt: skip
    print_fields(
        {
            "directory": path,
            "cluster": found.node.cluster_id,
            "broker": found.key.node_id,
            "voters": ", ".join(voters),
            "records": f"up to place {found.last_index} of the metadata log, term {found.term}",
        }
    )
    click.echo()


def _print_result(
    found: StoppedQuorum, answers: Mapping[int, _Found], output_format: str, what: str
) -> None:
    if output_format == "json":
        print_json(
            {
                "cluster_id": found.node.cluster_id,
                "node_id": found.key.node_id,
                "directory_id": found.key.directory_id,
                "term": found.term,
                "last_index": found.last_index,
                "voters": sorted(voter.node_id for voter in found.voters),
                "answering": _places(answers, is_voter=True),
                "silent": _places(answers, is_voter=False),
                "is_only_voter": found.is_only_voter,
            }
        )
        return
    click.echo(f"Broker {found.key.node_id} {what}.")
    if what == "is the only voter":
        click.echo(
            "Start it; remove each lost broker with `quiverlog cluster decommission NODE`, and"
            " empty its data directory before it is started again."
        )


def _places(answers: Mapping[int, _Found], *, is_voter: bool) -> dict[str, str]:
    return {str(n): one.at for n, one in sorted(answers.items()) if one.is_voter == is_voter}


def _answering(cluster_id: str, others: Mapping[int, Sequence[str]]) -> dict[int, _Found]:
    found: dict[int, _Found] = {}
    for node_id, endpoints in others.items():
        asked = [_answer(cluster_id, node_id, endpoint) for endpoint in endpoints]
        there = [one for one in asked if one is not None]
        if there:
            found[node_id] = max(there, key=lambda one: one.is_voter)
    return found


def _answer(cluster_id: str, node_id: int, endpoint: str) -> _Found | None:
    """Return what accepts connections there; None: nothing that may be that voter."""
    from quiverlog.version import VERSION
    from quiverlog.wire.connection import ClientConnection
    from quiverlog.wire.frames import FrameReceiver
    from quiverlog.wire.messages import HelloResponse

    try:
        connection = socket.create_connection(parse_address(endpoint), timeout=_ANSWER_S)
    except (OSError, ValueError):
        return None
    with connection:
        protocol, receiver = ClientConnection(), FrameReceiver()
        try:
            connection.sendall(protocol.hello("quorum-recover", VERSION))
            while True:
                count = connection.recv_into(receiver.get_buffer(-1))
                if not count:
                    return None  # It closed the connection, which no live voter does.
                for frame in receiver.buffer_updated(count):
                    hello = protocol.receive(frame)[1]
                    assert isinstance(hello, HelloResponse)
                    if (hello.cluster_id, hello.node_id) != (cluster_id, node_id):
                        return None  # Another broker has the address now.
                    return _Found(endpoint, is_voter=True)
        except TimeoutError:
            pass  # It may be a voter whose loop is blocked.
        except (OSError, CorruptFrame, InvalidResponse):
            return None
        except QuiverlogError:
            pass  # It may be a voter without a place for this connection.
    return _Found(endpoint, is_voter=False)
