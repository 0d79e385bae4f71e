"""Log lines about refused logins and proofs: one a minute for an address, as clients cause them."""

from __future__ import annotations

from typing import Final

from quiverlog.node.runtime.outbox import Outbox
from quiverlog.types import Now

__all__ = ["ADDRESSES_MAX", "RefusalLog"]

_QUIET_US: Final = 60_000_000
ADDRESSES_MAX: Final = 64
"""With a line of their own in a minute; all others have one together."""


class RefusalLog:
    __slots__ = ("_event", "_logged_us", "_outbox")

    def __init__(self, outbox: Outbox, event: str) -> None:
        self._outbox = outbox
        self._event = event
        # When one was logged, by address: those of the last minute.
        self._logged_us: dict[str, int] = {}

    def refused(self, address: str, why: str, now: Now) -> None:
        since_us = now.mono_us - _QUIET_US
        self._logged_us = {one: us for one, us in self._logged_us.items() if us > since_us}
        is_full = len(self._logged_us) >= ADDRESSES_MAX
        key = "" if is_full and address not in self._logged_us else address
        if key not in self._logged_us:
            self._logged_us[key] = now.mono_us
            self._outbox.log("warning", self._event, address=address, why=why)
        assert len(self._logged_us) <= ADDRESSES_MAX + 1
