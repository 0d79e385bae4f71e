"""The blocking consumer of a group.

Generated from `groups/async_group_consumer.py` by scripts/generate_client.py; do not edit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Self, TypeVar

from quiverlog.client.base.arguments import INT64, checked
from quiverlog.client.base.commands import Operation
from quiverlog.client.base.misuse import blocking_only
from quiverlog.client.cluster.routing import Cluster
from quiverlog.client.consumer.positions import PartitionKey
from quiverlog.client.drivers.blocking import BlockingDriver
from quiverlog.errors import (
    ClientClosed,
    InvalidArgument,
    LogTruncated,
    OffsetOutOfRange,
    QuiverlogError,
)

from .base import STEP_S, GroupBatch, GroupConsumerBase, GroupOptions, named
from .heart import HostedMember
from .member import Change, Phase

__all__ = ["GroupConsumer"]

T = TypeVar("T")


@blocking_only
class GroupConsumer(GroupConsumerBase):
    """Iterates over the batches of the partitions that a group assigns; made by
    `Client.consumer(..., group=...)`.

    For one task at a time, which is where callbacks run, between two batches.
    """

    def __init__(
        self,
        cluster: Cluster,
        options: GroupOptions,
        hosted: HostedMember,
        driver: BlockingDriver,
    ) -> None:
        super().__init__(cluster, options, hosted)
        self._hosted: HostedMember = hosted
        self._driver = driver
        self._turn = [None]

    def __del__(self) -> None:
        # Else its heart would keep the partitions of a program that has forgotten it.
        if not self._closed and os.getpid() == self._pid:
            self._hosted.drop()

    def __iter__(self) -> Iterator[GroupBatch]:
        while (batch := self._following(None)) is not None:
            yield batch
            batch = None  # keeps no reference while the answer after the next arrives

    def __next__(self) -> GroupBatch:
        batch = self._following(None)
        if batch is None:
            raise StopIteration
        return batch

    @checked()
    def poll(self, timeout: float = 1.0) -> GroupBatch | None:
        """Return the next batch, or None when there is none within `timeout` seconds.

        What was returned before is processed by this call; callbacks run within it.
        """
        return self._following(timeout)

    def _following(self, timeout_s: float | None) -> GroupBatch | None:
        self._come_back()
        clock = self._cluster.clock
        end_s = None if timeout_s is None else clock() + timeout_s
        try:
            while not self._closed:
                self._reconcile()
                left_s = STEP_S if end_s is None else max(0.0, min(STEP_S, end_s - clock()))
                try:
                    found = self._run(self._core.next(left_s))
                except (OffsetOutOfRange, LogTruncated) as error:
                    self._run(self._after_gone(error))
                    continue
                batch = None if found is None else self._handed(found)
                if batch is not None or (end_s is not None and clock() >= end_s):
                    return batch
            return None
        except QuiverlogError:
            raise  # instead of a batch
        except BaseException:
            self._core.take_back()
            with self._hosted.lock:
                self._member.interrupted_batch()
            raise

    # --- between two batches --------------------------------------------------------------------
    def _reconcile(self) -> None:
        while not self._closed:
            with self._hosted.lock:
                change = self._member.change()
            if change is None:
                return
            if change.lost is not None:
                self._forget(change)
            elif change.revoked is not None:
                self._hand_over(change.revoked)
            elif change.added is not None:
                self._add(change.added)
            self._hosted.wake()

    def _forget(self, change: Change) -> None:
        assert change.lost is not None
        self._run(self._drop(self._core.keys))
        try:
            self._call(self._options.on_lost, change.lost)
        finally:
            # Not before: the member joins anew when the program knows that it has nothing.
            with self._hosted.lock:
                if self._member.phase is Phase.LOST:
                    self._member.lost_over()
            self._hosted.wake()
        if change.loss is not None:
            raise change.loss

    def _hand_over(self, revoked: Mapping[PartitionKey, str]) -> None:
        had = {key: name for key, name in revoked.items() if key in self._member.reading}
        try:
            self._call(self._options.on_revoked, had)
        finally:
            self._commit_all()
            self._run(self._drop(revoked))
            with self._hosted.lock:
                self._member.revoked(revoked.keys())

    def _commit_all(self) -> None:
        """Commit what is processed, as far as the member may; a refusal is no error here."""
        with self._hosted.lock:
            if self._options.member.commits_processed and self._member.phase is Phase.MEMBER:
                self._member.ask_commit()
        self._hosted.wake()
        self._hosted.wait_for(lambda: self._member.has_committed, None)

    def _add(self, added: Mapping[PartitionKey, str]) -> None:
        losses = self._member.losses
        found = self._run(self._offsets_of(added))
        self._run(self._read(added, found))
        with self._hosted.lock:
            is_lost = losses != self._member.losses or self._member.phase is not Phase.MEMBER
            if not is_lost:
                self._member.taken(added)
        if is_lost:
            self._run(self._drop(added))
            return
        self._call(self._options.on_assigned, added)

    def _call(
        self,
        callback: Callable[[list[tuple[str, int]]], object] | None,
        partitions: Mapping[PartitionKey, str],
    ) -> None:
        if callback is None or not partitions:
            return
        self._begin_callback()
        try:
            callback(named(partitions))
        finally:
            with self._hosted.lock:
                self._member.interrupted_batch()

    # --- what the program asks for ----------------------------------------------------------------
    @checked()
    def commit(
        self, offsets: Mapping[tuple[str, int], int] | None = None, *, sync: bool = True
    ) -> None:
        """Commit what is processed, or these: {(topic, partition): next offset}.

        Args:
            sync: wait until it is safe; otherwise it is committed soon.

        Raises:
            FencedMemberEpoch: the group has given the partitions to others.
            InvalidArgument: a partition is not assigned to this consumer.
        """
        self._check_usable()
        chosen = self._chosen(offsets)
        with self._hosted.lock:
            self._member.ask_commit(chosen)
        self._hosted.wake()
        if not sync:
            return
        seconds = self._cluster.settings.request_timeout_s
        self._hosted.wait_for(lambda: self._member.has_committed, seconds)
        with self._hosted.lock:
            self._member.check_commit()

    def committed(self) -> dict[tuple[str, int], int | None]:
        """Return the group's committed offsets of the assignment; None where there is none."""
        self._check_usable()
        found = self._run(self._offsets_of(self._core.keys))
        names = {where: self._core.position(where).key for where in self.assignment}
        return {w: (found[k].offset if k in found else None) for w, k in names.items()}

    def lag(self) -> dict[tuple[str, int], int]:
        """Return how many rows of each assigned partition this consumer has not returned yet."""
        self._check_usable()
        ends = self._run(self._ends())
        return {w: max(0, end - self._core.positions[w]) for w, end in ends.items()}

    @checked(offset=INT64)
    def seek(self, partition: int | tuple[str, int], offset: int) -> None:
        """Go on from `offset` of an assigned partition, `(topic, number)`.

        Raises:
            UnknownPartition: the partition is not assigned to this consumer.
        """
        self._check_usable()
        self._core.seek(partition, offset)

    @checked()
    def pause(self, partition: int | tuple[str, int]) -> None:
        """Return no rows of a partition until `resume`; it stays assigned."""
        self._check_usable()
        self._core.pause(partition)

    @checked()
    def resume(self, partition: int | tuple[str, int]) -> None:
        """Go on with a partition that was paused."""
        self._check_usable()
        self._core.resume(partition)

    # --- the end ----------------------------------------------------------------------------------
    def close(self) -> None:
        """Commit what is processed and leave the group. The last batch counts with `done` only.

        A consumer with an `instance_id` leaves for a while: it keeps its partitions for a session.
        """
        self._end(for_a_while=True)

    def leave(self) -> None:
        """Commit what is processed and give the partitions away, with an `instance_id` too."""
        self._end(for_a_while=False)

    def _end(self, *, for_a_while: bool) -> None:
        if self._closed:
            return
        self._closed = True
        self._check_own()
        seconds = self._cluster.settings.request_timeout_s
        try:
            with self._hosted.lock:
                self._member.interrupted_batch()
                if self._options.member.commits_processed and self._member.phase is Phase.MEMBER:
                    self._member.ask_commit()
            self._hosted.wake()
            self._hosted.wait_for(lambda: self._member.has_committed, seconds)
            with self._hosted.lock:
                self._member.leave(for_a_while=for_a_while)
            self._hosted.wake()
            self._hosted.wait_for(lambda: self._member.is_over, seconds)
        finally:
            self._hosted.stop()
            if self._core.requests and self._driver.is_usable:
                self._driver.run(self._abandon())

    def abort(self) -> None:
        """End without a commit or a word to the group, which notices after the session."""
        if not self._closed:
            self._closed = True
            self._hosted.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _check_usable(self) -> None:
        self._check_own()
        if self._closed:
            raise ClientClosed(f"This consumer has left group {self.group!r}.")

    def _run(self, operation: Operation[T]) -> T:
        try:
            del self._turn[0]
        except IndexError:
            operation.close()
            message = f"The consumer of group {self.group!r} is read by another caller now."
            raise InvalidArgument(message) from None
        try:
            return self._driver.run(operation)
        finally:
            self._turn += (None,)
