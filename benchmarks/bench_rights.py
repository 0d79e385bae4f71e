"""What rules of access cost: the same small produces to a broker with rules, and to one without.

1 KiB batches, 64 in flight on one connection without a login. One of a hundred rules allows what it
does, by a prefix.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import quiverlog
from benchmarks.harness import Comparison, Settings, interleave
from benchmarks.quiver import (
    expect_rows,
    largest_batch,
    numbered,
    open_load,
    produce_frame,
    producer_id,
    running,
    temporary_topic,
)
from quiverlog.client.admin.rules import AccessRule
from quiverlog.client.client import Client
from tests.support.broker import BrokerProcess

REQUESTS = 20_000
DEPTH = 64
RULES = 100
COST_MAX = 0.02


@contextmanager
def _by_rules() -> Iterator[tuple[BrokerProcess, Client]]:
    """A broker that began without logins, so that the first rules need none."""
    with BrokerProcess() as broker:
        with quiverlog.connect(broker.bootstrap) as client:
            everything = [
                AccessRule("anonymous", True, "all", "topic", "", is_prefix=True),
                AccessRule("anonymous", True, "all", "cluster"),
            ]
            others = [
                AccessRule(f"user:user-{number}", True, "read", "topic", f"topic-{number}")
                for number in range(RULES - len(everything))
            ]
            client.add_rules([*everything, *others])
        broker.config |= {
            "listeners.default.authentication": "wanted",
            "listeners.default.allow.plaintext": True,
        }
        broker.restart()
        with quiverlog.connect(broker.bootstrap) as client:
            assert client.check_access("anonymous", "write", "topic", "small").is_on
            yield broker, client


def run(settings: Settings) -> list[Comparison]:
    requests = settings.scaled(REQUESTS)
    batch, rows = largest_batch(1024, schema_id=1)
    names = (f"small-{number}" for number in itertools.count())
    with running() as open_one, _by_rules() as ruled:
        copies = {
            client: numbered(batch, requests, producer_id=producer_id(client), rows=rows)
            for _, client in (open_one, ruled)
        }

        def measure(broker: BrokerProcess, client: Client) -> float:
            name = next(names)
            with temporary_topic(client, name, durability="memory") as topic:
                frames = [
                    [b"".join(produce_frame(topic, copy, number))]
                    for number, copy in enumerate(copies[client], 1)
                ]
                with open_load(broker) as load:
                    seconds = load.pipeline(frames, depth=DEPTH)
                expect_rows(client, name, rows * requests)
            return requests / seconds

        rounds = interleave(settings.rounds, lambda: measure(*ruled), lambda: measure(*open_one))
    return [
        Comparison(
            "small produce requests by rules, against a broker without",
            "requests/s",
            rounds.ours,
            rounds.baseline,
            budget=1 - COST_MAX,
        )
    ]
