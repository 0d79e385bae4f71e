"""How soon the loop continues with work less urgent than a flush."""

from __future__ import annotations

import threading
from typing import Any

from quiverlog.server.observe.metrics import ServerMetrics
from quiverlog.server.process.jobs import FLUSH, JobPool
from quiverlog.server.process.node_runner import NodeRunner

TIMEOUT_S = 10.0


class Loop:
    """Notes what it is asked to call, and when."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.woken = threading.Event()

    def call_soon(self, callback: Any) -> Any:
        self.asked.append("soon")
        return self

    def call_later(self, delay_s: float, callback: Any) -> Any:
        self.asked.append("later" if delay_s > 0 else "soon")
        return self

    def call_soon_threadsafe(self, callback: Any) -> None:
        self.woken.set()


class Busy:
    """A node that always has more to do at once."""

    def next_deadline_us(self) -> int:
        return 0


class Flush:
    kind = FLUSH
    key = "t-0"

    def run(self) -> None: ...


def test_the_loop_rests_between_pieces_of_work_while_a_flush_is_under_way() -> None:
    """Otherwise the thread that comes back from the disk waits for the interpreter."""
    loop: Any = Loop()
    node: Any = Busy()
    connections: Any = type("Connections", (), {"by_id": {}})()
    log: Any = None
    runner = NodeRunner(
        loop,
        node,
        connections,
        metrics=ServerMetrics(),
        log=log,
        audit=None,
        flush_threads=1,
        work_threads=1,
    )
    pool: JobPool = runner.jobs
    try:
        runner.flush()
        pool.submit(Flush())
        runner._timer = None
        runner.flush()
        assert loop.woken.wait(TIMEOUT_S)
        assert len(pool.collect()) == 1
        runner._timer = None
        runner.flush()
        assert loop.asked == ["soon", "later", "soon"]
    finally:
        runner._timer = None
        assert runner.close(TIMEOUT_S)
