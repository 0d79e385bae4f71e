"""The pool that runs the node's jobs: serial within a key, side by side otherwise."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from quiverlog.server.jobs import Finished, JobPool

TIMEOUT_S = 10.0


class Task:
    kind = "test"

    def __init__(self, key: str, work: Callable[[], object]) -> None:
        self.key = key
        self._work = work

    def run(self) -> object:
        return self._work()


class Pool:
    """A pool whose results are waited for."""

    def __init__(self, threads: int) -> None:
        self._news = threading.Semaphore(0)
        self.pool = JobPool(threads=threads, wake=self._news.release)

    def finished(self, count: int) -> list[Finished]:
        found: list[Finished] = []
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
    assert pool.pool.running == 0
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
