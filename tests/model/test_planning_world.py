"""The driver of a stream in a world that changes at every look, against a plain model.

Topics come, go, come back under their names with other partitions, are trimmed and truncated,
between any two requests; the query's selection is narrowed and widened, its driver killed between
any two of Spark's steps; bounds of rows and bytes hold all the while. Whatever happens:

- no row is given to Spark twice;
- in the end every row that still exists, in what is selected then, was read;
- a row that was never read and is gone was reported, if the query knew its partition;
- nothing but DataLoss stops the query, and only with failOnDataLoss=true.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from quiverlog.errors import DataLoss
from tests.support.simlog import SimLog, SimulatedQuery

NAMES = st.sampled_from(["a", "b", "c"])
NUMBERS = st.integers(0, 2)
SELECTIONS: list[dict[str, str]] = [
    {"subscribePattern": "[abc]"},
    {"subscribePattern": "[ab]"},
    {"subscribe": "a"},
    {"subscribe": "b,a"},
    {"assign": '{"a":[0,1]}'},
    {"assign": '{"a":[1],"c":[0]}'},
]
LIMITS: list[dict[str, str]] = [
    {},
    {"maxOffsetsPerTrigger": "3"},
    {"maxBytesPerTrigger": "50"},
    {"maxOffsetsPerTrigger": "7", "maxBytesPerTrigger": "90"},
    {"minOffsetsPerTrigger": "4", "maxTriggerDelay": "1s"},
]
events = st.one_of(
    st.tuples(st.just("append"), NAMES, NUMBERS, st.integers(1, 9)),
    st.tuples(st.just("trim"), NAMES, NUMBERS, st.integers(0, 12)),
    st.tuples(st.just("truncate"), NAMES, NUMBERS, st.integers(0, 12)),
    st.tuples(st.just("create"), NAMES, st.integers(1, 3), st.just(0)),
    st.tuples(st.just("delete"), NAMES, st.just(0), st.just(0)),
    st.tuples(st.just("recreate"), NAMES, st.integers(1, 3), st.integers(0, 6)),
    st.tuples(st.just("grow"), NAMES, st.just(1), st.just(0)),
)


def happen(log: SimLog, event: tuple[str, str, int, int]) -> None:
    """One change of the world; what cannot happen does not."""
    what, name, number, amount = event
    topic = log.topics.get(name)
    if what == "create" and topic is None:
        log.create(name, number)
    elif what == "recreate":
        if topic is not None:
            log.delete(name)
        log.create(name, number)
        log.append(name, 0, amount)
    elif topic is None:
        return
    elif what == "delete":
        log.delete(name)
    elif what == "grow" and len(topic.partitions) < 3:
        log.add_partitions(name, 1)
    elif number >= len(topic.partitions):
        return
    elif what == "append":
        log.append(name, number, amount)
    elif what == "trim":
        log.trim(name, number, amount)
    elif what == "truncate" and amount < topic.partitions[number].end:
        log.truncate(name, number, amount)


class Reports(logging.Handler):
    """What was reported of losses."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


class World(RuleBasedStateMachine):
    """See the module."""

    @initialize(
        selection=st.sampled_from(SELECTIONS),
        limits=st.sampled_from(LIMITS),
        fail=st.booleans(),
        topics=st.lists(st.tuples(NAMES, st.integers(2, 3), st.integers(0, 9)), max_size=3),
    )
    def begin(
        self, selection: dict[str, str], limits: dict[str, str], fail: bool, topics: Any
    ) -> None:
        self.log = SimLog()
        for name, partitions, rows in topics:
            happen(self.log, ("create", name, partitions, 0))
            happen(self.log, ("append", name, 0, rows))
        for name in ("a", "b", "c"):  # a new query wants what it names
            happen(self.log, ("create", name, 2, 0))
        self.reports = Reports()
        self.logger = logging.getLogger("pyspark_quiverlog")
        self.logger.addHandler(self.reports)
        self.propagated, self.logger.propagate = self.logger.propagate, False
        self.stream = SimulatedQuery(self.log, startingOffsets="earliest", **limits)
        self.selection = selection
        self.fail = fail
        self._restart()
        assert self.step(lambda: self.stream.trigger("log")), "the start is made durable"

    def _restart(self) -> None:
        for name in ("subscribe", "subscribePattern", "assign"):
            self.stream.raw.pop(name, None)
        self.stream.raw |= self.selection | {"failOnDataLoss": str(self.fail).lower()}
        self.stream.planner = None

    def step(self, act: Callable[[], Any]) -> Any:
        """An operator is there: a query that fails for lost rows is started to go on."""
        try:
            return act()
        except DataLoss as error:
            assert self.fail
            self.reports.texts.append(error.message)
            self.fail = False
            self._restart()
            return True

    @rule(event=events)
    def change(self, event: Any) -> None:
        happen(self.log, event)

    @rule(crash=st.sampled_from(["", "", "", "plan", "log", "write", "commit"]))
    def trigger(self, crash: str) -> None:
        self.stream.now += 0.2
        self.step(lambda: self.stream.trigger(crash))

    @rule(
        upcoming=st.lists(st.tuples(st.integers(0, 3), events), min_size=1, max_size=6),
        crash=st.sampled_from(["", "", "log"]),
    )
    def trigger_while_the_world_changes(self, upcoming: list[Any], crash: str) -> None:
        """The numbers of requests between events."""
        waits = [(wait, event) for wait, event in upcoming]

        def between() -> None:
            if waits:
                wait, event = waits[0]
                waits[0] = (wait - 1, event)
                if wait <= 0:
                    waits.pop(0)
                    happen(self.log, event)

        self.log.between = between
        try:
            self.step(lambda: self.stream.trigger(crash))
        finally:
            self.log.between = None

    @rule()
    def restart(self) -> None:
        self._restart()

    @rule(selection=st.sampled_from(SELECTIONS), fail=st.booleans())
    def select_otherwise(self, selection: dict[str, str], fail: bool) -> None:
        self.selection, self.fail = selection, fail
        self._restart()

    @rule(upcoming=st.lists(events, max_size=4))
    def run_available_now(self, upcoming: list[Any]) -> None:
        """A run of Trigger.AvailableNow, in which things happen at every request."""
        self._restart()

        def run() -> None:
            self.stream.start()
            assert self.stream.planner is not None
            self.stream.planner.prepare_available_now()
            self.log.between = lambda: happen(self.log, upcoming.pop()) if upcoming else None
            self.stream.drain()

        try:
            self.step(run)
        finally:
            self.log.between = None
        self._restart()

    @precondition(lambda self: hasattr(self, "stream"))
    @rule()
    def come_to_rest(self) -> None:
        """Nothing more happens: the stream must catch up, rest, and have all rows."""
        for _ in range(3):  # an operator restarts it at most once per loss
            self.step(lambda: self.stream.drain())
            self.stream.now += 2
        self.stream.drain()
        self.check()

    def check(self) -> None:
        seen = [(row[0], row[1], row[3]) for row in self.stream.rows]
        assert len(seen) == len(set(seen)), "a row came twice"
        read = {value for _, _, value in seen}
        assert self.stream.planner is not None
        view = self.stream.planner._view
        known = self.known_partitions()
        for name, topic in [*self.log.topics.items(), *self.log.deleted]:
            is_there = self.log.topics.get(name) is topic
            for number, part in enumerate(topic.partitions):
                if not view.selects(name, number):
                    continue
                kept = {value for _, value in part.rows[part.start :]} if is_there else set()
                assert kept <= read, f"{name}-{number}: rows {sorted(kept - read)} were never read"
                lost = (part.ever - kept) - read
                if lost and (topic.topic_id.hex(), number) in known:
                    reported = [t for t in self.reports.texts if f"{name}-{number}" in t]
                    reported += [t for t in self.reports.texts if f"topic {name!r}" in t]
                    assert reported, f"{name}-{number}: no report that {sorted(lost)} were lost"

    def known_partitions(self) -> set[tuple[str, int]]:
        """Those that were in an end offset."""
        return {
            (topic["id"], int(number))
            for text in self.stream.offsets.values()
            for topic in json.loads(text)["topics"].values()
            for number in topic["partitions"]
        }

    def teardown(self) -> None:
        if hasattr(self, "stream"):
            self.log.between = None
            try:
                self.come_to_rest()
            finally:
                self.logger.removeHandler(self.reports)
                self.logger.propagate = self.propagated


TestWorld = World.TestCase
TestWorld.settings = settings(
    max_examples=60,
    stateful_step_count=20,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestWorld = pytest.mark.timeout(300)(TestWorld)


@pytest.mark.parametrize("rested", [True, False])
@pytest.mark.parametrize(("rows", "cut"), [(1, 0), (2, 1), (4, 2)])
def test_rows_that_take_the_place_of_others_in_an_available_now_are_read_once(
    rows: int, cut: int, rested: bool
) -> None:
    """Found by the machine: the log is cut and filled again after the end was frozen."""
    world = World()
    world.begin(selection=SELECTIONS[0], limits={}, fail=False, topics=[("a", 2, rows)])
    if rested:
        world.come_to_rest()
    world.run_available_now(upcoming=[("append", "a", 0, rows - cut), ("truncate", "a", 0, cut)])
    world.teardown()
