"""Directories of partitions that others have decided to be here: made after the record holds.

Owns those that wait for theirs, and the one job under way. Who decides makes its own directories
before anything is logged (decisions.py); a broker that only hears of it cannot refuse any more.
A name that an older partition's files still have is waited for, unless the topic that wants it was
deleted meanwhile.

Must not know: what is done with a partition that has its directory, or gets none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, Protocol

from quiverlog.errors import ThrottledBroker
from quiverlog.node.directory_jobs import LateDirectoriesJob
from quiverlog.node.jobs import Jobs
from quiverlog.node.offline import Key
from quiverlog.storage.directory.data_directory import DataDirectory
from quiverlog.types import Now, TopicPartition

__all__ = ["LateDirectories"]

_PER_JOB_MAX: Final = 64
"""Made with one flush."""
_NAME_TAKEN_US: Final = 100_000
"""The pause until it is looked again whether names have become free."""


class CheckFree(Protocol):
    """Raises ThrottledBroker while partitions of these names cannot be made."""

    def __call__(self, names: Mapping[str, bytes], topic_names: Iterable[str], /) -> None: ...


class LateDirectories:
    """See the module docstring.

    Args:
        is_deleted: whether the topic of this id has gone since.
        then: gets True for a directory that was made, False for one that was there or that nobody
            needs any more, or what failed.
        all_told: called when that was said of each of a job.
    """

    __slots__ = (
        "_all_told",
        "_check_free",
        "_directory",
        "_is_deleted",
        "_is_making",
        "_jobs",
        "_not_before_us",
        "_then",
        "_waiting",
    )

    _directory: DataDirectory

    def __init__(
        self,
        jobs: Jobs,
        check_free: CheckFree,
        is_deleted: Callable[[bytes], bool],
        then: Callable[[Key, bool | BaseException, Now], None],
        all_told: Callable[[Now], None],
    ) -> None:
        self._jobs = jobs
        self._check_free = check_free
        self._is_deleted = is_deleted
        self._then = then
        self._all_told = all_told
        self._waiting: deque[tuple[Key, TopicPartition]] = deque()
        self._is_making = False
        self._not_before_us = 0

    def load(self, directory: DataDirectory) -> None:
        """The partitions lie there."""
        self._directory = directory

    @property
    def next_us(self) -> int | None:
        """When `run` has something to do; a job that is under way calls it when it is back."""
        return self._not_before_us if self._waiting and not self._is_making else None

    def add(self, key: Key, name: TopicPartition) -> None:
        """Make this one's."""
        self._waiting.append((key, name))

    def take_all(self) -> list[Key]:
        """Those whose directories nobody has begun to make, and nobody will."""
        left = [key for key, _ in self._waiting]
        self._waiting.clear()
        return left

    def run(self, now: Now) -> None:
        """Begin with the next few, unless some are under way or none can be made."""
        if not self._waiting or self._is_making or now.mono_us < self._not_before_us:
            return
        keys: dict[str, Key] = {}
        for _ in range(min(_PER_JOB_MAX, len(self._waiting))):
            key, name = self._waiting.popleft()
            if self._is_deleted(key[0]):
                # Its name is taken by a deleted topic for as long as it waits: by itself.
                self._then(key, False, now)
                continue
            if str(name) in keys:  # One of two topics of this name was deleted.
                self._waiting.appendleft((key, name))
                break
            try:
                self._check_free({str(name): key[0]}, [name.topic])
            except ThrottledBroker:
                self._waiting.append((key, name))
                continue
            keys[str(name)] = key
        if not keys:
            if self._waiting:
                self._not_before_us = now.mono_us + _NAME_TAKEN_US
            return
        assert len(keys) <= _PER_JOB_MAX
        self._is_making = True
        job = LateDirectoriesJob(self._directory, {name: key[0] for name, key in keys.items()})
        self._jobs.start(job, partial(self._made, keys))

    def _made(
        self, keys: dict[str, Key], result: object, error: BaseException | None, now: Now
    ) -> None:
        """Called again with an error after a failure of ours: then about those that are left."""
        assert self._is_making or error is not None, "one job at a time"
        self._is_making = False
        while keys:
            name, key = keys.popitem()
            if error is not None:
                self._then(key, error, now)
            else:
                assert isinstance(result, dict)
                assert name in result, "each has its result"
                self._then(key, result[name], now)
        self._all_told(now)
