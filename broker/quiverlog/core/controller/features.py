"""Feature levels: which records and requests all brokers of the cluster understand (KIP-584).

A level is finalised only when every registered broker supports it, and never goes back.

A metadata log without a record of it has level 1. A change that older brokers would not understand
takes the next level, and is written only where `check_finalised` lets it.
"""

from __future__ import annotations

from typing import Final

from quiverlog.batch.checksum import crc32c
from quiverlog.core.controller.image import Image
from quiverlog.core.controller.records import (
    BrokerRecord,
    ClusterNumberRecord,
    FeatureLevelRecord,
    Record,
)
from quiverlog.errors import FeatureNotFinalised, InvalidFeatureLevel, UnsupportedFeatureLevel
from quiverlog.limits import FEATURE_LEVEL_MAX, FEATURE_LEVEL_MIN
from quiverlog.types import CLUSTER_NUMBERS_END

__all__ = [
    "GROUPS_LEVEL",
    "LEVELS",
    "SECURITY_LEVEL",
    "TRANSACTIONS_LEVEL",
    "check_finalised",
    "check_supports",
    "cluster_number",
    "finalise",
    "level_records",
]

LEVELS: Final = {
    1: "what release 0.1.0 has",
    2: "transactions",
    3: "users, rules and quotas",
    4: "consumer groups",
}

assert list(LEVELS) == [*range(FEATURE_LEVEL_MIN, FEATURE_LEVEL_MAX + 1)], "each has its line"


TRANSACTIONS_LEVEL: Final = 2
SECURITY_LEVEL: Final = 3
GROUPS_LEVEL: Final = 4


def check_finalised(image: Image, level: int, what: str) -> None:
    """Raise FeatureNotFinalised before anything is decided that brokers below a level would not
    understand."""
    assert level in LEVELS
    if image.feature_level < level:
        raise FeatureNotFinalised(
            f"{what} needs feature level {level}, the cluster has {image.feature_level}."
        )


def check_supports(image: Image, newcomer: BrokerRecord) -> None:
    low, high = newcomer.feature_level_min, newcomer.feature_level_max
    assert image.feature_level >= FEATURE_LEVEL_MIN
    if not low <= image.feature_level <= high:
        raise UnsupportedFeatureLevel(
            f"the cluster has feature level {image.feature_level}, broker {newcomer.node_id}"
            f" supports {low} to {high}."
        )


def finalise(image: Image, level: int, cluster_id: str) -> list[Record]:
    if level < image.feature_level:
        raise InvalidFeatureLevel(
            f"the cluster has feature level {image.feature_level} and does not go back to {level}:"
            " what was written since is not understood there."
        )
    if level == image.feature_level:
        return []
    if level > FEATURE_LEVEL_MAX:
        raise InvalidFeatureLevel(f"there is no feature level {level} yet.")
    behind = [n for n, one in sorted(image.brokers.items()) if level > one.feature_level_max]
    behind += [n for n, one in sorted(image.brokers.items()) if level < one.feature_level_min]
    # From then on the log may hold records of the level. A broker cannot skip an unknown one: its
    # image would differ from that of the others.
    if behind:
        unsupporting = ", ".join(
            f"{n} (up to {image.brokers[n].feature_level_max})" for n in behind[:_NAMED_MAX]
        )
        raise InvalidFeatureLevel(f"not every broker supports level {level}: {unsupporting}.")
    return level_records(image, level, cluster_id)


_NAMED_MAX: Final = 10


def level_records(image: Image, level: int, cluster_id: str) -> list[Record]:
    """Return the records that raise the level, with what each level in between begins with."""
    assert level > image.feature_level
    records: list[Record] = [FeatureLevelRecord(level)]
    if level >= TRANSACTIONS_LEVEL and not image.cluster_number:
        records.append(ClusterNumberRecord(cluster_number(cluster_id)))
    return records


def cluster_number(cluster_id: str) -> int:
    """Return a number from 1 to 2**15 - 1, by which ids of one cluster differ from another's."""
    return 1 + crc32c(cluster_id.encode()) % (CLUSTER_NUMBERS_END - 1)
