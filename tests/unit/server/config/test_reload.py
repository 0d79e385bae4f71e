"""Reloading the configuration: off the loop, one reading at a time, and files that are none."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from quiverlog.errors import InvalidConfig
from quiverlog.server.config.config import CONFIG_FILE_BYTES_MAX, BrokerConfig, load_config
from quiverlog.server.config.reload import ConfigReloader
from quiverlog.server.observe.logs import make_logger

WAIT_S = 10.0


def reloading(
    read: Callable[[], BrokerConfig] | None, play: Callable[[ConfigReloader], None]
) -> list[BrokerConfig]:
    """What was applied by the time that `play`, run in a thread of its own, returns."""
    applied: list[BrokerConfig] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        reloader = ConfigReloader(loop, read, log=make_logger(level="error", format="logfmt"))
        reloader.begin(applied.append)
        await asyncio.wait_for(asyncio.to_thread(play, reloader), WAIT_S)

    asyncio.run(run())
    return applied


def on_loop(reloader: ConfigReloader, work: Callable[[], None]) -> None:
    """Run on the loop, and wait until it has."""
    done = threading.Event()
    reloader._loop.call_soon_threadsafe(lambda: (work(), done.set()))
    assert done.wait(WAIT_S), "the loop does not turn"


def test_a_file_that_does_not_answer_holds_nothing_up_and_requests_gather() -> None:
    started, go_on = threading.Semaphore(0), threading.Semaphore(0)
    reads = []

    def read() -> BrokerConfig:
        reads.append(threading.current_thread())
        started.release()
        assert go_on.acquire(timeout=WAIT_S)
        return load_config()

    def play(reloader: ConfigReloader) -> None:
        for _ in range(5):  # the loop turns while the first is being read
            on_loop(reloader, reloader.request)
        assert started.acquire(timeout=WAIT_S)
        assert len(reads) == 1
        go_on.release()
        assert started.acquire(timeout=WAIT_S), "what came during the first reading was lost"
        go_on.release()
        reads[1].join(WAIT_S)
        on_loop(reloader, lambda: None)

    assert len(reloading(read, play)) == 2
    assert len(reads) == 2
    assert all(thread.daemon for thread in reads), "the process would wait for it"


def test_a_reading_that_fails_is_followed_by_the_next() -> None:
    answers: list[Callable[[], BrokerConfig]] = [
        lambda: load_config(flags={"node.id": -1}),
        lambda: 1 // 0,  # type: ignore[return-value, list-item]
        load_config,
    ]
    finished = threading.Semaphore(0)

    def read() -> BrokerConfig:
        try:
            return answers.pop(0)()
        finally:
            finished.release()

    def play(reloader: ConfigReloader) -> None:
        for _ in range(3):
            while reloader._reading:
                on_loop(reloader, lambda: None)
            on_loop(reloader, reloader.request)
            assert finished.acquire(timeout=WAIT_S)
        while reloader._reading:
            on_loop(reloader, lambda: None)

    assert len(reloading(read, play)) == 1
    assert not answers


def test_a_fifo_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    with pytest.raises(InvalidConfig, match="not a regular file"):
        load_config(path)


def test_what_is_no_file_or_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="not a regular file"):
        load_config("/dev/zero")
    with pytest.raises(InvalidConfig, match=r"not a regular file|cannot be read"):
        load_config(tmp_path)
    path = tmp_path / "large.toml"
    path.write_bytes(b"#" * CONFIG_FILE_BYTES_MAX)
    load_config(path)
    path.write_bytes(b"#" * (CONFIG_FILE_BYTES_MAX + 1))
    with pytest.raises(InvalidConfig, match="larger than"):
        load_config(path)


def test_deep_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "deep.toml"
    path.write_text("a = " + "[" * 5_000 + "]" * 5_000)
    with pytest.raises(InvalidConfig, match="deep"):
        load_config(path)
