"""Points of a Spark write at which a process is held until the test has done what it wants there.

`Points.environment` makes every interpreter below a driver (tasks, planners, commits) import this
module, which wraps the connector's writers from outside. A point is wished for by a file; the first
process that comes there takes the file, reports itself and waits: for `release`, or for its end.

Not here: what is killed (`sink_runs.py`). Imported at the start of each worker: nothing heavy.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

__all__ = ["POINTS", "Points", "Reached", "install"]

POINTS: Final = ("before-open", "staged-some", "staged-all", "before-commit", "after-commit")
PLACE: Final = "QUIVERLOG_TEST_SINK_POINTS"
TASKS: Final = "QUIVERLOG_TEST_SINK_TASKS"
ROOT: Final = Path(__file__).resolve().parents[2]
_EVERY_S: Final = 0.01


class Reached(NamedTuple):
    """The process that is held, and the two above it: of a task these are of its executor."""

    worker: int
    daemon: int
    jvm: int


class Points:
    """The test's side. `tasks`: of each micro-batch; the last of them is at `staged-all`."""

    def __init__(self, place: Path, tasks: int = 2) -> None:
        self._place = place
        self._tasks = tasks
        place.mkdir(parents=True)
        load = f"import {__name__} as points\npoints.install()\n"
        (place / "sitecustomize.py").write_text(load)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PYTHONPATH": f"{self._place}{os.pathsep}{ROOT}",
            PLACE: str(self._place),
            TASKS: str(self._tasks),
        }

    def hold(self, point: str, batch: int, attempt: int = 0) -> None:
        """Have the first process held that comes there; batch -1: outside of a stream."""
        assert point in POINTS
        (self._place / _name(point, batch, attempt)).touch()

    def reached(self, point: str, batch: int, attempt: int = 0) -> Reached | None:
        with contextlib.suppress(FileNotFoundError):
            text = (self._place / f"{_name(point, batch, attempt)}.reached").read_text()
            return Reached(*json.loads(text))
        return None

    def release(self, point: str, batch: int, attempt: int = 0) -> None:
        (self._place / f"{_name(point, batch, attempt)}.released").touch()


def _name(point: str, batch: int, attempt: int = 0) -> str:
    """`attempt`: of a task; a commit has none."""
    return f"{point}@{batch}+{attempt}"


# --- in workers -----------------------------------------------------------------------------------
def install() -> None:
    """Wrap the connector's writers when their module is imported, and only then."""
    if PLACE in os.environ:
        sys.meta_path.insert(0, _Patched())


class _Patched:
    """Finds one module, once, and leaves its loading to Python."""

    def find_spec(self, name: str, *_: Any) -> Any:
        if name != "pyspark_quiverlog.writer":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        load = spec.loader.exec_module

        def load_and_wrap(module: Any) -> None:
            load(module)
            for writer in (module.LogStreamWriter, module.LogBatchWriter):
                _wrap(writer)

        spec.loader.exec_module = load_and_wrap  # type: ignore[method-assign]
        return spec


def _wrap(writer: Any) -> None:
    write: Callable[..., Any] = writer.write
    commit: Callable[..., Any] = writer.commit

    def held_write(self: Any, iterator: Iterator[Any]) -> Any:
        batch, task, attempt = _task()
        _at("before-open", batch, attempt)
        report = write(self, _held_rows(iterator, batch, attempt))
        place = Path(os.environ[PLACE])
        (place / f"ended-{batch}-{task}").touch()
        if len([*place.glob(f"ended-{batch}-*")]) == int(os.environ[TASKS]):
            _at("staged-all", batch, attempt)
        return report

    def held_commit(self: Any, messages: list[Any], *batch_id: int) -> None:
        found = [one.batch_id for one in messages if one is not None]
        batch = batch_id[0] if batch_id else found[0] if found else -1
        _at("before-commit", batch)
        commit(self, messages, *batch_id)
        _at("after-commit", batch)

    writer.write, writer.commit = held_write, held_commit


def _held_rows(iterator: Iterator[Any], batch: int, attempt: int) -> Iterator[Any]:
    for number, rows in enumerate(iterator):
        if number:  # the rows before are sent
            _at("staged-some", batch, attempt)
        yield rows


def _task() -> tuple[int, int, int]:
    """The micro-batch, the task in it, and the attempt at that."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    batch = int(context.getLocalProperty("streaming.sql.batchId") or -1)
    return batch, context.partitionId(), context.attemptNumber()


def _at(point: str, batch: int, attempt: int = 0) -> None:
    place, name = Path(os.environ[PLACE]), _name(point, batch, attempt)
    try:
        (place / name).rename(place / f"{name}.taken")
    except FileNotFoundError:
        return
    daemon = os.getppid()
    jvm = int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
    written = place / f"{name}.written"
    written.write_text(json.dumps((os.getpid(), daemon, jvm)))
    written.rename(place / f"{name}.reached")
    while not (place / f"{name}.released").exists():
        time.sleep(_EVERY_S)
