"""The metadata that this broker has applied, for the parts that only read them.

A snapshot of the quorum replaces the image: the parts hold the view, not the image.
"""

from __future__ import annotations

from collections.abc import Mapping

from quiverlog.core.controller.image import Image

__all__ = ["MetadataView"]


class MetadataView:
    __slots__ = ("image",)

    def __init__(self, topic_defaults: Mapping[str, str]) -> None:
        self.image = Image(topic_defaults)

    def publish(self, image: Image) -> None:
        assert image.given == self.image.given
        self.image = image
