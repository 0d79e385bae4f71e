"""How many logs a job opens, and which jobs run side by side: driven without a clock or a disk."""

from __future__ import annotations

from quiverlog.node.partitions.opening import JOBS_IN_FLIGHT_MAX, LOGS_PER_JOB_MAX, OpeningPace
from quiverlog.types import Now

PARTITIONS = 5_000


def run(pace: OpeningPace, waiting: int, log_us: int, at_us: int = 0) -> list[int]:
    """Jobs one after the other, where a log takes this long; the logs of each."""
    sizes: list[int] = []
    while waiting:
        assert pace.may_start(0), "without a job under way there is always a next one"
        logs = pace.logs_of_next(waiting)
        timed = pace.started(logs, 0, Now(at_us, 0))
        at_us += logs * log_us
        pace.look(Now(at_us, 0))
        if timed:
            pace.back(Now(at_us, 0))
        waiting -= logs
        sizes.append(logs)
    return sizes


def test_quick_jobs_grow_until_few_logs_are_left() -> None:
    sizes = run(OpeningPace(), PARTITIONS, 100)
    assert sizes[:5] == [32, 64, 128, 256, 512]
    assert max(sizes) <= LOGS_PER_JOB_MAX
    assert sizes[-3:] == [1, 1, 1]
    assert len(sizes) <= 40, "to another thread and back, for each"


def test_a_job_of_many_logs_may_take_as_long_as_they_do() -> None:
    pace = OpeningPace()
    sizes = run(pace, PARTITIONS, 450)
    assert max(sizes) > 512
    assert not pace.may_start(1), "none was slow"


def test_a_slow_job_makes_the_next_ones_small_and_lets_them_run_side_by_side() -> None:
    pace = OpeningPace()
    run(pace, 1_000, 100)
    grown = pace.logs_of_next(PARTITIONS)
    assert grown > 32
    assert pace.started(grown, 0, Now(0, 0))
    assert not pace.may_start(1), "it is timed alone"
    pace.back(Now(grown * 2_000, 0))
    assert pace.logs_of_next(PARTITIONS) == 32
    assert [pace.may_start(n) for n in range(JOBS_IN_FLIGHT_MAX + 1)] == [True] * 4 + [False]


def test_a_job_that_hangs_keeps_the_others_for_a_moment_only() -> None:
    pace = OpeningPace()
    assert pace.started(pace.logs_of_next(PARTITIONS), 0, Now(0, 0))
    assert pace.slow_us == 50_000
    pace.look(Now(49_999, 0))
    assert not pace.may_start(1)
    pace.look(Now(50_000, 0))
    assert pace.may_start(1)
    assert pace.slow_us is None
    pace.back(Now(60_000, 0))
    assert pace.logs_of_next(PARTITIONS) == 32


def test_after_some_jobs_side_by_side_one_is_timed_again() -> None:
    pace = OpeningPace()
    assert pace.started(32, 0, Now(0, 0))
    pace.back(Now(1_000_000, 0))
    count = 0
    while pace.may_start(1):
        assert not pace.started(32, 1, Now(0, 0))
        count += 1
    assert count == 16
    assert not pace.started(32, 1, Now(0, 0)), "beside others none can be timed"
    assert pace.started(32, 0, Now(0, 0))
