"""Bugs on a switch: each is planted, and the checker must find it, or it would prove nothing.

Owns the list of all.
"""

from __future__ import annotations

from .bug import Bug
from .node_bugs import DISKS, DOOR, METADATA, WORK
from .storage_bugs import DURABILITY, RECOVERY

__all__ = ["BUGS", "Bug"]

BUGS = (*DURABILITY, *METADATA, *RECOVERY, *DOOR, *WORK, *DISKS)
