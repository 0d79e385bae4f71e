"""The pool that runs the node's jobs: serial within a key, side by side otherwise."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from quiverlog.node.closing import CloseLogJob
from quiverlog.server.process.jobs import CLOSE, FinishedJob, JobPool

TIMEOUT_S = 10.0


class Task:
    def __init__(self, key: str, work: Callable[[], object], kind: str = "test") -> None:
        self.key = key
        self.kind = kind
        self._work = work

    def run(self) -> object:
        return self._work()


class Pool:
    """A pool whose results are waited for."""

    def __init__(self, threads: int, flush_threads: int = 1) -> None:
        self._news = threading.Semaphore(0)
        self.pool = JobPool(
            flush_threads=flush_threads, work_threads=threads, wake=self._news.release
        )

    def finished(self, count: int) -> list[FinishedJob]:
        found: list[FinishedJob] = []
        while len(found) < count:
            assert self._news.acquire(timeout=TIMEOUT_S), "a job did not come back"
            found += self.pool.collect()
        return found


def test_jobs_of_one_key_run_in_their_order_one_at_a_time() -> None:
    pool = Pool(threads=4)
    order: list[int] = []
    inside = threading.Lock()

    def work(number: int) -> Callable[[], object]:
        def run() -> int:
            assert inside.acquire(blocking=False), "two jobs of one key at once"
            order.append(number)
            inside.release()
            return number

        return run

    for number in range(50):
        pool.pool.submit(Task("log", work(number)))
    found = pool.finished(50)
    assert order == list(range(50))
    assert [f.result for f in found] == order
    assert [f.error for f in found] == [None] * 50
    assert pool.pool.uncollected == 0
    assert pool.pool.close(TIMEOUT_S)


def test_a_slow_key_does_not_hold_another() -> None:
    pool = Pool(threads=2)
    release = threading.Event()
    pool.pool.submit(Task("slow", lambda: release.wait(TIMEOUT_S)))
    for _ in range(5):
        pool.pool.submit(Task("slow", lambda: None))
    pool.pool.submit(Task("quick", lambda: "quick"))
    (first,) = pool.finished(1)
    assert first.result == "quick"
    release.set()
    assert len(pool.finished(6)) == 6
    assert pool.pool.close(TIMEOUT_S)


@pytest.mark.parametrize("error", [OSError("no"), KeyboardInterrupt()])
def test_what_a_job_raises_comes_back_and_the_next_runs(error: BaseException) -> None:
    def fail() -> object:
        raise error

    pool = Pool(threads=1)
    pool.pool.submit(Task("log", fail))
    pool.pool.submit(Task("log", lambda: 1))
    first, second = pool.finished(2)
    assert (first.result, first.error) == (None, error)
    assert (second.result, second.error) == (1, None)
    assert pool.pool.close(TIMEOUT_S)


def test_flushes_do_not_wait_for_slow_work_on_other_logs() -> None:
    pool = Pool(threads=1)
    started, release = threading.Event(), threading.Event()
    pool.pool.submit(Task("slow", lambda: (started.set(), release.wait(TIMEOUT_S))))
    assert started.wait(TIMEOUT_S)
    pool.pool.submit(Task("other", lambda: None))
    pool.pool.submit(Task("log", lambda: "flushed", kind="flush"))
    (first,) = pool.finished(1)
    assert first.result == "flushed"
    assert pool.pool.waiting_by_queue == {"flush": 0, "check": 0, "work": 1, "behind": 0}
    release.set()
    assert len(pool.finished(2)) == 2
    assert pool.pool.close(TIMEOUT_S)


def test_logs_are_closed_by_all_threads_that_flush() -> None:
    pool = Pool(threads=1, flush_threads=3)
    side_by_side = threading.Barrier(3)
    for number in range(3):
        pool.pool.submit(Task(f"log-{number}", lambda: side_by_side.wait(TIMEOUT_S), CLOSE))
    assert [found.error for found in pool.finished(3)] == [None] * 3
    assert CloseLogJob.kind == CLOSE, "the node's word for it"
    assert pool.pool.close(TIMEOUT_S)


def test_a_flush_keeps_its_place_behind_other_work_on_the_same_log() -> None:
    pool = Pool(threads=2, flush_threads=2)
    release = threading.Event()
    order: list[str] = []

    def slow() -> None:
        assert release.wait(TIMEOUT_S)
        order.append("open")

    pool.pool.submit(Task("log", slow))
    pool.pool.submit(Task("log", lambda: order.append("flush"), kind="flush"))
    pool.pool.submit(Task("log", lambda: order.append("trim")))
    assert pool.pool.waiting_by_queue["behind"] == 2
    release.set()
    pool.finished(3)
    assert order == ["open", "flush", "trim"]
    assert pool.pool.close(TIMEOUT_S)


def test_closing_lets_everything_finish_that_was_submitted() -> None:
    pool = Pool(threads=1)
    release = threading.Event()
    done: list[int] = []
    pool.pool.submit(Task("log", lambda: release.wait(TIMEOUT_S)))
    for number in range(20):
        kind = "flush" if number % 2 else "test"
        pool.pool.submit(Task("log", lambda number=number: done.append(number), kind=kind))
    closer = threading.Timer(0.05, release.set)
    closer.start()
    assert pool.pool.close(TIMEOUT_S)
    closer.join()
    assert done == list(range(20))
    assert len(pool.pool.collect()) == 21


def test_checks_have_threads_of_their_own() -> None:
    """Two of them at once, for seconds: cold reads and the metadata log do not wait for them."""
    pool = Pool(threads=1)
    release = threading.Event()
    for name in ("a", "b"):
        pool.pool.submit(Task(name, lambda: release.wait(TIMEOUT_S), kind="check rows"))
    pool.pool.submit(Task("other", lambda: "read"))
    (first,) = pool.finished(1)
    assert first.result == "read"
    release.set()
    assert len(pool.finished(2)) == 2
    assert pool.pool.close(TIMEOUT_S)
