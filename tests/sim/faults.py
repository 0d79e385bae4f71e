"""The simulated disk with a fuse: the power may fail between any two operations on it.

Owns the fuse and the switch for a full disk. Must not know: brokers, clients.
"""

from __future__ import annotations

import random

from .disk import SimDisk

__all__ = ["FaultyDisk", "PowerLoss"]


class PowerLoss(BaseException):
    """The machine stopped here. Not an Exception: no handler of the broker may survive it."""


class FaultyDisk(SimDisk):
    """See the module docstring. `lost_power` tells how the last life ended."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.lost_power = False
        self._fuse: int | None = None

    def fail_power_after(self, operations: int | None) -> None:
        """Raise PowerLoss at the so-manieth operation from now; None takes the fuse out."""
        self._fuse = operations

    def _burn(self) -> None:
        if self._fuse is not None:
            self._fuse -= 1
            if self._fuse < 0:
                self._fuse = None
                raise PowerLoss

    def step(self, kind: str, path: str) -> None:
        self._burn()

    def power_loss(self) -> None:
        """What was not synced is lost, torn or kept."""
        self._fuse = None
        self.lost_power = True
        self.crash()

    def process_death(self) -> None:
        """Everything written stays."""
        self._fuse = None
        self.lost_power = False
        self.kill()

    def set_full(self, full: bool) -> None:
        """No further byte fits, or any number."""
        self.capacity = self.used_bytes if full else None

    def flip_somewhere(self, chance: random.Random, suffix: str) -> str | None:
        """Flip a durable bit of some partition's file; its path, None when there is none."""
        paths = [path for path in self.paths() if path.endswith(suffix)]
        paths = [path for path in paths if "/data/" in path]
        spared = 64 if suffix == ".log" else 0
        paths = [path for path in paths if self.durable_size(path) > spared]
        if not paths:
            return None
        path = chance.choice(paths)
        self.flip_bit(path, chance.randrange(spared * 8, self.durable_size(path) * 8))
        return path
