"""Partitions that are to be opened: their order, how many at once, and directories made late.

A directory that this broker made with the decision is empty and needs no job; one of another
broker's decision is made by a job first.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple, Protocol

from quiverlog.core.controller.features import cluster_number
from quiverlog.core.controller.topic_image import TopicImage
from quiverlog.errors import ThrottledBroker
from quiverlog.node.partitions.directories import (
    LateDirectoriesJob,
    LogOptions,
    OpenedReplica,
    OpenJob,
    OpenManyJob,
    new_log,
)
from quiverlog.node.partitions.offline import Key, Opening
from quiverlog.node.partitions.replica import log_config
from quiverlog.node.runtime.config import NodeConfig
from quiverlog.node.runtime.jobs import Jobs, Then
from quiverlog.storage.directory.data_directory import DataDirectory
from quiverlog.storage.disk.disk import Disk
from quiverlog.storage.segment.segments import IndexCache
from quiverlog.types import Now, TopicPartition

__all__ = [
    "JOBS_IN_FLIGHT_MAX",
    "LOGS_PER_JOB_MAX",
    "Key",
    "LateDirectories",
    "OpeningListener",
    "OpeningPace",
    "Openings",
]


JOBS_IN_FLIGHT_MAX: Final = 4
"""Enough for the threads, few enough that a cold read does not queue behind thousands of logs."""
_QUICK_US: Final = 500
"""For each log: a job that is back by then has not waited for its disk."""
_PATIENCE_US: Final = 50_000
"""A job that is not back after this is slow, unless it has more logs than that."""
_SIDE_BY_SIDE: Final = 16
"""Jobs that run side by side before the next one is timed alone."""
_LOGS_PER_JOB: Final = 32
"""Opening a log takes less than waking a thread and the loop for it."""
LOGS_PER_JOB_MAX: Final = 1024


class OpeningPace:
    """`slow_us`: when the one job under way counts as slow; None: none is timed."""

    __slots__ = ("_logs_per_job", "_quick_us", "_side_by_side", "slow_us")

    def __init__(self) -> None:
        self._logs_per_job = _LOGS_PER_JOB
        self._side_by_side = 0
        self._quick_us = 0
        self.slow_us: int | None = None

    def look(self, now: Now) -> None:
        if self.slow_us is not None and self.slow_us <= now.mono_us:
            self._is_slow()

    def _is_slow(self) -> None:
        # Several small jobs side by side: they wait for the disk and not for the interpreter.
        self.slow_us = None
        self._side_by_side = _SIDE_BY_SIDE
        self._logs_per_job = _LOGS_PER_JOB

    def may_start(self, in_flight: int) -> bool:
        assert 0 <= in_flight <= JOBS_IN_FLIGHT_MAX
        return in_flight < JOBS_IN_FLIGHT_MAX and (not in_flight or self._side_by_side > 0)

    def logs_of_next(self, waiting: int) -> int:
        assert waiting > 0
        # One by one where there are few, which may take long to recover.
        return min(self._logs_per_job, 1 + waiting // JOBS_IN_FLIGHT_MAX)

    def started(self, logs: int, in_flight: int, now: Now) -> bool:
        """True when the job is timed: see `back`."""
        assert 0 < logs <= LOGS_PER_JOB_MAX
        if self._side_by_side:
            self._side_by_side -= 1
            return False
        if in_flight:
            return False
        self._quick_us = now.mono_us + _QUICK_US * logs
        self.slow_us = max(self._quick_us, now.mono_us + _PATIENCE_US)
        return True

    def back(self, now: Now) -> None:
        if self.slow_us is None:
            return  # It counted as slow before.
        self.slow_us = None
        if now.mono_us > self._quick_us:
            self._is_slow()
        else:
            # Jobs follow each other and double in size while the disk is quick.
            self._logs_per_job = min(2 * self._logs_per_job, LOGS_PER_JOB_MAX)
        assert _LOGS_PER_JOB <= self._logs_per_job <= LOGS_PER_JOB_MAX


_PER_JOB_MAX: Final = 64
_NAME_TAKEN_US: Final = 100_000


class CheckFree(Protocol):
    """Raises ThrottledBroker while partitions of these names cannot be made."""

    def __call__(self, names: Mapping[str, bytes], topic_names: Iterable[str], /) -> None: ...


class LateDirectories:
    """Directories of partitions that other brokers decided: made after the record is committed.

    Args:
        is_deleted: whether the topic of this id has gone since.
        then: gets True for a directory that was made, False for one that was there or is not
            needed any more, or what failed.
        job_done: called after `then` for all of a job.
    """

    __slots__ = (
        "_check_free",
        "_directory",
        "_is_deleted",
        "_is_making",
        "_job_done",
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
        job_done: Callable[[Now], None],
    ) -> None:
        self._jobs = jobs
        self._check_free = check_free
        self._is_deleted = is_deleted
        self._then = then
        self._job_done = job_done
        self._waiting: deque[tuple[Key, TopicPartition]] = deque()
        self._is_making = False
        self._not_before_us = 0

    def load(self, directory: DataDirectory) -> None:
        self._directory = directory

    @property
    def next_us(self) -> int | None:
        """A job that is under way calls `run` when it is back."""
        return self._not_before_us if self._waiting and not self._is_making else None

    def add(self, key: Key, name: TopicPartition) -> None:
        self._waiting.append((key, name))

    def take_all(self) -> list[Key]:
        left = [key for key, _ in self._waiting]
        self._waiting.clear()
        return left

    def run(self, now: Now) -> None:
        if not self._waiting or self._is_making or now.mono_us < self._not_before_us:
            return
        keys: dict[str, Key] = {}
        for _ in range(min(_PER_JOB_MAX, len(self._waiting))):
            key, name = self._waiting.popleft()
            if self._is_deleted(key[0]):
                # A deleted topic keeps its name while one of its partitions waits: this one would
                # wait for itself.
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
        job = LateDirectoriesJob(self._directory.data, {name: key[0] for name, key in keys.items()})
        self._jobs.start(job, partial(self._made, keys))

    def _made(
        self, keys: dict[str, Key], result: object, error: BaseException | None, now: Now
    ) -> None:
        # Called again with an error after a bug of ours: then for those that are left.
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
        self._job_done(now)


_TAKEN_PER_CALL: Final = 64
"""Taking an open log in takes some 30 us of the loop."""
_NEW_PER_TICK: Final = 4
"""Making the log of a new partition takes some 40 us of the loop."""


class OpeningListener(Protocol):
    def on_opened(
        self,
        key: Key,
        name: TopicPartition,
        topic: TopicImage,
        opened: OpenedReplica,
        now: Now,
    ) -> None:
        """`topic` is as it was when the opening began."""

    def on_open_failed(self, key: Key, opening: Opening, error: BaseException, now: Now) -> None:
        """The log cannot be opened."""

    def on_not_opened(self, key: Key, opening: Opening) -> None:
        """The topic was deleted before the opening began."""

    def check_free(self, names: Mapping[str, bytes], topic_names: Iterable[str]) -> None:
        """Raise ThrottledBroker while other partitions under way have these names."""


class _Part(NamedTuple):
    """`topic`: as it was when the job was made."""

    key: Key
    topic: TopicImage
    job: OpenJob


class _Result(NamedTuple):
    part: _Part
    found: OpenedReplica | BaseException


class Openings:
    __slots__ = (
        "_directory",
        "_disk",
        "_find_topic",
        "_ids_of_name",
        "_jobs",
        "_jobs_in_flight",
        "_late",
        "_listener",
        "_new",
        "_of_topic",
        "_options",
        "_pace",
        "_queue",
        "_results",
        "_stopped",
        "_watchers",
        "under_way",
    )

    _directory: DataDirectory

    def __init__(
        self,
        config: NodeConfig,
        disk: Disk,
        jobs: Jobs,
        listener: OpeningListener,
        find_topic: Callable[[bytes], TopicImage | None],
    ) -> None:
        self._disk = disk
        self._jobs = jobs
        self._jobs_in_flight = 0
        self._pace = OpeningPace()
        self._results: deque[_Result] = deque()
        self._listener = listener
        self._late = LateDirectories(
            jobs,
            listener.check_free,
            lambda topic_id: find_topic(topic_id) is None,
            self._directory_made,
            self.start_jobs,
        )
        self._find_topic = find_topic
        self._options: LogOptions = {
            "indexes": IndexCache(),
            "producers_max": config.producers_per_partition_max,
            "producer_expiry_us": config.producer_expiry_ms * 1000,
            "own_cluster": 0,
        }
        self.under_way: dict[Key, Opening] = {}
        self._of_topic: Counter[bytes] = Counter()
        # By name: several where one was deleted and made again.
        self._ids_of_name: dict[str, set[bytes]] = {}
        self._queue: deque[Key] = deque()
        self._new: deque[Key] = deque()
        self._watchers: dict[bytes, list[Then]] = {}
        self._stopped = False

    def next_us(self) -> int | None:
        if self._new or self._results or (self._queue and not self._jobs_in_flight):
            return 0
        slow_us = self._pace.slow_us if self._queue else None
        late_us = self._late.next_us
        return slow_us if late_us is None else late_us if slow_us is None else min(slow_us, late_us)

    def load(self, directory: DataDirectory) -> None:
        self._directory = directory
        # By the directory, not by the metadata, which may not have it yet.
        self._options["own_cluster"] = cluster_number(directory.cluster_id)
        self._late.load(directory)

    def add(self, key: Key, opening: Opening) -> None:
        """Open it soon; after `stop` it is left to the next start."""
        assert key not in self.under_way
        if self._stopped:
            return
        self.under_way[key] = opening
        self._of_topic[key[0]] += 1
        self._ids_of_name.setdefault(opening.name.topic, set()).add(key[0])
        if opening.never_created:
            self._late.add(key, opening.name)
        else:
            (self._new if opening.new else self._queue).append(key)
        assert self._of_topic[key[0]] > 0
        assert len(self._new) + len(self._queue) <= len(self.under_way)

    def start_jobs(self, now: Now) -> None:
        self._late.run(now)
        self._pace.look(now)
        while self._queue and not self._results and self._pace.may_start(self._jobs_in_flight):
            parts: list[_Part] = []
            for _ in range(self._pace.logs_of_next(len(self._queue))):
                self._begin(self._queue.popleft(), partial(self._add_part, parts), now)
                if not self._queue:
                    break
            if parts:
                is_timed = self._pace.started(len(parts), self._jobs_in_flight, now)
                self._jobs_in_flight += 1
                assert self._jobs_in_flight <= JOBS_IN_FLIGHT_MAX
                job = OpenManyJob([part.job for part in parts])
                self._jobs.start(job, partial(self._back, [job], parts, is_timed))

    def _directory_made(self, key: Key, found: bool | BaseException, now: Now) -> None:
        opening = self.under_way[key]
        assert opening.never_created
        if self._stopped:
            self._ended(key, now)
        elif isinstance(found, bool):
            self.under_way[key] = opening._replace(never_created=False, new=found)
            (self._new if found else self._queue).append(key)
        else:
            self._listener.on_open_failed(key, opening, found, now)
            self._ended(key, now)

    def tick(self, now: Now) -> None:
        self._take_some(now)
        for _ in range(min(_NEW_PER_TICK, len(self._new))):
            self._begin(self._new.popleft(), self._make_new, now)

    def _begin(self, key: Key, begin: Callable[[Key, TopicImage, Now], None], now: Now) -> None:
        """Begin one partition; whatever it raises, the others have their turns."""
        try:
            topic = self._find_topic(key[0])
            if topic is None:
                self._listener.on_not_opened(key, self.under_way[key])
                self._ended(key, now)
            else:
                begin(key, topic, now)
        except Exception as error:
            opening = self.under_way.get(key)
            if opening is not None:
                self._listener.on_open_failed(key, opening, error, now)
                self._ended(key, now)

    def _add_part(self, parts: list[_Part], key: Key, topic: TopicImage, now: Now) -> None:
        opening = self.under_way[key]
        name = str(opening.name)
        job = OpenJob(
            self._disk,
            self._directory.data.partition_path(name),
            log_config(topic),
            now,
            clean=opening.clean,
            epoch_newest=topic.partitions[key[1]].leader_epoch,
            known=self._directory.written.get(name),
            **self._options,
        )
        parts.append(_Part(key, topic, job))

    def _back(
        self,
        jobs: list[OpenManyJob],
        parts: list[_Part],
        is_timed: bool,
        result: object,
        error: BaseException | None,
        now: Now,
    ) -> None:
        # Called again after a bug of ours: only the first call counts the job.
        if jobs:
            jobs.pop()
            self._jobs_in_flight -= 1
            assert self._jobs_in_flight >= 0
            if is_timed:
                self._pace.back(now)
            found: list[OpenedReplica | Exception | BaseException]
            if error is None:
                assert isinstance(result, list)
                assert len(result) == len(parts), "each log of a job has its result"
                found = result
            else:
                found = [error] * len(parts)
            self._results.extend(map(_Result, parts, found))
        self._take_some(now)

    def _take_some(self, now: Now) -> None:
        broken: Exception | None = None
        # After a stop all of them: no tick comes.
        left = len(self._results) if self._stopped else min(_TAKEN_PER_CALL, len(self._results))
        for _ in range(left):
            part, found = self._results.popleft()
            try:
                self._take(part, found, now)
            except Exception as failure:
                broken = failure
        if not self._results:
            self.start_jobs(now)
        if broken is not None:
            raise broken

    def _take(self, part: _Part, found: OpenedReplica | BaseException, now: Now) -> None:
        """When even the failure cannot be taken, end the opening."""
        try:
            self._opened(part.key, part.topic, found, now)
        except Exception as failure:
            try:
                self._opened(part.key, part.topic, failure, now)
            except Exception:
                if part.key in self.under_way:
                    self._ended(part.key, now)
                raise

    def _make_new(self, key: Key, topic: TopicImage, now: Now) -> None:
        opened = new_log(
            self._disk,
            self._path(key),
            log_config(topic),
            now,
            **self._options,
        )
        self._opened(key, topic, opened, now)

    def stop(self, now: Now) -> None:
        """The next start opens the rest."""
        assert not self._stopped
        self._stopped = True
        left = [*self._queue, *self._new, *self._late.take_all()]
        self._queue.clear()
        self._new.clear()
        for key in left:
            self._ended(key, now)
        self._take_some(now)

    def opened(self, topic_id: bytes, now: Now) -> Callable[[Then], None]:

        def start(then: Then) -> None:
            if self._of_topic[topic_id]:
                self._watchers.setdefault(topic_id, []).append(then)
            else:
                then(None, None, now)

        return start

    def deleted_of(self, topic_name: str) -> bytes | None:
        """Return the id of a deleted topic of this name, a partition of which is under way."""
        ids = self._ids_of_name.get(topic_name, ())
        return next((topic_id for topic_id in ids if self._find_topic(topic_id) is None), None)

    def drop_written(self, name: str) -> None:
        """Forget what the clean mark records of this name, whose directory goes."""
        self._directory.written.pop(name, None)

    def _path(self, key: Key) -> str:
        return self._directory.data.partition_path(str(self.under_way[key].name))

    def _opened(
        self, key: Key, topic: TopicImage, found: OpenedReplica | BaseException, now: Now
    ) -> None:
        opening = self.under_way.get(key)
        if opening is None:
            return  # Counted by the call that failed.
        if isinstance(found, OpenedReplica):
            # From now on the log is newer.
            self.drop_written(str(opening.name))
            self._listener.on_opened(key, opening.name, topic, found, now)
        else:
            self._listener.on_open_failed(key, opening, found, now)
        self._ended(key, now)

    def _ended(self, key: Key, now: Now) -> None:
        opening = self.under_way.pop(key)
        assert self._of_topic[key[0]] > 0, "an opening ends once"
        self._of_topic[key[0]] -= 1
        if not self._of_topic[key[0]]:
            del self._of_topic[key[0]]
            ids = self._ids_of_name[opening.name.topic]
            ids.remove(key[0])
            if not ids:
                del self._ids_of_name[opening.name.topic]
            assert self.under_way or not self._ids_of_name, "names of what is under way"
            for then in self._watchers.pop(key[0], ()):
                then(None, None, now)
