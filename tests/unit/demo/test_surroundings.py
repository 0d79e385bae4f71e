"""The demo's brokers are its own: what is set for others does not reach them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import pytest

from quiverlog.addresses import SECURITY_VARIABLE
from quiverlog_demo import run


class Reached(Exception):
    pass


def test_a_security_file_of_the_environment_is_not_for_the_demo(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv(SECURITY_VARIABLE, "/another/clusters.toml")
    monkeypatch.setattr(run, "_check_requirements", lambda: None)
    monkeypatch.setattr(run, "load_tables", lambda **_: {})
    monkeypatch.setattr(run.signal, "signal", lambda *_: None)
    monkeypatch.setattr(run.tempfile, "mkdtemp", lambda **_: str(tmp_path))

    @contextlib.contextmanager
    def cluster(*_: object) -> Iterator[None]:
        assert SECURITY_VARIABLE not in os.environ
        raise Reached
        yield

    monkeypatch.setattr(run, "_cluster", cluster)
    with pytest.raises(Reached):
        run.run_demo(
            run.DemoOptions(
                keep=False, brokers=1, plot=False, flights_max=1, rows_per_batch=1,
                timeout_s=1.0, as_json=True,
            )
        )  # fmt: skip
