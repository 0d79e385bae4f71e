"""What the metadata say of brokers' registrations, for those who copy and those who are copied.

Owns nothing: the image is asked each time. A broker is itself under the epoch of the registration
that this life of it has made; that of an earlier life says nothing of what its disk holds now.
"""

from __future__ import annotations

from collections.abc import Callable

from quiverlog.core.controller.alter_partition import fit_epoch
from quiverlog.core.controller.image import Image

__all__ = ["Registered"]


class Registered:
    """See the module docstring. The `Brokers` of leaderships.

    Args:
        image: what holds now.
        incarnation: of this life of the broker.
    """

    __slots__ = ("_image", "_incarnation", "_node_id")

    def __init__(
        self, node_id: int, image: Callable[[], Image], incarnation: Callable[[], bytes]
    ) -> None:
        self._node_id = node_id
        self._image = image
        self._incarnation = incarnation

    def fit_epoch(self, broker_id: int) -> int | None:
        """See `Brokers`."""
        return fit_epoch(self._image(), broker_id)

    @property
    def own_epoch(self) -> int:
        """The broker epoch of this life; negative while it is not registered."""
        broker = self._image().brokers.get(self._node_id)
        if broker is None or broker.incarnation != self._incarnation():
            return -1
        return broker.broker_epoch
