"""Operators of a cluster: each creates, alters, deletes and looks up a few topics, over and over.

Owns what they ask for and what is recorded of the answers (`histories`); rows of their topics are
not looked at. They ask the controller, now and then another broker, and do not take a missing
answer for a request without effect; they do take an error's word for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from quiverlog.errors import (
    InvalidReplicationFactor,
    NotController,
    OutcomeUnknown,
    QuiverlogError,
    RequestTimedOut,
    TopicExists,
    UnknownTopic,
    error_class,
)
from quiverlog.wire import messages as m
from tests.sim.checker import Checker, Violation
from tests.sim.rows import schema_bytes

from .clients import _Routed
from .histories import Histories
from .linear import NEVER, Operation

__all__ = ["NAMES", "Operator"]

NAMES: Final = ("short-lived", "other")
_UNKNOWN: Final = (OutcomeUnknown.code, RequestTimedOut.code, QuiverlogError.code)
"""Any other error means that nothing was decided, and nothing will be."""
_PAUSE_US = 600_000
_AGES_MS = ("-1", "3600000", "7200000")


@dataclass(slots=True)
class _Asked:
    """A change that has no answer yet."""

    kind: str
    name: str
    called_us: int


class Operator(_Routed):
    def __init__(self, world: Any, checker: Checker, number: int, histories: Histories) -> None:
        self.histories = histories
        self.versions: dict[int, int] = {}
        """When the metadata had this version for the first time anywhere."""
        self._change: _Asked | None = None
        self._left: set[str] | None = None
        super().__init__(world, checker, f"operator-{number}", (b"", 0))

    # --- asking --------------------------------------------------------------------------------
    def wind_up(self) -> None:
        """All of these topics go now.

        One whose leader died before it had made the directory is offline until then.
        """
        self._left = set(NAMES)

    def act(self) -> None:
        if self._left is not None:
            for name in sorted(self._left)[:1]:
                self._ask_for("delete", name)
            return
        name = self.rng.choice(NAMES)
        if self.rng.random() < 0.4:
            self.ask(m.MetadataRequest(topics=[name]))
            return
        self._ask_for(self.rng.choice(("create", "delete", "alter")), name)

    def _ask_for(self, kind: str, name: str) -> None:
        self._change = _Asked(kind, name, self.world.mono_us)
        self.ask(self._request(kind, name))

    def _request(self, kind: str, name: str) -> m.Request:
        if kind == "delete":
            return m.DeleteTopicsRequest(names=[name])
        if kind == "alter":
            ages = {"retention.ms": self.rng.choice(_AGES_MS)}
            return m.AlterTopicRequest(name=name, set_configs=ages)
        copies = min(3, len(self.world.hosts))
        topic = m.NewTopic(
            name=name, schema=schema_bytes(1), partitions=1, replication_factor=copies
        )
        return m.CreateTopicsRequest(topics=[topic])

    # --- answers -------------------------------------------------------------------------------
    def answered(self, request: m.Request, response: m.Response, body: bytes) -> None:
        if isinstance(response, m.MetadataResponse):
            self._learnt(request, response)
        elif not isinstance(response, m.HelloResponse):
            results = getattr(response, "topics", None) or [response]
            self._decided(results[0].error_code or response.error_code, results[0].error_message)
        if self.connection is not None:
            self.later(self.rng.randrange(1_000, _PAUSE_US))

    def _decided(self, code: int, message: str) -> None:
        change, self._change = self._change, None
        assert change is not None
        self.checker.error(code)
        against = TopicExists.code if change.kind == "create" else UnknownTopic.code
        if code in (0, against):
            self._put_down(change, "done" if code == 0 else "refused", self.world.mono_us)
            if self._left is not None and change.kind == "delete":
                self._left.discard(change.name)
            return
        if code == InvalidReplicationFactor.code:
            return  # Too few brokers are there just now.
        if not error_class(code).retriable:
            raise Violation(f"{change.kind} of {change.name} was refused: {message}")
        if code in _UNKNOWN:
            self._put_down(change, None, NEVER)
        else:  # It never takes effect: the history of the name does without it.
            self.world.events[f"topic {change.kind}: never"] += 1
        if code == NotController.code:
            self._elsewhere()
            self.hang_up_later(self.rng.randrange(1, 300_000))

    def _put_down(self, change: _Asked, answer: str | None, now_us: int) -> None:
        self.world.events[f"topic {change.kind}: {answer or 'unknown'}"] += 1
        done = Operation(change.kind, None, answer, change.called_us, now_us)
        self.histories.name(change.name, done)

    def _learnt(self, request: m.Request, response: m.MetadataResponse) -> None:
        assert isinstance(request, m.MetadataRequest)
        assert request.topics
        if response.error_code:
            self.checker.error(response.error_code)
            return
        is_there = not response.topics[0].error_code
        version, sent_us = response.metadata_version, self.last.sent_us
        called_us = min(sent_us, self.versions.get(version, sent_us))
        read = Operation("read", version, is_there, called_us, self.world.mono_us)
        self.histories.name(request.topics[0], read)
        if response.controller_id not in (-1, self._target) and self.rng.random() < 0.8:
            self.hang_up()
            self._target = response.controller_id

    def lost(self) -> None:
        change, self._change = self._change, None
        if change is not None:
            self._put_down(change, None, NEVER)
        super().lost()

    @property
    def idle(self) -> bool:
        """Are all topics gone, and was everything answered, or given up?"""
        return self._change is None and self._left == set()
