"""How open files are shared out: never more than there are, and each share has some."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiverlog.errors import InvalidConfig
from quiverlog.server.process.descriptors import CLIENTS_MIN, plan_descriptors


@given(
    files_max=st.integers(1, 2_000_000),
    clients_wanted=st.integers(1, 1_000_000),
    http_wanted=st.integers(1, 10_000),
    job_threads=st.integers(2, 128),
)
def test_shares_add_up_to_no_more_than_there_is(
    files_max: int, clients_wanted: int, http_wanted: int, job_threads: int
) -> None:
    try:
        plan = plan_descriptors(
            files_max,
            clients_wanted=clients_wanted,
            http_wanted=http_wanted,
            job_threads=job_threads,
        )
    except InvalidConfig as error:
        needed = re.search(r"at least (\d+)", str(error))
        assert needed is not None
        assert int(needed[1]) > files_max
        # What the message asks for is enough.
        plan = plan_descriptors(
            int(needed[1]),
            clients_wanted=clients_wanted,
            http_wanted=http_wanted,
            job_threads=job_threads,
        )
    total = plan.reserve + plan.log_files + plan.http + plan.refusals + plan.peers + plan.clients
    total += plan.brokers + plan.operators
    assert 0 < plan.door < plan.refusals
    assert total <= plan.files_max
    assert plan.clients >= min(CLIENTS_MIN, clients_wanted)
    assert plan.clients <= clients_wanted
    assert plan.reserve > job_threads
    assert plan.log_files >= 8


def test_the_default_fits_into_20_000_files() -> None:
    plan = plan_descriptors(20_000, clients_wanted=12_000, http_wanted=64, job_threads=4)
    assert (plan.clients, plan.http) == (12_000, 64)


@pytest.mark.parametrize(("files_max", "clients"), [(64, 0), (128, 18), (256, 86), (1_024, 408)])
def test_common_limits(files_max: int, clients: int) -> None:
    """docs/broker.md names these."""
    if not clients:
        with pytest.raises(InvalidConfig, match="ulimit -n"):
            plan_descriptors(files_max, clients_wanted=12_000, http_wanted=64, job_threads=4)
        return
    plan = plan_descriptors(files_max, clients_wanted=12_000, http_wanted=64, job_threads=4)
    assert plan.clients == clients
