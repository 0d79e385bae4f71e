"""What follows for partitions from what happens to a broker: leaders move, in-sync replicas shrink.

Every function reads the image as it is before the broker's own record, and returns the records that
join it in its entry. Until brokers lead partitions in each other's place, nothing follows.

Must not know: why a broker is fenced, sessions, requests.
"""

from __future__ import annotations

from quiverlog.core.controller.image import Image
from quiverlog.core.controller.records import Record

__all__ = [
    "broker_fenced",
    "broker_restarted_uncleanly",
    "broker_shutting_down",
    "broker_unfenced",
]


def broker_fenced(image: Image, node_id: int) -> list[Record]:
    """A fenced broker leads nothing from now on, and counts as a copy of nothing."""
    assert node_id in image.brokers
    assert node_id >= 0
    return []


def broker_unfenced(image: Image, node_id: int) -> list[Record]:
    """A broker may lead again what waits for it."""
    assert node_id in image.brokers
    assert node_id >= 0
    return []


def broker_shutting_down(image: Image, node_id: int) -> list[Record]:
    """A broker hands over what it leads: others first, nobody where there are none."""
    assert node_id in image.brokers
    assert node_id >= 0
    return []


def broker_restarted_uncleanly(image: Image, node_id: int) -> list[Record]:
    """A broker may have lost unflushed rows: no copy of it counts until it has caught up."""
    assert node_id in image.brokers
    assert node_id >= 0
    return []
