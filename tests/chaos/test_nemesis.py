"""The schedule: the same from a seed in every run, within its bounds, every kind drawn."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from .faults import _links
from .nemesis import DISK, KINDS, LANES, NETWORK, NODE_IDS, Fault, draw


def test_a_seed_is_a_schedule() -> None:
    assert draw(7, 60.0) == draw(7, 60.0)
    assert draw(7, 60.0) != draw(8, 60.0)


def test_a_longer_run_begins_like_a_shorter_one() -> None:
    short = draw(7, 120.0)
    assert [fault for fault in draw(7, 600.0) if fault in short] == short


def test_faults_end_with_the_run_and_lanes_do_one_after_the_other() -> None:
    for seed in range(20):
        schedule = draw(seed, 90.0)
        assert all(fault.at_s + fault.lasts_s <= 90.0 for fault in schedule)
        for kinds, pause_s, _ in LANES.values():
            lane = [fault for fault in schedule if fault.kind in kinds]
            for one, other in pairwise(lane):
                assert other.at_s >= one.at_s + one.lasts_s + pause_s - 0.01


def test_ten_minutes_have_every_kind() -> None:
    counts = Counter(fault.kind for fault in draw(1, 600.0))
    assert set(counts) == set(KINDS)
    assert sum(counts[kind] for kind in DISK) >= 10


def test_every_fault_of_the_network_breaks_a_link_of_its_target() -> None:
    for kind in NETWORK:
        for node_id in NODE_IDS:
            for other in NODE_IDS:
                links = _links(Fault(0.0, 1.0, kind, "1", other, 0, 0.1), node_id)
                assert links
                assert all(f"broker-{node_id}" == source or target == node_id
                           for source, target in links if source != "client")  # fmt: skip
                assert all(source != f"broker-{target}" for source, target in links)
