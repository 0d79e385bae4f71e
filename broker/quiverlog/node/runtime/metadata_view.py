"""The metadata that this broker has applied, for the parts that only read them.

Owns which image is the newest: a snapshot of the quorum brings another one, which `Metadata`
publishes. Each part is made with the view, before there are any metadata.
"""

from __future__ import annotations

from collections.abc import Mapping

from quiverlog.core.controller.image import Image

__all__ = ["MetadataView"]


class MetadataView:
    """`image`: what holds now.

    Args:
        topic_defaults: the broker's own defaults of topic keys, by name.
    """

    __slots__ = ("image",)

    def __init__(self, topic_defaults: Mapping[str, str]) -> None:
        self.image = Image(topic_defaults)

    def publish(self, image: Image) -> None:
        """This image takes the place of the one before."""
        assert image.given == self.image.given
        self.image = image
