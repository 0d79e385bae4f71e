"""Partitions that are to be opened: in which order, how many at once, and who waits for them.

Owns the queue, and what of the logs that were opened is not taken in yet: a few are in each tick.
The log of a partition whose directory was made for this very decision is empty, so
it needs no job: a few are made in each tick. Every other is opened by a job (directory_jobs.py).
What others have decided has no directory yet: a job makes some before they are opened.

Must not know: what is done with an open log, when opening is tried again.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple, Protocol

from quiverlog.core.controller.topic_image import TopicImage
from quiverlog.node.config import NodeConfig
from quiverlog.node.directory_jobs import (
    LogOptions,
    OpenedReplica,
    OpenJob,
    OpenManyJob,
    new_log,
)
from quiverlog.node.jobs import Jobs, Then
from quiverlog.node.late_directories import LateDirectories
from quiverlog.node.offline import Key, Opening
from quiverlog.node.opening_pace import JOBS_IN_FLIGHT_MAX, OpeningPace
from quiverlog.node.replica import log_config
from quiverlog.storage.directory.data_directory import DataDirectory
from quiverlog.storage.disk.disk import Disk
from quiverlog.storage.segment.segments import IndexCache
from quiverlog.types import Now, TopicPartition

__all__ = ["Key", "Openings", "Taker"]

_TAKEN_PER_CALL: Final = 64
"""Taking an open log in takes some 30 us of the loop."""
_NEW_PER_TICK: Final = 4
"""Making the log of a new partition takes some 40 us of the loop."""


class Taker(Protocol):
    """Who takes what became of an opening."""

    def take_open(
        self,
        key: Key,
        name: TopicPartition,
        topic: TopicImage,
        opened: OpenedReplica,
        now: Now,
    ) -> None:
        """The log is open; the topic is as it was when its opening began."""

    def take_failure(self, key: Key, opening: Opening, error: BaseException, now: Now) -> None:
        """The log cannot be opened."""

    def take_unopened(self, key: Key, opening: Opening) -> None:
        """The topic was deleted before the opening began."""

    def check_free(self, names: Mapping[str, bytes], topic_names: Iterable[str]) -> None:
        """Raise ThrottledBroker while the names of partitions are those of others on their way."""


class _Part(NamedTuple):
    """One of the logs that a job opens. `topic`: as it was when the job was made."""

    key: Key
    topic: TopicImage
    job: OpenJob


class _Result(NamedTuple):
    """What came of it."""

    part: _Part
    found: OpenedReplica | BaseException


class Openings:
    """See the module docstring.

    Args:
        find_topic: the topic of an id, as the image has it now.
    """

    __slots__ = (
        "_directory",
        "_disk",
        "_find_topic",
        "_ids_of_name",
        "_jobs",
        "_jobs_in_flight",
        "_late",
        "_new",
        "_of_topic",
        "_options",
        "_pace",
        "_queue",
        "_results",
        "_stopped",
        "_taker",
        "_watchers",
        "under_way",
    )

    _directory: DataDirectory

    def __init__(
        self,
        config: NodeConfig,
        disk: Disk,
        jobs: Jobs,
        taker: Taker,
        find_topic: Callable[[bytes], TopicImage | None],
    ) -> None:
        self._disk = disk
        self._jobs = jobs
        self._jobs_in_flight = 0
        self._pace = OpeningPace()
        self._results: deque[_Result] = deque()  # Of jobs that are back; not taken in yet.
        self._taker = taker
        self._late = LateDirectories(
            jobs,
            taker.check_free,
            lambda topic_id: find_topic(topic_id) is None,
            self._directory_made,
            self.start_jobs,
        )
        self._find_topic = find_topic
        self._options: LogOptions = {
            "indexes": IndexCache(),  # One bound for all logs.
            "producers_max": config.producers_per_partition_max,
            "producer_expiry_us": config.producer_expiry_ms * 1000,
        }
        self.under_way: dict[Key, Opening] = {}
        """Partitions that are opened now, or will be."""
        self._of_topic: Counter[bytes] = Counter()  # How many of them, by topic.
        # Their topics' ids, by name: several where one was deleted and made again.
        self._ids_of_name: dict[str, set[bytes]] = {}
        self._queue: deque[Key] = deque()  # Those that a job will open.
        self._new: deque[Key] = deque()
        self._watchers: dict[bytes, list[Then]] = {}
        self._stopped = False

    def next_us(self) -> int | None:
        """When the next tick has logs to make, or jobs to start; 0: at once."""
        if self._new or self._results or (self._queue and not self._jobs_in_flight):
            return 0
        slow_us = self._pace.slow_us if self._queue else None
        late_us = self._late.next_us
        return slow_us if late_us is None else late_us if slow_us is None else min(slow_us, late_us)

    def load(self, directory: DataDirectory) -> None:
        """The partitions lie there."""
        self._directory = directory
        self._late.load(directory)

    def add(self, key: Key, opening: Opening) -> None:
        """Open this partition soon; after `stop` it is left to the next start."""
        assert key not in self.under_way
        if self._stopped:
            return
        self.under_way[key] = opening
        self._of_topic[key[0]] += 1
        self._ids_of_name.setdefault(opening.name.topic, set()).add(key[0])
        if opening.unmade:
            self._late.add(key, opening.name)
        else:
            (self._new if opening.new else self._queue).append(key)
        assert self._of_topic[key[0]] > 0
        assert len(self._new) + len(self._queue) <= len(self.under_way)

    def start_jobs(self, now: Now) -> None:
        """Have the next logs opened, as many as may be under way at once."""
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
        assert opening.unmade
        if self._stopped:
            self._ended(key, now)
        elif isinstance(found, bool):
            self.under_way[key] = opening._replace(unmade=False, new=found)
            (self._new if found else self._queue).append(key)
        else:
            self._taker.take_failure(key, opening, found, now)
            self._ended(key, now)

    def tick(self, now: Now) -> None:
        """Make the next logs of new partitions, and take in those that jobs have opened."""
        self._take_some(now)
        for _ in range(min(_NEW_PER_TICK, len(self._new))):
            self._begin(self._new.popleft(), self._make_new, now)

    def _begin(self, key: Key, begin: Callable[[Key, TopicImage, Now], None], now: Now) -> None:
        """One partition's turn; whatever it meets, the others have theirs."""
        try:
            topic = self._find_topic(key[0])
            if topic is None:
                self._taker.take_unopened(key, self.under_way[key])
                self._ended(key, now)
            else:
                begin(key, topic, now)
        except Exception as error:
            opening = self.under_way.get(key)
            if opening is not None:
                self._taker.take_failure(key, opening, error, now)
                self._ended(key, now)

    def _add_part(self, parts: list[_Part], key: Key, topic: TopicImage, now: Now) -> None:
        opening = self.under_way[key]
        name = str(opening.name)
        job = OpenJob(
            self._disk,
            self._directory.partition_path(name),
            log_config(topic.config),
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
        """A job is back; called again with an error after a failure of ours (see `Jobs`)."""
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
        """Take in the next logs that jobs have opened; all of them where no tick comes any more."""
        broken: Exception | None = None
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
        """One log of a job. What cannot even be taken as a failure is let go: nobody waits on."""
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
            log_config(topic.config),
            now,
            **self._options,
        )
        self._opened(key, topic, opened, now)

    def stop(self, now: Now) -> None:
        """Open no more partitions, whatever is decided from now on: the next start does."""
        assert not self._stopped
        self._stopped = True
        left = [*self._queue, *self._new, *self._late.take_all()]
        self._queue.clear()
        self._new.clear()
        for key in left:
            self._ended(key, now)
        self._take_some(now)

    def opened(self, topic_id: bytes, now: Now) -> Callable[[Then], None]:
        """To be yielded by a handler that waits until all of a topic's partitions are open, or
        known not to be."""

        def start(then: Then) -> None:
            if self._of_topic[topic_id]:
                self._watchers.setdefault(topic_id, []).append(then)
            else:
                then(None, None, now)

        return start

    def deleted_of(self, topic_name: str) -> bytes | None:
        """Id of a deleted topic of this name, a partition of which is under way."""
        ids = self._ids_of_name.get(topic_name, ())
        return next((topic_id for topic_id in ids if self._find_topic(topic_id) is None), None)

    def forget_written(self, name: str) -> None:
        """The directory of this name goes: what the clean mark says of it holds for no other."""
        self._directory.written.pop(name, None)

    def _path(self, key: Key) -> str:
        return self._directory.partition_path(str(self.under_way[key].name))

    def _opened(
        self, key: Key, topic: TopicImage, found: OpenedReplica | BaseException, now: Now
    ) -> None:
        opening = self.under_way.get(key)
        if opening is None:
            return  # Called again after a failure of ours: it was counted before.
        if isinstance(found, OpenedReplica):
            # From now on the log knows better.
            self.forget_written(str(opening.name))
            self._taker.take_open(key, opening.name, topic, found, now)
        else:
            self._taker.take_failure(key, opening, found, now)
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
