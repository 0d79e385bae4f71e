"""What every test may count on.

Owns the event loop (uvloop, as in the broker), hypothesis' profiles and the rule that a run in
which nothing was tested is a failure. Not here: any test by name.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path

import hypothesis
import pytest
import uvloop

from tests.support.broker import BrokerProcess
from tests.support.once import RESULTS_VARIABLE
from tests.support.places import directory_on_disk

# Programs that tests start buffer their output, as at a user's: with this variable set a developer
# would not see what is left to the interpreter's end.
os.environ.pop("PYTHONUNBUFFERED", None)

LONG_CASES = Path(__file__).parent / "long_cases.txt"
LEFT_VARIABLE = "QUIVERLOG_TEST_LEFT"
NO_TESTS_RAN = pytest.ExitCode.NO_TESTS_COLLECTED

# No deadlines: two processes share two cores with a JVM, and a slow example is not a wrong one.
# `ci` draws the same examples every time, so that a green change stays green; `dev` (the default)
# looks for new ones at every run; `deep` is for a night.
_COMMON = {
    "deadline": None,
    "print_blob": True,
    "suppress_health_check": [hypothesis.HealthCheck.too_slow],
}
hypothesis.settings.register_profile("ci", derandomize=True, max_examples=60, **_COMMON)
hypothesis.settings.register_profile("dev", max_examples=60, **_COMMON)
hypothesis.settings.register_profile("deep", max_examples=2_000, **_COMMON)
hypothesis.settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev")
)

# Spark asks the interpreter of its workers which data sources exist: it must be this one, whether
# or not the virtual environment is activated.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def pytest_configure(config: pytest.Config) -> None:
    """Before the processes of a run begin, which have the place of shared results from here."""
    BrokerProcess.forks = True
    # pytest-asyncio asks for the current loop before it sets its own. One would be made then that
    # no code closes: a later test, of another module, failed by the warning.
    asyncio.set_event_loop(None)
    if not hasattr(config, "workerinput"):
        results = tempfile.mkdtemp(prefix="quiverlog-results-")
        os.environ[RESULTS_VARIABLE] = results
        config.add_cleanup(lambda: shutil.rmtree(results, ignore_errors=True))


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run coroutine tests on the loop that the broker runs on."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """What is collected stays: looking for garbage in it took a quarter of the time."""
    gc.disable()
    try:
        import_a_share(session.config)
        return (yield)
    finally:
        gc.enable()


def import_a_share(config: pytest.Config) -> None:
    """Each process of a run compiles its part of the tests, then finds what the others compiled.

    In a fresh clone each would otherwise compile all of them, since all collect in one order.
    """
    worker = getattr(config, "workerinput", None)
    if worker is None:
        return
    places = [config.invocation_params.dir / arg.partition("::")[0] for arg in config.args]
    files = sorted(path for place in places for path in place.rglob("test_*.py"))
    for path in files[int(worker["workerid"][2:]) :: worker["workercount"]]:
        # Collection meets the same error and reports it.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            name = path.relative_to(config.rootpath).with_suffix("")
            importlib.import_module(".".join(name.parts))


@pytest.hookimpl(tryfirst=True)  # Before `-m` and `-k` choose.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that take ten seconds begin first: none is to be left when other processes have ended.

    They also stay in the process that began with them, which has their simulated results.
    """
    listed = set(LONG_CASES.read_text().splitlines())
    for item in items:
        if item.nodeid in listed:
            item.add_marker(pytest.mark.long)
    items.sort(key=lambda item: item.get_closest_marker("first") is None)


def pytest_deselected(items: list[pytest.Item]) -> None:
    """How many tests are left to `make test-long`, for the last words of scripts/test.sh."""
    place = os.environ.get(LEFT_VARIABLE)
    if place and not items[0].config.option.keyword:
        left = sum(item.get_closest_marker("long") is not None for item in items)
        Path(place).write_text(str(left))


def pytest_collection_finish() -> None:
    """Take what was imported out of every later collection's work."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def garbage() -> Iterator[None]:
    """Collect it where it was made: a socket that is found in it then fails its own module."""
    yield
    gc.collect()


@pytest.fixture
def as_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers start as `quiverlog broker` does, which takes five times as long."""
    monkeypatch.setattr(BrokerProcess, "forks", False)


@pytest.fixture
def disk_path() -> Iterator[Path]:
    """As `tmp_path`, on a disk."""
    with directory_on_disk() as path:
        yield Path(path)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A run in which every test was skipped or deselected must not look green."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or session.config.option.collectonly or hasattr(session, "workerinput"):
        return  # an xdist worker sees only its share
    if exitstatus == pytest.ExitCode.OK and not reporter.stats.get("passed"):
        session.exitstatus = NO_TESTS_RAN
