"""Plans of moves as files: the JSON of Kafka's kafka-reassign-partitions.

    {"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2]}]}

Further keys, such as Kafka's `log_dirs`, are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec

from quiverlog.cli.console.failures import CommandFailed
from quiverlog.cli.moves.placement import Placement
from quiverlog.core.placement.moves import Move
from quiverlog.limits import PARTITIONS_PER_TOPIC_MAX, REPLICATION_FACTOR_MAX

__all__ = ["PLAN_BYTES_MAX", "plan_text", "read_plan"]

PLAN_BYTES_MAX: Final = 64 * 1024 * 1024

_Node = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class _Partition(msgspec.Struct):
    topic: str
    partition: Annotated[int, msgspec.Meta(ge=0, lt=PARTITIONS_PER_TOPIC_MAX)]
    replicas: Annotated[list[_Node], msgspec.Meta(min_length=1, max_length=REPLICATION_FACTOR_MAX)]


class _Plan(msgspec.Struct):
    partitions: list[_Partition]
    version: int = 1


_DECODER: Final = msgspec.json.Decoder(_Plan)


def plan_text(moves: Sequence[Move]) -> str:
    lines = ",\n".join(
        "  " + msgspec.json.encode(_Partition(m.topic, m.partition, list(m.after))).decode()
        for m in moves
    )
    body = f"\n{lines}\n" if lines else ""
    return f'{{"version": 1, "partitions": [{body}]}}\n'


def read_plan(file: Path, placement: Placement) -> list[Move]:
    plan = _decoded(file)
    held = {(one.topic, one.partition): one for one in placement.partitions}
    seen: set[tuple[str, int]] = set()
    found: list[Move] = []
    for wanted in plan.partitions:
        key = (wanted.topic, wanted.partition)
        now = held.get(key)
        if now is None:
            raise CommandFailed(f"{file}: there is no partition {wanted.partition} of a topic "
                                f"{wanted.topic!r}.")  # fmt: skip
        if key in seen:
            raise CommandFailed(f"{file}: {wanted.topic}-{wanted.partition} comes twice.")
        if len(set(wanted.replicas)) != len(wanted.replicas):
            raise CommandFailed(f"{file}: {wanted.topic}-{wanted.partition} names a broker twice.")
        seen.add(key)
        if now.replicas != tuple(wanted.replicas):
            found.append(now.move(tuple(wanted.replicas)))
    return found


def _decoded(file: Path) -> _Plan:
    with file.open("rb") as opened:
        text = opened.read(PLAN_BYTES_MAX + 1)
    if len(text) > PLAN_BYTES_MAX:
        raise CommandFailed(f"{file} has more than {PLAN_BYTES_MAX} bytes.")
    try:
        plan = _DECODER.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CommandFailed(f"{file} is no plan: {error}.") from None
    if plan.version != 1:
        raise CommandFailed(f"{file} is a plan of version {plan.version}, known is 1.")
    return plan
