"""What goes wrong with a cluster of this machine, as one exception with a sentence for a person."""

from __future__ import annotations

__all__ = ["LocalClusterFailed"]


class LocalClusterFailed(Exception):
    """A local cluster did not do what it was asked; the text gives the reason and what to do."""
