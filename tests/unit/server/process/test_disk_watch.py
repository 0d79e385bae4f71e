"""The watch on the data directory, in a thread of its own: a disk that hangs holds nothing up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from quiverlog.server.process.disk_watch import DiskLook, DiskWatch

DEADLINE_S = 20.0


class Looks:
    """Gathers looks on the loop."""

    def __init__(self) -> None:
        self.seen: list[DiskLook] = []
        self.threads: set[int] = set()
        self.hangs = threading.Event()
        self.is_owned = True

    def free_bytes(self) -> int:
        self.threads.add(threading.get_ident())
        return 7

    def look_owned(self) -> bool:
        self.threads.add(threading.get_ident())
        if self.hangs.is_set():
            threading.Event().wait(DEADLINE_S)
        return self.is_owned

    def watch(self) -> DiskWatch:
        return DiskWatch(
            asyncio.get_running_loop(),
            is_owned=self.look_owned,
            free_bytes=self.free_bytes,
            found=self.seen.append,
            period_s=0.001,
        )

    async def more(self, count: int) -> None:
        wanted = len(self.seen) + count
        await eventually(lambda: len(self.seen) >= wanted)


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not holds():  # noqa: ASYNC110 - a thread sets it
            await asyncio.sleep(0.001)


async def test_it_looks_again_and_again_and_never_on_the_loop() -> None:
    looks = Looks()
    watch = looks.watch()
    await looks.more(2)
    assert looks.seen[-1] == DiskLook(True, 7)
    looks.is_owned = False
    await looks.more(2)
    assert looks.seen[-1] == DiskLook(False, 7)
    watch.stop()
    assert threading.get_ident() not in looks.threads


async def test_room_that_cannot_be_measured_does_not_hide_a_directory_that_is_lost() -> None:
    looks = Looks()
    looks.is_owned = False

    def fails() -> int:
        raise OSError(5, "Input/output error")

    looks.free_bytes = fails  # type: ignore[method-assign]
    watch = looks.watch()
    await looks.more(1)
    watch.stop()
    assert looks.seen[0].is_owned is False
    assert looks.seen[0].free_bytes is None
    assert "Input/output error" in looks.seen[0].error


async def test_a_disk_that_hangs_holds_up_neither_the_loop_nor_the_end() -> None:
    looks = Looks()
    looks.hangs.set()
    watch = looks.watch()
    loop = asyncio.get_running_loop()
    began = loop.time()
    await eventually(lambda: bool(looks.threads))
    watch.stop()
    assert looks.seen == []
    assert loop.time() - began < DEADLINE_S / 2
