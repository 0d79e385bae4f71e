"""`consume --follow` over an outage of the broker, however long it is.

Owns what is said of it, and the pause between two looks.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from quiverlog.cli.failures import explain, one_line

if TYPE_CHECKING:
    from quiverlog.client.client import Client
    from quiverlog.client.consumer import Consumer
    from quiverlog.client.consumer_batch import ConsumerBatch

__all__ = ["through_outages"]

_OUTAGE_PAUSE_S: Final = 0.5


def through_outages(client: Client, consumer: Consumer) -> Iterator[ConsumerBatch]:
    """All that comes, for ever: a failure that time may heal is told once and waited out."""
    from quiverlog.errors import QuiverlogError

    client.cluster.waits.muted = True
    while True:
        try:
            yield from consumer
            return
        except QuiverlogError as error:
            if not error.retriable:
                raise
            text, _ = explain(error)
            print(f"quiverlog: {one_line(text)} Waiting for it.", file=sys.stderr)
            _wait_for_broker(client)
            print("quiverlog: it answers again; reading on.", file=sys.stderr)


def _wait_for_broker(client: Client) -> None:
    from quiverlog.errors import QuiverlogError

    while True:
        try:
            client.metadata()
            return
        except QuiverlogError as error:
            if not error.retriable:
                raise
            time.sleep(_OUTAGE_PAUSE_S)
