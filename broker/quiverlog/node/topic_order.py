"""The order in which one connection's changes of topics are decided: as they were sent.

CREATE_TOPICS, DELETE_TOPICS and ALTER_TOPIC take several steps, and one that has to wait (for the
old topic of its name to be gone) would be overtaken by those behind it: a DELETE would not find the
topic that the CREATE in front of it is about to make. So a change decides nothing about a name
before the changes in front of it on its connection have decided theirs about it. About different
names, and between connections, there is no order.

Owns the changes that have something left to decide. A decision is what `Metadata.pending` shows at
once; whether it became durable is not waited for.

Must not know: what is decided.
"""

from __future__ import annotations

from collections.abc import Sequence

from quiverlog.node.jobs import Starter, Then
from quiverlog.types import Now

__all__ = ["Change", "TopicOrder"]


class Change:
    """One request about topics, which are decided in the order of `names`."""

    __slots__ = ("_last", "connection_id", "decided", "names", "waiting")

    def __init__(self, connection_id: int, names: Sequence[str]) -> None:
        self.connection_id = connection_id
        self.names = names
        self.decided = 0
        self.waiting: list[Then] = []
        self._last: dict[str, int] | None = None

    def will_decide(self, name: str) -> bool:
        """True while something about this name is left to be decided."""
        if self._last is None:  # Asked for the first time: most never are.
            self._last = {name: index for index, name in enumerate(self.names)}
        return self._last.get(name, -1) >= self.decided


class TopicOrder:
    """See the module docstring."""

    __slots__ = ("_changes",)

    def __init__(self) -> None:
        # By connection, in the order in which they were sent.
        self._changes: dict[int, dict[Change, None]] = {}

    def enter(self, connection_id: int, names: Sequence[str]) -> Change:
        """A request has arrived. Whatever becomes of it, `leave` must be called."""
        change = Change(connection_id, names)
        if names:
            self._changes.setdefault(connection_id, {})[change] = None
        return change

    def wait(self, change: Change) -> Starter | None:
        """What to wait for before the next name may be decided; None: it may be, now."""
        assert change.decided < len(change.names), "all of its names are decided"
        name = change.names[change.decided]
        for earlier in self._changes[change.connection_id]:
            if earlier is change:
                return None
            if earlier.will_decide(name):
                return earlier.waiting.append
        raise AssertionError("a change that has left decides nothing")

    def decided(self, change: Change, now: Now) -> None:
        """The next name of the change was decided, or refused."""
        change.decided += 1
        assert change.decided <= len(change.names)
        if change.decided == len(change.names):
            self.leave(change, now)
        else:
            self._wake(change, now)

    def leave(self, change: Change, now: Now) -> None:
        """The change decides nothing more. May be called twice."""
        assert change.decided <= len(change.names)
        mine = self._changes.get(change.connection_id)
        if mine is not None and change in mine:
            del mine[change]
            if not mine:
                del self._changes[change.connection_id]
        self._wake(change, now)

    @staticmethod
    def _wake(change: Change, now: Now) -> None:
        waiting, change.waiting = change.waiting, []
        for then in waiting:
            then(None, None, now)
