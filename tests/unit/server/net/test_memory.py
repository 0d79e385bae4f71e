"""The memory budget: which connections are closed when all together hold too much."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quiverlog.server.net.memory import MemoryBudget


class Client:
    def __init__(self, world: World) -> None:
        self._world = world
        self.held_bytes = 0
        self.holds = 0
        self.since_us = 0
        self.evicted = False

    def measure(self) -> tuple[int, int]:
        return self.holds, self.since_us

    def evict(self) -> None:
        assert not self.evicted
        self.evicted = True
        self.holds = 0
        self._world.clients.remove(self)

    def hold(self, count: int) -> None:
        if count and not self.holds:
            self.since_us = self._world.now_us
        self.holds = count
        if not self.evicted:
            self._world.budget.report(self, count)


class World:
    def __init__(self, bytes_max: int, clients: int) -> None:
        self.now_us = 1
        self.budget = MemoryBudget(bytes_max, lambda: self.clients, now_us=lambda: self.now_us)
        self.clients = [Client(self) for _ in range(clients)]


def test_a_fast_large_frame_outlives_many_that_lie_about() -> None:
    world = World(100, 11)
    *slow, fast = world.clients
    for client in slow:
        client.hold(9)
    world.now_us += 5_000_000
    fast.hold(48)
    assert not fast.evicted
    assert sum(client.evicted for client in slow) == 5
    assert world.budget.used_bytes == 93


def test_among_equals_in_time_the_largest_goes() -> None:
    world = World(100, 3)
    small, large, middle = world.clients
    small.hold(20)
    large.hold(50)
    middle.hold(40)
    assert (small.evicted, large.evicted, middle.evicted) == (False, True, False)


def test_bytes_taken_meanwhile_count_before_a_connection_is_closed() -> None:
    world = World(100, 2)
    first, second = world.clients
    first.hold(80)
    first.holds = 10  # its client has read 70 bytes; without a callback
    second.hold(50)
    assert not first.evicted
    assert not second.evicted
    assert world.budget.used_bytes == 60


def test_one_that_holds_more_than_all_may_is_closed_itself() -> None:
    world = World(100, 1)
    (client,) = world.clients
    client.hold(101)
    assert client.evicted
    assert world.budget.used_bytes == 0


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 120), st.integers(0, 1_000_000)), max_size=60
    )
)
def test_the_sum_is_right_and_never_above_the_budget(steps: list[tuple[int, int, int]]) -> None:
    world = World(200, 6)
    everybody = list(world.clients)
    for index, held, passed_us in steps:
        world.now_us += passed_us
        client = everybody[index]
        if not client.evicted:
            client.hold(held)
        assert world.budget.used_bytes == sum(c.holds for c in everybody)
        assert world.budget.used_bytes <= 200
    for client in list(world.clients):
        client.holds = 0
        world.budget.remove(client)
    assert world.budget.used_bytes == 0


def test_what_the_node_keeps_leaves_less_room_but_half_of_it_at_least() -> None:
    world = World(100, 2)
    first, second = world.clients
    kept = 30
    world.budget = MemoryBudget(
        100, lambda: world.clients, now_us=lambda: world.now_us, kept_bytes=lambda: kept
    )
    first.hold(60)
    assert not first.evicted
    second.hold(11)
    assert first.evicted
    kept = 1_000
    second.hold(50)
    assert not second.evicted
    second.hold(51)
    assert second.evicted
