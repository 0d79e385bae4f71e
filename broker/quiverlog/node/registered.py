"""What the metadata say of brokers' registrations, for those who copy and those who are copied.

Owns nothing: the image is asked each time. A broker is itself under the epoch of the registration
that this life of it has made; that of an earlier life says nothing of what its disk holds now.
"""

from __future__ import annotations

from collections.abc import Callable

from quiverlog.core.controller.alter_partition import fit_epoch
from quiverlog.core.controller.image import Image
from quiverlog.errors import StaleBrokerEpoch

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

    def check_life(self, broker_id: int, broker_epoch: int) -> None:
        """A broker asks under this epoch: it was given to it, as far as is known here.

        One that was never given would be remembered as that of a later life, and the broker itself
        be refused until this one leads no more. Who is not registered at all holds no partition.

        Raises:
            StaleBrokerEpoch: no such registration is known here, or not yet.
        """
        broker = self._image().brokers.get(broker_id)
        if broker is not None and broker.broker_epoch < broker_epoch:
            raise StaleBrokerEpoch(
                f"a registration of broker {broker_id} under {broker_epoch} is not known here yet."
            )

    @property
    def own_epoch(self) -> int:
        """The broker epoch of this life; negative while it is not registered."""
        broker = self._image().brokers.get(self._node_id)
        if broker is None or broker.incarnation != self._incarnation():
            return -1
        return broker.broker_epoch
