"""A member of a group, written from docs/protocol.md alone; no quiverlog."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

from .client import Refused, check, crc32c
from .transactions import TRY_AGAIN, TransactionalStranger

T = TypeVar("T")
HEARTBEAT, COMMIT_OFFSETS, FETCH_OFFSETS = 28, 29, 30
FENCED, UNKNOWN_MEMBER = 95, 94
PATIENCE_S = 20


class StrangeMember:
    """Reads what it is given, from where its group has come to."""

    def __init__(self, stranger: TransactionalStranger, group: str, topic: str) -> None:
        self._stranger = stranger
        self._group = group
        self._topic = topic
        self.member_id = os.urandom(16)
        self.epoch = 0
        self._beat = 0
        self.has: dict[bytes, list[int]] = {}

    def _coordinator(self) -> int:
        """The controller, while there is no `__groups`."""
        if "__groups" not in self._stranger.topics:
            return self._stranger.controller_id
        leaders = self._stranger.topics["__groups"].leaders
        return leaders[crc32c(self._group.encode()) % len(leaders)]

    def _ask(self, api: int, *fields: Any) -> list[Any]:
        def ask() -> list[Any]:
            answer, _ = self._stranger.at(self._coordinator()).ask(api, self._group, *fields)
            check(answer[3], answer[4])
            return answer

        return self._again(ask)

    def _again(self, ask: Callable[[], T]) -> T:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return ask()
            except Refused as error:
                if error.code not in TRY_AGAIN or time.monotonic() > deadline:
                    raise
            time.sleep(0.05)
            self._stranger.refresh()

    def beat(self, epoch: int | None = None) -> int:
        """One heartbeat; returns after how many ms the next one is due."""
        joins = self.epoch == 0 and not self.has
        owned = [[topic_id, numbers] for topic_id, numbers in self.has.items()]
        self._beat += 1
        answer = self._ask(
            HEARTBEAT,
            self.member_id,
            self.epoch if epoch is None else epoch,
            "",
            "",
            [self._topic] if joins else None,
            "",
            -1,
            -1,
            owned,
            self._beat,
        )
        self.epoch = answer[5]
        if answer[7] is not None:
            self.has = {topic_id: numbers for topic_id, _, numbers in answer[7]}
        return int(answer[6])

    def settle(self) -> None:
        """Beat until there is nothing new."""
        deadline = time.monotonic() + PATIENCE_S
        while (due_ms := self.beat()) < 1_000:
            assert time.monotonic() < deadline
            time.sleep(due_ms / 1000)

    def committed(self) -> dict[int, int]:
        """Of what it has, by partition; -1: none."""
        asked = [[topic_id, numbers] for topic_id, numbers in self.has.items()]
        answer = self._ask(FETCH_OFFSETS, asked, False)
        return {one[1]: one[4] for one in answer[5]}

    def commit(self, offset: int) -> list[int]:
        """Commits for all that it has; returns the codes."""
        entries = [[topic_id, n, offset, -1, ""] for topic_id, ns in self.has.items() for n in ns]
        answer = self._ask(COMMIT_OFFSETS, self.member_id, self.epoch, entries)
        return [one[2] for one in answer[5]]

    def leave(self) -> None:
        self.beat(-1)
